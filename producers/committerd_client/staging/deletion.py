"""Deletes rows: each fragment gets a new deletion file, or is removed if no row is left."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyroaring import BitMap

from committerd_client.headers import StagedChange
from committerd_client.staging.fragments import at_once, fragment, opened_fragments
from committerd_client.staging.transactions import read_table
from committerd_common.messages import DataFragment

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata, LanceFragment


def delete(
    dataset: lance.LanceDataset,
    predicate: str,
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> StagedChange:
    """Delete the rows for which the SQL predicate is true.

    It conflicts with deletes and updates of the same rows that are committed meanwhile, and not with those of others.
    """
    table = read_table(dataset)
    transaction = table.transaction(uuid, properties)
    operation = transaction.delete
    operation.predicate = predicate
    found = RowOffsets()
    for batch in dataset.scanner(columns=[], filter=predicate, with_row_address=True).to_reader():
        found.add(batch.column("_rowaddr"))
    changed, removed = delete_rows(dataset, found, predicate)
    operation.updated_fragments.extend(changed)
    operation.deleted_fragment_ids.extend(removed)
    return table.change(transaction, deleted=sum(found.counts().values()))


class RowOffsets:
    """Rows of a table, as offsets in their fragments; a few bytes for each row."""

    def __init__(self) -> None:
        self._of_fragment: dict[int, BitMap] = {}

    def add(self, addresses: pa.UInt64Array) -> None:
        """Add the rows with these row addresses: the fragment's id in the upper 32 bits, the offset in the lower."""
        import numpy as np

        values = addresses.to_numpy()
        ids, offsets = values >> 32, values.astype(np.uint32)
        # A scan yields the rows fragment by fragment, so there are few runs.
        starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] + 1)) if len(ids) else ids
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            run = array("I", offsets[start:end].tobytes())
            self._of_fragment.setdefault(int(ids[start]), BitMap()).update(run)

    def counts(self) -> dict[int, int]:
        """The number of rows by fragment id."""
        return {id: len(offsets) for id, offsets in self._of_fragment.items()}

    def of(self, fragment_id: int) -> list[int]:
        """The offsets of a fragment's rows, ascending."""
        return list(self._of_fragment[fragment_id])


def delete_rows(dataset: lance.LanceDataset, rows: RowOffsets, predicate: str) -> tuple[list[DataFragment], list[int]]:
    """Delete these rows, which are those for which the predicate is true.

    Returns the fragments with new deletion files, and the ids of the fragments without rows left. Only fragments that
    have such rows are opened. A pylance that can delete only by predicate (4.0.0) evaluates it once more for them.
    """
    from lance.fragment import LanceFragment

    by_offset = hasattr(LanceFragment, "delete_rows")

    def deleted(one: LanceFragment) -> FragmentMetadata | None:
        return one.delete_rows(rows.of(one.fragment_id)) if by_offset else one.delete(predicate)

    changed: list[DataFragment] = []
    removed: list[int] = []
    opened = opened_fragments(dataset, rows.counts())
    with ThreadPoolExecutor(at_once(dataset)) as threads:
        for one, after in zip(opened, threads.map(deleted, opened), strict=True):
            if after is None:
                removed.append(one.fragment_id)
            elif by_offset or after.num_deletions != one.num_deletions:  # a random predicate may leave all rows
                changed.append(fragment(after))
    return changed, removed
