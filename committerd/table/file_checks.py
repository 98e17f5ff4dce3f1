"""Whether the files of a transaction are there, as long as it says, and hold what it says."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from committerd.errors import CommitterError, InvalidRequest, StoreUnavailable
from committerd.lance.checks.texts import require_schema_metadata
from committerd.lance.operations.operation import StagedFiles
from committerd.lance.transactions.fit import require_files_as_described
from committerd.lance.transactions.transaction import staged_files
from committerd.table.needs import FoundFile, NamedFile, Staged, StagedFacts
from committerd.table.places import Location, deletion_file_location
from committerd.table.staged_files import is_sizeless, is_uncounted
from committerd_common.messages import BasePath, FileDescriptor, Manifest, Transaction
from committerd_common.paths import data_key

MISSING_MAX = 10
"""Once so many files of a transaction are missing, the others are not looked for: it is refused anyway."""
_NAMED_MAX = 10
NAME_CHARS_MAX = 200
"""The length at which the name of a file is cut in a message."""
_NOT_READ = ("base_unreadable", "file_unreadable", StoreUnavailable.code)
"""Why a file in a base path counts as there: it can't be read from here."""


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


def require_files(wanted: Sequence[NamedFile], facts: StagedFacts) -> None:
    """Return if these files exist and have the sizes that the transaction gives.

    Files in a base path that can't be read from here are taken to exist. Raises `InvalidRequest` (`missing_file`,
    `file_size`, `file_unreadable`).
    """
    if gone := [
        one.location.key for one in wanted if one.location in facts.files and facts.files[one.location] is None
    ]:
        raise missing_file(gone)
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
    transaction: Transaction, files: StagedFiles, current: Manifest | None, facts: StagedFacts, wanted: Staged
) -> None:
    """Return if the staged `files` hold what the transaction says of them, as far as they can be read from here.

    The arguments as for `staged_files.needed`; `wanted` is its result, which `facts` answer. Raises `InvalidRequest`
    (`physical_rows_too_many`, `missing_file`, `deletion_file`, `named_bytes`, `file_unreadable`).
    """
    found = {file.path: facts.files.get(Location(data_key(file.path))) for file in files.data_files}
    said = {path: one.said for path, one in found.items() if isinstance(one, FoundFile) and one.said is not None}
    if said:
        require_files_as_described(transaction, files, current, said)
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
    if not any(map(is_sizeless, files.data_files)) and not any(map(is_uncounted, files.fragments)):
        return transaction
    filled = Transaction()
    filled.CopyFrom(transaction)
    own = staged_files(filled)
    for file in filter(is_sizeless, own.data_files):
        found = facts.files[Location(data_key(file.path))]
        assert isinstance(found, FoundFile)
        file.file_size_bytes = found.size
    for fragment in filter(is_uncounted, own.fragments):
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
