"""One dataset of a process: its committer, with what it needs of the world."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import anyio.lowlevel

from committerd.committer.assembling import Assembler
from committerd.committer.change_feed import ChangeFeed
from committerd.committer.clock import QueueClock
from committerd.committer.committer import Committer, Components
from committerd.committer.containing import Containment
from committerd.committer.deciding import DecideOptions, Decider
from committerd.committer.decoding import Decoder
from committerd.committer.intake import Intake
from committerd.committer.ledgers import Ledgers
from committerd.committer.loading import Loading
from committerd.committer.outcome_maker import OutcomeMaker
from committerd.committer.prefetching import Prefetcher
from committerd.committer.publisher import Publisher
from committerd.committer.putting import Putter
from committerd.committer.stages import Trace
from committerd.committer.starting import Starter
from committerd.committer.state import Intervals, State
from committerd.lance.operations.permissions import Permissions
from committerd.machine import Machine
from committerd.queue.change_event import EventSource
from committerd.queue.grouping import GroupLimits
from committerd.queue.port import EventTopic, Queue
from committerd.queue.producers import Admission
from committerd.queue.reach import Reach
from committerd.queue.turns import BatchLines
from committerd.settings.commit import CommitSettings
from committerd.settings.load import Settings
from committerd.settings.memory import MemorySettings
from committerd.stores.port import ObjectStore
from committerd.stores.probing import Neighbours, Prover
from committerd.stretches import GiveWay, to_all
from committerd.table.backoff import Backoff
from committerd.table.caches import DeletionVectorCache
from committerd.table.case import Sources
from committerd.table.fetching import BuildWithPylance
from committerd.table.heavy_work import HeavyWork, at_once
from committerd.table.knowledge import Knowledge
from committerd.table.staged_files import FileLimits
from committerd.table.versions import Table, budgets_of
from committerd.telemetry import Telemetry
from committerd_common.messages import Outcome, Refusal

_AHEAD_MAX = timedelta(minutes=5)
"""How far a version's timestamp may be ahead of Kafka's clock, so that it is later than that of the version before."""


class Membership(Protocol):
    """The daemon's membership in the consumer group, as metrics and probes show it."""

    @property
    def owner_turned_at(self) -> float:
        """When the thread that owns the consumer last ran through its loop (monotonic clock, seconds)."""
        ...

    def member_state(self) -> str:
        """active, standby or joining."""
        ...

    def trouble(self) -> str:
        """Why this process can't be a member of the group; empty if it can."""
        ...

    def begins(self, generation: int) -> None:
        """Note that the table has begun to be served in this assignment."""
        ...

    def leave(self) -> None:
        """Leave the group, so that a standby takes over."""
        ...

    def end_offset(self) -> int | None:
        """End of the staged partition; None before the first assignment."""
        ...

    def unread_since_ms(self) -> int | None:
        """Kafka's timestamp of the oldest record that is not acknowledged; None if there is none, or not active."""
        ...

    def held_back(self) -> tuple[int, int] | None:
        """Number of offsets that an open Kafka transaction holds back, and the timestamp of the first; None = none."""
        ...

    def topic_problems(self) -> Sequence[str]:
        """Problems with the topics, a sentence each."""
        ...

    def retention_ms(self) -> int | None:
        """Retention of the staged topic in milliseconds; None = unlimited, or not known."""
        ...

    def silent_seconds(self) -> float:
        """Seconds since Kafka last responded; up to a few seconds even if all is well."""
        ...

    def silence_reason(self) -> str:
        """Why Kafka does not respond, as far as is known; empty if it responds."""
        ...


