"""The most contended case of `writers` with `commit.coalesce = none`: each Append is a version of its own.

It is timed as there. The remaining advantage is that nobody races; group commit has no part in it.
"""

from __future__ import annotations

from bench.bench import Bench, mode
from bench.measuring import by_queue_locally, race_locally

NAME = "no_coalescing"
PYLANCE = "racing writers"


def run(bench: Bench) -> None:
    """Measure pylance and committerd in turn."""
    plan = bench.plan
    for _ in range(plan.runs):
        race_locally(bench, writers=plan.writers_most).note(bench, NAME, PYLANCE, "pylance")
        for durable in (True, False):
            rate = by_queue_locally(
                bench,
                producers=plan.writers_most,
                appends=plan.uncoalesced,
                durable=durable,
                settings={"COMMIT__COALESCE": "none"},
            )
            rate.note(bench, NAME, mode(durable), "committerd")
