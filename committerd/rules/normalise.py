"""One way to say a thing: deprecated fields of a transaction turned into those that replaced them.

Everything behind this looks at the new fields only. What is committed is the normalised message, as
Lance also writes it.
"""

from __future__ import annotations

from committerd.errors import InvalidRequest
from committerd.format.messages import Transaction

_FIELD_ID_MAX = 2**31 - 1
"""The old map has unsigned keys, the field ids of a schema are signed."""


def normalised(transaction: Transaction) -> Transaction:
    """The transaction in its present form; the same object when it is in it already.

    Raises `InvalidRequest` with code `mixed_update_config` when an UpdateConfig uses both forms.
    """
    match transaction.WhichOneof("operation"):
        case "update_config" if _has_old_fields(transaction.update_config):
            return _with_update_maps(transaction)
        case "rewrite" if not transaction.rewrite.groups and _has_fragment_lists(transaction.rewrite):
            return _with_one_group(transaction)
        case _:
            return transaction


def _has_old_fields(config: Transaction.UpdateConfig) -> bool:
    return bool(config.upsert_values or config.delete_keys or config.schema_metadata or config.field_metadata)


def _has_fragment_lists(rewrite: Transaction.Rewrite) -> bool:
    return bool(rewrite.old_fragments or rewrite.new_fragments)


def _with_update_maps(transaction: Transaction) -> Transaction:
    # Lance: transaction.rs, conversion of UpdateConfig: config is merged, both kinds of metadata
    # are replaced, and an empty old map means that it is not there.
    old = transaction.update_config
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
    changed = Transaction()
    changed.CopyFrom(transaction)
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
        if field_id > _FIELD_ID_MAX:
            raise InvalidRequest(
                f"UpdateConfig.field_metadata names field {field_id}, which no table can have", code="unknown_field"
            )
        _replace_with(new.field_metadata_updates[field_id], dict(update.metadata))
    return changed


def _replace_with(update: Transaction.UpdateMap, values: dict[str, str]) -> None:
    update.replace = True
    for key in sorted(values):
        update.update_entries.add(key=key, value=values[key])


def _with_one_group(transaction: Transaction) -> Transaction:
    # Lance: transaction.rs, conversion of Rewrite: the two lists are one group.
    changed = Transaction()
    changed.CopyFrom(transaction)
    rewrite = changed.rewrite
    group = rewrite.groups.add()
    group.old_fragments.extend(rewrite.old_fragments)
    group.new_fragments.extend(rewrite.new_fragments)
    del rewrite.old_fragments[:]
    del rewrite.new_fragments[:]
    return changed
