"""The intake: holds delivered records in offset order until a version settles them.

The intake is the only reader of queue events. It tracks whether this member owns the partition, drops records of
earlier assignments, and wakes tasks that wait for a change.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, takewhile
from operator import attrgetter
from typing import NamedTuple

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from committerd.committer.head import StartAgain
from committerd.errors import QueueUnavailable
from committerd.queue.port import Assigned, Fetched, FetchFailed, Queue, Record, Revoked, record_sha256, record_size
from committerd.queue.position import Position
from committerd.queue.reach import Candidate, Reach, lines_of
from committerd.queue.reservations import Reservations
from committerd.queue.turns import Turns
from committerd.stretches import GiveWay, to_all
from committerd_common.request import who_asked


@dataclass(frozen=True, slots=True)
class Pending:
    """A delivered record that has no outcome yet."""

    record: Record
    size: int
    """Memory of the record in bytes, as `record_size` computes it."""
    number: int = 0
    """Sequence number of its arrival here: a record that arrived later has a higher one, even if it is redelivered."""
    retry_of: str | None = None
    """The refused transaction that it re-executes, if it has that one's ticket: then it is judged ahead of others."""
    attempt: int = 1
    """The number of the try, as far as the ticket proves it."""
    is_claim: bool = False
    """Whether it is a claim check (header `transaction-file`): its transaction, which may be large, is a file."""
    producer: bytes = b""
    """Its header `producer`, as the next one; empty = it has none."""
    app_id: bytes = b""

    @property
    def offset(self) -> int:
        return self.record.offset


_log = logging.getLogger(__name__)

_offset_of = attrgetter("record.offset")
_epoch_of = attrgetter("leader_epoch")
_IN_A_STRETCH = 256
"""Records to take before the stretch of work may end, and to read again at once."""
_AGAIN_PAUSE_SECONDS = 0.5
_AGAIN_PAUSE_SECONDS_MAX = 5.0
"""The wait after records could not be read again, at first and at most."""
_COMPARE_ATTEMPTS = 5
_COMPARE_PAUSE_SECONDS = 0.5


class _Last(NamedTuple):
    """The last record that was taken, which the next one must follow in the log."""

    offset: int
    leader_epoch: int
    sha256: str
    """Empty = computed from `record`."""
    record: Record | None = None

    def may_be_followed_by(self, record: Record) -> bool:
        """Whether an unbroken connection may deliver this record next, if the log was not written anew."""
        return record.leader_epoch == self.leader_epoch

    def is_in(self, records: Iterable[Record]) -> bool:
        """Whether these records include the same record: same offset and same content."""
        sha256 = self.sha256 or (record_sha256(self.record) if self.record is not None else "")
        return any(one.offset == self.offset and record_sha256(one) == sha256 for one in records)


class Room(NamedTuple):
    """Room in the queue's flow control that dropped records occupied and that is still to be freed."""

    records: int
    bytes: int


NO_ROOM = Room(0, 0)


