"""Upserts that have to win against a stream of appends; used by the tests and by `make turns`.

The appends come from a process of their own (`appending`), in which no upsert takes its time. Beside them, where it is
wanted, another one compacts small fragments again and again (`compactions`), as any table needs that so many write to.
Each upsert rewrites keys that are there and adds a new one, and names what it wrote, so that the table can be checked
against a dict.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance

from committerd_client import ClientError, CommitClient, CommitResult, Reexecution, staging
from harness.turns.appending import FIRST_KEY, table
from harness.turns.load import Dataset, Load, to_arguments

_ROOT = Path(__file__).resolve().parents[2]
SHARED = 0
"""The key of the row that all upserts change with `Load.shares_row`; it is one of the first upserter's own, too."""


@dataclass(slots=True)
class Measured:
    """The results."""

    upserts: list[tuple[CommitResult, float]] = field(default_factory=list)
    """The result of each committed upsert, and the seconds from its first execution to its outcome."""
    waited: list[float] = field(default_factory=list)
    """For each committed upsert the seconds from its last execution to its outcome."""
    lost: list[ClientError] = field(default_factory=list)
    compactions: list[tuple[int, int]] = field(default_factory=list)
    """The attempts of each committed compaction, and the number of fragments that it removed."""
    not_compacted: list[str] = field(default_factory=list)
    """Why other compactions were not committed."""
    appended: list[int] = field(default_factory=list)
    """The keys whose Appends were committed."""
    not_appended: dict[int, str] = field(default_factory=dict)
    """The keys whose Appends were not committed, and why."""
    model: dict[int, int] = field(default_factory=dict)
    """The values that committed upserts have written, by key."""
    shared_version: int = 0
    """The version of the upsert whose value of the shared row is in `model`."""
    seconds: float = 0.0

    def attempts(self) -> list[int]:
        """The attempts of each committed upsert, ascending."""
        return sorted(result.attempts for result, _ in self.upserts)


def create(uri: str, load: Load) -> None:
    """Create the table with the keys that every upsert finds."""
    lance.write_dataset(table(dict.fromkeys(range(load.upserters * load.keys_each), -1)), uri)


async def run(dataset: Dataset, load: Load, *, tell: Callable[[str], None] = lambda _: None) -> Measured:
    """Append at the given rate for as long as the upserts take."""
    measured = Measured()
    numbers = iter(range(load.upserts))
    told: dict[str, Any] = {}
    async with AsyncExitStack() as beside:
        tasks = _Load(
            await beside.enter_async_context(dataset.client()), dataset.uri, load, measured=measured, tell=tell
        )
        if load.compact_seconds is not None:
            await beside.enter_async_context(_beside("compactions", dataset, load, told))
        appending = await beside.enter_async_context(_beside("appending", dataset, load, told))
        assert appending.stdout is not None
        assert appending.stdin is not None
        if await appending.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the process that appends ended with code {await appending.wait()}")
        appending.stdin.write(b"go\n")
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for upserter in range(load.upserters):
                group.create_task(tasks.upsert(upserter, numbers))
        measured.seconds = time.monotonic() - started
    first, count, failed = told["appending"]
    measured.not_appended = {int(key): error for key, error in failed.items()}
    measured.appended = [key for key in range(first, first + count) if key not in measured.not_appended]
    for came in told.get("compactions", []):
        if isinstance(came, str):
            measured.not_compacted.append(came)
        else:
            measured.compactions.append((came[0], came[1]))
    return measured


