"""A fleet under kills, floods and hanging stores: is each of its tables right afterwards?

    make fleet-kills
    make fleet-kills ARGS="--tables 300 --points 100 --seed 7"

Two members serve all tables; two of three tables are on a local disk, the others on S3, behind three proxies. At each
point transactions are staged for ten tables, and something happens: a member is killed (SIGKILL), frozen (SIGSTOP, for
longer than its session in most cases), or stopped (SIGTERM), until a later point; the broker is killed; a producer
floods a table; one of the proxies hangs, refuses or is slow, until a later point; a table leaves the settings file,
until a later point; pylance writes to a table. At the end all is put in order, and each table and its topics are
audited: every record has its outcome, every row is there once. The exit code is 1 if there is a contradiction, or a
member has crashed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil

from committerd_common.messages import Transaction
from harness.child import Launch
from harness.daemon import Daemon
from harness.fleet import Fleet
from harness.kafka import KafkaBroker
from harness.places import s3_place
from harness.s3 import Versitygw
from harness.scene import Scene
from harness.toxiproxy import NetworkProxy, Toxiproxy
from tests.acceptance.long_runs import Tell, long_run
from tests.acceptance.victims import go_on, harm
from tests.ingest.running import wait

_MEMBERS = 2
_WAYS = 3
"""Proxies between the members and the S3 server; each table on S3 is behind one of them."""
_ON_S3 = 3
"""One table in so many is on S3."""
_ASKED = 10
"""Tables for which something is staged at each point."""
_FLOOD = 1_000
_POINTS = {"kill": 5, "freeze": 2, "stop": 3, "broker": 1, "flood": 2, "store": 4, "table": 4, "pylance": 2}
"""What happens at a point, and how often beside the others."""
_GO_ON = 0.5
"""How often something is put in order before something else happens."""
_END_SECONDS = 900
_CRASHES = (
    "commit.on_another_table",
    "daemon.crashed",
    "dataset.crashed",
    "dataset.not_served",
    "datasets.refused",
    "kafka.consumer_replaced",
    "part.failed",
    "refused",
    "self_trial.failed",
)
"""Events of log lines that nothing here may cause."""


@dataclass(slots=True)
class Report:
    """What happened, and the problems found."""

    records: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory_mib_max: int = 0
    """The most that a member had at a point."""


@dataclass(slots=True)
class _Table:
    """A table, and what was staged for it."""

    scene: Scene
    ids: list[int]
    """Of the rows that it must have in the end."""
    offsets: list[int] = field(default_factory=list)

    def stage(self, *values: Transaction | bytes, producer: str) -> None:
        self.offsets += self.scene.stage(*values, headers={"producer": producer})
        self.ids += [id for one in values if isinstance(one, Transaction) for id in self.scene.table.brought[one.uuid]]
        self.scene.topics.disconnect()  # hundreds of clients would idle

    def ask(self, chance: random.Random) -> int:
        """Stage a few Appends, and sometimes one of them twice, or bytes that are none; returns how many records."""
        appends = self.scene.table.appends(chance.randint(1, 4))
        self.stage(*appends, producer="small")
        bad = [b"\xff\x00 no transaction"] if chance.random() < 0.2 else []
        again = [appends[0].SerializeToString()] if chance.random() < 0.2 else []
        if bad or again:
            self.stage(*bad, *again, producer="small")
        return len(appends) + len(bad) + len(again)


class _Running:
    """The fleet, and what is out of order."""

    def __init__(self, fleet: Fleet, tables: Sequence[_Table], ways: Sequence[NetworkProxy], broker: KafkaBroker):
        self.tables = tables
        self.members = [fleet.member() for _ in range(_MEMBERS)]
        self._fleet = fleet
        self._ways = ways
        self._broker = broker
        self._back: dict[str, Callable[[], None]] = {}
        """By what is out of order: puts it in order."""

    def happens(self, what: str, chance: random.Random, report: Report) -> None:
        """Do this to what chance chooses. If that is out of order already, put it in order instead."""
        match what:
            case "broker":
                self._broker.kill()
                time.sleep(chance.random() * 2)
                self._broker.start()
            case "flood":
                table = chance.choice(self.tables)
                table.stage(*table.scene.table.appends(_FLOOD), producer="flood")
                report.records += _FLOOD
            case "pylance":
                table = chance.choice(self.tables)
                table.ids += table.scene.table.write(3)
            case "store":
                what = self._harm_way(chance)
            case "table":
                what = self._remove_table(chance)
            case _:
                what = self._harm_member(what, chance, report)
        report.happened[what] += 1

    def put_in_order(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._back.pop(key)()

    @property
    def served(self) -> int:
        """How many tables have a committer."""
        return sum(int(one.metric("committerd_active")) for one in self.members)

    @property
    def out_of_order(self) -> list[str]:
        return list(self._back)

    def go_on(self, report: Report) -> None:
        """Put all in order."""
        self.put_in_order(self.out_of_order)
        for one in self.members:
            _start_again(one, report)

    def _harm_member(self, what: str, chance: random.Random, report: Report) -> str:
        number = chance.randrange(_MEMBERS)
        victim, key = self.members[number], f"member {number}"
        if key in self._back:
            self.put_in_order([key])
            return "go on"
        _start_again(victim, report)
        harm(what, victim)
        self._back[key] = lambda: go_on(victim)
        return what

    def _harm_way(self, chance: random.Random) -> str:
        way = chance.choice(self._ways)
        key = f"way {way.name}"
        if key in self._back:
            self.put_in_order([key])
            return "store is back"
        how = chance.choice(["hangs", "refuses", "is slow"])
        if how == "refuses":
            way.enable(False)
            self._back[key] = lambda: way.enable(True)
        else:
            toxic = way.add("timeout", timeout=0) if how == "hangs" else way.add("latency", latency=300, jitter=200)
            self._back[key] = lambda: way.remove(toxic)
        return f"store {how}"

    def _remove_table(self, chance: random.Random) -> str:
        name = chance.choice(self.tables).scene.name
        key = f"table {name}"
        if key in self._back:
            self.put_in_order([key])
            return "table is back"
        self._back[key] = self._name_tables
        self._name_tables()
        return "table leaves"

    def _name_tables(self) -> None:
        """Name the tables in the settings files, but for those that are out of order."""
        names = (name for name in self._fleet.scenes if f"table {name}" not in self._back)
        self._fleet.replace_files(self._fleet.tables(*names))


def run(
    tables: int, points: int, seed: int, *, broker: KafkaBroker, folder: Path, launch: Launch, tell: Tell
) -> Report:
    """Run against a broker, which it kills, and report."""
    chance, report, servers = random.Random(seed), Report(), broker.bootstrap_servers
    names = [f"f{number:03}-{uuid4().hex[:8]}" for number in range(tables)]
    with ExitStack() as stack:
        s3, toxiproxy = stack.enter_context(Versitygw()).endpoint, stack.enter_context(Toxiproxy())
        ways = [toxiproxy.proxy(s3.url) for _ in range(_WAYS)]
        on_s3 = enumerate(names[::_ON_S3])
        places = {name: s3_place(s3, proxy=ways[number % _WAYS].url) for number, name in on_s3}
        fleet = stack.enter_context(Fleet(kafka=servers, names=names, folder=folder, places=places, launch=launch))
        made = [_Table(scene, scene.table.create()) for scene in fleet.scenes.values()]
        running = _Running(fleet, made, ways, broker)
        wait(
            lambda: running.served >= tables,
            seconds=_END_SECONDS,
            what=lambda: f"{running.served} of {tables} tables are served",
        )
        tell(f"{tables} tables are served")
        for point in range(points):
            if (away := running.out_of_order) and chance.random() < _GO_ON:
                running.put_in_order([chance.choice(away)])
            for table in chance.sample(made, min(_ASKED, tables)):
                report.records += table.ask(chance)
            time.sleep(chance.random())
            running.happens(chance.choices(list(_POINTS), list(_POINTS.values()))[0], chance, report)
            report.memory_mib_max = max(report.memory_mib_max, *map(_memory_mib, running.members))
            if point % 10 == 9:
                tell(f"{point + 1} points, {report.records} records; out of order: {running.out_of_order}")
        running.go_on(report)
        for table in made:
            _audit(table, report)
        for one in running.members:
            said = Counter(str(line.get("event")) for line in one.lines())
            report.wrong += [f"{one.log}: {said[event]} times {event}" for event in _CRASHES if said[event]]
    return report


def _start_again(member: Daemon, report: Report) -> None:
    """Start a member that has ended by itself, because Kafka was away when it started. An end by a signal is wrong."""
    if member.running():
        return
    if member.code is None or member.code < 0:
        report.wrong.append(f"{member.log}: ended by itself with code {member.code}")
    member.start()


def _memory_mib(member: Daemon) -> int:
    return psutil.Process(member.pid).memory_info().rss >> 20 if member.running() else 0


def _audit(table: _Table, report: Report) -> None:
    try:
        table.scene.topics.wait_answers(table.offsets, timeout=_END_SECONDS)
        table.scene.audit(table.ids)
    except AssertionError as error:
        report.wrong.append(f"{table.scene.name}: {error}")
    finally:
        table.scene.topics.disconnect()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=100, help="default %(default)s")
    parser.add_argument("--points", type=int, default=100, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of what happens, to what and when; default %(default)s")
    chosen = parser.parse_args()

    def started(broker: KafkaBroker, folder: Path, launch: Launch, tell: Tell) -> list[str]:
        report = run(chosen.tables, chosen.points, chosen.seed, broker=broker, folder=folder, launch=launch, tell=tell)
        happened = ", ".join(f"{what} {count}" for what, count in sorted(report.happened.items()))
        tell(f"{report.records} records; {happened}; a member had at most {report.memory_mib_max} MiB")
        return report.wrong

    return long_run("fleet-kills", started, good="every record has its outcome, and every row is in its table once")


if __name__ == "__main__":
    sys.exit(main())
