"""How many tables start, move to another member, and idle, where members share them out, on S3.

    python -m bench.fleet_members [--tables 1000] [--members 4] [--latency-ms 60] [--only created,rolled]

Real members, Kafka, and an S3 server (versitygw) that adds the latency to each response run on this machine. Each table
has ten versions. The settings are the chart's defaults of a group, but for `kafka.outcome_partitions`: a thousand
tables with eight partitions each are ten thousand partitions for the one broker.

* created: from the start of all members until each table has a committer; its topics are created meanwhile.
* served: the same, with topics that are there. Both with the processor time of all members until then.
* idle: memory, processor and requests of all members, and what a table costs in a month at list prices, if cores and
  memory are paid for as they are used (`CORE_DOLLARS`, `GIB_DOLLARS`).
* killed: `kill -9` of a member; how long each of its tables is without a committer.
* rolled: each member is replaced in turn, as a Deployment does it: SIGTERM, and the new one starts. How long each table
  that moves meanwhile is without a committer, each time, from when its member has drained it or given it up.

It prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import Any

import lance
import psutil

from bench.capacity import Used
from bench.pool import rows
from bench.proxied_s3 import ProxiedS3
from harness.daemon import Daemon
from harness.kafka import KafkaBroker
from harness.places import StorePlace

CORE_DOLLARS = 0.0405 * 720
GIB_DOLLARS = 0.0044 * 720
"""For a month: AWS Fargate, us-east-1, November 2026."""
_MEASURES = ("created", "served", "idle", "killed", "rolled")
_VERSIONS = 10
_LOOK_SECONDS = 0.5
_LET_GO = ("dataset.drained", "kafka.revoked")
_SETTLING_SECONDS = 15.0
_SECONDS_MAX = 900.0
_GROUP = {"STORE__RECHECK_SECONDS": "60"}
"""What the chart sets for a group."""


class Members:
    """The members of a group, which serve the same tables."""

    def __init__(self, folder: Path, *, kafka: str, s3: ProxiedS3, tables: Mapping[str, str], more: Mapping[str, str]):
        """`tables`: URI by name. `more`: settings."""
        self._folder = folder
        self._kafka = kafka
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
        made = Daemon(name=name, uri=None, kafka=self._kafka, settings=self._settings, log=self._folder / f"{name}.log")
        self.all.append(made.start())
        self.running.append(made)
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
    parser.add_argument(
        "--only", default=",".join(_MEASURES), help="What to measure, of created,served,idle,killed,rolled."
    )
    given = parser.parse_args()
    only = frozenset(given.only.split(","))
    with tempfile.TemporaryDirectory(prefix="bench-members-") as name, KafkaBroker() as kafka, ProxiedS3() as s3:
        folder = Path(name)
        tables = _tables(folder, s3, given.tables)
        more = {"KAFKA__OUTCOME_PARTITIONS": str(given.outcome_partitions)}
        members = Members(folder, kafka=kafka.bootstrap_servers, s3=s3, tables=tables, more=more)
        with s3.adding(given.latency_ms):
            try:
                for what, found in _measured(members, given.members, only, idle_seconds=given.idle_seconds):
                    print(json.dumps({what: found, "load": round(os.getloadavg()[0], 1)}), flush=True)
            finally:
                for one in members.all:
                    one.kill()


def _measured(members: Members, count: int, only: Set[str], *, idle_seconds: float) -> Any:
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


def _idle(members: Members, seconds: float) -> Mapping[str, float]:
    asked_at = time.monotonic()
    before = [Used.by(one) for one in members.running]
    # What is scraped takes processor time too, and does not count.
    at, used = time.monotonic(), sum(one.processor_seconds() for one in members.running)
    time.sleep(seconds)
    passed = time.monotonic() - at
    processor = sum(one.processor_seconds() for one in members.running) - used
    spent = [Used.by(one).since(first) for one, first in zip(members.running, before, strict=True)]
    asked = time.monotonic() - asked_at
    memory = sum(psutil.Process(one.pid).memory_info().rss for one in members.running)
    requests = 30 * 86_400 / asked * sum(one.dollars for one in spent) / len(members.tables)
    machine = (CORE_DOLLARS * processor / passed + GIB_DOLLARS * memory / 2**30) / len(members.tables)
    return {
        "mib": round(memory / 2**20),
        "millicores": round(1000 * processor / passed),
        "dollars_of_requests_a_table_and_month": round(requests, 2),
        "dollars_of_cores_and_memory_a_table_and_month": round(machine, 2),
    }


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
