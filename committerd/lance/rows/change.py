"""What a Delete or row-rewriting Update does to the fragments that exist: it deletes rows in them, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from committerd.lance.conflicts.footprint import ID_BYTES, OBJECT_BYTES
from committerd.lance.conflicts.key_filter import (
    KeyFilter,
    changed_fields,
    inserted_keys,
    is_by_key,
    may_bring_a_key,
)
from committerd.lance.format.kind import Kind
from committerd.lance.rows.deletions import changed_lists
from committerd.lance.versions.fragments import file_identity
from committerd.lance.versions.lineage import require_moved_rows
from committerd_common.messages import DataFragment, Manifest, Transaction

_ROW_BYTES = 2
"""Memory of a row in a bitmap, at most on average: in a run, or in a dense bitmap, it takes less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedFragment:
    """A fragment of which a transaction deletes rows, and which it keeps."""

    read: DataFragment | None = None
    """The fragment at the read version; None with `rows` that were followed here from another fragment."""
    staged: DataFragment | None = None
    """The fragment as the transaction stages it; None = as in `read`."""
    rows: BitMap = field(default_factory=BitMap)
    """The offsets of the rows that it deletes, beyond those deleted at the read version (`RowChange.with_rows`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """The rows that one transaction deletes, and the keys that it inserts."""

    kind: Kind
    touched: Mapping[int, TouchedFragment] = field(default_factory=dict)
    """By id, the fragments that it keeps, in their order in the transaction."""
    removed: Sequence[int] = ()
    """The ids of the fragments that it removes, because it deletes all their rows."""
    keys: KeyFilter | None = None
    """The keys that it inserts; None = it does not say."""
    is_by_key: bool = False
    """Whether it depends on no rows but the rows with its keys."""
    changes: frozenset[int] | None = None
    """For an Update that inserts no row: the fields whose values it changes; None if it may insert one, or does not
    say.
    """
    keeps_coverage: frozenset[int] | None = None
    """The fields whose indices do not cover the rows that it moves (`fields_for_preserving_frag_bitmap`); None for a
    Delete.
    """
    moved: int = 0
    """The number of fragments that it adds."""

    @property
    def fragments(self) -> Iterable[int]:
        """The ids of all existing fragments that it changes or removes."""
        yield from self.touched
        yield from self.removed

    def with_rows(self, rows: Mapping[int, BitMap]) -> RowChange:
        """The same change, with the rows that it deletes in the fragments that it keeps, by fragment id."""
        return replace(self, touched={id: replace(one, rows=rows[id]) for id, one in self.touched.items()})

    @property
    def bytes(self) -> int:
        """The estimated memory of the rows."""
        return sum(_ROW_BYTES * len(one.rows) for one in self.touched.values())

    def rows_and_keys(self) -> RowsAndKeys:
        """The rows and keys over which another transaction can conflict with this one."""
        rows = {id: one.rows for id, one in self.touched.items()}
        size = self.bytes + OBJECT_BYTES * (len(rows) + len(self.removed))
        if self.keys is not None:
            size += len(self.keys.bloom) + ID_BYTES * len(self.keys.exact or ())
        return RowsAndKeys(
            kind=self.kind,
            rows=rows,
            removed=frozenset(self.removed),
            keys=self.keys,
            is_by_key=self.is_by_key,
            changes=self.changes,
            bytes=size + ID_BYTES * len(self.changes or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAndKeys:
    """The rows that a transaction deletes, and the keys that it inserts: what it can conflict over with another one."""

    kind: Kind
    rows: Mapping[int, BitMap]
    """The offsets of the rows that it deletes, by the id of the fragment."""
    removed: frozenset[int]
    """The ids of the fragments that it removes."""
    keys: KeyFilter | None
    """As in `RowChange`, like the next two attributes."""
    is_by_key: bool
    changes: frozenset[int] | None
    bytes: int
    """The estimated memory of all this."""

    def conflicts_with(self, other: RowsAndKeys) -> bool:
        """Whether this transaction has to be executed again if the other one is committed before it.

        This is what the conflict grid says of two Deletes or row-rewriting Updates, with one difference: a row is
        compared by where it is at the read version of each transaction, so a row that a Rewrite moved in between counts
        as another row.
        """
        if other.kind is Kind.UPDATE and may_bring_a_key(
            self.keys, is_by_key=self.is_by_key, other=other.keys, changes=other.changes
        ):
            return True
        small, large = sorted((self, other), key=lambda touched: len(touched.rows) + len(touched.removed))
        if any(id in large.removed or id in large.rows for id in small.removed):
            return True
        return any(
            id in large.removed or (id in large.rows and rows.intersect(large.rows[id]))
            for id, rows in small.rows.items()
        )


def row_change(transaction: Transaction, read: Manifest | None) -> RowChange | None:
    """What a transaction does to the rows of the table; None if it does anything else, or if that is not known.

    The rows themselves are in deletion files: `RowChange.with_rows` adds them.

    `read` is an excerpt of its read version with the fragments that it names; None = that version can't be read.
    """
    kind = transaction.WhichOneof("operation")
    if read is None or transaction.tag or kind not in ("delete", "update"):
        return None
    updated, removed = changed_lists(transaction)
    if kind == "delete":
        change = RowChange(kind=Kind.DELETE, removed=tuple(removed))
    else:
        update = transaction.update
        if not rewrites_rows(update):
            return None
        change = RowChange(
            kind=Kind.UPDATE,
            removed=tuple(removed),
            keys=inserted_keys(transaction),
            is_by_key=is_by_key(transaction),
            changes=changed_fields(transaction),
            keeps_coverage=frozenset(update.fields_for_preserving_frag_bitmap),
            moved=len(update.new_fragments),
        )
    then = {fragment.id: fragment for fragment in read.fragments}
    touched = {one.id: TouchedFragment(read=then.get(one.id), staged=one) for one in updated}
    if len(touched) < len(updated) or touched.keys() & set(change.removed):
        return None
    if not (then.keys() >= set(change.removed) and all(map(_only_deletes, touched.values()))):
        return None
    return replace(change, touched=touched)


def rewrites_rows(update: Transaction.Update) -> bool:
    """Whether an Update only moves rows to new fragments and inserts rows: it changes no column in place, and merges no
    MemWAL generation.
    """
    return not (
        update.update_mode != Transaction.REWRITE_ROWS
        or update.fields_modified
        or update.merged_generations
        or update.updated_fragment_offsets
        or update.updated_fragment_offset_bitmaps
    )


def _only_deletes(one: TouchedFragment) -> bool:
    """Whether the staged fragment is the one of the read version but for its deletion file."""
    if one.read is None or one.staged is None:
        return False
    return _shape(one.read) == _shape(one.staged)


def _shape(fragment: DataFragment) -> tuple[object, ...]:
    rest = DataFragment()
    rest.CopyFrom(fragment)
    rest.ClearField("files")
    rest.ClearField("deletion_file")
    return rest.SerializeToString(deterministic=True), *map(file_identity, fragment.files)


def require_rows_moved(transaction: Transaction, read: Manifest) -> None:
    """Check that the rows that an Update moves are rows that it deletes, in a table with stable row ids.

    `read` as for `row_change`. The build checks the members of a version together; this checks one of them. Raises
    `InvalidRequest` (`row_ids`).
    """
    update = transaction.update
    if not update.new_fragments:
        return
    staged = {one.id: one.deletion_file.num_deleted_rows for one in update.updated_fragments}
    gone = frozenset(update.removed_fragment_ids)
    left = [one for one in read.fragments if one.id in gone or one.id in staged]
    deleted = sum(
        (one.physical_rows if one.id in gone else staged[one.id]) - one.deletion_file.num_deleted_rows for one in left
    )
    require_moved_rows(left, update.new_fragments, deleted=deleted)
