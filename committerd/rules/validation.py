"""What can't be valid, seen from the staged message alone: refused before anything is read.

Each refusal says what is wrong, where, and what to do; its code is the outcome's reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from committerd.errors import InvalidRequest, UnsupportedRequest
from committerd.format.index_details import MEM_WAL_INDEX, covered_fragments, unpack_details
from committerd.format.messages import (
    BasePath,
    DataFragment,
    DeletionFile,
    IndexMetadata,
    MemWalIndexDetails,
    MergedGeneration,
    Transaction,
)
from committerd.format.paths import is_detached
from committerd.format.unknown_fields import unknown_fields
from committerd.rules.brought import Brought
from committerd.rules.footprint import Kind
from committerd.rules.lineage import updated_offsets
from committerd.rules.position import KEY_PREFIX
from committerd.rules.schema import require_readable

ALL_OPERATIONS = frozenset(Kind)
DEFAULT_OPERATIONS = ALL_OPERATIONS - {Kind.CLONE, Kind.UPDATE_BASES}
"""What a queue commits unless told otherwise. The others make the daemon's credentials read
elsewhere.
"""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UUID_BYTES = 16
_DELETION_FILE_TYPES = frozenset(DeletionFile.DeletionFileType.values())
_ROWS_MAX = 2**32 - 1
_TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999; pylance can't open a table with an index of a time far beyond."""
_COVERED_MAX = 1_000_000
"""Fragments of an index; a few bytes can list four billion."""
_ANY_VERSION = frozenset({Kind.APPEND, Kind.OVERWRITE, Kind.CLONE})
"""Operations for which read_version 0 means "on the latest, whatever it is"."""
_BLOB_OPERATIONS = {200: "blob_append", 202: "blob_overwrite"}
_OPERATION_FIELDS = range(100, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What the operator lets through."""

    operations: frozenset[Kind] = DEFAULT_OPERATIONS
    bases: Collection[str] | None = ()
    """URIs below which base paths and clone sources may lie; None = anywhere."""


ANYTHING = Allowed(operations=ALL_OPERATIONS, bases=None)
"""For who commits with credentials of their own."""


def require_valid(transaction: Transaction, what: Brought, *, latest_version: int, allowed: Allowed) -> Kind:
    """The operation of a transaction, normalised, that may be worth judging; `what` is what it `brought`,
    `latest_version` 0 = there is no table.

    Raises `UnsupportedRequest` (`blob_operation`, `unknown_operation`, `unknown_fields`,
    `operation_not_allowed`, `base_not_allowed`) or `InvalidRequest` (any other code here).
    """
    kind = _operation(transaction)
    if not _UUID.fullmatch(transaction.uuid):
        raise InvalidRequest(
            f"uuid {transaction.uuid!r} is not a lower-case uuid with hyphens; make a new one for each transaction",
            code="uuid_invalid",
        )
    if unknown := unknown_fields(transaction):
        raise UnsupportedRequest(
            f"the transaction has fields that committerd does not know: {', '.join(unknown)}; it would lose what "
            "they say. Stage with a Lance up to 14.0.2, or without the feature",
            code="unknown_fields",
        )
    if kind not in allowed.operations:
        raise UnsupportedRequest(
            f"operation {kind} is not allowed here; commit it with `committerd commit`, or let the operator add it to "
            "setting allowed_operations",
            code="operation_not_allowed",
        )
    _require_read_version(transaction, kind, latest_version)
    _require_foreign_keys(transaction, kind)
    _require_distinct_fragments(transaction, kind)
    _require_brought(what)
    _require_rest(transaction, kind, allowed)
    return kind


def _require_rest(transaction: Transaction, kind: Kind, allowed: Allowed) -> None:
    """What only some operations have."""
    match kind:
        case Kind.OVERWRITE:
            _require_allowed_bases("Overwrite.initial_bases", transaction.overwrite.initial_bases, allowed.bases)
            require_readable(transaction.overwrite.schema)
        case Kind.UPDATE_BASES:
            _require_allowed_bases("UpdateBases", transaction.update_bases.new_bases, allowed.bases)
        case Kind.CLONE:
            _require_allowed_base("Clone", transaction.clone.ref_path, allowed.bases)
        case Kind.MERGE:
            require_readable(transaction.merge.schema)
        case Kind.PROJECT:
            require_readable(transaction.project.schema)
        case Kind.CREATE_INDEX:
            _require_indices(transaction.create_index)
        case Kind.REWRITE:
            for group in transaction.rewrite.groups:
                for fragment in group.old_fragments:
                    _require_deletion_file(fragment)
            _require_rewritten_indices(transaction.rewrite)
        case Kind.UPDATE:
            _require_generations(transaction.update.merged_generations)
            for fragment_id in transaction.update.updated_fragment_offset_bitmaps:
                updated_offsets(transaction.update, fragment_id)
        case Kind.UPDATE_MEM_WAL_STATE:
            _require_generations(transaction.update_mem_wal_state.merged_generations)
        case _:
            pass


def _operation(transaction: Transaction) -> Kind:
    operation = transaction.WhichOneof("operation")
    if operation is not None:
        return Kind(operation)
    numbers = _unknown_numbers(transaction)
    for number, name in _BLOB_OPERATIONS.items():
        if number in numbers:
            raise UnsupportedRequest(
                f"{name} (field {number}) is of Lance's old blob datasets, which no present Lance writes; use blob "
                "columns",
                code="blob_operation",
            )
    if newer := sorted(numbers & set(_OPERATION_FIELDS)):
        raise UnsupportedRequest(
            f"the operation is field {newer[0]}, which committerd does not know; it knows the 15 of Lance 4.0.0",
            code="unknown_operation",
        )
    raise InvalidRequest(
        "the transaction has no operation; stage the bytes of a whole lance.table.Transaction",
        code="no_operation",
    )


def _unknown_numbers(transaction: Transaction) -> set[int]:
    """Of the message itself, not of those in it."""
    paths = (path.rpartition("#") for path in unknown_fields(transaction))
    return {int(number) for where, _, number in paths if where == "Transaction"}


def _require_read_version(transaction: Transaction, kind: Kind, latest_version: int) -> None:
    read_version = transaction.read_version
    if is_detached(read_version):
        raise InvalidRequest(
            f"read_version {read_version} is a detached version, which is no part of the history; read an ordinary one",
            code="detached_read_version",
        )
    if kind is Kind.CLONE:
        # Lance: a Clone's read_version is one of its source.
        return
    if read_version == 0 and kind not in _ANY_VERSION:
        raise InvalidRequest(
            f"read_version 0 says that nothing was read, but {kind} changes what is there; set the version that it "
            "was planned on",
            code="read_version_missing",
        )
    if read_version > latest_version:
        raise InvalidRequest(
            f"read_version {read_version} is in the future: the latest version is {latest_version}. Was it read from "
            "another table?",
            code="future_read_version",
        )


def _require_foreign_keys(transaction: Transaction, kind: Kind) -> None:
    keys: dict[str, Iterable[str]] = {"transaction_properties": transaction.transaction_properties}
    if kind is Kind.UPDATE_CONFIG:
        config = transaction.update_config
        updates: dict[str, Iterable[Transaction.UpdateMapEntry]] = {
            "config_updates": config.config_updates.update_entries,
            "table_metadata_updates": config.table_metadata_updates.update_entries,
            "schema_metadata_updates": config.schema_metadata_updates.update_entries,
        }
        keys |= {name: [entry.key for entry in entries] for name, entries in updates.items()}
    elif kind is Kind.OVERWRITE:
        keys["config_upsert_values"] = transaction.overwrite.config_upsert_values
    for where, names in keys.items():
        for key in names:
            if key.startswith(KEY_PREFIX):
                raise InvalidRequest(
                    f"{where} sets {key!r}, but keys that begin with {KEY_PREFIX!r} are committerd's own; choose "
                    "another name",
                    code="reserved_key",
                )


def _require_allowed_bases(where: str, named: Iterable[BasePath], bases: Collection[str] | None) -> None:
    for base in named:
        _require_allowed_base(where, base.path, bases)


def _require_allowed_base(where: str, path: str, bases: Collection[str] | None) -> None:
    if not path or ".." in path.split("/") or not path.isprintable():
        raise InvalidRequest(f"{where} names {path!r}; a full path or URI without `..` is needed", code="base_path")
    if bases is not None and not any(_is_below(path, base) for base in bases):
        raise UnsupportedRequest(
            f"{where} names {path!r}, which is outside what the operator allows (setting allowed_bases)",
            code="base_not_allowed",
        )


def _is_below(path: str, base: str) -> bool:
    base = base.rstrip("/")
    return path == base or path.startswith(base + "/")


def _require_brought(what: Brought) -> None:
    seen: set[tuple[str, int | None]] = set()
    for file in what.files:
        path = file.path
        _require_path(path, "data file")
        where = path, file.base_id if file.HasField("base_id") else None
        if where in seen:
            raise InvalidRequest(
                f"data file {path!r} is there twice; each belongs to one fragment", code="duplicate_file"
            )
        seen.add(where)
        if len(file.fields) != len(file.column_indices) and file.file_major_version >= 2:
            raise InvalidRequest(
                f"data file {path!r} has {len(file.fields)} fields and {len(file.column_indices)} column indices; "
                "each field needs one",
                code="column_indices",
            )
    for fragment in what.fragments:
        _require_fragment(fragment)


def _require_fragment(fragment: DataFragment) -> None:
    if not fragment.files:
        raise InvalidRequest(f"{_name_of(fragment)} has no data file", code="fragment_without_files")
    for file in fragment.files:
        if not file.fields:
            raise InvalidRequest(f"Datafile {file.path} does not contain any fields", code="file_without_fields")
    rows = fragment.physical_rows
    if rows == 0:
        raise InvalidRequest(
            f"{_name_of(fragment)} does not say how many rows it has (physical_rows)", code="physical_rows_unknown"
        )
    if rows > _ROWS_MAX:
        raise InvalidRequest(
            f"{_name_of(fragment)} has {rows} rows; row offsets have 32 bits", code="physical_rows_too_many"
        )
    _require_deletion_file(fragment)
    for kind in ("row_id_sequence", "last_updated_at_version_sequence", "created_at_version_sequence"):
        sequence = fragment.WhichOneof(kind)
        if sequence is not None and sequence.startswith("external_"):
            raise UnsupportedRequest(
                f"{_name_of(fragment)} has its {sequence} in a file of their own; no Lance writes that",
                code="external_sequences",
            )


def _name_of(fragment: DataFragment) -> str:
    return f"fragment {fragment.id} ({fragment.files[0].path!r})" if fragment.files else f"fragment {fragment.id}"


def _require_deletion_file(fragment: DataFragment) -> None:
    # Lance 4.0.0 can't open a version whose transaction has another.
    if fragment.HasField("deletion_file") and fragment.deletion_file.file_type not in _DELETION_FILE_TYPES:
        raise InvalidRequest(
            f"fragment {fragment.id} has a deletion file of type {fragment.deletion_file.file_type}, unknown to us",
            code="deletion_file_type",
        )


def _require_distinct_fragments(transaction: Transaction, kind: Kind) -> None:
    match kind:
        case Kind.DELETE:
            listed = [one.id for one in transaction.delete.updated_fragments]
            listed += transaction.delete.deleted_fragment_ids
        case Kind.UPDATE:
            listed = [one.id for one in transaction.update.updated_fragments]
            listed += transaction.update.removed_fragment_ids
        case Kind.MERGE:
            listed = [one.id for one in transaction.merge.fragments]
        case Kind.REWRITE:
            listed = [one.id for group in transaction.rewrite.groups for one in group.old_fragments]
        case Kind.DATA_REPLACEMENT:
            listed = [one.fragment_id for one in transaction.data_replacement.replacements]
        case _:
            return
    if twice := sorted(one for one, times in Counter(listed).items() if times > 1):
        raise InvalidRequest(
            f"fragments {twice} are listed more than once; say once what becomes of each",
            code="duplicate_fragment",
        )


def _require_path(path: str, what: str) -> None:
    if not path or path.startswith("/") or "://" in path or ".." in path.split("/") or "\\" in path:
        raise InvalidRequest(
            f"{what} {path!r} must be a path below the table's folder: not empty, not absolute, without `..`",
            code="path_outside",
        )


def _require_indices(create: Transaction.CreateIndex) -> None:
    for index in (*create.new_indices, *create.removed_indices):
        _require_index(index)
    _require_distinct_indices("new_indices", [index.uuid.uuid for index in create.new_indices])


def _require_rewritten_indices(rewrite: Transaction.Rewrite) -> None:
    _require_distinct_indices("rewritten_indices", [one.old_id.uuid for one in rewrite.rewritten_indices])
    for one in rewrite.rewritten_indices:
        if not _is_uuid(one.old_id.uuid) or not _is_uuid(one.new_id.uuid) or not one.HasField("new_index_details"):
            # Lance 4.0.0 can't open a version whose transaction lacks one of them.
            raise InvalidRequest(
                "each of rewritten_indices needs old_id, new_id (16 bytes each) and new_index_details",
                code="rewritten_index_incomplete",
            )
        for file in one.new_index_files:
            _require_path(file.path, "index file")


def _require_distinct_indices(name: str, uuids: Sequence[bytes]) -> None:
    if len(set(uuids)) != len(uuids):
        raise InvalidRequest(f"{name} lists one index twice", code="duplicate_index")


def _require_index(index: IndexMetadata) -> None:
    if not _is_uuid(index.uuid.uuid):
        raise InvalidRequest(
            f"index {index.name!r} needs a uuid of 16 bytes, has {len(index.uuid.uuid)}", code="index_uuid"
        )
    covered = covered_fragments(index, staged=True)
    if covered is not None and len(covered) > _COVERED_MAX:
        raise InvalidRequest(
            f"index {index.name!r} says that it covers {len(covered)} fragments; at most {_COVERED_MAX} are taken",
            code="index_bitmap",
        )
    if index.created_at > _TIME_MS_MAX:
        raise InvalidRequest(
            f"index {index.name!r} was created at {index.created_at} ms, which is no time", code="index_created_at"
        )
    if index.name == MEM_WAL_INDEX:
        unpack_details(index, MemWalIndexDetails, staged=True)
    if not index.name:
        raise InvalidRequest(f"the index with uuid {index.uuid.uuid.hex()} has no name; give it one", code="index_name")
    for file in index.files:
        _require_path(file.path, "index file")


def _require_generations(merged: Iterable[MergedGeneration]) -> None:
    if not all(_is_uuid(one.region_id.uuid) for one in merged):
        # Lance 4.0.0 can't open a version whose transaction has another.
        raise InvalidRequest("each of merged_generations needs a region_id of 16 bytes", code="region_id")


def _is_uuid(value: bytes) -> bool:
    return len(value) == _UUID_BYTES
