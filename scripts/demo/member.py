"""What all writers of the demo share: what they are told, how they tell what happens, and how they commit.

Each is a process of its own, started with a `Job` as JSON. It never commits by itself, and knows nothing of the other
writers. What happens is told on standard output, an object a line.
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
"""The variable with pylance's storage options, as JSON: how to get at the store that the table lies in."""
ATTEMPTS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one writer does."""

    work: str
    """The module that it runs: `producer`, `changes`, `compaction` or `spark`."""
    bootstrap_servers: str
    dataset: str
    """Its name, which names the topics."""
    uri: str
    number: int
    """Of the writer, from 1; the first makes the table."""
    count: int
    """Appends, rounds of changes, fragments to wait for, or micro-batches."""
    rows: int
    """In each append or micro-batch."""
    folder: str
    """For its own files, where it needs any; it goes with the demo."""
    again_every: int
    """So often an append that is committed is sent once more, as after a crash before its answer was noted."""

    @property
    def name(self) -> str:
        return f"{self.work}-{self.number}"


def own_job() -> Job:
    """What this process was started for."""
    return Job(**json.loads(sys.argv[1]))


def storage_options() -> dict[str, str]:
    """pylance's, for the store that the table lies in."""
    options: dict[str, str] = json.loads(os.environ[STORAGE_OPTIONS])
    return options


def started_in_a_thread() -> threading.Event:
    """Set when all writers may begin."""
    event = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: event.set())
    return event


def started() -> asyncio.Event:
    """The same for an event loop."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, event.set)
    return event


def client_of(job: Job) -> CommitClient:
    """A client that says who it works for."""
    return CommitClient(job.bootstrap_servers, dataset=job.dataset, dataset_uri=job.uri, producer=job.name)


def tell(event: str, **fields: Any) -> None:
    """For the process that started this one."""
    print(json.dumps({"event": event, **fields}), flush=True)


def tell_answered(kind: str, result: CommitResult, submitted: float) -> None:
    """Tell a good outcome; `submitted` is of the monotonic clock, which is one for all processes of a machine."""
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
    """Tell that it is not committed, or that this is not known."""
    tell("refused", kind=kind, name=type(error).__name__, code=error.code, message=str(error))


async def commit(client: CommitClient, staged: Work, *, kind: str) -> None:
    """Submit, wait for the outcome, and tell it."""
    submitted = time.monotonic()
    try:
        tell_answered(kind, await client.commit(staged), submitted)
    except ClientError as error:
        tell_refused(kind, error)


async def commit_change(client: CommitClient, make: Callable[[Reexecution | None], Work], *, kind: str) -> None:
    """The same for what contradicts others' commits: refused, it is made again on the latest version."""
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
        except ValueError:  # there is none yet
            await asyncio.sleep(0.05)
