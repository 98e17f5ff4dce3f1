"""A process of a pipeline whose rows come from a reader: the work on all of its splits."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from committerd_ingest.figures import Figures
from committerd_ingest.reading import Reader, ReaderStopped
from committerd_ingest.settings import ReaderPipeline
from committerd_ingest.split import SplitWork
from committerd_ingest.table import Table, now_ms

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_SILENT_SECONDS_MAX = 600.0
"""A reader that has not responded for so long is stuck."""


class ReaderIngest:
    """Runs a pipeline in this process."""

    def __init__(self, pipeline: ReaderPipeline, *, reader: Reader, table: Table, figures: Figures) -> None:
        self._pipeline, self._reader, self._table, self._figures = pipeline, reader, table, figures
        self._ending = threading.Event()
        self._works: dict[str, tuple[SplitWork, asyncio.Task[None]]] = {}
        self._listed = False
        self._trouble = ""

    async def run(self, stopped: asyncio.Event, *, drain_seconds: float) -> None:
        """Work until `stopped`; then write what was taken, for at most `drain_seconds`."""
        following = asyncio.create_task(self._follow())
        try:
            while not stopped.is_set():
                await self._look()
                try:
                    await asyncio.wait_for(stopped.wait(), _LOOK_SECONDS)
                except TimeoutError:
                    continue
        finally:
            following.cancel()
            self._ending.set()
            tasks = [task for _, task in self._works.values()]
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=drain_seconds)
                for one in late:
                    one.cancel()
            await asyncio.to_thread(self._reader.close)

    def live(self) -> list[str]:
        """What is stuck, so that only a restart can help."""
        now = time.monotonic()
        silent = {work.split: now - work.turned_at for work, _ in self._works.values() if work.reading}
        return [
            f"the reader has not responded for split {split} for {seconds:.0f} s"
            for split, seconds in silent.items()
            if seconds > _SILENT_SECONDS_MAX
        ]

    def ready(self) -> tuple[bool, str]:
        """Whether the process does its work, and a sentence on it."""
        if not self._listed:
            return False, f"{self._reader.name}: {self._trouble or 'looks for its splits'}"
        works = [work for work, _ in self._works.values()]
        stopped = [f"{work.split}: {work.trouble}" for work in works if work.trouble]
        text = f"{len(works)} splits"
        return True, text if not stopped else f"{text}, of which {len(stopped)} are stopped. {stopped[0]}"

    async def _follow(self) -> None:
        """Work on the splits that there are, those that are made later too."""
        while True:
            try:
                found = await asyncio.to_thread(self._reader.splits)
            except Exception as error:  # noqa: BLE001  # whatever it is: it is tried again
                self._trouble = str(error)
                log = _log.error if isinstance(error, ReaderStopped) else _log.warning
                log("ingest.splits_not_listed", extra={"reader": self._reader.name, "error": str(error)})
            else:
                self._listed = True
                for one in found:
                    if one not in self._works:
                        self._start(one)
            await asyncio.sleep(self._pipeline.retry_seconds)

    def _start(self, split: str) -> None:
        _log.info("ingest.split_found", extra={"split": split})
        work = SplitWork(
            split,
            self._pipeline,
            reader=self._reader,
            table=self._table,
            figures=self._figures,
            ending=self._ending,
        )
        self._works[split] = work, asyncio.get_running_loop().create_task(work.run())

    async def _look(self) -> None:
        works = [work for work, _ in self._works.values()]
        waiting = sum([await asyncio.to_thread(self._reader.waiting, work.split) for work in works])
        oldest = min((work.oldest_ms for work in works if work.oldest_ms is not None), default=None)
        self._figures.state(
            partitions=len(works),
            stopped=sum(work.trouble is not None for work in works),
            waiting_bytes=0,
            lag=waiting,
            lag_seconds=0.0 if oldest is None else max(now_ms() - oldest, 0) / 1000,
        )
