"""The datasets of a process: each is served by itself, and what happens to it happens to no other.

An error of a dataset's committer, or of opening what it needs, is that dataset's: it is logged, counted, and the
committer starts anew after a while. A committer that refuses to run waits within itself. The dataset of a process that
serves only that one ends the process instead: then whoever runs the process sees the error and the exit code.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from committerd.committer.committer import Committer
from committerd.daemon.certificates import expired_certificates
from committerd.daemon.dataset import Dependencies, Membership, make_committer, track_queue
from committerd.daemon.logs import lines_of
from committerd.daemon.probes import Condition, DatasetProbe
from committerd.errors import CommitterError, single_error
from committerd.page.views import DatasetView, Now
from committerd.settings.load import Settings
from committerd.stores.port import ObjectStore
from committerd.telemetry import Metrics, Telemetry

_log = logging.getLogger(__name__)

_RESTART_SECONDS = (1.0, 60.0)
"""First and longest wait before a committer starts anew; it doubles each time."""
_DRAINED_TOGETHER = 8
"""Datasets that drain at a time when the process stops."""
_TAKEN_OVER_SECONDS = 0.5
"""About how long another process takes to start them: so long the next go on."""
_HANDING_OVER_SHARE = 0.5
"""Share of the time to drain within which all datasets have begun to."""
_LIVED_SECONDS = 120.0
"""After a committer that has lived this long, the next waits for the first time."""

OpenDataset = Callable[[Settings, Telemetry], AbstractAsyncContextManager[Dependencies]]
"""Opens what a committer needs, for as long as the block runs."""


class HostedDataset:
    """One dataset of the process, served with these settings until `stop`."""

    def __init__(
        self,
        settings: Settings,
        open_dataset: OpenDataset,
        telemetry: Telemetry,
        *,
        is_alone: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """`is_alone`: its errors end the process, because it serves nothing else. `now_ms`: Unix milliseconds."""
        self.settings = settings
        self._open = open_dataset
        self._telemetry = telemetry
        self._is_alone = is_alone
        self._stopping = anyio.Event()
        self._committer: Committer | None = None
        self._opening: anyio.CancelScope | None = None
        self._probe: DatasetProbe | None = None
        self._trouble = "is being opened"
        self.member: Membership | None = None
        """Its membership in the group; None while it does not run."""
        self._store: ObjectStore | None = None
        dataset = settings.dataset
        self.view = DatasetView(
            name=dataset.queue, uri=dataset.place, now_ms=now_ms, look=self._now, store=lambda: self._store
        )
        """What the status page shows of it."""
        self.ended = anyio.Event()
        """Set when it is not served any more."""
        self.scope = anyio.CancelScope()
        """Cancel it to end the dataset at once."""

    @property
    def is_loading(self) -> bool:
        """Whether its committer has not started yet."""
        return self._committer is None or self._committer.state.name in ("starting", "standby")

    @property
    def is_active(self) -> bool:
        """Whether this process serves it, or is about to: the group has assigned its topic to this process."""
        return self.member is not None and self.member.member_state() == "active"

    def condition(self) -> Condition:
        """How it is."""
        if self._probe is None:
            return Condition(False, self._trouble, joins=self._trouble == "is being opened")
        return self._probe.condition()

    def _now(self) -> Now:
        found, committer, member = self.condition(), self._committer, self.member
        if committer is None or member is None:
            return Now(well=found.well, state="opening" if found.joins else "not served", text=found.text)
        state = committer.state
        return Now(
            well=found.well,
            state=state.name.replace("_", " "),
            text=found.text,
            version=state.version,
            position=state.position,
            end=member.end_offset(),
            oldest_ms=member.unread_since_ms(),
            member=member.member_state(),
            most_waiting=committer.most_waiting,
        )

    def stop(self) -> None:
        """Let it finish the commit in flight, publish its outcomes, and leave the group."""
        self._stopping.set()
        if self._committer is not None:
            self._committer.stop()
        elif self._opening is not None:
            self._opening.cancel()

    async def run(self) -> None:
        """Serve it until `stop`. Raises the committer's error if the process serves nothing else."""
        wait, longest = _RESTART_SECONDS
        dataset = self.settings.dataset
        with self.scope, lines_of(dataset.queue):
            _log.info("dataset.start", extra={"uri": dataset.place})
            while not self._stopping.is_set():
                began = anyio.current_time()
                try:
                    await self._serve()
                except Exception as error:
                    if self._is_alone:
                        raise
                    self._note(error)
                finally:
                    self._committer = self._probe = self.member = self._store = None
                    for gauge in (self._telemetry.active, self._telemetry.paused, self._telemetry.waiting_for_table):
                        gauge.set(0)
                if anyio.current_time() - began > _LIVED_SECONDS:
                    wait = _RESTART_SECONDS[0]
                with anyio.move_on_after(wait):
                    await self._stopping.wait()
                wait = min(2 * wait, longest)

    def forget(self) -> None:
        """Remove its metrics: the process serves it no more, or serves it anew."""
        self._telemetry.forget()

    async def _serve(self) -> None:
        with anyio.CancelScope() as self._opening:
            async with self._open(self.settings, self._telemetry) as around:
                committer = make_committer(self.settings, around, note=self.view.recent.note)
                self._store = around.store
                self._committer, self.member = committer, around.member
                expired = partial(expired_certificates, self.settings.kafka, around.wall_clock)
                self._probe = DatasetProbe(committer.state, around.member, committer.machine, expired=expired)
                track_queue(committer.state, around)
                self._telemetry.not_served.set(0)
                if self._stopping.is_set():
                    return
                await committer.run()
                _log.info("dataset.drained")
                around.member.leave()  # first, because a standby waits for it

    def _note(self, raised: Exception) -> None:
        error = single_error(raised)
        self._telemetry.not_served.set(1)
        if isinstance(error, CommitterError):
            self._telemetry.restarts.add(cause=error.code)
            self._trouble = f"can't be served: {error}"
            _log.error("dataset.not_served", extra={"code": error.code, "error": str(error)})
        else:
            self._telemetry.restarts.add(cause="crash")
            self._trouble = f"its committer has crashed, and starts anew: {error!r}"
            _log.error("dataset.crashed", exc_info=raised)


