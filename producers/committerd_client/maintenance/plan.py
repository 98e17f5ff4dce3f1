"""Decides what maintenance does next for one version of a table. Pure: reads nothing, and knows no clock.

Small fragments are rewritten together with others of about their size, so that a row is rewritten once for each time
that its fragment grows eightfold, and not each time that rows are appended. If there are too many small ones, fewer
than eight are enough, but a row's fragment still grows by half each time. The smallest come first, and among these the
oldest. Fragments are rewritten together only if the same index segments cover them, because an index covers a new
fragment as a whole or not at all. No fragment is in two groups.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from committerd_client.maintenance.table import FragmentState, IndexState, TableState

GROUP_MIN = 8
"""At least this many fragments are rewritten together, unless they fill a fragment, or are too many in all."""
_GROWTH_MIN = 1.5
"""Fragments that are rewritten together have at least this many times the rows of the largest, unless they fill a
fragment. So a row is rewritten a few times until its fragment is full, whatever the sizes of the fragments that come.
Eight fragments of one size class always have enough.
"""
_FRAGMENTS_IN_A_GROUP_MAX = 10_000
"""pylance opens all files of a group."""


class RewriteReason(str, Enum):
    """Why fragments are rewritten."""

    SMALL = "small"
    """They have fewer rows and bytes than a fragment should have."""
    DELETED = "deleted"
    """A large share of their rows is deleted."""
    MANY = "many"
    """The table has more small fragments than it should have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The state that maintenance aims for."""

    rows_per_fragment: int = 1_000_000
    bytes_per_fragment: int = 1 << 30
    """Files are closed at about this size, so a fragment is small only below half of it."""
    deleted_share: float = 0.1
    """A fragment with at least this share of deleted rows, from 0 to 1, is rewritten."""
    fragments: int = 1_000
    """Maximum number of small fragments; with more, they are rewritten even if few of them have the same size."""
    unindexed_rows: int = 100_000
    """Maximum number of live rows that an index may not cover."""
    segments: int = 8
    """Maximum number of segments of an index; with more, they are merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one task may take."""

    task_bytes: int = 4 << 30
    """Maximum bytes of data files that one task rewrites."""
    task_seconds: float = 300.0
    """Maximum seconds that one task is expected to take, by the pace of earlier ones."""
    tasks: int = 1
    """Maximum number of tasks in one plan, unless `short_seconds` allows more."""
    short_seconds: float = 0.0
    """A plan has more tasks than that as long as all of them are expected to take at most this time, `tasks` at once.
    Each commit of an index that holds row addresses writes the whole index anew, so short tasks share a commit.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPace:
    """How fast tasks were so far. The initial value is a careful guess."""

    bytes_per_second: float = 20e6
    fragments_per_second: float = 200.0

    def after(self, *, size: float, fragments: float, seconds: float) -> TaskPace:
        """The pace after a task on so many bytes and fragments, which weighs half of all tasks before it."""
        seconds = max(seconds, 1e-3)
        # What limits a task is either the number of its files or their size.
        if size / self.bytes_per_second > fragments / self.fragments_per_second:
            return replace(self, bytes_per_second=(self.bytes_per_second + size / seconds) / 2)
        return replace(self, fragments_per_second=(self.fragments_per_second + fragments / seconds) / 2)

    def seconds(self, *, size: float, fragments: float) -> float:
        """The time that a task on so many bytes and fragments is expected to take."""
        return max(size / self.bytes_per_second, fragments / self.fragments_per_second)

    def bounds(self, limits: Limits) -> tuple[float, float]:
        """Maximum bytes and fragments of one task."""
        return (
            min(limits.task_bytes, limits.task_seconds * self.bytes_per_second),
            min(_FRAGMENTS_IN_A_GROUP_MAX, max(limits.task_seconds * self.fragments_per_second, GROUP_MIN)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteGroup:
    """Fragments that one task rewrites together."""

    fragments: tuple[int, ...]
    """Ids, ascending."""
    rows: int
    """Live rows."""
    bytes: int
    why: RewriteReason


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """What to do next. Nothing to do: no groups and no indices."""

    groups: tuple[RewriteGroup, ...] = ()
    """In the order of their urgency; those of one commit."""
    waiting: int = 0
    """Number of groups beyond `groups` that could be rewritten now."""
    mergeable: int = 0
    """Number of fragments that are small, and small enough for a task that rewrites them with others."""
    left: int = 0
    """The same once `groups` are rewritten."""
    small: int = 0
    """Number of fragments that have fewer rows and bytes than a fragment should have, whatever a task can do."""
    indices: tuple[IndexState, ...] = ()
    """Indices to optimize."""
    too_large: tuple[int, ...] = ()
    """Ids of fragments that should be rewritten, and for which `Limits.task_bytes` or `Limits.task_seconds` is too low.
    """

    @property
    def empty(self) -> bool:
        return not self.groups and not self.indices


def plan(
    table: TableState,
    targets: Targets,
    limits: Limits,
    pace: TaskPace | None = None,
    *,
    leave: Collection[int] = frozenset(),
) -> MaintenancePlan:
    """The plan for this version of the table. `leave`: ids of fragments that others are about to replace."""
    pace = pace or TaskPace()
    sizes = _Sizes(targets, *pace.bounds(limits))
    wanted = [one for one in table.fragments if one.id not in leave and sizes.why(one) is not None]
    mergeable = sum(1 for one in wanted if sizes.is_small(one))
    groups = [group for alike in _alike(wanted) for group in _grouped(alike, sizes, many=mergeable > targets.fragments)]
    groups.sort(key=lambda one: (one.rows // len(one.fragments), one.fragments))
    next_ones = tuple(groups[: in_one_commit(groups, limits, pace)])
    return MaintenancePlan(
        groups=next_ones,
        waiting=len(groups) - len(next_ones),
        mergeable=mergeable,
        small=sum(1 for one in table.fragments if sizes.is_below_target(one)),
        left=mergeable - _gone(wanted, next_ones, sizes),
        indices=tuple(
            one
            for one in table.indices
            if one.unindexed_rows > targets.unindexed_rows or one.segments > targets.segments
        ),
        too_large=tuple(one.id for one in table.fragments if sizes.is_too_large(one)),
    )


def in_one_commit(groups: Sequence[RewriteGroup], limits: Limits, pace: TaskPace) -> int:
    """How many of these groups, from the first on, one commit replaces."""
    seconds = 0.0
    for number, one in enumerate(groups):
        seconds += pace.seconds(size=one.bytes, fragments=len(one.fragments)) / limits.tasks
        if number >= limits.tasks and seconds > limits.short_seconds:
            return number
    return len(groups)


class _Sizes:
    """Which fragments are rewritten, and how much at once."""

    def __init__(self, targets: Targets, bytes_max: float, fragments_max: float) -> None:
        """`bytes_max`, `fragments_max`: most of them in one task."""
        self._targets = targets
        self._bytes_max = bytes_max
        self._fragments_max = fragments_max
        # With another one it fits a task, and what they become is no longer small.
        self._small_below = min(targets.bytes_per_fragment, bytes_max) / 2

    def why(self, one: FragmentState) -> RewriteReason | None:
        """Why it is rewritten; None if it stays as it is."""
        if self._is_deleted(one):
            return RewriteReason.DELETED if one.bytes <= self._bytes_max else None
        return RewriteReason.SMALL if self.is_small(one) else None

    def is_small(self, one: FragmentState) -> bool:
        """Whether it is to be rewritten with others, and a task can do that."""
        return one.live < self._targets.rows_per_fragment and one.bytes < self._small_below

    def is_too_large(self, one: FragmentState) -> bool:
        """Whether it should be rewritten, and no task can do that."""
        if self._is_deleted(one):
            return one.bytes > self._bytes_max
        return self.is_below_target(one) and not self.is_small(one)

    def is_below_target(self, one: FragmentState) -> bool:
        """Whether it has fewer rows and bytes than a fragment should have."""
        return one.live < self._targets.rows_per_fragment and 2 * one.bytes < self._targets.bytes_per_fragment

    def runs(self, fragments: Iterable[FragmentState]) -> Iterator[tuple[list[FragmentState], bool]]:
        """Divide them, in this order, into groups of at most one new fragment's size, and within the limits of a task.

        Each comes with whether it is as large as it may be.
        """
        run: list[FragmentState] = []
        rows = size = 0
        for one in fragments:
            full = len(run) > 1 and self._fills(rows, size)
            too_large = size + one.bytes > self._bytes_max
            if run and (full or too_large or len(run) + 1 > self._fragments_max):
                yield run, full or (too_large and size >= self._small_below)
                run, rows, size = [], 0, 0
            run.append(one)
            rows, size = rows + one.live, size + one.bytes
        if run:
            yield run, self._fills(rows, size)

    def _is_deleted(self, one: FragmentState) -> bool:
        return one.deleted > 0 and one.deleted >= self._targets.deleted_share * one.rows

    def _fills(self, rows: int, size: int) -> bool:
        return rows >= self._targets.rows_per_fragment or size >= self._targets.bytes_per_fragment


def _gone(fragments: Iterable[FragmentState], groups: Iterable[RewriteGroup], sizes: _Sizes) -> int:
    """By how many the small fragments decrease when the groups are rewritten, if each becomes a small one."""
    small = {one.id for one in fragments if sizes.is_small(one)}
    return sum(max(len(small.intersection(one.fragments)) - 1, 0) for one in groups)


def _alike(fragments: Iterable[FragmentState]) -> Iterator[list[FragmentState]]:
    """The fragments that may be rewritten together."""
    found: dict[frozenset[str], list[FragmentState]] = {}
    for one in fragments:
        found.setdefault(one.covered_by, []).append(one)
    yield from found.values()


def _grouped(fragments: list[FragmentState], sizes: _Sizes, *, many: bool) -> Iterator[RewriteGroup]:
    """Groups of fragments that the same segments cover; `many`: the table has too many small fragments."""
    tiers: dict[int, list[FragmentState]] = {}
    for one in fragments:
        tiers.setdefault(_tier(one), []).append(one)
    left: list[FragmentState] = []
    for tier in sorted(tiers):
        # What was too little for a group of its own goes with the next larger ones.
        candidates = sorted([*left, *tiers[tier]], key=lambda one: one.id)
        left = []
        for run, full in sizes.runs(candidates):
            if len(run) > 1 and (full or (len(run) >= GROUP_MIN and _grows(run))):
                yield _group(run, RewriteReason.SMALL)
            else:
                left += run
    done: set[int] = set()
    if many:
        for run in _smallest(left, sizes):
            yield _group(run, RewriteReason.MANY)
            done.update(one.id for one in run)
    for one in left:
        if one.id not in done and sizes.why(one) is RewriteReason.DELETED:
            yield _group([one], RewriteReason.DELETED)


def _tier(one: FragmentState) -> int:
    """The size class of a fragment: each has `GROUP_MIN` times the rows of the one below it."""
    return int(math.log(max(one.live, 1), GROUP_MIN) + 1e-9)


def _grows(run: Sequence[FragmentState]) -> bool:
    """Whether all of them together are much larger than each of them."""
    return sum(one.live for one in run) >= _GROWTH_MIN * max(one.live for one in run)


def _smallest(fragments: Iterable[FragmentState], sizes: _Sizes) -> Iterator[list[FragmentState]]:
    """The smallest of them that are worth rewriting together."""
    for run, _ in sizes.runs(sorted(fragments, key=lambda one: (one.live, one.id))):
        while len(run) > 1 and not _grows(run):
            run.pop()
        if len(run) > 1:
            yield sorted(run, key=lambda one: one.id)


def _group(run: list[FragmentState], why: RewriteReason) -> RewriteGroup:
    return RewriteGroup(
        fragments=tuple(one.id for one in run),
        rows=sum(one.live for one in run),
        bytes=sum(one.bytes for one in run),
        why=why,
    )
