"""Checks the files of records while the records wait.

A version may refer only to files that exist, and checking one takes a round trip to the store. So this module checks as
soon as records arrive, for many records at once, and while the previous version is put. It keeps the result with the
record and decides nothing: an error or a missing file shows again when the record is judged.

To judge Deletes and Updates, their deletion files are needed, even if the files of records are not verified, and those
that their fragments have already. These are read too, if their content is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

import anyio
import anyio.lowlevel

from committerd.committer.decoding import Decoder
from committerd.committer.forming import FileCheckTiming, FormingOptions, check_files
from committerd.committer.intake import Intake, Pending
from committerd.concurrency import for_each
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.transactions.transaction import named_fragments
from committerd.queue.rounds import Part, part_of
from committerd.table.staged_files import Places, read_deletions
from committerd.table.versions import Table
from committerd.table.work import Work, at_once
from committerd_common.messages import DataFragment
from committerd_common.request import Request

_log = logging.getLogger(__name__)

_RECORDS_AT_ONCE = 128
"""Maximum number of records in one batch: few enough that no record waits long for the others."""
_BATCHES_AT_ONCE = 8


class FileChecker:
    """Checks the files of records as they arrive."""

    def __init__(
        self,
        intake: Intake,
        decoder: Decoder,
        table: Table,
        *,
        options: FormingOptions,
        file_check_timing: FileCheckTiming,
        wall_clock: Callable[[], datetime],
        work: Work = at_once,
    ) -> None:
        """`table`: a `Table` for these checks only, on the same store as the committer's table."""
        self._intake = intake
        self._decoder = decoder
        self._table = table
        self._options = options
        self._file_check_timing = file_check_timing
        self._wall_clock = wall_clock
        self._work = work
        self._on = False
        self.latest: ManifestFile | None = None
        """The latest version, as far as the committer knows; None = none is known."""

    def switch(self, *, on: bool) -> None:
        """Switch the checks on or off. They are off while there is no table."""
        self._on = on
        self._intake.notify()

    async def run(self) -> None:
        """Check files until cancelled; returns at once unless `file_check_timing` is "early"."""
        if self._file_check_timing != "early":
            return
        batches = anyio.Semaphore(_BATCHES_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            while True:
                await batches.acquire()
                moment = self._intake.moment()
                batch = self._intake.unchecked(most=_RECORDS_AT_ONCE) if self._on else []
                if not batch:
                    batches.release()
                    await self._intake.changed(since=moment)
                    continue
                for pending in batch:
                    pending.file_check = anyio.Event()
                tasks.start_soon(self._look, batch, batches)
                await anyio.lowlevel.checkpoint()

    async def _look(self, batch: Sequence[Pending], batches: anyio.Semaphore) -> None:
        try:
            await self._look_at(batch)
        except Exception as error:  # noqa: BLE001  # judging the record raises it again
            _log.debug("files.not_checked", extra={"error": f"{type(error).__name__}: {error}"})
        finally:
            batches.release()
            for pending in batch:
                assert pending.file_check is not None
                pending.file_check.set()

    async def _look_at(self, batch: Sequence[Pending]) -> None:
        await check_files(
            batch,
            self._table,
            decoder=self._decoder,
            options=self._options,
            now_ms=int(self._wall_clock().timestamp() * 1000),
            work=self._work,
        )
        await self._read_deletions(batch)

    async def _read_deletions(self, records: Sequence[Pending]) -> None:
        """Read the deletion files that the latest version has for the fragments of which these records delete rows."""
        latest = self.latest
        transactions = [one.decoded.transaction for one in records if isinstance(one.decoded, Request)]
        touched = {id for one in transactions if part_of(one) is Part.ROWS for id in named_fragments(one)}
        if latest is None or not touched:
            return
        places = Places(store=self._table.store, deletion_vectors=self._table.deletion_vectors)

        async def read(fragment: DataFragment) -> None:
            await read_deletions(places, fragment, staged=False)

        there = latest.part(sorted(touched)).fragments
        await for_each([one for one in there if not one.deletion_file.HasField("base_id")], read)
