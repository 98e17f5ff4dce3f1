"""Long runs of what the tests run briefly: `make oracle SEEDS=0-999 KIND=changes`.

    changes   random changes of random tables, committed by pylance 14.0.2 and by us; both must do the same
    merges    random merges into random tables, by pylance 14.0.2 and by us; the same rows afterwards, or both refuse
    staged    damaged transactions: each is committed or refused, and the table stays usable
    hostile   schemas, JSON and details that nest, row ids that stand for very many rows, strange file names
    tables    damaged manifests: they are detected, and an old one stops nobody
    readers   transactions that say something wrong: what is committed, pylance 4.0.0 and 14.0.2 can read
    values    random values of random types through every call: kept or refused as a model says, and as pylance does

A seed makes the same choices every time. All seeds are run; those that failed are printed with the reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import anyio

from tests.oracle import bearing, fuzz, merges, samples, scenario, values
from tests.oracle.samples import Sample
from tests.producers.old_pylance import old_pylance

VERDICTS = {"COMPATIBLE": "C", "REBASABLE": "B", "RETRYABLE": "R", "INCOMPATIBLE": "I"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("changes", "merges", "staged", "hostile", "tables", "readers", "values"))
    parser.add_argument("seeds", type=_seeds, help="one number, or the first and the last: 0-999")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = {"changes": _of_changes, "merges": _of_merges, "values": _of_values, "readers": _of_readers}
        run = runs.get(given.kind, partial(_of_damage, given.kind))
        failed = run(given.seeds, Path(folder))
    print(f"{len(given.seeds)} seeds, {len(failed)} failed{': ' if failed else ''}{', '.join(map(str, failed))}")
    return 1 if failed else 0


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _of_changes(seeds: range, folder: Path) -> list[int]:
    cells: Counter[tuple[str, str, str]] = Counter()
    differences: Counter[str] = Counter()

    def one(seed: int, place: Path) -> None:
        report = anyio.run(scenario.run, seed, place)
        cells.update(report.cells)
        differences.update(report.allowed)

    failed = list(_each(seeds, folder, one))
    _tell_cells(cells)
    print("differences on purpose:", dict(differences.most_common()))
    return failed


def _of_readers(seeds: range, folder: Path) -> list[int]:
    real = samples.unpack(folder / "samples")
    report = bearing.run(seeds, real, folder / "tables", [bearing.CURRENT, old_pylance()])
    for seed, fault in report.faults.items():
        print(f"--- seed {seed}\n{fault}\n")
    print("what was wrong:", dict(report.kinds.most_common()))
    print("what came of it:", dict(report.codes.most_common()))
    return sorted(report.faults)


def _of_values(seeds: range, folder: Path) -> list[int]:
    outcomes: Counter[str] = Counter()
    failed = list(_each(seeds, folder, lambda seed, place: outcomes.update(values.run(seed, place))))
    print("what came of it:", dict(outcomes.most_common()))
    return failed


def _of_merges(seeds: range, folder: Path) -> list[int]:
    come_of: Counter[str] = Counter()

    def one(seed: int, place: Path) -> None:
        come_of[anyio.run(merges.run, seed, place)] += 1

    failed = list(_each(seeds, folder, one))
    print("what came of them:", dict(come_of.most_common()))
    return failed


def _of_damage(kind: str, seeds: range, folder: Path) -> list[int]:
    real: Sequence[Sample] = samples.unpack(folder / "samples")
    codes: Counter[str] = Counter()
    damage = {"staged": fuzz.damage_staged, "hostile": fuzz.hostile_kinds, "tables": fuzz.damage_table}[kind]

    def one(seed: int, place: Path) -> None:
        codes.update(anyio.run(damage, seed, real, place).codes)

    failed = list(_each(seeds, folder, one))
    print("what came of it:", dict(codes.most_common()))
    return failed


def _each(seeds: range, folder: Path, one: Callable[[int, Path], None]) -> Iterator[int]:
    """Run each seed in a folder of its own; yield those that failed."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            try:
                one(seed, Path(place))
            except AssertionError as error:
                print(f"--- seed {seed}\n{error}\n", flush=True)
                yield seed


def _tell_cells(cells: Counter[tuple[str, str, str]]) -> None:
    """Print how often each operation of ours (down) met each of theirs (across), with the verdicts."""
    kinds = sorted({ours for ours, _, _ in cells} | {theirs for _, theirs, _ in cells})
    print("".ljust(18), *(kind[:11].ljust(11) for kind in kinds))
    for ours in kinds:
        told = (
            "/".join(
                f"{cells[ours, theirs, name]}{short}" for name, short in VERDICTS.items() if cells[ours, theirs, name]
            )
            for theirs in kinds
        )
        print(ours.ljust(18), *(text.ljust(11) for text in told))


if __name__ == "__main__":
    sys.exit(main())
