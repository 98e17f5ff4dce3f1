"""UpdateConfig: entries of the table's config, and metadata of table, schema and fields."""

from __future__ import annotations

from collections.abc import MutableMapping

from committerd.errors import InvalidRequest
from committerd.lance.checks.texts import Entries
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.bounds import FIELD_ID_MAX
from committerd.lance.format.kind import Kind
from committerd.lance.format.own_keys import KEY_PREFIX
from committerd.lance.operations.operation import Operation, ScalesWith
from committerd.lance.operations.rebase import copied
from committerd.lance.versions.clustering_key import CLUSTERING_KEY_POSITION, clustering_fields, declare_position
from committerd.lance.versions.columns import require_same_types
from committerd.lance.versions.draft import Draft, finish, own_metadata
from committerd.lance.versions.metadata import require_room
from committerd.lance.versions.primary_key import (
    KEY_ENTRIES,
    PRIMARY_KEY,
    PRIMARY_KEY_POSITION,
    declared_position,
    key_fault,
    key_fields,
    position,
)
from committerd_common.messages import Field, Manifest, Transaction


def _normalised(transaction: Transaction) -> Transaction:
    """Lance: transaction.rs, conversion of UpdateConfig: config is merged, both kinds of metadata are replaced, and an
    empty deprecated map counts as not set.

    Raises `InvalidRequest` (`mixed_update_config`, `unknown_field`).
    """
    old = transaction.update_config
    if not (old.upsert_values or old.delete_keys or old.schema_metadata or old.field_metadata):
        return transaction
    if (
        old.HasField("config_updates")
        or old.HasField("table_metadata_updates")
        or old.HasField("schema_metadata_updates")
        or old.field_metadata_updates
    ):
        raise InvalidRequest(
            "UpdateConfig sets both its old fields (upsert_values, delete_keys, schema_metadata, "
            "field_metadata) and its update maps; set only the update maps",
            code="mixed_update_config",
        )
    changed = copied(transaction)
    new = changed.update_config
    new.Clear()
    if old.upsert_values or old.delete_keys:
        for key in sorted(old.upsert_values):
            new.config_updates.update_entries.add(key=key, value=old.upsert_values[key])
        for key in old.delete_keys:
            new.config_updates.update_entries.add(key=key)
    if old.schema_metadata:
        _replace_with(new.schema_metadata_updates, dict(old.schema_metadata))
    for field_id, update in old.field_metadata.items():
        if field_id > FIELD_ID_MAX:
            raise InvalidRequest(
                f"UpdateConfig.field_metadata names field {field_id}, which no table can have", code="unknown_field"
            )
        _replace_with(new.field_metadata_updates[field_id], dict(update.metadata))
    return changed


def _replace_with(update: Transaction.UpdateMap, values: dict[str, str]) -> None:
    update.replace = True
    for key in sorted(values):
        update.update_entries.add(key=key, value=values[key])


def _entries(transaction: Transaction) -> list[Entries]:
    config = transaction.update_config
    return [
        Entries("config_updates", _items(config.config_updates)),
        Entries("table_metadata_updates", _items(config.table_metadata_updates)),
        Entries("schema_metadata_updates", _items(config.schema_metadata_updates)),
        *(
            Entries(f"field_metadata_updates[{field_id}]", _items(updates), may_be_reserved=True)
            for field_id, updates in config.field_metadata_updates.items()
        ),
    ]


def _items(updates: Transaction.UpdateMap) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in updates.update_entries]


