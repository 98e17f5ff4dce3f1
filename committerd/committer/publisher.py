"""Publishes dead letters, then outcomes, then acknowledges the offset that they cover.

All outcomes given to the publisher are already in the table, so it decides nothing. It retries until Kafka takes them.
Those of one partition are published in the order in which they are given. Those of another partition are published
meanwhile: a client reads one partition, and its outcomes would wait for the many of a flood. An offset is acknowledged
once everything given before it is published, so an acknowledgement never passes an outcome that the broker has not
taken.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import anyio

from committerd.committer.intake import NO_ROOM, Room
from committerd.committer.stages import Trace, Traced
from committerd.errors import QueueUnavailable
from committerd.queue.port import Publication, Queue
from committerd.queue.position import Position
from committerd.queue.start import acknowledgement
from committerd.telemetry import Telemetry

_log = logging.getLogger(__name__)

_WAITING_MAX = 64
"""Maximum number of batches that wait for Kafka; beyond that the committer waits too."""
_PARTS_MAX = 4
"""Maximum number of parts that are published at the same time."""
_DEAD_LETTERS = -1
"""The place of dead letters in `_Part.places`: their topic has one partition."""
_BACKOFF_SECONDS_MAX = 2.0
_ACKNOWLEDGE_SECONDS = 0.25
"""Minimum time between two acknowledgements, in seconds.

Each one blocks the thread that polls for records. All that it saves is publishing outcomes again after a crash.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeBatch:
    """The outcomes and dead letters of one run or one Start, with the acknowledgement that follows them."""

    generation: int = 0
    outcomes: Sequence[Publication] = ()
    letters: Sequence[Publication] = ()
    acknowledge: int | None = None
    """The next offset to acknowledge after all of the above are published; None = leave the group offset as it is."""
    metadata: str = ""
    """Metadata of the acknowledged offset."""
    submitted: Sequence[tuple[str, int]] = ()
    """(status, the record's timestamp in Unix milliseconds) of each outcome, for the latency metric."""
    traced: Sequence[Traced] = ()
    """The records of these outcomes, if they are traced."""
    room: Room = NO_ROOM
    """The room of the delivered records that are settled with it, which is freed once it is published."""


@dataclass(eq=False, slots=True)
class _Part:
    """Batches that are published together."""

    batches: Sequence[OutcomeBatch]
    places: frozenset[int] = field(init=False)
    """The partitions of its outcomes, and `_DEAD_LETTERS` if it has dead letters.

    A part waits for the earlier parts with a place of its own. The parts behind it wait with it.
    """
    published: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        outcomes = {outcome.partition for batch in self.batches for outcome in batch.outcomes}
        has_letters = any(batch.letters for batch in self.batches)
        self.places = frozenset(outcomes | {_DEAD_LETTERS} if has_letters else outcomes)


