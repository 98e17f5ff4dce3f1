"""What a table records of its queue: the position, and the marks of replayable applications.

Both live in `table_metadata` of every version that is committed from the queue, because the table is the only truth: a
record has an answer exactly when the table's position has passed it. Neither ever goes down by itself; a foreign
Restore or a replaced `table_metadata` may show an older one, so the highest that any readable version carries counts.

`era` orders positions that an operator set by hand (`committerd position adopt` and `rewind`): a position of a higher
era wins however low its offset is, and what was acknowledged or answered in a lower era proves nothing about it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from committerd.errors import CorruptTable, RefusedToRun
from committerd.queue.port import TopicIdentity

FORMAT_KEY = "committerd.format"
POSITION_KEY = "committerd.position"
APP_KEY_PREFIX = "committerd.app."
FORMAT = 1
"""Of our keys; a table with a higher one was written by a newer committerd, and is refused."""

MARK_UNUSED_MS_MAX = 30 * 24 * 3600 * 1000
"""A mark that no commit has used for 30 days goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a table has answered its staged topic.

    Passed are all offsets below `next_offset` and those in `settled`, which are ascending and above it (a re-execution
    or a create that went ahead of waiting records).
    """

    cluster_id: str
    topic: str
    topic_id: str
    next_offset: int
    settled: tuple[int, ...] = ()
    era: int = 0
    last_offset: int = -1
    """Offset of the last record below `next_offset`; -1 = none yet."""
    last_sha256: str = ""
    """Of that record (`record_sha256`), to notice a log that was rewritten."""
    leader_epoch: int = -1

    @property
    def identity(self) -> TopicIdentity:
        return TopicIdentity(cluster_id=self.cluster_id, topic=self.topic, topic_id=self.topic_id)

    def passes(self, offset: int) -> bool:
        """Whether the record at this offset has an answer."""
        return offset < self.next_offset or offset in self.settled

    def __contains__(self, offset: object) -> bool:
        """The same, as a container of offsets."""
        return isinstance(offset, int) and self.passes(offset)

    def union(self, other: Position) -> Position:
        """All that either has passed; both are of one era and topic."""
        high, low = (self, other) if self.next_offset >= other.next_offset else (other, self)
        ahead = {o for o in (*high.settled, *low.settled) if o >= high.next_offset}
        return replace(high, settled=tuple(sorted(ahead)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AppMark:
    """The last unit of work of one application (header `app-id`) that is in the table."""

    run: str
    """Which run counts the versions (header `app-run`); another one is refused."""
    version: int
    """-1 after `committerd app release`: the next run starts anew."""
    uuid: str
    table_version: int
    used_ms: int
    """When that unit was staged, Unix time by Kafka's clock."""
    era: int = 0
    offset: int = -1
    """Era and offset of the record that brought it: the same uuid may be staged again and is a duplicate then."""
    life: int = 0
    """Grows with each release, so that a foreign Restore can't bring the mark of a released run back."""

    @property
    def released(self) -> bool:
        return self.version < 0

    def names(self, uuid: str, *, era: int, offset: int) -> bool:
        """Whether it was this very record that was committed."""
        return (self.uuid, self.era, self.offset) == (uuid, era, offset)


Marks = Mapping[str, AppMark]


def start_of(identity: TopicIdentity, offset: int) -> Position:
    """The position of a table that has not answered anything of this topic, whose log starts at `offset`."""
    return Position(
        cluster_id=identity.cluster_id,
        topic=identity.topic,
        topic_id=identity.topic_id,
        next_offset=offset,
    )


def advance(
    position: Position,
    pending: Sequence[int],
    settled: Iterable[int],
    *,
    fingerprints: Mapping[int, tuple[str, int]],
) -> Position:
    """The position after `settled` offsets got their answers.

    `pending` are the delivered offsets at or above `position.next_offset`, ascending and without a hole that Kafka did
    not make itself; `fingerprints` has (sha256, leader epoch) of each of them.
    """
    passed = set(position.settled) | set(settled)
    next_offset, last = position.next_offset, position.last_offset
    for offset in pending:
        if offset not in passed:
            break
        next_offset, last = offset + 1, offset
    # Records that were settled ahead do not wait any more: they are not among `pending`.
    while next_offset in passed:
        next_offset += 1
    ahead = tuple(sorted(o for o in passed if o >= next_offset))
    if last == position.last_offset:
        return replace(position, next_offset=next_offset, settled=ahead)
    sha256, epoch = fingerprints[last]
    return replace(
        position,
        next_offset=next_offset,
        settled=ahead,
        last_offset=last,
        last_sha256=sha256,
        leader_epoch=epoch,
    )


def highest(positions: Iterable[Position]) -> Position | None:
    """The highest of what several versions carry: the last era, and of that all that any has passed.

    Positions of one era that name different topics contradict each other: the one of the first (newest) version wins
    the name, and `queue.start` compares that with the topic.
    """
    best: Position | None = None
    for position in positions:
        if best is None or position.era > best.era:
            best = position
        elif position.era == best.era and position.identity == best.identity:
            best = best.union(position)
    return best


