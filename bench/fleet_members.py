"""How many tables start, move to another member, and idle, where members share them out, on S3.

    python -m bench.fleet_members [--tables 1000] [--members 4] [--latency-ms 60] [--only created,rolled]

Real members, Kafka, and an S3 server (versitygw) that adds the latency to each response run on this machine. Each table
has ten versions. The settings are the chart's defaults of a group.

* created: from the start of all members until each table has a committer; its topics are created meanwhile.
* served: the same, with topics that are there. Both with the processor time of all members until then.
* idle: memory, processor and requests of all members, and what a table costs in a month at list prices, if cores and
  memory are paid for as they are used (`CORE_DOLLARS`, `GIB_DOLLARS`). Of Kafka: memory and processor.
* killed: `kill -9` of a member; how long each of its tables is without a committer.
* rolled: each member is replaced in turn, as a Deployment does it: SIGTERM, and the new one starts. How long each table
  that moves meanwhile is without a committer, each time, from when its member has drained it or given it up.
* maintained: memory, processor and requests of one `committerd maintain` for all tables, when the members have stopped
  and each table has had its first cleanup. In the hour of the default, each table has one more.

It prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import Any

import lance
import psutil

from bench.capacity import PRICES
from bench.pool import rows
from bench.proxied_s3 import ProxiedS3
from harness.daemon import Daemon
from harness.kafka import KafkaBroker
from harness.places import StorePlace
from harness.scene import until

CORE_DOLLARS = 0.0405 * 720
GIB_DOLLARS = 0.0044 * 720
"""For a month: AWS Fargate, us-east-1, November 2026."""
_MEASURES = ("created", "served", "idle", "killed", "rolled", "maintained")
_VERSIONS = 10
_LOOK_SECONDS = 0.5
_MONTH_SECONDS = 30 * 86_400
_LET_GO = ("dataset.drained", "kafka.revoked")
_SETTLING_SECONDS = 15.0
_SECONDS_MAX = 900.0
_GROUP = {
    "STORE__RECHECK_SECONDS": "60",
    "MAINTAIN__INTERVAL_SECONDS": "300",
    "MAINTAIN__CLEANUP_SECONDS": "3600",
}
"""What the chart sets for a group."""
_FREE = ("DeleteObject", "DeleteObjects")
_CHEAP = ("GetObject", "HeadObject", "HeadBucket")
"""Requests at the price of a GET; all others have that of a PUT."""


class Members:
    """The members of a group, which serve the same tables."""

    def __init__(
        self, folder: Path, *, kafka: KafkaBroker, s3: ProxiedS3, tables: Mapping[str, str], more: Mapping[str, str]
    ) -> None:
        """`tables`: URI by name. `more`: settings."""
        self._folder = folder
        self.kafka = kafka
        self.s3 = s3
        self.tables = tables
        self._file = folder / "committerd.toml"
        self._file.write_text("\n".join(f'[datasets.{name}]\nuri = "{uri}"' for name, uri in tables.items()))
        place = s3.new_table(None)
        self._settings = {"CONFIG": str(self._file), "KAFKA__GROUP": f"bench-{uuid.uuid4().hex[:6]}"}
        self._settings |= {**place.settings, **_GROUP, **more}
        self._read = dict[Path, int]()
        self.served = dict[str, tuple[str, float]]()
        """By table, the member that has begun to serve it last, and when (seconds of the epoch)."""
        self._moves = list[tuple[float, str, str, str]]()
        """When what happened to which table, in which member."""
        self.running: list[Daemon] = []
        self.all: list[Daemon] = []

    def start(self) -> Daemon:
        """Start one more."""
        name = f"member-{len(self.all)}"
        made = self._process(name, "run")
        self.running.append(made)
        return made

    def maintain(self) -> Daemon:
        """Start the process that maintains all tables."""
        return self._process("maintain", "maintain")

    def _process(self, name: str, command: str) -> Daemon:
        made = Daemon(
            name=name,
            uri=None,
            kafka=self.kafka.bootstrap_servers,
            settings=self._settings,
            log=self._folder / f"{name}.log",
            command=(sys.executable, "-m", "committerd", command),
        )
        self.all.append(made.start())
        return made

    def look(self) -> None:
        """Bring `served` up to date from the logs."""
        for one in self.all:
            with one.log.open("rb") as file:
                file.seek(self._read.get(one.log, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[one.log] = self._read.get(one.log, 0) + len(whole)
            for line in whole.splitlines():
                if not any(event.encode() in line for event in ("start.done", *_LET_GO)):
                    continue
                said = json.loads(line)
                at = datetime.fromisoformat(said["time"]).timestamp()
                if said["event"] in ("start.done", *_LET_GO):
                    self._moves.append((at, said["event"], said["dataset"], one.log.stem))
                if said["event"] == "start.done" and at > self.served.get(said["dataset"], ("", 0.0))[1]:
                    self.served[said["dataset"]] = (one.log.stem, at)

    def moved(self, since: float) -> Sequence[float]:
        """How long tables that have moved after this moment were without a committer each time, in seconds.

        From when its member had drained it or given it up. A member that had not begun to serve it does not count.
        """
        gaps, free, owner = [], dict[str, float](), dict[str, str]()
        for at, event, table, member in sorted(self._moves):
            if event == "start.done":
                if free.get(table, 0.0) > since:
                    gaps.append(at - free[table])
                free.pop(table, None)
                owner[table] = member
            elif owner.get(table) == member:  # another one only stood by for it
                del owner[table]
                free[table] = at
        return sorted(gaps)

    def wait(self, tables: Sequence[str], since: float) -> Sequence[float]:
        """Wait until each table has a committer that has begun after this moment; returns the seconds of each."""
        deadline = time.monotonic() + _SECONDS_MAX
        while True:
            self.look()
            found = [self.served[name][1] - since for name in tables if self.served.get(name, ("", 0.0))[1] > since]
            if len(found) == len(tables):
                return sorted(found)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(tables) - len(found)} of {len(tables)} tables have no committer")
            time.sleep(_LOOK_SECONDS)

    def of(self, member: Daemon) -> Sequence[str]:
        """The tables that this member serves now."""
        return [name for name, (owner, _) in self.served.items() if owner == member.log.stem]

    def settle(self) -> None:
        """Wait until no table has moved for a while."""
        before: Mapping[str, Any] = {}
        while self.served != before:
            before = dict(self.served)
            time.sleep(_SETTLING_SECONDS)
            self.look()

    def kill(self, member: Daemon) -> None:
        """End it at once."""
        os.kill(member.pid, signal.SIGKILL)
        self.running.remove(member)

    def stop(self) -> None:
        """End all of them in order."""
        for one in self.running:
            os.kill(one.pid, signal.SIGTERM)
        for one in self.running:
            one.stop(grace_seconds=_SECONDS_MAX)
        self.running.clear()


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--latency-ms", type=int, default=60)
    parser.add_argument("--outcome-partitions", type=int, default=1)
    parser.add_argument("--idle-seconds", type=float, default=120.0)
    parser.add_argument("--maintained-seconds", type=float, default=3600.0)
    parser.add_argument("--only", default=",".join(_MEASURES), help=f"What to measure, of {','.join(_MEASURES)}.")
    given = parser.parse_args()
    only = frozenset(given.only.split(","))
    with (
        tempfile.TemporaryDirectory(prefix="bench-members-") as name,
        KafkaBroker() as kafka,
        ProxiedS3(logs_requests=True) as s3,
    ):
        folder = Path(name)
        tables = _tables(folder, s3, given.tables)
        more = {"KAFKA__OUTCOME_PARTITIONS": str(given.outcome_partitions)}
        members = Members(folder, kafka=kafka, s3=s3, tables=tables, more=more)
        with s3.adding(given.latency_ms):
            try:
                for what, found in _measured(
                    members,
                    given.members,
                    only,
                    idle_seconds=given.idle_seconds,
                    maintained_seconds=given.maintained_seconds,
                ):
                    print(json.dumps({what: found, "load": round(os.getloadavg()[0], 1)}), flush=True)
            finally:
                for one in members.all:
                    one.kill()


def _measured(members: Members, count: int, only: Set[str], *, idle_seconds: float, maintained_seconds: float) -> Any:
    names = list(members.tables)
    for what in ("created", "served"):
        if what == "created" or what in only:
            members.stop()
            began = time.time()
            for _ in range(count):
                members.start()
            found = _times(members.wait(names, began))
            used = sum(one.processor_seconds() for one in members.running)
            yield what, {**found, "processor_s": round(used, 1)}
            if only - {what}:
                members.settle()
    if "idle" in only:
        yield "idle", _idle(members, idle_seconds)
    if "killed" in only:
        yield "killed", _killed(members)
    if "rolled" in only:
        yield "rolled", _rolled(members)
    if "maintained" in only:
        yield "maintained", _maintained(members, maintained_seconds)


def _killed(members: Members) -> Mapping[str, float]:
    victim = members.running[0]
    its = members.of(victim)
    began = time.time()
    members.kill(victim)
    found = _times(members.wait(its, began))
    members.start()
    members.settle()
    return found


def _rolled(members: Members) -> Mapping[str, float]:
    since = time.time()
    for leaving in tuple(members.running):
        its = members.of(leaving)
        began = time.time()
        os.kill(leaving.pid, signal.SIGTERM)
        members.start().wait_ready(timeout=_SECONDS_MAX)
        members.wait(its, began)
        leaving.stop(grace_seconds=_SECONDS_MAX)
        members.running.remove(leaving)
        members.settle()
    return _times(members.moved(since))


def _idle(members: Members, seconds: float) -> Mapping[str, Any]:
    broker = psutil.Process(members.kafka.pid)
    before = broker.cpu_times()
    found = _used(members, members.running, seconds)
    after = broker.cpu_times()
    processor = (after.user + after.system - before.user - before.system) / seconds
    kafka = {"kafka_mib": _mib(members.kafka.pid), "kafka_millicores": round(1000 * processor)}
    return {**found, **kafka}


def _maintained(members: Members, seconds: float) -> Mapping[str, Any]:
    members.stop()
    process = members.maintain()

    def cleanups() -> float:
        return process.metric("committerd_maintenance_step_seconds_count", step="cleanup")

    until(lambda: cleanups() >= len(members.tables), seconds=_SECONDS_MAX)
    before = cleanups()
    found = _used(members, [process], seconds)
    return {**found, "cleanups": cleanups() - before}


def _used(members: Members, processes: Sequence[Daemon], seconds: float) -> Mapping[str, Any]:
    """What these processes use in this time, and what that costs for a table and month."""
    requests = members.s3.requests()
    at, used = time.monotonic(), sum(one.processor_seconds() for one in processes)
    time.sleep(seconds)
    passed = time.monotonic() - at
    processor = (sum(one.processor_seconds() for one in processes) - used) / passed
    sent = members.s3.requests() - requests
    memory = sum(_mib(one.pid) for one in processes)
    dollars = sum(_price(name) * count for name, count in sent.items()) * _MONTH_SECONDS / passed
    machine = CORE_DOLLARS * processor + GIB_DOLLARS * memory / 1024
    return {
        "mib": memory,
        "millicores": round(1000 * processor),
        "requests_a_table_and_minute": {
            name: round(60 * count / passed / len(members.tables), 2) for name, count in sent.items()
        },
        "dollars_of_requests_a_table_and_month": round(dollars / len(members.tables), 2),
        "dollars_of_cores_and_memory_a_table_and_month": round(machine / len(members.tables), 2),
    }


def _price(request: str) -> float:
    """The dollars of a request, by S3's name of the operation."""
    if request in _FREE:
        return 0.0
    return PRICES["get" if request in _CHEAP else "put"] / 1_000_000


def _mib(pid: int) -> int:
    return round(int(psutil.Process(pid).memory_info().rss) / 2**20)


def _times(seconds: Sequence[float]) -> Mapping[str, float]:
    return {
        "tables": len(seconds),
        "median_s": round(statistics.median(seconds), 2) if seconds else 0.0,
        "slowest_s": round(max(seconds, default=0.0), 2),
    }


def _tables(folder: Path, s3: ProxiedS3, count: int) -> Mapping[str, str]:
    """The URIs of new tables by name, all in one bucket."""
    first: StorePlace = s3.copy_of(_table(folder / "table.lance"))
    bucket = s3.data / first.bucket
    _, _, key = first.uri.removeprefix("s3://").partition("/")
    tables = dict[str, str]()
    for number in range(count):
        there = bucket / f"tables/t{number:04}.lance"
        s3.link(bucket / key, there)
        tables[f"t{number:04}"] = f"s3://{first.bucket}/tables/{there.name}"
    return tables


def _table(folder: Path) -> Path:
    for number in range(_VERSIONS):
        lance.write_dataset(rows([number]), str(folder), mode="append" if number else "create")
    return folder


if __name__ == "__main__":
    main()
