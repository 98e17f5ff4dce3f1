"""A dataset's topics and group, for the operator's commands.

No command joins the group. Wrong or missing topics are not an error here, because the commands report them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio import to_thread
from kafka import KafkaProducer, TopicPartition, errors

from committerd.errors import QueueUnavailable
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.clients import in_words, open_client
from committerd.kafka.options import client_id, producer_options, reader_options, topics_of
from committerd.kafka.reader import RangeReader, follow_batches, read_batches
from committerd.kafka.records import to_record
from committerd.kafka.topics import TopicSurvey, survey_topics
from committerd.kafka.transactions import OpenTransaction, end_transaction, open_transactions
from committerd.queue.port import Acknowledged, Publication, Record, TopicIdentity
from committerd.settings.kafka import KafkaSettings
from committerd.waiting import waiting_for
from committerd_login.access import denied

_CLOSE_SECONDS = 1.0

Result = TypeVar("Result")
Bounds = Mapping[int, tuple[int, int]]
"""Half-open range of offsets, by partition."""


class Followed(NamedTuple):
    """What has come to a topic."""

    records: list[tuple[int, Record]]
    """(partition, record), each partition in offset order; empty when nothing is new."""
    silent_seconds: float
    """Seconds since Kafka last sent anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A committer, as Kafka describes it."""

    client_id: str
    machine: str
    """The host name of the process; in Kubernetes the name of its Pod."""
    host: str
    """Its address, as Kafka sees it."""
    active: bool
    """Whether it owns the staged partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """The dataset's consumer group."""

    name: str
    state: str
    """Kafka's term: Stable, PreparingRebalance, Empty, Dead (the group does not exist), ..."""
    members: Sequence[MemberDescription]


