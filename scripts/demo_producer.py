"""One producer of the demo, in a process of its own: it writes data files and has committerd commit them.

    python scripts/demo_producer.py '{"bootstrap_servers": "localhost:9092", "dataset": "events", ...}'

This is all that a writer has to do. It never commits by itself, and knows nothing of the other writers. What happens
is told on standard output, an object a line.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lance
from demo_rows import SCHEMA, rows
from lance.fragment import write_fragments

from committerd.format.messages import Transaction
from committerd_client import ClientError, CommitClient, Staged, staging

IN_FLIGHT = 4
"""Appends of one producer that wait for their answers at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one producer does."""

    bootstrap_servers: str
    dataset: str
    """Its name, which names the topics."""
    uri: str
    number: int
    """Of the producer, from 1; the first makes the table."""
    appends: int
    rows: int
    """In each append."""
    again_every: int
    """So often an append that is committed is sent once more, as after a crash before its answer was noted."""


def tell(event: str, **fields: Any) -> None:
    """For the process that started this one."""
    print(json.dumps({"event": event, **fields}), flush=True)


async def produce(job: Job) -> None:
    """Everything."""
    started = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, started.set)
    async with CommitClient(
        job.bootstrap_servers,
        dataset=job.dataset,
        dataset_uri=job.uri,
        producer=f"producer-{job.number}",
    ) as client:
        if job.number == 1:
            await commit(client, staging.create([], SCHEMA), kind="create")
        table = await opened(job.uri)
        tell("ready")
        await started.wait()  # all producers at once
        numbers = iter(range(job.appends))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(append_batches(client, table, job, numbers))


async def append_batches(client: CommitClient, table: lance.LanceDataset, job: Job, numbers: Iterator[int]) -> None:
    """Write a batch, have it committed, take the next; `numbers` is shared by all tasks of this producer."""
    for number in numbers:
        data = rows(job.number, range(number * job.rows, (number + 1) * job.rows))
        fragments = await asyncio.to_thread(write_fragments, data, table, mode="append")
        transaction = staging.append(fragments, read_version=table.version)
        await commit(client, transaction, kind="append")
        if number % job.again_every == 0:
            await commit(client, transaction, kind="again")


async def commit(client: CommitClient, transaction: Transaction | Staged, *, kind: str) -> None:
    """Submit, wait for the outcome, and tell it."""
    submitted = time.monotonic()
    try:
        result = await client.commit(transaction)
    except ClientError as error:
        tell("refused", kind=kind, name=type(error).__name__, code=error.code, message=str(error))
        return
    # The monotonic clock is one for all processes of a machine.
    answered = time.monotonic()
    tell(
        "answered",
        kind=kind,
        status=result.status,
        uuid=result.uuid,
        version=result.version,
        at=answered,
        seconds=answered - submitted,
    )


async def opened(uri: str) -> lance.LanceDataset:
    """The table, as soon as the first producer's create is committed."""
    while True:
        try:
            return lance.dataset(uri)
        except ValueError:  # there is none yet
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(produce(Job(**json.loads(sys.argv[1]))))
