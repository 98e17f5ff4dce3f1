"""Writers at steady rates, as a process of its own.

    python -m tests.acceptance.maintenance_soak.writers LOAD

LOAD is a `Load` in JSON. An append brings one row in a file of its own and names its key; an upsert changes one row and
inserts another one; a delete deletes one row. Which rows are changed is random, among all that are there and that no
other change is at. The process prints a line of JSON now and then. It reads what the table contains from `expected.npy`
in its folder when it begins, and writes it there when it ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from committerd_client import ClientError, CommitClient, RetryableConflict
from committerd_client.options import CommitOptions
from committerd_client.reexecution import ATTEMPTS_MAX
from committerd_common.messages import Transaction
from tests.acceptance.maintenance_soak.cheap_staging import CheapStager, Delete, Upsert
from tests.acceptance.maintenance_soak.expected import EXPECTED, Expected

_TICK_SECONDS = 0.1
_REPORT_SECONDS = 5.0
_CHANGE_SECONDS = 1.0
_AT_ONCE = 100
_APPENDS_WAITING_MAX = 1_000
"""Appends that may wait for their outcomes at once; with more, no more are made: the rate falls."""
_CHANGES_WAITING_MAX = 200
"""As many upserts and deletes."""
_TIMEOUT_SECONDS = 120.0
_ANY_VALUE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is written."""

    kafka: str
    dataset: str
    uri: str
    folder: str
    seconds: float
    appends: float
    """A second; so are the next two."""
    upserts: float
    deletes: float
    keep_seconds: float
    """How long versions are kept."""
    seed: int


@dataclass(slots=True)
class WriteCounts:
    """What was done until now, or in a part of the time."""

    seconds: float = 0.0
    appends: int = 0
    upserts: int = 0
    deletes: int = 0
    attempts: int = 0
    """Executions of the upserts and deletes."""
    attempts_max: int = 0
    refused: int = 0
    """Upserts and deletes that were refused as often as the client tries."""
    too_late: int = 0
    """Executions that took longer than versions are kept, and began again."""
    waited_p50: float = 0.0
    """Seconds to the outcome, since the last line: from staging; for upserts and deletes from the start of each
    execution.
    """
    waited_p99: float = 0.0
    waited_max: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Change:
    """A change, and how often it was executed."""

    what: Upsert | Delete
    attempts: int = 0
    refused: str = ""
    """The uuid of the last transaction that was refused."""