class TopicOperator:
    """Made by `open_operator`. Every method may raise `QueueUnavailable`."""

    def __init__(self, settings: KafkaSettings, name: str, *, admin: TopicAdmin) -> None:
        self.topics = topics_of(settings, name)
        self._settings = settings
        self._name = name
        self._admin = admin
        self._reader = RangeReader(settings, self.topics, name, admin=admin)
        self._staged = TopicPartition(self.topics.staged, 0)

    async def survey(
        self,
        name: str | None = None,
        *,
        create: bool = False,
        note_created: Callable[[str], None] = lambda topic: None,
    ) -> TopicSurvey:
        """Compare the topics with the settings, and this user's rights with the rights that a committer needs.

        `name`: the dataset; None = that of this operator.
        `create`: first create the topics that are missing. Whoever does that need not be a committer, so rights are not
        compared. `note_created`: called with each topic that was created, whatever is raised then. Raises
        `SettingsError` if Kafka can't create a topic.
        """
        survey = partial(
            survey_topics,
            self._admin,
            self._settings,
            name or self._name,
            create=create,
            rights=not create,
            note_created=note_created,
        )
        return await self._ask(survey)

    async def all_topics(self) -> list[str]:
        """The names of all topics of the cluster that this user may see."""
        return await self._ask(self._admin.topics)

    async def identity(self) -> TopicIdentity:
        """The identity of the staged topic. Raises `RefusedToRun` (`topic_gone`) if it does not exist."""
        return await self._ask(partial(self._admin.identity, self.topics.staged, None))

    async def bounds(self, topic: str, *, held_back: bool = False) -> dict[int, tuple[int, int]]:
        """Log start and end of each partition, half-open. Raises `QueueUnavailable` also if there is no such topic.

        `held_back`: with the records that an open Kafka transaction holds back.
        """

        def ask() -> dict[int, tuple[int, int]]:
            found = self._admin.bounds(self._admin.partitions(topic), held_back=held_back)
            return {at.partition: bounds for at, bounds in found.items()}

        return await self._ask(ask)

    async def since(self, topic: str, timestamp_ms: int) -> dict[int, tuple[int, int]]:
        """As `bounds`, without the records before a time (Unix milliseconds)."""

        def ask() -> dict[int, tuple[int, int]]:
            bounds = self._admin.bounds(self._admin.partitions(topic))
            starts = self._admin.offsets_at(list(bounds), timestamp_ms)
            return {at.partition: (starts.get(at, end), end) for at, (_, end) in bounds.items()}

        return await self._ask(ask)

    async def open_transactions(self) -> list[OpenTransaction]:
        """The Kafka transactions that hold back staged records."""
        return await self._ask(partial(open_transactions, self._admin, self._staged))

    async def end_transaction(self, one: OpenTransaction) -> None:
        """Abort a transaction: its records are never delivered."""
        await self._ask(partial(end_transaction, self._admin, self._settings, self._staged, one))

    async def end(self) -> int:
        """The end of the staged topic, including records that an open Kafka transaction holds back."""
        return await self._ask(partial(self._admin.end, self._staged))

    async def acknowledged(self) -> Acknowledged | None:
        """The group's committed offset; None if it has none."""
        return await self._ask(partial(self._admin.acknowledged, self.topics.group, self._staged))

    async def outcomes_tail(self, limit: int) -> list[bytes]:
        """Values of the last records of the outcomes topic, at most `limit` of each partition."""
        return await self._ask(partial(self._reader.outcomes_tail, limit))

    async def read(self, start: int, end: int) -> list[Record]:
        """The records of the staged partition in the half-open range that still exist."""
        return await self._ask(partial(self._reader.staged, start, end))

    async def group(self) -> GroupDescription:
        """The committers' group and its members."""
        described = await self._ask(partial(self._admin.group, self.topics.group))
        own = client_id("consumer", self._settings.group or self._name, machine="")
        members = [
            MemberDescription(
                client_id=member["client_id"],
                machine=member["client_id"].removeprefix(own),
                host=member["client_host"].lstrip("/"),
                active=self.topics.staged in _owned(member),
            )
            for member in described["members"]
        ]
        return GroupDescription(name=self.topics.group, state=described["group_state"], members=members)

    async def owners(self) -> Mapping[str, MemberDescription]:
        """The members of the group by the staged topics that they own, of all datasets of the group."""
        described = await self._ask(partial(self._admin.group, self.topics.group))
        own = client_id("consumer", self._settings.group or self._name, machine="")
        return {
            topic: MemberDescription(
                client_id=member["client_id"],
                machine=member["client_id"].removeprefix(own),
                host=member["client_host"].lstrip("/"),
                active=True,
            )
            for member in described["members"]
            for topic in _owned(member)
        }

    async def unacknowledged(self, name: str) -> int:
        """Records of another dataset of the group that can be read, and are not acknowledged.

        Raises `QueueUnavailable` also if there is no such topic.
        """
        topics = topics_of(self._settings, name)
        staged = TopicPartition(topics.staged, 0)

        def ask() -> int:
            start, end = self._admin.bounds([staged])[staged]
            found = self._admin.acknowledged(topics.group, staged)
            return max(end - max(start, 0 if found is None else found.offset), 0)

        return await self._ask(ask)

    async def stream(
        self, topic: str, ranges: Bounds, *, held_back: bool = False
    ) -> AsyncGenerator[list[tuple[int, Record]], None]:
        """Yield batches of (partition, record) of the half-open ranges, each partition in offset order.

        `held_back`: also the records of Kafka transactions that are open or aborted. A caller that does not read to the
        end must close it (`contextlib.aclosing`).
        """
        options = reader_options(self._settings, self._name)
        if held_back:
            options["isolation_level"] = "read_uncommitted"
        requested = {TopicPartition(topic, partition): bounds for partition, bounds in ranges.items()}
        batches = read_batches(
            options | {"bootstrap_timeout_ms": self._settings.request_timeout_ms},
            requested,
        )
        try:
            while (batch := await self._ask(partial(_next, batches))) is not None:
                yield [(found.partition, to_record(found)) for found in batch]
        finally:
            with anyio.CancelScope(shield=True):
                await self._ask(batches.close)

    async def follow(self, topic: str, starts: Mapping[int, int]) -> AsyncGenerator[Followed, None]:
        """Yield what comes from these offsets on, by partition, for ever, and at least once a second.

        A caller must close it (`contextlib.aclosing`). Raises `QueueUnavailable` if Kafka has sent nothing for the time
        of one request.
        """
        options = reader_options(self._settings, self._name) | {
            "bootstrap_timeout_ms": self._settings.request_timeout_ms,
        }
        places = {TopicPartition(topic, partition): offset for partition, offset in starts.items()}
        batches = follow_batches(options, places)
        try:
            batch, silent_seconds = await self._ask(partial(next, batches))  # connects
            while True:
                yield Followed([(found.partition, to_record(found)) for found in batch], silent_seconds)
                batch, silent_seconds = await _to_its_end(partial(next, batches))
        finally:
            with anyio.CancelScope(shield=True):
                await _to_its_end(batches.close)

    async def stage(self, publications: Sequence[Publication]) -> list[int]:
        """Write records to the staged topic and wait for Kafka's acknowledgements; returns their offsets.

        After an error the topic may hold any of them.
        """
        return await self._ask(partial(self._stage, publications))

    async def delete_letters_below(self, offset: int) -> int:
        """Delete the dead letters below an offset; returns the new log start."""
        return await self._ask(partial(self._admin.delete_below, TopicPartition(self.topics.dead, 0), offset))

    async def _ask(self, work: Callable[[], Result]) -> Result:
        return await _in_thread(self._settings, work)

    def _stage(self, publications: Sequence[Publication]) -> list[int]:
        size = self._settings.max_record_bytes
        opened = open_client(KafkaProducer, producer_options(self._settings, "dead", self._name, record_bytes_max=size))
        seconds = (self._settings.delivery_timeout_ms + self._settings.request_timeout_ms) / 1000
        try:
            futures = [
                opened.client.send(
                    self.topics.staged, key=one.key, value=one.value, headers=list(one.headers), partition=0
                )
                for one in publications
            ]
            return [int(future.get(seconds).offset) for future in futures]
        except errors.KafkaError as error:
            why = denied(error, "Write", topic=self.topics.staged) or in_words(error)
            raise QueueUnavailable(f"writing to {self.topics.staged}: {why}") from error
        finally:
            with suppress(errors.KafkaError):
                opened.client.close(timeout=_CLOSE_SECONDS)