@asynccontextmanager
async def _beside(name: str, dataset: Dataset, load: Load, told: dict[str, Any]) -> AsyncIterator[Process]:
    """Run a module of this folder as a process until its input ends; note its last line under its name."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"harness.turns.{name}", *to_arguments(dataset, load)),
        stdin=PIPE,
        stdout=PIPE,
        cwd=_ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        said = await process.stdout.read()
        code = await process.wait()
    if code:
        raise RuntimeError(f"harness.turns.{name} ended with code {code}")
    told[name] = json.loads(said)


@dataclass(slots=True)
class _Executions:
    """The executions of one upsert."""

    took: list[float] = field(default_factory=list)
    """Seconds of each."""
    refused_by: list[str] = field(default_factory=list)
    """The operation that each but the last met, or the code of its error."""
    ended: float = 0.0
    """When the last one ended (monotonic clock)."""


class _Load:
    def __init__(
        self, client: CommitClient, uri: str, load: Load, *, measured: Measured, tell: Callable[[str], None]
    ) -> None:
        self._client, self._uri, self._load, self._measured, self._tell = client, uri, load, measured, tell
        self._session: Any = lance.Session()  # type: ignore[attr-defined]  # it is not in pylance's `__all__`
        self._cache = staging.KeyCache()
        """Both are shared by all tasks, so that each benefits from what the others have read."""

    async def upsert(self, upserter: int, numbers: Iterator[int]) -> None:
        """Perform one upsert after the other, while there are any left."""
        first = upserter * self._load.keys_each
        opened: Any = lance.dataset(self._uri, session=self._session)
        for number in numbers:
            # All keys but one exist; one is new.
            rows = dict.fromkeys(range(first, first + self._load.keys_each), number)
            rows[FIRST_KEY - 1 - number] = number
            if self._load.shares_row:
                rows[SHARED] = number

            done = _Executions()

            def execute(again: Reexecution | None, rows: dict[int, int] = rows, done: _Executions = done) -> Any:
                began = time.monotonic()
                if again is not None:
                    done.refused_by.append(again.error.conflicting_operation or again.error.code)
                opened.checkout_latest()
                staged = staging.merge_insert(opened, table(rows), on="key", again=again, cache=self._cache)
                done.ended = time.monotonic()
                done.took.append(done.ended - began)
                return staged

            started = time.monotonic()
            work = await asyncio.to_thread(execute, None)
            try:
                result = await self._client.commit(
                    work, reexecute=execute, attempts=self._load.attempts_max, timeout=self._load.timeout
                )
            except ClientError as error:
                self._measured.lost.append(error)
                continue
            seconds = time.monotonic() - started
            self._measured.upserts.append((result, seconds))
            self._measured.waited.append(time.monotonic() - done.ended)
            self._note(rows, result.version or 0)
            executions = ", ".join(f"{one:.2f}" for one in done.took)
            self._tell(
                f"upsert {number}: version {result.version}, {result.attempts} attempts, {seconds:.2f} s; "
                f"executed in {executions} s, refused by {', '.join(done.refused_by) or 'nothing'}, "
                f"last on {len(opened.get_fragments())} fragments"
            )

    def _note(self, rows: dict[int, int], version: int) -> None:
        """Note what an upsert has written. Outcomes may arrive in another order than that of the versions."""
        measured = self._measured
        later = {key: value for key, value in rows.items() if key != SHARED or version > measured.shared_version}
        measured.model.update(later)
        if SHARED in later:
            measured.shared_version = version


def wrong_rows(uri: str, load: Load, measured: Measured) -> list[str]:
    """The differences between the table and the outcomes; empty if every row is there once."""
    found = lance.dataset(uri).to_table()
    rows = dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
    wanted = dict.fromkeys(range(load.upserters * load.keys_each), -1)
    wanted |= measured.model
    wanted |= dict.fromkeys(measured.appended, 0)
    wrong = []
    if found.num_rows != len(rows):
        wrong.append(f"{found.num_rows - len(rows)} rows are there more than once")
    for what, keys in (("missing", wanted.keys() - rows.keys()), ("nobody's", rows.keys() - wanted.keys())):
        if keys:
            wrong.append(f"{len(keys)} rows are {what}, such as key {min(keys)}")
    changed = [key for key in wanted.keys() & rows.keys() if wanted[key] != rows[key]]
    if changed:
        wrong.append(f"{len(changed)} rows have another value, such as key {min(changed)}")
    return wrong
