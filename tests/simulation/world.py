"""The whole simulation: committers, producers, a foreign writer, and faults, drawn from one seed.

First comes a time with all faults; then there are none, and within `CALM_SECONDS` every record must be settled.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from unittest.mock import patch

import anyio
from prometheus_client import CollectorRegistry

from committerd.committer import loading, older_history, stale_history
from committerd.kafka.held_back import HeldBack
from committerd.queue.port import Record
from committerd.settings.commit import CommitSettings
from committerd.settings.dataset import DatasetSettings
from committerd.settings.kafka import KafkaSettings
from committerd.settings.load import Settings
from committerd.settings.memory import MemorySettings
from committerd.settings.store import StoreSettings
from committerd.telemetry import Metrics, Telemetry
from committerd_common.messages import DataFragment
from tests.simulation.auditor import Auditor
from tests.simulation.chaos import Chaos, Event
from tests.simulation.faults import CALM, Rates, Weather
from tests.simulation.foreign import ForeignWriter
from tests.simulation.loop import Deadlock, Livelock, TurnTooLong, run_virtual
from tests.simulation.operator import adopt, set_pause
from tests.simulation.process import EPOCH, Process
from tests.simulation.producers import Producers
from tests.simulation.pylance import FLAG
from tests.simulation.queue import FakeBroker, FakeQueue
from tests.simulation.staging import URI
from tests.simulation.store import Bucket

_MEMORY_SLACK_BYTES = 32 * 1024
"""The newest versions are kept, whatever memory they take: that of some versions of a few records."""
_LOOK_SECONDS = 10.0
_QUICK = Rates(latency=0.005)
CALM_SECONDS = 120.0
"""From the last fault to the last outcome: a refusal to run is retried within 10 s, a backoff takes at most 5 s, a put
that hangs 30 s.
"""
TRACE_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The scenario of a seed."""

    records: int = 20
    seconds: float = 30.0
    """The time in which records are staged and faults happen."""
    table: Literal["there", "made_by_foreign", "made_by_queue", "branched"] = "there"
    """`branched`: it is a branch of a table that has a queue of its own."""
    by_pylance: bool = False
    """Whether the table has a feature that committerd does not know, so that pylance builds its versions."""
    rates: Rates = CALM
    latency: float = 0.005
    events: Mapping[Event, float] = field(default_factory=dict)
    """The events that may happen, and their relative frequency."""
    event_seconds: float = 5.0
    """Mean time between two events."""
    foreign_seconds: float | None = None
    """Mean time between two foreign commits."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of the group `commit`."""
    ledger_bytes: int = 1024 * 1024
    footprint_bytes: int = 1024 * 1024
    """Where both bounds are far below the settings, dropped parts of the history are needed again."""
    is_alone: bool = False
    """Whether no other table of the process takes the memory of its caches. What is taken is read again, and a record
    that waits for it lets others pass.
    """
    recheck_seconds: float = 10.0
    producers: int = 0
    """Names of producers, of which each record that names none gets a random one; 0 = it stays without."""
    room: int = 50
    """Records that a member fetches beyond those that have an outcome."""
    history_batch: int = 256
    """Maximum number of versions to read at a time, of the older history and of footprints for a record. With few,
    records wait for what is unread.
    """


