"""Starts committerd in a tenth of the processor time: a process that has loaded its modules forks for each start.

    tests --- socket ---> server (this module) --- fork ---> watcher --- fork ---> committerd

Loading the modules is most of what a short run of committerd costs, and tests start it a thousand times. What runs is
the command line (`committerd.__main__`) with its own arguments, environment, output, signals and exit code; a fork that
is killed is gone like any process. A module of the tests that changes committerd and then runs it is a fork too. A fork
does not show that committerd loads what it needs, nor how much memory it takes: the tests of that start it as an
operator does.

As in `committerd.dev.child`, nothing outlives the tests: watcher and committerd end when the socket closes, and when
the process above them ends. Linux only.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from committerd import __main__ as program
from committerd.dev.child import dying_with_parent
from harness.child import ChildProcess, started

ROOT = Path(__file__).resolve().parent.parent
COMMAND = (sys.executable, "-m", "committerd")
"""The beginning of a command of committerd."""
_LOADED = (
    "committerd.commands.run",
    "committerd.commands.maintain",
    "committerd.commands.position",
    "committerd.daemon.http",
    "committerd.stores.dynamodb",
    "committerd.stores.s3",
)
_REQUEST_BYTES_MAX = 150_000
_KILLED = int(128 + signal.SIGKILL)
_POLL_SECONDS = 0.01


class Preloaded:
    """The server, as a context manager. Call it with a command of committerd to start that."""

    def __enter__(self) -> Self:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "harness.preloaded", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                # Ctrl-C in the terminal goes to the tests alone.
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._server.wait(30)

    def __call__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Start `command`: as a fork if it is committerd or a module of the tests, else as any program."""
        module = command[2] if len(command) > 2 and tuple(command[:2]) == COMMAND[:2] else ""
        if module != COMMAND[2] and not module.startswith("tests."):
            return ChildProcess(command, log=log, environment=environment)
        chosen = dict(os.environ if environment is None else environment)
        request = json.dumps([module, command[3:], chosen]).encode()
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            socket.send_fds(self._requests, [request], [theirs.fileno(), output.fileno()])
        return _Fork(ours, log)


class _Fork(ChildProcess):
    """A run of committerd that the server has forked."""

    def __init__(self, watcher: socket.socket, log: Path) -> None:
        self.log = log
        self._line = watcher
        self._reading = threading.Lock()
        self._said = b""
        self._pid: int | None = None
        self._code: int | None = None
        started.append(self)

    def running(self) -> bool:
        return self.code is None

    @property
    def pid(self) -> int:
        with self._reading:
            while self._pid is None and self._code is None:
                self._receive()
            assert self._pid is not None, "it was killed before it was committerd"
            return self._pid

    @property
    def code(self) -> int | None:
        with self._reading:  # threads may ask at the same time
            while self._code is None and select.select([self._line], [], [], 0)[0]:
                self._receive()
            return self._code

    def _receive(self) -> None:
        """Take what the watcher says, a line each: the process id, and later the exit code."""
        said = self._line.recv(64)
        self._said += said
        numbers = [int(line) for line in self._said.splitlines(keepends=True) if line.endswith(b"\n")]
        if numbers:
            self._pid = numbers[0]
        if len(numbers) == 2 or not said:  # a watcher that is killed says no code
            self._code = numbers[1] if len(numbers) == 2 else _KILLED
            self._line.close()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._line.sendall(b"%d\n" % number)

    def _wait(self, *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self.running():
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(COMMAND, timeout)
            time.sleep(_POLL_SECONDS)


def _die_with_parent() -> None:
    ask_kernel = dying_with_parent()
    assert ask_kernel is not None, "only Linux tells a program that its parent ended"
    ask_kernel()


def _serve(requests: socket.socket) -> str:
    """Fork a watcher for each request until there can be no more.

    Returns in the fork that is to be committerd: the name of the module to run.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for watchers
    while True:
        request, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 2)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            _die_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            line, output = files
            module, words, environment = json.loads(request)
            _watch(line, output, words, environment)
            return str(module)
        for file in files:
            os.close(file)


def _watch(line: int, output: int, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Fork; returns in the fork, which is to be committerd. The other process forwards signals, and says the end.

    `line`: a socket on which the numbers of signals come, and the process id and the exit code go, one a line.
    """
    child = os.fork()
    if child == 0:
        _die_with_parent()
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(line)
        os.close(output)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[:] = [str(program.__file__), *words]
        return
    os.close(output)
    with contextlib.suppress(OSError):  # the tests have ended
        os.write(line, b"%d\n" % child)
    # It is not reaped before its end is noticed here, so a signal can't hit another process.
    end = os.pidfd_open(child)
    while end not in (readable := select.select([end, line], [], [])[0]):
        assert readable
        numbers = os.read(line, 4096).split()
        for number in numbers or [b"%d" % signal.SIGKILL]:
            os.kill(child, int(number))
        if not numbers:
            break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):  # nobody is there who wants to know
        os.write(line, b"%d\n" % (code if code >= 0 else 128 - code))
    os._exit(0)


def _main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        gc.disable()
        for module in _LOADED:
            importlib.import_module(module)
        gc.freeze()
        gc.enable()
        module = _serve(requests)
    # As if it were started with `python -m`.
    if module == COMMAND[2]:
        sys.modules["__main__"] = program
        program.main()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
