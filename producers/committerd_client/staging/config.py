"""Changes the settings of a table, and the metadata of the table, its schema and its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from committerd_client.arguments import RESERVED_PREFIX, kind_of
from committerd_client.headers import Staged
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.errors import StagingError
from committerd_client.staging.transactions import ReadTable, read_table
from committerd_common.messages import Field, Transaction

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces a map: afterwards it holds these entries and no others."""

    entries: Mapping[str, str]


Changes: TypeAlias = "Mapping[str, str | None] | Replace"
"""Entries to set, or to remove if the value is None; `Replace` replaces the whole map."""


@takes_branches
def update_config(
    dataset: lance.LanceDataset,
    *,
    config: Changes | None = None,
    table_metadata: Changes | None = None,
    schema_metadata: Changes | None = None,
    field_metadata: Mapping[str, Changes] | None = None,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Change settings and metadata; arguments that are None change nothing.

    `config`: settings, `lance.*` and others. `field_metadata`: changes by the path of the column, `outer.inner` for
    nested ones.

    Raises `StagingError` for unknown columns, for keys that are reserved for the committer, and if there is no change.
    """
    if config is None and table_metadata is None and schema_metadata is None and field_metadata is None:
        raise StagingError(
            "nothing to change: give config, table_metadata, schema_metadata or field_metadata", code="nothing_to_stage"
        )
    table = read_table(dataset)
    transaction = table.transaction(uuid, properties)
    operation = transaction.update_config
    operation.SetInParent()
    if config is not None:
        operation.config_updates.CopyFrom(_map(config))
    if table_metadata is not None:
        operation.table_metadata_updates.CopyFrom(_map(table_metadata))
    if schema_metadata is not None:
        operation.schema_metadata_updates.CopyFrom(_map(schema_metadata))
    for path, changes in (field_metadata or {}).items():
        operation.field_metadata_updates[field_at(table, path).id].CopyFrom(_map(changes))
    return table.staged(transaction)


def field_at(table: ReadTable, path: str) -> Field:
    """The column at a path. Raises `StagingError` if the table does not have it."""
    found = None
    if not isinstance(path, str):
        raise TypeError(f"the path of a column is a str, such as 'outer.inner', not {path!r}")
    for name in path.split("."):
        parent = -1 if found is None else found.id
        found = next((one for one in table.manifest.fields if one.parent_id == parent and one.name == name), None)
        if found is None:
            raise table.no_column(path)
    assert found is not None
    return found


def _map(changes: Changes) -> Transaction.UpdateMap:
    replaced = isinstance(changes, Replace)
    entries: Mapping[str, str | None] = changes.entries if isinstance(changes, Replace) else changes
    if not isinstance(entries, Mapping):
        raise TypeError(f"update_config takes dicts of strings, such as {{'name': 'text'}}, not {kind_of(entries)}")
    if not entries and not replaced:
        raise StagingError("nothing to change: an empty dict", code="nothing_to_stage")
    for key, value in entries.items():
        if not isinstance(key, str) or not isinstance(value, str | None):
            raise TypeError(
                f"update_config takes dicts of strings, with None for what is removed, and got {key!r}: {value!r}"
            )
    reserved = [key for key in entries if key.startswith(RESERVED_PREFIX)]
    if reserved:
        raise StagingError(
            f"key {reserved[0]!r}: names that begin with {RESERVED_PREFIX!r} are the committer's",
            code="reserved_property",
        )
    made = Transaction.UpdateMap(replace=replaced)
    made.update_entries.extend(Transaction.UpdateMapEntry(key=key, value=value) for key, value in entries.items())
    return made
