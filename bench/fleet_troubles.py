"""What the trouble of one table does to the others of its process.

    python -m bench.fleet_troubles [--tables 20] [--appends 40] [--only flood,hangs]

A real process serves tables on an S3 server, with short time-outs of Kafka (`harness.scene.QUICK`). Clients that wait
for each outcome append to five quiet tables: first alone, then while another table is in trouble, for each kind of it.
It prints JSON: p50 and p99 of both, and their ratios.

* flood: thousands of Appends wait for it.
* hangs, refuses, throttles: its store does, while Appends wait for it. The others reach the store by another way.
* refused: its topic was deleted and made anew, so that its committer refuses to run.
* taken_over: its committer in another process stops, and this process takes it over.
* long_history: the same, of a table with ten thousand versions.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from bench.fleet import latencies, quantile, staged_again
from bench.long_history import write
from committerd.queue.port import TopicIdentity
from harness.fault_proxy import FaultProxy, answer
from harness.fleet import Fleet, active
from harness.kafka import KafkaBroker
from harness.places import s3_place
from harness.s3 import Versitygw
from harness.scene import Scene, until
from harness.toxiproxy import NetworkProxy, Toxiproxy

_QUIET = 5
_FLOOD = 10_000
_WAITING = 20
"""Appends that wait for a table whose store is in trouble."""
_VERSIONS = 10_000
_START_SECONDS_MAX = 300.0
BAD, FLOODED, REFUSED, MOVED, LONG = "bad", "flooded", "refused", "moved", "long"


class Troubles:
    """A process with its tables, and what can happen to one of them. Each trouble lasts while its block runs."""

    def __init__(self, fleet: Fleet, *, way: NetworkProxy, store: FaultProxy) -> None:
        """`way`, `store`: between the table `BAD` and its store, alone."""
        self._fleet = fleet
        self._way = way
        self._store = store
        self.member = fleet.member()
        everything = len(fleet.scenes)
        until(lambda: self.member.metric("committerd_active") == everything, seconds=_START_SECONDS_MAX)
        self.of: Mapping[str, Callable[[], Iterator[None]]] = {
            "flood": self._flood,
            "hangs": self._hangs,
            "refuses": self._refuses,
            "throttles": self._throttles,
            "refused": self._refused,
            "taken_over": lambda: self._taken_over(MOVED),
            "long_history": lambda: self._taken_over(LONG),
        }

    def _flood(self) -> Iterator[None]:
        self._wait_for(FLOODED, _FLOOD)
        yield

    def _hangs(self) -> Iterator[None]:
        self._wait_for(BAD, _WAITING)
        toxic = self._way.add("timeout", timeout=0)
        yield
        self._way.remove(toxic)

    def _refuses(self) -> Iterator[None]:
        self._way.enable(False)
        self._wait_for(BAD, _WAITING)
        yield
        self._way.enable(True)

    def _throttles(self) -> Iterator[None]:
        self._store.fault(answer(503), times=None)
        self._wait_for(BAD, _WAITING)
        yield
        self._store.clear()

    def _refused(self) -> Iterator[None]:
        self._fleet.scenes[REFUSED].committed()
        self._fleet.scenes[REFUSED].topics.recreate_staged()
        yield

    def _taken_over(self, name: str) -> Iterator[None]:
        other = self._fleet.member(self._fleet.tables(name))
        until(lambda: active(other, name), seconds=_START_SECONDS_MAX)
        os.kill(other.pid, signal.SIGTERM)
        yield
        other.stop()
        until(lambda: active(self.member, name), seconds=_START_SECONDS_MAX)

    def _wait_for(self, name: str, count: int) -> None:
        scene = self._fleet.scenes[name]
        model = scene.table.append()
        scene.stage(*(staged_again(model) for _ in range(count)))


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--appends", type=int, default=40, help="Appends to each of five quiet tables, each time.")
    parser.add_argument("--only", default="", help="The troubles to measure, with commas between them.")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-troubles-")))
        kafka = stack.enter_context(KafkaBroker()).bootstrap_servers
        s3 = stack.enter_context(Versitygw()).endpoint
        store = stack.enter_context(FaultProxy(s3.url))
        way = stack.enter_context(Toxiproxy()).proxy(store.url)
        quiet = [f"quiet-{number:03}" for number in range(given.tables - 5)]
        places = {name: s3_place(s3) for name in (*quiet, FLOODED, REFUSED, MOVED)}
        places[BAD] = s3_place(s3, proxy=way.url)
        fleet = stack.enter_context(Fleet(kafka=kafka, names=[*places, LONG], folder=folder, places=places))
        for name in places:
            fleet.scenes[name].table.create()
        _long_history(fleet)
        troubles = Troubles(fleet, way=way, store=store)
        asked = [fleet.scenes[name] for name in quiet[:_QUIET]]
        for name in given.only.split(",") if given.only else troubles.of:
            found = measured(asked, kafka, given.appends, contextmanager(troubles.of[name]))
            print(json.dumps({name: found, "load": round(os.getloadavg()[0], 1)}), flush=True)


def measured(
    quiet: Sequence[Scene], servers: str, appends: int, trouble: Callable[[], AbstractContextManager[None]]
) -> Mapping[str, float]:
    """The latency of Appends to the quiet tables, alone and beside a trouble."""
    with ThreadPoolExecutor(len(quiet)) as pool:

        def ask() -> list[float]:
            return [one for found in pool.map(lambda scene: latencies(scene, servers, appends), quiet) for one in found]

        alone = ask()
        with trouble():
            beside = ask()
    figures = {
        f"{what}_p{percent}_ms": quantile(found, percent)
        for what, found in (("alone", alone), ("beside", beside))
        for percent in (50, 99)
    }
    ratios = {
        f"p{percent}_ratio": round(figures[f"beside_p{percent}_ms"] / figures[f"alone_p{percent}_ms"], 2)
        for percent in (50, 99)
    }
    return figures | ratios


def _long_history(fleet: Fleet) -> None:
    """Make the table `LONG`, and its topics as if all of its records were settled and expired."""
    scene = fleet.scenes[LONG]
    scene.command("topics", "create")
    found = scene.shown_position()["topic"]
    identity = TopicIdentity(cluster_id=found["cluster_id"], topic=found["topic"], topic_id=found["topic_id"])
    folder = Path(scene.table.uri)
    position = write(folder, versions=_VERSIONS, members=1, fragments=0, identity=identity)
    scene.stage(*[b"expired"] * position.next_offset)
    scene.topics.truncate(position.next_offset)


if __name__ == "__main__":
    main()
