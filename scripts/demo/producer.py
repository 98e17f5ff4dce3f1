"""One producer of the demo: it writes data files, and committerd commits them. A writer has nothing more to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import lance
from lance.fragment import write_fragments

from committerd_client import CommitClient, staging
from scripts.demo.member import Job, client_of, commit, opened, own_job, started, tell
from scripts.demo.rows import SCHEMA, rows

IN_FLIGHT = 4
"""Appends of one producer that wait for their outcomes at any time."""


async def produce(job: Job) -> None:
    """Append all batches."""
    go = started()
    async with client_of(job) as client:
        if job.number == 1:
            await commit(client, staging.create([], SCHEMA), kind="create")
        table = await opened(job.uri)
        tell("ready")
        await go.wait()  # all writers at once
        numbers = iter(range(job.count))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(append_batches(client, table, job, numbers))


async def append_batches(client: CommitClient, table: lance.LanceDataset, job: Job, numbers: Iterator[int]) -> None:
    """Write a batch, commit it, take the next one. All tasks of this producer share `numbers`."""
    for number in numbers:
        data = rows(job.number, range(number * job.rows, (number + 1) * job.rows))
        fragments = await asyncio.to_thread(write_fragments, data, table, mode="append")
        transaction = staging.append(fragments, read_version=table.version)
        await commit(client, transaction, kind="append")
        if number % job.again_every == 0:
            await commit(client, transaction, kind="again")


if __name__ == "__main__":
    asyncio.run(produce(own_job()))
