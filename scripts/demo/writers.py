"""The writers of the demo, a process each: producers, one that changes rows, a compaction, and a Spark stream.

    python -m scripts.demo.writers JOB

JOB is a `Job` in JSON. A writer never commits by itself, and does not know the other writers. It reports on standard
output, one JSON object per line, and begins its work at SIGUSR1.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
from lance.fragment import write_fragments

from committerd_client import ClientError, CommitClient, CommitResult, Reexecution, Staged, staging
from committerd_client.compacting import compact
from committerd_client.reexecution import TransactionLike
from scripts.demo.rows import KEYS, SCHEMA, SPARK_SCHEMA, deleted, rows, upserted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STORAGE_OPTIONS = "DEMO_STORAGE_OPTIONS"
"""The variable with pylance's storage options, as JSON: the credentials and endpoint of the table's store."""
IN_FLIGHT = 4
"""Appends of one producer that wait for their outcomes at any time."""
ATTEMPTS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of one writer."""

    work: str
    """`producer`, `changes`, `compaction` or `spark`."""
    bootstrap_servers: str
    dataset: str
    """The dataset's name, which names the topics."""
    uri: str
    number: int
    """The writer's number, from 1; the first one makes the table."""
    count: int
    """Appends, rounds of changes, fragments to wait for, or micro-batches."""
    rows: int
    """Rows in each Append or micro-batch."""
    folder: str
    """A folder for the writer's own files; it is deleted at the end of the demo."""
    again_every: int
    """After this many committed Appends, one is sent once more, as after a crash before its outcome was noted."""

    @property
    def name(self) -> str:
        return f"{self.work}-{self.number}"

    def table(self) -> lance.LanceDataset:
        """The latest version. Raises `ValueError` if there is no table yet."""
        return lance.dataset(self.uri, storage_options=storage_options())

    def batch(self, number: int) -> Any:
        """The rows of the Append or micro-batch with this number."""
        return rows(self.number, range(number * self.rows, (number + 1) * self.rows))


def storage_options() -> dict[str, str]:
    """pylance's storage options for the table's store."""
    options: dict[str, str] = json.loads(os.environ[STORAGE_OPTIONS])
    return options


def tell(event: str, **fields: Any) -> None:
    """Report something to the process that started this one."""
    print(json.dumps({"event": event, **fields}), flush=True)


def tell_committed(kind: str, result: CommitResult, submitted: float) -> None:
    """Report a commit. `submitted` is a time of the monotonic clock, which all processes of a machine share."""
    now = time.monotonic()
    said = {"status": result.status, "uuid": result.uuid, "version": result.version, "attempts": result.attempts}
    tell("outcome", kind=kind, at=now, seconds=now - submitted, **said)


def tell_refused(kind: str, error: ClientError) -> None:
    """Report that a submission is not committed, or that its result is unknown."""
    tell("outcome", kind=kind, status=type(error).__name__, code=error.code, message=str(error))


async def commit(client: CommitClient, staged: TransactionLike, *, kind: str) -> None:
    """Submit, wait for the outcome, and report it."""
    submitted = time.monotonic()
    try:
        tell_committed(kind, await client.commit(staged), submitted)
    except ClientError as error:
        tell_refused(kind, error)


async def commit_change(
    client: CommitClient, make: Callable[[Reexecution | None], TransactionLike], *, kind: str
) -> None:
    """As `commit`, for work that conflicts with other commits: after a refusal it is executed again on the latest
    version.
    """
    submitted = time.monotonic()
    try:
        first = await asyncio.to_thread(make, None)
        result = await client.commit(first, reexecute=make, attempts=ATTEMPTS_MAX, timeout=120)
        tell_committed(kind, result, submitted)
    except ClientError as error:
        tell_refused(kind, error)


# A producer: it writes data files, and committerd commits them. A writer has nothing more to do.


async def produce(client: CommitClient, job: Job) -> None:
    """Append all batches."""
    numbers = iter(range(job.count))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(append_batches(client, job, numbers))