def _validate_on(transaction: Transaction, latest: Manifest) -> None:
    require_room(latest, transaction.update_config)
    changes = transaction.update_config.field_metadata_updates
    for field in latest.fields:
        if field.id in changes:
            changed = Field()
            changed.CopyFrom(field)
            _update_field(changed, changes[field.id])
            require_same_types([field], [changed])


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    config = transaction.update_config
    table = config.table_metadata_updates
    metadata = [config.schema_metadata_updates, *config.field_metadata_updates.values()]
    entries = config.config_updates.update_entries
    return Footprint(
        kind=Kind.UPDATE_CONFIG,
        config_upserts=frozenset(entry.key for entry in entries if entry.HasField("value")),
        config_deletes=frozenset(entry.key for entry in entries if not entry.HasField("value")),
        table_metadata_keys=frozenset(
            # committerd's own entries never conflict: every version sets them, and they survive a replaced map.
            entry.key
            for entry in table.update_entries
            if not entry.key.startswith(KEY_PREFIX)
        ),
        replaces_table_metadata=table.replace,
        sets_schema_metadata=config.HasField("schema_metadata_updates"),
        metadata_fields=frozenset(config.field_metadata_updates),
        changes_metadata=any(update.replace or update.update_entries for update in metadata),
    )


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, UpdateConfig. The queue's own table metadata survives a replacement."""
    config, manifest = transaction.update_config, draft.manifest
    if config.HasField("config_updates"):
        _apply(manifest.config, config.config_updates)
    if config.HasField("table_metadata_updates"):
        own = own_metadata(manifest.table_metadata)
        _apply(manifest.table_metadata, config.table_metadata_updates)
        for key, value in own.items():
            manifest.table_metadata.setdefault(key, value)
    if config.HasField("schema_metadata_updates"):
        _apply_bytes(manifest.schema_metadata, config.schema_metadata_updates)
    fields = {field.id: field for field in manifest.fields}
    key_before, clustering_before = key_fields(manifest.fields), clustering_fields(manifest.fields)
    for field_id, changes in sorted(config.field_metadata_updates.items()):
        if field_id not in fields:
            raise InvalidRequest(
                f"UpdateConfig changes metadata of field {field_id}, which version {draft.version - 1} does "
                f"not have; its fields are {sorted(fields)}",
                code="unknown_field",
            )
        _update_field(fields[field_id], changes)
    if config.field_metadata_updates:
        _require_key(draft, config, key_before)
        _require_clustering_key(draft, config, clustering_before)
    finish(draft)


def _update_field(field: Field, changes: Transaction.UpdateMap) -> None:
    before = declared_position(field)
    _apply_bytes(field.metadata, changes)
    after = declared_position(field)
    declare_position(field)
    if before != after:
        field.unenforced_primary_key = after is not None
        field.unenforced_primary_key_position = after or 0


def _require_key(draft: Draft, config: Transaction.UpdateConfig, before: list[int]) -> None:
    """Check the primary key as Lance 7 and later do: it is declared once, and in full. 4.0.0 accepts anything."""
    maps = config.field_metadata_updates.values()
    writes = any(entry.key in KEY_ENTRIES for one in maps for entry in one.update_entries)
    fields = draft.manifest.fields
    after = key_fields(fields)
    if before and (writes or before != after):
        raise InvalidRequest(
            f"the primary key, of fields {before}, can't be changed: leave {PRIMARY_KEY} and {PRIMARY_KEY_POSITION} as "
            "they are",
            code="primary_key_immutable",
        )
    fault = key_fault(fields) or ("" if after else "no field is part of it")
    if writes and fault:
        raise InvalidRequest(
            f"UpdateConfig sets {PRIMARY_KEY} or {PRIMARY_KEY_POSITION}, and then {fault}; readers could not open the "
            "table. Declare a primary key of columns that are never null and not nested in lists",
            code="schema",
        )


def _require_clustering_key(draft: Draft, config: Transaction.UpdateConfig, before: list[int]) -> None:
    """Check that the clustering key is declared once. Lance 14: manifest_build.rs, UpdateConfig."""
    changes = config.field_metadata_updates
    writes = any(entry.key == CLUSTERING_KEY_POSITION for one in changes.values() for entry in one.update_entries)
    fields = draft.manifest.fields
    after = clustering_fields(fields)
    if before and (writes or before != after):
        raise InvalidRequest(
            f"the clustering key, of fields {before}, can't be changed: leave {CLUSTERING_KEY_POSITION} as it is",
            code="schema",
        )
    if writes and all(position(one, CLUSTERING_KEY_POSITION) is None for one in fields if one.id in changes):
        raise InvalidRequest(
            f"UpdateConfig sets {CLUSTERING_KEY_POSITION}, and then no field is part of a clustering key; set it to a "
            "position, from 1 on",
            code="schema",
        )


def _apply(entries: MutableMapping[str, str], changes: Transaction.UpdateMap) -> None:
    """Apply the changes in place: an entry with a value sets its key, one without removes it; `replace` clears all."""
    if changes.replace:
        entries.clear()
    for entry in changes.update_entries:
        if entry.HasField("value"):
            entries[entry.key] = entry.value
        else:
            entries.pop(entry.key, None)


def _apply_bytes(entries: MutableMapping[str, bytes], changes: Transaction.UpdateMap) -> None:
    texts = {key: value.decode("utf-8", "surrogateescape") for key, value in entries.items()}
    _apply(texts, changes)
    entries.clear()
    for key, value in texts.items():
        entries[key] = value.encode("utf-8", "surrogateescape")


UPDATE_CONFIG = Operation(
    kind=Kind.UPDATE_CONFIG,
    scales_with=ScalesWith.MESSAGE,
    normalised=_normalised,
    entries=_entries,
    validate_on=_validate_on,
    footprint=_footprint,
    build=_build,
)