class ProcessMemory:
    """The memory that the tables of a process share: the group `memory` bounds all of them together."""

    def __init__(self, settings: MemorySettings) -> None:
        self.ledgers = Ledgers(settings.ledger_bytes)
        self.caches = budgets_of(
            footprint_bytes=settings.footprint_bytes, deletion_vector_bytes=settings.deletion_vector_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The store, queue, clocks, random numbers and ids of one committer."""

    store: ObjectStore
    neighbours: Neighbours = field(default_factory=Neighbours)
    """What the tables of the store's bucket share."""
    check_branch: Callable[[], Awaitable[None]] | None = None
    """Raises `RefusedToRun` if the branch does not exist; None for the main branch."""
    queue: Queue
    member: Membership
    telemetry: Telemetry
    wall_clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    rng: random.Random
    new_uuid: Callable[[], UUID]
    memory: ProcessMemory = field(default_factory=lambda: ProcessMemory(MemorySettings()))
    open_store: Callable[[str], ObjectStore] | None = None
    admission: Admission | None = None
    """Which producers may stage what; None = whoever may write to the topic may stage anything."""
    work: HeavyWork = at_once
    give_way: GiveWay = to_all
    trace: Trace | None = None
    """Takes the records whose outcomes are published; None = they are not traced."""
    pylance: BuildWithPylance | None = None
    """Builds versions where committerd's knowledge ends; None = it is refused."""
    events: EventTopic | None = None
    """Where change events go; None = nowhere."""


def _decide_options(settings: CommitSettings) -> DecideOptions:
    return DecideOptions(
        limits=GroupLimits(
            records=settings.group_records_max,
            bytes=settings.group_bytes_max,
            fragments=settings.group_fragments_max,
            coalesce=settings.coalesce,
        ),
        verify_files=settings.verify_files,
        file_limits=FileLimits(files=settings.transaction_files_max, bytes=settings.named_bytes_max),
        allowed=Permissions(
            operations=settings.allowed_operations,
            bases=settings.allowed_bases,
            mixed_file_versions=settings.mixed_file_versions == "allow",
        ),
        app_marks_max=settings.app_marks_max,
        trusts_rewrites=settings.trust_rewrites == "all",
    )


def _feed(settings: Settings, around: Dependencies) -> ChangeFeed | None:
    if around.events is None:
        return None
    return ChangeFeed(
        around.events,
        EventSource(dataset=settings.dataset.queue, uri=settings.dataset.place),
        # Caches nothing: it reads each version at most once.
        new_table=lambda: Table(around.store, manifests_max=1, manifest_bytes_max=0, give_way=around.give_way),
        telemetry=around.telemetry,
        wall_clock=around.wall_clock,
    )


def _prove(settings: Settings, around: Dependencies) -> Callable[[], Awaitable[None]]:
    """A function that checks that the branch exists, and then tests the store unless the settings trust it."""
    prover = Prover(around.store, wall_clock=around.wall_clock, new_uuid=around.new_uuid, neighbours=around.neighbours)
    tests_store = prover.prove if settings.store.probe else anyio.lowlevel.checkpoint
    check_branch = around.check_branch
    if check_branch is None:
        return tests_store

    async def prove() -> None:
        await check_branch()
        await tests_store()

    return prove


def make_committer(
    settings: Settings, around: Dependencies, *, note: Callable[[Sequence[Outcome]], None] = lambda outcomes: None
) -> Committer:
    """A committer with these settings. `note`: called with the outcomes of new versions."""
    clock = QueueClock(around.wall_clock, around.monotonic)
    kafka = settings.kafka
    reach = Reach(kafka.outstanding_records_max * 3 // 4, kafka.outstanding_bytes_max * 3 // 4)
    batch = BatchLines(settings.commit.batch_producers)
    intake = Intake(around.queue, reach=reach, batch=batch, note_time=clock.note, give_way=around.give_way)
    publisher = Publisher(around.queue, around.telemetry, wall_clock=clock.now, trace=around.trace)
    outcome_maker = OutcomeMaker(
        queue=around.queue,
        telemetry=around.telemetry,
        log_all=settings.log.transactions == "all",
        note=note,
        give_way=around.give_way,
    )
    machine = Machine(lambda lacks: around.telemetry.machine_errors.add(lacks=lacks))
    containment = Containment(around.telemetry, machine)
    sources = Sources(
        wall_clock=clock.now,
        ahead_max=_AHEAD_MAX,
        random=around.rng,
        new_uuid=around.new_uuid,
        knowledge=Knowledge() if around.pylance is not None else None,
    )
    options = _decide_options(settings.commit)
    lookups = around.telemetry.deletion_vector_lookups
    deletion_vectors = DeletionVectorCache(
        settings.memory.deletion_vector_bytes,
        around.memory.caches.deletion_vectors,
        note=lambda found: lookups.add(found="kept" if found else "read"),
    )
    around.telemetry.deletion_vector_bytes.track(lambda: deletion_vectors.bytes)
    decoder = Decoder(
        aliases=settings.dataset.place_aliases,
        transaction_bytes_max=settings.commit.transaction_bytes_max,
        admission=around.admission,
        containment=containment,
    )
    before_table: dict[int, Refusal] = {}
    putter = Putter(
        queue=around.queue,
        telemetry=around.telemetry,
        rng=around.rng,
        recheck_seconds=settings.store.recheck_seconds,
        note_error=machine.note,
    )
    parts = Components(
        queue=around.queue,
        intake=intake,
        publisher=publisher,
        outcome_maker=outcome_maker,
        prove_store=_prove(settings, around),
        start_turn=around.neighbours.starts,
        begins=around.member.begins,
        starter=Starter(
            queue=around.queue,
            clock=clock,
            intake=intake,
            outcome_maker=outcome_maker,
            publisher=publisher,
            new_table=lambda: Table(
                around.store,
                footprint_bytes_max=settings.memory.footprint_bytes,
                give_way=around.give_way,
                deletion_vectors=deletion_vectors,
                budgets=around.memory.caches,
            ),
            loading=Loading(
                monotonic=around.monotonic,
                part=around.memory.ledgers.part(settings.memory.ledger_bytes),
                builds_unknown=around.pylance is not None,
            ),
            republish_max=settings.commit.republish_max,
            transaction_bytes_max=settings.commit.transaction_bytes_max,
            before_table=before_table,
            astray=putter.astray,
            containment=containment,
        ),
        assembler=Assembler(
            decider=Decider(before_table=before_table, options=options, sources=sources, containment=containment),
            prefetcher=Prefetcher(
                intake=intake,
                decoder=decoder,
                table=Table(around.store, deletion_vectors=deletion_vectors, budgets=around.memory.caches),
                file_limits=options.file_limits,
                verifies=options.verifies,
                wall_clock=clock.now,
                work=around.work,
                give_way=around.give_way,
            ),
            telemetry=around.telemetry,
            open_store=around.open_store,
            pylance=around.pylance,
            work=around.work,
            give_way=around.give_way,
        ),
        putter=putter,
        telemetry=around.telemetry,
        backoff=lambda: Backoff(around.rng),
        wall_clock=clock.now,
        feed=_feed(settings, around),
    )
    intervals = Intervals(
        interval_min=settings.commit.interval_seconds_min,
        refusal_interval=settings.commit.refusal_interval_seconds,
        hold_max=settings.commit.hold_seconds_max,
        recheck=settings.store.recheck_seconds,
        refused_retry=settings.daemon.refused_retry_seconds,
    )
    return Committer(parts, intervals)


def track_queue(state: State, around: Dependencies) -> None:
    """Let the metrics read the queue's state. This does not need the committer, which may wait or refuse to run."""
    member, telemetry = around.member, around.telemetry

    def unread_seconds() -> float:
        since = member.unread_since_ms()
        return 0.0 if since is None else max(around.wall_clock().timestamp() - since / 1000, 0.0)

    def retention_seconds() -> float:
        kept = member.retention_ms()
        return float("inf") if kept is None else kept / 1000

    def held_back_records() -> float:
        held = member.held_back()
        return 0.0 if held is None else held[0]

    def held_back_seconds() -> float:
        held = member.held_back()
        return 0.0 if held is None else max(around.wall_clock().timestamp() - held[1] / 1000, 0.0)

    telemetry.held_back_records.track(held_back_records)
    telemetry.held_back_seconds.track(held_back_seconds)
    telemetry.topic_problems.track(lambda: len(member.topic_problems()))
    telemetry.queue_lag_records.track(lambda: _lag(state, member))
    telemetry.unread_age.track(unread_seconds)
    telemetry.staged_retention.track(retention_seconds)


def _lag(state: State, member: Membership) -> int:
    end = member.end_offset()
    if end is None or state.position is None or member.member_state() == "standby":
        return 0
    return max(end - state.position, 0)
