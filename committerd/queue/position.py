"""A table's position in its staged topic, the marks of replayable applications, and the pause of the queue.

All are stored in `table_metadata` of every version that is committed from the queue, because the table is the only
truth: a record has an outcome exactly when the table's position has passed it. The committer never lowers either. A
foreign Restore or a replaced `table_metadata` may show an older state, so the highest position and marks that any
readable version carries count.

`era` orders positions that an operator set by hand (`committerd position adopt` and `rewind`). A position of a higher
era wins, however low its offset is. Acknowledgements and outcomes of a lower era prove nothing about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from committerd.errors import CorruptTable, RefusedToRun
from committerd.queue import offsets as offset_sets
from committerd.queue.offsets import NO_OFFSETS, Offsets
from committerd.queue.port import Record, TopicIdentity, record_sha256

_Decoded = TypeVar("_Decoded")

FORMAT_KEY = "committerd.format"
POSITION_KEY = "committerd.position"
APP_KEY_PREFIX = "committerd.app."
PAUSED_KEY = "committerd.paused"
FORMAT = 1
"""Version of the format of committerd's keys that every release knows."""
FORMAT_OF_RANGES = 2
"""Version of the format of keys whose position names ranges of offsets. A version of the table has it only while its
position needs ranges. A table with a higher format is refused: a newer committerd wrote it.
"""

LISTED_MAX = 256
"""The largest number of offsets settled ahead that a position lists one by one, as in format 1."""
RANGES_MAX = 4096
"""The largest number of ranges of offsets settled ahead."""
RANGES_BYTES_MAX = 12 * 1024
"""The most bytes of their encoding: 16 KiB in base64."""
_RANGE_BYTES_MAX = 5
"""The bytes that one more offset may add to the encoding, if it is less than 2 ** 34 behind the one before it."""
MARK_UNUSED_MS_MAX = 30 * 24 * 3600 * 1000
"""A mark that no commit has used for this time (30 days, in milliseconds) is dropped."""
MARK_BYTES = 1024
"""The bytes that a mark may take on average, as it is encoded. Every version carries all marks."""
_MARK_BYTES_MIN = 280
"""The bytes of a mark without its app-id and run: key, uuid, and numbers of up to 20 digits."""


class LostHistory(NamedTuple):
    """The table was put back to an older state, and an operator has set the position since.

    Records that were staged before may have been read at versions that the table has lost. Other versions may have
    their numbers now.
    """

    kept: int
    """The table has kept all versions up to this one."""
    latest: int
    """The table's latest version before the position was set: no such record was read at a later one of this table."""
    start: int
    end: int
    """The half-open range of the offsets of these records."""

    def concerns(self, offset: int, read_version: int) -> bool:
        """Whether the record at this offset may have been read at a version that the table has lost."""
        return self.start <= offset < self.end and read_version > self.kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a table has settled its staged topic.

    The position passes all offsets below `next_offset`, and those in `settled`, which are not below it. These were
    settled ahead: a re-execution, a create or a record of another producer went before waiting records.
    """

    cluster_id: str
    topic: str
    topic_id: str
    next_offset: int
    settled: Offsets = NO_OFFSETS
    era: int = 0
    last_offset: int = -1
    """The highest offset that is known to have had a record and that the position passes, also ahead of `next_offset`;
    -1 = none is known yet. A log only loses its end, so this record proves all that the position passes.
    """
    last_sha256: str = ""
    """Hash of that record (`record_sha256`); shows whether the log was rewritten."""
    leader_epoch: int = -1
    lost: LostHistory | None = None
    """What the table has lost, if it was put back to an older state; of the last time."""
    branch: str = ""
    """The branch whose queue this is about; empty = the main branch. It is that of the version which carries it."""

    @property
    def identity(self) -> TopicIdentity:
        return TopicIdentity(cluster_id=self.cluster_id, topic=self.topic, topic_id=self.topic_id)

    @property
    def room(self) -> int:
        """How many more offsets are sure to fit into `settled`, wherever they are."""
        ranges, size = self.settled.range_count, offset_sets.encoded_size(self.settled, above=self.next_offset)
        return max(min(RANGES_MAX - ranges, (RANGES_BYTES_MAX - size) // _RANGE_BYTES_MAX), 0)

    def passes(self, offset: int) -> bool:
        """Whether the record at this offset has an outcome."""
        return offset < self.next_offset or offset in self.settled

    def lacks(self, other: Position) -> int | None:
        """The lowest offset that the other position passes and this one does not; None if there is none."""
        return self._passed().first_missing(other._passed())

    def union(self, other: Position) -> Position:
        """The position that passes what either of the two passes. Both are of one era and topic."""
        high, low = (self, other) if self.next_offset >= other.next_offset else (other, self)
        union = replace(high, settled=high.settled.union(low.settled.from_(high.next_offset)))
        return union.proven_by(low) if low.last_offset > high.last_offset else union

    def proven_by(self, other: Position) -> Position:
        """This position with the last record of another one."""
        return replace(
            self, last_offset=other.last_offset, last_sha256=other.last_sha256, leader_epoch=other.leader_epoch
        )

    def shown(self) -> dict[str, Any]:
        """The position as JSON for people and programs; `settled` has the half-open ranges."""
        return {**asdict(self), "settled": [list(one) for one in self.settled.ranges()]}

    def _passed(self) -> Offsets:
        below = Offsets((0, self.next_offset)) if self.next_offset else NO_OFFSETS
        return below.union(self.settled)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppMark:
    """The last unit of work of one application (header `app-id`) that is in the table."""

    run: str
    """The run that counts the versions (header `app-run`); records of another run are refused."""
    version: int
    """The unit's number (header `app-version`); -1 after `committerd app release`, when the next run starts anew."""
    uuid: str
    table_version: int
    """The table version that holds the unit's transaction."""
    used_ms: int
    """When the unit was staged: Unix milliseconds by Kafka's clock."""
    era: int = 0
    offset: int = -1
    """Era and offset of the unit's record. If the same uuid is staged again, that other record is a duplicate."""
    life: int = 0
    """Number of releases so far. It keeps a foreign Restore from bringing back the mark of a released run."""

    @property
    def released(self) -> bool:
        return self.version < 0

    def names(self, uuid: str, *, era: int, offset: int) -> bool:
        """Whether the mark's unit came from the record with this uuid, era and offset."""
        return (self.uuid, self.era, self.offset) == (uuid, era, offset)


