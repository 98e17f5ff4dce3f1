"""A writer of the demo that changes rows: upserts by key, and deletes, while others append.

An upsert conflicts with every Append since its read version. In a race for the next version it would lose against a
stream of them; in the queue its second attempt goes first.
"""

from __future__ import annotations

import asyncio
from functools import partial

import lance

from committerd_client import Reexecution, Staged, staging
from scripts.demo.member import Job, client_of, commit_change, opened, own_job, started, storage_options, tell
from scripts.demo.rows import KEYS, deleted, upserted


async def change(job: Job) -> None:
    """Perform all changes."""
    go = started()
    async with client_of(job) as client:
        await opened(job.uri)
        tell("ready")
        await go.wait()
        for number in range(job.count):
            await commit_change(client, partial(upsert, job, number), kind="upsert")
            await commit_change(client, partial(delete, job, number), kind="delete")


def upsert(job: Job, number: int, again: Reexecution | None) -> Staged:
    """Upsert rows; half of them exist since the previous round, the others are new."""
    table = lance.dataset(job.uri, storage_options=storage_options())
    return staging.merge_insert(table, upserted(job.number, number), on=KEYS, again=again)


def delete(job: Job, number: int, _again: Reexecution | None) -> Staged:
    """Delete some of the existing rows."""
    gone = deleted(number)
    table = lance.dataset(job.uri, storage_options=storage_options())
    return staging.delete(table, f"producer = {job.number} and sequence >= {gone.start} and sequence < {gone.stop}")


if __name__ == "__main__":
    asyncio.run(change(own_job()))
