"""A process of a pipeline whose rows come from a reader: the work on all of its splits."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial

from committerd_ingest.calls import Calls
from committerd_ingest.figures import Figures
from committerd_ingest.kafka_facts import BadRecords
from committerd_ingest.reading import Reader, ReaderStopped
from committerd_ingest.settings import ReaderPipeline
from committerd_ingest.split import SplitWork
from committerd_ingest.table import Table, now_ms

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_SILENT_SECONDS_MAX = 600.0
"""A reader that has not responded for so long is stuck."""
_SILENT_RETRIES = 2
"""A split for which it has not responded for so many times `ingest.retry_seconds` counts as stopped."""
_CLOSE_SECONDS_MIN = 1.0


class ReaderIngest:
    """Runs a pipeline in this process."""

    def __init__(
        self, pipeline: ReaderPipeline, *, reader: Reader, table: Table, bad_records: BadRecords, figures: Figures
    ) -> None:
        self._pipeline, self._reader, self._table, self._figures = pipeline, reader, table, figures
        self._bad_records = bad_records
        self._silent_seconds = _SILENT_RETRIES * pipeline.retry_seconds
        self._ending = threading.Event()
        self._works: dict[str, tuple[SplitWork, asyncio.Task[None]]] = {}
        self._listed = False
        self._trouble = ""
        self._waiting: dict[str, int] = {}
        """What the reader has said last of each split: the records that wait."""
        self._uncounted = ""
        """Why it does not say it."""
        self._silent: set[str] = set()
        """The splits of which the log says already that the reader does not respond."""

    async def run(self, stopped: asyncio.Event, *, drain_seconds: float) -> None:
        """Work until `stopped`; then write what was taken, for at most `drain_seconds`."""
        looking = [asyncio.create_task(self._follow()), asyncio.create_task(self._count())]
        try:
            while not stopped.is_set():
                self._look()
                try:
                    await asyncio.wait_for(stopped.wait(), _LOOK_SECONDS)
                except TimeoutError:
                    continue
        finally:
            for one in looking:
                one.cancel()
            self._ending.set()
            await self._end(drain_seconds)

    async def _end(self, drain_seconds: float) -> None:
        until = time.monotonic() + drain_seconds
        tasks = {task: work for work, task in self._works.values()}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=drain_seconds)
            for one in late:
                extra = {"split": tasks[one].split, "silent_seconds": round(tasks[one].silent_seconds())}
                _log.warning("ingest.not_drained", extra=extra)
                one.cancel()
        self._bad_records.close()
        closing = Calls()
        try:
            await asyncio.wait_for(closing(self._reader.close), max(until - time.monotonic(), _CLOSE_SECONDS_MIN))
        except Exception as error:  # noqa: BLE001  # whatever it is: the process ends
            _log.warning("ingest.not_closed", extra={"error": f"{type(error).__name__}: {error}"})
        closing.end()

    def live(self) -> list[str]:
        """What is stuck, so that only a restart can help."""
        return [said for work, _ in self._works.values() if (said := self._silence(work, _SILENT_SECONDS_MAX))]

    def ready(self) -> tuple[bool, str]:
        """Whether the process does its work, and a sentence on it."""
        if not self._listed:
            return False, f"{self._reader.name}: {self._trouble or 'looks for its splits'}"
        works = [work for work, _ in self._works.values()]
        stopped = [f"{work.split}: {said}" for work in works if (said := self._wrong(work))]
        text = f"{len(works)} splits"
        if stopped:
            text += f", of which {len(stopped)} are stopped. {stopped[0]}"
        return True, text if not self._uncounted else f"{text}. The lag is not known: {self._uncounted}"

    def _wrong(self, work: SplitWork) -> str:
        """Why a split is stopped; empty if it is not."""
        return str(work.trouble) if work.trouble else self._silence(work, self._silent_seconds)

    def _silence(self, work: SplitWork, most: float) -> str:
        """That the reader does not respond for a split; empty if it does, within so many seconds."""
        seconds = work.silent_seconds()
        return "" if seconds <= most else f"the reader has not responded for split {work.split} for {seconds:.0f} s"

    async def _follow(self) -> None:
        """Work on the splits that there are, those that are made later too."""
        calls = Calls()
        try:
            while True:
                try:
                    found = await calls(self._reader.splits)
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
        finally:
            calls.end()

    async def _count(self) -> None:
        """Ask the reader how many records wait. A split of which it does not say it keeps its last number."""
        calls = Calls()
        try:
            while True:
                uncounted = ""
                for split in list(self._works):
                    asked = calls(partial(self._reader.waiting, split))
                    try:
                        self._waiting[split] = int(await asyncio.wait_for(asked, self._silent_seconds))
                    except TimeoutError:
                        uncounted = f"the reader does not say it of split {split}"
                    except Exception as error:  # noqa: BLE001  # whatever it is: rows do not depend on it
                        uncounted = f"{type(error).__name__}: {error}"
                        _log.warning("ingest.lag_unknown", extra={"split": split, "error": uncounted})
                self._uncounted = uncounted
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            calls.end()

    def _start(self, split: str) -> None:
        _log.info("ingest.split_found", extra={"split": split})
        work = SplitWork(
            split,
            self._pipeline,
            reader=self._reader,
            table=self._table,
            bad_records=self._bad_records,
            figures=self._figures,
            ending=self._ending,
        )
        self._works[split] = work, asyncio.get_running_loop().create_task(work.run())

    def _look(self) -> None:
        works = [work for work, _ in self._works.values()]
        wrong = {work.split: said for work in works if (said := self._wrong(work))}
        for work in works:
            if work.split in wrong and not work.trouble and work.split not in self._silent:
                extra = {"split": work.split, "reason": "reader_silent", "error": wrong[work.split]}
                _log.error("ingest.split_stopped", extra=extra)
        self._silent = {work.split for work in works if work.split in wrong and not work.trouble}
        oldest = min((work.oldest_ms for work in works if work.oldest_ms is not None), default=None)
        self._figures.state(
            partitions=len(works),
            stopped=len(wrong),
            waiting_bytes=0,
            lag=sum(self._waiting.values()),
            lag_seconds=0.0 if oldest is None else max(now_ms() - oldest, 0) / 1000,
        )
