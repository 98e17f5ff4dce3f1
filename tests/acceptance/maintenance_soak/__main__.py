"""python -m tests.acceptance.maintenance_soak: exit code 1 if there was a problem."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import tests.acceptance.maintenance_soak as package
from harness.kafka import kafka_broker
from harness.scene import Scene
from tests.acceptance.maintenance_soak.figures import table_of
from tests.acceptance.maintenance_soak.soak import beside_and_without, soak, targets_of
from tests.acceptance.maintenance_soak.steady import Wish, steady

_HOUR_SECONDS = 15.0
"""An hour of maintain.keep_hours in the part that compares."""
_SETTLED_SHARE = 1 / 6
"""From this share of a run on the figures are compared with their targets: ten minutes of an hour."""


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="time of both parts together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills-only", action="store_true", help="leave out the part that compares throughput")
    parser.add_argument("--steady", action="store_true", help="the part with steady rates alone")
    parser.add_argument("--appends", type=float, default=300.0, help="a second, with --steady; default %(default)s")
    parser.add_argument("--upserts", type=float, default=20.0, help="a second, with --steady; default %(default)s")
    parser.add_argument("--deletes", type=float, default=20.0, help="a second, with --steady; default %(default)s")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    problems: list[str] = []
    kill_seconds = given.seconds if given.kills_only else given.seconds / 2
    with tempfile.TemporaryDirectory(prefix="committerd-soak-") as folder, kafka_broker() as kafka:
        servers = kafka.bootstrap_servers
        if given.steady:
            return _steady(Path(folder), servers, given)
        if not given.kills_only:
            problems += _compare(Path(folder), servers, given.seconds / 2, rng)
        (Path(folder) / "killed").mkdir()
        with Scene(kafka=servers, name="killed", folder=Path(folder) / "killed") as scene:
            found = soak(scene, servers, seconds=kill_seconds, rng=rng)
            print("\n".join(["", "Everything is killed:", *found.lines()]))
            problems += found.problems
    return 1 if problems else 0


def _steady(folder: Path, servers: str, given: argparse.Namespace) -> int:
    wish = Wish(
        seconds=given.seconds, appends=given.appends, upserts=given.upserts, deletes=given.deletes, seed=given.seed
    )
    (folder / "steady").mkdir()
    with Scene(kafka=servers, name="steady", folder=folder / "steady") as scene:
        problems = steady(scene, servers, wish, tell=lambda line: print(line, flush=True))
    print("\n".join(problems or ["no problem"]))
    return 1 if problems else 0


def _compare(folder: Path, servers: str, seconds: float, rng: random.Random) -> list[str]:
    names = ("with", "without")
    for name in names:
        (folder / name).mkdir()
    first, second = (Scene(kafka=servers, name=name, folder=folder / name) for name in names)
    with first, second:
        targets = targets_of(_HOUR_SECONDS)
        beside, without = beside_and_without((first, second), servers, seconds=seconds, rng=rng, targets=targets)
    worst = targets.worst(beside.samples, after=beside.seconds * _SETTLED_SHARE)
    said = ", ".join(f"{what} {times:.2f}" for what, (times, _) in worst.items())
    print("\n".join(["With maintenance beside it:", *beside.lines(), *table_of(beside.samples, targets)]))
    print(f"at most, in times of its target, after a sixth of the time: {said}")
    print("\n".join(["", "Without, before it and after it:", *without.lines(), *table_of(without.samples, targets)]))
    print(f"\nthroughput with maintenance: {beside.rate / without.rate:.2f} of that without")
    return beside.problems + without.problems


if __name__ == "__main__":
    sys.exit(main())
