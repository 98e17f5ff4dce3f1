"""Records as they arrive: held in offset order until a version settles them.

The intake is the only reader of queue events. It knows whether this member owns the partition, drops what belongs to an
earlier assignment, and wakes whoever waits for a change.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice, takewhile
from operator import attrgetter
from typing import NamedTuple

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from committerd.errors import QueueUnavailable
from committerd.queue.ledger import Refused
from committerd.queue.port import Assigned, Fetched, FetchFailed, Queue, Record, Revoked
from committerd.queue.position import Position
from committerd.queue.records import record_sha256, record_size
from committerd.table.staged_files import LookedAt
from committerd_common.request import Request


@dataclass(slots=True)
class Pending:
    """A delivered record that has no answer yet; decoded when it is first looked at."""

    record: Record
    size: int
    number: int = 0
    """Of its arrival here: what arrived later has a higher one, delivered again or not."""
    retry_of: str | None = None
    """Header `retry-of`, seen before anything is decoded: such a record may go before those that wait."""
    decoded: Request | Refused | None = None
    """None = not looked at."""
    is_claim: bool = False
    """Header `transaction-file`: its bytes lie beside the table, perhaps many of them."""
    looking: anyio.Event | None = None
    """Set when its files were looked at early; None = that was not begun."""
    looked: LookedAt | None = None
    """What was found of its files."""

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def fingerprint(self) -> tuple[str, int]:
        """(sha256, leader epoch), as a position keeps them of its last record."""
        return record_sha256(self.record), self.record.leader_epoch


_offset_of = attrgetter("record.offset")
_epoch_of = attrgetter("leader_epoch")
_COMPARE_ATTEMPTS = 5
_COMPARE_PAUSE_SECONDS = 0.5


class _Last(NamedTuple):
    """The record behind which the next one has to come."""

    offset: int
    leader_epoch: int
    sha256: str
    """Empty = to be made of `record`."""
    record: Record | None = None

    def is_in(self, records: Iterable[Record]) -> bool:
        """Whether this very record is one of these."""
        sha256 = self.sha256 or (record_sha256(self.record) if self.record is not None else "")
        return any(one.offset == self.offset and record_sha256(one) == sha256 for one in records)


class Fingerprints(Mapping[int, tuple[str, int]]):
    """Those of records, by offset; each is made when it is asked for."""

    def __init__(self, records: Iterable[Pending]) -> None:
        self._records = {pending.offset: pending for pending in records}

    def __getitem__(self, offset: int) -> tuple[str, int]:
        return self._records[offset].fingerprint

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


@dataclass(slots=True)
class Room:
    """Delivered records that are settled, whose room is not yet given back to the queue."""

    records: int = 0
    bytes: int = 0


class Intake:
    """What the queue has delivered to this member."""

    def __init__(self, queue: Queue, *, note_time: Callable[[int], None] = lambda timestamp_ms: None) -> None:
        """`note_time` is told when the broker has dated records."""
        self._queue = queue
        self._note_time = note_time
        self._changed = anyio.Event()
        self.generation: int | None = None
        """Of the assignment that this member holds; None while it stands by."""
        self.pending: deque[Pending] = deque()
        self._retries: dict[int, Pending] = {}
        """Those of them that do a refused one again, by offset."""
        self.fetch_failure: str | None = None
        self.next_offset = 0
        """After the last delivered record, for the lag."""
        self.arrived = 0
        """Records that have ever arrived."""
        self._last: _Last | None = None
        self._begun = 0
        """How often all that was delivered was forgotten."""

    async def run(self) -> None:
        """Take events until cancelled."""
        # To compare records with the log may take long, and whoever loses the partition has to know at once. How many
        # wait is bounded by what the queue delivers without an answer.
        send, receive = anyio.create_memory_object_stream[tuple[int, Fetched]](math.inf)
        with send, receive:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._take_in_turn, receive)
                while True:
                    event = await self._queue.next_event()
                    match event:
                        case Assigned(generation=generation):
                            self.generation = generation
                            self.clear()
                        case Revoked(generation=generation):
                            if generation == self.generation:
                                self.generation = None
                                self.clear()
                        case FetchFailed(generation=generation, reason=reason):
                            if generation == self.generation:
                                self.fetch_failure = reason
                        case Fetched(generation=generation):
                            if generation == self.generation:
                                send.send_nowait((self._begun, event))
                                continue
                    self.notify()

    async def _take_in_turn(self, fetched: MemoryObjectReceiveStream[tuple[int, Fetched]]) -> None:
        """Take what was fetched, but for what came before everything was forgotten."""
        async for begun, event in fetched:
            if begun == self._begun:
                await self._take_what_follows(event)
                self.notify()

    def owns(self, generation: int | None) -> bool:
        """Whether the assignment of that number is still this member's."""
        return self.generation == generation

    def clear(self) -> None:
        """Forget what was delivered: the queue is about to deliver from another offset."""
        self.pending.clear()
        self._retries.clear()
        self.fetch_failure = None
        self._last = None
        self._begun += 1

    def begin_behind(self, position: Position) -> None:
        """What comes next has to follow the last record that this position has passed."""
        self.clear()
        if position.last_offset >= 0:
            self._last = _Last(position.last_offset, position.leader_epoch, position.last_sha256)

    def settle(self, position: Position) -> Room:
        """Forget records that the position has passed; returns the room that they took."""
        passed: list[Pending] = []
        while self.pending and self.pending[0].offset < position.next_offset:
            passed.append(self.pending.popleft())
        if position.settled and self.pending:
            ahead = set(position.settled)
            passed += [pending for pending in self.pending if pending.offset in ahead]
            self.pending = deque(pending for pending in self.pending if pending.offset not in ahead)
        return self._left(passed)

    def let_go(self, records: Collection[Pending]) -> Room:
        """Forget these without an answer; returns the room that they took."""
        gone = {pending.offset for pending in records}
        self.pending = deque(pending for pending in self.pending if pending.offset not in gone)
        return self._left(records)

    def behind(self, position: Position) -> int:
        """How many records wait that this position has not passed."""
        ahead = sum(self._waits(offset) for offset in position.settled)
        return len(self.pending) - self._place(position.next_offset) - ahead

    def newest_of(self, count: int, *, behind: Position) -> int:
        """Number of the last that `first` would return; a later one's where some were settled ahead."""
        start, end = self._span(count, behind)
        return self.pending[end - 1].number if start < end else self.arrived

    def first(self, count: int, *, behind: Position) -> list[Pending]:
        """The first records that wait and that this position has not passed, at most so many."""
        some = islice(self.pending, *self._span(count, behind))
        return [pending for pending in some if not behind.passes(pending.offset)][:count]

    def not_looked_at(self, *, most: int, bytes_max: int) -> list[Pending]:
        """The first records whose files nobody has begun to look at, at most so many, and none behind so many bytes.

        Claim checks are left out: what they name is read when it is their turn.
        """
        found: list[Pending] = []
        size = 0
        for pending in self.pending:
            size += pending.size
            if len(found) == most or (size > bytes_max and pending is not self.pending[0]):
                break
            if pending.looking is None and not pending.is_claim:
                found.append(pending)
        return found

    def records(self, offsets: Collection[int]) -> dict[int, Record]:
        """Those of these offsets that wait, by offset. Looks no further than the highest: they are held in order."""
        last = max(offsets, default=-1)
        upto = takewhile(lambda pending: pending.offset <= last, self.pending)
        return {pending.offset: pending.record for pending in upto if pending.offset in offsets}

    def waiting_retries(self) -> list[Pending]:
        """The records that do a refused one again, in the order of their offsets."""
        return list(self._retries.values())

    def retries(self) -> list[str]:
        """The refused uuids that waiting records do again."""
        return [p.retry_of for p in self._retries.values() if p.retry_of is not None]

    def oldest_timestamp_ms(self) -> int | None:
        """Of the records that wait."""
        return self.pending[0].record.timestamp_ms if self.pending else None

    def notify(self) -> None:
        """Wake whoever waits in `changed`."""
        self._changed.set()
        self._changed = anyio.Event()

    def moment(self) -> anyio.Event:
        """For `changed`: what comes from now on counts, however late that is waited for."""
        return self._changed

    async def changed(self, *, since: anyio.Event | None = None, timeout: float | None = None) -> bool:
        """Wait for the next event or `notify` (after the moment `since`); False when `timeout` seconds passed first."""
        event = since or self._changed
        with anyio.move_on_after(timeout):
            await event.wait()
            return True
        return False

    def _place(self, offset: int) -> int:
        """How many records wait before this offset: they are held in order."""
        return bisect_left(self.pending, offset, key=_offset_of)

    def _span(self, count: int, behind: Position) -> tuple[int, int]:
        """The places, half-open, among which are the first so many that the position has not passed."""
        start = self._place(behind.next_offset)
        return start, min(start + count + len(behind.settled), len(self.pending))

    def _waits(self, offset: int) -> bool:
        place = self._place(offset)
        return place < len(self.pending) and self.pending[place].offset == offset

    def _left(self, records: Collection[Pending]) -> Room:
        room = Room()
        if records:
            self.notify()  # others are among the first now
        for pending in records:
            room.records += 1
            room.bytes += pending.size
            if pending.retry_of is not None:
                self._retries.pop(pending.offset, None)
        return room

    async def _take_what_follows(self, fetched: Fetched) -> None:
        """Take these records, if the log before them is still the one that was read.

        A log that lost its end and was written anew has other records at the same offsets: those below the next one
        would be passed over. Its leader has another epoch then, or was out of touch. So the record before is compared.
        """
        unbroken, records, begun = fetched.unbroken, fetched.records, self._begun
        parts = [list(records)]
        if records and records[0].leader_epoch != records[-1].leader_epoch:
            parts = [list(part) for _, part in groupby(records, key=_epoch_of)]
        for part in parts:
            last = self._last
            if last is not None and not (unbroken and part and part[0].leader_epoch == last.leader_epoch):
                problem = await self._rewritten(last)
                if self._begun != begun:  # begun anew meanwhile
                    return
                if problem:
                    self.fetch_failure = problem
                    return
            unbroken = True
            self._take(part)

    async def _rewritten(self, last: _Last) -> str:
        """Why what comes does not follow this record; empty when it does."""
        for _ in range(_COMPARE_ATTEMPTS):
            try:
                log_start, _ = await self._queue.bounds()
                if last.offset < log_start:  # deleted since: nothing is left to compare
                    return ""
                if last.is_in(await self._queue.read(last.offset, last.offset + 1)):
                    return ""
            except QueueUnavailable:
                await anyio.sleep(_COMPARE_PAUSE_SECONDS)
                continue
            return f"the log was written anew: the record at offset {last.offset} is not the one that was read before"
        return f"the record at offset {last.offset} can't be compared with the one that was read before"

    def _take(self, records: list[Record]) -> None:
        for record in records:
            self.arrived += 1
            pending = Pending(record, record_size(record), self.arrived)
            for name, value in record.headers:
                if name == "transaction-file":
                    pending.is_claim = True
                elif name == "retry-of":
                    pending.retry_of = value.decode("ascii", "replace")
                    self._retries[record.offset] = pending
            self.pending.append(pending)
            self.next_offset = record.offset + 1
        if records:
            self._note_time(records[-1].timestamp_ms)
            self._last = _Last(records[-1].offset, records[-1].leader_epoch, "", records[-1])
