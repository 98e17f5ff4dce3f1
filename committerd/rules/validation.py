"""What can't be valid, seen from the staged message alone: refused before anything is read.

Each refusal says what is wrong, where, and what to do; its code is the outcome's reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from committerd.errors import InvalidRequest, UnsupportedRequest
from committerd.format.bounds import FRAGMENT_ID_MAX, OutOfBounds, numbers_out_of_bounds
from committerd.format.index_details import (
    MEM_WAL_INDEX,
    covered_fragments,
    is_system_index,
    unpack_details,
)
from committerd.format.messages import (
    BasePath,
    DataFragment,
    DeletionFile,
    IndexMetadata,
    MemWalIndexDetails,
    MergedGeneration,
    Transaction,
)
from committerd.format.paths import (
    DATA,
    KEY_BYTES_MAX,
    index_prefix,
    is_detached,
    leaves_its_folder,
    object_name,
    unstorable,
)
from committerd.format.unknown_fields import unknown_fields
from committerd.format.uris import canonical_base, is_below
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
_INDEX_FOLDER_BYTES = len(index_prefix(bytes(_UUID_BYTES)))
_DELETION_FILE_TYPES = frozenset(DeletionFile.DeletionFileType.values())
_TOLD_CHARS_MAX = 200
"""Of a name from outside, in a message."""
_COVERED_MAX = 1_000_000
"""Fragments of an index; a few bytes can list four billion."""
_NAMED_MAX = 1_000_000
"""Fragments that one transaction names."""
_NAME_BYTES_MAX = 1024
_VALUE_BYTES_MAX = 2**20
"""Of one entry in config or metadata, which every later version carries."""
_LISTED_MAX = 10
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


def require_valid(
    transaction: Transaction, what: Brought, *, latest_version: int, allowed: Allowed, room: int = KEY_BYTES_MAX
) -> Kind:
    """The operation of a transaction, normalised, that may be worth judging; `what` is what it `brought`,
    `latest_version` 0 = there is no table, `room` is how long keys below the table's folder may be.

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
    if wrong := numbers_out_of_bounds(transaction):
        raise _out_of_bounds("the transaction", wrong)
    _require_texts(transaction, kind)
    _require_foreign_keys(transaction, kind)
    _require_distinct_fragments(transaction, kind)
    _require_brought(what, room)
    _require_rest(transaction, kind, allowed, room)
    return kind


def _out_of_bounds(where: str, wrong: Sequence[OutOfBounds]) -> InvalidRequest:
    told = "; ".join(str(one) for one in wrong[:_LISTED_MAX])
    more = f"; and {len(wrong) - _LISTED_MAX} more" if len(wrong) > _LISTED_MAX else ""
    return InvalidRequest(f"{where} has numbers out of bounds: {told}{more}", code=wrong[0].code)


def _require_rest(transaction: Transaction, kind: Kind, allowed: Allowed, room: int) -> None:
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
            _require_indices(transaction.create_index, room)
        case Kind.REWRITE:
            for group in transaction.rewrite.groups:
                for fragment in group.old_fragments:
                    _require_deletion_file(fragment)
            _require_rewritten_indices(transaction.rewrite, room)
        case Kind.UPDATE:
            _require_generations(transaction.update.merged_generations)
            _require_key_filter(transaction.update.inserted_rows)
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
    if canonical_base(path) is None or len(path.encode()) > KEY_BYTES_MAX:
        raise InvalidRequest(
            f"{where} names {path[:_TOLD_CHARS_MAX]!r}; it needs an absolute path or a URI, without `.` or `..` "
            f"segments, plain or percent-encoded, of at most {KEY_BYTES_MAX} bytes",
            code="base_path",
        )
    if not is_allowed_base(path, bases):
        raise UnsupportedRequest(
            f"{where} names {path!r}, which is outside what the operator allows (setting allowed_bases)",
            code="base_not_allowed",
        )


def is_allowed_base(path: str, bases: Collection[str] | None) -> bool:
    """Whether the operator lets transactions name this base (`Allowed.bases`)."""
    if bases is None:
        return True
    canonical = canonical_base(path)
    return canonical is not None and any(is_below(canonical, base) for base in bases)


