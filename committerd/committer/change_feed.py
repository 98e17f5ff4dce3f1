"""Publishes an event for each version of the table (`queue.change_event`), beside the commits and behind them.

The last event in the events topic is the position of the events. So at each Start the feed reads the topic's end and
goes on from there, whoever has committed or published meanwhile. It takes the versions that this committer puts from
memory and reads all others from the table. What it can't tell, it says in an event: versions that are cleaned up or
damaged, a topic that is new, a table that was replaced.

A version is told once the broker has taken its event and the topic is still the same. A committer that has been
replaced may publish a few more events: they follow without a gap on the events that were in the topic when it started.
So consumers see some versions twice, but each for the first time in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import anyio
from anyio import to_thread

from committerd.concurrency import map_each
from committerd.errors import CommitterError, CorruptTable, StoreUnavailable
from committerd.lance.format.fragment_list import NO_FRAGMENTS
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.versions.difference import Difference, changed_chunks, difference
from committerd.queue.change_event import (
    ChangeEvent,
    EventSource,
    Missing,
    Told,
    committed_event,
    event_id,
    missed_event,
    replaced_event,
    told_by,
)
from committerd.queue.port import EventTopic
from committerd.table.versions import Table
from committerd.telemetry import Telemetry

_log = logging.getLogger(__name__)

_TAIL_RECORDS = 100
"""Records at the topic's end among which the last event is looked for."""
_KEPT_MAX = 64
_KEPT_BYTES_MAX = 8 * 1024 * 1024
"""Maximum number of versions that wait in memory, and of their bytes that the head does not share. Further versions are
read from the table.
"""
_BATCH_MAX = 64
"""Events that are published together."""
_READ_AT_ONCE = 8
_SMALL_BYTES = 1024 * 1024
"""Manifests with fragments up to this size are read several at once."""
_AT_ONCE_BYTES = 128 * 1024
"""Chunks of fragments up to this size are compared at once; larger ones in a thread."""
_WAIT_SECONDS = (0.1, 5.0)
"""First and longest wait before a failed attempt is repeated."""
_ERROR_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class _Batch:
    """Events to publish together, and what is told once they are published."""

    events: Sequence[ChangeEvent]
    told: Told
    before: ManifestFile | None
    """The version that is told then; None = it can't be read."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A version that waits in memory."""

    file: ManifestFile
    bytes: int


