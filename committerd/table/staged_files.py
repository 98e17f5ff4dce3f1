"""Which files a transaction names, what must be known of them, and whether they are as it says."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass

from committerd.errors import CommitterError, InvalidRequest, StoreUnavailable
from committerd.lance.checks.texts import require_schema_metadata
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.operations.operation import StagedFiles
from committerd.lance.transactions.fit import require_files_as_described
from committerd.lance.transactions.transaction import index_files, new_files, staged_files
from committerd.table.needs import DeletionFile, FoundFile, NamedFile, Staged, StagedFacts, described_part
from committerd.table.places import Location, deletion_file_location, located
from committerd_common.messages import BasePath, DataFile, DataFragment, FileDescriptor, Manifest, Transaction
from committerd_common.paths import data_key, deletion_key, index_file_key

MISSING_MAX = 10
"""Once so many files of a transaction are missing, the others are not looked for: it is refused anyway."""
_NAMED_MAX = 10
NAME_CHARS_MAX = 200
"""The length at which the name of a file is cut in a message."""
_NOT_READ = ("base_unreadable", "file_unreadable", StoreUnavailable.code)
"""Why a file in a base path counts as there: it can't be read from here."""


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


def _staged_deletions(
    with_deletions: Sequence[DataFragment], current: Manifest | None, written: Container[str]
) -> list[DataFragment]:
    """Return those of the staged fragments with deletion files whose file the latest version (`current`) lacks."""
    if current is not None:
        known = {one.id: one.deletion_file for one in current.fragments if one.HasField("deletion_file")}
        with_deletions = [one for one in with_deletions if known.get(one.id) != one.deletion_file]
    return [one for one in with_deletions if deletion_key(one.id, one.deletion_file, staged=True) not in written]


def _is_uncounted(fragment: DataFragment) -> bool:
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
    added = [one for one in _added_files(transaction, files, current) if one[0] not in written] if verifies else []
    with_deletions = [fragment for fragment in files.fragments if fragment.HasField("deletion_file")]
    deleting = [one for one in with_deletions if _is_uncounted(one)]
    if with_deletions and (verifies or transaction.WhichOneof("operation") in ("delete", "update")):
        deleting += _staged_deletions(with_deletions, current, written)
    if len(added) > limits.files:
        raise InvalidRequest(
            f"the transaction brings {len(added)} files, but at most {limits.files} are allowed (setting "
            "commit.transaction_files_max): commit in smaller parts",
            code="too_many_files",
        )
    named = [NamedFile(Location(data_key(file.path)), 0) for file in files.data_files if _is_sizeless(file)]
    for key, base_id, size in added:
        if base_id is None:
            named.append(NamedFile(Location(key), size))
            continue
        with suppress(InvalidRequest):  # a file in a base that can't be read counts as there
            named.append(NamedFile(located(key, base_id, bases), size))
    deletions = dict[Location, DeletionFile]()
    for fragment in deleting:
        with suppress(InvalidRequest):
            location = deletion_file_location(fragment, all_bases if _is_uncounted(fragment) else bases, staged=True)
            deletions[location] = DeletionFile(fragment, location, is_staged=True)
    return Staged(files=list(dict.fromkeys(named)), deletions=list(deletions.values()), deletion_bytes_max=limits.bytes)


def _is_sizeless(file: DataFile) -> bool:
    """Whether the size of a data file in the table's folder is not given."""
    return not file.file_size_bytes and not file.HasField("base_id")


def missing_file(keys: Sequence[str]) -> InvalidRequest:
    """The error that names these missing files (`missing_file`)."""
    listed = ", ".join(key[:NAME_CHARS_MAX] for key in keys[:_NAMED_MAX])
    more = f" and {len(keys) - _NAMED_MAX} more" if len(keys) > _NAMED_MAX else ""
    more += "; perhaps others, which were not looked for" if len(keys) >= MISSING_MAX else ""
    return InvalidRequest(
        f"files of the transaction are missing: {listed}{more}. Were they written to another table's "
        "folder, or did a cleanup delete them? Write them again, and stage a new transaction",
        code="missing_file",
    )


def require_none_at_fault(wanted: Staged, facts: StagedFacts) -> None:
    """Return if no file is known to be missing, and no deletion file is known to be at fault.

    What the facts don't answer passes: once a transaction is known to be refused, nothing more is read for it. Raises
    `InvalidRequest` (`missing_file`, `deletion_file`, `named_bytes`, `file_unreadable`).
    """
    _require_none_missing(wanted.files, facts)
    for one in wanted.deletions:
        found = facts.deletions.get(one.location)
        if found is not None and found.fault is not None and found.of == described_part(one.fragment):
            raise _anew(found.fault)


