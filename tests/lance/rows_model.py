"""Random histories of Deletes, Updates and Rewrites, judged, rebased and built by the rules, with the rows in memory.

A row is a pair (key, value). Transactions are staged against random earlier versions and committed in random order.
After each commit the live rows must be those that follow from what was committed, each once. A transaction may be
refused only if one that it had not read deleted one of its rows, or rewrote one of its fragments.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from pyroaring import BitMap

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.grid import FOLLOWING, Verdict, compared
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.permissions import ANYTHING
from committerd.lance.operations.rebase import (
    Deletions,
    FollowFacts,
    FollowingRebase,
    RebasedTransaction,
    RebaseFacts,
    RowConflict,
)
from committerd.lance.operations.rebase_footprints import RebaseFootprints
from committerd.lance.transactions.build import build
from committerd.lance.transactions.transaction import (
    excerpt,
    footprint_of_ours,
    footprint_of_theirs,
    operation_of,
    staged_files,
)
from committerd.lance.transactions.validation import require_valid
from committerd.lance.versions.invariants import require_sound
from committerd_common.messages import DataFragment, IndexSection, Transaction
from committerd_common.own_properties import IN_ORDER, ROWS
from committerd_common.paths import deletion_key
from committerd_common.row_ids import RowIds, decode_row_ids, encode_row_ids
from tests.lance import samples

Row = tuple[int, int]
"""A key, which an update keeps, and a value, which it replaces."""


@dataclass(slots=True)
class Told:
    """How many transactions were committed, and how many refused, by the reason."""

    committed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    followed: int = 0


class Model:
    """One table and its history."""

    def __init__(self, seed: int, *, stable: bool) -> None:
        self.rng = random.Random(seed)
        self.stable = stable
        self.numbers = count(1)
        self.rows: dict[str, list[Row]] = {}
        """By data file, the rows of its fragment, deleted ones included."""
        self.deleted: dict[str, BitMap] = {}
        """The content of each deletion file, by key."""
        self.killed: dict[Row, int] = {}
        """The version that deleted a row."""
        self.moved: dict[int, int] = {}
        """The version that rewrote a fragment."""
        self.unordered = 0
        """The last version that moved rows without a trace of where they went."""
        self.theirs: list[tuple[int, Footprint]] = []
        self.told = Told()
        first = samples.manifest(
            *(self._fragment(id, self._new_rows()) for id in range(1, 4)), version=1, stable=stable
        )
        first.max_fragment_id = 3
        if stable:
            for one in first.fragments:
                keys = [key for key, _ in self.rows[one.files[0].path]]
                one.inline_row_ids = _row_ids(keys)
            first.next_row_id = max(key for rows in self.rows.values() for key, _ in rows) + 1
        self.versions = [samples.table(first)]
        self.want = self.live(self.versions[0])

    @property
    def latest(self) -> ManifestFile:
        return self.versions[-1]

    def live(self, table: ManifestFile) -> list[Row]:
        return sorted(row for one in table.fragments for row in self._live_in(one))

    def _live_in(self, one: DataFragment) -> list[Row]:
        deleted = self._deleted(one)
        return [row for at, row in enumerate(self.rows[one.files[0].path]) if at not in deleted]

    def _deleted(self, one: DataFragment) -> BitMap:
        if not one.HasField("deletion_file"):
            return BitMap()
        return self.deleted[deletion_key(one.id, one.deletion_file, staged=True)]

    def _new_rows(self, most: int = 5) -> list[Row]:
        return [(next(self.numbers), 0) for _ in range(self.rng.randint(1, most))]

    def _fragment(self, id: int, rows: Sequence[Row]) -> DataFragment:
        made = samples.fragment(id, rows=len(rows), name=f"file{next(self.numbers)}")
        self.rows[made.files[0].path] = list(rows)
        return made

    def stage(self, read: ManifestFile) -> Transaction:
        """A Delete, an Update or a Rewrite, planned on this version."""
        if self.rng.random() < 0.45:
            return self._stage_rewrite(read)
        made = samples.transaction(read.version)
        updates = self.rng.random() < 0.5
        updated, removed, taken = list[DataFragment](), list[int](), list[Row]()
        for one in read.fragments:
            live = [at for at in range(one.physical_rows) if at not in self._deleted(one)]
            if self.rng.random() < 0.5 or not live:
                continue
            some = self.rng.sample(live, self.rng.randint(1, len(live)))
            taken += [self.rows[one.files[0].path][at] for at in some]
            if len(some) == len(live):
                removed.append(one.id)
                continue
            changed = DataFragment()
            changed.CopyFrom(one)
            rows = self._deleted(one) | BitMap(some)
            changed.deletion_file.CopyFrom(samples.deletion_file(len(rows), number=next(self.numbers)))
            self.deleted[deletion_key(one.id, changed.deletion_file, staged=True)] = rows
            updated.append(changed)
        if not updates:
            made.delete.SetInParent()
            made.delete.updated_fragments.extend(updated)
            made.delete.deleted_fragment_ids.extend(removed)
            return made
        made.update.SetInParent()
        made.update.updated_fragments.extend(updated)
        made.update.removed_fragment_ids.extend(removed)
        moved = [(key, next(self.numbers)) for key, _ in taken]
        if moved:
            fragment = self._fragment(0, moved)
            if self.stable:
                fragment.inline_row_ids = _row_ids([key for key, _ in moved])
            made.update.new_fragments.append(fragment)
        return made

    def _stage_rewrite(self, read: ManifestFile) -> Transaction:
        made = samples.transaction(read.version, rewrite=Transaction.Rewrite())
        if self.rng.random() < (0.5 if self.stable else 0.85):
            made.transaction_properties[ROWS] = IN_ORDER
        left = [one for one in read.fragments if self._live_in(one)]
        for _ in range(self.rng.randint(1, 2)):
            if not left:
                break
            start = self.rng.randrange(len(left))
            old = left[start : start + self.rng.randint(1, 3)]
            left = [one for one in left if one not in old]
            self.rng.shuffle(old)
            rows = [row for one in old for row in self._live_in(one)]
            if ROWS not in made.transaction_properties:
                self.rng.shuffle(rows)
            group = made.rewrite.groups.add(old_fragments=old)
            while rows:
                size = self.rng.randint(1, len(rows))
                new = self._fragment(0, rows[:size])
                if self.stable:
                    new.inline_row_ids = _row_ids([key for key, _ in rows[:size]])
                    new.inline_created_at_versions = b""
                group.new_fragments.append(new)
                rows = rows[size:]
        if self.rng.random() < 0.5:
            self.reserve(made)
        return made

    def reserve(self, rewrite: Transaction) -> None:
        """Give the new fragments of a Rewrite ids that no fragment will have; a version of its own, as in Lance."""
        new = [one for group in rewrite.rewrite.groups for one in group.new_fragments]
        if not new or new[0].id:
            return
        first = self.latest.outline.max_fragment_id + 1
        for number, one in enumerate(new, start=first):
            one.id = number
        self._add(samples.transaction(self.latest.version, reserve_fragments={"num_fragments": len(new)}))

    def commit(self, staged: Transaction) -> None:
        """Commit it as the committer does, and check the table; or check that there is a reason to refuse it."""
        if staged.WhichOneof("operation") == "rewrite":
            self.reserve(staged)
        require_valid(
            operation_of(staged), staged, staged_files(staged), latest_version=self.latest.version, allowed=ANYTHING
        )
        touched = self._touched(staged)
        judged = self.judge(staged)
        kind = staged.WhichOneof("operation") or ""
        if isinstance(judged, str):
            assert self._may_be_refused(staged, touched), f"{kind} was refused without a reason: {judged}"
            self.told.refused[judged] += 1
            return
        assert not any(self.killed.get(row, 0) > staged.read_version for row in touched), "a row was changed twice"
        for row in touched:
            self.killed[row] = self.latest.version + 1
        for group in staged.rewrite.groups:
            self.moved |= {one.id: self.latest.version + 1 for one in group.old_fragments}
        if self._is_unordered(staged):
            self.unordered = self.latest.version + 1
        self.want = sorted((Counter(self.want) - Counter(touched) + Counter(self._inserted(staged))).elements())
        self._add(judged)
        self.told.committed[kind] += 1
        live = self.live(self.latest)
        assert live == self.want, f"rows {live}, wanted {self.want}"
        if self.stable:
            for one in self.latest.fragments:
                ids = list(decode_row_ids(one.inline_row_ids, fragment=one.id, staged=False))
                assert ids == [key for key, _ in self.rows[one.files[0].path]]

    def judge(self, staged: Transaction) -> Transaction | str:
        """The transaction to commit, or the rule that refuses it."""
        read = self.versions[staged.read_version - 1]
        if read is self.latest:
            return staged
        then = excerpt(read, staged)
        ours = footprint_of_ours(staged, then, ())
        since = [one for one in self.theirs if one[0] > read.version]
        found = compared(ours, since)
        if found.deciding is not None and found.deciding.verdict >= Verdict.RETRYABLE:
            return found.deciding.rule
        operation = operation_of(staged)
        rebased: RebasedTransaction | RowConflict
        if operation.follow is not None and any(one.rule in FOLLOWING for one in found.conflicts):
            facts = FollowFacts(
                latest_version=self.latest.version,
                read=then,
                latest=self.latest.fragments.of,
                theirs=_kept(operation.rebase_footprints(ours), since),
                file_ids=self.numbers,
            )
            rebased = self.drive(operation.follow(staged, facts))
        elif operation.rebase is not None:
            merges = operation.deletions_to_merge(staged, then, excerpt(self.latest, staged))
            states = [{"read": one.read, "ours": one.ours, "latest": one.latest} for one in merges]
            deletions = [
                (merge, Deletions(**{name: self._deleted(one) for name, one in state.items()}))
                for merge, state in zip(merges, states, strict=True)
            ]
            rebased = operation.rebase(
                staged, RebaseFacts(latest_version=self.latest.version, deletions=deletions, file_ids=self.numbers)
            )
        else:
            return staged
        if isinstance(rebased, RowConflict):
            return rebased.rule
        self.deleted |= {key: BitMap.deserialize(body) for key, body in rebased.files.items()}
        self.told.followed += rebased.followed.rows if rebased.followed else 0
        return rebased.transaction

    def drive(self, following: FollowingRebase) -> RebasedTransaction | RowConflict:
        try:
            wanted = next(following)
            while True:
                wanted = following.send([self._deleted(one.fragment) for one in wanted])
        except StopIteration as end:
            result: RebasedTransaction | RowConflict = end.value
            return result

    def _add(self, transaction: Transaction) -> None:
        built = build(self.latest, transaction, samples.GIVEN)
        require_sound(self.latest, built)
        outline, own = built.packed
        self.versions.append(
            ManifestFile(
                outline=outline,
                fragments=built.kept.with_added(own),
                index_section=IndexSection(),
                transaction=None,
                transaction_bytes=None,
            )
        )
        touched = footprint_of_theirs(transaction, before=None, after=outline, indices=())
        self.theirs.append((outline.version, touched))

    def _is_unordered(self, staged: Transaction) -> bool:
        is_rewrite = staged.WhichOneof("operation") == "rewrite"
        return is_rewrite and not self.stable and ROWS not in staged.transaction_properties

    def _touched(self, staged: Transaction) -> list[Row]:
        """The rows that a Delete or an Update deletes."""
        read = {one.id: one for one in self.versions[staged.read_version - 1].fragments}
        updated = staged.delete.updated_fragments or staged.update.updated_fragments
        removed = staged.delete.deleted_fragment_ids or staged.update.removed_fragment_ids
        touched = [row for id in removed for row in self._live_in(read[id])]
        for one in updated:
            rows = self.rows[one.files[0].path]
            touched += [rows[at] for at in self._deleted(one) - self._deleted(read[one.id])]
        return touched

    def _inserted(self, staged: Transaction) -> list[Row]:
        return [row for one in staged.update.new_fragments for row in self.rows[one.files[0].path]]

    def _may_be_refused(self, staged: Transaction, touched: list[Row]) -> bool:
        if self.unordered > staged.read_version or (self._is_unordered(staged) and not touched):
            return True
        old = [one.id for group in staged.rewrite.groups for one in group.old_fragments]
        return any(self.moved.get(id, 0) > staged.read_version for id in old) or any(
            self.killed.get(row, 0) > staged.read_version for row in touched
        )


def _row_ids(keys: Sequence[int]) -> bytes:
    return encode_row_ids(RowIds(tuple(range(key, key + 1) for key in keys)))


def _kept(kept: RebaseFootprints, since: Iterable[tuple[int, Footprint]]) -> list[tuple[int, Footprint]]:
    for version, theirs in since:
        kept.add(version, theirs)
    return kept.parts


def run(seed: int, *, stable: bool) -> Told:
    """Play one history. Raises `AssertionError` where the table is wrong."""
    model = Model(seed, stable=stable)
    for _ in range(model.rng.randint(3, 9)):
        reads = [model.rng.choice(model.versions[-4:]) for _ in range(model.rng.choice((1, 2, 3)))]
        for staged in [model.stage(read) for read in reads]:
            model.commit(staged)
    return model.told
