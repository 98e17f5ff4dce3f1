"""Each staging helper beside pylance's own call for the same work: what a writer pays for not committing itself.

On tables of 300, 3,000 and 30,000 fragments of four rows each, without an index and with a B-tree on the key. A helper
finds the rows, writes the files and makes the transaction; pylance's call does the same and commits. Both work on one
dataset object, in turn, in one process, and the helper is called once more before them without being timed, so both
find the same caches (on the largest table only before the first pair: without an index, opening all of its files takes
some ten seconds). Only pylance's calls change the table. The pairs are in `bench.staging_side`.

Measured are seconds, and seconds of processor time of all threads, which say more on a machine that does other work
too. A ratio is the median of those of the pairs. Floor and aim are for the seconds.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bench import Bench
from bench.pool import enlarge_table, make_pool, make_table
from bench.results import Side
from bench.workers import Worker

if TYPE_CHECKING:
    from bench.staging_side import Took

NAME = "staging"
_HEAVY_ABOVE = 10_000
"""Above this number of fragments what works on every fragment is measured once."""


def run(bench: Bench) -> None:
    """Measure all pairs on all tables."""
    sizes = bench.plan.staging
    bench.tell(f"{NAME}: writes {max(sizes)} data files")
    folder = bench.folder / "keyed"
    folder.mkdir()
    pool = make_pool(folder, max(sizes), keyed=True)
    for size, times in sizes.items():
        for indexed in (False, True):
            uri = folder / f"{size}-{indexed}.lance"
            make_table(pool, uri)
            enlarge_table(pool, uri, size)
            with Worker() as worker:
                _measure(bench, worker, uri, size=size, indexed=indexed, times=times)


def case(helper: str, size: int, indexed: bool) -> str:
    """The name of the case in the results."""
    return f"{helper}, {size} fragments" + (", key indexed" if indexed else "")


def _measure(bench: Bench, worker: Worker, uri: Path, *, size: int, indexed: bool, times: int) -> None:
    from bench.staging_side import PAIRS, Helpers  # imports pylance

    worker.make(Helpers, uri=str(uri))
    if indexed:
        worker.call("index")
    slow = []
    for helper, pair in PAIRS.items():
        if pair.needs_index and not indexed:
            continue
        is_large = size > _HEAVY_ABOVE
        once = pair.heavy and is_large
        ours, theirs = worker.call("measure", name=helper, times=1 if once else times, warm=not is_large)
        named = case(helper, size, indexed)
        sides: tuple[tuple[Side, list[Took]], ...] = (("committerd", ours), ("pylance", theirs))
        for side, took in sides:
            for seconds, processor in took:
                bench.results.note(NAME, named, side, seconds=(seconds, "s"), processor=(processor, "s"))
        pairs = list(zip(ours, theirs, strict=True))
        ratio, of_processor = (statistics.median(our[part] / their[part] for our, their in pairs) for part in (0, 1))
        bench.results.note(NAME, named, "committerd", ratio=(ratio, "x"), processor_ratio=(of_processor, "x"))
        if max(ratio, of_processor) > 1:
            slow.append(f"{helper} {ratio:.2f}x (processor {of_processor:.2f}x)")
    bench.tell(f"{NAME}: {size} fragments{', key indexed' if indexed else ''}: slower than pylance: {slow or 'none'}")
