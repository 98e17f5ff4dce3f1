"""`committerd maintain` whose hours are short: python -m scripts.maintenance_soak.hours SECONDS WORD..."""

from __future__ import annotations

import sys

from committerd.__main__ import cli
from committerd.commands import maintain


def main() -> None:
    """Run `committerd WORD...`, with so many seconds to an hour of `maintain.keep_hours` and `reclaim_hours`."""
    seconds, *words = sys.argv[1:]
    maintain._HOUR_MS = int(float(seconds) * 1000)
    cli(words)


if __name__ == "__main__":
    main()