async def append_batches(client: CommitClient, job: Job, numbers: Iterator[int]) -> None:
    """Write a batch, commit it, take the next one. All tasks of this producer share `numbers`."""
    table = job.table()
    for number in numbers:
        fragments = await asyncio.to_thread(write_fragments, job.batch(number), table, mode="append")
        transaction = staging.append(fragments, read_version=table.version)
        await commit(client, transaction, kind="append")
        if number % job.again_every == 0:
            await commit(client, transaction, kind="again")


# Changes: an upsert conflicts with every Append since its read version. In a race for the next version it would lose
# against a stream of them; in the queue its second attempt goes first.


async def change(client: CommitClient, job: Job) -> None:
    """Upsert and delete."""
    for number in range(job.count):
        await commit_change(client, partial(upsert, job, number), kind="upsert")
        await commit_change(client, partial(delete, job, number), kind="delete")


def upsert(job: Job, number: int, again: Reexecution | None) -> Staged:
    """Upsert rows; half of them exist since the previous round, the others are new."""
    return staging.merge_insert(job.table(), upserted(job.number, number), on=KEYS, again=again)


def delete(job: Job, number: int, _again: Reexecution | None) -> Staged:
    """Delete some of the existing rows."""
    gone = deleted(number)
    condition = f"producer = {job.number} and sequence >= {gone.start} and sequence < {gone.stop}"
    return staging.delete(job.table(), condition)


async def compact_once(client: CommitClient, job: Job) -> None:
    """Wait until there are enough fragments, and compact them while others write."""
    await asyncio.to_thread(wait_for_fragments, job)
    began = time.monotonic()
    try:
        done = await compact(client, job.table, attempts=ATTEMPTS_MAX, timeout=120)
    except ClientError as error:
        tell_refused("compaction", error)
        return
    assert done is not None, "there were fragments to compact"
    said = {"status": "COMMITTED", "uuid": "", "version": done.version, "attempts": done.attempts}
    remark = f"{done.fragments_removed:,} fragments became {done.fragments_added:,}"
    now = time.monotonic()
    tell("outcome", kind="compaction", at=now, seconds=now - began, remark=remark, **said)


def wait_for_fragments(job: Job) -> None:
    """Wait until the table has as many fragments as the job says."""
    while len(job.table().get_fragments()) < job.count:
        time.sleep(0.1)


def stream(job: Job) -> None:
    """Spark writes each micro-batch of a stream as one transaction."""
    from committerd_spark import LanceBatchWriter
    from harness.spark import small_session

    go = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: go.set())
    folder = Path(job.folder)
    folder.mkdir()
    spark = small_session("committerd-demo", folder, master="local[1]")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    tell("child", pid=gateway.proc.pid)
    source = str(folder / "source")
    for number in range(job.count):
        spark.createDataFrame(job.batch(number)).coalesce(1).write.mode("append").json(source)
    writer = LanceBatchWriter(
        job.uri,
        bootstrap_servers=job.bootstrap_servers,
        dataset=job.dataset,
        app_id="demo-stream",
        storage_options=storage_options(),
    )

    def write(df: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        try:
            result = writer(df, batch_id)
        except ClientError as error:
            tell_refused("micro-batch", error)
            raise
        assert result is not None, "no micro-batch is empty"
        tell_committed("micro-batch", result, began)

    files = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).json(source)
    query = files.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    tell("ready")
    go.wait()
    query.foreachBatch(write).start().awaitTermination()
    writer.close()
    spark.stop()


async def run(job: Job) -> None:
    """Connect, wait for the table and for SIGUSR1, and do the job."""
    go = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, go.set)
    async with CommitClient(
        job.bootstrap_servers, dataset=job.dataset, dataset_uri=job.uri, producer=job.name
    ) as client:
        if job.number == 1:
            await commit(client, staging.create([], SCHEMA), kind="create")
        while True:
            try:
                job.table()
                break
            except ValueError:  # there is no table yet
                await asyncio.sleep(0.05)
        tell("ready")
        await go.wait()  # all writers at once
        await {"producer": produce, "changes": change, "compaction": compact_once}[job.work](client, job)


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    if job.work == "spark":
        stream(job)
    else:
        asyncio.run(run(job))


if __name__ == "__main__":
    main()
