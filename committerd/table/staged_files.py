"""Which files a transaction names, and what must be known of them before it may be committed."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from committerd.errors import InvalidRequest
from committerd.lance.operations.operation import StagedFiles
from committerd.lance.transactions.transaction import index_files, new_files
from committerd.table.needs import DeletionFile, Staged
from committerd.table.places import Location, deletion_file_location, located
from committerd_common.messages import BasePath, DataFile, DataFragment, Manifest, Transaction
from committerd_common.paths import data_key, deletion_key, index_file_key


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Limits on the files of one transaction."""

    files: int = 100_000
    """Maximum number of data files and index files that it adds."""
    bytes: int = 64 * 1024 * 1024
    """Maximum bytes of its deletion files together."""


class Named(NamedTuple):
    """A data file or index file that a transaction adds."""

    key: str
    size: int
    """In bytes, according to the transaction; 0 = the transaction does not give it."""
    base_id: int | None


def named_files(transaction: Transaction, files: StagedFiles, current: Manifest | None) -> list[Named]:
    """List the data files and index files that a transaction adds.

    `files`: the staged files of the transaction. `current`: an excerpt of the latest version, whose own data files are
    left out unless the transaction describes them otherwise; None = leave out nothing.
    """
    wanted = [Named(data_key(file.path), file.file_size_bytes, _base_id(file)) for file in files.data_files]
    wanted += [
        Named(index_file_key(file.index_uuid, file.path), file.size_bytes, file.base_id)
        for file in index_files(transaction)
    ]
    if current is None or not current.fragments:
        return wanted
    known = {where: said for fragment in current.fragments for where, said in _described_files(fragment)}
    staged = {where: said for fragment in files.fragments for where, said in _described_files(fragment)}

    def is_known(one: Named) -> bool:
        where = one.key, one.base_id
        if where not in known or where not in staged:
            return where in known
        (rows, size, columns), (rows_said, size_said, columns_said) = known[where], staged[where]
        return rows == rows_said and size_said in (0, size) and columns_said <= columns

    return [one for one in wanted if not is_known(one)]


def _base_id(file: DataFile) -> int | None:
    return file.base_id if file.HasField("base_id") else None


def _described_files(
    fragment: DataFragment,
) -> Iterator[tuple[tuple[str, int | None], tuple[int, int, frozenset[tuple[int, int]]]]]:
    """Key and base of each data file of the fragment; its rows, size in bytes, and fields with their columns."""
    for file in fragment.files:
        pairs = zip(file.fields, file.column_indices, strict=False)
        columns = frozenset(pair for pair in pairs if pair[0] >= 0)
        yield (data_key(file.path), _base_id(file)), (fragment.physical_rows, file.file_size_bytes, columns)


def staged_deletions(
    files: StagedFiles, current: Manifest | None, *, written: Container[str] = ()
) -> list[DataFragment]:
    """Return the staged fragments whose deletion file the latest version (`current`) does not have.

    `written`: the keys of files that are written before the version.
    """
    with_deletions = [fragment for fragment in files.fragments if fragment.HasField("deletion_file")]
    if with_deletions and current is not None:
        known = {one.id: one.deletion_file for one in current.fragments if one.HasField("deletion_file")}
        with_deletions = [one for one in with_deletions if known.get(one.id) != one.deletion_file]
    return [one for one in with_deletions if deletion_key(one.id, one.deletion_file, staged=True) not in written]


def is_uncounted(fragment: DataFragment) -> bool:
    """Whether the fragment has a deletion file and does not say how many rows it deletes."""
    return fragment.HasField("deletion_file") and not fragment.deletion_file.num_deleted_rows


def needed_ahead(transaction: Transaction, limits: FileLimits, *, verifies: bool) -> Staged:
    """What must be known of the files of a transaction in the table's folder, as far as the transaction alone says.

    `verifies`: whether its files are verified.
    """
    try:
        return needed(transaction, new_files(transaction), None, bases=(), limits=limits, verifies=verifies)
    except InvalidRequest:  # it names too many files, and is refused for that when it is judged
        return Staged(deletion_bytes_max=limits.bytes)


def needed(
    transaction: Transaction,
    files: StagedFiles,
    current: Manifest | None,
    *,
    bases: Sequence[BasePath],
    all_bases: Sequence[BasePath] = (),
    limits: FileLimits,
    verifies: bool,
    written: Container[str] = (),
) -> Staged:
    """What must be known of the staged `files` of a transaction.

    If they are not verified, that is only what it takes to judge the transaction: the sizes that it does not give, and
    the rows that it deletes. `current`: an excerpt of the latest version (None = not known yet). `written`: the keys of
    files that are written before the version. `all_bases`: those in which a deletion file is read although it is not
    verified, because its fragment does not say how many rows it deletes. Raises `InvalidRequest` (`too_many_files`).
    """
    named, deleting = list[Named](), [one for one in files.fragments if is_uncounted(one)]
    if verifies:
        named += [one for one in named_files(transaction, files, current) if one.key not in written]
        deleting += staged_deletions(files, current, written=written)
    elif transaction.WhichOneof("operation") in ("delete", "update"):
        deleting += staged_deletions(files, current, written=written)
    if len(named) > limits.files:
        raise InvalidRequest(
            f"the transaction brings {len(named)} files, but at most {limits.files} are allowed (setting "
            "commit.transaction_files_max): commit in smaller parts",
            code="too_many_files",
        )
    locations = dict.fromkeys(Location(data_key(file.path)) for file in files.data_files if is_sizeless(file))
    for one in named:
        with suppress(InvalidRequest):  # a file in a base that can't be read counts as there
            locations[located(one.key, one.base_id, bases)] = None
    deletions = dict[Location, DeletionFile]()
    for fragment in deleting:
        with suppress(InvalidRequest):
            location = deletion_file_location(fragment, all_bases if is_uncounted(fragment) else bases, staged=True)
            deletions[location] = DeletionFile(fragment, location, is_staged=True)
    return Staged(files=list(locations), deletions=list(deletions.values()), deletion_bytes_max=limits.bytes)


def is_sizeless(file: DataFile) -> bool:
    """Whether the size of a data file in the table's folder is not given."""
    return not file.file_size_bytes and not file.HasField("base_id")