class ChangeFeed:
    """The events of one table. `run` publishes them while this committer is active."""

    def __init__(
        self,
        topic: EventTopic,
        source: EventSource,
        *,
        new_table: Callable[[], Table],
        telemetry: Telemetry,
        wall_clock: Callable[[], datetime],
    ) -> None:
        self._topic = topic
        self._source = source
        self._new_table = new_table
        self._telemetry = telemetry
        self._wall_clock = wall_clock
        self._kept: dict[int, _Kept] = {}
        self._kept_bytes = 0
        self._head: ManifestFile | None = None
        """The latest version, as the committer has it."""
        self._first = self._latest = 0
        """The first version that was noted, and the last; 0 = none yet."""
        self._moved = anyio.Event()
        """Set when `_latest` or `_told` moves."""
        self._told: Told | None = None
        """None = what the topic holds is not known."""
        self._table: Table
        self._topic_id = ""
        self._before: ManifestFile | None = None
        self._notices: list[ChangeEvent] = []
        """Events to publish before the next version's."""
        self._batch: _Batch | None = None
        """What is being published, until it is told."""
        self.trouble = ""
        """Why events wait; empty if they don't."""
        telemetry.change_events_lag.track(lambda: self.lag)

    @property
    def lag(self) -> int:
        """Versions that are committed and not told; at least 1 while it is not known how far the topic has come."""
        if not self._latest:
            return 0
        return 1 if self._told is None else max(self._latest - self._told.version, 0)

    def put(self, file: ManifestFile) -> None:
        """Note a version that this committer has put. It is kept in memory while there is room, and so not read."""
        kept = _Kept(file, _bytes_beside(self._head, file))
        if len(self._kept) < _KEPT_MAX and self._kept_bytes + kept.bytes <= _KEPT_BYTES_MAX:
            self._kept[file.version] = kept
            self._kept_bytes += kept.bytes
        self._rise_to(file.version)

    def reached(self, head: ManifestFile) -> None:
        """Note the latest version. It is not read either, because the committer keeps it as its head."""
        self._head = head
        self._rise_to(head.version)

    async def run(self) -> None:
        """Publish until cancelled. Whatever fails is tried again; nothing is raised."""
        first, longest = _WAIT_SECONDS
        delay = first
        try:
            while True:
                try:
                    await self._go_on()
                    self.trouble, delay = "", first
                    await self._moved.wait()
                except Exception as error:  # noqa: BLE001  # commits go on, whatever is wrong with the events
                    self._note_failure(error, delay)
                    await anyio.sleep(delay)
                    delay = min(2 * delay, longest)
        finally:
            self._forget()

    async def caught_up(self) -> None:
        """Wait until all versions are told."""
        while self.lag:
            await self._moved.wait()

    async def _go_on(self) -> None:
        """Tell all versions up to the latest."""
        told = self._told if self._told is not None else await self._begin()
        while told.version < self._latest or self._notices:
            if self._batch is None:
                self._batch, self._notices = await self._next_batch(told), []
            await self._publish(self._batch)
            self._told = told = self._batch.told
            self._before, self._batch, self.trouble = self._batch.before, None, ""
            self._note_moved()

    async def _begin(self) -> Told:
        """Find out where the topic's events end, and which events come before that of the next version."""
        self._kept, self._kept_bytes = {}, 0
        self._topic_id = await self._topic.events_topic_id()
        values = await self._topic.events_tail(_TAIL_RECORDS)
        told = next((one for one in map(told_by, reversed(values)) if one is not None), None)
        self._table = table = self._new_table()
        latest = await table.latest_version() or 0
        self._rise_to(latest)
        self._notices, self._batch, self._before = [], None, None
        if told is None:
            told = Told(min(self._first, latest) - 1 if latest else 0, "")
            self._notices = self._missed(1, told.version, Missing.NEW_TOPIC)
        elif await self._is_replaced(told, latest):
            self._notices = [replaced_event(self._source, told, latest, now=self._wall_clock())]
            told = Told(0, "")
        if told.version:
            head = self._head
            is_head = head is not None and head.version == told.version
            self._before = head if is_head else await table.readable(told.version)
        self._told = told
        self._note_moved()
        _log.info("events.begin", extra={"told": told.version, "latest": latest, "topic_id": self._topic_id})
        return told

    async def _is_replaced(self, told: Told, latest: int) -> bool:
        """Whether the version that was told last is not the table's. If it is gone, it was cleaned up."""
        if told.version > latest:
            return True
        file = await self._table.readable(told.version) if told.id else None
        return file is not None and event_id(file, await self._table.transaction(file)) != told.id

    async def _next_batch(self, told: Told) -> _Batch:
        events, before, version = list(self._notices), self._before, told.version
        for one in [one for one in self._kept if one <= version]:
            self._take(one)
        small = before is not None and before.fragments.size <= _SMALL_BYTES
        upto = min(self._latest, version + _BATCH_MAX)
        while version < upto:
            some = range(version + 1, min(upto, version + (_READ_AT_ONCE if small else 1)) + 1)
            files = await map_each(some, self._file, at_once=_READ_AT_ONCE)
            for file in files:
                version += 1
                if isinstance(file, ManifestFile):
                    transaction = await self._table.transaction(file)
                    event = committed_event(self._source, file, transaction, await _changed(before, file))
                    told, before = Told(version, event_id(file, transaction)), file
                    events.append(event)
                    continue
                first = version
                if file is Missing.GONE:
                    version = await self._last_gone(version)
                events += self._missed(first, version, file)
                told, before = Told(version, ""), None
                break
        return _Batch(events, told, before)

    async def _file(self, version: int) -> ManifestFile | Missing:
        if version in self._kept:
            return self._take(version)
        if self._head is not None and self._head.version == version:
            return self._head
        try:
            return await self._table.read(version) or Missing.GONE
        except CorruptTable:
            return Missing.UNREADABLE

    def _take(self, version: int) -> ManifestFile:
        kept = self._kept.pop(version)
        self._kept_bytes -= kept.bytes
        return kept.file

    async def _last_gone(self, version: int) -> int:
        """The last of the versions without a manifest, of which this is the first. Raises `StoreUnavailable`."""
        above = await self._table.versions_above(version - 1)
        if not above or above[0] == version:
            # The table is being deleted, or was replaced: the committer notices, and starts again.
            raise StoreUnavailable(f"version {version} of {self._table.uri} can't be read now")
        return above[0] - 1

    async def _publish(self, batch: _Batch) -> None:
        """Publish the events, and again if the topic was replaced meanwhile: the new topic may lack some of them."""
        published = False
        while True:
            if await self._is_other_topic():
                batch = self._batch = self._of_new_topic(batch)
            elif published:
                break
            await self._topic.publish_events([event.publication for event in batch.events])
            published = True
        for event in batch.events:
            self._telemetry.change_events.add(type=event.type.name.lower())

    async def _is_other_topic(self) -> bool:
        before, self._topic_id = self._topic_id, await self._topic.events_topic_id()
        return self._topic_id != before

    def _of_new_topic(self, batch: _Batch) -> _Batch:
        """The batch, behind an event that says that this topic lacks what was told before."""
        told = self._told.version if self._told is not None else 0
        return _Batch([*self._missed(1, told, Missing.NEW_TOPIC), *batch.events], batch.told, batch.before)

    def _missed(self, first: int, last: int, why: Missing) -> list[ChangeEvent]:
        if last < first:
            return []
        _log.warning("events.missed", extra={"first": first, "last": last, "reason": why.value})
        return [missed_event(self._source, first, last, why, now=self._wall_clock())]

    def _note_failure(self, error: Exception, delay: float) -> None:
        told = "?" if self._told is None else self._told.version
        self.trouble = f"change events wait behind version {told}: {str(error)[:_ERROR_CHARS_MAX]}"
        self._telemetry.queue_retries.add(call="events")
        extra = {"told": told, "latest": self._latest, "error": str(error), "retry_in_seconds": delay}
        if isinstance(error, CommitterError):
            _log.warning("events.failed", extra=extra)
        else:
            _log.error("events.failed", extra=extra, exc_info=error)

    def _rise_to(self, latest: int) -> None:
        if latest > self._latest:
            self._first, self._latest = self._first or latest, latest
            self._note_moved()

    def _note_moved(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    def _forget(self) -> None:
        self._kept, self._kept_bytes, self._head = {}, 0, None
        self._first = self._latest = 0
        self._told, self._before, self._batch, self._notices = None, None, None, []
        self.trouble = ""


def _bytes_beside(head: ManifestFile | None, file: ManifestFile) -> int:
    """The bytes of a version's transaction, and of its chunks of fragments that the head before it does not have."""
    shared = set(head.fragments.chunks) if head is not None else set()
    new = sum(len(chunk.body) for chunk in file.fragments.chunks if chunk not in shared)
    return new + len(file.transaction_bytes or b"")


async def _changed(before: ManifestFile | None, after: ManifestFile) -> Difference | None:
    if after.version == 1:
        fragments = NO_FRAGMENTS
    elif before is None or before.version + 1 != after.version:
        return None
    else:
        fragments = before.fragments
    changed = changed_chunks(fragments, after.fragments)
    if changed.size <= _AT_ONCE_BYTES:
        return difference(changed)
    return await to_thread.run_sync(partial(difference, changed))