class Hosting:
    """The datasets that a process serves. `apply` changes which they are, and with which settings."""

    def __init__(
        self,
        open_dataset: OpenDataset,
        metrics: Metrics,
        *,
        is_one: bool,
        drain_seconds: float,
        now_ms: Callable[[], int],
        handed_over: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
    ) -> None:
        """`is_one`: the errors of the only dataset end the process. `drain_seconds`: for a dataset that is removed.

        `now_ms`: Unix milliseconds. `handed_over`: waits until other processes have the datasets that have ended here.
        """
        self._handed_over = handed_over
        self._now_ms = now_ms
        self._open = open_dataset
        self._metrics = metrics
        self._is_one = is_one
        self._drain_seconds = drain_seconds
        self._wanted: Mapping[str, Settings] = {}
        self._running: dict[str, HostedDataset] = {}
        self._tasks: TaskGroup
        """A task for each dataset."""
        self._beside: TaskGroup
        self._stopped = anyio.Event()

    @property
    def datasets(self) -> Mapping[str, HostedDataset]:
        """Those that are served, or still drain, by the names of their queues."""
        return self._running

    def conditions(self) -> Sequence[tuple[str, Condition]]:
        """How each dataset is that this process is to serve, or that drains while the process stops."""
        stops = self._stopped.is_set()
        return [(name, one.condition()) for name, one in sorted(self._running.items()) if stops or name in self._wanted]

    def views(self) -> list[DatasetView]:
        """What the status page shows: the datasets that this process serves, by name."""
        return [one.view for _, one in sorted(self._running.items())]

    def members(self) -> list[Membership]:
        """The memberships of the datasets that run."""
        return [one.member for one in self._running.values() if one.member is not None]

    def apply(self, wanted: Mapping[str, Settings]) -> Mapping[str, Sequence[str]]:
        """Serve these datasets: start the new ones, drain those that are gone, restart those with other settings.

        Returns the names of the datasets that were `added`, `removed` and `changed`. Does nothing after `stop`.
        """
        if self._stopped.is_set():
            return {}
        before, self._wanted = self._wanted, wanted
        changes = {
            "added": sorted(wanted.keys() - before.keys()),
            "removed": sorted(before.keys() - wanted.keys()),
            "changed": sorted(name for name in wanted.keys() & before.keys() if wanted[name] != before[name]),
        }
        for name, one in self._running.items():
            if wanted.get(name) != one.settings:
                one.stop()
                self._beside.start_soon(self._cut_short, one)
        for name in wanted:
            if name not in self._running:
                self._begin(name)
        return changes

    def stop(self) -> None:
        """Let all datasets drain, and `run` return afterwards."""
        self._wanted = {}
        self._stopped.set()

    async def run(self, wanted: Mapping[str, Settings]) -> None:
        """Serve until `stop`, and all datasets have drained."""
        async with anyio.create_task_group() as self._beside:
            async with anyio.create_task_group() as self._tasks:
                self.apply(wanted)
                await self._stopped.wait()
                await self._drain()
            self._beside.cancel_scope.cancel()

    async def _drain(self) -> None:
        """Let the datasets drain, some at a time; the others are served until then.

        Whoever takes them over starts some at a time too: a dataset would wait for all others without a committer.
        Those that are not served here go first, or the group would give them to this process, which has fewer and
        fewer. The others go from the last name on: a process that joins meanwhile gets the first ones of the others
        (`kafka.assignor`).
        """
        served, other = list[HostedDataset](), list[HostedDataset]()
        for _, one in sorted(self._running.items(), reverse=True):
            (served if one.is_active else other).append(one)
        for one in other:
            one.stop()
        some_seconds = _HANDING_OVER_SHARE * self._drain_seconds * _DRAINED_TOGETHER / max(len(served), 1)
        while served:
            some, served = served[:_DRAINED_TOGETHER], served[_DRAINED_TOGETHER:]
            for one in some:
                one.stop()
            if served:
                began = anyio.current_time()
                with anyio.move_on_after(some_seconds):
                    for one in some:
                        await one.ended.wait()
                    await self._handed_over()
                    await anyio.sleep_until(began + _TAKEN_OVER_SECONDS)

    def _begin(self, name: str) -> None:
        settings = self._wanted[name]
        telemetry = self._metrics.of(name)
        one = HostedDataset(settings, self._open, telemetry, is_alone=self._is_one, now_ms=self._now_ms)
        self._running[name] = one
        self._tasks.start_soon(self._serve, name, one)

    async def _serve(self, name: str, one: HostedDataset) -> None:
        try:
            await one.run()
        finally:
            one.forget()
            del self._running[name]
            one.ended.set()
        if name in self._wanted:
            self._begin(name)

    async def _cut_short(self, one: HostedDataset) -> None:
        """End a dataset at once that has not drained in time."""
        await anyio.sleep(self._drain_seconds)
        one.scope.cancel()
