"""A compaction of 1,000 fragments, while others delete and upsert rows of these very fragments.

The table has fragments of 100 rows, and all are rewritten into one. Deletes (200 a second) and upserts (50 a second)
hit one fragment after the other, each another row. Counted are the attempts of the compaction, the changes that had to
be executed again, and how many changes were committed in a second.

* committerd: the changes are executed beforehand on the version before the compaction, in one process, and submitted at
  that rate; another process calls `CommitClient.compact`. Nothing is executed again by the benchmark: a change that is
  refused counts.
* pylance: four processes execute and commit the changes, each at most at a quarter of that rate, and another one calls
  `optimize.compact_files()` again and again until it is committed.

Afterwards each row must be what the committed changes made it. The scenario fails if fewer than 20 changes were
committed while the compaction ran.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import lance

from bench.bench import Bench, dataset_of
from bench.compaction_side import UPSERTED, Changes, Compacted, Compaction, DirectChanges, QueuedChanges
from bench.pool import WrongTable, rows
from bench.results import Side
from bench.workers import results
from harness.places import StorePlace

NAME = "compaction"
DELETES, UPSERTS = 200, 50
"""Changes in a second."""
CASE = f"under {DELETES} deletes and {UPSERTS} upserts a second"
_ROWS = 100
_FIRST_UPSERTED = 50
"""The first row of each fragment that is upserted; the ones before it are deleted."""
_PYLANCE_WRITERS = 4


def run(bench: Bench) -> None:
    """Measure pylance and committerd in turn."""
    for _ in range(bench.plan.runs):
        _measure_pylance(bench)
        _measure(bench)


def _keys(bench: Bench, per_second: int, first: int) -> list[int]:
    """So many rows of different fragments, in turn."""
    count = bench.plan.compacted_fragments
    return [
        number % count * _ROWS + first + number // count for number in range(per_second * bench.plan.compaction_seconds)
    ]


def _measure_pylance(bench: Bench) -> None:
    uri, plan = _table(bench), bench.plan
    deletes, upserts = _keys(bench, DELETES, 0), _keys(bench, UPSERTS, _FIRST_UPSERTED)
    *writers, compaction = bench.workers(_PYLANCE_WRITERS + 1)
    compaction.begin_make(Compaction, uri=uri)
    for number, worker in enumerate(writers):
        own = deletes[number::_PYLANCE_WRITERS], upserts[number::_PYLANCE_WRITERS]
        worker.begin_make(DirectChanges, uri=uri, deletes=own[0], upserts=own[1])
    results([*writers, compaction])
    for worker in writers:
        worker.start("run", per_second=(DELETES + UPSERTS) / _PYLANCE_WRITERS, seconds=plan.compaction_race_seconds)
    compaction.start("direct", seconds=plan.compaction_race_seconds)
    _note(bench, "pylance", uri, compacted=compaction.result(), done=results(writers))


def _measure(bench: Bench) -> None:
    uri = _table(bench)
    writer, compaction = bench.workers(2)
    with bench.daemon(StorePlace(uri), durable=True) as daemon:
        daemon.wait_ready(text="active")
        writer.make(QueuedChanges, servers=bench.kafka, dataset=dataset_of(daemon), uri=uri)
        compaction.make(Compaction, servers=bench.kafka, dataset=dataset_of(daemon), uri=uri)
        writer.call("execute", deletes=_keys(bench, DELETES, 0), upserts=_keys(bench, UPSERTS, _FIRST_UPSERTED))
        writer.start("run", per_second=DELETES + UPSERTS)
        compaction.start("queued")
        compacted, done = compaction.result(), writer.result()
        writer.call("close")
        daemon.stop()
    _note(bench, "committerd", uri, compacted=compacted, done=[done])


def _table(bench: Bench) -> str:
    uri = str(bench.folder / f"compacted-{secrets.token_hex(4)}.lance")
    lance.write_dataset(rows(range(bench.plan.compacted_fragments * _ROWS), 0), uri, max_rows_per_file=_ROWS)
    return uri


def _note(bench: Bench, side: Side, uri: str, *, compacted: Compacted, done: Sequence[Changes]) -> None:
    """Note the figures. Raises `WrongTable` if a row is not what it must be."""
    table: Any = lance.dataset(uri)
    found = table.to_table()
    wanted = dict.fromkeys(range(bench.plan.compacted_fragments * _ROWS), 0)
    for one in done:
        wanted |= dict.fromkeys(one.upserted, UPSERTED)
    for one in done:
        for key in one.deleted:
            del wanted[key]
    rows_found = dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))
    if found.num_rows != len(rows_found) or rows_found != wanted:
        raise WrongTable(f"{NAME}: {side}: the rows of the table are not those that were committed")
    within = sum(0 < at - compacted.began < compacted.seconds for one in done for at in one.ended_at)
    if within < 20:
        raise WrongTable(f"{NAME}: {side}: only {within} changes were committed while the compaction ran")
    count = sum(len(one.deleted) + len(one.upserted) for one in done)
    rate = count / (max(one.ended for one in done) - min(one.began for one in done))
    again, failed = sum(one.again for one in done), compacted.attempts - compacted.committed
    bench.results.note(
        NAME,
        CASE,
        side,
        seconds=(compacted.seconds, "s"),
        attempts=(compacted.attempts, "attempts"),
        failed=(failed, "attempts"),
        again=(again, "changes"),
        rate=(rate, "changes/s"),
    )
    bench.tell(
        f"{NAME}: {side}: {compacted.attempts} attempts in {compacted.seconds:.1f} s, {failed} of them failed; "
        f"{rate:.0f} changes/s, {again} of {count} done again"
    )
