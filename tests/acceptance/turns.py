"""Upserts under a stream of appends: each must win, and soon.

    python -m tests.acceptance.turns                  100 upserts by 2 tasks, under 500 appends a second
    python -m tests.acceptance.turns --upserters 1    one after the other
    python -m tests.acceptance.turns --keys           the appends name their keys, which no upsert has
    python -m tests.acceptance.turns --keys --shared  all upserts also change one and the same row

Starts Apache Kafka and the daemon (`KAFKA_BOOTSTRAP_SERVERS` names a Kafka that runs already). Exit code 1 when an
upsert lost, when more than 1 % of them took over 3 attempts (with --keys --shared over two; with --keys when one took
over one, or more than 1 % of them over 0.5 s from staging to outcome), or when a row is missing, there twice, or has
another value than that of the last upsert.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import statistics
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness.daemon import Daemon
from harness.kafka import kafka_broker
from harness.turns.load import Dataset, Load
from harness.turns.upserts_under_appends import Measured, create, run, wrong_rows
from harness.turns.verdict import percentile, verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upserts", type=int, default=100, help="how many; default %(default)s")
    parser.add_argument("--upserters", type=int, default=2, help="tasks that do them; default %(default)s")
    parser.add_argument("--appends", type=int, default=500, help="appends a second; default %(default)s")
    parser.add_argument(
        "--keys",
        action="store_true",
        help="the appends name their keys: then each upsert must win at its first attempt",
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="each upsert also changes one row that is the same for all: the later one of two is executed again",
    )
    parser.add_argument(
        "--compact",
        type=float,
        default=0.5,
        help="seconds between two compactions, as a table with so many fragments needs; 0 = none; default %(default)s",
    )
    parser.add_argument(
        "--fragment-rows",
        type=int,
        default=10_000,
        help="rows of a fragment that compactions leave alone; default %(default)s",
    )
    parser.add_argument(
        "--ahead",
        type=int,
        default=100_000,
        help="appends whose files are written before the clock, as other machines would; default %(default)s",
    )
    parser.add_argument(
        "--hold",
        default="2",
        help="the committer's commit.hold_seconds_max; default %(default)s, which is the committer's own",
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the folder grows large: remove it
    load = Load(
        upserts=chosen.upserts,
        upserters=chosen.upserters,
        appends_per_second=chosen.appends,
        ahead=chosen.ahead,
        names_keys=chosen.keys,
        shares_row=chosen.shared,
        compact_seconds=chosen.compact or None,
        compact_rows=chosen.fragment_rows,
    )
    name = f"turns-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="committerd-turns-", ignore_cleanup_errors=True) as folder:
        uri = str(Path(folder, "table.lance"))
        create(uri, load)
        with ExitStack() as cleanup:
            kafka = cleanup.enter_context(kafka_broker())
            daemon = Daemon(
                name=name,
                uri=uri,
                kafka=kafka.bootstrap_servers,
                settings={"COMMIT__HOLD_SECONDS_MAX": chosen.hold},
                log=Path(folder, "committerd.log"),
            )
            cleanup.enter_context(daemon)
            daemon.wait_ready(text="active")
            dataset = Dataset(servers=kafka.bootstrap_servers, name=name, uri=uri)
            measured = asyncio.run(run(dataset, load, tell=partial(print, flush=True)))
            report(measured, daemon)
            daemon.stop()
        wrong = verdict(load, measured) + wrong_rows(uri, load, measured)
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def report(measured: Measured, daemon: Daemon) -> None:
    """Print the figures."""
    attempts, seconds = measured.attempts(), sorted(s for _, s in measured.upserts)
    appended = len(measured.appended)
    print(f"{len(attempts)} upserts won in {measured.seconds:.1f} s, {len(measured.lost)} lost")
    if attempts:
        counts = ", ".join(f"{count} took {number}" for number, count in sorted(Counter(attempts).items()))
        print(f"attempts: p99 {percentile(attempts, 0.99)}, max {attempts[-1]} ({counts})")
        print(f"seconds from first execution to outcome: p50 {statistics.median(seconds):.2f}, max {seconds[-1]:.2f}")
        waited = sorted(measured.waited)
        figures = f"p50 {statistics.median(waited):.2f}, p99 {percentile(waited, 0.99):.2f}, max {waited[-1]:.2f}"
        print(f"seconds from staging to outcome: {figures}")
    print(f"{appended} appends committed: {appended / measured.seconds:.0f} a second")
    if measured.compactions:
        removed = sum(count for _, count in measured.compactions)
        most = max(tried for tried, _ in measured.compactions)
        print(f"{len(measured.compactions)} compactions of {removed} fragments won, at most {most} attempts")
    held = daemon.metric("committerd_hold_seconds_total")
    print(
        f"holds: {daemon.metric('committerd_holds_total', ended='arrived'):.0f} ended by an arrival, "
        f"{daemon.metric('committerd_holds_total', ended='expired'):.0f} expired, {held:.1f} s in all, "
        f"{held / measured.seconds:.0%} of the time"
    )


if __name__ == "__main__":
    sys.exit(main())
