"""How long a table waits for its standby: after a clean stop of the active committer, and after kill -9.

    python -m tests.acceptance.takeover                          50 of each, under load
    python -m tests.acceptance.takeover --times 5 --how stop     a few of one kind
    python -m tests.acceptance.takeover --how stop --heartbeat-ms 1000      with another kafka.heartbeat_interval_ms

Two committers and a producer that commits all the time, on Apache Kafka (`KAFKA_BOOTSTRAP_SERVERS` names one that runs
already). A takeover lasts from the signal to the standby's first version. Of each it prints what the time went into:

    drain    from SIGTERM until the active one has left the group (clean stop only)
    group    until Kafka has given the partition to the standby
    start    until the standby has read the table and the topics
    commit   until its first version

Exit code 1 when the median is above the target: 1 s after a clean stop, the session timeout and 1 s after kill -9. The
targets are for the default heartbeat interval.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import secrets
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from committerd_client import ClientError, CommitClient
from harness.daemon import Daemon
from harness.kafka import kafka_broker
from harness.lance_table import LanceTable

TARGET_SECONDS = 1.0
_FILES_AHEAD = 200
_TIMES_OF_A_TABLE = 5
_PATIENCE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Takeover:
    """Seconds from the signal to the end of each phase."""

    left: float | None
    assigned: float
    started: float
    committed: float

    def __str__(self) -> str:
        drain = "" if self.left is None else f"drain {self.left:5.2f}  "
        return (
            f"{self.committed:6.2f} s   {drain}group {self.assigned - (self.left or 0):6.2f}  "
            f"start {self.started - self.assigned:5.2f}  commit {self.committed - self.started:5.2f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="takeovers of each kind; default %(default)s")
    parser.add_argument("--how", choices=["stop", "kill", "both"], default="both", help="default %(default)s")
    parser.add_argument("--appends", type=int, default=20, help="appends a second; default %(default)s")
    parser.add_argument(
        "--burners", type=int, default=0, help="processes that do nothing but use a processor; default %(default)s"
    )
    parser.add_argument(
        "--session-ms",
        type=int,
        default=6_000,
        help="session timeout for kill -9; default %(default)s, the least that brokers allow by default",
    )
    parser.add_argument("--heartbeat-ms", type=int, help="kafka.heartbeat_interval_ms; default: that of the settings")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    good = True
    with ExitStack() as cleanup:
        kafka = cleanup.enter_context(kafka_broker())
        for how in ("stop", "kill") if chosen.how == "both" else (chosen.how,):
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="committerd-takeover-")))
            settings = {"KAFKA__SESSION_TIMEOUT_MS": str(chosen.session_ms)} if how == "kill" else {}
            if chosen.heartbeat_ms is not None:
                settings["KAFKA__HEARTBEAT_INTERVAL_MS"] = str(chosen.heartbeat_ms)
            found: list[Takeover] = []
            with _burning(chosen.burners):
                while (
                    len(found) < chosen.times
                ):  # a new table now and then, because reading a long history would dominate
                    found += measure(
                        kafka.bootstrap_servers,
                        Path(tempfile.mkdtemp(dir=folder)),
                        how=how,
                        times=min(_TIMES_OF_A_TABLE, chosen.times - len(found)),
                        appends=chosen.appends,
                        settings=settings,
                    )
            target = TARGET_SECONDS + (chosen.session_ms / 1000 if how == "kill" else 0)
            good &= report(how, found, target)
    return 0 if good else 1


def measure(
    servers: str, folder: Path, *, how: str, times: int, appends: int, settings: dict[str, str]
) -> list[Takeover]:
    """Measure this many takeovers between two committers; each is then started again as the other's standby."""
    name = f"takeover-{secrets.token_hex(4)}"
    table = LanceTable(str(folder / "table.lance"))
    table.create()
    found: list[Takeover] = []
    with ExitStack() as cleanup:
        active, standby = (
            Daemon(name=name, uri=table.uri, kafka=servers, settings=settings, log=folder / f"{number}.log")
            for number in (1, 2)
        )
        cleanup.enter_context(active).wait_ready(text="active")
        cleanup.enter_context(_load(servers, name, table, appends))
        cleanup.enter_context(standby)
        for number in range(1, times + 1):
            standby.wait_ready(text="standby", timeout=_PATIENCE_SECONDS)
            active.wait_line("version.committed")
            began = time.time()
            if how == "stop":
                active.stop()
            else:
                active.kill()
            standby.wait_line("version.committed", timeout=_PATIENCE_SECONDS)
            takeover = _read(active if how == "stop" else None, standby, began)
            found.append(takeover)
            print(f"{how} {number:3}  {takeover}", flush=True)
            active.start()
            active, standby = standby, active
    return found


def _read(stopped: Daemon | None, standby: Daemon, began: float) -> Takeover:
    def at(daemon: Daemon, event: str) -> float:
        times = [datetime.fromisoformat(line["time"]).timestamp() for line in daemon.lines(event, since_start=True)]
        return next(found for found in times if found >= began) - began

    return Takeover(
        left=None if stopped is None else at(stopped, "kafka.left"),
        assigned=at(standby, "kafka.assigned"),
        started=at(standby, "start.done"),
        committed=at(standby, "version.committed"),
    )


def report(how: str, found: Sequence[Takeover], target: float) -> bool:
    """Print median and extremes; return whether the median is within the target."""
    seconds = sorted(one.committed for one in found)
    median = statistics.median(seconds)
    slow = seconds[min(len(seconds) - 1, int(len(seconds) * 0.95))]
    print(
        f"{how}: {len(seconds)} takeovers, median {median:.2f} s, 95 % within {slow:.2f} s, "
        f"{seconds[0]:.2f} to {seconds[-1]:.2f} s; the target for the median is {target:.2f} s",
        flush=True,
    )
    return median <= target


@contextmanager
def _load(servers: str, name: str, table: LanceTable, appends: int) -> Iterator[None]:
    """Commit all the time, in a thread of its own; the data files are written in advance."""
    ahead = [table.append() for _ in range(_FILES_AHEAD)]
    ended = threading.Event()

    async def commit() -> None:
        async with CommitClient(servers, dataset=name, dataset_uri=table.uri, timeout=None, close_timeout=1) as client:
            count = 0
            while not ended.is_set():
                transaction = type(ahead[0])()
                transaction.CopyFrom(ahead[count % len(ahead)])
                transaction.uuid = f"{secrets.token_hex(4)}-0000-4000-8000-{secrets.token_hex(6)}"
                count += 1
                with suppress(ClientError):
                    await client.submit(transaction)
                await asyncio.sleep(1 / appends)

    thread = threading.Thread(target=asyncio.run, args=(commit(),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_PATIENCE_SECONDS)


@contextmanager
def _burning(count: int) -> Iterator[None]:
    burners = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(count)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _burn() -> None:
    while True:
        pass


if __name__ == "__main__":
    sys.exit(main())
