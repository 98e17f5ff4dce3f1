"""The committer's parts that decide what a version holds, on a folder, with a store that responds on command."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import anyio
from prometheus_client import CollectorRegistry

from committerd.committer.assembling import Assembler
from committerd.committer.containing import Containment
from committerd.committer.deciding import DecideOptions, Decider
from committerd.committer.decoding import Decoder
from committerd.committer.head import Head
from committerd.committer.intake import Intake, Pending
from committerd.committer.loading import Loading, load
from committerd.committer.members import FormedVersion
from committerd.committer.prefetching import Prefetched, Prefetcher
from committerd.committer.record_history import look_up
from committerd.errors import StoreUnavailable
from committerd.queue.ledger import Earlier
from committerd.queue.port import Queue, Record
from committerd.queue.position import Position
from committerd.stores.local import LocalStore
from committerd.stores.port import TailOrError
from committerd.table.caches import DeletionVectorCache
from committerd.table.fetching import Fetcher, run
from committerd.table.versions import Table
from committerd.telemetry import Metrics
from committerd_common.messages import Transaction
from tests.lance.samples import fragment
from tests.table.scene import Scene, append, sources

NOW = datetime(2030, 1, 2, tzinfo=UTC)


class SlowStore(LocalStore):
    """Notes what it is asked for, and holds some objects back until told."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, durable=False)
        self.held: dict[str, anyio.Event] = {}
        self.batches: list[list[str]] = []
        self.fails = False

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        self.batches.append(list(keys))
        if self.fails:
            raise StoreUnavailable("503")
        for key in keys:
            if key in self.held:
                await self.held[key].wait()
        return await super().get_tails(keys, size=size)

    @property
    def asked(self) -> list[str]:
        return [key for batch in self.batches for key in batch]


def record(offset: int, staged: Transaction, *, timestamp_ms: int | None = None, **headers: str) -> Record:
    return Record(
        offset=offset,
        value=staged.SerializeToString(),
        headers=[(name.replace("_", "-"), value.encode()) for name, value in headers.items()],
        timestamp_ms=int(NOW.timestamp() * 1000) if timestamp_ms is None else timestamp_ms,
    )


def staged(*names: str) -> Transaction:
    made = append(1, *(fragment(0, name=name) for name in names))
    made.uuid = str(uuid.uuid4())
    return made


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds that nothing announces."""
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110
            await anyio.sleep(0.001)


async def earlier(head: Head, uuid: str, after: int) -> Earlier:
    """The history of a uuid, as a committer with this head looks it up."""
    asked = uuid, after
    steps = look_up([asked], head.ledger, created=head.history.created)
    return (await run(steps, Fetcher(head.table)))[asked]


class Bench:
    """Records arrive, are prefetched, and become versions."""

    def __init__(self, scene: Scene, options: DecideOptions | None = None) -> None:
        self.scene = scene
        self.store = SlowStore(scene.root)
        self.options = options or DecideOptions()
        self.intake = Intake(cast(Queue, None))
        self.registry = CollectorRegistry()
        self.telemetry = Metrics(self.registry).of("events")
        self.deletion_vectors = DeletionVectorCache()
        self.prefetcher = Prefetcher(
            intake=self.intake,
            decoder=Decoder(),
            table=Table(self.store, deletion_vectors=self.deletion_vectors),
            file_limits=self.options.file_limits,
            verifies=self.options.verifies,
            wall_clock=lambda: NOW,
        )
        self.decider = Decider(
            options=self.options,
            sources=sources(random=random.Random(0), wall_clock=lambda: NOW),
            containment=Containment(self.telemetry),
        )
        self.assembler = Assembler(decider=self.decider, prefetcher=self.prefetcher, telemetry=self.telemetry)
        self.next_offset = 0

    def arrive(self, *records: Record) -> None:
        self.intake._take(list(records))
        self.intake.notify()

    def arrive_staged(self, *names: str) -> None:
        records = [record(self.next_offset + place, staged(name)) for place, name in enumerate(names)]
        self.next_offset += len(names)
        self.arrive(*records)

    async def head(self) -> Head:
        table = Table(self.store, deletion_vectors=self.deletion_vectors)
        loaded = await load(table, Loading(monotonic=anyio.current_time))
        return loaded.head(Position(cluster_id="c", topic="t", topic_id="i", next_offset=0))

    async def assembled(self, head: Head | None = None, **options: object) -> FormedVersion:
        """The next version."""
        with anyio.fail_after(60):
            formed = await self.assembler.assemble(head or await self.head(), self.intake, **options)  # type: ignore[arg-type]
        assert formed is not None
        return formed

    async def settled(self) -> tuple[list[int], list[str]]:
        """Offsets that the next version commits, and why others are refused."""
        formed = await self.assembled()
        return [one.offset for one in formed.own.settled.members], [one.reason for one in formed.own.settled.refusals]

    @asynccontextmanager
    async def prefetching(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.prefetcher.run)
            self.prefetcher.switch(on=True)
            yield
            tasks.cancel_scope.cancel()

    async def prefetched(self, pending: Pending) -> Prefetched:
        """What is known of a record, once it is."""
        await until(lambda: self.prefetcher.is_ready(pending))
        return self.prefetcher._found[pending.number]
