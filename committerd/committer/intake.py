"""Records as they arrive: held in offset order until a version settles them.

The intake is the only reader of queue events. It knows whether this member owns the partition, drops what belongs to an
earlier assignment, and wakes whoever waits for a change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import attrgetter

import anyio

from committerd.format.request import Request, record_sha256, record_size
from committerd.ports import Assigned, Fetched, FetchFailed, Queue, Record, Revoked
from committerd.rules.ledger import Refused
from committerd.rules.position import Position


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

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def fingerprint(self) -> tuple[str, int]:
        """(sha256, leader epoch), as a position keeps them of its last record."""
        return record_sha256(self.record), self.record.leader_epoch


_offset_of = attrgetter("record.offset")


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

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
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

    async def run(self) -> None:
        """Take events until cancelled."""
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
                case Fetched(generation=generation, records=records):
                    if generation == self.generation:
                        self._take(list(records))
            self.notify()

    def owns(self, generation: int | None) -> bool:
        """Whether the assignment of that number is still this member's."""
        return self.generation == generation

    def clear(self) -> None:
        """Forget what was delivered: the queue is about to deliver from another offset."""
        self.pending.clear()
        self._retries.clear()
        self.fetch_failure = None

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

    def _left(self, records: Iterable[Pending]) -> Room:
        room = Room()
        for pending in records:
            room.records += 1
            room.bytes += pending.size
            if pending.retry_of is not None:
                self._retries.pop(pending.offset, None)
        return room

    def _take(self, records: list[Record]) -> None:
        for record in records:
            self.arrived += 1
            pending = Pending(record, record_size(record), self.arrived)
            for name, value in record.headers:
                if name == "retry-of":
                    pending.retry_of = value.decode("ascii", "replace")
                    self._retries[record.offset] = pending
            self.pending.append(pending)
            self.next_offset = record.offset + 1
