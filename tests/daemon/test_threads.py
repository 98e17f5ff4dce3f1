"""Heavy work in threads: the event loop continues, and a call that takes too much is ended."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref

import anyio
import pytest

from committerd.daemon.threads import BudgetedThreads, WorkBudget
from committerd.errors import InvalidRequest
from tests.kafka.staging import until

MIB = 1024 * 1024
WIDE = WorkBudget(cpu_seconds=20, memory_factor=20, memory_bytes_min=256 * MIB)
SHORT = WorkBudget(cpu_seconds=0.2, memory_factor=20, memory_bytes_min=256 * MIB)
SMALL = WorkBudget(cpu_seconds=20, memory_factor=20, memory_bytes_min=32 * MIB)


def spin(seconds: float = 60.0) -> int:
    """Take CPU time, as a loop of Python does."""
    until, turns = time.thread_time() + seconds, 0
    while time.thread_time() < until:
        turns += 1
    return turns


def grow() -> int:
    kept = []
    for _ in range(4000):
        kept.append(bytearray(b"x" * MIB))
        time.sleep(0.0005)
    return len(kept)


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "record-work"]


async def ended() -> None:
    await until(lambda: not workers(), seconds=10)


async def test_returns_what_the_call_returns() -> None:
    work = BudgetedThreads(WIDE)
    assert await work(lambda: 7, size=1) == 7
    assert await work(threading.current_thread, size=1) is not threading.current_thread()
    await ended()


async def test_raises_what_the_call_raises() -> None:
    def fail() -> None:
        raise RecursionError("too deep")

    with pytest.raises(RecursionError, match="too deep"):
        await BudgetedThreads(WIDE)(fail, size=1)


async def test_the_event_loop_turns_meanwhile() -> None:
    longest, over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not over:
            before = time.monotonic()
            await anyio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        assert await BudgetedThreads(WIDE)(lambda: spin(0.7), size=1) > 0
        over = True
    assert longest < 0.5


async def test_what_takes_too_much_time_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match=r"0\.2 s of processor time") as refused:
        await BudgetedThreads(SHORT)(spin, size=1)
    assert refused.value.code == "budget_exceeded"
    assert time.monotonic() - began < 5
    await ended()


async def test_waiting_takes_no_processor_time() -> None:
    """No call is refused because the machine is busy."""
    await BudgetedThreads(SHORT)(lambda: time.sleep(0.6), size=1)


async def test_what_takes_too_much_memory_is_ended() -> None:
    with pytest.raises(InvalidRequest, match="32 MiB of memory") as refused:
        await BudgetedThreads(SMALL)(grow, size=1)
    assert refused.value.code == "budget_exceeded"
    await ended()


async def test_a_larger_record_may_take_more_memory() -> None:
    assert SMALL.memory_bytes(MIB) == 32 * MIB
    assert SMALL.memory_bytes(10 * MIB) == 200 * MIB


async def test_what_nobody_waits_for_any_more_is_ended() -> None:
    with anyio.move_on_after(0.1):
        await BudgetedThreads(WIDE)(spin, size=1)
    await ended()


class _Kept:
    """Stands for what a call makes of its record."""


@pytest.mark.parametrize("stops", ["error", "memory", "nobody waits"])
async def test_what_a_call_made_goes_with_it(stops: str) -> None:
    """Without garbage collection, which is rare in a daemon: each record would leave hundreds of MiB."""
    kept: list[weakref.ref[_Kept]] = []

    def call() -> None:
        made = _Kept()
        kept.append(weakref.ref(made))
        if stops == "error":
            raise RecursionError
        grow()

    gc.disable()
    try:
        seconds = 0.1 if stops == "nobody waits" else 20
        with anyio.move_on_after(seconds), contextlib.suppress(RecursionError, InvalidRequest):
            await BudgetedThreads(SMALL if stops == "memory" else WIDE)(call, size=1)
        await until(lambda: all(one() is None for one in kept) and not workers(), seconds=5)
    finally:
        gc.enable()


async def test_a_call_that_does_not_end_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No exception can be raised inside a call of C."""
    monkeypatch.setattr("committerd.daemon.threads._GRACE_SECONDS", 0.3)
    over = threading.Event()
    work = BudgetedThreads(WorkBudget(cpu_seconds=-1, memory_factor=1, memory_bytes_min=MIB))
    with pytest.raises(InvalidRequest) as refused:
        await work(lambda: over.wait(20), size=1)
    assert refused.value.code == "budget_exceeded"
    over.set()
    await ended()
