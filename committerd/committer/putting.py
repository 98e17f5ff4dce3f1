"""Puts formed versions to the store, and determines the results.

`table.landing` has the commit protocol. This module adds the parts that the queue needs. Before a put it checks that
the topic is the same, and that the head's version is still the latest. It puts a run of versions in one go. It deletes
a version that landed in a table other than its own. `queue.race.race` decides whose version took a number.

The transaction file is written alongside the manifest, which also has the transaction inline, so readers can do without
it. Before a committer builds on a version of the queue it ensures that the file exists. So only the newest version can
lack it, after a crash.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from committerd.committer.head import Head, StartAgain
from committerd.committer.verdicts import Verdicts
from committerd.committer.view import View
from committerd.concurrency import Concurrently
from committerd.errors import CommitterError, PutUnknown, StoreUnavailable, Unavailable
from committerd.lance.format.manifest_file import TAIL_BYTES
from committerd.lance.rows.change import RowsAndKeys
from committerd.queue.grouping import Group
from committerd.queue.port import Queue, TopicIdentity
from committerd.queue.race import Found, Race, race
from committerd.queue.start import refuse_other_topic
from committerd.stores.port import Created, Exists, ExternallyDecided, PutResult, Tail, TakesSeveral
from committerd.table.backoff import Backoff
from committerd.table.landing import land
from committerd.table.prepare import Prepared
from committerd.table.versions import Table, VersionState
from committerd.table.writing import complete, put_in_turn, write_referenced, write_transaction
from committerd.telemetry import STARTED_AGAIN, Telemetry
from committerd_common.paths import data_key

_log = logging.getLogger(__name__)

_LISTING_AGE_SECONDS_MAX = 60.0
"""Maximum age of the listing made for a put. Cleanups keep the versions of the last hour at least."""
_AT_ONCE_SECONDS = 1.0
"""Longest put for which a read made concurrently shows the table that the put landed in."""
_WITHDRAWN_SECONDS_MAX = 10.0
"""Time after its put in which a version may be withdrawn; later another committer may have settled its records."""
_DATA_FILES_LOOKED_AT = 16
_QUICK_CONFIRMED_SECONDS = 0.1
"""Age from which the version below is checked again before a put, on a store where a check costs next to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormedVersion:
    """A version that is formed and not put yet: its group, every byte to write, and the head that follows."""

    group: Group
    prepared: Prepared
    own: Found
    """Its queue entries and position, which tell it from other writers' versions."""
    after: Head
    """The head after it is created."""
    newest: int = 0
    """`Pending.number` of the last record to arrive among those that it settles; 0 = it settles none."""
    unused_marks: int = 0
    """The number of application marks that it drops because they were unused for 30 days."""
    round_end: int | None = None
    """The last offset of the version's round, if records of it still wait; None = the round is over."""
    rows_and_keys: Mapping[int, RowsAndKeys] = field(default_factory=dict)
    """The rows and keys of each refused Delete or Update that may get precedence, by the record's offset."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    """How its members and refusals were judged."""
    identity: TopicIdentity | None = None
    """The topic's identity, requested after the records had arrived; None = requested before the put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The result of putting a run. The view's head already includes the versions `found`."""

    race: Race
    """Whose version has the number that was tried last."""
    found: Sequence[Found]
    """The versions that are new in the view, ascending."""
    made: Sequence[FormedVersion] = ()
    """The versions of the run that were created."""


class _Unknown:
    """Counts an unknown put result and its resolution, once each, so that the difference is the number still open."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._open = False

    def began(self) -> None:
        if not self._open:
            self._telemetry.unknown_outcomes.add()
        self._open = True

    def resolved(self, result: str) -> None:
        if self._open:
            self._telemetry.unknown_outcomes_settled.add(result=result)
        self._open = False


class Putter:
    """Puts formed versions, one run at a time."""

    def __init__(self, queue: Queue, telemetry: Telemetry, *, rng: random.Random, recheck_seconds: float) -> None:
        self._queue = queue
        self._telemetry = telemetry
        self._rng = rng
        self._recheck_seconds = recheck_seconds

    async def put(self, formed: Sequence[FormedVersion], view: View) -> Settlement:
        """Put a run of versions, each formed on the one before it, and move the view to the table's new head.

        Puts them in order, up to the first whose number another version has. The rest are dropped, since they were
        formed on a version that does not exist. Raises `RefusedToRun` when the topic is another one now, and
        `StartAgain` as the view does.
        """
        landing = RunLanding(
            formed,
            view,
            queue=self._queue,
            telemetry=self._telemetry,
            backoff=lambda: Backoff(self._rng),
            recheck_seconds=self._recheck_seconds,
        )
        try:
            return await land(landing, Backoff(self._rng))
        except (StartAgain, CommitterError):
            landing.unknown.resolved(STARTED_AGAIN)  # Start reads table and queue again and finds the result
            raise


