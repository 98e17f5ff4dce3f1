"""What all datasets of a member share fails as its code does not expect: it begins anew, and every dataset goes on."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net.selector import NetworkSelector

from committerd.errors import QueueUnavailable
from committerd.kafka.contact import KafkaContact
from committerd.kafka.member import KafkaMember, opened_member
from committerd.kafka.preparation import TopicPreparation
from committerd.kafka.queue import KafkaQueue
from committerd.parts import Parts
from committerd.queue.port import Assigned, Fetched, Publication
from committerd.settings.kafka import KafkaSettings
from harness.kafka import KafkaBroker, RunningKafka
from tests.kafka.staging import PATIENT, settings_for, stage, until

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: KafkaBroker | RunningKafka) -> KafkaSettings:
    """With a session that a test can wait for: a client whose IO thread has ended can't leave its group."""
    return settings_for(kafka.bootstrap_servers, **{**PATIENT, "session_timeout_ms": 5_000})


class Fault:
    """A method that raises once what nobody expects, in a client with this role."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str, role: str) -> None:
        self._armed = threading.Lock()
        self._armed.acquire()
        method = getattr(owner, name)

        def failing(one: Any, *given: Any, **named: Any) -> Any:
            if role in _client_of(one) and self._armed.acquire(blocking=False):
                raise AssertionError("nobody expects this")
            return method(one, *given, **named)

        patch.setattr(owner, name, failing)

    def strike(self) -> None:
        """Let the next call fail, if it is not to fail already."""
        if self._armed.locked():
            self._armed.release()


def _client_of(one: Any) -> str:
    config = getattr(one, "config", {})
    if "client_id" not in config:
        config = one._manager.config if hasattr(one, "_manager") else {}
    return str(config.get("client_id", ""))


class Flow:
    """A dataset whose records flow, as its committer sees it."""

    def __init__(self, queue: KafkaQueue, settings: KafkaSettings) -> None:
        self._queue = queue
        self._settings = settings
        self._generation = 0
        self._values = set[bytes | None]()
        self._staged = 0

    async def run(self) -> None:
        """Read all from the start at each assignment."""
        while True:
            with contextlib.suppress(QueueUnavailable):
                match await self._queue.next_event():
                    case Assigned(generation=generation):
                        self._generation = generation
                        await self._queue.seek(generation, 0)
                    case Fetched(records=records):
                        self._values |= {record.value for record in records}
                    case _:
                        pass

    async def stir(self) -> None:
        """Ask of Kafka what a committer asks."""
        with contextlib.suppress(QueueUnavailable):
            await self._queue.seek(self._generation, 0)
            await self._queue.acknowledge(self._generation, 0, "")
            await self._queue.identity()
            await self._queue.publish([Publication(key=b"k", value=b"v")])

    async def flows(self) -> None:
        """Wait until a record that is staged now has come, and an outcome has been published."""
        self._staged += 1
        value = b"%d" % self._staged
        await stage(self._queue, self._settings, [value])
        await until(lambda: value in self._values, seconds=120)
        with anyio.fail_after(120):
            while True:
                with contextlib.suppress(QueueUnavailable):
                    await self._queue.publish([Publication(key=b"k", value=value)])
                    return


@dataclass
class Flows:
    """The datasets of one member."""

    member: KafkaMember
    settings: KafkaSettings

    @contextlib.asynccontextmanager
    async def of(self, *names: str) -> AsyncIterator[list[Flow]]:
        async with contextlib.AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            queues = [await stack.enter_async_context(self.member.serving(name)) for name in names]
            flows = [Flow(queue, self.settings) for queue in queues]
            for one in flows:
                tasks.start_soon(one.run)
            yield flows
            tasks.cancel_scope.cancel()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the end of an IO thread
@pytest.mark.parametrize(
    ("part", "owner", "name", "role"),
    [
        ("consumer", ConsumerCoordinator, "poll", "consumer"),
        ("consumer", Fetcher, "fetched_records", "consumer"),
        ("consumer", KafkaConsumer, "resume", "consumer"),
        ("consumer", ConsumerCoordinator, "_commit_offsets_sync_async", "consumer"),
        ("consumer", ConsumerCoordinator, "_send_heartbeat_request", "consumer"),
        ("consumer", ClusterMetadata, "update_metadata", "consumer"),
        ("consumer", NetworkSelector, "_poll_once", "consumer"),
        ("producer", KafkaProducer, "send", "outcomes"),
        ("producer", ClusterMetadata, "update_metadata", "outcomes"),
        ("admin", NetworkSelector, "_poll_once", "admin"),
        ("topics", TopicPreparation, "_look_at", ""),
        ("watch", KafkaContact, "ask", ""),
    ],
)
async def test_an_unexpected_error_of_what_all_share_ends_no_dataset(
    settings: KafkaSettings,
    dataset: str,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    owner: type,
    name: str,
    role: str,
) -> None:
    failed = list[str]()
    fault = Fault(monkeypatch, owner, name, role)
    async with opened_member(settings, f"group-of-{dataset}", name=dataset, parts=Parts(failed.append)) as member:
        flows = Flows(member, settings)
        async with flows.of(f"{dataset}-1", f"{dataset}-2") as both:
            for one in both:
                await one.flows()
            fault.strike()
            async with flows.of(f"{dataset}-3") as (third,):
                with anyio.fail_after(240):
                    for turn in itertools.count(1):
                        if part in failed:
                            break
                        if not turn % 100:  # a change of the group at the same time hides it
                            fault.strike()
                        for one in (both[0], third):
                            await one.stir()
                        await anyio.sleep(0.05)
                for one in (*both, third):
                    await one.flows()
    assert set(failed) == {part}
