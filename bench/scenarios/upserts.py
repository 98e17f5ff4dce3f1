"""Six clients that upsert at the same time, some or all of their keys being the same: does each get through, and is no
key there twice?

Each client performs 15 upserts of 20 rows, one after the other. Half of the keys are in the table at the start, half
are new. In the n-th upsert of each client a share of the keys (0, 0.3 or 1) is the same for all clients; the others are
its own. pylance: a process for each client, `merge_insert(...).execute(...)` on its dataset object, repeated if pylance
gives it up. committerd: the clients in at most four processes, `commit(..., reexecute=...)`, durable. The rate is from
the first execution to the last commit, re-executions included: on a local table, and on S3 with 60 ms added to every
response, where pylance's clients begin nothing after 30 s. Afterwards pylance reads the table and counts the keys that
are there more than once. Each key that was upserted must be there.
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
S3_MILLISECONDS = 60
LOCAL, S3 = "local", f"on S3, {S3_MILLISECONDS} ms added"
_NEW = 10**9
"""New keys begin here; in the table are the keys of the same numbers without it."""


def run(bench: Bench) -> None:
    """Measure pylance and committerd in turn, at each share, locally and then on S3."""
    plan = bench.plan
    steps = {share: [list(_steps(plan, client, share)) for client in range(plan.upsert_clients)] for share in SHARES}
    for _ in range(plan.runs):
        for share, writers in steps.items():
            _measure_pylance(bench, StorePlace(bench.new_table(_keys(plan))), case(share, LOCAL), writers)
            _measure(bench, StorePlace(bench.new_table(_keys(plan))), case(share, LOCAL), writers)
    for _ in range(plan.s3_runs):
        for share, writers in steps.items():
            places = [bench.s3.new_table(None, _keys(plan)) for _ in range(2)]
            with bench.s3.adding(S3_MILLISECONDS):
                seconds = plan.upserts_s3_race_seconds
                _measure_pylance(bench, places[0], case(share, S3), writers, seconds=seconds)
                _measure(bench, places[1], case(share, S3), writers)


def case(share: float, where: str) -> str:
    """The name of the case in the results."""
    return f"shared keys {share:g}, {where}"


def _keys(plan: Plan) -> range:
    """The keys that the table has at the start: half of all."""
    return range(0, (plan.upsert_clients + 1) * plan.upsert_rows * plan.upserts_each, 2)


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


def _measure_pylance(
    bench: Bench, place: StorePlace, case: str, writers: Sequence[Sequence[Step]], *, seconds: float | None = None
) -> None:
    """`seconds`: nothing is begun after this time."""
    workers, options = bench.workers(len(writers)), dict(place.storage_options) or None
    for worker, steps in zip(workers, writers, strict=True):
        worker.begin_make(Direct, pool=bench.pool, uri=place.uri, steps=steps, storage_options=options)
    results(workers)
    for worker in workers:
        worker.start("run", seconds=seconds)
    _note(bench, place, case, "pylance", done=results(workers))


def _measure(bench: Bench, place: StorePlace, case: str, writers: Sequence[Sequence[Step]]) -> None:
    workers = bench.workers(min(PROCESSES_MAX, len(writers)))
    with bench.daemon(place, durable=True) as daemon:
        daemon.wait_ready(text="active")
        for number, worker in enumerate(workers):
            worker.begin_make(Queued, **bench.queue_of(daemon, place), writers=writers[number :: len(workers)])
        results(workers)
        for worker in workers:
            worker.start("run")
        done: list[Mixed] = results(workers)
        for worker in workers:
            worker.start("close")
        results(workers)
        daemon.stop()
    _note(bench, place, case, "committerd", done=done)


def _note(bench: Bench, place: StorePlace, case: str, side: Side, *, done: Sequence[Mixed]) -> None:
    """Note the figures. Raises `WrongTable` if a key is missing."""
    table: Any = lance.dataset(place.uri, storage_options=dict(place.storage_options) or None)
    found = Counter(table.to_table(columns=["id"])["id"].to_pylist())
    wanted = {key for one in done for key in one.upserted}
    if missing := wanted - found.keys():
        raise WrongTable(f"{NAME}: {side}: {len(missing)} keys were upserted and are missing, such as {min(missing)}")
    seconds = [value for one in done for value in one.seconds["upsert"]]
    rate = len(seconds) / (max(one.ended for one in done) - min(one.began for one in done))
    again, twice = sum(one.again for one in done), sum(count > 1 for count in found.values())
    figures = {"rate": (rate, "upserts/s"), "again": (again, "executions"), "twice": (twice, "keys")}
    bench.results.note(NAME, case, side, **figures)
    bench.results.note_latencies(NAME, case, side, seconds)
    told = f"{rate:.1f} upserts/s, {max(seconds):.2f} s at most, {again} done again, {twice} keys more than once"
    bench.tell(f"{NAME}: {side}, {case}: {told}")
