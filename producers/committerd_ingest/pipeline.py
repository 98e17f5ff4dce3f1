"""A process of a pipeline: the partitions that the group has given it, and the memory that they share."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable

from kafka.errors import KafkaError

from committerd_ingest.figures import Figures
from committerd_ingest.kafka_facts import BadRecords, Topics
from committerd_ingest.partition import PartitionWork
from committerd_ingest.records import Partition
from committerd_ingest.registry import Registry
from committerd_ingest.settings import Pipeline
from committerd_ingest.source import Arrived, Assigned, Event, Revoked, Sought, Source, Unreadable
from committerd_ingest.table import Table, now_ms

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_ASKING_SHARE = 4
"""When the memory is used up, partitions that wait for a registry keep one part in so many of it, all together."""


class Ingest:
    """Runs a pipeline in this process."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        open_source: Callable[[Callable[[Event], None]], Source],
        table: Table,
        topics: Topics,
        bad_records: BadRecords,
        figures: Figures,
        registry: Registry | None = None,
    ) -> None:
        """`registry`: None = records of the pipeline's format name no schemas."""
        self._pipeline, self._table, self._topics = pipeline, table, topics
        self._registry, self._bad_records, self._figures = registry, bad_records, figures
        self._source = open_source(self._event)
        self._works: dict[Partition, tuple[PartitionWork, asyncio.Task[None]]] = {}
        self._writing = asyncio.Semaphore(pipeline.writes_max)
        self._full: set[Partition] = set()
        """Those that are paused until there is room again."""

    async def run(self, stopped: asyncio.Event, *, drain_seconds: float) -> None:
        """Work until `stopped`; then write what waits, for at most `drain_seconds`, and leave the group."""
        await self._source.start()
        following = asyncio.create_task(self._follow_pattern()) if self._pipeline.topic_pattern else None
        try:
            while not stopped.is_set():
                await self._look()
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await stopped.wait()
                except TimeoutError:
                    continue
            await self._drain(drain_seconds)
        finally:
            if following is not None:
                following.cancel()
            for partition in list(self._works):
                self._end(partition)
            await self._source.stop()
            await asyncio.to_thread(self._topics.close)
            self._bad_records.close()

    def live(self) -> list[str]:
        """What is stuck, so that only a restart can help."""
        silent = time.monotonic() - self._source.turned_at
        return [f"the Kafka consumer has not turned for {silent:.0f} s"] if silent > 60 else []

    def ready(self) -> tuple[bool, str]:
        """Whether the process does its work, and a sentence on it."""
        if not self._source.topics:
            pattern = self._pipeline.topic_pattern
            return False, f"no topic was found that matches {pattern!r} and on which the user has the ACL Read"
        trouble = self._source.trouble
        if not self._source.joined:
            return False, trouble or "joins the consumer group"
        works = [work for work, _ in self._works.values()]
        stopped = [f"{work.partition}: {work.trouble}" for work in works if work.trouble]
        text = f"{len(works)} partitions"
        if stopped:
            text = f"{text}, of which {len(stopped)} are stopped. {stopped[0]}"
        return bool(works) or not trouble, f"{text}; {trouble}" if trouble else text

    async def _follow_pattern(self) -> None:
        """Read the topics that match the pattern, those that are made later too.

        A subscription by a pattern would do the same, but with kafka-python such a consumer reads the metadata of all
        topics at each attempt to join its group, within the time of a poll: where there are thousands, it never joins.
        """
        while True:
            try:
                names = await self._topics.names()
            except Exception as error:  # noqa: BLE001  # whatever it is: it is tried again
                _log.warning("ingest.topics_not_listed", extra={"error": str(error)})
                await asyncio.sleep(self._pipeline.retry_seconds)
                continue
            found = tuple(one for one in names if re.match(self._pipeline.topic_pattern, one))
            if found != self._source.topics:
                _log.info("ingest.topics_found", extra={"topics": found})
                self._source.subscribe(found)
            await asyncio.sleep(self._pipeline.topics_seconds)

    def _event(self, event: Event) -> None:
        match event:
            case Assigned(partitions):
                _log.info("ingest.assigned", extra={"partitions": [str(one) for one in partitions]})
                for one in partitions:
                    self._end(one)
                    self._start(one)
            case Revoked(partitions):
                _log.info("ingest.revoked", extra={"partitions": [str(one) for one in partitions]})
                for one in partitions:
                    self._end(one)
            case Sought(partition, seek, by):
                # The work on an earlier assignment may have asked for a seek. This work asks for its own.
                if partition in self._works and self._works[partition][0] is by:
                    self._full.discard(partition)  # the seek has resumed it
                    self._works[partition][0].sought(seek)
            case Arrived(partition, seek, records, more):
                if partition in self._works:
                    self._works[partition][0].arrived(seek, records, more)
                    self._bound()
            case Unreadable(partition, why, not_allowed):
                if partition in self._works:
                    self._works[partition][0].unreadable(why, not_allowed=not_allowed)

    def _start(self, partition: Partition) -> None:
        work = PartitionWork(
            partition,
            self._pipeline,
            source=self._source,
            table=self._table,
            topics=self._topics,
            registry=self._registry,
            bad_records=self._bad_records,
            figures=self._figures,
            writing=self._writing,
            freed=self._unbound,
        )
        self._works[partition] = work, asyncio.get_running_loop().create_task(work.run())

    def _end(self, partition: Partition) -> None:
        """End the work on a partition. A transaction that is on its way may still be committed, once."""
        self._full.discard(partition)
        found = self._works.pop(partition, None)
        if found is not None:
            work, running = found
            work.retire()
            running.cancel()

    def _bound(self) -> None:
        """Pause the partitions that have something to write, while too much waits."""
        most = self._pipeline.buffer_bytes_max
        if self._held() <= most:
            return
        waiting = {one: work for one, (work, _) in self._works.items() if work.buffer.records}
        for work in waiting.values():
            work.give_back(most // (_ASKING_SHARE * len(self._works)))
        if self._held() <= most:
            return
        new = waiting.keys() - self._full
        self._full |= new
        self._source.pause(sorted(new))
        for work in waiting.values():
            work.press()

    def _unbound(self) -> None:
        """Go on with the partitions that were paused, when there is room again."""
        if self._full and self._held() <= self._pipeline.buffer_bytes_max // 2:
            again, self._full = sorted(self._full), set()
            self._source.resume([one for one in again if one in self._works and self._works[one][0].fetches])

    def _held(self) -> int:
        return sum(work.bytes for work, _ in self._works.values())

    async def _look(self) -> None:
        works = [work for work, _ in self._works.values()]
        self._unbound()
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                ends = await self._source.ends()
        except (KafkaError, TimeoutError):
            ends = {}
        lag = sum(max(ends.get(work.partition, 0) - work.reached, work.end - work.reached, 0) for work in works)
        oldest = min((one for work in works if (one := work.oldest_ms()) is not None), default=None)
        self._figures.state(
            partitions=len(works),
            stopped=sum(work.trouble is not None for work in works),
            waiting_bytes=self._held(),
            lag=lag,
            lag_seconds=0.0 if oldest is None else max(now_ms() - oldest, 0) / 1000,
        )

    async def _drain(self, seconds: float) -> None:
        """Write what waits, and fetch nothing more."""
        self._source.fetch_no_more()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            works = [work for work, _ in self._works.values() if not work.stopped]
            if not any(work.buffer.records or work.busy for work in works):
                return
            for work in works:
                work.press()
            await asyncio.sleep(0.05)
