"""python -m tests.acceptance.maintenance_soak: exit code 1 if there was a problem."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import tests.acceptance.maintenance_soak as package
from harness.kafka import kafka_broker
from harness.scene import Scene
from tests.acceptance.maintenance_soak.soak import Plan, Soak


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
    rates = {"appends": given.appends, "upserts": given.upserts, "deletes": given.deletes}
    steady = Plan(seconds=given.seconds, seed=given.seed, **rates)
    short = dataclasses.replace(
        steady, appends=100.0, upserts=10.0, deletes=10.0, fragments=300, unindexed_rows=500, version_seconds=0.0
    )
    with ExitStack() as cleanup:
        kafka = cleanup.enter_context(kafka_broker()).bootstrap_servers
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="committerd-soak-")))

        def soak(name: str, plan: Plan) -> Soak:
            (folder / name).mkdir()
            scene = cleanup.enter_context(Scene(kafka=kafka, name=name, folder=folder / name))
            return Soak(scene, kafka, plan, lambda line: print(line, flush=True))

        if given.steady:
            problems = soak("steady", steady).run()
        else:
            problems = []
            if not given.kills_only:
                # More changes a second than writers can make.
                fast = dataclasses.replace(short, appends=10_000.0, upserts=100.0, deletes=100.0)
                compared = dataclasses.replace(fast, seconds=given.seconds / 4, hour_seconds=15.0)
                beside = soak("with", compared)
                problems += _compare(beside, soak("without", dataclasses.replace(compared, maintained=False)), compared)
            seconds = given.seconds if given.kills_only else given.seconds / 2
            print("\nEverything is killed:")
            problems += soak("killed", dataclasses.replace(short, seconds=seconds, hour_seconds=8.0, kills=True)).run()
    print("\n".join(problems or ["no problem"]))
    return 1 if problems else 0


def _compare(beside: Soak, without: Soak, plan: Plan) -> list[str]:
    """Write with maintenance and without; returns the problems.

    The table without gets the first half of its time before the other one and the second half after it, so that both
    meet the same machine.
    """
    done = {beside: 0.0, without: 0.0}
    for soak in (beside, without):
        soak.start()
    for soak, seconds in ((without, plan.seconds / 2), (beside, plan.seconds), (without, plan.seconds / 2)):
        soak.write(seconds)
        done[soak] += soak.written.appends + soak.written.upserts + soak.written.deletes
    for name, soak in (("With maintenance beside it", beside), ("Without, after it", without)):
        print("\n".join(["", f"{name}, {done[soak] / plan.seconds:.1f} commits a second:", *soak.summary()]))
    print(f"\nthroughput with maintenance: {done[beside] / done[without]:.2f} of that without")
    return beside.problems + without.problems


if __name__ == "__main__":
    sys.exit(main())
