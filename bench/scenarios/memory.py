"""The peak memory of a process that appends to a table of 100,000 fragments.

Compared are processes that do nothing else: pylance with a warm handle, and committerd's own functions with the latest
version in memory; each commits the same number of Appends. The figure is the kernel's for the whole process (VmHWM), so
it includes the libraries that each loads. The daemon is measured too: it also has Kafka's client, metrics and a server,
and takes the same Appends from a queue, one at a time.
"""

from __future__ import annotations

from pathlib import Path

from bench.bench import Bench
from bench.committerd_side import InProcess
from bench.machine import peak_memory_bytes
from bench.pool import enlarge_table, require_count
from bench.producer_side import Producers
from bench.results import Side
from bench.workers import Worker
from bench.written import Written
from harness.places import StorePlace

NAME = "memory"
PROCESS, DAEMON = "one process", "the daemon"


def run(bench: Bench) -> None:
    """Measure each once: memory hardly differs between runs."""
    from bench.pylance_side import Alone

    plan = bench.plan
    uri = bench.new_table()
    with Worker() as worker:
        enlarge_table(bench.pool, Path(uri), plan.memory_fragments)
        worker.make(Alone, pool=bench.pool, uri=uri)
        for number in range(plan.memory_appends):
            worker.call("warm", number=number)
        _note(bench, "pylance", PROCESS, worker.call("peak"))
        require_count(uri, plan.memory_fragments + plan.memory_appends)
    uri = bench.new_table()
    with Worker() as worker:
        enlarge_table(bench.pool, Path(uri), plan.memory_fragments)
        worker.make(InProcess, pool=bench.pool, uri=uri, durable=True)
        for number in range(plan.memory_appends):
            worker.call("commit", number=number)
        _note(bench, "committerd", PROCESS, worker.call("peak"))
        require_count(uri, plan.memory_fragments + plan.memory_appends)
    uri = bench.new_table()
    enlarge_table(bench.pool, Path(uri), plan.memory_fragments)
    _note(bench, "committerd", DAEMON, _daemons(bench, uri))
    require_count(uri, plan.memory_fragments + plan.memory_appends)


def _daemons(bench: Bench, uri: str) -> int:
    with bench.daemon(StorePlace(uri), durable=True) as daemon, Worker() as worker:
        daemon.wait_ready(text="active")
        worker.make(
            Producers,
            **bench.queue(daemon, uri),
            numbers=range(bench.plan.memory_appends),
            producers=1,
            in_flight=1,
        )
        produced: Written = worker.call("one_by_one")
        worker.call("close")
        assert not produced.failed, produced.errors
        peak = peak_memory_bytes(daemon.pid)
        daemon.stop()
    return peak


def _note(bench: Bench, side: Side, case: str, peak: int) -> None:
    bench.results.note(NAME, case, side, peak=(peak, "bytes"))
    bench.tell(f"{NAME}: {side}, {case}: {peak / 2**20:.0f} MiB at most")
