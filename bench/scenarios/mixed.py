"""Several writers that do everything: of ten operations seven are Appends, one an upsert, one a delete, one a config
change.

Each writer has its own files, keys and settings, and begins an operation when the previous one is committed. Both sides
do the same work. The time is from the first operation to the last commit, and includes executing upserts and deletes,
and all re-executions. pylance: a process for each writer, which keeps its dataset object; it repeats an operation that
pylance gives up. committerd: the writers in at most four processes, `commit(..., reexecute=...)`, durable and not;
Appends name their keys, so that upserts, which guard theirs, pass them (pylance's merges guard no keys). The writers of
one process share a `KeyCache`, as the calls of one client do. The files of the Appends are written in advance. On S3,
with 60 ms added to every response, pylance's writers begin nothing after 30 s; committerd's writers perform all
operations. At the end pylance reads the table: every row, value and setting must be what was committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance

from bench.bench import Bench, mode
from bench.measuring import PROCESSES_MAX
from bench.mixed_side import KEYS_EACH, ROUND, Direct, Mixed, Queued, steps
from bench.pool import APPENDED_ID, WrongTable
from bench.results import Side
from bench.workers import results
from harness.places import StorePlace

NAME = "mixed"
PYLANCE = "direct"
S3_MILLISECONDS = 60
S3 = f"on S3, {S3_MILLISECONDS} ms added"


def run(bench: Bench) -> None:
    """Measure pylance and committerd in turn, locally and then on S3."""
    plan = bench.plan
    keys = range(plan.mixed_writers * KEYS_EACH)
    for _ in range(plan.runs):
        _measure_pylance(bench, StorePlace(bench.new_table(keys)), PYLANCE)
        for durable in (True, False):
            _measure(bench, StorePlace(bench.new_table(keys)), mode(durable), durable=durable)
    for _ in range(plan.s3_runs):
        places = [bench.s3.new_table(bench.pool, keys) for _ in range(2)]
        with bench.s3.adding(S3_MILLISECONDS):
            _measure_pylance(bench, places[0], S3, seconds=plan.mixed_s3_race_seconds)
            _measure(bench, places[1], S3, durable=True)


def _measure_pylance(bench: Bench, place: StorePlace, case: str, *, seconds: float | None = None) -> None:
    """`seconds`: nothing is begun after this time."""
    plan = bench.plan
    workers = bench.workers(plan.mixed_writers)
    for number, worker in enumerate(workers):
        worker.begin_make(
            Direct,
            pool=bench.pool,
            uri=place.uri,
            steps=list(steps(number, plan.mixed_rounds)),
            storage_options=dict(place.storage_options) or None,
        )
    results(workers)
    for worker in workers:
        worker.start("run", seconds=seconds)
    done: list[Mixed] = results(workers)
    _require_all(place, bench, done)
    _note(bench, case, "pylance", done)


def _measure(bench: Bench, place: StorePlace, case: str, *, durable: bool) -> None:
    plan = bench.plan
    workers = bench.workers(min(PROCESSES_MAX, plan.mixed_writers))
    with bench.daemon(place, durable=durable) as daemon:
        daemon.wait_ready(text="active")
        for number, worker in enumerate(workers):
            writers = range(number, plan.mixed_writers, len(workers))
            worker.begin_make(
                Queued,
                **bench.queue_of(daemon, place),
                writers=[list(steps(writer, plan.mixed_rounds)) for writer in writers],
            )
        results(workers)
        for worker in workers:
            worker.start("run")
        done: list[Mixed] = results(workers)
        for worker in workers:
            worker.start("close")
        results(workers)
        daemon.stop()
    _require_all(place, bench, done)
    _note(bench, case, "committerd", done)


def _note(bench: Bench, case: str, side: Side, done: Sequence[Mixed]) -> None:
    seconds = max(one.ended for one in done) - min(one.began for one in done)
    count = sum(len(values) for one in done for values in one.seconds.values())
    again = sum(one.again for one in done)
    bench.results.note(NAME, case, side, rate=(count / seconds, "operations/s"), again=(again, "executions"))
    for kind in dict.fromkeys(ROUND):
        taken = [value for one in done for value in one.seconds.get(kind, ())]
        bench.results.note_latencies(NAME, f"{case}, {kind}", side, taken)
    bench.tell(f"{NAME}: {side}, {case}: {count / seconds:.1f} operations/s, {again} done again")


def _require_all(place: StorePlace, bench: Bench, done: Sequence[Mixed]) -> None:
    """Check every row, value and setting. Raises `WrongTable`."""
    table: Any = lance.dataset(place.uri, storage_options=dict(place.storage_options) or None)
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
