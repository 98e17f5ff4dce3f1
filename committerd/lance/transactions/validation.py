"""Validation of the staged message alone: an invalid transaction is refused before anything is read.

Each error says what is wrong, where, and what to do; its code is the outcome's reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pyroaring import BitMap64

from committerd.errors import InvalidRequest, UnsupportedRequest
from committerd.lance.checks.file_paths import require_data_path
from committerd.lance.checks.numbers import require_in_bounds
from committerd.lance.checks.texts import require_entries, require_name, require_unreserved
from committerd.lance.checks.uuids import is_canonical
from committerd.lance.format.bounds import FRAGMENT_ID_MAX, FRAGMENTS_NAMED_MAX
from committerd.lance.format.support import external_sequences
from committerd.lance.format.wording import listed
from committerd.lance.operations.deletions import require_known_type
from committerd.lance.operations.operation import Operation, ReadVersion, StagedFiles
from committerd.lance.operations.permissions import Permissions
from committerd.lance.versions.fragments import file_version
from committerd_common.messages import DataFile, DataFragment, Transaction
from committerd_common.paths import KEY_BYTES_MAX, is_detached
from committerd_common.unknown_fields import unknown_fields


def require_valid(
    operation: Operation,
    transaction: Transaction,
    files: StagedFiles,
    *,
    latest_version: int,
    allowed: Permissions,
    key_bytes_max: int = KEY_BYTES_MAX,
) -> None:
    """Check a normalised transaction of this operation.

    `files` are its `staged_files`. `latest_version` 0 = there is no table. `key_bytes_max`: the most bytes of a key
    below the table's folder. Raises `UnsupportedRequest` (`unknown_fields`, `operation_not_allowed`,
    `base_not_allowed`, `external_sequences`) or `InvalidRequest` (any other code here, and in the `validate` of the
    operations).
    """
    _require_uuid(transaction)
    if unknown := unknown_fields(transaction):
        raise UnsupportedRequest(
            f"the transaction has fields that committerd does not know: {', '.join(unknown)}; a commit would drop "
            "them. Stage without the feature of Lance that needs these fields",
            code="unknown_fields",
        )
    _require_permitted(operation, allowed)
    _require_read(transaction, operation.read_version, latest_version, operation.kind)
    require_in_bounds("the transaction", transaction)
    _require_texts(transaction, operation)
    _require_distinct_fragments(operation.named_fragments(transaction))
    _require_files(files, key_bytes_max)
    operation.validate(transaction, allowed, key_bytes_max)


def require_valid_outside(
    operation: Operation | None, transaction: Transaction, *, latest_version: int, allowed: Permissions
) -> None:
    """Check what is known of a transaction, or of a table, that committerd does not know in full.

    That is uuid, permission, read version, and the names and values that the table stores. `operation`: None = it is
    not known. Raises as `require_valid`.
    """
    _require_uuid(transaction)
    if operation is None:
        if allowed.producer:
            raise _not_allowed("an operation that committerd does not know", allowed)
        _require_read(transaction, ReadVersion.REQUIRED, latest_version, "an operation that committerd does not know")
        _require_own_texts(transaction, frozenset())
        return
    _require_permitted(operation, allowed)
    _require_read(transaction, operation.read_version, latest_version, operation.kind)
    _require_texts(transaction, operation)


def _require_permitted(operation: Operation, allowed: Permissions) -> None:
    if operation.kind not in allowed.operations:
        raise _not_allowed(f"operation {operation.kind}", allowed)


def _not_allowed(what: str, allowed: Permissions) -> UnsupportedRequest:
    if allowed.producer:
        message = (
            f"{what} is not allowed to producer {allowed.producer!r}; it may stage "
            f"{', '.join(sorted(allowed.operations)) or 'nothing'} (commit.producers_file, commit.allowed_operations)"
        )
    else:
        message = (
            f"{what} is not allowed here; commit it with `committerd commit`, or let the operator add it to setting "
            "allowed_operations"
        )
    return UnsupportedRequest(message, code="operation_not_allowed")


def _require_uuid(transaction: Transaction) -> None:
    if not is_canonical(transaction.uuid):
        raise InvalidRequest(
            f"uuid {transaction.uuid!r} is not a lower-case uuid with hyphens; make a new one for each transaction",
            code="uuid_invalid",
        )


def _require_read(transaction: Transaction, meaning: ReadVersion, latest_version: int, what: str) -> None:
    read_version = transaction.read_version
    if is_detached(read_version):
        raise InvalidRequest(
            f"read_version {read_version} is a detached version, which is not part of the history; read an ordinary "
            "version",
            code="detached_read_version",
        )
    if meaning is ReadVersion.OF_SOURCE:
        return
    if read_version == 0 and meaning is ReadVersion.REQUIRED:
        raise InvalidRequest(
            f"read_version 0 says that nothing was read, but {what} changes existing data; set the version "
            "that it was planned on",
            code="read_version_missing",
        )
    if read_version > latest_version:
        raise InvalidRequest(
            f"read_version {read_version} is in the future: the latest version is {latest_version}. Was it read from "
            "another table?",
            code="future_read_version",
        )


def _require_texts(transaction: Transaction, operation: Operation) -> None:
    """Check that the table may carry the names and values in the transaction."""
    entries = operation.entries(transaction)
    _require_own_texts(transaction, operation.own_properties)
    for where, items, _ in entries:
        require_entries(where, items)
    for where, name in operation.names(transaction):
        require_name(where, name)
    for where, items, may_be_reserved in entries:
        if not may_be_reserved:
            require_unreserved(where, (key for key, _ in items))


def _require_own_texts(transaction: Transaction, own_properties: frozenset[str]) -> None:
    properties = transaction.transaction_properties
    if transaction.tag or properties:
        require_name("tag", transaction.tag)
        for key in properties:
            require_name("transaction_properties", key)
    require_unreserved("transaction_properties", (key for key in properties if key not in own_properties))


def _require_files(files: StagedFiles, key_bytes_max: int) -> None:
    require_data_files(files.data_files, key_bytes_max)
    for fragment in files.fragments:
        _require_fragment(fragment)


def require_data_files(files: Iterable[DataFile], key_bytes_max: int) -> None:
    """Check what new data files say of themselves. Raises `InvalidRequest` (as `require_data_path`; `duplicate_file`,
    `column_indices`).
    """
    seen: set[tuple[str, int | None]] = set()
    for file in files:
        path = file.path
        require_data_path(path, key_bytes_max)
        where = path, file.base_id if file.HasField("base_id") else None
        if where in seen:
            raise InvalidRequest(
                f"data file {path!r} is listed twice; each file belongs to one fragment", code="duplicate_file"
            )
        seen.add(where)
        if len(file.fields) != len(file.column_indices) and file_version(file) != "0.1":
            raise InvalidRequest(
                f"data file {path!r} has {len(file.fields)} fields and {len(file.column_indices)} column indices; "
                "each field needs a column index",
                code="column_indices",
            )


def _require_fragment(fragment: DataFragment) -> None:
    if not fragment.files:
        raise InvalidRequest(f"{_name_of(fragment)} has no data file", code="fragment_without_files")
    for file in fragment.files:
        if not file.fields:
            raise InvalidRequest(f"Datafile {file.path} does not contain any fields", code="file_without_fields")
    if fragment.physical_rows == 0:
        raise InvalidRequest(
            f"{_name_of(fragment)} does not say how many rows it has (physical_rows)", code="physical_rows_unknown"
        )
    require_known_type(fragment)
    if external := external_sequences(fragment):
        raise UnsupportedRequest(
            f"{_name_of(fragment)} has its {external[0]} in a separate file; no Lance writes that",
            code="external_sequences",
        )


def _name_of(fragment: DataFragment) -> str:
    return f"fragment {fragment.id} ({fragment.files[0].path!r})" if fragment.files else f"fragment {fragment.id}"


def _require_distinct_fragments(ids: Sequence[int]) -> None:
    if not ids:
        return
    if len(ids) > FRAGMENTS_NAMED_MAX:
        raise InvalidRequest(
            f"it names {len(ids)} fragments; at most {FRAGMENTS_NAMED_MAX} are allowed. Commit in smaller parts",
            code="record_too_large",
        )
    distinct = BitMap64(ids)
    if len(distinct) != len(ids):
        twice = sorted(one for one, times in Counter(ids).items() if times > 1)
        raise InvalidRequest(
            f"fragments {listed(twice)} are listed more than once; list each fragment once",
            code="duplicate_fragment",
        )
    if distinct and distinct.max() > FRAGMENT_ID_MAX:
        raise InvalidRequest(
            f"fragment {distinct.max()} can't exist: ids are at most {FRAGMENT_ID_MAX}", code="unknown_fragment"
        )
