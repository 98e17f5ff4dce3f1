"""The process: one committer, its probes, and an end that loses nothing.

SIGTERM and SIGINT drain: the commit in flight ends, its answers are published and acknowledged, the group is left, so a
standby takes over at once. Whatever else ends the process is safe too, because only the table counts.
"""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

import anyio
import anyio.lowlevel

from committerd import __version__
from committerd.committer import Committer, Pace, Parts, State
from committerd.committer.answering import Answerer
from committerd.committer.decoding import Decoder
from committerd.committer.forming import Former, FormingOptions
from committerd.committer.intake import Intake
from committerd.committer.publisher import Publisher
from committerd.committer.putting import Backoff, Putter
from committerd.committer.starting import Starter, acknowledgement
from committerd.committer.view import View
from committerd.ports import ObjectStore, Queue
from committerd.prepare import Allowed, World
from committerd.probing import Prover
from committerd.rules.grouping import GroupLimits
from committerd.settings import CommitSettings, Settings
from committerd.table import Table
from committerd.telemetry import Telemetry

_log = logging.getLogger(__name__)

STALLED_SECONDS = 10.0
"""An event loop or Kafka thread that has not turned for so long is stuck; only a restart can help."""
_BEAT_SECONDS = 1.0


Serve = Callable[[Callable[[], list[str]], Callable[[], tuple[bool, str]]], AbstractAsyncContextManager[str]]


class Member(Protocol):
    """What the daemon shows of its membership in the consumer group."""

    @property
    def owner_turned_at(self) -> float:
        """When the thread that owns the consumer last turned, on the monotonic clock in seconds."""
        ...

    def member_state(self) -> str:
        """active, standby or joining."""
        ...

    def end_offset(self) -> int | None:
        """End of the staged partition; None before it was ours."""
        ...

    def unread_since_ms(self) -> int | None:
        """Kafka's timestamp of the oldest record that is not acknowledged; None when there is none, or not ours."""
        ...

    def retention_ms(self) -> int | None:
        """How long the staged topic keeps a record; None for ever, or not known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The world as the daemon is given it."""

    store: ObjectStore
    queue: Queue
    member: Member
    telemetry: Telemetry
    serve: Serve
    """Serves metrics and probes while entered; yields the URL."""
    wall_clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    dice: random.Random
    new_uuid: Callable[[], UUID]
    open_store: Callable[[str], ObjectStore] | None = None


def _forming(settings: CommitSettings) -> FormingOptions:
    return FormingOptions(
        limits=GroupLimits(
            records=settings.group_records_max,
            bytes=settings.group_bytes_max,
            fragments=settings.group_fragments_max,
            coalesce_appends=settings.coalesce_appends,
        ),
        verify_files=settings.verify_files,
        allowed=Allowed(operations=settings.allowed_operations, bases=settings.allowed_bases),
        app_marks_max=settings.app_marks_max,
    )


def _prove(settings: Settings, around: Surroundings) -> Callable[[], Awaitable[None]]:
    """What proves the store sound, or trusts it where the settings say so."""
    prover = Prover(around.store, wall_clock=around.wall_clock, new_uuid=around.new_uuid)
    return prover.prove if settings.store.probe else anyio.lowlevel.checkpoint


def make_committer(settings: Settings, around: Surroundings) -> Committer:
    """A committer as the settings want it."""
    intake = Intake(around.queue)
    publisher = Publisher(around.queue, around.telemetry, wall_clock=around.wall_clock)
    answerer = Answerer(
        queue=around.queue,
        publisher=publisher,
        telemetry=around.telemetry,
        acknowledgement=acknowledgement,
        log_all=settings.log.transactions == "all",
        letter_bytes_max=settings.kafka.max_record_bytes,
    )
    world = World(
        wall_clock=around.wall_clock,
        random=around.dice,
        new_uuid=around.new_uuid,
        open_store=around.open_store,
    )
    parts = Parts(
        queue=around.queue,
        intake=intake,
        publisher=publisher,
        answerer=answerer,
        prove_store=_prove(settings, around),
        starter=Starter(
            queue=around.queue,
            intake=intake,
            answerer=answerer,
            new_view=lambda: View(table=Table(around.store), monotonic=around.monotonic),
            republish_max=settings.commit.republish_max,
            transaction_bytes_max=settings.commit.transaction_bytes_max,
        ),
        former=Former(
            options=_forming(settings.commit),
            decoder=Decoder(
                aliases=settings.dataset.aliases, transaction_bytes_max=settings.commit.transaction_bytes_max
            ),
            world=world,
            telemetry=around.telemetry,
        ),
        putter=Putter(
            around.queue,
            around.telemetry,
            dice=around.dice,
            recheck_seconds=settings.store.recheck_seconds,
        ),
        telemetry=around.telemetry,
        backoff=lambda: Backoff(around.dice),
        wall_clock=around.wall_clock,
    )
    pace = Pace(
        interval_min=settings.commit.interval_seconds_min,
        refusal_interval=settings.commit.refusal_interval_seconds,
        hold_max=settings.commit.hold_seconds_max,
        recheck=settings.store.recheck_seconds,
        refused_retry=settings.daemon.refused_retry_seconds,
    )
    return Committer(parts, pace)


