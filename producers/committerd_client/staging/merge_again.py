"""Executes a merge again by reading only the rows that are new since its last execution.

A merge searches the whole table for its keys, which takes longer the larger the table is. Its results for a fragment
stay valid for as long as the fragment is unchanged. A merge may be refused, mostly because rows were appended
meanwhile, or take so long that it would be refused. It is then staged once more for a later version, with the files
that it has already written, if all of this holds:

* The table has the same columns, and at least one fragment is unchanged: it is the same table.
* Each fragment that the merge changes is unchanged (neither compacted nor deleted from).
* None of its keys is in a fragment that is new, that has other data files, or that had deleted rows before (a Restore
  may bring these back).
* It was executed within the last day: Lance's cleanup deletes files that no version names after 7 days.

Rows that were deleted elsewhere don't matter if the merge changes each row that it matches, because the matched rows
are in the fragments that it changes. Otherwise (the merge has a condition, or leaves matched rows alone) a row that
kept a key from being inserted may be gone. In that case no fragment may be gone or have lost rows.

In a table with stable row ids, the fragments of a merge may name the version in which their rows were changed. Such a
merge is executed in full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import opened_fragments
from committerd_client.staging.keys import KeyHashes
from committerd_client.staging.transactions import ReadTable
from committerd_common.messages import DataFragment, Transaction

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader"

_ROWS_MAX = 100_000
"""Number of new rows that are read here at most. With more rows pylance's full execution is faster."""
_AGE_SECONDS_MAX = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The arguments of a merge, and the version on which it is executed."""

    uri: str
    table: ReadTable
    columns: tuple[tuple[int, pa.Field], ...]
    """Field id and Arrow field of each key column."""
    source: Rows
    keys_max: int
    clauses: Mapping[str, bool | str]
    """The clauses, by the names in pylance's builder."""
    executed_at: float
    """When its files were written (Unix time, seconds)."""

    @property
    def names(self) -> list[str]:
        """Names of the key columns."""
        return [column.name for _, column in self.columns]

    @property
    def inserts(self) -> bool:
        return bool(self.clauses["when_not_matched_insert_all"])

    def may_hold_again(self, update: Transaction.Update) -> bool:
        """Whether a re-execution may use the results.

        It may not if the source is a reader, which is exhausted; if the merge deletes rows that the source does not
        have; or if the fragments name versions.
        """
        import pyarrow as pa

        return (
            not isinstance(self.source, pa.RecordBatchReader)
            and not self.clauses["when_not_matched_by_source_delete"]
            and not _names_versions(update)
        )

    @property
    def changes_all_it_matches(self) -> bool:
        return any(
            self.clauses[clause] is True
            for clause in ("when_matched_update_all", "when_matched_delete", "when_matched_fail")
        )

    def equals(self, other: Merge) -> bool:
        """Whether both merges would make the same change to the same version of a table."""
        return (
            (self.uri, self.columns, self.keys_max) == (other.uri, other.columns, other.keys_max)
            and dict(self.clauses) == dict(other.clauses)
            and list(self.table.manifest.fields) == list(other.table.manifest.fields)
            and self.table.manifest.data_format == other.table.manifest.data_format
            and _same_rows(self.source, other.source)
        )


def still_holds(before: Merge, update: Transaction.Update, now: Merge, dataset: lance.LanceDataset) -> bool:
    """Whether the change that the merge made before is the one that it would make now.

    `update`: the change. `dataset`: open at the version of `now`. Reads the key columns of new fragments.
    """
    if now.executed_at - before.executed_at > _AGE_SECONDS_MAX or not now.equals(before):
        return False
    changed = {one.id for one in update.updated_fragments} | set(update.removed_fragment_ids)
    new = to_look_through(
        before.table.packed_fragments,
        now.table.packed_fragments,
        changed,
        may_lose_rows=now.changes_all_it_matches,
    )
    if new is None or sum(one.physical_rows for one in new) > _ROWS_MAX:
        return False
    if not new:
        return True
    return not _may_have_its_keys(now, new, dataset)


def _may_have_its_keys(merge: Merge, fragments: Collection[DataFragment], dataset: lance.LanceDataset) -> bool:
    """Whether a row of the fragments may have one of the source's keys."""
    keys = KeyHashes(merge.columns, most=merge.keys_max)
    try:
        keys.add_all(merge.source)
        if keys.too_many:
            return True
        chosen = opened_fragments(dataset, {one.id for one in fragments})
        rows = dataset.scanner(columns=merge.names, fragments=chosen, scan_in_order=False).to_table()
        return any(keys.has_one_of(batch) for batch in rows.combine_chunks().to_batches())
    except StagingError:  # pylance can compare these keys and we can't
        return True


def to_look_through(
    before: Iterable[bytes], now: Iterable[bytes], changed: Collection[int], *, may_lose_rows: bool
) -> list[DataFragment] | None:
    """The fragments of a later version that a merge on an earlier version has not read; None = execute it in full.

    `before`, `now`: the fragments of both versions, serialized (`ReadTable.packed_fragments`). `changed`: ids of the
    fragments that the merge changes. `may_lose_rows`: whether other fragments may be gone or have lost rows.
    """
    known, current = set(before), set(now)
    same, new = not known.isdisjoint(current), []
    rest = {one.id: one for one in map(DataFragment.FromString, known - current)}
    for one in sorted(map(DataFragment.FromString, current - known), key=lambda one: one.id):
        was = rest.pop(one.id, None)
        if was is not None and (one.id in changed or not may_lose_rows):
            return None
        if was is None or was.HasField("deletion_file") or list(was.files) != list(one.files):
            new.append(one)
    if not same or (rest and (not may_lose_rows or not rest.keys().isdisjoint(changed))):
        return None
    return new


def _names_versions(update: Transaction.Update) -> bool:
    """Whether its fragments name the versions in which their rows were made or changed."""
    return any(
        one.WhichOneof("created_at_version_sequence") or one.WhichOneof("last_updated_at_version_sequence")
        for one in (*update.updated_fragments, *update.new_fragments)
    )


def _same_rows(one: Rows, other: Rows) -> bool:
    """Whether both have the same rows. False for readers, which are exhausted."""
    import pyarrow as pa

    if isinstance(one, pa.RecordBatchReader) or type(one) is not type(other):
        return False
    return one is other or one.equals(other, check_metadata=True)
