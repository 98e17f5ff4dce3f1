"""What a member asks Kafka now and then, for all of its datasets together: one timer, and a few requests for all.

Whether Kafka responds, the ends of the topics and what is held back, their retentions, their oldest records without an
outcome, and their settings. Only a dataset with a backlog, or with an open Kafka transaction, needs its own requests.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.abc import TaskGroup

from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.contact import KafkaContact
from committerd.kafka.queue import KafkaQueue
from committerd.kafka.topics import topic_problems
from committerd.machine import unavailable
from committerd.parts import Parts
from committerd.settings.kafka import KafkaSettings

_log = logging.getLogger(__name__)

_ASK_SECONDS = 5.0
_HELD_BACK_TURNS = 2
_UNREAD_TURNS = 6
_GATHER_SECONDS = 0.2
"""How long the first look at a new dataset waits for others that come at the same time."""
_LOOKS = 4
"""How many datasets are looked at alone at a time."""

Result = TypeVar("Result")


class Watch:
    """Keeps what the queues of a member know about their topics up to date, while `run` runs."""

    def __init__(self, settings: KafkaSettings, group: str, name: str, *, admin: TopicAdmin, parts: Parts) -> None:
        self._settings = settings
        self._group = group
        self._admin = admin
        self._contact = KafkaContact(settings, name, parts)
        self._queues: dict[KafkaQueue, None] = {}
        self._came = anyio.Event()
        self._asks = CapacityLimiter(1)
        self._lane = CapacityLimiter(1)
        """For the other requests: one that gets no response must not look as if Kafka were silent."""
        self._looks = CapacityLimiter(_LOOKS)

    def add(self, queue: KafkaQueue) -> None:
        """Watch this dataset too, from now on."""
        self._queues[queue] = None
        self._came.set()

    def remove(self, queue: KafkaQueue) -> None:
        """Watch this dataset no more."""
        self._queues.pop(queue, None)

    async def run(self) -> None:
        """Ask until cancelled."""
        turn = 0
        topics_at = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            while True:
                new = await self._rest()
                turn += 1
                queues = tuple(self._queues)
                if not queues:
                    continue
                await self._ask(queues, ends=new or turn % _HELD_BACK_TURNS == 0)
                for queue in queues:
                    if queue.holds_back():
                        tasks.start_soon(self._look, queue.look_at_held_back)
                if new or turn % _UNREAD_TURNS == 0:
                    tasks.start_soon(self._look_at_all, queues, tasks)
                if anyio.current_time() - topics_at >= self._settings.topics_recheck_seconds:
                    topics_at = anyio.current_time()
                    tasks.start_soon(self._check_topics, queues)

    def close(self) -> None:
        """Close the connections; blocks."""
        self._contact.close()

    async def _rest(self) -> bool:
        """Wait for the next turn. Returns whether a dataset has come."""
        with anyio.move_on_after(_ASK_SECONDS):
            await self._came.wait()
            await anyio.sleep(_GATHER_SECONDS)
        new = self._came.is_set()
        self._came = anyio.Event()
        return new

    async def _ask(self, queues: Sequence[KafkaQueue], *, ends: bool) -> None:
        partitions = [queue.partition for queue in queues]
        with _passed_over():
            said = await to_thread.run_sync(
                partial(self._contact.ask, partitions, ends=ends), limiter=self._asks, abandon_on_cancel=True
            )
            for queue in queues:
                queue.note_contact(said[queue.partition])

    async def _look_at_all(self, queues: Sequence[KafkaQueue], tasks: TaskGroup) -> None:
        with _passed_over():
            kept = await self._request(partial(self._admin.retentions_ms, [queue.topics.staged for queue in queues]))
            for queue in queues:
                if queue.topics.staged in kept:
                    queue.note_retention(kept[queue.topics.staged])
        owned = [queue.partition for queue in queues if queue.acknowledged_unknown()]
        if owned:
            with _passed_over():
                found = await self._request(partial(self._admin.all_acknowledged, self._group, owned))
                for queue in queues:
                    if queue.partition in owned:
                        queue.note_acknowledged(found.get(queue.partition))
        for queue in queues:
            if queue.has_unread():
                tasks.start_soon(self._look, queue.look_at_unread)

    async def _check_topics(self, queues: Iterable[KafkaQueue]) -> None:
        """Check the topics' settings, because somebody may alter them at any time."""
        by_name = {queue.name: queue for queue in queues}
        with _passed_over():
            look = partial(topic_problems, self._admin, self._settings, by_name)
            for name, problems in (await self._request(look)).items():
                by_name[name].note_topic_problems(problems)

    async def _look(self, look: Callable[[], Awaitable[None]]) -> None:
        async with self._looks:
            with _passed_over():
                await look()

    async def _request(self, work: Callable[[], Result]) -> Result:
        return await to_thread.run_sync(work, limiter=self._lane, abandon_on_cancel=True)


@contextmanager
def _passed_over() -> Iterator[None]:
    """Pass over what a later turn may find mended: Kafka, the settings of a topic, or this machine, as out of files."""
    try:
        yield
    except (QueueUnavailable, SettingsError):
        pass
    except Exception as error:
        if unavailable(error) is None:
            raise
