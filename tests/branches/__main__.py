"""Many random histories: `python -m tests.branches --first N --count M`."""

from __future__ import annotations

import argparse
import collections
import shutil
import tempfile
import traceback
from pathlib import Path

from tests.branches.histories import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    landed = refused = failed = 0
    reasons = collections.Counter[str]()
    for seed in range(given.first, given.first + given.count):
        folder = Path(tempfile.mkdtemp())
        try:
            one, two, history = run(seed, folder, steps=given.steps)
            landed, refused = landed + one, refused + two
            if two:
                text = history.main.log[-1]
                reasons[text.partition("rule ")[2].partition(":")[0] or text[:150]] += 1
        except Exception:  # noqa: BLE001  # the other histories are run too
            failed += 1
            print(f"seed {seed}:")
            print(traceback.format_exc()[-3500:], flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{given.count} histories: {landed} promotions landed, {refused} were refused, {failed} histories failed")
    print(dict(reasons.most_common()))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
