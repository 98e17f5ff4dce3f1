"""A Spark stream whose driver, committer and broker are killed again and again: is every row in the table once?

    make spark-chaos
    make spark-chaos ARGS="--batches 50 --driver-kills 3 --seed 7"

A second Spark application and async clients write to the same table at the same time. The exit code is 1 if a row was
lost, doubled or invented.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.acceptance.spark_chaos.chaos import Chaos, Plan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--batches", type=int, default=200, help="micro-batches of the stream; default %(default)s")
    add("--beside", type=int, default=50, help="micro-batches of a second application; default %(default)s")
    add("--clients", type=int, default=10, help="async clients; default %(default)s")
    add("--driver-kills", type=int, default=10, help="default %(default)s")
    add("--daemon-kills", type=int, default=10, help="default %(default)s")
    add("--kafka-kills", type=int, default=2, help="default %(default)s")
    add("--seed", type=int, default=1, help="of when the kills come; default %(default)s")
    add("--minutes-max", type=float, default=60, help="after which it has failed; default %(default)s")
    plan = Plan(**vars(parser.parse_args()))
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="committerd-spark-", ignore_cleanup_errors=True) as folder:
        report = Chaos(plan, Path(folder), tell).run()
    print(f"{report.rows} rows in {report.versions} versions after {report.seconds:.0f} s")
    print(f"killed: {dict(report.kills)}; drivers were started {report.driver_starts} times")
    print(f"{report.appended_by_clients} rows by clients; outcomes: {dict(report.outcomes)}")
    print("; ".join(report.wrong) or "every row is in the table once")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
