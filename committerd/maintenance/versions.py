"""Decides which versions may be deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class KeepReason(StrEnum):
    """Why a version stays."""

    COUNT = "count"
    """It is among the newest versions, of which a number is kept."""
    AGE = "age"
    """It is too young, or was the latest version until a short time ago."""
    TAG = "tag"
    BRANCH = "branch"
    """A branch began at it, and reads its files."""
    UNKNOWN = "unknown"
    """A tag or branch can't be read, and may name it."""
    WAITING = "waiting"
    """A record without an outcome was read at this version or below it."""
    UNPUBLISHED = "unpublished"
    """It holds outcomes that a committer may have to publish again."""
    KEYS = "keys"
    """It is the youngest version that carries one of committerd's keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """The facts about one version that decide whether it stays."""

    version: int
    time_ms: int
    """When it was written: Unix milliseconds, the later of its own time and its object's time."""
    from_queue: bool = False
    keys: frozenset[str] = frozenset()
    """The keys of committerd in its `table_metadata`."""
    last_offset: int = -1
    """The highest offset that it settles; -1 = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What others need of the versions."""

    tagged: frozenset[int] = frozenset()
    branched: frozenset[int] = frozenset()
    """The versions at which branches began."""
    all_known: bool = True
    """False: a tag or branch can't be read, and may name any version."""
    read_at: int | None = None
    """The lowest read version of all records that wait for an outcome; None = none waits."""
    unpublished: int | None = None
    """The first offset whose outcome a committer may have to publish again; None = no queue writes to the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long versions are kept."""

    keep_ms: int
    keep_versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which versions go and which stay."""

    removable: tuple[int, ...]
    """Ascending."""
    kept: Mapping[int, KeepReason] = field(default_factory=dict)


def choose(versions: Sequence[VersionFacts], needs: Needs, retention: Retention, *, now_ms: int) -> Choice:
    """Which of these versions, all that the table has, may be deleted."""
    newest_first = sorted(versions, key=lambda one: one.version, reverse=True)
    carriers = _carriers(newest_first)
    kept: dict[int, KeepReason] = {}
    latest_until_ms = now_ms
    for place, one in enumerate(newest_first):
        last_ms = max(one.time_ms, latest_until_ms)
        why = _why(one, needs, retention, is_young=last_ms > now_ms - retention.keep_ms, place=place)
        latest_until_ms = one.time_ms
        if why is None and one.version in carriers:
            why = KeepReason.KEYS
        if why is not None:
            kept[one.version] = why
    return Choice(removable=tuple(sorted({one.version for one in versions} - set(kept))), kept=kept)


def _why(one: VersionFacts, needs: Needs, retention: Retention, *, is_young: bool, place: int) -> KeepReason | None:
    if place < retention.keep_versions:
        return KeepReason.COUNT
    if is_young:
        return KeepReason.AGE
    if one.version in needs.tagged:
        return KeepReason.TAG
    if one.version in needs.branched:
        return KeepReason.BRANCH
    if not needs.all_known:
        return KeepReason.UNKNOWN
    if needs.read_at is not None and one.version >= needs.read_at:
        return KeepReason.WAITING
    if needs.unpublished is not None and one.last_offset >= needs.unpublished:
        return KeepReason.UNPUBLISHED
    return None


def _carriers(newest_first: Iterable[VersionFacts]) -> set[int]:
    """The youngest version that carries each key, down to the queue's youngest version, which carries all of them.

    A key that a version of the queue lacks was dropped by a committer, on purpose.
    """
    seen: set[str] = set()
    found: set[int] = set()
    for one in newest_first:
        if not one.keys <= seen:
            seen |= one.keys
            found.add(one.version)
        if one.from_queue:
            found.add(one.version)
            break
    return found