class World:
    """One simulation."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self.seed = seed
        self.scenario = scenario
        self.trace: list[str] = []
        self.rng = random.Random(f"{seed} world")
        self.rates = scenario.rates
        self.room = scenario.room
        self.session_seconds = 10.0
        self.telemetry = _telemetry()
        self.settings = Settings(
            dataset=DatasetSettings(name="t", uri=URI),
            # Not validated: less than an operator may set.
            kafka=KafkaSettings(bootstrap_servers=("nowhere:9092",)).model_copy(
                update={"outstanding_records_max": scenario.room}
            ),
            commit=CommitSettings.model_validate(scenario.settings),
            store=StoreSettings(recheck_seconds=scenario.recheck_seconds, probe=False),
        )
        # Not validated: less than an operator may set.
        memory = MemorySettings.model_construct(
            ledger_bytes=scenario.ledger_bytes, footprint_bytes=scenario.footprint_bytes
        )
        self.settings = self.settings.model_copy(update={"memory": memory})
        self.bucket = Bucket()
        self.broker = FakeBroker(now_ms=self._now_ms, rng=random.Random(f"{seed} broker"))
        self.auditor = Auditor(
            self.bucket,
            self.broker,
            self.note,
            sleepless=not {Chaos.stand_still, Chaos.oversleep} & scenario.events.keys(),
        )
        self.auditor.verifies_files = self.settings.commit.verify_files == "always"
        self.auditor.may_have_dropped = scenario.ledger_bytes < 1024 * 1024
        self.auditor.watch()
        self.processes = [Process(self, name) for name in ("one", "two")]
        self.producers = Producers(self)
        self.foreign = ForeignWriter(self)
        self.chaos = Chaos(self)
        self.flaky_files: list[str] = []
        self.causes: set[str] = set()
        """Refusals to run that have a cause so far."""
        self.refused: set[str] = set()
        """Refusals to run that occurred."""

    async def run(self) -> None:
        """Run everything; the auditor has the violations."""
        async with anyio.create_task_group() as tasks:
            for process in self.processes:
                tasks.start_soon(process.run)
            tasks.start_soon(self._watch)
            tasks.start_soon(self._watch_held_back)
            if self.scenario.by_pylance:
                self.foreign.put_table(1, feature_flags=FLAG)
            elif self.scenario.table == "there":
                await self.foreign.create()
            if self.scenario.table == "branched":
                self.foreign.put_branch()
            async with anyio.create_task_group() as storm:
                if self.scenario.foreign_seconds is not None:
                    storm.start_soon(self.foreign.run, self.scenario.foreign_seconds)
                storm.start_soon(self.chaos.run)
                await self.producers.run(self.scenario.records, self.scenario.seconds)
                storm.cancel_scope.cancel()
            await self._calm_down()
            await self._settled()
            tasks.cancel_scope.cancel()

    def stage(self, value: bytes, headers: Sequence[tuple[str, bytes]], *, in_transaction: bool = False) -> Record:
        record = self.broker.stage(value, headers=headers, in_transaction=in_transaction)
        self.auditor.staged(record)
        self.note(f"staged {record.offset}")
        return record

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{asyncio.get_running_loop().time():.6f} {line}")

    def digest(self) -> str:
        """A digest of the run; equal for equal runs."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def fragment_ids(self, version: int) -> list[int]:
        seen = self.auditor.versions.get(version)
        return [fragment.id for fragment in seen.file.manifest.fragments] if seen else []

    def live_fragments(self, version: int) -> list[tuple[DataFragment, set[int]]]:
        """The fragments of a version, each with the offsets of its live rows."""
        seen = self.auditor.versions.get(version)
        return [] if seen is None else self.auditor.live_fragments(seen.file)

    async def _calm_down(self) -> None:
        """End all faults and the pause, and make a table if there is none."""
        self.note("calm")
        self.chaos.end()
        if self.auditor.paused:
            await set_pause(self, None)
        if not self.auditor.latest and self.scenario.table == "made_by_queue":
            self.producers.stage(self.producers.create())
        if not self.auditor.latest and self.scenario.table == "made_by_foreign":
            await self.foreign.create()

    async def _settled(self) -> None:
        """Wait until every record has its outcome and is acknowledged."""
        until = anyio.current_time() + CALM_SECONDS
        while not self.auditor.is_over:
            unanswered = self.auditor.unanswered()
            # A lost offset comes back only with the next outcome, and a late one is superseded by it.
            acknowledged = self.broker.group is None or self.auditor.acknowledged >= self._acknowledgeable()
            if not unanswered and acknowledged:
                return
            if anyio.current_time() > until:
                states = {p.name: (p.state, p.committer.state.text if p.committer else "") for p in self.processes}
                told = f"unanswered {unanswered}" if unanswered else f"acknowledged {self.broker.group}"
                self.auditor.fail(f"{CALM_SECONDS:g} s of calm, and {told}; {states}")
            if any(process.state == "refused" for process in self.processes):
                await adopt(self)
            await anyio.sleep(0.5)

    def _acknowledgeable(self) -> int:
        """The offset that the group has in the end. A record that was settled ahead may follow an offset without a
        record; the position passes both when the next record arrives.
        """
        end, position = self.broker.records_end, self.auditor.position
        if position is None or self.broker.records(position.next_offset, position.next_offset + 1):
            return end
        return min(end, position.next_offset)

    async def _watch(self) -> None:
        """End at the first violation; note every refusal to run."""
        while not self.auditor.is_over:
            for process in self.processes:
                self._within_memory(process)
                if process.committer is not None and process.committer.state.name == "refused":
                    self._refused(process.name, process.committer.state.code, process.committer.state.text)
            # A refusal to run is retried after 10 s.
            await anyio.sleep(4)
        raise Violated

    async def _watch_held_back(self) -> None:
        """Look what is held back as the partition's owner does, and check it once it has had the time to look twice."""
        held_back = HeldBack(FakeQueue(self.broker, Weather(random.Random(f"{self.seed} held back"), _QUICK)))
        seen, looks = self.broker.transaction, 0
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            await held_back.look()
            looks = looks + 1 if seen is self.broker.transaction else 0
            seen, found = self.broker.transaction, held_back.current()
            if looks < 2:
                continue
            if seen is None and found is not None:
                self.auditor.fail(f"{found[0]} records count as held back, and no Kafka transaction is open")
            if seen is not None and (found is None or found[0] < len(seen.offsets)):
                self.auditor.fail(f"an open Kafka transaction holds back {sorted(seen.offsets)}, and {found} is told")
            if seen is not None and found is not None and found[1] != seen.first.timestamp_ms:
                self.auditor.fail("what an open Kafka transaction holds back is not as old as its first record")

    def _within_memory(self, process: Process) -> None:
        current = process.committer.current if process.committer is not None else None
        if current is None:
            return
        taken = {
            "ledger": (current.head.ledger.bytes, self.scenario.ledger_bytes),
            "footprints": (current.table.footprint_bytes, self.scenario.footprint_bytes),
        }
        for what, (size, bound) in taken.items():
            if size > bound + _MEMORY_SLACK_BYTES:
                self.auditor.fail(f"{process.name}: {what} take {size} bytes, {bound} are allowed")

    def _refused(self, name: str, code: str, text: str) -> None:
        if code not in self.refused:
            self.refused.add(code)
            self.note(f"{name} refuses: {code}")
        if code not in self.causes:
            self.auditor.fail(f"{name} refuses to run without a cause: {code}: {text}")

    def _now_ms(self) -> int:
        return int((EPOCH.timestamp() + anyio.current_time()) * 1000)


