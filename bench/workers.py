"""Processes that measure: each holds one object, whose methods the benchmark calls from outside.

    with Worker() as worker:
        worker.make(Writer, uri=...)     # in the process, not timed
        worker.start("race", seconds=5)  # returns at once, so that many begin together
        worker.result()

Each is a new process (spawn), so none has loaded what others have; it ends with its parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Self


class WorkerFailed(RuntimeError):
    """A call in a worker raised an error; the message has its traceback."""


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
        """Make the object in the process, in place of the previous one."""
        self.begin_make(kind, **given)
        self.result()

    def begin_make(self, kind: Callable[..., object], **given: Any) -> None:
        """Begin to make the object; `result` waits for it."""
        self._connection.send((kind, given))

    def start(self, method: str, **given: Any) -> None:
        """Start a call of a method; `result` waits for its return value."""
        self._connection.send((method, given))

    def result(self) -> Any:
        """Wait for the last call, and return its value. Raises `WorkerFailed`."""
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
        """End the process."""
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
    """Return the result of each worker, in their order."""
    return [worker.result() for worker in workers]


@contextlib.contextmanager
def several(count: int) -> Iterator[list[Worker]]:
    """Start this many workers."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Worker()) for _ in range(count)]


def _serve(connection: Connection) -> None:
    """Serve calls until the other end is closed."""
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
