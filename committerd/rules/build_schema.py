"""How Project and UpdateConfig make the next version: schema, configuration, metadata."""

from __future__ import annotations

from collections.abc import MutableMapping

from committerd.format.messages import Field, Transaction
from committerd.rules.draft import Draft, finish, own_metadata, unbuildable
from committerd.rules.fragments import keep_files
from committerd.rules.primary_key import (
    KEY_ENTRIES,
    PRIMARY_KEY,
    PRIMARY_KEY_POSITION,
    declared_position,
    key_fault,
    key_fields,
)


def project(draft: Draft, operation: Transaction.Project) -> None:
    """Lance: transaction.rs, build_manifest, Project. Data files of which no column is left go."""
    draft.open_all()
    draft.set_schema(operation.schema)
    fields = {field.id for field in operation.schema}
    for fragment in draft.manifest.fragments:
        keep_files(fragment, lambda file: not fields.isdisjoint(file.fields))
        if not fragment.files:
            # pylance 14.0.2 commits that, and then can't read the table.
            raise unbuildable(
                f"Project drops every column that fragment {fragment.id} has data of, and readers need one; give its "
                "rows a value in another column first, or delete them",
                "fragment_without_files",
            )
    draft.keep_useful_indices()
    finish(draft, {fragment.id for fragment in draft.manifest.fragments})


def update_config(draft: Draft, operation: Transaction.UpdateConfig) -> None:
    """Lance: transaction.rs, build_manifest, UpdateConfig. The queue's own table metadata
    survives a replacement.
    """
    manifest = draft.manifest
    if operation.HasField("config_updates"):
        _apply(manifest.config, operation.config_updates)
    if operation.HasField("table_metadata_updates"):
        own = own_metadata(manifest.table_metadata)
        _apply(manifest.table_metadata, operation.table_metadata_updates)
        for key, value in own.items():
            manifest.table_metadata.setdefault(key, value)
    if operation.HasField("schema_metadata_updates"):
        _apply_bytes(manifest.schema_metadata, operation.schema_metadata_updates)
    fields = {field.id: field for field in manifest.fields}
    key_before = key_fields(manifest.fields)
    for field_id, changes in sorted(operation.field_metadata_updates.items()):
        if field_id not in fields:
            raise unbuildable(
                f"UpdateConfig changes metadata of field {field_id}, which version {draft.version - 1} does "
                f"not have; its fields are {sorted(fields)}",
                "unknown_field",
            )
        _update_field(fields[field_id], changes)
    if operation.field_metadata_updates:
        _require_key(draft, operation, key_before)
    finish(draft)


def _update_field(field: Field, changes: Transaction.UpdateMap) -> None:
    before = declared_position(field)
    _apply_bytes(field.metadata, changes)
    after = declared_position(field)
    if before != after:
        field.unenforced_primary_key = after is not None
        field.unenforced_primary_key_position = after or 0


def _require_key(draft: Draft, operation: Transaction.UpdateConfig, before: list[int]) -> None:
    """Lance 7 and later: a primary key is declared once, and in full. 4.0.0 takes anything."""
    maps = operation.field_metadata_updates.values()
    writes = any(entry.key in KEY_ENTRIES for one in maps for entry in one.update_entries)
    fields = draft.manifest.fields
    after = key_fields(fields)
    if before and (writes or before != after):
        raise unbuildable(
            f"the primary key, of fields {before}, can't be changed: leave {PRIMARY_KEY} and {PRIMARY_KEY_POSITION} as "
            "they are",
            "primary_key_immutable",
        )
    fault = key_fault(fields) or ("" if after else "no field is part of it")
    if writes and fault:
        raise unbuildable(
            f"UpdateConfig sets {PRIMARY_KEY} or {PRIMARY_KEY_POSITION}, and then {fault}; readers could not open the "
            "table. Declare a primary key of columns that are never null and not nested in lists",
            "schema",
        )


def _apply(entries: MutableMapping[str, str], changes: Transaction.UpdateMap) -> None:
    """A value sets its key, none removes it; `replace` clears first."""
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