class Writers:
    """All of them, with one client."""

    def __init__(self, client: CommitClient, load: Load) -> None:
        self._client, self._load = client, load
        self._rng = random.Random(load.seed)
        self._stager = CheapStager(load.uri)
        self.expected = Expected.load(Path(load.folder, EXPECTED))
        ids, _ = self.expected.rows()
        self._next_id = int(ids[-1]) + 1
        self._busy: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waited: list[float] = []
        self._appends_waiting = 0
        self._again: list[_Change] = []
        """Changes that were refused, to be executed again."""
        self.written = WriteCounts()

    async def run(self) -> None:
        """Write for as long as the load says, then wait for all outcomes."""
        start = time.monotonic()
        reporting = asyncio.create_task(self._report(start))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._append(start))
                group.create_task(self._change(start))
            self.written.seconds = time.monotonic() - start
            while self._tasks or self._again:
                if self._again:
                    await self._stage([])
                await asyncio.sleep(_TICK_SECONDS)
        finally:
            reporting.cancel()
        self._print()

    async def _append(self, start: float) -> None:
        begun = 0
        while (now := time.monotonic()) < start + self._load.seconds:
            count = min(int((now - start) * self._load.appends) - begun, _AT_ONCE)
            if count > 0 and self._appends_waiting < _APPENDS_WAITING_MAX:
                begun += count
                ids = self._new_ids(count)
                made = await asyncio.to_thread(self._stager.appends, dict.fromkeys(ids, 0))
                for id_, transaction in zip(ids, made, strict=True):
                    self._appends_waiting += 1
                    self._begin(self._commit_append(id_, transaction))
            await asyncio.sleep(_TICK_SECONDS)

    async def _commit_append(self, id_: int, transaction: Transaction) -> None:
        try:
            await self._client.commit(transaction)
        finally:
            self._appends_waiting -= 1
        self.expected.put(id_, 0)
        self.written.appends += 1

    async def _change(self, start: float) -> None:
        upserts = deletes = 0
        while (now := time.monotonic()) < start + self._load.seconds:
            room = max(_CHANGES_WAITING_MAX - len(self._busy), 0)
            upsert = min(int((now - start) * self._load.upserts) - upserts, _AT_ONCE, room)
            delete = min(int((now - start) * self._load.deletes) - deletes, _AT_ONCE, room)
            upserts, deletes = upserts + max(upsert, 0), deletes + max(delete, 0)
            new: list[Upsert | Delete] = [self._new_upsert() for _ in range(upsert)]
            new += [Delete(self._pick()) for _ in range(delete)]
            if new or self._again:
                self._rng.shuffle(new)
                await self._stage([_Change(one) for one in new])
            await asyncio.sleep(_CHANGE_SECONDS)

    async def _stage(self, new: list[_Change]) -> None:
        """Stage these changes, and once more those that were refused."""
        changes, self._again = [*self._again, *new], []
        opened = time.monotonic()
        try:
            made = await asyncio.to_thread(self._stager.changes, [one.what for one in changes])
        except OSError:
            if time.monotonic() < opened + self._load.keep_seconds:
                raise
            self._again = changes
            self.written.too_late += 1
            return
        for change, transaction in zip(changes, made, strict=True):
            self._begin(self._commit_change(change, transaction))

    async def _commit_change(self, change: _Change, transaction: Transaction) -> None:
        change.attempts += 1
        self.written.attempts += 1
        self.written.attempts_max = max(self.written.attempts_max, change.attempts)
        headers = CommitOptions(attempt=change.attempts, retry_of=change.refused) if change.refused else CommitOptions()
        try:
            await self._client.commit(transaction, **headers)
        except RetryableConflict as error:
            if change.attempts < ATTEMPTS_MAX:
                change.refused = error.uuid
                self._again.append(change)
                return
            self.written.refused += 1
        else:
            self._is_made(change.what)
        self._busy.discard(change.what.old)

    def _is_made(self, what: Upsert | Delete) -> None:
        if isinstance(what, Delete):
            self.expected.remove(what.old)
            self.written.deletes += 1
        else:
            self.expected.put(what.old, what.value)
            self.expected.put(what.new, what.value)
            self.written.upserts += 1

    def _begin(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            started = time.monotonic()
            try:
                await work
            except Exception as error:  # noqa: BLE001  # whatever a writer meets is what is looked for
                self.written.problems.append(f"a writer failed: {type(error).__name__}: {error}")
            finally:
                self._waited.append(time.monotonic() - started)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _new_upsert(self) -> Upsert:
        (new,) = self._new_ids(1)
        return Upsert(old=self._pick(), new=new, value=self._rng.randrange(1, _ANY_VALUE))

    def _pick(self) -> int:
        """A row that is there, and that no change is at."""
        while True:
            id_ = self._rng.randrange(self._next_id)
            if id_ not in self._busy and self.expected.has(id_):
                self._busy.add(id_)
                return id_

    def _new_ids(self, count: int) -> range:
        self._next_id += count
        return range(self._next_id - count, self._next_id)

    async def _report(self, start: float) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            self.written.seconds = min(time.monotonic() - start, self._load.seconds)
            self._print()

    def _print(self) -> None:
        waited, self._waited = sorted(self._waited), []
        if waited:
            self.written.waited_p50 = waited[len(waited) // 2]
            self.written.waited_p99 = waited[len(waited) * 99 // 100]
            self.written.waited_max = waited[-1]
        print(json.dumps(asdict(self.written)), flush=True)
        self.written.problems.clear()


async def _run(load: Load) -> None:
    async with CommitClient(
        load.kafka, dataset=load.dataset, dataset_uri=load.uri, timeout=_TIMEOUT_SECONDS, max_in_flight=50_000
    ) as client:
        writers = Writers(client, load)
        await writers.run()
    writers.expected.save(Path(load.folder, EXPECTED))


def main() -> None:
    """Write."""
    try:
        asyncio.run(_run(Load(**json.loads(sys.argv[1]))))
    except ClientError as error:
        print(json.dumps(asdict(WriteCounts(problems=[f"the writers ended: {error}"]))), flush=True)
        raise


if __name__ == "__main__":
    main()
