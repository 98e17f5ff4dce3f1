"""Read a table's history as a committer does, and print the times, the memory and the result.

`seconds` is the time until the committer commits, and `history_seconds` the time from then until all is read.

    .venv/bin/python -m bench.measure_start FOLDER [--ledger-bytes N] [--s3-latency-ms 60]

With `--s3-latency-ms` it reads a copy of the table from an S3 server that adds this time to each response. The
memory is that of a process which has imported all that the daemon imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio

from committerd.commands import run
from committerd.committer.ledgers import lone_part
from committerd.committer.loading import Loading, load
from committerd.daemon import process as daemon
from committerd.memory import resident_bytes
from committerd.queue.ledger import LEDGER_BYTES
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.stores.local import LocalStore
from committerd.stores.open import Stores
from committerd.stores.port import ObjectStore
from committerd.table.backoff import Backoff
from committerd.table.versions import Table

IMPORTED = (daemon, run)


async def start(folder: Path, *, ledger_bytes: int, s3_latency_ms: int | None) -> dict[str, object]:
    """Load the table."""
    async with opened(folder, s3_latency_ms) as store:
        before = resident_mib()
        began, cpu = time.monotonic(), time.process_time()
        table = Table(store)
        loaded = await load(table, Loading(monotonic=time.monotonic, part=lone_part(ledger_bytes), later=True))
        seconds, progress = time.monotonic() - began, 0

        def progressed() -> None:
            nonlocal progress
            progress += 1

        unread = loaded.older.unread_versions
        await loaded.older.read_beside(backoff=lambda: Backoff(random.Random()), progressed=progressed)
        ledger = loaded.older.added_to(loaded.ledger)
        return {
            "seconds": round(seconds, 2),
            "history_seconds": round(time.monotonic() - began - seconds, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "resident_mib_before": round(before, 1),
            "resident_mib": round(resident_mib(), 1),
            "resident_mib_peak": round(peak_mib(), 1),
            "version": loaded.version,
            "next_offset": loaded.position.next_offset if loaded.position else None,
            "ledger_bytes": ledger.bytes,
            "ledger_floor": ledger.floor,
            "unread": unread,
            "progress": progress,
        }


@asynccontextmanager
async def opened(folder: Path, s3_latency_ms: int | None) -> AsyncIterator[ObjectStore]:
    """The store of the table: its folder, or a slow S3 server with a copy of it."""
    if s3_latency_ms is None:
        yield LocalStore(folder)
        return
    # Imported lazily: it imports pylance, which takes 100 MiB of memory.
    from bench.proxied_s3 import ProxiedS3

    with ExitStack() as cleanup:
        s3 = cleanup.enter_context(ProxiedS3())
        uri = s3.new_folder()
        copy = s3.data / uri.removeprefix("s3://")
        cleanup.callback(shutil.rmtree, copy)
        try:
            shutil.copytree(folder, copy, copy_function=os.link)
        except shutil.Error:  # another file system
            shutil.copytree(folder, copy, dirs_exist_ok=True)
        cleanup.enter_context(s3.adding(s3_latency_ms))
        async with Stores(s3.settings, DynamoDBSettings()) as stores:
            yield stores.open(uri)


def resident_mib() -> float:
    """The current memory of this process."""
    return resident_bytes() / 2**20


def peak_mib() -> float:
    """The peak memory of this program, without that of the process which started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ledger-bytes", type=int, default=LEDGER_BYTES)
    parser.add_argument("--s3-latency-ms", type=int)
    given = parser.parse_args()
    found = anyio.run(lambda: start(given.folder, ledger_bytes=given.ledger_bytes, s3_latency_ms=given.s3_latency_ms))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
