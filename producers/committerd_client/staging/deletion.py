"""Deletes rows: each fragment gets a new deletion file, or is removed if no row is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from committerd_client.headers import Staged
from committerd_client.staging.fragments import fragment
from committerd_client.staging.transactions import read_table
from committerd_common.messages import DataFragment

if TYPE_CHECKING:
    import lance


def delete(
    dataset: lance.LanceDataset,
    predicate: str,
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Delete the rows for which the SQL predicate is true.

    It conflicts with deletes and updates of the same rows that are committed meanwhile, and not with those of others.
    """
    table = read_table(dataset)
    transaction = table.transaction(uuid, properties)
    operation = transaction.delete
    operation.predicate = predicate
    changed, removed = delete_from_fragments(dataset, predicate)
    operation.updated_fragments.extend(changed)
    operation.deleted_fragment_ids.extend(removed)
    return table.staged(transaction)


def delete_from_fragments(dataset: lance.LanceDataset, predicate: str) -> tuple[list[DataFragment], list[int]]:
    """(fragments with new deletion files, ids of the fragments without rows left); unchanged ones are in neither."""
    changed: list[DataFragment] = []
    removed: list[int] = []
    for one in dataset.get_fragments():
        before, after = one.metadata, one.delete(predicate)
        if after is None:
            removed.append(one.fragment_id)
        elif after.num_deletions != before.num_deletions:
            changed.append(fragment(after))
    return changed, removed
