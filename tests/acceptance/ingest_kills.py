"""Kills at random points: is every record in its table once, in the order of its partition?

    make ingest-kills
    make ingest-kills ARGS="--points 30 --seed 7"
    make ingest-kills ARGS="--from routes"      # one stream into three tables
    make ingest-kills ARGS="--from files"       # a folder of files

Two processes of a pipeline, a third that has its name by mistake and reads in a group of its own, two committers and a
broker. At each point records are sent, and, while they are on their way, one process is killed (SIGKILL), frozen
(SIGSTOP) beyond its session, or stopped (SIGTERM); at a later point it goes on. The exit code is 1 if a record is
missing, doubled, in a table that is not its own, or out of order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias
from uuid import uuid4

import lance

from harness.child import Launch
from harness.daemon import Daemon
from harness.fleet import COMMAND, Fleet
from harness.kafka import KafkaBroker
from harness.lance_table import LanceTable
from tests.acceptance.long_runs import Tell, long_run
from tests.acceptance.victims import go_on, harm
from tests.ingest.running import SCHEMA, Flow, Topic, flow_of, records_of, wait

From: TypeAlias = Literal["topic", "routes", "files"]
"""Where the rows come from: a topic into a table, a topic into three tables, or a folder of files."""

_PARTITIONS = 4
_RECORDS_MAX = 400
"""Records that are sent at one point, at most."""
_END_SECONDS = 900
_POINTS = {"kill": 12, "freeze": 3, "stop": 2, "broker": 2}
"""What happens at a point, and how often beside the others."""
_INGEST_TO_COMMITTERS = (5, 2)
_GO_ON = 0.5
"""How often a process that is away goes on before something else happens."""
_KINDS = ("order", "return", "rare", "other")
"""The kinds of the records that are routed: two of three are orders, and no route takes the last kind."""


@dataclass(slots=True)
class Report:
    """What happened, and the problems found."""

    records: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    """By what was done, and to what: `kill ingest`."""
    wrong: list[str] = field(default_factory=list)


class Run(Protocol):
    """Where rows come from, where they go, and the processes that bring them there."""

    @property
    def ingests(self) -> Sequence[Daemon]: ...

    @property
    def committers(self) -> Sequence[Daemon]: ...

    @property
    def tables(self) -> Mapping[str, LanceTable]: ...

    def send(self, chance: random.Random, count: int) -> None:
        """Send so many more records."""

    def wanted(self) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """What each table must have: the numbers of the records by their ordered streams, in order."""

    def found(self, rows: lance.LanceDataset) -> Iterator[tuple[str, int]]:
        """Stream and number of each row, in the order of the table."""


def run(
    points: int,
    seed: int,
    *,
    broker: KafkaBroker,
    folder: Path,
    launch: Launch,
    tell: Tell,
    source: From = "topic",
) -> Report:
    """Run against a broker, which it kills, and report."""
    chance, report = random.Random(seed), Report()
    opened = _OPENED[source]
    with opened(broker.bootstrap_servers, folder, launch) as running:
        ingests, committers = running.ingests, running.committers
        away: list[Daemon] = []
        for point in range(points):
            running.send(chance, chance.randrange(_RECORDS_MAX))
            if away and chance.random() < _GO_ON:
                back = chance.choice(away)
                away.remove(back)
                go_on(back)
            time.sleep(chance.random())
            what = chance.choices(list(_POINTS), list(_POINTS.values()))[0]
            kind = chance.choices(["ingest", "committer"], _INGEST_TO_COMMITTERS)[0]
            victim = chance.choice(ingests if kind == "ingest" else committers)
            if what == "broker":
                broker.kill()
                time.sleep(chance.random() * 2)
                broker.start()
                report.happened["kill broker"] += 1
            elif victim in away:
                away.remove(victim)
                go_on(victim)
                report.happened[f"go on {kind}"] += 1
            else:
                go_on(victim)  # if it has ended by itself, because Kafka was away when it started
                harm(what, victim)
                away.append(victim)
                report.happened[f"{what} {kind}"] += 1
            if point % 10 == 9:
                counts = {name: one.open().count_rows() for name, one in running.tables.items()}
                tell(f"{point + 1} points; rows: {', '.join(f'{name} {count}' for name, count in counts.items())}")
        for one in (*ingests, *committers):
            go_on(one)
        running.send(chance, 10 * _PARTITIONS)
        for name, wanted in running.wanted().items():
            _check(name, running, wanted, report)
    return report


def _check(name: str, running: Run, wanted: Mapping[str, Sequence[int]], report: Report) -> None:
    """Hold a table against what was sent."""
    table, count = running.tables[name], sum(map(len, wanted.values()))
    report.records += count
    try:
        wait(
            lambda: table.open().count_rows() >= count,
            seconds=_END_SECONDS,
            what=lambda: f"{table.open().count_rows()} of {count} rows",
        )
    except AssertionError as error:
        report.wrong.append(f"{name}: {error}")
    found: dict[str, list[int]] = {stream: [] for stream in wanted}
    for stream, number in running.found(table.open()):
        found.setdefault(stream, []).append(number)
    for stream, numbers in found.items():
        expected = list(wanted.get(stream, ()))
        if sorted(numbers) != sorted(expected):
            counts, missing = Counter(numbers), sorted(set(expected) - set(numbers))
            doubled = [one for one, times in counts.items() if times > 1]
            others = sorted(set(numbers) - set(expected))
            report.wrong.append(
                f"{name}, {stream}: missing {missing[:10]}, doubled {doubled[:10]}, of elsewhere {others[:10]}, of "
                f"{len(expected)}"
            )
        elif numbers != expected:
            report.wrong.append(f"{name}, {stream} is out of order")


class _OfTopics:
    """Rows with the partition and the offset of their record."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic

    def found(self, rows: lance.LanceDataset) -> Iterator[tuple[str, int]]:
        for row in rows.to_table(columns=["partition", "offset"]).to_pylist():
            yield f"partition {row['partition']}", row["offset"]

    def offsets(self, kind: str = "") -> Mapping[str, Sequence[int]]:
        """Of the records of a kind, or of all: Kafka says which there are, since a broker that is killed may have taken
        a record that is sent again."""
        found: dict[str, list[int]] = {f"partition {number}": [] for number in range(_PARTITIONS)}
        for number in range(_PARTITIONS):
            for one in records_of(self.topic.servers, self.topic.name, number):
                if not kind or dict(one.headers)["kind"].decode() == kind:
                    found[f"partition {number}"].append(one.offset)
        return found


