"""`committerd maintain` whose hours are short: python -m harness.short_hours SECONDS [OPTION...]"""

from __future__ import annotations

import sys

import click

from committerd.commands.maintain import run
from committerd.commands.options import json_option, served


@click.command()
@click.argument("seconds", type=float)
@click.option("--once", is_flag=True)
@click.option("--dry-run", is_flag=True)
@json_option
def main(seconds: float, *, as_json: bool, dry_run: bool, once: bool) -> None:
    """Maintain with so many seconds to an hour of `maintain.keep_hours` and `reclaim_hours`."""
    hour_ms = int(seconds * 1000)
    sys.exit(0 if run(served(), as_json=as_json, dry_run=dry_run, once=once, hour_ms=hour_ms) else 1)


if __name__ == "__main__":
    main()
