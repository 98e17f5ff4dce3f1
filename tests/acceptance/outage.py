"""Kafka goes away under load, for a given time, and comes back: how long until everything goes on.

    python -m tests.acceptance.outage                               five minutes, each kind of outage
    python -m tests.acceptance.outage --seconds 30 --how killed     half a minute, one kind

One Kafka behind a network that can be cut, one committer with its defaults, and three clients: one that commits all the
time, one that is idle when Kafka goes away, and one that submits its first transaction during the outage. The exit code
is 1 if an outcome is missing 10 s after Kafka is back, or if a row is missing or doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from committerd_client import CommitClient
from harness.daemon import Daemon
from harness.lance_table import LanceTable
from harness.outages import OUTAGES, AwayKafka, Outage
from harness.toxiproxy import Toxiproxy

BACK_SECONDS = 10.0
_LOAD_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="how long Kafka is away; default %(default)s")
    parser.add_argument("--how", choices=OUTAGES, action="append", help="may be repeated; default: each")
    parser.add_argument("--appends", type=float, default=5, help="commits a second; default %(default)s")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    wrong: list[str] = []
    with ExitStack() as cleanup:
        kafka = cleanup.enter_context(AwayKafka(cleanup.enter_context(Toxiproxy())))
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="committerd-outage-")))
        for how in chosen.how or OUTAGES:
            name = f"outage-{secrets.token_hex(4)}"
            table = LanceTable(str(folder / f"{name}.lance"))
            table.create()
            log = Path(tempfile.gettempdir(), f"committerd-{name}.log")
            with Daemon(name=name, uri=table.uri, kafka=kafka.bootstrap_servers, log=log) as daemon:
                daemon.wait_ready(text="active")
                found = asyncio.run(measure(kafka, name, table, (how, chosen.seconds, chosen.appends)))
                found += _rows(table)
                for line in found:
                    print(f"WRONG: {how}: {line}; the committer's log: {log}", flush=True)
                if not found:
                    log.unlink()
                wrong += found
    return 1 if wrong else 0


async def measure(kafka: AwayKafka, name: str, table: LanceTable, plan: tuple[Outage, float, float]) -> list[str]:
    """Measure one outage; return the problems found."""
    how, seconds, appends = plan
    servers = kafka.bootstrap_servers
    tasks: dict[str, list[asyncio.Task[Any]]] = {"busy": [], "idle": [], "first used during the outage": []}
    ended = asyncio.Event()

    def commit(client: CommitClient, of: str) -> None:
        tasks[of].append(asyncio.create_task(client.commit(table.append())))

    async with (
        CommitClient(servers, dataset=name, dataset_uri=table.uri, timeout=None) as busy,
        CommitClient(servers, dataset=name, dataset_uri=table.uri, timeout=None) as idle,
        CommitClient(servers, dataset=name, dataset_uri=table.uri, timeout=None) as unused,
    ):

        async def load() -> None:
            while not ended.is_set():
                commit(busy, "busy")
                await asyncio.sleep(1 / appends)

        await idle.commit(table.append())
        loading = asyncio.create_task(load())
        await asyncio.sleep(_LOAD_SECONDS)
        outage = kafka.away(how)
        await asyncio.to_thread(outage.__enter__)
        await asyncio.sleep(seconds / 2)
        commit(unused, "first used during the outage")
        await asyncio.sleep(seconds / 2)
        await asyncio.to_thread(outage.__exit__, None, None, None)
        commit(idle, "idle")
        ended.set()
        await loading
        wrong = []
        for of, waiting in tasks.items():
            _, late = await asyncio.wait(waiting, timeout=max(kafka.returned_at + BACK_SECONDS - time.monotonic(), 0))
            if late:
                wrong.append(f"client {of!r}: {len(late)} of {len(waiting)} answers are missing after {BACK_SECONDS} s")
        await asyncio.wait([task for some in tasks.values() for task in some], timeout=_PATIENCE_SECONDS)
        took = time.monotonic() - kafka.returned_at
        count = sum(map(len, tasks.values()))
        answered = sum(task.done() for some in tasks.values() for task in some)
        print(f"{how} for {seconds:g} s: {answered} of {count} answers {took:.1f} s after Kafka was back", flush=True)
    return wrong


def _rows(table: LanceTable) -> list[str]:
    ids = sorted(table.ids())
    wanted = list(range(ids[0], ids[0] + len(ids))) if ids else []
    return [] if ids == wanted else ["a row is missing or there twice"]


if __name__ == "__main__":
    sys.exit(main())