Marks = Mapping[str, AppMark]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """An operator has paused the queue: committers settle nothing until another version of the queue lacks the key.

    Which version decides: `pause_of`.
    """

    reason: str
    since_ms: int
    """When the operator paused it: Unix milliseconds by the clock of the operator's machine."""
    who: str = ""
    """The operator, as given; empty if not given."""

    def __str__(self) -> str:
        """The pause in words."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"paused since {since.removesuffix('+00:00')}Z{f' by {self.who}' if self.who else ''}: {self.reason}"


def start_of(identity: TopicIdentity, offset: int) -> Position:
    """The position of a table that has settled nothing of this topic, whose log starts at `offset`."""
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
    last: Record | None,
) -> Position:
    """The position once the offsets in `settled` have outcomes.

    `pending` are the delivered offsets at or above `position.next_offset`, in ascending order; an offset may be missing
    only if Kafka has no record there. `last` is the record with the highest offset in `settled`; None if that is empty.
    """
    passed = position.settled.union(Offsets.of(settled))
    next_offset = position.next_offset
    for offset in pending:
        if offset not in passed:
            break
        next_offset = offset + 1
    # Records that were settled ahead no longer wait, so `pending` does not have them.
    next_offset = passed.first_outside(next_offset)
    advanced = replace(position, next_offset=next_offset, settled=passed.from_(next_offset))
    if last is None or last.offset <= position.last_offset:
        return advanced
    return replace(advanced, last_offset=last.offset, last_sha256=record_sha256(last), leader_epoch=last.leader_epoch)


def highest(positions: Iterable[Position]) -> Position | None:
    """The highest of the positions that several versions carry, newest version first; None if there is none.

    It is of the highest era, and passes what any position of that era passes. Positions of one era that name different
    topics contradict each other: the newest version decides, and `queue.start` compares its topic with the real one.
    """
    best: Position | None = None
    for position in positions:
        if best is None or position.era > best.era:
            best = position
        elif position != best and position.era == best.era and position.identity == best.identity:
            best = best.union(position)
    return best


def merge_marks(into: dict[str, AppMark], marks: Marks) -> None:
    """Raise each mark in `into` to the one in `marks`, if that is later. Changes `into`.

    The later mark has more releases (`life`), or as many and the higher version.
    """
    for app_id, mark in marks.items():
        known = into.get(app_id)
        if known is None or (mark.life, mark.version) > (known.life, known.version):
            into[app_id] = mark


def kept_marks(marks: Marks, *, now_ms: int = 0) -> dict[str, AppMark]:
    """The marks that the next version carries: those used in the last 30 days. No other mark is ever dropped.

    The 30 days end at the last use of any mark, or at `now_ms` (Unix milliseconds) if that is later. Without `now_ms` a
    wrong clock drops no mark.
    """
    now_ms = max([now_ms, *(mark.used_ms for mark in marks.values())])
    return {app_id: mark for app_id, mark in sorted(marks.items()) if now_ms - mark.used_ms <= MARK_UNUSED_MS_MAX}


@dataclass(slots=True, kw_only=True)
class MarkRoom:
    """The room that a table has for the marks of more applications.

    A mark is a promise to its application that none of its units is committed twice, so it is never dropped for the
    mark of another one. There is no room for the newcomer then.
    """

    most: int
    """Maximum number of marks. A mark may take `MARK_BYTES` on average."""
    count: int = 0
    """Marks that are in use: released ones don't count."""
    bytes: int = 0
    """An upper estimate of their encoded size."""

    @classmethod
    def left_by(cls, marks: Marks, *, most: int, now_ms: int = 0) -> MarkRoom:
        """The room that these marks leave, without those that age has ended at `now_ms` (see `kept_marks`)."""
        room = cls(most=most)
        for app_id, mark in kept_marks(marks, now_ms=now_ms).items():
            if not mark.released:
                room.add(app_id, mark.run)
        return room

    def takes(self, app_id: str, run: str) -> bool:
        """Whether there is room for the mark of one more application."""
        return self.count < self.most and self.bytes + _mark_bytes(app_id, run) <= self.most * MARK_BYTES

    def add(self, app_id: str, run: str) -> None:
        """Count the mark of one more application."""
        self.count += 1
        self.bytes += _mark_bytes(app_id, run)

    @property
    def used(self) -> float:
        """The share of the room that is taken, 0 to 1; more if the operator has reduced the room since."""
        return max(self.count / self.most, self.bytes / (self.most * MARK_BYTES))


