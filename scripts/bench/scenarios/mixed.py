"""Several writers that do everything: of ten operations seven are Appends, one an upsert, one a delete, one a config
change.

Each writer has its own files, keys and settings, and begins an operation when the previous one is committed. Both sides
do the same work. The time is from the first operation to the last commit, and includes executing upserts and deletes,
and all re-executions. pylance: a process for each writer, which keeps its dataset object; it repeats an operation that
pylance gives up. committerd: the writers in at most four processes, `commit(..., reexecute=...)`, durable and not. The
files of the Appends are written in advance. At the end pylance reads the table: every row, value and setting must be
what was committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lance

from harness.places import StorePlace
from scripts.bench.bench import Bench, mode
from scripts.bench.measuring import PROCESSES_MAX
from scripts.bench.mixed_side import KEYS_EACH, Direct, Mixed, Queued
from scripts.bench.pool import APPENDED_ID, WrongTable
from scripts.bench.results import Side
from scripts.bench.workers import results

NAME = "mixed"
PYLANCE = "direct"


def run(bench: Bench) -> None:
    """Measure pylance and committerd in turn."""
    keys = range(bench.plan.mixed_writers * KEYS_EACH)
    for _ in range(bench.plan.runs):
        uri = bench.new_table(keys)
        done = _direct(bench, uri)
        _require_all(uri, bench, done)
        _note(bench, PYLANCE, "pylance", done)
        for durable in (True, False):
            uri = bench.new_table(keys)
            done = _queued(bench, uri, durable=durable)
            _require_all(uri, bench, done)
            _note(bench, mode(durable), "committerd", done)


def _direct(bench: Bench, uri: str) -> list[Mixed]:
    plan = bench.plan
    workers = bench.workers(plan.mixed_writers)
    for number, worker in enumerate(workers):
        worker.begin_make(Direct, pool=bench.pool, uri=uri, writer=number, rounds=plan.mixed_rounds)
    results(workers)
    for worker in workers:
        worker.start("run")
    return results(workers)


def _queued(bench: Bench, uri: str, *, durable: bool) -> list[Mixed]:
    plan = bench.plan
    workers = bench.workers(min(PROCESSES_MAX, plan.mixed_writers))
    with bench.daemon(StorePlace(uri), durable=durable) as daemon:
        daemon.wait_ready(text="active")
        for number, worker in enumerate(workers):
            worker.begin_make(
                Queued,
                **bench.queue(daemon, uri),
                writers=range(number, plan.mixed_writers, len(workers)),
                rounds=plan.mixed_rounds,
            )
        results(workers)
        for worker in workers:
            worker.start("run")
        done: list[Mixed] = results(workers)
        for worker in workers:
            worker.start("close")
        results(workers)
        daemon.stop()
    return done


def _note(bench: Bench, case: str, side: Side, done: Sequence[Mixed]) -> None:
    seconds = max(one.ended for one in done) - min(one.began for one in done)
    count = sum(len(values) for one in done for values in one.seconds.values())
    again = sum(one.again for one in done)
    bench.results.note(NAME, case, side, rate=(count / seconds, "operations/s"), again=(again, "executions"))
    for kind in done[0].seconds:
        taken = [value for one in done for value in one.seconds[kind]]
        bench.results.note_latencies(NAME, f"{case}, {kind}", side, taken)
    bench.tell(f"{NAME}: {side}, {case}: {count / seconds:.1f} operations/s, {again} done again")


def _require_all(uri: str, bench: Bench, done: Sequence[Mixed]) -> None:
    """Check every row, value and setting. Raises `WrongTable`."""
    table = lance.dataset(uri)
    found = table.to_table()
    pairs = list(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))
    own = [(key, value) for key, value in pairs if key != APPENDED_ID]
    wanted = dict.fromkeys(range(bench.plan.mixed_writers * KEYS_EACH), 0)
    for one in done:
        wanted |= one.upserted
    for one in done:
        for key in one.deleted:
            del wanted[key]
    appended = [bench.pool.file_name(file) for one in done for file in one.appended]
    paths = [Path(file.path).name for part in table.get_fragments() for file in part.metadata.files]
    if len(own) != len(wanted) or dict(own) != wanted:
        raise WrongTable(f"{NAME}: the rows of the table are not those that were committed")
    if len(pairs) - len(own) != len(appended) or any(paths.count(name) != 1 for name in appended):
        raise WrongTable(f"{NAME}: {len(appended)} files were appended, and not each is in the table once")
    for one in done:
        if one.configured.items() - table.config().items():
            raise WrongTable(f"{NAME}: a setting is not what was committed last")
