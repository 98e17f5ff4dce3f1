"""Runs work in threads, within a budget of processor time and memory.

Python can't kill a thread, but it can raise an exception in one: at its next bytecode instruction, not inside a C call.
So a Python loop over a billion rows ends soon after its time is over. A C call that never returns is abandoned, and
nobody waits for it. Each call runs in a thread of its own, so a late exception interrupts nothing else.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel
from anyio import from_thread, to_thread

from committerd.errors import InvalidRequest
from committerd.memory import resident_bytes, return_freed_memory

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_GRACE_SECONDS = 5.0
"""How long to wait for a thread after raising the exception in it, before it is abandoned."""
_LARGE_RECORD_BYTES = 1024 * 1024
"""After a call for a record of at least this size, or one after which the process has `_LARGE_CALL_BYTES` more, the
next call begins by returning freed memory to the system.
"""
_LARGE_CALL_BYTES = 64 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBudget:
    """The processor time and memory that the work on one record may take."""

    cpu_seconds: float
    memory_factor: int
    """Allowed bytes of memory for each byte of the record."""
    memory_bytes_min: int
    """Allowed bytes of memory for a record of any size."""

    def memory_bytes(self, size: int) -> int:
        """Allowed bytes of memory for a record of `size` bytes."""
        return max(self.memory_bytes_min, self.memory_factor * size)


class BudgetedThreads:
    """`committerd.table.work.Work` in threads."""

    def __init__(self, budget: WorkBudget) -> None:
        self._budget = budget
        self._may_have_freed_much = False

    async def __call__(self, call: Callable[[], T], *, size: int) -> T:
        """Run `call`; returns its result or raises its error.

        `size`: bytes of the record. Raises `InvalidRequest` with code `budget_exceeded` if it exceeds the budget.
        """
        if self._may_have_freed_much:
            # Otherwise records one after the other take far more memory than the largest of them.
            await to_thread.run_sync(return_freed_memory)
            self._may_have_freed_much = False
        running = _Running(call)
        running.start()
        allowed, before, given_up = self._budget.memory_bytes(size), resident_bytes(), float("inf")
        exceeded = ""
        try:
            while not running.is_over():
                with anyio.move_on_after(_LOOK_SECONDS):
                    await running.over.wait()
                if not exceeded and not running.is_over():
                    exceeded = self._exceeded(running.cpu_seconds(), resident_bytes() - before, allowed)
                    if exceeded:
                        running.interrupt()
                        given_up = time.monotonic() + _GRACE_SECONDS
                elif time.monotonic() > given_up:
                    _log.error("record.thread_left_alone", extra={"reason": exceeded})
                    raise _refusal(exceeded)
            if running.interrupted and exceeded:
                raise _refusal(exceeded)
            return running.outcome()
        finally:
            if size >= _LARGE_RECORD_BYTES or resident_bytes() - before >= _LARGE_CALL_BYTES:
                self._may_have_freed_much = True
            running.release()
            running.interrupt()  # nobody needs the result any more; does nothing if it has ended

    def _exceeded(self, cpu_seconds: float, memory_bytes: int, allowed: int) -> str:
        """A sentence about the bound that was exceeded; empty if none was."""
        if cpu_seconds > self._budget.cpu_seconds:
            return f"{self._budget.cpu_seconds:g} s of processor time (setting commit.record_seconds_max)"
        if memory_bytes > allowed:
            return f"{allowed / 2**20:.0f} MiB of memory (setting commit.record_memory_bytes_min or _factor)"
        return ""


def _refusal(exceeded: str) -> InvalidRequest:
    return InvalidRequest(
        f"the work on this record takes more than {exceeded}: commit in smaller parts", code="budget_exceeded"
    )


class _Interrupted(BaseException):
    """Raised in a thread to stop its work."""


class _Running(Generic[T]):
    """One call in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._token = anyio.lowlevel.current_token()
        self._guard = threading.Lock()
        self._may_be_interrupted = False
        self._is_released = False
        self._thread = threading.Thread(target=self._run, name="record-work", daemon=True)
        self.over = anyio.Event()
        self.interrupted = False

    def start(self) -> None:
        self._thread.start()

    def is_over(self) -> bool:
        """Whether the call has ended, in any way."""
        return self.over.is_set() or not self._thread.is_alive()

    def outcome(self) -> T:
        """The result of the call; raises its error."""
        if self._error is not None:
            raise self._error
        return self._results[0]

    def release(self) -> None:
        """Forget result and error, also of a call that ends later.

        The error's traceback refers to frames, these refer to `self`, and all that the call made would stay in memory
        until Python collects garbage, which is rare in a daemon.
        """
        self._is_released = True
        self._results.clear()
        self._error = None

    def cpu_seconds(self) -> float:
        """Processor time of the thread so far."""
        ident = self._thread.ident
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(ident)) if ident is not None else 0.0
        except OSError:  # it has just ended
            return 0.0

    def interrupt(self) -> None:
        """Raise an exception in the thread, if its call still runs."""
        if not self._guard.acquire(timeout=_LOOK_SECONDS):
            return  # the exception came while the thread held the lock
        try:
            ident = self._thread.ident
            if self._may_be_interrupted and not self.interrupted and ident is not None:
                self.interrupted = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(_Interrupted))
        finally:
            self._guard.release()

    def _run(self) -> None:
        try:
            with self._guard:
                if self._is_released:
                    return  # nobody waits any more
                self._may_be_interrupted = True
            try:
                self._results.append(self._call())
            finally:
                with self._guard:
                    self._may_be_interrupted = False
        except BaseException as error:  # noqa: BLE001  # `outcome` raises it again
            self._error = error
        try:
            if self._is_released:
                self.release()
            from_thread.run_sync(self.over.set, token=self._token)
        except BaseException:  # noqa: BLE001  # the loop is gone, or the exception came late; `is_over` sees that the thread ended
            return
