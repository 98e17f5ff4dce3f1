"""A compaction of the demo's table, while others write to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import lance

from committerd_client import ClientError
from committerd_client.compacting import compact
from scripts.demo.member import (
    ATTEMPTS_MAX,
    Job,
    client_of,
    opened,
    own_job,
    started,
    storage_options,
    tell,
    tell_refused,
)


def wait_for_fragments(latest: Callable[[], lance.LanceDataset], count: int) -> None:
    """Wait until the table has this many fragments."""
    while len(latest().get_fragments()) < count:
        time.sleep(0.1)


async def tidy_up(job: Job) -> None:
    """Wait for the fragments, and compact them."""
    go = started()
    async with client_of(job) as client:
        await opened(job.uri)
        tell("ready")
        await go.wait()

        def latest() -> lance.LanceDataset:
            return lance.dataset(job.uri, storage_options=storage_options())

        await asyncio.to_thread(wait_for_fragments, latest, job.count)
        began = time.monotonic()
        try:
            done = await compact(client, latest, attempts=ATTEMPTS_MAX, timeout=120)
        except ClientError as error:
            tell_refused("compaction", error)
            return
        assert done is not None, "there were fragments to compact"
        now = time.monotonic()
        tell(
            "answered",
            kind="compaction",
            status="COMMITTED",
            uuid="",
            version=done.version,
            attempts=done.attempts,
            at=now,
            seconds=now - began,
            remark=f"{done.fragments_removed:,} fragments became {done.fragments_added:,}",
        )


if __name__ == "__main__":
    asyncio.run(tidy_up(own_job()))