@functools.cache
def _telemetry() -> Telemetry:
    """One for all: making the metrics takes as long as a hundred commits, and no test reads them here."""
    return Metrics(CollectorRegistry()).of("events")


class Violated(Exception):
    """The auditor has found a violation, so the run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one seed."""

    seed: int
    violation: str | None
    beyond: str
    """A situation that nobody promises to handle occurred, and so the run ended early; empty = it did not."""
    trace: Sequence[str]
    digest: str
    world: World

    def text(self) -> str:
        """What is wrong, what led to it, and how to run it again."""
        last = "\n  ".join(self.trace[-TRACE_LINES:])
        return f"seed {self.seed}: {self.violation}\n  {last}\nagain: make simulate SEEDS={self.seed}"


def simulate(seed: int, scenario: Scenario, *, prepare: Callable[[World], None] = lambda world: None) -> Report:
    """Run one seed to its end. `prepare` may change the world before it begins."""
    made: list[World] = []

    async def main() -> None:
        world = World(seed, scenario)
        made.append(world)
        prepare(world)
        await world.run()

    violation: str | None = None
    try:
        with (
            patch.object(loading, "FIRST_BATCH", min(older_history.FIRST_BATCH, scenario.history_batch)),
            patch.object(older_history, "FIRST_BATCH", min(older_history.FIRST_BATCH, scenario.history_batch)),
            patch.object(loading, "BATCH_MAX", scenario.history_batch),
            patch.object(older_history, "BATCH_MAX", scenario.history_batch),
            patch.object(stale_history, "_FEW_VERSIONS", scenario.history_batch),
        ):
            run_virtual(main)
    except* Violated:
        violation = next(iter(made[0].auditor.violations), None)
    except* (Deadlock, Livelock, TurnTooLong) as group:
        violation = repr(group.exceptions[0])
    world = made[0]
    if violation is None and world.auditor.violations:
        violation = world.auditor.violations[0]
    return Report(
        seed=seed,
        violation=violation,
        beyond=world.auditor.beyond,
        trace=world.trace,
        digest=world.digest(),
        world=world,
    )
