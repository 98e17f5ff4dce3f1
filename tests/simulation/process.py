"""A committer as a process that dies, stands still, and comes back."""

from __future__ import annotations

import random
import traceback
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio

from committerd.committer.committer import Committer
from committerd.daemon.dataset import Dependencies, ProcessMemory, make_committer
from committerd.table.budget import Budget, Budgets
from tests.simulation.faults import Weather, When
from tests.simulation.pylance import Pylance
from tests.simulation.queue import FakeQueue
from tests.simulation.staging import URI, new_uuid
from tests.simulation.store import FakeStore

if TYPE_CHECKING:
    from tests.simulation.world import World

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_CROWDED_EACH = 3
"""In one of so many simulations, other tables of the process take all memory of the caches, again and again."""
_UNORDERED_EACH = 4
"""In each fourth seed, the store's listings have no order."""


class Process:
    """One committer after the other, under one name."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{world.seed} {name}")
        self.weather = Weather(rng=self.rng, rates=world.rates, step=self._step, note=self._note)
        self.clock_skew = 0.0
        """The error of this machine's wall clock, in seconds."""
        self.committer: Committer | None = None
        self.queue: FakeQueue | None = None
        self.steps = 0
        """Calls of ports so far, each counted before and after its effect."""
        self.crash_at: int | None = None
        """The step at which to die."""
        self.crash_after_put = False
        """Die when the next version is created and before this process learns that."""
        self._scope = anyio.CancelScope()
        self._resumed: anyio.Event | None = None

    @property
    def state(self) -> str:
        """The state as the daemon shows it; `down` while no committer runs."""
        return self.committer.state.name if self.committer else "down"

    @property
    def stands_still(self) -> bool:
        return self._resumed is not None

    async def run(self) -> None:
        """Run, die and run again until cancelled."""
        while True:
            self.queue = FakeQueue(self.world.broker, self.weather, outstanding_records_max=self.world.room)
            self.committer = make_committer(self.world.settings, self._dependencies(self.queue))
            self.world.broker.join(self.queue)
            self._note("starts")
            self._scope = anyio.CancelScope()
            with self._scope:
                try:
                    await self.committer.run()
                except Exception:  # noqa: BLE001  # whatever it is, it must not end a committer
                    self.world.auditor.fail(f"{self.name} ended with an error\n{traceback.format_exc()}")
                    return
            stopped = not self._scope.cancelled_caught
            self._note("stops" if stopped else "is dead")
            await self._buried(self.queue, told=stopped)

    def crash(self) -> None:
        """Die at once; requests in flight may still arrive."""
        self._scope.cancel()
        self.resume()

    def stand_still(self) -> None:
        """Let neither calls nor responses through until `resume`; timers run, but nobody handles them."""
        if self._resumed is None:
            self._note("stands still")
            self._resumed = anyio.Event()

    def resume(self) -> None:
        if self._resumed is not None:
            self._note("goes on")
            self._resumed.set()
            self._resumed = None

    async def _buried(self, queue: FakeQueue, *, told: bool) -> None:
        """Wait until it is started again. The broker notices a death when the session is over, or before."""
        self.committer = None
        await anyio.sleep(0 if told else self.rng.uniform(0, self.world.session_seconds))
        self.world.broker.leave(queue)
        await anyio.sleep(self.rng.uniform(0, 5))

    async def _step(self, call: str, when: When) -> None:
        self.steps += 1
        made = self.crash_after_put and when == "after" and call.startswith("store.put_if_absent")
        if made or self.steps == self.crash_at:
            self.crash_after_put = False
            self._note(f"dies {when} {call}")
            self.crash()
            await anyio.sleep_forever()
        # A put in flight for an hour can meet a number that a cleanup has freed; nothing can notice that.
        if not (when == "before" and call.startswith("store.put_if_absent")):
            while self._resumed is not None:
                await self._resumed.wait()

    def _dependencies(self, queue: FakeQueue) -> Dependencies:
        return Dependencies(
            store=FakeStore(
                self.world.bucket, self.weather, uri=URI, lists_whole_folders=self.world.seed % _UNORDERED_EACH == 0
            ),
            queue=queue,
            member=_Membership(),
            telemetry=self.world.telemetry,
            wall_clock=self._wall_clock,
            monotonic=anyio.current_time,
            rng=self.rng,
            new_uuid=lambda: new_uuid(self.rng),
            memory=self._memory(),
            pylance=Pylance(self.weather, self.rng) if self.world.scenario.by_pylance else None,
        )

    def _memory(self) -> ProcessMemory:
        memory = ProcessMemory(self.world.settings.memory)
        if self.world.seed % _CROWDED_EACH == 0 and not self.world.scenario.is_alone:
            nothing = {one.name: Budget(0) for one in fields(Budgets)}
            memory.caches = Budgets(**nothing)
        return memory

    def _wall_clock(self) -> datetime:
        return EPOCH + timedelta(seconds=anyio.current_time() + self.clock_skew)

    def _note(self, line: str) -> None:
        self.world.note(f"{self.name} {line}")


class _Membership:
    """What only the daemon around a committer uses."""

    owner_turned_at = 0.0

    def member_state(self) -> str:
        return "active"

    def begins(self, generation: int) -> None:
        return None

    def trouble(self) -> str:
        return ""

    def leave(self) -> None:
        return None

    def end_offset(self) -> int | None:
        return None

    def unread_since_ms(self) -> int | None:
        return None

    def held_back(self) -> tuple[int, int] | None:
        return None

    def topic_problems(self) -> Sequence[str]:
        return ()

    def retention_ms(self) -> int | None:
        return None

    def silent_seconds(self) -> float:
        return 0.0

    def silence_reason(self) -> str:
        return ""
