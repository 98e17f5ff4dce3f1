"""Run seeds of the simulation, and check that it notices each rule that is taken out.

    python -m tests.simulation                   1000 fresh seeds, then every mutation
    python -m tests.simulation 7                 seed 7, with its trace if it fails
    python -m tests.simulation 0-4999            many seeds
    python -m tests.simulation --digest 3        only a digest of the run, to compare two runs of one seed
    python -m tests.simulation --mutations       for each mutation the first seed that notices it

The exit code is 1 if a promise was broken, or a mutation was not noticed.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time

from tests.simulation.hunts import HUNTS, notice
from tests.simulation.scenarios import scenario_of
from tests.simulation.world import simulate

FRESH = 1000
MUTATION_SEEDS = range(500)
FAILURES_MAX = 5
_BEYOND_MAX = 0.05
"""At most this share of the seeds may end early at a documented limit: what follows in them is not checked."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="?", help="one seed, or FIRST-LAST; none = fresh ones")
    parser.add_argument("--digest", action="store_true", help="print the digest of each seed's trace")
    parser.add_argument("--mutations", action="store_true", help="run the mutations only")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.mutations:
        return run_mutations()
    seeds = chosen(given.seeds)
    if given.digest:
        for seed in seeds:
            print(simulate(seed, scenario_of(seed)).digest)
        return 0
    failed = run_seeds(seeds)
    return failed or (run_mutations() if given.seeds is None else 0)


def chosen(text: str | None) -> range:
    """The seeds that the argument names."""
    if text is None:
        first = secrets.randbelow(10**9)
        return range(first, first + FRESH)
    start, _, last = text.partition("-")
    return range(int(start), int(last or start) + 1)


def run_seeds(seeds: range) -> int:
    began, failures, beyond = time.monotonic(), 0, 0
    print(f"seeds {seeds[0]} to {seeds[-1]}", flush=True)
    for number, seed in enumerate(seeds, start=1):
        report = simulate(seed, scenario_of(seed))
        beyond += bool(report.beyond)
        if report.violation is not None:
            failures += 1
            print(report.text(), flush=True)
            if failures == FAILURES_MAX:
                break
        if number % 200 == 0:
            print(f"  {number} of {len(seeds)}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{failures} failed, {beyond} ended early at a limit (docs/limits.md), {time.monotonic() - began:.1f} s")
    is_too_often = beyond > len(seeds) * _BEYOND_MAX
    if is_too_often:
        print(f"more than {_BEYOND_MAX:.0%} of the seeds ended early: this run checks too little to pass")
    return 1 if failures or is_too_often else 0


def run_mutations() -> int:
    missed = 0
    for mutate in HUNTS:
        report = notice(mutate, MUTATION_SEEDS)
        if report is None or report.violation is None:
            missed += 1
            print(f"{mutate.__name__}: NOT NOTICED by {len(MUTATION_SEEDS)} seeds", flush=True)
        else:
            print(f"{mutate.__name__}: seed {report.seed}: {report.violation.splitlines()[0][:120]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
