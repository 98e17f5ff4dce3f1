"""What all writers of the demo share: their job, their reports, and how they commit.

Each is a process of its own, started with a `Job` as JSON. It never commits by itself, and does not know the other
writers. It reports on standard output, one JSON object per line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lance

from committerd_client import ClientError, CommitClient, CommitResult
from committerd_client.reexecution import Reexecution, Work

STORAGE_OPTIONS = "DEMO_STORAGE_OPTIONS"
"""The variable with pylance's storage options, as JSON: the credentials and endpoint of the table's store."""
ATTEMPTS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of one writer."""

    work: str
    """The module that it runs: `producer`, `changes`, `compaction` or `spark`."""
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


def own_job() -> Job:
    """The job that this process was started for."""
    return Job(**json.loads(sys.argv[1]))


def storage_options() -> dict[str, str]:
    """pylance's storage options for the table's store."""
    options: dict[str, str] = json.loads(os.environ[STORAGE_OPTIONS])
    return options


def started_in_a_thread() -> threading.Event:
    """Set when all writers may begin."""
    event = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: event.set())
    return event


def started() -> asyncio.Event:
    """The same event for an event loop."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, event.set)
    return event


def client_of(job: Job) -> CommitClient:
    """A client with the writer's name as producer."""
    return CommitClient(job.bootstrap_servers, dataset=job.dataset, dataset_uri=job.uri, producer=job.name)


def tell(event: str, **fields: Any) -> None:
    """Report something to the process that started this one."""
    print(json.dumps({"event": event, **fields}), flush=True)


def tell_answered(kind: str, result: CommitResult, submitted: float) -> None:
    """Report a commit. `submitted` is a time of the monotonic clock, which all processes of a machine share."""
    answered = time.monotonic()
    tell(
        "answered",
        kind=kind,
        status=result.status,
        uuid=result.uuid,
        version=result.version,
        attempts=result.attempts,
        at=answered,
        seconds=answered - submitted,
    )


def tell_refused(kind: str, error: ClientError) -> None:
    """Report that a submission is not committed, or that its result is unknown."""
    tell("refused", kind=kind, name=type(error).__name__, code=error.code, message=str(error))


async def commit(client: CommitClient, staged: Work, *, kind: str) -> None:
    """Submit, wait for the outcome, and report it."""
    submitted = time.monotonic()
    try:
        tell_answered(kind, await client.commit(staged), submitted)
    except ClientError as error:
        tell_refused(kind, error)


async def commit_change(client: CommitClient, make: Callable[[Reexecution | None], Work], *, kind: str) -> None:
    """As `commit`, for work that conflicts with other commits: after a refusal it is executed again on the latest
    version.
    """
    submitted = time.monotonic()

    try:
        first = await asyncio.to_thread(make, None)
        result = await client.commit(first, reexecute=make, attempts=ATTEMPTS_MAX, timeout=120)
        tell_answered(kind, result, submitted)
    except ClientError as error:
        tell_refused(kind, error)


async def opened(uri: str) -> lance.LanceDataset:
    """The table, as soon as the first producer's create is committed."""
    while True:
        try:
            return lance.dataset(uri, storage_options=storage_options())
        except ValueError:  # there is no table yet
            await asyncio.sleep(0.05)
