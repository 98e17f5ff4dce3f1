"""Runs committerd as a child process, as an operator does: with settings in the environment, signals and a log.

with Daemon(name="events", uri="/tmp/t.lance", kafka=kafka.bootstrap_servers) as daemon:
    daemon.wait_ready()
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from harness.child import ChildProcess, Launch

_POLL_SECONDS = 0.05
_RESPONSE_SECONDS = 30
"""Within which a busy machine responds; a process that stands still is not asked."""


class Daemon:
    """A committerd process; `start` may be called again after it has ended."""

    def __init__(
        self,
        *,
        name: str,
        uri: str | None,
        kafka: str,
        settings: Mapping[str, str] | None = None,
        log: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "committerd", "run"),
        launch: Launch = ChildProcess,
    ) -> None:
        """`uri`: None = the settings name the datasets in another way.

        `settings`: more settings, with their environment names without the prefix (`COMMIT__VERIFY_FILES`).

        `launch`: how the process is started; by default as an operator does.
        """
        self._command = command
        self._launch = launch
        self.log = log or Path(tempfile.mkstemp(prefix=f"committerd-{name}-", suffix=".log")[1])
        chosen = {
            **({} if uri is None else {"DATASET__NAME": name, "DATASET__URI": uri}),
            "KAFKA__BOOTSTRAP_SERVERS": kafka,
            "HTTP__HOST": "127.0.0.1",
            "HTTP__PORT": "0",
            **(settings or {}),
        }
        bare = {k: v for k, v in os.environ.items() if not k.startswith("COMMITTERD_")}
        self.environment = bare | {f"COMMITTERD_{key}": value for key, value in chosen.items()}
        self._process: ChildProcess | None = None
        self._url = ""
        self._log_start = 0

    def start(self) -> Self:
        """Start the process; returns at once."""
        self._url = ""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = self._launch(self._command, log=self.log, environment=self.environment)
        return self

    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.running()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def stop(self, *, grace_seconds: float = 30) -> None:
        """Send SIGTERM, and wait until it has drained."""
        if self._process is not None:
            self._process.stop(grace_seconds=grace_seconds)

    def freeze(self) -> None:
        """Stop every thread of the process: connections stay open."""
        assert self._process is not None
        self._process.freeze()

    def thaw(self) -> None:
        """Let the process run again."""
        assert self._process is not None
        self._process.thaw()

    @property
    def pid(self) -> int:
        """The process id of the running process."""
        assert self._process is not None
        return self._process.pid

    def processor_seconds(self) -> float:
        """The processor time, in seconds, that the running process has taken so far."""
        taken = psutil.Process(self.pid).cpu_times()
        return float(taken.user + taken.system)

    def open_files_max(self) -> int:
        """How many files the running process may have open."""
        return int(psutil.Process(self.pid).rlimit(psutil.RLIMIT_NOFILE)[0])

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        assert self._process is not None
        return self._process.code

    def lines(self, event: str | None = None, *, since_start: bool = False) -> Iterator[dict[str, Any]]:
        """Its log lines. `event`: only lines of this event. `since_start`: only lines of the last start."""
        body = self.log.read_bytes()[self._log_start if since_start else 0 :]
        for line in body.decode(errors="replace").splitlines():
            try:
                parsed = json.loads(line)
            except ValueError:
                continue
            if isinstance(parsed, dict) and (event is None or parsed.get("event") == event):
                yield parsed

    def url(self) -> str:
        """The URL of the last start's metrics and probes; waits until they are served."""
        if not self._url:
            self._url = str(self.wait_line("http.listening")["url"])
        return self._url

    def ready(self) -> tuple[bool, str]:
        """The response of /readyz: whether it is 200, and the text."""
        try:
            with urllib.request.urlopen(self.url() + "/readyz", timeout=_RESPONSE_SECONDS) as response:
                return True, str(json.load(response)["reason"])
        except urllib.error.HTTPError as error:
            return False, str(json.load(error)["reason"])

    def wait_ready(self, *, text: str = "", timeout: float = 120) -> str:
        """Wait until /readyz is 200 with `text` in its body; returns the body."""
        return self._wait_probe(good=True, text=text, timeout=timeout)

    def wait_unready(self, text: str, *, timeout: float = 120) -> str:
        """Wait until /readyz is 503 with `text` in its body; returns the body."""
        return self._wait_probe(good=False, text=text, timeout=timeout)

    def wait_refused(self, code: str, *, timeout: float = 120) -> str:
        """Wait until the last start refuses to run with this code; returns the message in its log."""
        said = self.wait_line("refused", timeout=timeout, code=code)
        self._wait_probe(good=False, text="refused", timeout=timeout)
        return str(said["error"])

    def wait_line(self, event: str, *, timeout: float = 120, **fields: object) -> dict[str, Any]:
        """Wait for a log line of the last start with this event and these fields."""
        deadline = time.monotonic() + timeout
        while True:
            for line in self.lines(event, since_start=True):
                if all(line.get(name) == value for name, value in fields.items()):
                    return line
            self._check(deadline, f"a log line {event!r} with {fields}")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        with urllib.request.urlopen(self.url() + "/metrics", timeout=_RESPONSE_SECONDS) as response:
            text = response.read().decode()
        total = 0.0
        for line in text.splitlines():
            if line.startswith((name + " ", name + "{")):
                head, _, value = line.rpartition(" ")
                if all(f'{label}="{wanted}"' in head for label, wanted in labels.items()):
                    total += float(value)
        return total

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._process is not None:
            print(f"--- end of {self.log}\n{self._process.log_tail(60)}", file=sys.stderr)
        self.kill()

    def _wait_probe(self, *, good: bool, text: str, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        reason = "nothing yet"
        while True:
            try:
                answer, reason = self.ready()
                if answer is good and text in reason:
                    return reason
            except OSError as error:
                reason = str(error)
            self._check(deadline, f"/readyz {'200' if good else '503'} with {text!r} (it says: {reason})")

    def _check(self, deadline: float, wanted: str) -> None:
        if not self.running():
            tail = self._process.log_tail(40) if self._process else "it was never started"
            raise AssertionError(f"committerd ended while waiting for {wanted}:\n{tail}")
        if time.monotonic() > deadline:
            assert self._process is not None
            raise AssertionError(f"waited in vain for {wanted}:\n{self._process.log_tail(40)}")
        time.sleep(_POLL_SECONDS)