class RunLanding:
    """The `committerd.table.landing.Landing` of a run."""

    def __init__(
        self,
        formed: Sequence[FormedVersion],
        view: View,
        *,
        queue: Queue,
        telemetry: Telemetry,
        backoff: Callable[[], Backoff],
        recheck_seconds: float,
    ) -> None:
        self.unknown = _Unknown(telemetry)
        self._left = self._tried = formed
        """The versions that are not created yet, and those of the last put."""
        self._made: list[FormedVersion] = []
        self._view = view
        self._queue = queue
        self._telemetry = telemetry
        self._backoff = backoff
        self._recheck_seconds = recheck_seconds
        self._sent_at = view.monotonic()
        """When the last put was sent, in monotonic seconds."""
        self._topic_checked = False
        """Whether an earlier attempt has checked the topic."""

    async def put(self) -> Settlement | None:
        """Put the versions that are left; None when the number of the first one left after that is taken."""
        again, self._topic_checked = self._topic_checked, True
        await self._ready(ask=again)
        self._tried, self._sent_at = self._left, self._view.monotonic()
        result: PutResult = Exists()
        if await self._still_latest():
            result = await self._create()
        if isinstance(result, Created):
            return Settlement(race=Race.OURS, found=[one.own for one in self._made], made=self._made)
        self._left = self._left[:1]
        if isinstance(result, Exists):
            return None
        raise result

    async def read_back(self, *, taken: bool) -> Settlement | None:
        """Find whose version has the number of the first version that is left."""
        formed = self._left[0]
        try:
            settlement = await self._read_back(formed, taken=taken)
        except StartAgain:
            if not taken:
                await self._withdraw_what_landed(self._tried)
            raise
        if settlement is None:
            return None
        self.unknown.resolved(settlement.race.value)
        await self._complete(settlement.found)
        made = [*self._made, formed] if settlement.race is Race.OURS else self._made
        found = [*(one.own for one in self._made), *settlement.found]
        return Settlement(race=settlement.race, found=found, made=made)

    def failed(self, error: PutUnknown | Unavailable, *, may_be_there: bool) -> None:
        if isinstance(error, PutUnknown):
            self.unknown.began()
        self._report_failure(error)

    async def _create(self) -> PutResult:
        """Put the versions that are left, in order; returns the put result of the last one that was tried.

        If the process slept meanwhile, no further one is tried (see `View.still_latest`). Raises `StartAgain` when they
        landed in a table other than the one they were built on.
        """
        view, formed, sent_at = self._view, self._left, self._view.monotonic()
        table, base, prepared = view.table, view.head.version, [one.prepared for one in formed]
        transaction = Concurrently(partial(write_transaction, table, prepared[-1]))
        look = Concurrently(partial(table.standing, base))
        put = partial(
            put_in_turn, table, prepared, as_long_as=lambda: view.monotonic() - sent_at < self._recheck_seconds
        )
        beside = base and not isinstance(table.store, TakesSeveral)
        results = await transaction.of(partial(look.of, put) if beside else put)
        self._telemetry.commit_attempts.add(len(results))
        count = len(results) - (not isinstance(results[-1], Created))
        if count and base:
            at_once = look.done and view.monotonic() - sent_at <= _AT_ONCE_SECONDS
            standing = look.result if at_once else await self._standing()
            if standing is not VersionState.SAME:
                await self._withdraw(formed[:count], standing)
            view.require_same(standing)
        for one in formed[:count]:
            self.unknown.resolved("created")
            view.follow(one.after.created(), read_at=sent_at)
        self._made += formed[:count]
        self._left = formed[count:]
        if not self._left and not transaction.done:
            await self._write(partial(write_transaction, table, prepared[-1]))
        return results[-1]

    async def _standing(self) -> VersionState:
        """Return the standing of the version that we built on. Retries until the store responds."""
        found: list[VersionState] = []

        async def look() -> None:
            found.append(await self._view.table.standing(self._view.head.version))

        await self._write(look)
        return found[0]

    async def _withdraw_what_landed(self, formed: Sequence[FormedVersion]) -> None:
        """As `_withdraw`, for those of these versions that exist, when the put result is unknown."""
        standing = await self._standing()
        if standing is VersionState.SAME:
            return
        landed: list[FormedVersion] = []

        async def look() -> None:
            landed[:] = [one for one in formed if await _is_there(self._view.table, one.prepared)]

        await self._write(look)
        if landed:
            await self._withdraw(landed, standing)

    async def _withdraw(self, formed: Sequence[FormedVersion], standing: VersionState) -> None:
        """Delete versions that landed in a table other than the one they were built on: readers can't open them.

        Deletes them only if that is certain: the version below is another one, or it is deleted together with its data,
        or a version further below is another one. Deletes them only within `_WITHDRAWN_SECONDS_MAX` of the put: later a
        cleanup may have removed the version below, and another committer may have settled the records. Never deletes
        them if another writer has built on them.
        """
        made, withdrawn, backoff = [one.prepared for one in formed], False, self._backoff()
        while self._view.monotonic() - self._sent_at <= _WITHDRAWN_SECONDS_MAX:
            try:
                withdrawn = await self._taken_out(made, standing)
                break
            except CommitterError as error:
                self._report_failure(error)
                await backoff.wait()
        _log.error(
            "commit.on_another_table",
            extra={
                "version": made[0].version,
                "versions": len(made),
                "below": standing.value,
                "withdrawn": withdrawn,
                "keys": [prepared.key for prepared in made][:10],
            },
        )

    async def _taken_out(self, made: Sequence[Prepared], standing: VersionState) -> bool:
        """Delete those of these versions that exist, if that is certain and no writer has built on them; else False."""
        table = self._view.table
        if isinstance(table.store, ExternallyDecided):
            return False
        if not (
            standing is VersionState.REPLACED
            or await self._data_is_gone()
            or await table.is_another_below(self._view.head.version)  # that version may have had no data
        ):
            return False
        # Versions created before the table was deleted were deleted with it: one under their number is not ours.
        there = [prepared for prepared in made if await _is_there(table, prepared)]
        if there and await table.latest_version() != there[-1].version:
            return False
        for prepared in reversed(there):
            await table.store.delete(prepared.key)
        return True

    async def _data_is_gone(self) -> bool:
        """Whether one of the first data files of the version that we built on no longer exists.

        One is enough, since readers can't read that version without it. Others may exist again, because producers can
        stage them twice.
        """
        manifest = self._view.head.manifest
        files = (file for fragment in (manifest.fragments if manifest else ()) for file in fragment.files)
        first = islice((file.path for file in files if not file.HasField("base_id")), _DATA_FILES_LOOKED_AT)
        return any([await self._view.table.store.head(data_key(path)) is None for path in first])

    async def _ready(self, *, ask: bool) -> None:
        """Check the topic, and concurrently write all files that readers of these versions need.

        That includes the transaction files of all but the last, so that only the newest version can lack its own.
        `ask`: request the topic's identity even if the versions have it. Raises `RefusedToRun` for another topic.
        """
        formed, table = self._left, self._view.table

        async def write() -> None:
            await write_referenced(table, [one.prepared for one in formed])

        known = [one.identity for one in formed]
        if ask or None in known:
            written = Concurrently(write)
            known = [await written.of(self._queue.identity)]
            if written.failed is not None:
                raise written.failed
        else:
            await write()
        for identity in known:
            if identity is not None:
                refuse_other_topic(self._view.head.position, identity)

    async def _complete(self, found: Sequence[Found]) -> None:
        """Ensure that the versions found have their transaction files; only then may their outcomes be published."""
        for one in found:
            if one.settled.ours:
                await self._write(partial(complete, self._view.table, one.settled.version))

    async def _write(self, work: Callable[[], Awaitable[None]]) -> None:
        """Call `work` until the store does it."""
        backoff = self._backoff()
        while True:
            try:
                return await work()
            except StoreUnavailable as error:
                self._report_failure(error)
                await backoff.wait()

    async def _still_latest(self) -> bool:
        """Whether the version that we build on is still the latest; reads it again if that was known too long ago.

        Otherwise our version could get a number that a cleanup has freed, below the latest. The process may have slept
        for hours at any point, also during the request, so the age of the result counts from the request.
        """
        view = self._view
        if not await view.still_latest(age_max=self._recheck_seconds, asked_age_max=_LISTING_AGE_SECONDS_MAX):
            return False
        quick = isinstance(view.table.store, TakesSeveral)
        if quick and view.monotonic() - view.confirmed_at > _QUICK_CONFIRMED_SECONDS:
            await view.confirm()
            # The process may have slept meanwhile.
            return await view.still_latest(age_max=self._recheck_seconds, asked_age_max=_LISTING_AGE_SECONDS_MAX)
        return True

    async def _read_back(self, formed: FormedVersion, *, taken: bool) -> Settlement | None:
        """Find whose version has the number; None when it is free, or can't be read now."""
        try:
            news = await self._view.peek()
        except StoreUnavailable as error:
            self._report_failure(error)
            return None
        if not news.found:
            if taken:
                raise StartAgain(f"version {formed.group.version} was taken, but is not there")
            return None
        result = race(formed.own, news.found)
        if result is not Race.OURS:
            self._telemetry.commit_retries.add(reason=result.value)
            _log.info(
                "commit.raced",
                extra={
                    "version": formed.group.version,
                    "latest": news.found[-1].settled.version,
                    "by": result.value,
                },
            )
        self._view.learn(news)
        return Settlement(race=result, found=news.found)

    def _report_failure(self, error: Exception) -> None:
        formed = (self._left or self._tried)[0]
        reason = "unknown" if isinstance(error, PutUnknown) else getattr(error, "code", "other")
        self._telemetry.commit_retries.add(reason=reason)
        _log.warning(
            "commit.retried",
            extra={"version": formed.prepared.version, "reason": reason, "error": str(error)},
        )


async def _is_there(table: Table, prepared: Prepared) -> bool:
    """Whether the version's number holds exactly this version."""
    tail = await table.store.get_tail(prepared.key, TAIL_BYTES)
    return tail == Tail(body=prepared.body.tail(TAIL_BYTES), size=len(prepared.body))
