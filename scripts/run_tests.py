"""Run the tests in this process; without arguments all of them, and every branch of the rules and the format.

Arguments are pytest's. `COMMITTERD_NO_SKIPS=1` makes a skipped test a failure. Tests find the Python that has pylance
4.0.0 in `COMMITTERD_PYLANCE_4`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bootstrap
import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent
GATED = ["committerd/rules/*", "committerd/format/*"]


def main(chosen: list[str]) -> int:
    os.chdir(ROOT)
    sys.path[0] = str(ROOT)
    os.environ.setdefault("COMMITTERD_PYLANCE_4", str(bootstrap.old_pylance()))
    arguments = [*(["-p", "tests.plugins.no_skips"] if os.environ.get("COMMITTERD_NO_SKIPS") else []), *chosen]
    if chosen:
        return pytest.main(arguments)
    # In memory: two runs at once don't share a file.
    measured = coverage.Coverage(data_file=None)
    with measured.collect():
        code = pytest.main(arguments)
    if code != pytest.ExitCode.OK:
        return code
    percent = measured.report(include=GATED, show_missing=True, skip_covered=True)
    if percent < 100:
        print("Branches of the rules or the format are not taken by any test; see the last column.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
