"""State of one staged partition in a member: ownership, seeks, and the number of delivered records without an outcome.

Each dataset has its own, so that no change in the partition of one drops the records of another. Three threads change
it: the event loop requests seeks and reports finished records, the owner thread polls and delivers, kafka-python's IO
thread assigns and revokes. No thread waits for another while it holds the lock, because heartbeats would wait too.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition

from committerd.queue.port import Assigned, Fetched, FetchFailed, QueueEvent, Record, Revoked, record_size


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event on its way to the event loop."""

    event: QueueEvent
    seeks: int
    """Number of seeks before this delivery."""


class Assignment:
    """The member's assignment of a staged partition.

    `generation` counts assignments. The partition is parked between an assignment and the first seek, and during each
    later seek: nothing is delivered then.
    """

    def __init__(self, staged: TopicPartition, *, records_max: int, bytes_max: int) -> None:
        self._staged = staged
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._changes: collections.deque[Assigned | Revoked] = collections.deque()
        self._generation = 0
        self._owned = False
        self._parked = True
        self._begun = False
        self._full = False
        self._seeks = 0
        self._records = 0
        self._bytes = 0

    # From the event loop

    @property
    def seeks(self) -> int:
        """Number of seeks so far."""
        return self._seeks

    def begin(self, generation: int) -> None:
        """Note that the partition has begun to be served. The first seek notes it too."""
        with self._lock:
            if self._holds(generation):
                self._begun = True

    def begin_seek(self, generation: int) -> int | None:
        """Stop delivering, and drop the records that were delivered so far. Returns the number of the seek.

        Delivery continues after `seek` with that number. Returns None if the generation is over.
        """
        with self._lock:
            if not self._holds(generation):
                return None
            self._parked = self._begun = True
            self._seeks += 1
            self._records = self._bytes = 0
            return self._seeks

    def is_current(self, delivery: Delivery) -> bool:
        """Whether neither the assignment nor the seek has changed since the delivery."""
        with self._lock:
            return self._holds(delivery.event.generation) and delivery.seeks == self._seeks

    def add(self, generation: int, seeks: int, records: Sequence[Record]) -> None:
        """Count records that were read again as outstanding, unless there were other seeks than these."""
        with self._lock:
            if self._holds(generation) and seeks == self._seeks:
                self._count(records)

    def settle(self, generation: int, records: int, size: int) -> bool:
        """Subtract finished records, and their bytes, from what is outstanding.

        Returns True if the partition was full and can be fetched again: the owner thread should call `throttle`.
        """
        with self._lock:
            if self._holds(generation):
                self._records = max(0, self._records - records)
                self._bytes = max(0, self._bytes - size)
            return self._full and self._has_room()

    # In the owner thread

    @property
    def generation(self) -> int:
        """Number of the current assignment; after a revocation, of the last assignment."""
        return self._generation

    @property
    def owned(self) -> bool:
        """Whether this member owns the partition."""
        return self._owned

    @property
    def idle(self) -> bool:
        """Whether the partition is owned but not fetched, because it is parked or full."""
        return self._owned and (self._parked or self._full)

    def owns(self, generation: int) -> bool:
        """Whether this generation is the current assignment."""
        with self._lock:
            return self._holds(generation)

    def seek(self, consumer: Any, generation: int, number: int, *, offset: int) -> None:
        """Deliver from this offset on, unless there was a later seek or the generation is over."""
        with self._lock:
            if not self._holds(generation) or number != self._seeks:
                return
            with suppress(ValueError, KeyError):  # just revoked; the listener is called next
                consumer.seek(self._staged, offset)
                consumer.resume(self._staged)
                self._parked = self._full = False

    def hand_over(self, generation: int, records: Sequence[Record], *, unbroken: bool = True) -> Delivery | None:
        """Count polled records as outstanding, and make their delivery; None if the assignment has changed."""
        with self._lock:
            if self._parked or not self._holds(generation):
                return None
            self._count(records)
            return Delivery(Fetched(generation=generation, records=records, unbroken=unbroken), self._seeks)

    def throttle(self, consumer: Any) -> None:
        """Stop fetching while too many records are outstanding; continue when a quarter of that is free again."""
        with self._lock, suppress(KeyError):  # just revoked
            if not self._owned or self._parked:
                return
            if not self._full and (self._records >= self._records_max or self._bytes >= self._bytes_max):
                consumer.pause(self._staged)
                self._full = True
            elif self._full and self._has_room():
                consumer.resume(self._staged)
                self._full = False

    def fail(self, consumer: Any, reason: str) -> Delivery | None:
        """Park the partition, because it can't be read; deliveries that the event loop has not taken are dropped."""
        with self._lock:
            if not self._owned:
                return None
            self._park(consumer)
            self._seeks += 1
            return Delivery(FetchFailed(generation=self._generation, reason=reason), self._seeks)

    def suspend(self, consumer: Any) -> None:
        """Give the partition up in the eyes of the event loop, although the group still assigns it to this member."""
        with self._lock:
            self._park(consumer)
            self._give_up(lost=False)

    def renew(self, consumer: Any) -> None:
        """Take the partition up again after `suspend`, as if it were newly assigned."""
        with self._lock:
            if not self._owned:
                self._park(consumer)
                self._take()

    def changes(self) -> list[Delivery]:
        """Assignments and revocations since the last call."""
        found = []
        while self._changes:
            found.append(Delivery(self._changes.popleft(), self._seeks))
        return found

    # From kafka-python's IO thread, during a poll or a close

    @property
    def waiting(self) -> bool:
        """Whether the partition is owned, and has not begun to be served since it was assigned."""
        return self._owned and not self._begun

    def assigned(self, consumer: Any) -> None:
        """Take the partition over. Pause it, and seek, or the consumer would look for a position."""
        with self._lock:
            self._park(consumer)
            self._take()

    def revoked(self, *, lost: bool) -> None:
        """Give up the partition. `lost`: the group has already given it to another member."""
        with self._lock:
            self._give_up(lost=lost)

    def _take(self) -> None:
        self._generation += 1
        self._owned, self._parked, self._begun, self._full = True, True, False, False
        self._records = self._bytes = 0
        self._changes.append(Assigned(generation=self._generation))

    def _give_up(self, *, lost: bool) -> None:
        if self._owned:
            self._owned = False
            self._changes.append(Revoked(generation=self._generation, lost=lost))

    def _park(self, consumer: Any) -> None:
        self._parked = True
        with suppress(ValueError, KeyError):  # just revoked; the listener is called next
            consumer.pause(self._staged)
            consumer.seek(self._staged, 0)

    def _count(self, records: Sequence[Record]) -> None:
        self._records += len(records)
        self._bytes += sum(map(record_size, records))

    def _has_room(self) -> bool:
        """Whether a quarter of what may be outstanding is not."""
        return self._records * 4 <= self._records_max * 3 and self._bytes * 4 <= self._bytes_max * 3

    def _holds(self, generation: int) -> bool:
        return self._owned and generation == self._generation