class _OneTable(_OfTopics):
    def __init__(self, flow: Flow, ingests: Sequence[Daemon]) -> None:
        super().__init__(flow.topic)
        assert flow.committer is not None
        self.ingests, self.committers = ingests, [flow.committer, flow.scene.daemon()]
        self.tables = {"table": flow.scene.table}

    def send(self, chance: random.Random, count: int) -> None:
        self.topic.send(count, flush=False)

    def wanted(self) -> Mapping[str, Mapping[str, Sequence[int]]]:
        self.topic.flush()
        return {"table": self.offsets()}


class _Routed(_OfTopics):
    def __init__(self, topic: Topic, fleet: Fleet, names: Mapping[str, str], ingests: Sequence[Daemon]) -> None:
        """`names`: of the datasets, by the kind of their records."""
        super().__init__(topic)
        self.ingests, self._names = ingests, names
        self.committers = [fleet.member(), fleet.member()]
        self.tables = {kind: fleet.scenes[name].table for kind, name in names.items()}

    def send(self, chance: random.Random, count: int) -> None:
        for _ in range(count):
            number, kind = self.topic.sent, chance.choices(_KINDS, (12, 6, 1, 3))[0]
            value = json.dumps({"id": number, "text": kind}).encode()
            self.topic.send_value(value, partition=number % _PARTITIONS, headers=[("kind", kind.encode())])
            self.topic.sent += 1

    def wanted(self) -> Mapping[str, Mapping[str, Sequence[int]]]:
        self.topic.flush()
        return {kind: self.offsets(kind) for kind in self.tables}


class _OfFiles:
    def __init__(self, flow: Flow, ingests: Sequence[Daemon], folder: Path) -> None:
        assert flow.committer is not None
        self.ingests, self.committers = ingests, [flow.committer, flow.scene.daemon()]
        self.tables = {"table": flow.scene.table}
        self._folder, self._files = folder, 0
        self._sent: dict[str, list[int]] = {}

    def send(self, chance: random.Random, count: int) -> None:
        """A file for each hundred records or fewer."""
        while count > 0:
            name, rows = f"{self._files:06}.jsonl", chance.randint(1, min(count, 100))
            hidden = self._folder / f"_{name}"
            hidden.write_text("".join(f'{{"id": {one}, "text": "{name}"}}\n' for one in range(rows)))
            hidden.rename(self._folder / name)
            self._sent[name] = list(range(rows))
            self._files, count = self._files + 1, count - rows

    def wanted(self) -> Mapping[str, Mapping[str, Sequence[int]]]:
        return {"table": self._sent}

    def found(self, rows: lance.LanceDataset) -> Iterator[tuple[str, int]]:
        for row in rows.to_table(columns=["text", "id"]).to_pylist():
            yield row["text"], row["id"]


