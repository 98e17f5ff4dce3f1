"""Six clients that upsert at the same time, some or all of their keys being the same: does each get through, and is no
key there twice?

Each client performs 15 upserts of 20 rows, one after the other. Half of the keys are in the table at the start, half
are new. In the n-th upsert of each client a share of the keys (0, 0.3 or 1) is the same for all clients; the others are
its own. pylance: a process for each client, `merge_insert(...).execute(...)` on its dataset object, repeated if pylance
gives it up. committerd: the clients in at most four processes, `commit(..., reexecute=...)`, durable. The rate is from
the first execution to the last commit, re-executions included, on a local table. Afterwards pylance reads the table and
counts the keys that are there more than once. Each key that was upserted must be there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import lance

from bench.bench import Bench
from bench.measuring import PROCESSES_MAX
from bench.mixed_side import Direct, Mixed, Queued, Step
from bench.plan import Plan
from bench.pool import WrongTable
from bench.results import Side
from bench.workers import results
from harness.places import StorePlace

NAME = "upserts"
SHARES = (0.0, 0.3, 1.0)
_NEW = 10**9
"""New keys begin here; in the table are the keys of the same numbers without it."""


def run(bench: Bench) -> None:
    """Measure pylance and committerd in turn, at each share."""
    for _ in range(bench.plan.runs):
        for share in SHARES:
            writers = [list(_steps(bench.plan, client, share)) for client in range(bench.plan.upsert_clients)]
            _measure_pylance(bench, share, writers)
            _measure(bench, share, writers)


def case(share: float) -> str:
    """The name of the case in the results."""
    return f"shared keys {share:g}"


def _steps(plan: Plan, client: int, share: float) -> list[Step]:
    """The upserts of a client. Keys below `upsert_rows * upserts_each` are shared."""
    rows, each = plan.upsert_rows, plan.upserts_each
    shared, own = round(rows * share), (client + 1) * rows * each
    made = []
    for number in range(each):
        places = range(number * rows, (number + 1) * rows)
        keys = [place if at < shared else own + place for at, place in enumerate(places)]
        made.append(Step(kind="upsert", keys=[_NEW + key if key % 2 else key for key in keys], value=client + 1))
    return made


def _measure_pylance(bench: Bench, share: float, writers: Sequence[Sequence[Step]]) -> None:
    uri = _table(bench)
    workers = bench.workers(len(writers))
    for worker, steps in zip(workers, writers, strict=True):
        worker.begin_make(Direct, pool=bench.pool, uri=uri, steps=steps)
    results(workers)
    for worker in workers:
        worker.start("run")
    _note(bench, share, "pylance", uri, done=results(workers))


def _measure(bench: Bench, share: float, writers: Sequence[Sequence[Step]]) -> None:
    uri = _table(bench)
    workers = bench.workers(min(PROCESSES_MAX, len(writers)))
    with bench.daemon(StorePlace(uri), durable=True) as daemon:
        daemon.wait_ready(text="active")
        for number, worker in enumerate(workers):
            worker.begin_make(Queued, **bench.queue(daemon, uri), writers=writers[number :: len(workers)])
        results(workers)
        for worker in workers:
            worker.start("run")
        done: list[Mixed] = results(workers)
        for worker in workers:
            worker.start("close")
        results(workers)
        daemon.stop()
    _note(bench, share, "committerd", uri, done=done)


def _table(bench: Bench) -> str:
    plan = bench.plan
    keys = (plan.upsert_clients + 1) * plan.upsert_rows * plan.upserts_each
    return bench.new_table(range(0, keys, 2))


def _note(bench: Bench, share: float, side: Side, uri: str, *, done: Sequence[Mixed]) -> None:
    """Note the figures. Raises `WrongTable` if a key is missing."""
    table: Any = lance.dataset(uri).to_table(columns=["id"])
    found = Counter(table["id"].to_pylist())
    wanted = {key for one in done for key in one.upserted}
    if missing := wanted - found.keys():
        raise WrongTable(f"{NAME}: {side}: {len(missing)} keys were upserted and are missing, such as {min(missing)}")
    seconds = [value for one in done for value in one.seconds["upsert"]]
    rate = len(seconds) / (max(one.ended for one in done) - min(one.began for one in done))
    again, twice = sum(one.again for one in done), sum(count > 1 for count in found.values())
    figures = {"rate": (rate, "upserts/s"), "again": (again, "executions"), "twice": (twice, "keys")}
    bench.results.note(NAME, case(share), side, **figures)
    bench.results.note_latencies(NAME, case(share), side, seconds)
    told = f"{rate:.1f} upserts/s, {max(seconds):.2f} s at most, {again} done again, {twice} keys more than once"
    bench.tell(f"{NAME}: {side}, {case(share)}: {told}")
