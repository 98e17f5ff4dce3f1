"""Many writers of one local table: pylance's race against committerd's queue, end to end through Kafka.

pylance: N processes for a few seconds, each committing one written file after the other by `LanceDataset.commit(uri,
Append)`. committerd: N producers in at most four processes, each with 8 commits in flight, by `CommitClient.commit` (a
latency is from submit to outcome), with a real Kafka and `committerd run`, durable and not. Rates are from the first
call to the last response. Files are written in advance. After each run pylance checks that every committed file is in
the table once.
"""

from __future__ import annotations

from bench.bench import Bench, mode
from bench.measuring import by_queue_locally, race_locally

NAME = "writers"


def run(bench: Bench) -> None:
    """Measure all numbers of writers in order, pylance and committerd in turn."""
    for _ in range(bench.plan.runs):
        for writers, appends in bench.plan.producers.items():
            race_locally(bench, writers=writers).note(bench, NAME, case(writers), "pylance")
            for durable in (True, False):
                rate = by_queue_locally(bench, producers=writers, appends=appends, durable=durable)
                rate.note(bench, NAME, case(writers, durable), "committerd")


def case(writers: int, durable: bool | None = None) -> str:
    """The name of the case in the results; pylance has one mode only."""
    name = f"{writers} writer{'s' if writers > 1 else ''}"
    return name if durable is None else f"{name}, {mode(durable)}"