@contextmanager
def _one_table(servers: str, folder: Path, launch: Launch) -> Iterator[Run]:
    with flow_of(servers, folder, launch, partitions=_PARTITIONS) as flow, ExitStack() as stack:
        name = {"INGEST__PIPELINE": flow.scene.name}
        ingests = [
            flow.ingest(**name),
            flow.ingest(**name, INGEST__FLUSH_SECONDS="0.5"),
            flow.ingest(**name, KAFKA__GROUP_PREFIX="other."),
        ]
        for one in ingests:
            stack.enter_context(one)
        yield _OneTable(flow, ingests)


@contextmanager
def _three_tables(servers: str, folder: Path, launch: Launch) -> Iterator[Run]:
    names = {kind: f"{kind}-{uuid4().hex[:8]}" for kind in _KINDS[:3]}
    with (
        contextlib.closing(Topic(servers, partitions=_PARTITIONS)) as topic,
        Fleet(kafka=servers, folder=folder, names=list(names.values()), launch=launch) as fleet,
    ):
        for name in names.values():
            lance.write_dataset(SCHEMA.empty_table(), fleet.scenes[name].table.uri)
        text = fleet.tables() + "".join(
            f'[ingest.routes.{name}]\nroute_values = ["{kind}"]\n' for kind, name in names.items()
        )
        settings = {
            "INGEST__TOPICS": topic.name,
            "INGEST__ROUTE_HEADER": "kind",
            "INGEST__UNMATCHED": "skip",
            "INGEST__FLUSH_SECONDS": "0.1",
            "INGEST__RETRY_SECONDS": "1",
            "INGEST__MARK_SECONDS": "1",
            "INGEST__PARTITION_COLUMN": "partition",
            "INGEST__OFFSET_COLUMN": "offset",
        }
        command = (*COMMAND, "ingest")
        ingests = [
            fleet.member(text, command=command, **settings),
            fleet.member(text, command=command, **settings | {"INGEST__FLUSH_SECONDS": "0.5"}),
            fleet.member(text, command=command, **settings, KAFKA__GROUP_PREFIX="other."),
        ]
        yield _Routed(topic, fleet, names, ingests)


@contextmanager
def _files(servers: str, folder: Path, launch: Launch) -> Iterator[Run]:
    incoming = folder / "incoming"
    incoming.mkdir()
    with flow_of(servers, folder, launch) as flow, ExitStack() as stack:
        settings = {
            "INGEST__TOPICS": "",
            "INGEST__SOURCE": "files",
            "INGEST__FOLDER": str(incoming),
            "INGEST__LIST_SECONDS": "0.2",
            "INGEST__PARTITION_COLUMN": "",
            "INGEST__OFFSET_COLUMN": "",
        }
        ingests = [
            flow.ingest(**settings),
            flow.ingest(**settings, INGEST__FLUSH_SECONDS="0.5"),
            flow.ingest(**settings),
        ]
        for one in ingests:
            stack.enter_context(one)
        yield _OfFiles(flow, ingests, incoming)


class _Opened(Protocol):
    def __call__(self, servers: str, folder: Path, launch: Launch) -> AbstractContextManager[Run]: ...


_OPENED: Mapping[From, _Opened] = {"topic": _one_table, "routes": _three_tables, "files": _files}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=300, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of what happens, to what and when; default %(default)s")
    parser.add_argument("--from", dest="source", choices=list(_OPENED), default="topic", help="default %(default)s")
    chosen = parser.parse_args()

    def started(broker: KafkaBroker, folder: Path, launch: Launch, tell: Tell) -> list[str]:
        report = run(
            chosen.points,
            chosen.seed,
            broker=broker,
            folder=folder,
            launch=launch,
            tell=tell,
            source=chosen.source,
        )
        tell(f"{report.records} records; {dict(sorted(report.happened.items()))}")
        return report.wrong

    return long_run("ingest-kills", started, good="every record is in its table once, in the order of its partition")


if __name__ == "__main__":
    sys.exit(main())