def is_new_to(marks: Marks, app_id: str) -> bool:
    """Whether this application has no mark yet, or one that was released."""
    mark = marks.get(app_id)
    return mark is None or mark.released


def _mark_bytes(app_id: str, run: str) -> int:
    """An upper estimate of the bytes of a mark in `table_metadata`, where JSON escapes what is not ASCII."""
    escaped = 2 if run.isascii() and run.isprintable() else 12
    return _MARK_BYTES_MIN + len(app_id) + escaped * len(run)


class SaysOfPause(NamedTuple):
    """What one version says of the pause."""

    ours: bool
    """Whether it is a version of the queue."""
    has_keys: bool
    """Whether it carries a position: other writers copy the keys that they find, or drop them."""
    pause: Pause | None


def pause_of(newest_first: Iterable[SaysOfPause | None]) -> Pause | None:
    """Return the pause of the queue, given what its versions say, from the latest down; None = one that can't be read.

    The newest version of the queue decides. So a version of another writer, such as a Restore, neither ends a pause nor
    begins one again. The newest version that has the keys decides where no version of the queue is left, or where one
    between the two is unreadable: it may be of the queue, and the keys copied from it.
    """
    newest, gap = None, False
    for one in newest_first:
        if one is None:
            gap = newest is not None
            continue
        if newest is None and (one.has_keys or one.ours):
            newest = one
        if one.ours:
            return (newest if gap and newest is not None else one).pause
    return None if newest is None else newest.pause


def encode_metadata(position: Position, marks: Marks, pause: Pause | None = None) -> dict[str, str]:
    """The `committerd.` entries of `table_metadata`."""
    raw = {key: getattr(position, field) for key, (field, _) in _POSITION_FIELDS.items()}
    listed = len(position.settled) <= LISTED_MAX
    raw["settled"] = (
        list(position.settled) if listed else offset_sets.encode(position.settled, above=position.next_offset)
    )
    if position.lost is not None:
        raw["lost"] = position.lost
    if position.branch:
        raw["branch"] = position.branch
    entries = {FORMAT_KEY: str(FORMAT if listed else FORMAT_OF_RANGES), POSITION_KEY: _dump(raw)}
    for app_id, mark in marks.items():
        entries[APP_KEY_PREFIX + app_id] = _dump({name: getattr(mark, name) for name in _MARK_FIELDS})
    if pause is not None:
        entries[PAUSED_KEY] = _dump({"reason": pause.reason, "since_ms": pause.since_ms, "who": pause.who})
    return entries


