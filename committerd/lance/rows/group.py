"""Several Deletes and row-rewriting Updates as one version: judged against each other by rows, recorded as one.

Each member is judged against those before it as if each of these were a version. What is recorded has the rows and the
keys of all members, so another writer that judges itself against the version meets every one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from committerd.lance.conflicts.key_filter import KeyUnion, changes_together
from committerd.lance.format.kind import Kind
from committerd.lance.rows.change import RowChange, TouchedFragment
from committerd.lance.rows.deletions import changed_lists, clash, take_deletions, without_rows
from committerd_common.messages import DataFragment, Manifest, Transaction
from committerd_common.own_properties import BLAKE2B_8, CHANGES, KEY_HASH

PREDICATE_CHARS_MAX = 10_000
"""Maximum number of characters of the predicates that a Delete of several members records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConflict:
    """A member can't be committed after a member before it."""

    kind: Kind
    """The operation of that other member."""
    rule: str
    """The rule of the conflict grid that would apply if each member were a version of its own."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedChange:
    """What all members do to the fragments of the latest version."""

    updated: Sequence[DataFragment]
    removed: Sequence[int]
    files: Mapping[str, bytes]
    """The deletion files to write, by key."""
    rows: Mapping[str, BitMap]
    """The rows that these files hold, by key."""


@dataclass(slots=True)
class _InFragment:
    """What the members so far do in one fragment that they keep."""

    kind: Kind
    """The operation of the last of them."""
    only: TouchedFragment | None
    """What the only member that touches the fragment does in it; None if several members touch it."""
    rows: BitMap
    """The rows that they delete."""


@dataclass(slots=True, kw_only=True)
class RowGroup:
    """The members of one version. Its caller adds a member only if the group `takes` it and it has no `conflict`."""

    keeps_apart: bool = False
    """Whether Deletes and Updates may not share a version, because the table has a MemWAL index: for an
    UpdateMemWalState an Update is less of a conflict than a Delete is.
    """
    _touched: dict[int, _InFragment] = field(default_factory=dict)
    _removed: dict[int, Kind] = field(default_factory=dict)
    _kinds: set[Kind] = field(default_factory=set)
    _keys: KeyUnion | None = None
    _update: RowChange | None = None
    """The first Update."""
    moves: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    """As `Given.moves`: for each Update, the number of its new fragments and the fragments that it takes rows from."""

    def takes(self, change: RowChange) -> bool:
        """Whether one version can record this member together with those before it."""
        if self.keeps_apart and self._kinds - {change.kind}:
            return False
        first = self._update
        if change.kind is Kind.DELETE or first is None:
            return True
        if first.keeps_coverage != change.keeps_coverage or (first.keys is None) != (change.keys is None):
            return False
        return self._keys is None or change.keys is None or self._keys.takes(change.keys)

    def conflict(self, change: RowChange) -> MemberConflict | None:
        """Why this member can't follow those before it; None if it can."""
        if self._keys is not None and change.keys is not None and self._keys.may_have_one_of(change.keys):
            return MemberConflict(
                kind=Kind.UPDATE, rule="same_row_or_key", message="both may have inserted the same key"
            )
        both, last = dict[int, BitMap](), Kind.DELETE
        for id, one in change.touched.items():
            if id in self._removed:
                return MemberConflict(
                    kind=self._removed[id], rule="same_row", message=f"the other transaction removed fragment {id}"
                )
            here = self._touched.get(id)
            if here is not None and here.rows.intersect(one.rows):
                both[id], last = here.rows & one.rows, here.kind
        for id in change.removed:
            kind = self._removed.get(id) or (self._touched[id].kind if id in self._touched else None)
            if kind is not None:
                text = f"this transaction removes fragment {id}, from which the other one deleted rows"
                return MemberConflict(kind=kind, rule="same_row", message=text)
        found = clash(both)
        return None if found is None else MemberConflict(kind=last, rule="same_row", message=found.message)

    def add(self, change: RowChange) -> None:
        """Add one more member, which conflicts with none of those before it."""
        for id, one in change.touched.items():
            here = self._touched.get(id)
            if here is None:
                self._touched[id] = _InFragment(change.kind, one, one.rows)
            else:
                self._touched[id] = _InFragment(change.kind, None, here.rows | one.rows)
        self._removed |= dict.fromkeys(change.removed, change.kind)
        self._kinds.add(change.kind)
        if change.kind is Kind.UPDATE:
            self._update = self._update or change
            self.moves.append((change.moved, frozenset(change.fragments)))
        if change.keys is not None:
            self._keys = self._keys or KeyUnion(change.keys)
            self._keys.add(change.keys)

    @property
    def fragments(self) -> list[int]:
        """The ids of all existing fragments that the members change or remove."""
        return [*self._touched, *self._removed]

    def to_merge(self, latest: Manifest) -> list[DataFragment]:
        """The fragments of the latest version, of which `latest` is an excerpt, that need a new deletion file.

        A fragment of which only one member deletes rows, and nobody else since its read version, keeps the staged file.
        """
        return [one for one in latest.fragments if one.id in self._touched and not self._is_as_staged(one)]

    def _is_as_staged(self, latest: DataFragment) -> bool:
        only = self._touched[latest.id].only
        return (
            only is not None
            and only.read is not None
            and only.staged is not None
            and only.read.deletion_file == latest.deletion_file
        )

    def recorded(
        self, latest: Manifest, deleted: Mapping[int, BitMap], *, latest_version: int, file_ids: Iterator[int]
    ) -> CombinedChange:
        """What the members do together to the fragments of the latest version.

        `deleted`: by id of each fragment in `to_merge`, the rows that it lacks in the latest version. A fragment that
        the latest version lacks is recorded by its id, and the build refuses it.
        """
        now = {fragment.id: fragment for fragment in latest.fragments}
        updated, removed = list[DataFragment](), list[int]()
        files, rows = dict[str, bytes](), dict[str, BitMap]()
        for id, here in self._touched.items():
            if id not in now:
                updated.append(DataFragment(id=id))
                continue
            changed = DataFragment()
            changed.CopyFrom(now[id])
            if id not in deleted:
                assert here.only is not None
                assert here.only.staged is not None
                take_deletions(changed, here.only.staged)
                updated.append(changed)
                continue
            shrunk = without_rows(changed, deleted[id], here.rows, latest_version=latest_version, file_ids=file_ids)
            if shrunk.deletion_file is None:
                removed.append(id)
                continue
            if shrunk.key:
                changed.deletion_file.CopyFrom(shrunk.deletion_file)
                files[shrunk.key], rows[shrunk.key] = shrunk.body, shrunk.rows
            updated.append(changed)
        return CombinedChange(updated=updated, removed=[*removed, *self._removed], files=files, rows=rows)

    def transaction(self, members: Sequence[Transaction], recorded: CombinedChange) -> Transaction:
        """The Delete or Update that records all members, without uuid and properties; `members` are theirs, in order.

        Its read version is the lowest of theirs.
        """
        made = Transaction(read_version=min(one.read_version for one in members))
        if self._update is None:
            delete = made.delete
            delete.SetInParent()
            delete.updated_fragments.extend(recorded.updated)
            delete.deleted_fragment_ids.extend(recorded.removed)
            delete.predicate = either([one.delete.predicate for one in members])
            return made
        update = made.update
        update.SetInParent()
        update.updated_fragments.extend(recorded.updated)
        update.removed_fragment_ids.extend(recorded.removed)
        for one in members:
            update.new_fragments.extend(one.update.new_fragments)
        update.fields_for_preserving_frag_bitmap.extend(sorted(self._update.keeps_coverage or ()))
        if self._keys is not None:
            update.inserted_rows.CopyFrom(self._keys.message())
            if self._keys.is_exact:
                made.transaction_properties[KEY_HASH] = BLAKE2B_8
        changes = changes_together([one for one in members if one.HasField("update")])
        if changes is not None:
            made.transaction_properties[CHANGES] = changes
        return made


def rebased(transaction: Transaction, recorded: CombinedChange, *, latest_version: int) -> Transaction:
    """The transaction of the only member of a version, changed to apply on top of the latest version."""
    made = Transaction()
    made.CopyFrom(transaction)
    made.read_version = latest_version
    updated, removed = changed_lists(made)
    del updated[:], removed[:]
    updated.extend(recorded.updated)
    removed.extend(recorded.removed)
    return made


def either(predicates: Sequence[str]) -> str:
    """A predicate that is true where any of these is true. Equal predicates are given once; further ones that don't fit
    are only counted.
    """
    distinct = list(dict.fromkeys(filter(None, predicates)))
    if len(distinct) <= 1:
        return "".join(distinct)
    parts, size = list[str](), 0
    for one in distinct:
        size += len(one) + len("() OR ")
        if size > PREDICATE_CHARS_MAX:
            break
        parts.append(f"({one})")
    left = len(distinct) - len(parts)
    return " OR ".join([*parts, f"({left} more)"] if left else parts)
