"""The content of a transaction, whatever its operation is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from committerd.errors import InvalidRequest, UnsupportedRequest
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.writers import own_lance_major
from committerd.lance.operations.operation import NO_FILES, Input, Operation, StagedFiles, StagedIndexFile
from committerd.lance.operations.table import operation
from committerd_common.messages import IndexMetadata, Manifest, Transaction
from committerd_common.unknown_fields import unknown_fields

_BLOB_OPERATIONS = {200: "blob_append", 202: "blob_overwrite"}
_FIRST_OPERATION = 100
_BY_NAME: Mapping[str | None, Operation] = {kind.value: operation(kind) for kind in Kind}


def known_operation(transaction: Transaction) -> Operation | None:
    """The record of the transaction's operation; None if it has none, or one that committerd doesn't know."""
    return _BY_NAME.get(transaction.WhichOneof("operation"))


def operation_of(transaction: Transaction) -> Operation:
    """The record of the transaction's operation.

    Raises `UnsupportedRequest` (`blob_operation`, `unknown_operation`) or `InvalidRequest` (`no_operation`).
    """
    known = known_operation(transaction)
    if known is not None:
        return known
    numbers = _unknown_numbers(transaction)
    for number, blob_operation in _BLOB_OPERATIONS.items():
        if number in numbers:
            raise UnsupportedRequest(
                f"{blob_operation} (field {number}) is of Lance's old blob datasets, which no present Lance writes; "
                "use blob columns",
                code="blob_operation",
            )
    if newer := sorted(number for number in numbers if number >= _FIRST_OPERATION):
        raise UnsupportedRequest(
            f"the operation is field {newer[0]}, which committerd does not know; it knows the 15 operations of Lance "
            "4.0.0",
            code="unknown_operation",
        )
    raise InvalidRequest(
        "the transaction has no operation; stage the bytes of a whole lance.table.Transaction",
        code="no_operation",
    )


def _unknown_numbers(transaction: Transaction) -> set[int]:
    """The numbers of the message's own unknown fields, without those of nested messages."""
    paths = (path.rpartition("#") for path in unknown_fields(transaction))
    return {int(number) for where, _, number in paths if where == "Transaction"}


def normalised(transaction: Transaction) -> Transaction:
    """The transaction with current fields in place of deprecated ones; the same object if it has none.

    The normalised message is what gets committed, as in Lance. Raises the errors of `operation_of`, and
    `InvalidRequest` (`mixed_update_config`, `unknown_field`).
    """
    return operation_of(transaction).normalised(transaction)


def staged_files(transaction: Transaction) -> StagedFiles:
    """The fragments and data files that the transaction adds; none if its operation is missing or unknown."""
    known = known_operation(transaction)
    return NO_FILES if known is None else known.staged_files(transaction)


def new_files(transaction: Transaction) -> StagedFiles:
    """Like `staged_files`, but without data files of existing fragments, because most of those are already the
    table's.
    """
    known = known_operation(transaction)
    if known is None or known.new_files is None:
        return staged_files(transaction)
    return known.new_files(transaction)


def named_fragments(transaction: Transaction) -> Sequence[int]:
    """The ids of the existing fragments that the transaction lists."""
    return operation_of(transaction).named_fragments(transaction)


def index_files(transaction: Transaction) -> Sequence[StagedIndexFile]:
    """The index files that the transaction adds; none if its operation is missing or unknown."""
    known = known_operation(transaction)
    return () if known is None else known.index_files(transaction)


def unlisted_indices(transaction: Transaction) -> Sequence[bytes]:
    """The uuids of the indices in the table's folder that the transaction adds without saying which files they have."""
    return operation_of(transaction).unlisted_indices(transaction)


def excerpt(file: ManifestFile, transaction: Transaction) -> Manifest:
    """The part of a version that is needed to judge the transaction: the outline, and the fragments that rules read."""
    return operation_of(transaction).excerpt(transaction, file)


def footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    """The footprint, as far as the message alone gives it.

    Raises the errors of `normalised`, and `InvalidRequest` (if `staged`) or else `CorruptTable` for parts that can't be
    decoded.
    """
    transaction = normalised(transaction)
    return operation_of(transaction).footprint(transaction, staged=staged)


def footprint_of_ours(
    transaction: Transaction,
    read: Manifest | None,
    read_indices: Iterable[IndexMetadata] = (),
) -> Footprint:
    """The footprint of our transaction, from the message and from the table at its read version.

    `read` is an `excerpt` of that version (None = it can't be read), `read_indices` its indices. Raises the errors of
    `footprint`.
    """
    transaction = normalised(transaction)
    ours = operation_of(transaction)
    touched = ours.footprint(transaction, staged=True)
    return touched if read is None else ours.footprint_of_ours(touched, transaction, read, read_indices)


def footprint_of_theirs(
    transaction: Transaction,
    *,
    before: Manifest | None,
    after: Manifest,
    indices: Iterable[IndexMetadata],
) -> Footprint:
    """The footprint of a committed transaction.

    `before` is the version below it (None = unreadable, or `needs_version_below` is False); `after` and `indices` are
    of the version that it made. Raises the errors of `footprint`.
    """
    transaction = normalised(transaction)
    theirs = operation_of(transaction)
    touched = replace(theirs.footprint(transaction, staged=False), lance_major=own_lance_major(after))
    return theirs.footprint_of_theirs(touched, transaction, before, indices)


def needs_version_below(transaction: Transaction) -> bool:
    """Whether the footprint of a committed transaction depends on the version below its own."""
    known = known_operation(transaction)
    return known is not None and Input.VERSION_BELOW in known.inputs


def reserved_range(latest: Manifest | None, transaction: Transaction) -> tuple[int, int]:
    """(first id, count) of the fragment ids that the transaction reserves on top of `latest`; (0, 0) = none."""
    known = known_operation(transaction)
    return (0, 0) if latest is None or known is None else known.reserved(transaction, latest)