class Intake:
    """The records that the queue has delivered to this member."""

    def __init__(
        self,
        queue: Queue,
        *,
        reach: Reach | None = None,
        batch: Container[bytes] = (),
        note_time: Callable[[int], None] = lambda timestamp_ms: None,
        give_way: GiveWay = to_all,
    ) -> None:
        """`reach`: which records are held; None = all. `batch`: the lines of batch producers. `note_time`: called with
        the timestamp, in Unix milliseconds, of the last record of each delivery.
        """
        self._queue = queue
        self._note_time = note_time
        self._give_way = give_way
        self._reach = reach or Reach()
        self._reach_changed = anyio.Event()
        """Set when skipped records may have become due, or when more records can be taken."""
        self._behind: Position | None = None
        """What has outcomes."""
        self._changed = anyio.Event()
        self.generation: int | None = None
        """Generation of the assignment that this member holds; None while it stands by."""
        self.pending: deque[Pending] = deque()
        """The records that wait, by ascending offset."""
        self.turns = Turns[Pending](batch)
        """The same records by producer."""
        self.reservations = Reservations()
        """Which of the records go first, and what is reserved for them; replaced by the committer's loop alone."""
        self._retries: dict[str, Pending] = {}
        """By refused uuid, the waiting record that has its ticket."""
        self.fetch_failure: str | None = None
        """Why no further records can be taken; None = they can."""
        self.arrived = 0
        """Total number of records that have arrived; also the `number` of the last one."""
        self._last: _Last | None = None
        """The record with the highest offset that was delivered."""
        self._begun = 0
        """Counts the calls of `clear`; events from before the last one are dropped."""

    async def run(self) -> None:
        """Handle queue events until cancelled."""
        # Comparing records with the log may take long, and a revocation must take effect at once: so fetched records go
        # through a stream. Its length is bounded by the number of records that the queue delivers unsettled.
        send, receive = anyio.create_memory_object_stream[tuple[int, Fetched]](math.inf)
        with send, receive:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._take_in_turn, receive)
                tasks.start_soon(self._read_again)
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
        """Take fetched records in order, except those fetched before the last `clear`.

        Once records could not be taken, no later records are taken: a position would pass the missing records as if
        Kafka did not have them.
        """
        async for begun, event in fetched:
            if begun == self._begun and self.fetch_failure is None:
                await self._take_what_follows(event)
            self.notify()

    async def _read_again(self) -> None:
        """Read skipped records again when there is room for them."""
        pause = _AGAIN_PAUSE_SECONDS
        while True:
            changed, begun, generation, due = self._reach_changed, self._begun, self.generation, self._reach.due()
            if generation is None or due is None or self.fetch_failure is not None:
                await changed.wait()
                continue
            records_max = min(due.records, _IN_A_STRETCH)
            try:
                event = await self._queue.read_again(generation, due.offset, records_max=records_max)
            except QueueUnavailable as error:
                _log.warning("kafka.not_read_again", extra={"offset": due.offset, "error": str(error)})
                await anyio.sleep(pause)
                pause = min(2 * pause, _AGAIN_PAUSE_SECONDS_MAX)
                continue
            pause = _AGAIN_PAUSE_SECONDS
            if begun != self._begun:
                continue
            if isinstance(event, FetchFailed):
                self.fetch_failure = event.reason
            else:
                await self._take_again(due.offset, event)
            self.notify()

    async def _take_again(self, start: int, event: Fetched) -> None:
        """Take records that were read again from `start` on, if the log behind them is unchanged.

        These reads have a connection of their own, which may see a rewritten log before the deliveries tell of it.
        """
        last, begun = self._last, self._begun
        if last is not None:
            newer = any(record.leader_epoch > last.leader_epoch for record in event.records)
            if (newer or not event.unbroken) and not await self._is_unchanged(last):
                return
        await self._give_way()
        if begun == self._begun and self.fetch_failure is None:
            room = self._take_skipped(start, event.records)
            self._note_reach()
            await self._free(event, room)

    def require_fetching(self) -> None:
        """Raise `StartAgain` if no further records can be taken."""
        if self.fetch_failure is not None:
            raise StartAgain(f"the queue can't deliver: {self.fetch_failure}")

    def clear(self) -> None:
        """Drop all delivered records: the queue is about to deliver from another offset."""
        self.pending.clear()
        self.turns.clear()
        self._retries = {}
        self.fetch_failure = None
        self._last, self._behind = None, None
        self._reach.begin()
        self._begun += 1
        self._note_reach()

    def begin_behind(self, position: Position, *, skips: bool = True) -> None:
        """Drop all records, and require the next one to follow the last record that this position has passed.

        `skips` False: take each record when it is delivered, and skip none.
        """
        self.clear()
        self._behind = position
        self._reach.begin(skips=skips)
        if position.last_offset >= 0:
            self._last = _Last(position.last_offset, position.leader_epoch, position.last_sha256)

    def settle(self, position: Position) -> Room:
        """Drop the records that the position has passed; returns their room."""
        self._behind = position
        passed: list[Pending] = []
        while self.pending and self.pending[0].offset < position.next_offset:
            passed.append(self.pending.popleft())
        if position.settled and self.pending:
            ahead, left = position.settled, deque[Pending]()
            for pending in self.pending:
                (passed if pending.offset in ahead else left).append(pending)
            self.pending = left
        self.turns.settled(passed)
        return self._room_of(passed)

    def drop(self, records: Collection[Pending]) -> Room:
        """Drop these records without an outcome; returns the room that they occupied."""
        given = {pending.number for pending in records}
        gone = [pending for pending in self.pending if pending.number in given]  # `clear` may have dropped some
        self.turns.remove(gone)
        self.pending = deque(pending for pending in self.pending if pending.number not in given)
        return self._room_of(gone)

    def first(self, count: int, *, behind: Position) -> list[Pending]:
        """Return the first `count` waiting records that the position `behind` has not passed, by ascending offset.

        Only those below the first one that is skipped, so that none without an outcome lies between them.
        """
        start = bisect_left(self.pending, behind.next_offset, key=_offset_of)
        skipped = self._reach.first_skipped
        end = len(self.pending) if skipped is None else bisect_left(self.pending, skipped.offset, key=_offset_of)
        upcoming = islice(self.pending, start, end)
        return list(islice((pending for pending in upcoming if not behind.passes(pending.offset)), count))

    def records(self, offsets: Collection[int]) -> dict[int, Pending]:
        """Return the waiting records that have one of these offsets, by offset."""
        last = max(offsets, default=-1)
        upto = takewhile(lambda pending: pending.offset <= last, self.pending)
        return {pending.offset: pending for pending in upto if pending.offset in offsets}

    def takes_turns(self, most: int) -> bool:
        """Whether a version of at most so many records takes from producers in turn, because more records wait."""
        return (len(self.pending) > most or self._reach.first_skipped is not None) and self.turns.are_several

    @property
    def oldest_ms(self) -> int | None:
        """Timestamp (Unix milliseconds) of the first record that waits, held or skipped; None if there is none."""
        skipped = self._reach.first_skipped
        if self.pending and (skipped is None or self.pending[0].offset < skipped.offset):
            return self.pending[0].record.timestamp_ms
        return None if skipped is None else skipped.timestamp_ms

    @property
    def waiting(self) -> Mapping[bytes, int]:
        """How many of the records that were taken wait, held or skipped, by line (`queue.reach`)."""
        return self._reach.waiting

    def waiting_retries(self) -> list[Pending]:
        """Return the waiting re-executions of refused transactions that may go first, by ascending offset."""
        return list(self._retries.values())

    def retries(self) -> Collection[str]:
        """Return the uuids of refused transactions whose re-executions wait."""
        return self._retries.keys()

    def _note_reach(self) -> None:
        self._reach_changed.set()
        self._reach_changed = anyio.Event()

    def notify(self) -> None:
        """Wake all tasks that wait in `changed`."""
        self._changed.set()
        self._changed = anyio.Event()

    def moment(self) -> anyio.Event:
        """Return a marker for `changed`: a later call counts all events from now on."""
        return self._changed

    async def changed(self, *, since: anyio.Event | None = None, timeout: float | None = None) -> bool:
        """Wait for an event or `notify` after `since` (None = now); False when `timeout` seconds pass first."""
        event = since or self._changed
        with anyio.move_on_after(timeout):
            await event.wait()
            return True
        return False

    def _room_of(self, records: Collection[Pending]) -> Room:
        if records:
            self.notify()  # other records are the first ones now
            self._reach.release(pending.offset for pending in records)
            self._note_reach()
        for pending in records:
            if pending.retry_of is not None:
                self._retries.pop(pending.retry_of, None)
        return Room(len(records), sum(pending.size for pending in records))

    async def _take_what_follows(self, fetched: Fetched) -> None:
        """Take these records if the log before them is unchanged.

        A log that lost its end (unclean leader election) holds other records at the same offsets, and those below the
        next offset would be skipped. In that case the leader epoch differs, or the consumer lost contact. So then the
        last taken record is compared with the log.
        """
        unbroken, records, begun = fetched.unbroken, fetched.records, self._begun
        parts = [list(records)]
        if records and records[0].leader_epoch != records[-1].leader_epoch:
            parts = [list(part) for _, part in groupby(records, key=_epoch_of)]
        for part in parts:
            last = self._last
            follows = last is None or (unbroken and part and last.may_be_followed_by(part[0]))
            if last is not None and not follows and not await self._is_unchanged(last):
                return
            unbroken, start = True, 0
            while start < len(part):
                await self._give_way()
                if self._begun != begun or self.fetch_failure is not None:
                    return
                taken, room = self._take(part[start : start + _IN_A_STRETCH])
                if not taken:
                    await self._reach_changed.wait()
                    continue
                start += taken
                self._note_reach()
                await self._free(fetched, room)

    async def _is_unchanged(self, last: _Last) -> bool:
        """Whether the log still has the last record that was taken. If it has not, no more records can be taken."""
        begun = self._begun
        problem = await self._rewritten(last)
        if self._begun != begun:  # cleared during the comparison
            return False
        if problem:
            self.fetch_failure = problem
        return not problem

    async def _free(self, event: Fetched, room: Room) -> None:
        if room.records:
            await self._queue.done(event.generation, *room)

    async def _rewritten(self, last: _Last) -> str:
        """Compare this record with the log; returns the problem, or an empty string when it is unchanged."""
        for _ in range(_COMPARE_ATTEMPTS):
            try:
                log_start, _ = await self._queue.bounds()
                if last.offset < log_start:  # deleted by retention: nothing is left to compare
                    return ""
                if last.is_in(await self._queue.read(last.offset, last.offset + 1)):
                    return ""
            except QueueUnavailable:
                await anyio.sleep(_COMPARE_PAUSE_SECONDS)
                continue
            return f"the log was written anew: the record at offset {last.offset} is not the one that was read before"
        return f"the record at offset {last.offset} can't be compared with the one that was read before"

    def _take(self, records: Sequence[Record]) -> tuple[int, Room]:
        """Take these records as far as that is possible now, and let those wait that are to be held.

        Returns how many were taken, and the room of those among them that are not held.
        """
        held, others, taken = list[Pending](), list[int](), 0
        for record in records:
            if self._has_outcome(record):
                others.append(record_size(record))
            else:
                named, candidate = _candidate(record)
                if not self._reach.can_take(candidate):
                    break
                if self._reach.takes(candidate):
                    held.append(self._hold(record, candidate.size, named))
                else:
                    others.append(candidate.size)
            taken += 1
        self.pending.extend(held)
        if taken:
            last = records[taken - 1]
            self._note_time(last.timestamp_ms)
            self._last = _Last(last.offset, last.leader_epoch, "", last)
        return taken, Room(len(others), sum(others))

    def _take_skipped(self, start: int, records: Sequence[Record]) -> Room:
        """Take records that were read again from `start` on; returns the room of those that are not held."""
        without_outcome = {record.offset: _candidate(record) for record in records if not self._has_outcome(record)}
        candidates = [candidate for _, candidate in without_outcome.values()]
        to_hold = self._reach.take_again(start, candidates, records[-1].offset + 1)
        held, others = list[Pending](), list[int]()
        for record in records:
            if record.offset in to_hold:
                named, candidate = without_outcome[record.offset]
                held.append(self._hold(record, candidate.size, named))
            else:
                others.append(record_size(record))
        self.pending = deque(sorted((*self.pending, *held), key=_offset_of))
        return Room(len(others), sum(others))

    def _has_outcome(self, record: Record) -> bool:
        return self._behind is not None and self._behind.passes(record.offset)

    def _hold(self, record: Record, size: int, named: Mapping[str, bytes]) -> Pending:
        """Let a record wait, with its ticket if it has one; `pending` has yet to be told. `named`: its headers."""
        self.arrived += 1
        pending = Pending(
            record,
            size,
            self.arrived,
            producer=named.get("producer", b""),
            app_id=named.get("app-id", b""),
        )
        if "transaction-file" in named:
            pending = replace(pending, is_claim=True)
        if "retry-of" in named:
            refused, who = named["retry-of"].decode("ascii", "replace"), who_asked(record.headers)
            if refused not in self._retries and self.reservations.has_ticket(refused, who.producer):
                pending = replace(pending, retry_of=refused, attempt=max(who.attempt, 2))
                self._retries[refused] = pending
        self.turns.add(pending)
        return pending


def _candidate(record: Record) -> tuple[Mapping[str, bytes], Candidate]:
    """The headers of a record without an outcome, and what decides whether it is held."""
    named = dict(record.headers)
    lines = lines_of(named.get("producer", b""), named.get("app-id", b""))
    return named, Candidate(record.offset, lines, record_size(record), record.timestamp_ms)