def decode_position(metadata: Mapping[str, str], *, branch: str = "") -> Position | None:
    """The position that a version carries; None if it carries none of its own.

    `branch`: that of the version. A branch begins with the metadata of the version at which it began, and so with the
    position of another queue; it counts as none, because the branch's own queue has settled nothing yet.

    Raises `RefusedToRun` for keys of a newer format, `CorruptTable` for keys that can't be read.
    """
    text = metadata.get(FORMAT_KEY)
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise _unreadable(FORMAT_KEY, text)
    if text is not None and int(text) > FORMAT_OF_RANGES:
        raise RefusedToRun(
            f"the table's queue keys have format {text!r}, but this committerd knows none above {FORMAT_OF_RANGES}: "
            "run the newer committerd that wrote them",
            code="format_newer",
        )
    if POSITION_KEY not in metadata:
        return None
    position = _position(metadata[POSITION_KEY])
    return None if branch and position.branch != branch else position


@lru_cache(maxsize=1)
def _position(text: str) -> Position:
    """Decode a position. Cached, because other writers copy it from version to version."""
    return _decoded(
        POSITION_KEY,
        text,
        lambda raw: Position(
            **{field: decode(raw[key]) for key, (field, decode) in _POSITION_FIELDS.items()},
            settled=_settled(raw["settled"], above=_counted(raw["next"])),
            lost=LostHistory(*map(_counted, raw["lost"])) if "lost" in raw else None,
            branch=_text(raw.get("branch", "")),
        ),
    )


def decode_marks(metadata: Mapping[str, str], *, branch: str = "") -> dict[str, AppMark]:
    """The application marks that a version carries, by app-id.

    `branch`: that of the version. The units that were committed before a branch began are in its rows, so their marks
    count in it. Their offsets don't, because they are those of another queue. Raises `CorruptTable` for a mark or a
    position that can't be read, and `RefusedToRun` as `decode_position`.
    """
    marks = {
        key.removeprefix(APP_KEY_PREFIX): _decoded(
            key, text, lambda raw: AppMark(**{name: decode(raw[name]) for name, decode in _MARK_FIELDS.items()})
        )
        for key, text in metadata.items()
        if key.startswith(APP_KEY_PREFIX)
    }
    if branch and POSITION_KEY in metadata and decode_position(metadata, branch=branch) is None:
        return {app_id: replace(mark, offset=-1) for app_id, mark in marks.items()}
    return marks


def decode_pause(metadata: Mapping[str, str], *, branch: str = "") -> Pause | None:
    """The pause that a version carries; None if the queue is not paused.

    `branch`: that of the version. A pause that was in place where a branch began is that of another queue. Raises
    `CorruptTable` for a pause or a position that can't be read, and `RefusedToRun` as `decode_position`.
    """
    if PAUSED_KEY not in metadata or (branch and decode_position(metadata, branch=branch) is None):
        return None
    return _decoded(
        PAUSED_KEY,
        metadata[PAUSED_KEY],
        lambda raw: Pause(reason=_text(raw["reason"]), since_ms=_time(raw["since_ms"]), who=_text(raw["who"])),
    )


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _decoded(key: str, text: str, of: Callable[[Any], _Decoded]) -> _Decoded:
    """What `of` makes of the JSON. Raises `CorruptTable` if it is no object with the right fields."""
    try:
        return of(json.loads(text))
    except (KeyError, TypeError, ValueError, OverflowError, OSError, RecursionError) as error:
        raise _unreadable(key, text) from error


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


def _time(value: object) -> int:
    """Unix milliseconds of a year that the calendar has."""
    found = _counted(value)
    datetime.fromtimestamp(found / 1000, UTC)
    return found


def _settled(value: object, *, above: int) -> Offsets:
    """Offsets one by one, or the ranges of format 2."""
    if isinstance(value, str):
        return offset_sets.decode(value, above=above)
    if not isinstance(value, list):
        raise TypeError(value)
    return Offsets.of(map(_counted, value))


_POSITION_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "cluster_id": ("cluster_id", _text),
    "era": ("era", _whole),
    "last": ("last_offset", _whole),
    "leader_epoch": ("leader_epoch", _whole),
    "next": ("next_offset", _counted),
    "sha256": ("last_sha256", _text),
    "topic": ("topic", _text),
    "topic_id": ("topic_id", _text),
}
"""By key of the JSON: the field of `Position`, and how its value is decoded."""
_MARK_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    field.name: _text if field.type == "str" else _whole for field in fields(AppMark)
}
"""By key of the JSON, which is the field of `AppMark`: how its value is decoded."""


def _unreadable(key: str, text: str) -> CorruptTable:
    return CorruptTable(
        f"table_metadata {key!r} can't be read: {text[:200]!r}. It was changed by hand or by another program; "
        "`committerd position show` prints what each version carries",
        code="position_unreadable",
    )
