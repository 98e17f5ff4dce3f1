"""Whether the files of a transaction are there, as long as it says, and hold what it says."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from copy import copy

from committerd.errors import CommitterError, InvalidRequest, StoreUnavailable
from committerd.lance.checks.texts import require_schema_metadata
from committerd.lance.operations.operation import StagedFiles
from committerd.lance.transactions.fit import require_files_as_described
from committerd.lance.transactions.transaction import staged_files
from committerd.table.needs import FoundDeletions, FoundFile, Staged, StagedFacts, described_part
from committerd.table.places import Location, deletion_file_location, located
from committerd.table.staged_files import (
    Named,
    is_sizeless,
    is_uncounted,
    named_files,
    staged_deletions,
)
from committerd_common.messages import BasePath, DataFragment, FileDescriptor, Manifest, Transaction
from committerd_common.paths import data_key

MISSING_MAX = 10
"""Once so many files of a transaction are missing, the others are not looked for: it is refused anyway."""
_NAMED_MAX = 10
NAME_CHARS_MAX = 200
"""The length at which the name of a file is cut in a message."""


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


def require_files(
    transaction: Transaction,
    files: StagedFiles,
    facts: StagedFacts,
    *,
    current: Manifest | None,
    bases: Sequence[BasePath],
    written: Container[str],
) -> None:
    """Return if the staged `files` exist, have the sizes that the transaction gives, and delete as many rows.

    Files in a base path that can't be read are taken to exist. The arguments as for `staged_files.needed`, whose facts
    are `facts`. Raises `InvalidRequest` (`missing_file`, `file_size`, `physical_rows_too_many`, `deletion_file`,
    `named_bytes`, `file_unreadable`).
    """
    named = [one for one in named_files(transaction, files, current) if one.key not in written]
    _require_there(named, facts, bases)
    _require_as_described(transaction, files, current, facts)
    for fragment in staged_deletions(files, current, written=written):
        with suppress(_InBase):
            _deleted_rows(fragment, facts, bases)


class _InBase(Exception):
    """A file is in a base path that can't be read from here. The cause says why."""


def _found(one: Named, facts: StagedFacts, bases: Sequence[BasePath]) -> FoundFile | None:
    """What is known of a file; None if it is missing. Raises `_InBase`, and `InvalidRequest` (`file_unreadable`)."""
    try:
        location = located(one.key, one.base_id, bases)
        if location not in facts.files:  # many are missing, so that it was not looked for
            raise missing_file([at.key for at, found in facts.files.items() if found is None])
        found = facts.files[location]
        if isinstance(found, CommitterError):
            raise _anew(found)
    except (InvalidRequest, StoreUnavailable) as error:
        if one.base_id is None:
            raise
        raise _InBase from error
    return found


def _deleted_rows(fragment: DataFragment, facts: StagedFacts, bases: Sequence[BasePath]) -> int:
    """The number of rows that the deletion file of a fragment deletes. Raises `_InBase`, and what is wrong with it."""
    try:
        found = facts.deletions.get(deletion_file_location(fragment, bases, staged=True)) or _first_fault(facts)
        if found.fault is not None:
            raise _anew(found.fault)
    except (InvalidRequest, StoreUnavailable) as error:
        if not fragment.deletion_file.HasField("base_id") or error.code not in _NOT_READ:
            raise
        raise _InBase from error
    return found.rows


def _first_fault(facts: StagedFacts) -> FoundDeletions:
    """The first deletion file that is at fault: there are so many that others were not read."""
    return next(one for at, one in facts.deletions.items() if one.fault is not None and at.base is None)


def _anew(error: CommitterError) -> CommitterError:
    """A copy of an error that is kept as a fact. Raising the same one again and again would keep all that it passes."""
    return copy(error).with_traceback(None)


def require_readable(facts: StagedFacts) -> None:
    """Raise the error of the first file that can't be read."""
    for found in facts.files.values():
        if isinstance(found, CommitterError):
            raise _anew(found)


