"""Kills at random points: is every record of the topic in the table once, in the order of its partition?

    make ingest-kills
    make ingest-kills ARGS="--points 30 --seed 7"

Two processes of a pipeline, a third that has its name by mistake and reads in a group of its own, two committers and a
broker. At each point records are sent, and, while they are on their way, one process is killed (SIGKILL), frozen
(SIGSTOP) beyond its session, or stopped (SIGTERM); at a later point it goes on. The exit code is 1 if a record is
missing, doubled, or out of order.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from kafka import KafkaConsumer, TopicPartition

from harness.child import Launch
from harness.daemon import Daemon
from harness.kafka import KafkaBroker
from tests.acceptance.long_runs import Tell, long_run
from tests.ingest.running import Flow, flow_of, wait

_PARTITIONS = 4
_RECORDS_MAX = 400
"""Records that are sent at one point, at most."""
_END_SECONDS = 900
_POINTS = {"kill": 12, "freeze": 3, "stop": 2, "broker": 2}
"""What happens at a point, and how often beside the others."""
_INGEST_TO_COMMITTERS = (5, 2)
_GO_ON = 0.5
"""How often a process that is away goes on before something else happens."""


@dataclass(slots=True)
class Report:
    """What happened, and the problems found."""

    records: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    """By what was done, and to what: `kill ingest`."""
    wrong: list[str] = field(default_factory=list)


def run(points: int, seed: int, *, broker: KafkaBroker, folder: Path, launch: Launch, tell: Tell) -> Report:
    """Run against a broker, which it kills, and report."""
    chance, report = random.Random(seed), Report()
    with flow_of(broker.bootstrap_servers, folder, launch, partitions=_PARTITIONS) as flow, ExitStack() as stack:
        assert flow.committer is not None
        name = {"INGEST__PIPELINE": flow.scene.name}
        ingests = [
            flow.ingest(**name),
            flow.ingest(**name, INGEST__FLUSH_SECONDS="0.5"),
            flow.ingest(**name, KAFKA__GROUP_PREFIX="other."),
        ]
        committers = [flow.committer, flow.scene.daemon()]
        away: list[Daemon] = []
        for one in ingests:
            stack.callback(one.kill)
            one.start()
        for point in range(points):
            flow.topic.send(chance.randrange(_RECORDS_MAX), flush=False)
            if away and chance.random() < _GO_ON:
                back = chance.choice(away)
                away.remove(back)
                _go_on(back)
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
                _go_on(victim)
                report.happened[f"go on {kind}"] += 1
            else:
                _go_on(victim)  # if it has ended by itself, because Kafka was away when it started
                _harm(what, victim)
                away.append(victim)
                report.happened[f"{what} {kind}"] += 1
            if point % 10 == 9:
                tell(f"{point + 1} points, {flow.topic.sent} records sent, {flow.count()} rows")
        for one in (*ingests, *committers):
            _go_on(one)
        flow.topic.send(10 * _PARTITIONS)
        _check(flow, report)
    return report


def _harm(what: str, victim: Daemon) -> None:
    match what:
        case "kill":
            victim.kill()
        case "freeze":
            try:
                victim.freeze()
            except (AssertionError, psutil.Error):
                if victim.running():  # it has not ended by itself meanwhile
                    raise
        case _:
            victim.stop()


def _go_on(victim: Daemon) -> None:
    """Start a process that has ended; wake a process that stands still."""
    if victim.running():
        victim.thaw()
    else:
        victim.start()


def _check(flow: Flow, report: Report) -> None:
    """Hold the table against the topic."""
    wanted = _offsets(flow)
    report.records = sum(wanted.values())
    try:
        wait(
            lambda: flow.count() >= report.records,
            seconds=_END_SECONDS,
            what=lambda: f"{flow.count()} of {report.records} rows",
        )
    except AssertionError as error:
        report.wrong.append(str(error))
    found: dict[int, list[int]] = {number: [] for number in wanted}
    for row in flow.rows():
        found[row["partition"]].append(row["offset"])
    for number, end in wanted.items():
        if sorted(found[number]) != list(range(end)):
            missing = sorted(set(range(end)) - set(found[number]))
            doubled = [one for one, count in Counter(found[number]).items() if count > 1]
            report.wrong.append(f"partition {number}: missing {missing[:10]}, doubled {doubled[:10]}, of {end}")
        elif found[number] != sorted(found[number]):
            report.wrong.append(f"partition {number} is out of order")


def _offsets(flow: Flow) -> dict[int, int]:
    """The number of records of each partition."""
    places = [TopicPartition(flow.topic.name, number) for number in range(_PARTITIONS)]
    consumer: Any = KafkaConsumer(bootstrap_servers=flow.scene.topics.servers)
    with contextlib.closing(consumer):
        return {place.partition: end for place, end in consumer.end_offsets(places).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=300, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of what happens, to what and when; default %(default)s")
    chosen = parser.parse_args()

    def started(broker: KafkaBroker, folder: Path, launch: Launch, tell: Tell) -> list[str]:
        report = run(chosen.points, chosen.seed, broker=broker, folder=folder, launch=launch, tell=tell)
        tell(f"{report.records} records; {dict(sorted(report.happened.items()))}")
        return report.wrong

    return long_run("ingest-kills", started, good="every record is in the table once, in the order of its partition")


if __name__ == "__main__":
    sys.exit(main())
