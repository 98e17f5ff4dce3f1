"""Records as they arrive: held in offset order until a version settles them.

The intake is the only reader of queue events. It knows whether this member owns the partition, drops what belongs to an
earlier assignment, and wakes whoever waits for a change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass

import anyio

from committerd.format.request import Request, record_sha256, record_size
from committerd.ports import Assigned, Fetched, FetchFailed, Queue, Record, Revoked
from committerd.rules.ledger import Refused


@dataclass(slots=True)
class Pending:
    """A delivered record that has no answer yet; decoded when it is first looked at."""

    record: Record
    sha256: str
    size: int
    retry_of: str | None = None
    """Header `retry-of`, seen before anything is decoded: such a record may go before those that wait."""
    decoded: Request | Refused | None = None
    """None = not looked at."""

    @property
    def offset(self) -> int:
        return self.record.offset


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
        self.fetch_failure: str | None = None
        self.next_offset = 0
        """After the last delivered record, for the lag."""

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
        self.fetch_failure = None

    def settle(self, offsets: Container[int]) -> Room:
        """Forget records that have an answer; returns the room that they took."""
        room, kept = Room(), deque[Pending]()
        for pending in self.pending:
            if pending.offset in offsets:
                room.records += 1
                room.bytes += pending.size
            else:
                kept.append(pending)
        self.pending = kept
        return room

    def retries(self) -> list[str]:
        """The refused uuids that waiting records do again."""
        return [p.retry_of for p in self.pending if p.retry_of is not None]

    def fingerprints(self) -> dict[int, tuple[str, int]]:
        """(sha256, leader epoch) by offset of the records that wait."""
        return {p.offset: (p.sha256, p.record.leader_epoch) for p in self.pending}

    def oldest_timestamp_ms(self) -> int | None:
        """Of the records that wait."""
        return self.pending[0].record.timestamp_ms if self.pending else None

    def notify(self) -> None:
        """Wake whoever waits in `changed`."""
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self, *, timeout: float | None = None) -> bool:
        """Wait for the next event or `notify`; False when `timeout` seconds passed first."""
        event = self._changed
        with anyio.move_on_after(timeout):
            await event.wait()
            return True
        return False

    def _take(self, records: list[Record]) -> None:
        for record in records:
            retry_of = next((v for name, v in reversed(record.headers) if name == "retry-of"), None)
            self.pending.append(
                Pending(
                    record,
                    record_sha256(record),
                    record_size(record),
                    retry_of=retry_of.decode("ascii", "replace") if retry_of is not None else None,
                )
            )
            self.next_offset = record.offset + 1
