"""Read a table's history as Start does, and print the time, the memory and what is known afterwards.

    .venv/bin/python scripts/measure_start.py FOLDER [--ledger-bytes N]

The memory is that of a process which has imported all that the daemon imports.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import anyio

from committerd.commands import run
from committerd.committer.loading import Loading, load
from committerd.daemon import process as daemon
from committerd.queue.ledger import LEDGER_BYTES
from committerd.stores.local import LocalStore
from committerd.table.versions import Table

IMPORTED = (daemon, run)


async def start(folder: Path, *, ledger_bytes: int) -> dict[str, object]:
    """Load the table."""
    before = resident_mib()
    began, cpu = time.monotonic(), time.process_time()
    reports: list[str] = []
    how = Loading(monotonic=time.monotonic, ledger_bytes=ledger_bytes, report=reports.append)
    loaded = await load(Table(LocalStore(folder)), how)
    return {
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "resident_mib_before": round(before, 1),
        "resident_mib": round(resident_mib(), 1),
        "resident_mib_peak": round(peak_mib(), 1),
        "version": loaded.version,
        "next_offset": loaded.position.next_offset if loaded.position else None,
        "ledger_bytes": loaded.ledger.bytes,
        "ledger_floor": loaded.ledger.floor,
        "reports": len(reports),
    }


def resident_mib() -> float:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def peak_mib() -> float:
    """The most memory that this program had; that of the process which started it does not count."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ledger-bytes", type=int, default=LEDGER_BYTES)
    given = parser.parse_args()
    print(json.dumps(anyio.run(lambda: start(given.folder, ledger_bytes=given.ledger_bytes))))


if __name__ == "__main__":
    main()
