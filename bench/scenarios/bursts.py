"""Upserts and deletes of distinct rows that were executed beforehand and are submitted at once, by one writer.

An upsert changes one row and adds one. All of a burst were executed on the same version. Locally a burst has 300, all
in flight together; on S3 with 60 ms added to every response 600, of which 256 are in flight. The rate is from the first
submit to the last outcome. The daemon's processor time is measured over the same time. On S3, pylance's own upserts of
distinct rows are measured too: four processes, each with its dataset object, for 20 s.

*An Append behind 100 upserts*: on S3, the upserts are submitted, and when Kafka has acknowledged them, one Append of a
file that was written beforehand. Timed is the Append, from submit to outcome; each repetition is one sample.

Executing an operation reads and writes the table without the added latency. pylance reads the table afterwards: it has
each row that was changed or added, once, and none that was deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lance

from bench.bench import Bench
from bench.burst_side import NEW, Burst, Burster, Kind
from bench.mixed_side import Direct, Mixed, Step
from bench.pool import APPENDED_ID, WrongTable
from bench.workers import Worker, results
from harness.daemon import Daemon
from harness.places import StorePlace

NAME = "bursts"
KINDS: tuple[Kind, ...] = ("upsert", "delete")
S3_MILLISECONDS = 60
LOCAL, S3 = "local", f"on S3, {S3_MILLISECONDS} ms added"
BEHIND = f"an Append behind 100 upserts, {S3}"
_BEHIND = 100
_IN_FLIGHT = 256
_PYLANCE_WRITERS = 4
_PYLANCE_STEPS = 1000


def run(bench: Bench) -> None:
    """Measure locally, then on S3 pylance and committerd in turn."""
    plan = bench.plan
    for _ in range(plan.runs):
        for kind in KINDS:
            place = StorePlace(bench.new_table(range(plan.burst)))
            with _burster(bench, place, in_flight=plan.burst) as (worker, daemon):
                _measure(bench, worker, daemon, place, kind=kind, where=LOCAL, count=plan.burst, milliseconds=0)
    for _ in range(plan.s3_runs):
        _measure_pylance(bench)
        for kind in KINDS:
            place = bench.s3.new_table(bench.pool, range(plan.burst_s3))
            with _burster(bench, place, in_flight=_IN_FLIGHT) as (worker, daemon):
                _measure(
                    bench, worker, daemon, place, kind=kind, where=S3, count=plan.burst_s3, milliseconds=S3_MILLISECONDS
                )
    _measure_behind(bench)


def case(kind: Kind, where: str) -> str:
    """The name of the case in the results."""
    return f"{kind}s, {where}"


@contextmanager
def _burster(bench: Bench, place: StorePlace, *, in_flight: int) -> Iterator[tuple[Worker, Daemon]]:
    worker = bench.workers(1)[0]
    with bench.daemon(place, durable=True) as daemon:
        daemon.wait_ready(text="active")
        worker.make(Burster, **bench.queue_of(daemon, place), in_flight=in_flight)
        yield worker, daemon
        worker.call("close")
        daemon.stop()


def _measure(
    bench: Bench,
    worker: Worker,
    daemon: Daemon,
    place: StorePlace,
    *,
    kind: Kind,
    where: str,
    count: int,
    milliseconds: int,
) -> None:
    before = worker.call("execute", kind=kind, keys=range(count))
    with bench.s3.adding(milliseconds):
        used = daemon.processor_seconds()
        burst: Burst = worker.call("submit")
        used = daemon.processor_seconds() - used
    versions = worker.call("version") - before
    rate, name = len(burst.seconds) / (burst.ended - burst.began), case(kind, where)
    figures = {
        "rate": (rate, "transactions/s"),
        "cpu": (used / count, "s"),
        "versions": (versions, "versions"),
        "failed": (len(burst.failed), "transactions"),
    }
    bench.results.note(NAME, name, "committerd", **figures)
    bench.results.note_latencies(NAME, name, "committerd", burst.seconds)
    told = f"{rate:.0f} transactions/s, {used / count * 1000:.2f} ms of the daemon's CPU each, {versions} versions"
    bench.tell(f"{NAME}: {name}: {told}, {len(burst.failed)} failed {burst.failed[:1]}")
    if not burst.failed:
        _require(place, _after(kind, range(count)), appended=0)


def _measure_pylance(bench: Bench) -> None:
    plan = bench.plan
    place = bench.s3.new_table(bench.pool, range(_PYLANCE_WRITERS * _PYLANCE_STEPS))
    workers = bench.workers(_PYLANCE_WRITERS)
    for number, worker in enumerate(workers):
        keys = range(number * _PYLANCE_STEPS, (number + 1) * _PYLANCE_STEPS)
        steps = [Step(kind="upsert", keys=(key, NEW + key), value=key + 1) for key in keys]
        options = dict(place.storage_options)
        worker.begin_make(Direct, pool=bench.pool, uri=place.uri, steps=steps, storage_options=options)
    results(workers)
    with bench.s3.adding(S3_MILLISECONDS):
        for worker in workers:
            worker.start("run", seconds=plan.burst_race_seconds)
        done: list[Mixed] = results(workers)
    seconds = [value for one in done for value in one.seconds.get("upsert", ())]
    rate = len(seconds) / (max(one.ended for one in done) - min(one.began for one in done))
    name = case("upsert", S3)
    bench.results.note(NAME, name, "pylance", rate=(rate, "transactions/s"))
    bench.results.note_latencies(NAME, name, "pylance", seconds)
    bench.tell(f"{NAME}: pylance, {name}: {rate:.1f} transactions/s")


def _measure_behind(bench: Bench) -> None:
    plan = bench.plan
    place = bench.s3.new_table(bench.pool, range(plan.burst_behind * _BEHIND))
    with _burster(bench, place, in_flight=_IN_FLIGHT) as (worker, _):
        seconds = []
        for number in range(plan.burst_behind):
            worker.call("execute", kind="upsert", keys=range(number * _BEHIND, (number + 1) * _BEHIND))
            with bench.s3.adding(S3_MILLISECONDS):
                seconds.append(float(worker.call("submit_before", file=number)))
    bench.results.note_latencies(NAME, BEHIND, "committerd", seconds)
    bench.tell(f"{NAME}: {BEHIND}: {', '.join(f'{one:.2f}' for one in seconds)} s")
    _require(place, _after("upsert", range(plan.burst_behind * _BEHIND)), appended=plan.burst_behind)


def _after(kind: Kind, keys: range) -> dict[int, int]:
    """The rows of the table after the burst: value by id."""
    if kind == "delete":
        return {}
    return {id: key + 1 for key in keys for id in (key, NEW + key)}


def _require(place: StorePlace, wanted: Mapping[int, int], *, appended: int) -> None:
    """Check every row. Raises `WrongTable`."""
    found: Any = lance.dataset(place.uri, storage_options=dict(place.storage_options) or None).to_table()
    pairs = list(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))
    own = [pair for pair in pairs if pair[0] != APPENDED_ID]
    if len(own) != len(wanted) or dict(own) != wanted:
        raise WrongTable(f"{NAME}: the rows of the table are not those that were committed")
    if len(pairs) - len(own) != appended:
        raise WrongTable(f"{NAME}: {appended} rows were appended, and the table has {len(pairs) - len(own)}")
