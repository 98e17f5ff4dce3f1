"""Decodes records, and fetches what is needed to judge them, while they wait and while a version is put.

A fact takes a round trip to the store. So they are fetched as soon as records arrive, for many records at once, and
kept beside each record. A record whose facts are not there yet is not taken into a version; only the first of those
that wait is waited for. This module decides nothing: a missing file is a fact, too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import TypeVar

import anyio
import anyio.lowlevel

from committerd.committer.decoding import Decoder, claim_key
from committerd.committer.intake import Intake, Pending
from committerd.committer.stages import Period
from committerd.concurrency import Concurrently
from committerd.errors import Unavailable
from committerd.lance.format.decoded_size import decoded_bytes_max
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.transactions.transaction import named_fragments
from committerd.queue.dedupe import Refused
from committerd.queue.grouping import work_of
from committerd.queue.rounds import Part, part_of
from committerd.stretches import GiveWay, to_all
from committerd.table.deletion_files import SMALL_BODY_BYTES, small_bodies
from committerd.table.fetching import Fetcher
from committerd.table.heavy_work import LIGHT_BYTES_MAX, HeavyWork, at_once
from committerd.table.needs import NOTHING_KNOWN, DeletionFile, Rows, Staged, StagedFacts
from committerd.table.places import deletion_file_location
from committerd.table.staged_files import FileLimits, needed_ahead
from committerd.table.versions import Table
from committerd_common.request import Request

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

DECODED_BYTES_MAX = 160 * 1024 * 1024
"""Maximum memory of transactions that are decoded at the same time; a single one always fits.

The real memory is far less: that of an Append is four times its size. When the order in which records are taken
changes, those that were decoded before may take as much again, until the next records are decoded. Records of short
lines may take as much again beside those of long lines.
"""
_RECORDS_AT_ONCE = 256
"""Maximum number of records in one batch: few enough that no record waits long for the others."""
_BYTES_AT_ONCE = 64 * 1024
"""A batch that has so many bytes takes no more records once it has `_LARGE_AT_ONCE`. Large records name many files, and
others would wait long for them.
"""
_LARGE_AT_ONCE = 32
_BATCHES_AT_ONCE = 8
_LONG_BATCHES_AT_ONCE = 3
"""At most so many of the batches are for long lines. So other work gets its turn, and records of short lines find a
free batch.
"""
_STRETCH_BYTES = 4 * 1024
"""Bytes of records to decode, or whose files to list, before the stretch of work may end."""
_AFTER_ERROR_SECONDS = 1.0
"""Pause after a read that has failed, before it is tried again in the background."""
_FACTS_SECONDS_MAX = 300.0
"""How long facts about files are valid: then they are fetched again."""


@dataclass(frozen=True, slots=True)
class Prefetched:
    """What is known of a record before it is judged."""

    pending: Pending
    decoded: Request | Refused
    facts: StagedFacts
    at: float
    """When the fetch of its facts began, on the event loop's clock, in seconds."""
    until: float
    """When it ended, on the same clock."""
    bytes: int = field(init=False)
    """The most memory that the decoded transaction takes. It is added up for all that wait, often."""
    work: int = field(init=False)
    """How long it takes to judge and build it, as `work_of` counts."""

    def __post_init__(self) -> None:
        size = self.decoded.size if isinstance(self.decoded, Request) else len(self.pending.record.value)
        object.__setattr__(self, "bytes", decoded_bytes_max(size))
        work = work_of(self.decoded.transaction) if isinstance(self.decoded, Request) else 1
        object.__setattr__(self, "work", work)


