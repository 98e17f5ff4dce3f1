"""The loop of the simulation: waiting costs nothing, and deadlocks and livelocks are detected."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import pytest

from tests.simulation import loop
from tests.simulation.loop import Deadlock, Livelock, TurnTooLong, run_virtual


def test_a_day_passes_at_once_and_in_order() -> None:
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await anyio.sleep(seconds)
        woken.append((name, anyio.current_time()))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleeper, "day", 86_400.0)
            tasks.start_soon(sleeper, "minute", 60.0)
            tasks.start_soon(sleeper, "moment", 0.001)

    began = time.monotonic()
    run_virtual(main)
    assert time.monotonic() - began < 60
    assert [name for name, _ in woken] == ["moment", "minute", "day"]
    assert [at for _, at in woken] == pytest.approx([0.001, 60.0, 86_400.0])


def test_deadlines_obey_its_clock() -> None:
    async def main() -> tuple[bool, float]:
        with anyio.move_on_after(3600) as scope:
            await anyio.sleep_forever()
        return scope.cancelled_caught, anyio.current_time()

    cancelled, at = run_virtual(main)
    assert cancelled
    assert at == pytest.approx(3600.0)


def test_waiting_for_what_can_never_come_is_a_deadlock() -> None:
    async def main() -> None:
        await anyio.Event().wait()

    with pytest.raises(Deadlock, match="every task waits"):
        run_virtual(main)


def test_turning_without_time_passing_is_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "TURNS_MAX", 1000)

    async def main() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    with pytest.raises(Livelock, match="1000 turns"):
        run_virtual(main)


def test_a_step_that_keeps_the_loop_busy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "TURN_SECONDS_MAX", 0.02)

    async def busy(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        await anyio.sleep(1)

    run_virtual(lambda: busy(0.0))
    with pytest.raises(TurnTooLong):
        run_virtual(lambda: busy(0.1))
