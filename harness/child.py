"""A child process that never outlives its parent, however the parent ends.

    parent --- pipe ---> watcher (this file as a script) --- Popen ---> the program

The parent alone holds the writing end of the pipe, so the kernel closes it when the parent is gone,
`kill -9` included; the watcher then kills the program. Should the watcher itself be killed, Linux
kills the program (PR_SET_PDEATHSIG). That signal alone would not do: it is sent when the *thread*
that started the child ends, and it needs a `preexec_fn`, which is unsafe in a process with threads.
The watcher has one thread when it starts the program.

Signals go through the watcher, which has not yet reaped the program: they can't hit a stranger that
got its number.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


started: list[ChildProcess] = []
"""All that were started in the present test, and before it for longer; see `tests.plugins.child_logs`."""


class ChildProcess:
    """A running program; its output is appended to `log`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", __file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=None if environment is None else dict(environment),
                # Ctrl-C in the terminal is for the parent, which then stops its children in order.
                start_new_session=True,
            )
        started.append(self)

    def running(self) -> bool:
        """Whether the program has not ended yet."""
        return self._watcher.poll() is None

    @property
    def code(self) -> int | None:
        """What the program ended with, None while it runs; 128 and the number where a signal ended it."""
        return self._watcher.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program; nothing happens when it has ended."""
        assert self._watcher.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._watcher.stdin.write(f"{int(number)}\n".encode())
            self._watcher.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.signal(signal.SIGKILL)
        self._wait(timeout=30)

    def stop(self, *, grace_seconds: float = 10) -> None:
        """SIGTERM, after the grace SIGKILL, and wait."""
        self.signal(signal.SIGTERM)
        try:
            self._wait(timeout=grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_tail(self, lines: int = 30) -> str:
        """The last lines that the program printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _wait(self, *, timeout: float) -> None:
        self._watcher.wait(timeout)
        assert self._watcher.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._watcher.stdin.close()


def _die_with_parent() -> Callable[[], None] | None:
    """What the program does between fork and exec, where the kernel offers it."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    return ask_kernel


def _obey(program: subprocess.Popen[bytes]) -> None:
    """Pass on the signals that the parent names, a number a line; the end of the pipe means kill."""
    for line in sys.stdin:
        program.send_signal(int(line))
    program.kill()


def _watch(command: Sequence[str]) -> int:
    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_parent(),  # noqa: PLW1509  # one thread so far
    )
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    threading.Thread(target=_obey, args=(program,), daemon=True).start()
    code = program.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    # Not sys.exit: it would wait for the thread that reads the pipe.
    os._exit(_watch(sys.argv[1:]))