@dataclass(slots=True, kw_only=True)
class Prefetcher:
    """Prefetches for the records that wait."""

    intake: Intake
    decoder: Decoder
    table: Table
    """For this alone, on the same store as the committer's table."""
    file_limits: FileLimits
    verifies: Callable[[int], bool]
    """Whether the files of a record of this age, in milliseconds, are verified."""
    wall_clock: Callable[[], datetime]
    work: HeavyWork = at_once
    """Lists the files of a heavy record."""
    give_way: GiveWay = to_all
    latest: ManifestFile | None = None
    """The latest version, as far as the committer knows; None = none is known."""
    _fetch: Fetcher = field(init=False)
    _on: bool = False
    _epoch: int = 0
    """Counts how often prefetching was switched off: what was begun before that is dropped."""
    _found: dict[int, Prefetched] = field(default_factory=dict)
    """By `Pending.number`, as the next two."""
    _begun: dict[int, anyio.Event] = field(default_factory=dict)
    """Records that are being prefetched; those of one batch have the same event."""
    _long_batches: int = 0
    """How many batches are prefetched in the background for long lines."""
    _large: set[int] = field(default_factory=set)
    """Claim checks whose file is too large to be read together with others: each is read when it is the first."""

    def __post_init__(self) -> None:
        self._fetch = Fetcher(self.table, give_way=self.give_way)

    def switch(self, *, on: bool) -> None:
        """Switch prefetching on or off. It is off while there is no table. Forgets what was prefetched before."""
        self._on = on
        self._epoch += 1
        self._found.clear()
        self._large.clear()
        self.intake.notify()

    async def run(self) -> None:
        """Prefetch until cancelled."""
        batches = anyio.Semaphore(_BATCHES_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            while True:
                await batches.acquire()
                moment = self.intake.moment()
                free = self._free_count() if self._on else 0
                batch = self._claim_batch(most=free) if free else []
                if not batch:
                    batches.release()
                    await self.intake.changed(since=moment)
                    continue
                is_long = self.intake.turns.long_line(batch[0]) is not None
                self._long_batches += is_long
                tasks.start_soon(self._prefetch_in_background, batch, batches, is_long)
                await anyio.lowlevel.checkpoint()

    def _front(self) -> Iterable[Pending]:
        """The records to prefetch, in order.

        If decoded records take too much memory under turns, those that do not fit at the front are forgotten.
        """
        if not self.intake.takes_turns(_RECORDS_AT_ONCE):
            return self.intake.pending
        if sum(known.bytes for known in self._found.values()) > DECODED_BYTES_MAX:
            short = self._fitting(self.intake.turns.in_short_lines())
            front = {pending.number for pending in chain(self._fitting(self._in_turn()), short)}
            for number in self._found.keys() - front:
                del self._found[number]
        return self._in_turn()

    def _in_turn(self) -> Iterator[Pending]:
        """Yield each record once, and first those at the front of each producer's line: a version takes from all."""
        first = {pending.number: pending for pending in self.intake.turns.to_fetch(_RECORDS_AT_ONCE)}
        yield from first.values()
        yield from (pending for pending in self.intake.pending if pending.number not in first)

    def _fitting(self, waiting: Iterable[Pending]) -> Iterator[Pending]:
        """Yield the first of these records, as many as may be decoded at the same time: at least one."""
        total = 0
        for place, pending in enumerate(waiting):
            known = self._found.get(pending.number)
            total += known.bytes if known is not None else self._bytes_max(pending)
            if place and total > DECODED_BYTES_MAX:
                return
            yield pending

    def is_ready(self, pending: Pending) -> bool:
        """Whether a record can be judged."""
        return pending.number in self._found

    def work_of(self, pending: Pending) -> int:
        """How much work a record is (`Prefetched.work`); 1 as long as it can't be judged."""
        known = self._found.get(pending.number)
        return 1 if known is None else known.work

    def fetched(self, pending: Pending) -> Period | None:
        """When the facts of a record were fetched, as long as the intake has it; None = they were not."""
        known = self._found.get(pending.number)
        return None if known is None else Period(known.at, known.until)

    async def ready(self, ordered: Sequence[Pending]) -> list[Prefetched]:
        """Return the first of these records that can be judged, stopping before the first that isn't ready.

        Never empty, and within `DECODED_BYTES_MAX`. Waits for the first record, and prefetches it now if nobody does.
        Raises `StoreUnavailable`.
        """
        first = ordered[0].number
        self._forget_settled()
        if first in self._begun:
            await self._begun[first].wait()
        if self._known(ordered[0], anyio.current_time()) is None:
            batch = ordered[:1] if first in self._large else ordered
            self._large.discard(first)
            await self._prefetch(self._claimed(list(self._free(self._fitting(batch)))), is_first=True)
        ready, total, now = list[Prefetched](), 0, anyio.current_time()
        for pending in ordered:
            known = self._known(pending, now)
            total += known.bytes if known is not None else 0
            if known is None or (total > DECODED_BYTES_MAX and total > known.bytes):
                break
            ready.append(known)
        return ready

    def _known(self, pending: Pending, now: float) -> Prefetched | None:
        """What is known of a record, unless it is too old. `now`: on the event loop's clock, in seconds."""
        known = self._found.get(pending.number)
        if known is not None and now - known.at > _FACTS_SECONDS_MAX:
            del self._found[pending.number]
            return None
        return known

    def _free(self, waiting: Iterable[Pending]) -> Iterator[Pending]:
        """Yield those of these records that nobody prefetches or has prefetched."""
        found, begun, large = self._found, self._begun, self._large
        for pending in waiting:
            number = pending.number
            if number not in found and number not in begun and number not in large:
                yield pending

    def _free_count(self) -> int:
        """How many of the waiting records can be claimed, up to a batch. What came last is looked at first."""
        return sum(1 for _ in islice(self._free(reversed(self.intake.pending)), _RECORDS_AT_ONCE))

    def _claim_batch(self, *, most: int) -> list[Pending]:
        """Claim records of one long line, or of short lines, so that the facts of a single record don't wait for those
        of a flood.
        """
        turns, batch = self.intake.turns, list[Pending]()
        if self._long_batches < _LONG_BATCHES_AT_ONCE:
            free = self._free(self._fitting(self._front()))
            if (first := next(free, None)) is not None:
                line = turns.long_line(first)
                batch = _batch(chain([first], (one for one in free if turns.long_line(one) == line)), most=most)
        return self._claimed(batch or _batch(self._free(self._fitting(turns.in_short_lines())), most=most))

    def _claimed(self, batch: list[Pending]) -> list[Pending]:
        """Note that these records, which nobody prefetches, are one batch; returns them."""
        self._begun |= dict.fromkeys((pending.number for pending in batch), anyio.Event())
        return batch

    def _bytes_max(self, pending: Pending) -> int:
        """The most memory that a record takes once it is decoded."""
        if not pending.is_claim:
            return decoded_bytes_max(len(pending.record.value))
        return DECODED_BYTES_MAX if pending.number in self._large else decoded_bytes_max(SMALL_BODY_BYTES)

    async def _prefetch_in_background(self, batch: Sequence[Pending], batches: anyio.Semaphore, is_long: bool) -> None:
        try:
            await self._prefetch(batch)
        except Exception as error:  # noqa: BLE001  # shows again when the record is the first that waits
            _log.debug("facts.not_fetched", extra={"error": f"{type(error).__name__}: {error}"})
            await anyio.sleep(_AFTER_ERROR_SECONDS)
        finally:
            self._long_batches -= is_long
            batches.release()
            self.intake.notify()  # records can be judged, and there may be room for others

    async def _prefetch(self, batch: Sequence[Pending], *, is_first: bool = False) -> None:
        """Decode these records and fetch their facts. `is_first`: the first of them may be of any size."""
        at, epoch = anyio.current_time(), self._epoch
        try:
            decoded = await self._decoded(batch, is_first=is_first)
            facts: dict[int, StagedFacts] = await self._contained(partial(self._facts, decoded), {})
            if epoch != self._epoch:
                return
            until = anyio.current_time()
            for pending, request in decoded:
                known = facts.get(pending.number, NOTHING_KNOWN)
                self._found[pending.number] = Prefetched(pending, request, known, at, until)
            self._large.update(one.number for one in batch if one.is_claim and one.number not in self._found)
        finally:
            for pending in batch:
                begun = self._begun.pop(pending.number, None)
                if begun is not None:
                    begun.set()

    async def _contained(self, read: Callable[[], Awaitable[_T]], otherwise: _T) -> _T:
        """Call `read`; on an unexpected error return this instead. Judging the record reads again, and refuses it."""
        try:
            return await read()
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001
            _log.debug("facts.not_fetched", extra={"error": f"{type(error).__name__}: {error}"})
            return otherwise

    async def _decoded(self, batch: Sequence[Pending], *, is_first: bool) -> list[tuple[Pending, Request | Refused]]:
        """Decode records; leaves out claim checks whose file is large, but for the first if `is_first`."""
        keys = {pending.number: claim_key(pending.record) for pending in batch if pending.is_claim}
        claimed = [key for key in keys.values() if key is not None]
        bodies: dict[str, bytes | None] = await self._contained(partial(small_bodies, self.table.store, claimed), {})
        decoded, stretch = list[tuple[Pending, Request | Refused]](), _STRETCH_BYTES
        for place, pending in enumerate(batch):
            if stretch >= _STRETCH_BYTES:
                stretch = 0
                await self.give_way()
            stretch += pending.size
            key = keys.get(pending.number)
            if key is None or key in bodies or (is_first and not place):
                decoded.append((pending, await self.decoder.decode(pending.record, self.table, bodies=bodies)))
        return decoded

    async def _facts(self, decoded: Sequence[tuple[Pending, Request | Refused]]) -> dict[int, StagedFacts]:
        """Fetch what is needed to judge these requests, by `Pending.number`."""
        now_ms = int(self.wall_clock().timestamp() * 1000)
        numbers, needs, requests, stretch = list[int](), list[Staged](), list[Request](), _STRETCH_BYTES
        for pending, request in decoded:
            if stretch >= _STRETCH_BYTES:
                stretch = 0
                await self.give_way()
            stretch += pending.size
            if isinstance(request, Request):
                verifies = self.verifies(now_ms - pending.record.timestamp_ms)
                listed = partial(needed_ahead, request.transaction, self.file_limits, verifies=verifies)
                is_light = request.size <= LIGHT_BYTES_MAX
                needs.append(listed() if is_light else await self.work(listed, size=request.size))
                numbers.append(pending.number)
                requests.append(request)
        if not needs:
            return {}
        deletions = Concurrently(partial(self._read_deletions, requests))
        found = await deletions.of(partial(self._fetch.staged, needs))
        deletions.required()
        return dict(zip(numbers, found, strict=True))

    async def _read_deletions(self, requests: Sequence[Request]) -> None:
        """Read the deletion files that the latest version has for the fragments of which these records delete rows."""
        latest = self.latest
        changed = [one.transaction for one in requests if part_of(one.transaction) is Part.ROWS]
        touched = {id for one in changed for id in named_fragments(one)}
        if latest is None or not touched:
            return
        wanted = [
            DeletionFile(one, deletion_file_location(one, (), staged=False), is_staged=False)
            for one in latest.part(sorted(touched)).fragments
            if one.HasField("deletion_file") and not one.deletion_file.HasField("base_id")
        ]
        await self._contained(partial(self._fetch, Rows(wanted, 0)), None)

    def _forget_settled(self) -> None:
        """Forget the records that no longer wait: they are settled in any order, and decoded records take memory."""
        waiting = {pending.number for pending in self.intake.pending}
        for number in self._found.keys() - waiting:
            del self._found[number]
        self._large &= waiting


def _batch(free: Iterable[Pending], *, most: int) -> list[Pending]:
    """The first of these records that are prefetched together."""
    batch, size = list[Pending](), 0
    for pending in islice(free, most):
        batch.append(pending)
        size += pending.size
        if size >= _BYTES_AT_ONCE and len(batch) >= _LARGE_AT_ONCE:
            break
    return batch
