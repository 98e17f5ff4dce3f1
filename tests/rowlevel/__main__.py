"""Long runs of what the tests run briefly: `make rows FIRST=0 COUNT=2000`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import anyio

from tests.conformance.histories import pylances
from tests.rowlevel.history import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    failed: list[int] = []
    outcomes: Counter[tuple[str, str]] = Counter()
    followed = 0
    versions = pylances()
    for seed in range(given.first, given.first + given.count):
        with tempfile.TemporaryDirectory() as folder:
            try:
                told = anyio.run(run, seed, Path(folder), versions)
            except BaseException as error:  # pylance panics with what is no Exception
                if isinstance(error, KeyboardInterrupt):
                    raise
                print(f"--- seed {seed}\n{type(error).__name__}: {error}\n", flush=True)
                failed.append(seed)
            else:
                outcomes.update(told.outcomes)
                followed += told.followed
    versions.close()
    for (name, outcome), times in sorted(outcomes.items()):
        print(f"{name} {outcome}: {times}")
    print(f"{followed} rows were followed")
    print(f"{given.count} histories, {len(failed)} failed{': ' if failed else ''}{', '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
