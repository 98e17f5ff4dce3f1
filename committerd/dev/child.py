"""A child process that never outlives its parent, however the parent ends.

    parent --- pipe ---> watcher (this file as a script) --- Popen ---> the program

Only the parent holds the writing end of the pipe, so the kernel closes it when the parent ends, even by `kill -9`; the
watcher then kills the program. If the watcher itself is killed, Linux kills the program (PR_SET_PDEATHSIG). That signal
alone is not enough: it is sent when the *thread* that started the child ends, and it needs a `preexec_fn`, which is
unsafe in a process with threads. The watcher has one thread when it starts the program.

Signals go through the watcher, which has not reaped the program yet, so they can't hit another process that got the
same process id.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

_PR_SET_PDEATHSIG = 1


class ChildProcess:
    """A running program; its output is appended to `log`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        afterwards: Sequence[str] = (),
        speaks: bool = False,
    ) -> None:
        """`afterwards`: a command that the watcher runs once the program has ended, however that came about. `speaks`:
        whether the program writes where this process does, and not to `log`.
        """
        self.log = log
        with nullcontext() if speaks else log.open("ab") as output:
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", __file__, json.dumps(afterwards), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                cwd=folder,
                env=None if environment is None else dict(environment),
                # Ctrl-C in the terminal goes to the parent alone, which then stops its children in order.
                start_new_session=True,
            )

    def running(self) -> bool:
        """Whether the program has not ended yet."""
        return self._watcher.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code of the program, None while it runs; 128 plus the number of the signal that ended it."""
        return self._watcher.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program; does nothing if it has ended."""
        assert self._watcher.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._watcher.stdin.write(f"{int(number)}\n".encode())
            self._watcher.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL, and wait."""
        self.signal(signal.SIGKILL)
        self._wait(timeout=30)

    def stop(self, *, grace_seconds: float = 10) -> None:
        """Send SIGTERM, and SIGKILL after `grace_seconds`, and wait."""
        self.signal(signal.SIGTERM)
        try:
            self._wait(timeout=grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of the program's output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _wait(self, *, timeout: float) -> None:
        self._watcher.wait(timeout)
        assert self._watcher.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._watcher.stdin.close()


def dying_with_parent() -> Callable[[], None] | None:
    """A function for the program to call between fork and exec; None if the kernel lacks the feature."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    return ask_kernel


def _obey(program: subprocess.Popen[bytes]) -> None:
    """Forward the signals that the parent sends, one number per line; kill the program at the end of the pipe."""
    for line in sys.stdin:
        program.send_signal(int(line))
    program.kill()


def _watch(afterwards: Sequence[str], command: Sequence[str]) -> int:
    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=dying_with_parent(),  # noqa: PLW1509  # one thread so far
    )
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    threading.Thread(target=_obey, args=(program,), daemon=True).start()
    code = program.wait()
    if afterwards:
        subprocess.run(afterwards, stdin=subprocess.DEVNULL, check=False)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    # Not sys.exit: it would wait for the thread that reads the pipe.
    os._exit(_watch(json.loads(sys.argv[1]), sys.argv[2:]))
