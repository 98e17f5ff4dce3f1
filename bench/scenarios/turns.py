"""Upserts under a stream of Appends that name their keys: does each win at its first attempt, and soon?

The load of `make turns ARGS=--keys` (`harness/turns`): 100 upserts of old and new keys by two tasks, 500 Appends of
other keys a second from another process, whose files are written in advance, and a compaction twice a second. Once the
upserts share no key, and once each also changes one row that is the same for all. Both durable, on a local table.
Afterwards pylance reads the table: each row is there once, with the value of the last upsert.
"""

from __future__ import annotations

import asyncio
import secrets

from bench.bench import Bench, dataset_of
from bench.plan import Plan
from bench.pool import WrongTable
from harness.places import StorePlace
from harness.turns.load import Dataset, Load
from harness.turns.upserts_under_appends import create, wrong_rows
from harness.turns.upserts_under_appends import run as run_load
from harness.turns.verdict import percentile

NAME = "turns"


def run(bench: Bench) -> None:
    """Measure committerd without a shared row and with one."""
    for _ in range(bench.plan.runs):
        for shares_row in (False, True):
            _measure(bench, shares_row)


def case(shares_row: bool) -> str:
    """The name of the case in the results."""
    return "one row shared" if shares_row else "no row shared"


def load_of(plan: Plan, shares_row: bool) -> Load:
    """The load of one case."""
    return Load(
        upserts=plan.turns_upserts,
        upserters=2,
        appends_per_second=plan.turns_appends,
        names_keys=True,
        shares_row=shares_row,
        ahead=plan.turns_ahead,
        compact_seconds=0.5,
    )


def _measure(bench: Bench, shares_row: bool) -> None:
    load, uri = load_of(bench.plan, shares_row), str(bench.folder / f"turns-{secrets.token_hex(4)}.lance")
    create(uri, load)
    with bench.daemon(StorePlace(uri), durable=True) as daemon:
        daemon.wait_ready(text="active")
        measured = asyncio.run(run_load(Dataset(servers=bench.kafka, name=dataset_of(daemon), uri=uri), load))
        daemon.stop()
    if wrong := [*measured.not_compacted, *wrong_rows(uri, load, measured)]:
        raise WrongTable(f"{NAME}: {case(shares_row)}: {wrong[0]}")
    attempts = measured.attempts()
    lost = len(measured.lost) + len(measured.not_appended)
    figures = {
        "attempts_max": (attempts[-1] if attempts else 0, "attempts"),
        "attempts_p99": (percentile(attempts, 0.99) if attempts else 0, "attempts"),
        "won": (len(attempts), "upserts"),
        "failed": (lost, "commits"),
        "appends": (len(measured.appended) / measured.seconds, "appends/s"),
    }
    bench.results.note(NAME, case(shares_row), "committerd", **figures)
    bench.results.note_latencies(NAME, case(shares_row), "committerd", measured.waited)
    bench.tell(
        f"{NAME}: {case(shares_row)}: {len(attempts)} upserts won, at most {figures['attempts_max'][0]} attempts, "
        f"{max(measured.waited, default=0):.2f} s at most, {figures['appends'][0]:.0f} appends/s, {lost} failed"
    )
