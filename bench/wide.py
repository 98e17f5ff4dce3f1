"""Appends of files with many columns, on S3 with 60 ms added to each response.

    python -m bench.wide [--columns 10 200 500] [--appends 600]

For each number of columns: how long a client waits for one Append that is alone, how many Appends a second are
committed if all are staged at once, and how much processor time of the committer each of these takes. Kafka, the S3
server and the committer are of this machine.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median
from typing import NamedTuple

import lance
import pyarrow as pa

from bench.proxied_s3 import ProxiedS3
from committerd_client import staging
from committerd_common.messages import Transaction
from harness.kafka import kafka_broker
from harness.scene import Scene

LATENCY_MS = 60
ALONE = 15
"""How many Appends are staged one after the other."""


class Measured(NamedTuple):
    """What was measured with one number of columns."""

    alone_ms: float
    """From staging an Append to its outcome: the median."""
    rate: float
    """How many of those that were staged at once were committed a second."""
    processor_ms: float
    """Of the committer, for each of these."""


def prepared(s3: ProxiedS3, uri: str, options: dict[str, str], *, columns: int, count: int) -> list[Transaction]:
    """Create the table, and make Appends of a file of one row each. The files are copies of one."""
    rows = pa.table({f"column_{number}": [1.0] for number in range(columns)})
    lance.write_dataset(rows, uri, storage_options=options)
    one = staging.append(lance.fragment.write_fragments(rows, uri, mode="append", storage_options=options))
    data = s3.data / uri.partition("://")[2] / "data"
    written, made = data / one.append.fragments[0].files[0].path, list[Transaction]()
    for _ in range(count):
        copy = Transaction()
        copy.CopyFrom(one)
        copy.uuid = str(uuid.uuid4())
        file = copy.append.fragments[0].files[0]
        file.path = f"{uuid.uuid4().hex}.lance"
        shutil.copyfile(written, data / file.path)
        made.append(copy)
    return made


def measured(kafka: str, s3: ProxiedS3, folder: Path, *, columns: int, appends: int) -> Measured:
    """Measure with files of so many columns."""
    place, options = s3.free_place()
    first, *staged = prepared(s3, place.uri, options, columns=columns, count=1 + ALONE + appends)
    name = f"wide-{uuid.uuid4().hex[:8]}"
    with Scene(kafka=kafka, name=name, folder=folder, place=place) as scene:
        daemon = scene.started()
        with s3.adding(LATENCY_MS):
            scene.ask(first)
            alone = list[float]()
            for one in staged[:ALONE]:
                began = time.monotonic()
                scene.ask(one)
                alone.append(time.monotonic() - began)
            began, processor = time.monotonic(), daemon.processor_seconds()
            scene.ask(*staged[ALONE:])
            took = time.monotonic() - began
            processor = daemon.processor_seconds() - processor
    return Measured(1000 * median(alone), appends / took, 1000 * processor / appends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--columns", type=int, nargs="+", default=[10, 200, 500], help="how many columns the files have"
    )
    parser.add_argument("--appends", type=int, default=600, help="how many Appends to stage at once")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, kafka_broker() as kafka, ProxiedS3() as s3:
        for columns in given.columns:
            below = Path(folder, str(columns))
            below.mkdir()
            found = measured(kafka.bootstrap_servers, s3, below, columns=columns, appends=given.appends)
            print(
                f"{columns} columns: an Append alone {found.alone_ms:.0f} ms; {found.rate:.0f} a second, and "
                f"{found.processor_ms:.2f} ms of the committer's processor time for each",
                flush=True,
            )


if __name__ == "__main__":
    main()
