"""Heavy work in a thread: the event loop continues, and what a call made goes with it."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import anyio
import pytest

from committerd.daemon.threads import HeavyThread


def spin(seconds: float) -> int:
    """Take CPU time, as a loop of Python does."""
    until, turns = time.thread_time() + seconds, 0
    while time.thread_time() < until:
        turns += 1
    return turns


async def test_returns_what_the_call_returns() -> None:
    work = HeavyThread()
    assert await work(lambda: 7, size=1) == 7
    assert await work(threading.current_thread, size=1) is not threading.current_thread()


async def test_raises_what_the_call_raises() -> None:
    def fail() -> None:
        raise RecursionError("too deep")

    with pytest.raises(RecursionError, match="too deep"):
        await HeavyThread()(fail, size=1)


async def test_the_event_loop_turns_meanwhile() -> None:
    turns, over = 0, False

    async def watch() -> None:
        nonlocal turns
        while not over:
            await anyio.sleep(0.01)
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        assert await HeavyThread()(lambda: spin(0.7), size=1) > 0
        over = True
    assert turns >= 10, "the call took 0.7 s of processor time"


async def test_two_calls_never_run_at_once() -> None:
    work, running, most = HeavyThread(), 0, 0
    guard = threading.Lock()

    def call() -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with guard:
            running -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(lambda: work(call, size=1))
    assert most == 1


class _Kept:
    """Stands for what a call makes of its record."""


@pytest.mark.parametrize("fails", [True, False])
async def test_what_a_call_made_goes_with_it(fails: bool) -> None:
    """Without garbage collection, which is rare in a daemon: each record would leave hundreds of MiB."""
    kept: list[weakref.ref[_Kept]] = []
    work = HeavyThread()

    def call() -> None:
        made = _Kept()
        kept.append(weakref.ref(made))
        if fails:
            raise RecursionError

    async def called() -> bool:
        try:
            await work(call, size=1)
        except RecursionError:
            return True
        return False

    gc.disable()
    try:
        assert await called() is fails
        await work(int, size=1)  # the thread is through with the call before
        assert [one() for one in kept] == [None]
    finally:
        gc.enable()
