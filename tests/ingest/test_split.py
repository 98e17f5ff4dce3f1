"""The work on a split of a reader, beside a table that fails."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest

from committerd_client.errors import StagingError
from committerd_client.panics import PANIC
from committerd_ingest import split as module
from committerd_ingest.buffering import FlushLimits
from committerd_ingest.settings import ReaderPipeline
from committerd_ingest.split import SplitWork
from committerd_ingest.table import Said
from committerd_ingest.testing import SCHEMA
from tests.ingest.lists import ListReader, Lists


class FullTable:
    """A table to which nothing can be written."""

    def __init__(self, error: Exception) -> None:
        self.writes, self._error = 0, error

    async def says_of_split(self, app_id: str) -> Said[None]:
        at: Any = None
        return Said(at, SCHEMA, None, None)

    def write(self, rows: pa.RecordBatchReader) -> None:
        self.writes += 1
        raise self._error


class NoFigures:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: None


@pytest.mark.parametrize(
    ("error", "said", "writes"),
    [
        (OSError("the disk is full"), "OSError: the disk is full", 3),
        # The rows may be good: they are not passed over. The first time they are written with others.
        (StagingError("pylance panicked", code=PANIC), "Panicked: pylance panicked", 4),
    ],
)
def test_a_split_that_fails_again_and_again_counts_as_stopped(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str, writes: int
) -> None:
    monkeypatch.setattr(module, "_FAILED_SECONDS", 0.0)
    lists, table, ending = Lists(ListReader), FullTable(error), threading.Event()
    lists.add(0, 1)
    limits = FlushLimits(rows=1, bytes=10**9, seconds=3600)
    pipeline = ReaderPipeline(name="p", on_error="skip", flush=limits, buffer_bytes_max=10**9, retry_seconds=3600)
    parts: dict[str, Any] = {"table": table, "bad_records": None, "figures": NoFigures()}
    work = SplitWork("a", pipeline, reader=lists.open(), ending=ending, **parts)

    async def run() -> None:
        running = asyncio.create_task(work.run())
        try:
            async with asyncio.timeout(120):
                while work.trouble is None and not running.done():  # noqa: ASYNC110  # it is said in a thread
                    await asyncio.sleep(0.01)
        finally:
            ending.set()
            await running

    asyncio.run(run())
    assert work.trouble is not None
    assert work.trouble.reason == "failed"
    assert f"3 times without a commit between them: {said}" in str(work.trouble)
    assert table.writes == writes