async def run(settings: Settings, around: Surroundings) -> None:
    """Commit until SIGTERM or SIGINT, then drain."""
    committer = make_committer(settings, around)
    beat = _Beat(around.monotonic)
    pulse = Probes(committer.state, around.member, beat)
    track_queue(committer.state, around)
    _log.info(
        "daemon.start",
        extra={
            "version": __version__,
            "dataset": settings.dataset.name,
            "uri": settings.dataset.uri,
        },
    )
    async with around.serve(pulse.live, pulse.ready) as url, anyio.create_task_group() as tasks:
        _log.info("http.listening", extra={"url": url})
        tasks.start_soon(beat.run)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            tasks.start_soon(_stop_at, signals, committer, tasks.cancel_scope, settings.daemon.drain_seconds)
            await committer.run()
        tasks.cancel_scope.cancel()
    _log.info("daemon.end", extra={"dataset": settings.dataset.name})


def track_queue(state: State, around: Surroundings) -> None:
    """What is known of the queue without the committer, which may wait, or refuse to run."""
    member, telemetry = around.member, around.telemetry

    def unread_seconds() -> float:
        since = member.unread_since_ms()
        return 0.0 if since is None else max(around.wall_clock().timestamp() - since / 1000, 0.0)

    def retention_seconds() -> float:
        kept = member.retention_ms()
        return float("inf") if kept is None else kept / 1000

    telemetry.queue_lag_records.track(lambda: _lag(state, member))
    telemetry.unread_age.track(unread_seconds)
    telemetry.staged_retention.track(retention_seconds)


def _lag(state: State, member: Member) -> int:
    end = member.end_offset()
    if end is None or state.position is None or member.member_state() == "standby":
        return 0
    return max(end - state.position, 0)


async def _stop_at(
    signals: AsyncIterator[signal.Signals],
    committer: Committer,
    scope: anyio.CancelScope,
    drain_seconds: float,
) -> None:
    """Drain at the first signal; stop at once at the second, or when the time to drain is over."""
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
    """Shows that the event loop turns."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._at = monotonic()

    async def run(self) -> None:
        while True:
            self._at = self._monotonic()
            await anyio.sleep(_BEAT_SECONDS)

    def stalled(self, at: float | None = None) -> bool:
        """Whether the loop (or what turned `at`) has stood still for too long."""
        return self._monotonic() - (self._at if at is None else at) > STALLED_SECONDS


class Probes:
    """What /livez and /readyz answer. A stalled store is a metric and an alert, not a restart."""

    def __init__(self, state: State, member: Member, beat: _Beat) -> None:
        self._state = state
        self._member = member
        self._beat = beat

    def live(self) -> list[str]:
        """What only a restart can help."""
        problems = []
        if self._beat.stalled():
            problems.append(f"the event loop has not turned for {STALLED_SECONDS:g} s")
        if self._beat.stalled(self._member.owner_turned_at):
            problems.append(f"the Kafka thread has not turned for {STALLED_SECONDS:g} s")
        return problems

    def ready(self) -> tuple[bool, str]:
        """Whether this member commits, or stands by for the one that does."""
        state = self._state
        match state.name:
            case "active":
                return True, f"active: version {state.version}, position {state.position}"
            case "waiting_for_table":
                return True, f"active, waits for the table: {state.text}"
            case "standby":
                member = self._member.member_state()
                return member == "standby", f"{member}: {state.text}"
            case _:
                return False, f"{state.name}: {state.text}"
