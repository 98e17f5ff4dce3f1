"""One process's part in a consumer group: the Kafka clients that all datasets of the process share.

A `KafkaMember` has one consumer, one admin client, another for the check whether Kafka responds, and a producer each
for outcomes, dead letters and change events, however many datasets it serves. A process for a single dataset is a
member that serves one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import anyio
from anyio import CapacityLimiter, from_thread, to_thread
from kafka import errors

from committerd.errors import QueueUnavailable, RefusedToRun
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.clients import no_broker, recent_lines
from committerd.kafka.consumer import GroupMember
from committerd.kafka.options import RECORD_OVERHEAD_BYTES, topics_of
from committerd.kafka.preparation import TopicPreparation
from committerd.kafka.producer import Producers
from committerd.kafka.questions import Lanes, Questions
from committerd.kafka.queue import KafkaQueue, SharedClients
from committerd.kafka.reader import range_options
from committerd.kafka.skipped import SkippedReaders
from committerd.kafka.watch import Watch
from committerd.parts import Parts
from committerd.queue.dead_letter import OVERHEAD_BYTES
from committerd.settings.kafka import KafkaSettings

_log = logging.getLogger(__name__)

_BOOTSTRAP_MS = 5_000
"""Timeout of one attempt to connect, which can't be interrupted."""
_MEMBER_SECONDS = 2.0
_SILENT_SECONDS_MAX = 15.0
"""kafka-python should have replaced a silent connection within this time."""
_JOINING_SESSIONS_MAX = 3.0
"""How long joining the group may take, as a multiple of the session timeout."""
_CLOSE_SECONDS_MAX = 10.0
_HANDED_OVER_SECONDS = 0.02
_EVENT_THREADS = 4
"""Threads that wait for requests about the change events of all datasets. Commits need none of them."""