class Publisher:
    """Publishes outcomes, those of one partition in the order in which they are given.

    Only `run` uses Kafka's producers.
    """

    def __init__(
        self, queue: Queue, telemetry: Telemetry, *, wall_clock: Callable[[], datetime], trace: Trace | None = None
    ) -> None:
        """`trace`: takes the records whose outcomes are published; None = they are not traced."""
        self._queue = queue
        self._telemetry = telemetry
        self._wall_clock = wall_clock
        self._trace = trace
        self._send, self._receive = anyio.create_memory_object_stream[OutcomeBatch](_WAITING_MAX)
        self._parts = deque[_Part]()
        """Those that are being published, and those that are published behind one of them."""
        self._unsent = 0
        self._idle = anyio.Event()
        self._idle.set()
        self._unacknowledged: OutcomeBatch | None = None
        self._acknowledge_due = anyio.Event()
        self._draining = anyio.Event()

    @property
    def traces(self) -> bool:
        """Whether it wants to know what is traced."""
        return self._trace is not None

    async def give(
        self,
        batch: OutcomeBatch,
        *,
        generation: int,
        acknowledge: tuple[Position, int] | None = None,
        room: Room = NO_ROOM,
    ) -> None:
        """Hand over outcomes for publishing; waits while `_WAITING_MAX` batches are waiting.

        `acknowledge`: position and table version to acknowledge once it is published; None = none. `room`: as in
        `OutcomeBatch`.
        """
        if not self._unsent:
            self._idle = anyio.Event()
        self._unsent += 1
        await self._send.send(
            replace(
                batch,
                generation=generation,
                acknowledge=acknowledge[0].next_offset if acknowledge else None,
                metadata=acknowledgement(*acknowledge) if acknowledge else "",
                room=room,
            )
        )

    async def drained(self) -> None:
        """Wait until everything given so far is published and its acknowledgement was tried.

        The caller must not call `give` meanwhile.
        """
        self._draining.set()
        try:
            await self._idle.wait()
        finally:
            self._draining = anyio.Event()

    async def run(self) -> None:
        """Publish until cancelled."""
        with self._send, self._receive:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._acknowledge_all)
                await self._publish_all()

    async def _publish_all(self) -> None:
        async with anyio.create_task_group() as tasks:
            async for first in self._receive:
                batches = [first]
                while len(batches) < _WAITING_MAX:
                    try:
                        batches.append(self._receive.receive_nowait())
                    except anyio.WouldBlock:
                        break
                part = _Part(batches)
                while len(self._parts) >= _PARTS_MAX:
                    await self._parts[0].published.wait()
                for earlier in tuple(self._parts):
                    if not earlier.places.isdisjoint(part.places):
                        await earlier.published.wait()
                self._parts.append(part)
                tasks.start_soon(self._publish_part, part)

    async def _publish_part(self, part: _Part) -> None:
        await self._publish(part.batches)
        part.published.set()
        while self._parts and self._parts[0].published.is_set():
            self._let_acknowledge(self._parts.popleft().batches)
        self._note_idle()

    def _let_acknowledge(self, batches: Sequence[OutcomeBatch]) -> None:
        """Let the offset of these batches be acknowledged: they and all before them are published."""
        last = next((one for one in reversed(batches) if one.acknowledge is not None), None)
        if last is not None:
            self._unacknowledged = last
            self._acknowledge_due.set()
        self._unsent -= len(batches)

    async def _publish(self, batches: Sequence[OutcomeBatch]) -> None:
        letters = [letter for batch in batches for letter in batch.letters]
        outcomes = [outcome for batch in batches for outcome in batch.outcomes]
        with self._telemetry.commit_duration.timed(stage="publish"):
            if letters:
                await self._retrying("dead_letter", lambda: self._queue.dead_letter(letters))
            if outcomes:
                await self._retrying("publish", lambda: self._queue.publish(outcomes))
        now_ms = self._wall_clock().timestamp() * 1000
        for batch in batches:
            for status, timestamp_ms in batch.submitted:
                self._telemetry.submit_to_outcome.observe(max(now_ms - timestamp_ms, 0) / 1000, outcome=status)
            if self._trace is not None and batch.traced:
                self._trace(batch.traced, now_ms / 1000)
            if batch.room.records:
                await self._queue.done(batch.generation, *batch.room)

    async def _acknowledge_all(self) -> None:
        """Acknowledge the last due offset. A task of its own, because committing offsets is slower than publishing."""
        acknowledged_at = float("-inf")
        while True:
            await self._acknowledge_due.wait()
            self._acknowledge_due = anyio.Event()
            with anyio.move_on_after(acknowledged_at + _ACKNOWLEDGE_SECONDS - anyio.current_time()):
                await self._draining.wait()
            acknowledged_at = anyio.current_time()
            due, failed = self._unacknowledged, False
            if due is not None and due.acknowledge is not None:
                failed = not await self._acknowledge(due.generation, due.acknowledge, due.metadata)
            if due is self._unacknowledged:
                self._unacknowledged = None
            self._note_idle()
            if failed:
                await self._try_again_later(due)

    async def _try_again_later(self, due: OutcomeBatch | None) -> None:
        """Make a failed acknowledgement due again after a delay, unless a later one is due first."""
        with anyio.move_on_after(_BACKOFF_SECONDS_MAX):
            await self._acknowledge_due.wait()
        if self._unacknowledged is None:
            self._unacknowledged = due
            self._acknowledge_due.set()

    def _note_idle(self) -> None:
        if not self._unsent and self._unacknowledged is None:
            self._idle.set()

    async def _acknowledge(self, generation: int, offset: int, metadata: str) -> bool:
        """Acknowledge an offset; False when Kafka is unavailable.

        Nothing depends on it: the table has the position, and the next acknowledgement covers this one.
        """
        try:
            if not await self._queue.acknowledge(generation, offset, metadata):
                _log.info("acknowledge.refused", extra={"offset": offset, "generation": generation})
        except QueueUnavailable as error:
            self._telemetry.queue_retries.add(call="acknowledge")
            _log.warning("acknowledge.failed", extra={"offset": offset, "error": str(error)})
            return False
        return True

    async def _retrying(self, call: str, send: Callable[[], Awaitable[None]]) -> None:
        delay = 0.1
        while True:
            try:
                return await send()
            except QueueUnavailable as error:
                self._telemetry.queue_retries.add(call=call)
                _log.warning(
                    "publish.failed",
                    extra={"call": call, "error": str(error), "retry_in_seconds": delay},
                )
                await anyio.sleep(delay)
                delay = min(delay * 2, _BACKOFF_SECONDS_MAX)