@asynccontextmanager
async def open_operator(settings: KafkaSettings, name: str) -> AsyncIterator[TopicOperator]:
    """Connect, within the time of one request. Raises `QueueUnavailable` with the lines that kafka-python logged."""
    admin = await _in_thread(settings, partial(TopicAdmin, settings, name, bootstrap_ms=settings.request_timeout_ms))
    try:
        yield TopicOperator(settings, name, admin=admin)
    finally:
        with anyio.CancelScope(shield=True):
            await _in_thread(settings, admin.close)


async def _in_thread(settings: KafkaSettings, work: Callable[[], Result]) -> Result:
    """Call `work` in a thread; if Kafka does not answer, that is told."""
    with waiting_for(f"Kafka at {','.join(settings.bootstrap_servers)}"):
        return await _to_its_end(work)


async def _to_its_end(work: Callable[[], Result]) -> Result:
    """Call `work` in a thread, and wait for it even if the process is interrupted.

    At SIGINT asyncio cancels the main task, whatever shields it, and a client that is closed while a thread uses it
    stays open. A task of its own is not cancelled so.
    """
    results, raised = list[Result](), list[Exception]()

    async def call() -> None:
        try:
            results.append(await to_thread.run_sync(work))
        except Exception as error:  # noqa: BLE001  # raised below, outside the group
            raised.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
    if raised:
        raise raised[0]
    return results[0]


def _next(batches: Generator[list[Any], None, None]) -> list[Any] | None:
    return next(batches, None)


def _owned(member: Mapping[str, Any]) -> list[str]:
    """The staged topics whose partition a member owns."""
    assignment = member["member_assignment"] or {}  # it is empty bytes during a rebalance
    return [one["topic"] for one in assignment.get("assigned_partitions", ()) if 0 in one["partitions"]]
