"""The process: one committer, its probes, and its graceful shutdown.

On SIGTERM and SIGINT it drains: it ends the commit in flight, publishes and acknowledges its outcomes, and leaves the
group, so a standby takes over at once. Any other end of the process is safe too, because only the table counts.
"""

from __future__ import annotations

import importlib
import logging
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol
from uuid import UUID

import anyio
import anyio.lowlevel
from anyio import to_thread

from committerd import __version__
from committerd.committer import Committer, Components, Intervals, State
from committerd.committer.assembling import Assembler
from committerd.committer.clock import QueueClock
from committerd.committer.containing import Containment
from committerd.committer.deciding import DecideOptions, Decider
from committerd.committer.decoding import Decoder
from committerd.committer.intake import Intake
from committerd.committer.loading import Loading
from committerd.committer.outcome_maker import OutcomeMaker
from committerd.committer.prefetching import Prefetcher
from committerd.committer.publisher import Publisher
from committerd.committer.putting import Putter
from committerd.committer.starting import Starter
from committerd.daemon.certificates import ends_of, expired_certificates
from committerd.lance.operations.permissions import Permissions
from committerd.machine import Machine
from committerd.memory import limit_bytes
from committerd.queue.grouping import GroupLimits
from committerd.queue.port import Queue
from committerd.settings.commit import CommitSettings
from committerd.settings.load import Settings
from committerd.stores.port import ObjectStore
from committerd.stores.probing import Prover
from committerd.table.backoff import Backoff
from committerd.table.caches import DeletionVectorCache
from committerd.table.case import Sources
from committerd.table.fetching import BuildWithPylance
from committerd.table.heavy_work import HeavyWork, at_once
from committerd.table.knowledge import Knowledge
from committerd.table.staged_files import FileLimits
from committerd.table.versions import Table
from committerd.telemetry import ProcessTelemetry, Telemetry
from committerd_common.messages import Refusal

_log = logging.getLogger(__name__)

STALLED_SECONDS = 10.0
"""An event loop or Kafka thread that has not run for this long is stuck; only a restart can help."""
_LOAD_AHEAD_SECONDS = 1.0
"""How often the committer's state is looked at, until it has started."""
_BEAT_SECONDS = 1.0
_AHEAD_MAX = timedelta(minutes=5)
"""How far a version's timestamp may be ahead of Kafka's clock, so that it is later than that of the version before."""
SILENT_SECONDS = 20.0
"""If Kafka has not responded for this long, it is away. It is asked every 5 s, and each response may take as long."""
_REASON_CHARACTERS_MAX = 500