def require_none_missing(wanted: Staged, facts: StagedFacts) -> None:
    """Raise the error of a wanted file that is known to be missing, or of a deletion file that is at fault."""
    if gone := [at.key for at in wanted.files if at in facts.files and facts.files[at] is None]:
        raise missing_file(gone)
    for one in wanted.deletions:
        found = facts.deletions.get(one.location)
        if found is not None and found.fault is not None and found.of == described_part(one.fragment):
            raise _anew(found.fault)


_NOT_READ = ("base_unreadable", "file_unreadable", StoreUnavailable.code)


def _require_there(named: Sequence[Named], facts: StagedFacts, bases: Sequence[BasePath]) -> dict[str, int]:
    """Return the sizes of these files in bytes, by key, as far as they can be read.

    Raises `InvalidRequest` for files that are missing (`missing_file`) or differ in size (`file_size`).
    """
    if None in facts.files.values() and (gone := [one.key for one in named if _is_missing(one, facts, bases)]):
        raise missing_file(gone)
    sizes, wrong = dict[str, int](), list[str]()
    for one in named:
        with suppress(_InBase):
            found = _found(one, facts, bases)
            assert found is not None
            sizes[one.key] = found.size
            if one.size not in (0, found.size):
                wrong.append(f"{one.key[:NAME_CHARS_MAX]} has {found.size} bytes, not {one.size}")
    if wrong:
        more = f", and {len(wrong) - _NAMED_MAX} more" if len(wrong) > _NAMED_MAX else ""
        raise InvalidRequest(
            f"files of the transaction have other sizes than it says: {', '.join(wrong[:_NAMED_MAX])}{more}. Were they "
            "still being written, or replaced? Write new files, and stage a new transaction",
            code="file_size",
        )
    return sizes


def _is_missing(one: Named, facts: StagedFacts, bases: Sequence[BasePath]) -> bool:
    try:
        location = located(one.key, one.base_id, bases)
    except InvalidRequest:
        return False
    return location in facts.files and facts.files[location] is None


def _require_as_described(
    transaction: Transaction, files: StagedFiles, current: Manifest | None, facts: StagedFacts
) -> None:
    said = {
        file.path: found.said
        for file in files.data_files
        if isinstance(found := facts.files.get(Location(data_key(file.path))), FoundFile) and found.said is not None
    }
    if said:
        require_files_as_described(transaction, files, current, said)


def with_known_sizes(
    transaction: Transaction, files: StagedFiles, facts: StagedFacts, *, bases: Sequence[BasePath]
) -> Transaction:
    """Fill in the sizes of data files and the numbers of deleted rows that the writer left out.

    Returns the same object when nothing is missing. Lance fills them in too (`migrate_manifest`). Raises
    `InvalidRequest` (`missing_file`, `deletion_file`, `named_bytes`, `file_unreadable`, `base_unreadable`).
    """
    if not any(map(is_sizeless, files.data_files)) and not any(map(is_uncounted, files.fragments)):
        return transaction
    filled = Transaction()
    filled.CopyFrom(transaction)
    own = staged_files(filled)
    sizeless = [file for file in own.data_files if is_sizeless(file)]
    sizes = _require_there([Named(data_key(file.path), 0, None) for file in sizeless], facts, bases)
    for file in sizeless:
        file.file_size_bytes = sizes[data_key(file.path)]
    for fragment in own.fragments:
        if is_uncounted(fragment):
            rows = _counted(fragment, facts, bases)
            fragment.deletion_file.num_deleted_rows = rows
            if not rows:
                # A count of 0 means "unknown", so a deletion file without rows can't be represented.
                fragment.ClearField("deletion_file")
    return filled


def _counted(fragment: DataFragment, facts: StagedFacts, bases: Sequence[BasePath]) -> int:
    """As `_deleted_rows`, but a file that can't be read from here is an error: the number is needed."""
    try:
        return _deleted_rows(fragment, facts, bases)
    except _InBase as error:
        raise (error.__cause__ or error) from None


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
