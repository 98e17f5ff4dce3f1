"""A merge executed again by looking only at what is new since it was executed.

To execute a merge is to look for its keys in the whole table, which takes as long as the table is large. What it found
in a fragment holds for as long as the fragment is as it was. So a merge that was refused, mostly because rows were
appended meanwhile, or that took so long that it would be, is staged once more for a later version, with the files that
it has written, when

* the table has the same columns, and a fragment at least is there as it was: it is the same table,
* each fragment that it changes is there as it was (neither compacted nor deleted from),
* no row with one of its keys is in a fragment that is new, that has other data files, or that had lost rows before,
  which a Restore brings back,
* it was executed within a day: Lance's cleanup deletes files that no version names after 7.

Rows that vanished elsewhere don't matter if the merge changes each row that it matches: those it has matched are in
the fragments that it changes. Otherwise (a condition, or matched rows that are left alone) a row that kept a key from
being inserted may be gone; then no fragment may be gone, or have lost rows.

Where a table has stable row ids, the fragments of a merge may say in which version their rows were changed. Those are
executed anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from committerd_client.staging.errors import StagingError
from committerd_client.staging.keys import KeyHashes
from committerd_client.staging.transactions import ReadTable
from committerd_common.messages import DataFragment, Transaction

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader"

_ROWS_MAX = 100_000
"""New rows to look through here. pylance looks through more of them faster."""
_AGE_SECONDS_MAX = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A merge as it was asked for, and the version on which it is executed."""

    uri: str
    table: ReadTable
    columns: tuple[tuple[int, pa.Field], ...]
    """Field id and Arrow field of each column of the key."""
    source: Rows
    keys_max: int
    clauses: Mapping[str, bool | str]
    """By the names of pylance's builder."""
    executed_at: float
    """When its files were written; Unix time."""

    @property
    def names(self) -> list[str]:
        """Of the key's columns."""
        return [column.name for _, column in self.columns]

    @property
    def inserts(self) -> bool:
        return bool(self.clauses["when_not_matched_insert_all"])

    def may_hold_again(self, update: Transaction.Update) -> bool:
        """Whether what came of it is worth keeping: not where the rows are used up, or it asks for what it does not
        name, or its fragments name versions.
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
        """Whether both would do the same to one version of one table."""
        return (
            (self.uri, self.columns, self.keys_max) == (other.uri, other.columns, other.keys_max)
            and dict(self.clauses) == dict(other.clauses)
            and list(self.table.manifest.fields) == list(other.table.manifest.fields)
            and self.table.manifest.data_format == other.table.manifest.data_format
            and _same_rows(self.source, other.source)
        )


def still_holds(before: Merge, update: Transaction.Update, now: Merge, dataset: lance.LanceDataset) -> bool:
    """Whether the change that came of it before is what it would do to the version at which the dataset is open.

    Reads the key columns of new fragments.
    """
    if now.executed_at - before.executed_at > _AGE_SECONDS_MAX or not now.equals(before):
        return False
    changed = {one.id for one in update.updated_fragments} | set(update.removed_fragment_ids)
    new = to_look_through(
        before.table.manifest.fragments,
        now.table.manifest.fragments,
        changed,
        may_lose_rows=now.changes_all_it_matches,
    )
    if new is None or sum(one.physical_rows for one in new) > _ROWS_MAX:
        return False
    if not new:
        return True
    return not _may_have_its_keys(now, new, dataset)


def _may_have_its_keys(merge: Merge, fragments: Collection[DataFragment], dataset: lance.LanceDataset) -> bool:
    """Whether one of their rows may have one of the source's keys."""
    keys = KeyHashes(merge.columns, most=merge.keys_max)
    try:
        keys.add_all(merge.source)
        if keys.too_many:
            return True
        numbers = {one.id for one in fragments}
        chosen = [one for one in dataset.get_fragments() if one.fragment_id in numbers]
        rows = dataset.scanner(columns=merge.names, fragments=chosen, scan_in_order=False).to_table()
        return any(keys.has_one_of(batch) for batch in rows.combine_chunks().to_batches())
    except StagingError:  # of keys that pylance can compare and we can't
        return True


def to_look_through(
    before: Iterable[DataFragment], now: Iterable[DataFragment], changed: Collection[int], *, may_lose_rows: bool
) -> list[DataFragment] | None:
    """The fragments of a later version in which an earlier one's merge may find more; None: it is to be executed anew.

    `changed`: ids of the fragments that it changes. `may_lose_rows`: whether others may be gone, or have lost rows.
    """
    rest, new, same = {one.id: one for one in before}, [], False
    for one in now:
        was = rest.pop(one.id, None)
        if was == one:
            same = True
            continue
        if was is not None and (one.id in changed or not may_lose_rows):
            return None
        if was is None or was.HasField("deletion_file") or list(was.files) != list(one.files):
            new.append(one)
    if not same or (rest and (not may_lose_rows or not rest.keys().isdisjoint(changed))):
        return None
    return new


def _names_versions(update: Transaction.Update) -> bool:
    """Whether its fragments say in which version their rows were made or changed."""
    return any(
        one.WhichOneof("created_at_version_sequence") or one.WhichOneof("last_updated_at_version_sequence")
        for one in (*update.updated_fragments, *update.new_fragments)
    )


def _same_rows(one: Rows, other: Rows) -> bool:
    """Readers are used up: nobody can tell."""
    import pyarrow as pa

    if isinstance(one, pa.RecordBatchReader) or type(one) is not type(other):
        return False
    return one is other or one.equals(other, check_metadata=True)
