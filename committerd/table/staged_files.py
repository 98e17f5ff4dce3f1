"""Which files a transaction names, and what must be known of them before it may be committed."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from committerd.errors import InvalidRequest
from committerd.lance.operations.operation import StagedFiles
from committerd.lance.transactions.transaction import index_files, new_files
from committerd.table.needs import DeletionFile, NamedFile, Staged
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


def _added_files(
    transaction: Transaction, files: StagedFiles, current: Manifest | None
) -> list[tuple[str, int | None, int]]:
    """Key, base and size of each data file and index file that a transaction adds.

    Those of the latest version (`current`) are left out, unless the transaction describes them otherwise.
    """
    wanted = [(data_key(file.path), _base_id(file), file.file_size_bytes) for file in files.data_files]
    wanted += [
        (index_file_key(file.index_uuid, file.path), file.base_id, file.size_bytes) for file in index_files(transaction)
    ]
    if current is None or not current.fragments:
        return wanted
    known = {where: said for fragment in current.fragments for where, said in _described_files(fragment)}
    staged = {where: said for fragment in files.fragments for where, said in _described_files(fragment)}

    def is_known(where: tuple[str, int | None]) -> bool:
        if where not in known or where not in staged:
            return where in known
        (rows, size, columns), (rows_said, size_said, columns_said) = known[where], staged[where]
        return rows == rows_said and size_said in (0, size) and columns_said <= columns

    return [(key, base_id, size) for key, base_id, size in wanted if not is_known((key, base_id))]


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


def _staged_deletions(files: StagedFiles, current: Manifest | None, written: Container[str]) -> list[DataFragment]:
    """Return the staged fragments whose deletion file the latest version (`current`) does not have."""
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
    added = _added_files(transaction, files, current) if verifies else []
    deleting = [one for one in files.fragments if is_uncounted(one)]
    if verifies or transaction.WhichOneof("operation") in ("delete", "update"):
        deleting += _staged_deletions(files, current, written)
    if len(added) > limits.files:
        raise InvalidRequest(
            f"the transaction brings {len(added)} files, but at most {limits.files} are allowed (setting "
            "commit.transaction_files_max): commit in smaller parts",
            code="too_many_files",
        )
    named = [NamedFile(Location(data_key(file.path)), 0) for file in files.data_files if is_sizeless(file)]
    for key, base_id, size in added:
        with suppress(InvalidRequest):  # a file in a base that can't be read counts as there
            if key not in written:
                named.append(NamedFile(located(key, base_id, bases), size))
    deletions = dict[Location, DeletionFile]()
    for fragment in deleting:
        with suppress(InvalidRequest):
            location = deletion_file_location(fragment, all_bases if is_uncounted(fragment) else bases, staged=True)
            deletions[location] = DeletionFile(fragment, location, is_staged=True)
    return Staged(files=list(dict.fromkeys(named)), deletions=list(deletions.values()), deletion_bytes_max=limits.bytes)


def is_sizeless(file: DataFile) -> bool:
    """Whether the size of a data file in the table's folder is not given."""
    return not file.file_size_bytes and not file.HasField("base_id")
