"""Answers leave in order: dead letters, then outcomes, then the acknowledgement that covers them.

Everything given to the publisher already stands in the table, so nothing here decides. It tries until Kafka takes
it; an acknowledgement never passes an answer that the broker has not taken, because one task sends all of it, first in
first out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import anyio

from committerd.errors import QueueUnavailable
from committerd.queue.port import Publication, Queue
from committerd.telemetry import Telemetry

_log = logging.getLogger(__name__)

_WAITING_MAX = 64
"""Groups of answers that wait for Kafka before the committer waits too."""
_BACKOFF_SECONDS_MAX = 2.0
_ACKNOWLEDGE_SECONDS = 0.25
"""At least, between two acknowledgements. Each keeps the thread that polls for records waiting for Kafka, and all that
one saves is answers that are told again after a crash.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What one version, or one Start, has to tell."""

    generation: int
    outcomes: Sequence[Publication] = ()
    letters: Sequence[Publication] = ()
    acknowledge: int | None = None
    """The next offset to acknowledge once all of the above are taken; None = leave the group's offset alone."""
    metadata: str = ""
    submitted: Sequence[tuple[str, int]] = ()
    """(status, the record's timestamp in Unix milliseconds) of the outcomes, for the latency."""
    records: int = 0
    bytes: int = 0
    """Delivered records and bytes that are settled with it: room for more."""


class Publisher:
    """Sends answers in the order in which they are given. `run` is the only task that talks to Kafka's producers."""

    def __init__(self, queue: Queue, telemetry: Telemetry, *, wall_clock: Callable[[], datetime]) -> None:
        self._queue = queue
        self._telemetry = telemetry
        self._wall_clock = wall_clock
        self._send, self._receive = anyio.create_memory_object_stream[Answers](_WAITING_MAX)
        self._unsent = 0
        self._idle = anyio.Event()
        self._idle.set()
        self._due: Answers | None = None
        self._acknowledge_due = anyio.Event()
        self._draining = anyio.Event()

    async def give(self, answers: Answers) -> None:
        """Hand over answers; waits while many are unsent."""
        if not self._unsent:
            self._idle = anyio.Event()
        self._unsent += 1
        await self._send.send(answers)

    async def drained(self) -> None:
        """Wait until everything given so far was taken, and its acknowledgement tried. Nothing is given meanwhile."""
        self._draining.set()
        try:
            await self._idle.wait()
        finally:
            self._draining = anyio.Event()

    async def run(self) -> None:
        """Send until cancelled."""
        with self._send, self._receive:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._acknowledge_all)
                await self._publish_all()

    async def _publish_all(self) -> None:
        async for first in self._receive:
            batch = [first]
            while len(batch) < _WAITING_MAX:
                try:
                    batch.append(self._receive.receive_nowait())
                except anyio.WouldBlock:
                    break
            await self._publish(batch)
            self._unsent -= len(batch)
            self._note_idle()

    async def _publish(self, batch: Sequence[Answers]) -> None:
        letters = [letter for answers in batch for letter in answers.letters]
        outcomes = [outcome for answers in batch for outcome in answers.outcomes]
        with self._telemetry.commit_duration.timed(stage="publish"):
            if letters:
                await self._retrying("dead_letter", lambda: self._queue.dead_letter(letters))
            if outcomes:
                await self._retrying("publish", lambda: self._queue.publish(outcomes))
        now_ms = self._wall_clock().timestamp() * 1000
        for answers in batch:
            for status, timestamp_ms in answers.submitted:
                self._telemetry.submit_to_outcome.observe(max(now_ms - timestamp_ms, 0) / 1000, outcome=status)
            if answers.records:
                await self._queue.done(answers.generation, answers.records, answers.bytes)
        last = next((a for a in reversed(batch) if a.acknowledge is not None), None)
        if last is not None:
            self._due = last
            self._acknowledge_due.set()

    async def _acknowledge_all(self) -> None:
        """Acknowledge the last offset that is due. Apart from publishing, because a commit of offsets is slower."""
        acknowledged_at = float("-inf")
        while True:
            await self._acknowledge_due.wait()
            self._acknowledge_due = anyio.Event()
            with anyio.move_on_after(acknowledged_at + _ACKNOWLEDGE_SECONDS - anyio.current_time()):
                await self._draining.wait()
            acknowledged_at = anyio.current_time()
            due, failed = self._due, False
            if due is not None and due.acknowledge is not None:
                failed = not await self._acknowledge(due.generation, due.acknowledge, due.metadata)
            if due is self._due:
                self._due = None
            self._note_idle()
            if failed:
                await self._try_again_later(due)

    async def _try_again_later(self, due: Answers | None) -> None:
        """Make an acknowledgement due once more, unless a later one comes first."""
        with anyio.move_on_after(_BACKOFF_SECONDS_MAX):
            await self._acknowledge_due.wait()
        if self._due is None:
            self._due = due
            self._acknowledge_due.set()

    def _note_idle(self) -> None:
        if not self._unsent and self._due is None:
            self._idle.set()

    async def _acknowledge(self, generation: int, offset: int, metadata: str) -> bool:
        """Whether Kafka has answered. Nothing depends on it: the table knows better, the next one covers this one."""
        try:
            if not await self._queue.acknowledge(generation, offset, metadata):
                _log.info("acknowledge.refused", extra={"offset": offset, "generation": generation})
        except QueueUnavailable as error:
            self._telemetry.queue_retries.add(call="acknowledge")
            _log.warning("acknowledge.failed", extra={"offset": offset, "error": str(error)})
            return False
        return True

    async def _retrying(self, call: str, send: _Send) -> None:
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


class _Send(Protocol):
    async def __call__(self) -> None: ...
