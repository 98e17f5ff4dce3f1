"""Several Deletes and row-rewriting Updates as one version: judged against each other by rows, recorded as one.

Each member is judged against those before it as if each of these were a version. What is recorded has the rows and the
keys of all members, so another writer that judges itself against the version meets every one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from committerd.lance.conflicts.key_filter import KeyUnion
from committerd.lance.format.kind import Kind
from committerd.lance.rows.change import RowChange, Touched
from committerd.lance.rows.deletions import clash, without_rows
from committerd_common.messages import DataFragment, Manifest, Transaction

PREDICATE_CHARS_MAX = 10_000
"""Most characters of the predicates that a Delete of several members records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A member can't be committed after one before it."""

    kind: Kind
    """The operation of that other member."""
    rule: str
    """The rule of the conflict grid that the two would meet, were each a version; `row` also for the same row."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What all members do to the fragments of the latest version."""

    updated: Sequence[DataFragment]
    removed: Sequence[int]
    files: Mapping[str, bytes]
    """The deletion files to write, by key."""


@dataclass(slots=True)
class _InFragment:
    """What the members so far do in one fragment that they keep."""

    kind: Kind
    """The operation of the last of them."""
    only: Touched | None
    """The one that touches the fragment; None if several do."""
    rows: BitMap | None
    """The rows that they delete; None = not derived yet, which is so only with one member."""


@dataclass(slots=True, kw_only=True)
class RowGroup:
    """The members of one version. Its caller adds a member only after `takes`, `contradiction` and `same_rows`."""

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
    """For each Update, the number of its new fragments and the fragments that it takes rows from."""

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

    def contradiction(self, change: RowChange) -> Contradiction | None:
        """Why this member can't follow those before it, whatever rows it deletes; None if nothing is known yet."""
        if self._keys is not None and change.keys is not None and self._keys.may_have_one_of(change.keys):
            return Contradiction(kind=Kind.UPDATE, rule="upd", message="both may have inserted the same key")
        for fragment_id in change.fragments:
            kind = self._removed.get(fragment_id)
            if kind is not None:
                return Contradiction(kind=kind, rule="row", message=f"that one removed fragment {fragment_id}")
        for fragment_id in change.removed:
            if fragment_id in self._touched:
                return Contradiction(
                    kind=self._touched[fragment_id].kind,
                    rule="row",
                    message=f"it removes fragment {fragment_id}, of which that one deleted rows",
                )
        return None

    def shared(self, change: RowChange) -> list[int]:
        """The fragments of which both this member and those before it delete rows: their rows must be compared."""
        return [id for id in change.touched if id in self._touched]

    def unread(self, fragment_ids: Iterable[int]) -> dict[int, Touched]:
        """What was touched in those of these fragments where the rows of the member so far are not derived yet."""
        found = {}
        for id in fragment_ids:
            here = self._touched.get(id)
            if here is not None and here.rows is None and here.only is not None:
                found[id] = here.only
        return found

    def learn(self, rows: Mapping[int, BitMap]) -> None:
        """Take the rows of the fragments that `unread` named, by fragment id."""
        for id, some in rows.items():
            self._touched[id].rows = some

    def same_rows(self, change: RowChange) -> Contradiction | None:
        """The rows that both this member and one before it delete; the rows in `shared` fragments must be known."""
        both, kind = dict[int, BitMap](), Kind.DELETE
        for id in self.shared(change):
            here, rows = self._touched[id], change.touched[id].rows
            assert here.rows is not None
            assert rows is not None
            if here.rows.intersect(rows):
                both[id], kind = here.rows & rows, here.kind
        found = clash(both)
        return None if found is None else Contradiction(kind=kind, rule="row", message=found.message)

    def add(self, change: RowChange) -> None:
        """Add one more member, which contradicts none of those before it."""
        for id, one in change.touched.items():
            here = self._touched.get(id)
            if here is None:
                self._touched[id] = _InFragment(change.kind, one, one.rows)
                continue
            assert here.rows is not None
            assert one.rows is not None
            here.kind, here.only, here.rows = change.kind, None, here.rows | one.rows
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

        A fragment of which one member deletes rows, and nobody else since its read version, keeps the one staged.
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
    ) -> Recorded:
        """What the members do together to the fragments of the latest version.

        `deleted`: by id of each fragment in `to_merge`, the rows that it lacks in the latest version; the rows that the
        members delete there must be known. A fragment that the latest version lacks is recorded as staged, and the
        build refuses it.
        """
        now = {fragment.id: fragment for fragment in latest.fragments}
        updated, removed, files = list[DataFragment](), list[int](), dict[str, bytes]()
        for id, here in self._touched.items():
            if id not in deleted:
                assert here.only is not None
                updated.append(here.only.staged or DataFragment(id=id))
                continue
            assert here.rows is not None
            shrunk = without_rows(now[id], deleted[id], here.rows, latest_version=latest_version, file_ids=file_ids)
            if shrunk.deletion_file is None:
                removed.append(id)
                continue
            changed = DataFragment()
            changed.CopyFrom(now[id])
            if shrunk.key:
                changed.deletion_file.CopyFrom(shrunk.deletion_file)
                files[shrunk.key] = shrunk.body
            updated.append(changed)
        return Recorded(updated=updated, removed=[*removed, *self._removed], files=files)

    def transaction(self, members: Sequence[Transaction], recorded: Recorded) -> Transaction:
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
        return made


def rebased(transaction: Transaction, recorded: Recorded, *, latest_version: int) -> Transaction:
    """The transaction of the only member of a version, changed to apply on top of the latest version."""
    made = Transaction()
    made.CopyFrom(transaction)
    made.read_version = latest_version
    if made.WhichOneof("operation") == "delete":
        updated, removed = made.delete.updated_fragments, made.delete.deleted_fragment_ids
    else:
        updated, removed = made.update.updated_fragments, made.update.removed_fragment_ids
    updated.clear()
    updated.extend(recorded.updated)
    removed[:] = recorded.removed
    return made


def either(predicates: Sequence[str]) -> str:
    """One predicate that holds where one of these does, each once; those that are too many for it are counted."""
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
