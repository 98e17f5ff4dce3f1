"""A writer of the demo that changes rows: upserts by key, and deletes, among everybody's appends.

An upsert contradicts every Append since the version that it read. Racing for the next version it would lose against a
stream of them; in the queue its second try goes first.
"""

from __future__ import annotations

import asyncio
from functools import partial

import lance

from committerd_client import Reexecution, Staged, staging
from scripts.demo.member import Job, client_of, commit_change, opened, own_job, started, storage_options, tell
from scripts.demo.rows import KEYS, deleted, upserted


async def change(job: Job) -> None:
    """Everything."""
    go = started()
    async with client_of(job) as client:
        await opened(job.uri)
        tell("ready")
        await go.wait()
        for number in range(job.count):
            await commit_change(client, partial(upsert, job, number), kind="upsert")
            await commit_change(client, partial(delete, job, number), kind="delete")


def upsert(job: Job, number: int, again: Reexecution | None) -> Staged:
    """Half of the rows are there since the round before; the others are new."""
    table = lance.dataset(job.uri, storage_options=storage_options())
    return staging.merge_insert(table, upserted(job.number, number), on=KEYS, again=again)


def delete(job: Job, number: int, _again: Reexecution | None) -> Staged:
    """Some of those that are there."""
    gone = deleted(number)
    table = lance.dataset(job.uri, storage_options=storage_options())
    return staging.delete(table, f"producer = {job.number} and sequence >= {gone.start} and sequence < {gone.stop}")


if __name__ == "__main__":
    asyncio.run(change(own_job()))