def _require_brought(what: Brought, room: int) -> None:
    seen: set[tuple[str, int | None]] = set()
    for file in what.files:
        path = file.path
        _require_data_path(path, room - len(DATA))
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
    if fragment.physical_rows == 0:
        raise InvalidRequest(
            f"{_name_of(fragment)} does not say how many rows it has (physical_rows)", code="physical_rows_unknown"
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
    if len(listed) > _NAMED_MAX:
        raise InvalidRequest(
            f"it names {len(listed)} fragments; at most {_NAMED_MAX} are allowed. Commit in smaller parts",
            code="record_too_large",
        )
    distinct = BitMap64(listed)
    if len(distinct) != len(listed):
        twice = sorted(one for one, times in Counter(listed).items() if times > 1)
        raise InvalidRequest(
            f"fragments {twice[:_LISTED_MAX]} are listed more than once; list each fragment once",
            code="duplicate_fragment",
        )
    if distinct and distinct.max() > FRAGMENT_ID_MAX:
        raise InvalidRequest(
            f"fragment {distinct.max()} can't exist: ids are at most {FRAGMENT_ID_MAX}", code="unknown_fragment"
        )


def _require_data_path(path: str, room: int) -> None:
    """Readers take the path as one segment of a key, whatever is in it; so a path of several names nothing."""
    if leaves_its_folder(path):
        raise InvalidRequest(
            f"data file {path[:_TOLD_CHARS_MAX]!r} must be the name of a file in the table's folder data/: not empty, "
            "and without `/`, `\\`, control characters, `.` or `..`, plain or percent-encoded",
            code="path_outside",
        )
    _require_storable("data file", path, object_name(path), room)


def _require_index_path(path: str, room: int) -> None:
    """An index may have folders of its own."""
    if any(leaves_its_folder(segment) for segment in path.split("/")):
        raise InvalidRequest(
            f"index file {path[:_TOLD_CHARS_MAX]!r} must be a path below the index's folder: not empty, not absolute, "
            "and without `\\`, control characters, `.` or `..`, plain or percent-encoded",
            code="path_outside",
        )
    _require_storable("index file", path, path, room)


def _require_storable(what: str, path: str, key: str, room: int) -> None:
    if fault := unstorable(key, room):
        raise InvalidRequest(f"{what} {path[:_TOLD_CHARS_MAX]!r} can't be stored: {fault}", code="path_invalid")


def _require_texts(transaction: Transaction, kind: Kind) -> None:
    """Names and values that stay in the table, or that a reader looks up."""
    if transaction.tag or transaction.transaction_properties:
        _require_name("tag", transaction.tag)
        for key in transaction.transaction_properties:
            _require_name("transaction_properties", key)
    match kind:
        case Kind.OVERWRITE:
            overwrite = transaction.overwrite
            _require_entries("config_upsert_values", overwrite.config_upsert_values.items())
            _require_entries("schema_metadata", overwrite.schema_metadata.items())
            for base in overwrite.initial_bases:
                _require_name("a base", base.name)
        case Kind.MERGE:
            _require_entries("schema_metadata", transaction.merge.schema_metadata.items())
        case Kind.UPDATE_CONFIG:
            config = transaction.update_config
            updates = {
                "config_updates": config.config_updates,
                "table_metadata_updates": config.table_metadata_updates,
                "schema_metadata_updates": config.schema_metadata_updates,
                **{f"field_metadata_updates[{one}]": each for one, each in config.field_metadata_updates.items()},
            }
            for where, update in updates.items():
                _require_entries(where, ((entry.key, entry.value) for entry in update.update_entries))
        case Kind.UPDATE_BASES:
            for base in transaction.update_bases.new_bases:
                _require_name("a base", base.name)
        case Kind.CLONE:
            _require_name("ref_name", transaction.clone.ref_name)
            _require_name("branch_name", transaction.clone.branch_name)
        case _:
            pass


def require_schema_metadata(entries: Mapping[str, bytes]) -> None:
    """Return when the table may carry this metadata, which was found in a data file.

    Raises `InvalidRequest` with code `text_invalid`.
    """
    _require_entries("the schema of its data file", entries.items())
    total = sum(len(value) for value in entries.values())
    if total > _VALUE_BYTES_MAX:
        raise InvalidRequest(
            f"the schema of its data file has {total} bytes of metadata; at most {_VALUE_BYTES_MAX} are taken, since "
            "every later version of the table carries them. Write the files with less, or keep it elsewhere",
            code="text_invalid",
        )


def _require_entries(where: str, entries: Iterable[tuple[str, str | bytes]]) -> None:
    for key, value in entries:
        _require_name(where, key)
        if len(value) > _VALUE_BYTES_MAX:
            raise InvalidRequest(
                f"{where}: the value of {key!r} has a length of {len(value)}; at most {_VALUE_BYTES_MAX} is taken, "
                "since every later version of the table carries it. Put it into a file, and its name here",
                code="text_invalid",
            )


def _require_name(where: str, name: str) -> None:
    if "\0" in name or len(name.encode()) > _NAME_BYTES_MAX:
        raise InvalidRequest(
            f"{where}: {name[:100]!r} can't be a name: it may have {_NAME_BYTES_MAX} bytes and no zero byte",
            code="text_invalid",
        )


def _require_key_filter(inserted: Transaction.KeyExistenceFilter) -> None:
    if not 0 <= inserted.bloom.probability <= 1:
        raise InvalidRequest(
            f"inserted_rows.bloom.probability is {inserted.bloom.probability}; 0 to 1 is allowed",
            code="number_out_of_bounds",
        )


def _require_indices(create: Transaction.CreateIndex, room: int) -> None:
    for index in (*create.new_indices, *create.removed_indices):
        _require_index(index, room)
    _require_distinct_indices("new_indices", [index.uuid.uuid for index in create.new_indices])


def _require_rewritten_indices(rewrite: Transaction.Rewrite, room: int) -> None:
    _require_distinct_indices("rewritten_indices", [one.old_id.uuid for one in rewrite.rewritten_indices])
    for one in rewrite.rewritten_indices:
        if not _is_uuid(one.old_id.uuid) or not _is_uuid(one.new_id.uuid) or not one.HasField("new_index_details"):
            # Lance 4.0.0 can't open a version whose transaction lacks one of them.
            raise InvalidRequest(
                "each of rewritten_indices needs old_id, new_id (16 bytes each) and new_index_details",
                code="rewritten_index_incomplete",
            )
        for file in one.new_index_files:
            _require_index_path(file.path, room - _INDEX_FOLDER_BYTES)


def _require_distinct_indices(name: str, uuids: Sequence[bytes]) -> None:
    if len(set(uuids)) != len(uuids):
        raise InvalidRequest(f"{name} lists one index twice", code="duplicate_index")


def _require_index(index: IndexMetadata, room: int) -> None:
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
    if is_system_index(index) and index.fields:
        # It would outlive its fields: no Project takes it away.
        raise InvalidRequest(
            f"index {index.name!r} is a system index of Lance, which has no fields; it names {list(index.fields)}",
            code="index_fields",
        )
    if index.name == MEM_WAL_INDEX:
        _require_mem_wal(unpack_details(index, MemWalIndexDetails, staged=True))
    if not index.name:
        raise InvalidRequest(f"the index with uuid {index.uuid.uuid.hex()} has no name; give it one", code="index_name")
    _require_name("index name", index.name)
    for file in index.files:
        _require_index_path(file.path, room - _INDEX_FOLDER_BYTES)


def _require_mem_wal(details: MemWalIndexDetails) -> None:
    if wrong := numbers_out_of_bounds(details):
        raise _out_of_bounds(f"index {MEM_WAL_INDEX!r}", wrong)
    _require_generations(details.merged_generations)
    for progress in details.index_catchup:
        _require_generations(progress.caught_up_generations)


def _require_generations(merged: Iterable[MergedGeneration]) -> None:
    if not all(_is_uuid(one.region_id.uuid) for one in merged):
        # Lance 4.0.0 can't open a version whose transaction has another.
        raise InvalidRequest("each of merged_generations needs a region_id of 16 bytes", code="region_id")


def _is_uuid(value: bytes) -> bool:
    return len(value) == _UUID_BYTES
