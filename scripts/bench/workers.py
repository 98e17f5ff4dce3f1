"""Processes that measure: each holds one object, whose methods the benchmark calls from outside.

    with Worker() as worker:
        worker.make(Writer, uri=...)       # in the process, untimed
        worker.start("race", seconds=5)    # returns at once, so that many begin together
        worker.result()

A new process each (spawn), so none has what others have loaded; it ends with its parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Self


class WorkerFailed(RuntimeError):
    """What was called in a worker raised; the message has its traceback."""


class Worker:
    """One process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def make(self, kind: Callable[..., object], **given: Any) -> None:
        """Make the object there, in place of the one before."""
        self.begin_make(kind, **given)
        self.result()

    def begin_make(self, kind: Callable[..., object], **given: Any) -> None:
        """The same without waiting; `result` waits."""
        self._connection.send((kind, given))

    def start(self, method: str, **given: Any) -> None:
        """Call a method there; `result` waits for what it returns."""
        self._connection.send((method, given))

    def result(self) -> Any:
        """Wait for the last call. Raises `WorkerFailed`."""
        try:
            good, value = self._connection.recv()
        except EOFError:
            raise WorkerFailed("a worker process has ended") from None
        if not good:
            raise WorkerFailed(value)
        return value

    def call(self, method: str, **given: Any) -> Any:
        """Call a method and wait."""
        self.start(method, **given)
        return self.result()

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def results(workers: Sequence[Worker]) -> list[Any]:
    """What each returns, in their order."""
    return [worker.result() for worker in workers]


@contextlib.contextmanager
def several(count: int) -> Iterator[list[Worker]]:
    """So many."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Worker()) for _ in range(count)]


def _serve(connection: Connection) -> None:
    """Do what is asked for until the other end is closed."""
    held: Any = None
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            asked, given = connection.recv()
            try:
                if isinstance(asked, str):
                    answer = getattr(held, asked)(**given)
                else:
                    held, answer = asked(**given), None
                connection.send((True, answer))
            except Exception:  # noqa: BLE001  # whatever it is, it is told where it can be read
                connection.send((False, traceback.format_exc()))
