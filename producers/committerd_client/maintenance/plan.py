"""Decides what maintenance does next for one version of a table. Pure: reads nothing, and knows no clock.

Small fragments are rewritten together with others of about their size, so that a row is rewritten once for each time
that its fragment grows `_GROWTH`-fold, and not each time that rows are appended. The smallest come first, and among
these the oldest. Fragments are rewritten together only if the same index segments cover them, because an index covers
a new fragment as a whole or not at all. No fragment is in two groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from committerd_client.maintenance.table import FragmentState, IndexState, TableState

_GROWTH = 8
"""Fragments that are rewritten together are at least so many, unless they fill a fragment, or are too many in all."""
_FRAGMENTS_IN_A_GROUP_MAX = 10_000
"""pylance opens all files of a group."""


class Why(str, Enum):
    """Why fragments are rewritten."""

    SMALL = "small"
    """They have fewer rows and bytes than a fragment should have."""
    DELETED = "deleted"
    """A large share of their rows is deleted."""
    MANY = "many"
    """The table has more fragments than it should have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The state that maintenance aims for."""

    rows_per_fragment: int = 1_000_000
    bytes_per_fragment: int = 1 << 30
    """Files are closed at about this size, so a fragment is small only below half of it."""
    deleted_share: float = 0.1
    """Share of deleted rows from which on a fragment is rewritten, from 0 to 1."""
    fragments: int = 1_000
    """Most fragments; with more, small ones are rewritten even if few of them have the same size."""
    unindexed_rows: int = 100_000
    """Most live rows that an index may not cover."""
    segments: int = 8
    """Most segments of an index; with more, they are merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one task may take."""

    task_bytes: int = 4 << 30
    """Most bytes of data files that one task rewrites."""
    task_seconds: float = 300.0
    """Most seconds that one task is expected to take, by the pace of earlier ones."""
    tasks: int = 1
    """Most tasks in one plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast tasks were so far. The initial value is a careful guess."""

    bytes_per_second: float = 20e6
    fragments_per_second: float = 200.0

    def after(self, *, size: float, fragments: float, seconds: float) -> Pace:
        """The pace after a task on so many bytes and fragments, which weighs half of all tasks before it."""
        seconds = max(seconds, 1e-3)
        # What limits a task is either the number of its files or their size.
        if size / self.bytes_per_second > fragments / self.fragments_per_second:
            return replace(self, bytes_per_second=(self.bytes_per_second + size / seconds) / 2)
        return replace(self, fragments_per_second=(self.fragments_per_second + fragments / seconds) / 2)

    def bounds(self, limits: Limits) -> tuple[float, float]:
        """Most bytes and most fragments of one task."""
        return (
            min(limits.task_bytes, limits.task_seconds * self.bytes_per_second),
            min(_FRAGMENTS_IN_A_GROUP_MAX, limits.task_seconds * self.fragments_per_second),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Fragments that one task rewrites together."""

    fragments: tuple[int, ...]
    """Ids, ascending."""
    rows: int
    """Live rows."""
    bytes: int
    why: Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do next. Nothing to do: no groups and no indices."""

    groups: tuple[Group, ...] = ()
    """In the order of their urgency; at most `Limits.tasks`."""
    waiting: int = 0
    """Number of groups beyond `groups` that could be rewritten now."""
    indices: tuple[IndexState, ...] = ()
    """Indices to optimize."""
    too_large: tuple[int, ...] = ()
    """Ids of fragments that should be rewritten and exceed `Limits.task_bytes` or `Limits.task_seconds` alone."""

    @property
    def empty(self) -> bool:
        return not self.groups and not self.indices


def plan(table: TableState, targets: Targets, limits: Limits, pace: Pace | None = None) -> Plan:
    """The plan for this version of the table."""
    bytes_max, fragments_max = (pace or Pace()).bounds(limits)
    wanted = [one for one in table.fragments if _why(one, targets) is not None]
    fitting = [one for one in wanted if one.bytes <= bytes_max]
    groups = [
        group
        for alike in _alike(fitting)
        for group in _grouped(alike, targets, bytes_max, fragments_max, many=len(table.fragments) > targets.fragments)
    ]
    groups.sort(key=lambda one: (one.rows // len(one.fragments), one.fragments))
    return Plan(
        groups=tuple(groups[: limits.tasks]),
        waiting=max(len(groups) - limits.tasks, 0),
        indices=tuple(
            one
            for one in table.indices
            if one.unindexed_rows > targets.unindexed_rows or one.segments > targets.segments
        ),
        too_large=tuple(one.id for one in wanted if one.bytes > bytes_max),
    )


def _why(one: FragmentState, targets: Targets) -> Why | None:
    if one.deleted and one.deleted >= targets.deleted_share * one.rows:
        return Why.DELETED
    if one.live < targets.rows_per_fragment and 2 * one.bytes < targets.bytes_per_fragment:
        return Why.SMALL
    return None


def _alike(fragments: Iterable[FragmentState]) -> Iterator[list[FragmentState]]:
    """The fragments that may be rewritten together."""
    found: dict[frozenset[str], list[FragmentState]] = {}
    for one in fragments:
        found.setdefault(one.covered_by, []).append(one)
    yield from found.values()


def _grouped(
    fragments: list[FragmentState], targets: Targets, bytes_max: float, fragments_max: float, *, many: bool
) -> Iterator[Group]:
    """Groups of fragments that the same segments cover; `many`: the table has too many fragments."""
    tiers: dict[int, list[FragmentState]] = {}
    for one in fragments:
        tiers.setdefault(_tier(one), []).append(one)
    left: list[FragmentState] = []
    for tier in sorted(tiers):
        # What was too little for a group of its own goes with the next larger ones.
        candidates = sorted([*left, *tiers[tier]], key=lambda one: one.id)
        left = []
        for run in _runs(candidates, targets, bytes_max, fragments_max):
            if _is_full(run, targets) or len(run) >= _GROWTH:
                yield _group(run, Why.SMALL)
            else:
                left += run
    left.sort(key=lambda one: one.id)
    if many:
        for run in _runs(left, targets, bytes_max, fragments_max):
            if len(run) > 1:
                yield _group(run, Why.MANY)
            elif _why(run[0], targets) is Why.DELETED:
                yield _group(run, Why.DELETED)
        return
    for one in left:
        if _why(one, targets) is Why.DELETED:
            yield _group([one], Why.DELETED)


def _tier(one: FragmentState) -> int:
    """The size class of a fragment: each has `_GROWTH` times the rows of the one below it."""
    return int(math.log(max(one.live, 1), _GROWTH) + 1e-9)


def _runs(
    fragments: Iterable[FragmentState], targets: Targets, bytes_max: float, fragments_max: float
) -> Iterator[list[FragmentState]]:
    """Divide them, in this order, into groups of at most one new fragment's size, and within the limits of a task."""
    run: list[FragmentState] = []
    rows = size = 0
    for one in fragments:
        full = len(run) > 1 and (rows >= targets.rows_per_fragment or size >= targets.bytes_per_fragment)
        if run and (full or len(run) + 1 > fragments_max or size + one.bytes > bytes_max):
            yield run
            run, rows, size = [], 0, 0
        run.append(one)
        rows, size = rows + one.live, size + one.bytes
    if run:
        yield run


def _is_full(run: list[FragmentState], targets: Targets) -> bool:
    """Whether they fill a fragment of the target's size."""
    return len(run) > 1 and (
        sum(one.live for one in run) >= targets.rows_per_fragment
        or sum(one.bytes for one in run) >= targets.bytes_per_fragment
    )


def _group(run: list[FragmentState], why: Why) -> Group:
    return Group(
        fragments=tuple(one.id for one in run),
        rows=sum(one.live for one in run),
        bytes=sum(one.bytes for one in run),
        why=why,
    )