Serve = Callable[[Callable[[], list[str]], Callable[[], tuple[bool, str]]], AbstractAsyncContextManager[str]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The store, queue, clocks, random numbers and ids that the daemon uses."""

    store: ObjectStore
    check_branch: Callable[[], Awaitable[None]] | None = None
    """Raises `RefusedToRun` if the branch does not exist; None for the main branch."""
    queue: Queue
    member: Membership
    telemetry: Telemetry
    serve: Serve
    """Makes a context manager that serves metrics and probes, and yields the URL."""
    wall_clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    rng: random.Random
    new_uuid: Callable[[], UUID]
    open_store: Callable[[str], ObjectStore] | None = None
    work: HeavyWork = at_once
    pylance: BuildWithPylance | None = None
    """Builds versions where committerd's knowledge ends; None = it is refused."""


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


def _prove(settings: Settings, around: Dependencies) -> Callable[[], Awaitable[None]]:
    """A function that checks that the branch exists, and then tests the store unless the settings trust it."""
    prover = Prover(around.store, wall_clock=around.wall_clock, new_uuid=around.new_uuid)
    tests_store = prover.prove if settings.store.probe else anyio.lowlevel.checkpoint
    check_branch = around.check_branch
    if check_branch is None:
        return tests_store

    async def prove() -> None:
        await check_branch()
        await tests_store()

    return prove


def make_committer(settings: Settings, around: Dependencies) -> Committer:
    """A committer with these settings."""
    clock = QueueClock(around.wall_clock, around.monotonic)
    intake = Intake(around.queue, note_time=clock.note)
    publisher = Publisher(around.queue, around.telemetry, wall_clock=clock.now)
    outcome_maker = OutcomeMaker(
        queue=around.queue,
        telemetry=around.telemetry,
        log_all=settings.log.transactions == "all",
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
        settings.memory.deletion_vector_bytes, note=lambda found: lookups.add(found="kept" if found else "read")
    )
    around.telemetry.deletion_vector_bytes.track(lambda: deletion_vectors.bytes)
    decoder = Decoder(
        aliases=settings.dataset.place_aliases,
        transaction_bytes_max=settings.commit.transaction_bytes_max,
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
        starter=Starter(
            queue=around.queue,
            clock=clock,
            intake=intake,
            outcome_maker=outcome_maker,
            publisher=publisher,
            new_table=lambda: Table(
                around.store,
                footprint_bytes_max=settings.memory.footprint_bytes,
                deletion_vectors=deletion_vectors,
            ),
            loading=Loading(
                monotonic=around.monotonic,
                ledger_bytes=settings.memory.ledger_bytes,
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
                table=Table(around.store, deletion_vectors=deletion_vectors),
                file_limits=options.file_limits,
                verifies=options.verifies,
                wall_clock=clock.now,
                work=around.work,
            ),
            telemetry=around.telemetry,
            open_store=around.open_store,
            pylance=around.pylance,
            work=around.work,
        ),
        putter=putter,
        telemetry=around.telemetry,
        backoff=lambda: Backoff(around.rng),
        wall_clock=clock.now,
    )
    intervals = Intervals(
        interval_min=settings.commit.interval_seconds_min,
        refusal_interval=settings.commit.refusal_interval_seconds,
        hold_max=settings.commit.hold_seconds_max,
        recheck=settings.store.recheck_seconds,
        refused_retry=settings.daemon.refused_retry_seconds,
    )
    return Committer(parts, intervals)


async def run(settings: Settings, around: Dependencies) -> None:
    """Commit until SIGTERM or SIGINT, then drain."""
    committer = make_committer(settings, around)
    beat = _Beat(around.monotonic)
    expired = partial(expired_certificates, settings.kafka, around.wall_clock)
    pulse = Probes(committer.state, around.member, beat, committer.machine, expired=expired)
    track_queue(committer.state, around)
    track_process(settings, around.telemetry.process)
    _log.info(
        "daemon.start",
        extra={
            "version": __version__,
            "dataset": settings.dataset.queue,
            "uri": settings.dataset.place,
        },
    )
    async with around.serve(pulse.live, pulse.ready) as url, anyio.create_task_group() as tasks:
        _log.info("http.listening", extra={"url": url})
        tasks.start_soon(beat.run)
        tasks.start_soon(_load_ahead, committer.state)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            tasks.start_soon(_stop_at, signals, committer, tasks.cancel_scope, settings.daemon.drain_seconds)
            await committer.run()
            around.member.leave()  # first, because a standby waits for it
        tasks.cancel_scope.cancel()
    _log.info("daemon.end", extra={"dataset": settings.dataset.queue})


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
    telemetry.process.kafka_connected.track(lambda: float(member.silent_seconds() < SILENT_SECONDS))
    telemetry.queue_lag_records.track(lambda: _lag(state, member))
    telemetry.unread_age.track(unread_seconds)
    telemetry.staged_retention.track(retention_seconds)


def track_process(settings: Settings, telemetry: ProcessTelemetry) -> None:
    """Let the metrics show the limits of this process: its memory, and how long its certificates are valid."""
    telemetry.memory_limit.track(limit_bytes)
    for certificate, end in ends_of(settings).items():
        telemetry.certificate_expiry.track(end, certificate=certificate)


def _lag(state: State, member: Membership) -> int:
    end = member.end_offset()
    if end is None or state.position is None or member.member_state() == "standby":
        return 0
    return max(end - state.position, 0)


async def _load_ahead(state: State) -> None:
    """Load the library that reads deletion files, so that the first Delete does not wait for it: 0.1 s, 35 MiB.

    Not before the committer has started, so that the start does not wait for it either.
    """
    while state.name in ("starting", "standby"):  # noqa: ASYNC110  # the state is a value, and no event
        await anyio.sleep(_LOAD_AHEAD_SECONDS)
    try:
        await to_thread.run_sync(importlib.import_module, "pyarrow")
    except Exception as error:  # noqa: BLE001  # whoever needs it meets the error too, and says so
        _log.warning("daemon.not_loaded_ahead", extra={"error": repr(error)})


async def _stop_at(
    signals: AsyncIterator[signal.Signals],
    committer: Committer,
    scope: anyio.CancelScope,
    drain_seconds: float,
) -> None:
    """Drain at the first signal; stop at once at the second signal, or when the time to drain is over."""
    async for number in signals:
        _log.info("daemon.draining", extra={"signal": number.name, "seconds": drain_seconds})
        committer.stop()
        break
    with anyio.move_on_after(drain_seconds):
        async for _ in signals:
            break
    _log.warning("daemon.drain_cut_short", extra={"seconds": drain_seconds})
    scope.cancel()


class _Beat:
    """Shows that the event loop runs."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._at = monotonic()

    async def run(self) -> None:
        while True:
            self._at = self._monotonic()
            await anyio.sleep(_BEAT_SECONDS)

    def stalled(self, at: float | None = None) -> bool:
        """Whether the event loop, or a thread that last ran at `at`, has not run for too long."""
        return self._monotonic() - (self._at if at is None else at) > STALLED_SECONDS


class Probes:
    """The responses of /livez and /readyz. A stalled store raises an alert, and does not cause a restart."""

    def __init__(
        self,
        state: State,
        member: Membership,
        beat: _Beat,
        machine: Machine,
        *,
        expired: Callable[[], str] = lambda: "",
    ) -> None:
        """`expired`: which certificates of Kafka's settings have expired; empty if none has."""
        self._expired = expired
        self._machine = machine
        self._state = state
        self._member = member
        self._beat = beat

    def live(self) -> list[str]:
        """The parts that are stuck, so that only a restart can help; empty if all is well."""
        problems = []
        if self._beat.stalled():
            problems.append(f"the event loop has not run for {STALLED_SECONDS:g} s")
        if self._beat.stalled(self._member.owner_turned_at):
            problems.append(f"the Kafka thread has not run for {STALLED_SECONDS:g} s")
        return problems

    def ready(self) -> tuple[bool, str]:
        """Whether this member commits or stands by, and a sentence on what it does or waits for.

        If Kafka does not respond to it, or its machine lacks what the work needs, it does neither.
        """
        good, text = self._part()
        if good and self._machine.trouble:
            return False, f"unavailable: {self._machine.trouble}"
        silent = self._member.silent_seconds()
        if silent >= SILENT_SECONDS:
            reasons = [why for why in (self._expired(), self._member.silence_reason()[:_REASON_CHARACTERS_MAX]) if why]
            because = f" ({'; '.join(reasons)})" if reasons else ""
            return False, f"Kafka has not responded for {silent:.0f} s{because}; before that: {text}"
        return good, text

    def _part(self) -> tuple[bool, str]:
        state = self._state
        match state.name:
            case "active":
                return True, f"active: version {state.version}, position {state.position}"
            case "paused":
                return True, f"active, {state.text}"
            case "waiting_for_table":
                return True, f"active, waits for the table: {state.text}"
            case "standby":
                member = self._member.member_state()
                return member == "standby", f"{member}: {self._member.trouble() or state.text}"
            case _:
                return False, f"{state.name}: {state.text}"