class KafkaMember:
    """The clients of one process; `opened_member` makes it."""

    def __init__(self, settings: KafkaSettings, group: str, name: str, *, admin: TopicAdmin, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._group = group
        self._admin = admin
        self._consumer = GroupMember(settings, group, name)
        # The client refuses what the topic would refuse: a producer does not survive the broker's refusal.
        letter_bytes_max = settings.max_record_bytes + OVERHEAD_BYTES - RECORD_OVERHEAD_BYTES
        lanes, reads = Lanes(), range_options(settings, name)
        self._shared = SharedClients(
            settings=settings,
            admin=admin,
            consumer=self._consumer,
            outcomes=Producers(settings, "outcomes", name, record_bytes_max=settings.max_record_bytes, parts=parts),
            letters=Producers(settings, "dead", name, record_bytes_max=letter_bytes_max, parts=parts),
            events=Producers(settings, "events", name, record_bytes_max=settings.max_record_bytes, parts=parts),
            lanes=lanes,
            questions=Questions(admin, group, lanes, reads, parts=parts),
            skipped=SkippedReaders(reads, request_seconds=settings.request_timeout_ms / 1000, parts=parts),
            event_lane=CapacityLimiter(_EVENT_THREADS),
        )
        self._watch = Watch(settings, group, name, admin=admin, parts=parts)
        self._session_seconds = settings.session_timeout_ms / 1000
        self._preparation = TopicPreparation(settings, group, admin=admin)

    @asynccontextmanager
    async def serving(self, dataset: str, *, join: bool = True) -> AsyncIterator[KafkaQueue]:
        """Serve a dataset's topics while the block runs: create or check them, and take part in their share-out.

        At the end the member gives the dataset's partition up; the others stay as they are. With `join` False it checks
        the topics but never creates them, and does not take part.

        Raises `SettingsError` if settings or topics are wrong, and `QueueUnavailable` if Kafka doesn't respond.
        """
        queue = KafkaQueue(self._shared, topics_of(self._settings, dataset, group=self._group), dataset)
        with self._consumer.preparing() as takes_longer:
            await self._preparation.prepare(dataset, joins=join, takes_longer=takes_longer)
            if join:
                queue.join()
                self._watch.add(queue)
        try:
            yield queue
        finally:
            queue.leave()
            self._watch.remove(queue)

    def leave(self) -> None:
        """Leave the group: all partitions go to the other members at once."""
        self._consumer.stop()

    async def handed_over(self) -> None:
        """Wait until the group has given what is not served here any more to other members."""
        while not self._consumer.is_settled():  # noqa: ASYNC110  # the consumer's thread has no event of the loop
            await anyio.sleep(_HANDED_OVER_SECONDS)

    async def run(self) -> None:
        """Be a member of the group while there are datasets to serve, until `leave`."""
        await self._parts.keep("consumer", partial(to_thread.run_sync, self._consumer.run, limiter=CapacityLimiter(1)))

    async def prepare(self) -> None:
        """Prepare the topics of the datasets that begin to be served."""
        await self._parts.keep("topics", self._preparation.run)

    async def watch(self) -> None:
        """Keep what the queues know about their topics up to date."""
        await self._parts.keep("watch", self._watch.run)

    async def watch_consumer(self) -> None:
        """Replace a consumer that receives nothing, or doesn't join, although Kafka responds to other clients."""
        await self._parts.keep("consumer_watch", self._watch_consumer)

    async def _watch_consumer(self) -> None:
        consumer = self._consumer
        unwell_since: float | None = None
        while True:
            await anyio.sleep(_MEMBER_SECONDS)
            silent = consumer.silent_seconds() > _SILENT_SECONDS_MAX
            if not silent and (not consumer.joins() or consumer.trouble):
                unwell_since = None
                continue
            try:
                # Longer than the group takes to rebalance after it has lost a member.
                patience = _SILENT_SECONDS_MAX if silent else _JOINING_SESSIONS_MAX * self._session_seconds
                await to_thread.run_sync(self._admin.broker_ids, abandon_on_cancel=True)
            except (QueueUnavailable, RefusedToRun):
                unwell_since = None
                continue
            now = anyio.current_time()
            unwell_since = now if unwell_since is None else unwell_since
            if now - unwell_since > patience:
                unwell_since = None
                consumer.replace("Kafka responds, but the consumer receives nothing or can't join its group")

    async def close(self) -> None:
        """Close all connections; call no other method afterwards."""
        with anyio.move_on_after(_CLOSE_SECONDS_MAX, shield=True):
            async with anyio.create_task_group() as tasks:
                for client in (
                    self._shared.outcomes,
                    self._shared.letters,
                    self._shared.events,
                    self._shared.skipped,
                    self._admin,
                    self._watch,
                ):
                    # Without a lane: a thread that hangs in a client must not delay this.
                    tasks.start_soon(partial(to_thread.run_sync, client.close, abandon_on_cancel=True))


@asynccontextmanager
async def opened_member(
    settings: KafkaSettings, group: str, *, name: str, join: bool = True, parts: Parts | None = None
) -> AsyncIterator[KafkaMember]:
    """Connect one process to Kafka, as a member of a group while it serves datasets.

    On exit the member leaves the group, and other members take over within a second. With `join` False it never joins.
    `name`: the name of the clients, in the broker's logs and quotas. `parts`: counts what fails.

    Raises `QueueUnavailable`, with the lines that kafka-python logged, if it can't use any broker.
    """
    parts = parts or Parts()
    admin = await to_thread.run_sync(_first_admin, settings, name, parts)
    member = KafkaMember(settings, group, name, admin=admin, parts=parts)
    try:
        with _alone():
            async with anyio.create_task_group() as tasks:
                try:
                    if join:
                        tasks.start_soon(member.run)
                        tasks.start_soon(member.watch)
                    tasks.start_soon(member.prepare)
                    tasks.start_soon(member.watch_consumer)
                    yield member
                finally:
                    member.leave()
                    tasks.cancel_scope.cancel()
    finally:
        await member.close()


@asynccontextmanager
async def open_kafka_queue(settings: KafkaSettings, name: str, *, join: bool = True) -> AsyncIterator[KafkaQueue]:
    """Open the queue of one dataset, as a member of the dataset's group; `KafkaMember.serving` says more."""
    group = topics_of(settings, name).group
    async with opened_member(settings, group, name=name, join=join) as member, member.serving(name, join=join) as queue:
        yield queue


@contextmanager
def _alone() -> Iterator[None]:
    """Raise the error of a task group by itself if it is the only one; callers expect the error."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise


def _first_admin(settings: KafkaSettings, name: str, parts: Parts) -> TopicAdmin:
    """Connect an admin client, in a worker thread: try for as long as the settings allow, or until cancelled."""
    given_up = time.monotonic() + settings.bootstrap_timeout_ms / 1000
    with recent_lines() as lines:
        while True:
            left_ms = max(1_000, int((given_up - time.monotonic()) * 1000))
            try:
                return TopicAdmin(settings, name, bootstrap_ms=min(left_ms, _BOOTSTRAP_MS), parts=parts)
            except QueueUnavailable as error:
                cause = error.__cause__
                if time.monotonic() >= given_up and isinstance(cause, errors.KafkaError):
                    raise no_broker(settings.bootstrap_servers, cause, lines) from cause
            from_thread.check_cancelled()