def higher_mark(one: AppMark | None, other: AppMark) -> AppMark:
    """The mark of two that is further on."""
    if one is None or (other.life, other.version) > (one.life, one.version):
        return other
    return one


def merge_marks(into: dict[str, AppMark], marks: Marks) -> None:
    """Raise each mark in `into` to what `marks` has."""
    for app_id, mark in marks.items():
        into[app_id] = higher_mark(into.get(app_id), mark)


def kept_marks(marks: Marks, *, most: int) -> dict[str, AppMark]:
    """The marks that the next version carries: used in the last 30 days, and of those the `most` newest.

    The days are counted to the last use of any mark, so that no clock can drop one.
    """
    now_ms = max((mark.used_ms for mark in marks.values()), default=0)
    alive = [i for i in marks.items() if now_ms - i[1].used_ms <= MARK_UNUSED_MS_MAX]
    alive.sort(key=lambda item: (-item[1].used_ms, item[0]))
    return dict(sorted(alive[:most]))


def dropped_marks(marks: Marks, kept: Marks) -> tuple[int, int]:
    """How many of the marks are not kept: unused for 30 days, and beyond the most that a table carries."""
    now_ms = max((mark.used_ms for mark in marks.values()), default=0)
    unused = sum(now_ms - mark.used_ms > MARK_UNUSED_MS_MAX for mark in marks.values())
    return unused, len(marks) - len(kept) - unused


def encode_metadata(position: Position, marks: Marks) -> dict[str, str]:
    """The `committerd.` entries of `table_metadata`."""
    entries = {FORMAT_KEY: str(FORMAT), POSITION_KEY: _encode_position(position)}
    for app_id, mark in marks.items():
        entries[APP_KEY_PREFIX + app_id] = _dump(
            {
                "era": mark.era,
                "life": mark.life,
                "offset": mark.offset,
                "run": mark.run,
                "table_version": mark.table_version,
                "used_ms": mark.used_ms,
                "uuid": mark.uuid,
                "version": mark.version,
            }
        )
    return entries


def decode_position(metadata: Mapping[str, str]) -> Position | None:
    """The position that a version carries, None when it carries none.

    Raises `RefusedToRun` for keys of a newer format, `CorruptTable` for ones that we can't read.
    """
    text = metadata.get(FORMAT_KEY)
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise _unreadable(FORMAT_KEY, text)
    if text is not None and int(text) > FORMAT:
        raise RefusedToRun(
            f"the table's queue keys have format {text!r}, this committerd knows format {FORMAT}: "
            "run the newer committerd that wrote them",
            code="format_newer",
        )
    if POSITION_KEY not in metadata:
        return None
    raw = _load(POSITION_KEY, metadata[POSITION_KEY])
    try:
        return Position(
            cluster_id=_text(raw["cluster_id"]),
            topic=_text(raw["topic"]),
            topic_id=_text(raw["topic_id"]),
            next_offset=_counted(raw["next"]),
            settled=tuple(_counted(o) for o in raw["settled"]),
            era=_whole(raw["era"]),
            last_offset=_whole(raw["last"]),
            last_sha256=_text(raw["sha256"]),
            leader_epoch=_whole(raw["leader_epoch"]),
        )
    except (KeyError, TypeError) as error:
        raise _unreadable(POSITION_KEY, metadata[POSITION_KEY]) from error


def decode_marks(metadata: Mapping[str, str]) -> dict[str, AppMark]:
    """The application marks that a version carries. Raises `CorruptTable` for one that we can't read."""
    marks = {}
    for key, value in metadata.items():
        if not key.startswith(APP_KEY_PREFIX):
            continue
        raw = _load(key, value)
        try:
            marks[key.removeprefix(APP_KEY_PREFIX)] = AppMark(
                run=_text(raw["run"]),
                version=_whole(raw["version"]),
                uuid=_text(raw["uuid"]),
                table_version=_whole(raw["table_version"]),
                used_ms=_whole(raw["used_ms"]),
                era=_whole(raw["era"]),
                offset=_whole(raw["offset"]),
                life=_whole(raw["life"]),
            )
        except (KeyError, TypeError) as error:
            raise _unreadable(key, value) from error
    return marks


def _encode_position(position: Position) -> str:
    return _dump(
        {
            "cluster_id": position.cluster_id,
            "era": position.era,
            "last": position.last_offset,
            "leader_epoch": position.leader_epoch,
            "next": position.next_offset,
            "settled": list(position.settled),
            "sha256": position.last_sha256,
            "topic": position.topic,
            "topic_id": position.topic_id,
        }
    )


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _load(key: str, text: str) -> dict[str, Any]:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(key, text) from error
    if not isinstance(raw, dict):
        raise _unreadable(key, text)
    return raw


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(value)
    return value


def _counted(value: object) -> int:
    found = _whole(value)
    if not 0 <= found < 1 << 63:
        raise TypeError(value)
    return found


def _unreadable(key: str, text: str) -> CorruptTable:
    return CorruptTable(
        f"table_metadata {key!r} can't be read: {text[:200]!r}. It was changed by hand or by another program; "
        "`committerd position show` prints what each version carries",
        code="position_unreadable",
    )