def _require_none_missing(wanted: Sequence[NamedFile], facts: StagedFacts) -> None:
    gone = [one.location.key for one in wanted if one.location in facts.files and facts.files[one.location] is None]
    if gone:
        raise missing_file(gone)


def require_files(wanted: Sequence[NamedFile], facts: StagedFacts) -> None:
    """Return if these files exist and have the sizes that the transaction gives.

    Files in a base path that can't be read from here are taken to exist. Raises `InvalidRequest` (`missing_file`,
    `file_size`, `file_unreadable`).
    """
    _require_none_missing(wanted, facts)
    wrong = list[str]()
    for (key, base), size in wanted:
        found = facts.files[Location(key, base)]
        if isinstance(found, FoundFile):
            if size not in (0, found.size):
                wrong.append(f"{key[:NAME_CHARS_MAX]} has {found.size} bytes, not {size}")
        elif found is not None and base is None:
            raise _anew(found)
    if wrong:
        more = f", and {len(wrong) - _NAMED_MAX} more" if len(wrong) > _NAMED_MAX else ""
        raise InvalidRequest(
            f"files of the transaction have other sizes than it says: {', '.join(wrong[:_NAMED_MAX])}{more}. Were they "
            "still being written, or replaced? Write new files, and stage a new transaction",
            code="file_size",
        )


def require_content(
    transaction: Transaction,
    files: StagedFiles,
    current: Manifest | None,
    facts: StagedFacts,
    *,
    schema: TableSchema,
    wanted: Staged,
) -> None:
    """Return if the staged `files` hold what the transaction says of them, as far as they can be read from here.

    The arguments as for `staged_files.needed`; `wanted` is its result, which `facts` answer. `schema`: as
    `schema_after` returns it. Raises `InvalidRequest` (`physical_rows_too_many`, `missing_file`, `deletion_file`,
    `named_bytes`, `file_unreadable`).
    """
    found = {file.path: facts.files.get(Location(data_key(file.path))) for file in files.data_files}
    said = {path: one.said for path, one in found.items() if isinstance(one, FoundFile) and one.said is not None}
    if said:
        require_files_as_described(transaction, files, current, said, schema=schema)
    for one in wanted.deletions:
        try:
            _deleted_rows(one.location, facts)
        except (InvalidRequest, StoreUnavailable) as error:
            if one.location.base is None or error.code not in _NOT_READ:
                raise


def _deleted_rows(location: Location, facts: StagedFacts) -> int:
    """The number of rows that a deletion file deletes. Raises what is wrong with it."""
    found = facts.deletions.get(location)
    if found is None:  # so many others are at fault that it was not read
        found = next(one for at, one in facts.deletions.items() if one.fault is not None and at.base is None)
    if found.fault is not None:
        raise _anew(found.fault)
    return found.rows


def _anew(error: CommitterError) -> CommitterError:
    """A copy of an error that is kept as a fact. Raising the same one again and again would keep all that it passes."""
    return copy(error).with_traceback(None)


def with_known_sizes(
    transaction: Transaction, files: StagedFiles, facts: StagedFacts, *, bases: Sequence[BasePath]
) -> Transaction:
    """Fill in the sizes of data files and the numbers of deleted rows that the writer left out.

    Returns the same object when nothing is missing. Lance fills them in too (`migrate_manifest`). The files must have
    passed `require_files`. Raises as `_deleted_rows`, and `InvalidRequest` (`base_unreadable`).
    """
    if not any(map(_is_sizeless, files.data_files)) and not any(map(_is_uncounted, files.fragments)):
        return transaction
    filled = Transaction()
    filled.CopyFrom(transaction)
    own = staged_files(filled)
    for file in filter(_is_sizeless, own.data_files):
        found = facts.files[Location(data_key(file.path))]
        assert isinstance(found, FoundFile)
        file.file_size_bytes = found.size
    for fragment in filter(_is_uncounted, own.fragments):
        fragment.deletion_file.num_deleted_rows = _deleted_rows(
            deletion_file_location(fragment, bases, staged=True), facts
        )
        if not fragment.deletion_file.num_deleted_rows:
            # A count of 0 means "unknown", so a deletion file without rows can't be represented.
            fragment.ClearField("deletion_file")
    return filled


def with_schema_metadata(transaction: Transaction, descriptor: FileDescriptor | None) -> Transaction:
    """Fill in the schema metadata of an Overwrite from its first data file, which has this descriptor.

    pylance commits the schema metadata but leaves it out of the transaction; every data file that it writes has it.
    Returns the same object when the file has none. Raises `InvalidRequest` (`text_invalid`).
    """
    if descriptor is None or not descriptor.schema.metadata:
        return transaction
    require_schema_metadata(descriptor.schema.metadata)
    filled = Transaction()
    filled.CopyFrom(transaction)
    for name, value in descriptor.schema.metadata.items():
        filled.overwrite.schema_metadata[name] = value
    return filled
