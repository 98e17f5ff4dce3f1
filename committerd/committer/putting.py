"""Versions onto the store: put if absent, and find out what became of them.

How that goes is the protocol of `table.landing`. Here is what the queue adds to it: before a put the topic is
checked, and whether the head is still the latest version; a run of versions is put in one go; a version that landed in
another table than its own is withdrawn; and `queue.race.race` says whose the version is that took a number.

The transaction file is written beside the manifest, which has the transaction inside, so no reader misses it. Whoever
goes on from a version of the queue sees first that it is there: so only the newest can lack it, after a crash.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from committerd.committer.head import Head, StartAgain
from committerd.committer.view import View
from committerd.concurrency import Beside
from committerd.errors import CommitterError, OutcomeUnknown, StoreUnavailable, Unavailable
from committerd.lance.format.manifest_file import TAIL_BYTES
from committerd.queue.grouping import Group
from committerd.queue.port import Queue, TopicIdentity
from committerd.queue.race import Found, Race, race
from committerd.queue.start import refuse_other_topic
from committerd.stores.port import Answer, Created, Exists, ExternallyDecided, Tail, TakesSeveral
from committerd.table.backoff import Backoff
from committerd.table.landing import land
from committerd.table.prepare import Prepared
from committerd.table.versions import Standing, Table
from committerd.table.writing import complete, put_in_turn, write_referenced, write_transaction, write_transactions
from committerd.telemetry import STARTED_AGAIN, Telemetry
from committerd_common.paths import data_key

_log = logging.getLogger(__name__)

_ANSWER_AGE_SECONDS_MAX = 60.0
"""How old the listing may be that was made for a put; a cleanup keeps versions of the last hour at least."""
_AT_ONCE_SECONDS = 1.0
"""How long a put may take for what was read beside it to speak of the table that it met."""
_WITHDRAWN_SECONDS_MAX = 10.0
"""How long after its put a version may be withdrawn: later another committer may have answered its records."""
_DATA_FILES_LOOKED_AT = 16
_QUICK_CONFIRMED_SECONDS = 0.1
"""How old the last look at the version below may be before a put onto a store where a look takes next to no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormedVersion:
    """A version that is formed and not put yet: the group that it settles, every byte to write, and what follows."""

    group: Group
    prepared: Prepared
    own: Found
    """What it will say of the queue, to tell it from another's."""
    after: Head
    """The head once it is created."""
    newest: int = 0
    """`Pending.number` of the record that arrived last of those that it settles; 0 = it settles none."""
    dropped_marks: tuple[int, int] = (0, 0)
    """Marks of applications that it does not carry on: unused for 30 days, and beyond the most that it may carry."""
    identity: TopicIdentity | None = None
    """The topic's, asked for when the records were there already; None = to be asked for before it is put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What became of a put. The view has taken in `found`, the versions that are new in it, ascending."""

    race: Race
    """Whose the version is that was tried last."""
    found: Sequence[Found]
    made: Sequence[FormedVersion] = ()
    """The drafts that are versions now."""


class _Unknown:
    """Counts a put whose answer was lost, and its end: each once, so that the difference is what is open."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._open = False

    def began(self) -> None:
        if not self._open:
            self._telemetry.unknown_outcomes.add()
        self._open = True

    def settled(self, result: str) -> None:
        if self._open:
            self._telemetry.unknown_outcomes_settled.add(result=result)
        self._open = False


class Putter:
    """Puts drafts, one run after the other."""

    def __init__(self, queue: Queue, telemetry: Telemetry, *, dice: random.Random, recheck_seconds: float) -> None:
        self._queue = queue
        self._telemetry = telemetry
        self._dice = dice
        self._recheck_seconds = recheck_seconds

    async def put(self, drafts: Sequence[FormedVersion], view: View) -> Settlement:
        """Put drafts of which each is formed on the one before it, and move the view to what the table is then.

        They are put in turn, up to the first whose number another version has. The rest are dropped, as they were
        formed on a version that does not exist. Raises `RefusedToRun` when the topic is another one now, and
        `StartAgain` as the view does.
        """
        landing = RunLanding(
            drafts,
            view,
            queue=self._queue,
            telemetry=self._telemetry,
            backoff=lambda: Backoff(self._dice),
            recheck_seconds=self._recheck_seconds,
        )
        try:
            return await land(landing, Backoff(self._dice))
        except (StartAgain, CommitterError):
            landing.unknown.settled(STARTED_AGAIN)  # whoever reads table and queue anew finds what became of it
            raise


class RunLanding:
    """A run of drafts on the way to their numbers: a `committerd.table.landing.Landing`."""

    def __init__(
        self,
        drafts: Sequence[FormedVersion],
        view: View,
        *,
        queue: Queue,
        telemetry: Telemetry,
        backoff: Callable[[], Backoff],
        recheck_seconds: float,
    ) -> None:
        self.unknown = _Unknown(telemetry)
        self._left = self._tried = drafts
        """Those that are not versions yet, and those of the last put."""
        self._made: list[FormedVersion] = []
        self._view = view
        self._queue = queue
        self._telemetry = telemetry
        self._backoff = backoff
        self._recheck_seconds = recheck_seconds
        self._sent_at = view.monotonic()
        """When the last put was sent."""
        self._asked = False
        """Whether the topic was checked for an earlier try."""

    async def put(self) -> Settlement | None:
        """Put what is left; None when the number of the first that is left then is taken."""
        again, self._asked = self._asked, True
        await self._ready(ask=again)
        self._tried, self._sent_at = self._left, self._view.monotonic()
        answer: Answer = Exists()
        if await self._still_latest():
            answer = await self._create()
        if isinstance(answer, Created):
            return Settlement(race=Race.OURS, found=[one.own for one in self._made], made=self._made)
        self._left = self._left[:1]
        if isinstance(answer, Exists):
            return None
        raise answer

    async def read_back(self, *, taken: bool) -> Settlement | None:
        """Whose the version is that has the number of the first draft that is left."""
        draft = self._left[0]
        try:
            settlement = await self._read_back(draft, taken=taken)
        except StartAgain:
            if not taken:
                await self._withdraw_what_landed(self._tried)
            raise
        if settlement is None:
            return None
        self.unknown.settled(settlement.race.value)
        await self._complete(settlement.found)
        made = [*self._made, draft] if settlement.race is Race.OURS else self._made
        found = [*(one.own for one in self._made), *settlement.found]
        return Settlement(race=settlement.race, found=found, made=made)

    def failed(self, error: OutcomeUnknown | Unavailable, *, may_be_there: bool) -> None:
        if isinstance(error, OutcomeUnknown):
            self.unknown.began()
        self._tell(error)

    async def _create(self) -> Answer:
        """Put what is left in turn; returns the answer to the last that was tried.

        After a sleep of the process no further one is tried: see `View.still_latest`. Raises `StartAgain` when they
        were made in another table than the one that they were built on.
        """
        view, drafts, sent_at = self._view, self._left, self._view.monotonic()
        table, base, prepared = view.table, view.head.version, [draft.prepared for draft in drafts]
        transaction = Beside(partial(write_transaction, table, prepared[-1]))
        look = Beside(partial(table.standing, base))
        put = partial(
            put_in_turn, table, prepared, as_long_as=lambda: view.monotonic() - sent_at < self._recheck_seconds
        )
        beside = base and not isinstance(table.store, TakesSeveral)
        answers = await transaction.of(partial(look.of, put) if beside else put)
        self._telemetry.commit_attempts.add(len(answers))
        count = len(answers) - (not isinstance(answers[-1], Created))
        if count and base:
            at_once = look.done and view.monotonic() - sent_at <= _AT_ONCE_SECONDS
            standing = look.result if at_once else await self._standing()
            if standing is not Standing.SAME:
                await self._withdraw(drafts[:count], standing)
            view.require_same(standing)
        for draft in drafts[:count]:
            self.unknown.settled("created")
            view.follow(draft.after.created(), read_at=sent_at)
        self._made += drafts[:count]
        self._left = drafts[count:]
        if not self._left and not transaction.done:
            await self._write(partial(write_transaction, table, prepared[-1]))
        return answers[-1]

    async def _standing(self) -> Standing:
        """What became of the version that we have built on. Tries until the store answers."""
        found: list[Standing] = []

        async def look() -> None:
            found.append(await self._view.table.standing(self._view.head.version))

        await self._write(look)
        return found[0]

    async def _withdraw_what_landed(self, drafts: Sequence[FormedVersion]) -> None:
        """As `_withdraw`, of those that are there, when the answer to their put was lost."""
        standing = await self._standing()
        if standing is Standing.SAME:
            return
        landed: list[FormedVersion] = []

        async def look() -> None:
            landed[:] = [draft for draft in drafts if await _is_there(self._view.table, draft.prepared)]

        await self._write(look)
        if landed:
            await self._withdraw(landed, standing)

    async def _withdraw(self, drafts: Sequence[FormedVersion], standing: Standing) -> None:
        """Delete versions that landed in another table than the one they were built on: no reader could open it.

        Only when it is certain: the version below is another one, it is gone together with its data, or a version
        further below is another one. Only within `_WITHDRAWN_SECONDS_MAX` of the put: later a cleanup may have removed
        the version below, and another committer may have answered the records. Never when another writer has built on
        them.
        """
        made, withdrawn, backoff = [draft.prepared for draft in drafts], False, self._backoff()
        while self._view.monotonic() - self._sent_at <= _WITHDRAWN_SECONDS_MAX:
            try:
                withdrawn = await self._taken_out(made, standing)
                break
            except CommitterError as error:
                self._tell(error)
                await backoff.wait()
        _log.error(
            "commit.astray",
            extra={
                "version": made[0].version,
                "versions": len(made),
                "below": standing.value,
                "withdrawn": withdrawn,
                "keys": [prepared.key for prepared in made][:10],
            },
        )

    async def _taken_out(self, made: Sequence[Prepared], standing: Standing) -> bool:
        """Delete these versions where they are there. False: it is not certain, or another writer has built on them."""
        table = self._view.table
        if isinstance(table.store, ExternallyDecided):
            return False
        if not (
            standing is Standing.REPLACED
            or await self._data_is_gone()
            or await table.is_another_below(self._view.head.version)  # which has no data, perhaps
        ):
            return False
        # Those that were made before the table was deleted went with it: what is there now is not ours.
        there = [prepared for prepared in made if await _is_there(table, prepared)]
        if there and await table.latest_version() != there[-1].version:
            return False
        for prepared in reversed(there):
            await table.store.delete(prepared.key)
        return True

    async def _data_is_gone(self) -> bool:
        """Whether one of the first data files of the version that we have built on does not exist any more.

        One is enough, as no reader can open that version then. Some may be there again: producers can stage them twice.
        """
        manifest = self._view.head.manifest
        files = (file for fragment in (manifest.fragments if manifest else ()) for file in fragment.files)
        first = islice((file.path for file in files if not file.HasField("base_id")), _DATA_FILES_LOOKED_AT)
        return any([await self._view.table.store.head(data_key(path)) is None for path in first])

    async def _ready(self, *, ask: bool) -> None:
        """Check the topic while everything that a reader of these versions needs is written.

        That includes the transaction files of all but the last, so that only the newest version can lack its own.
        `ask`: ask for the topic's identity, whatever the drafts say of it.
        """
        drafts, table = self._left, self._view.table

        async def write() -> None:
            for draft in drafts:
                await write_referenced(table, draft.prepared)
            if len(drafts) > 1:
                await write_transactions(table, [draft.prepared for draft in drafts[:-1]])

        known = [draft.identity for draft in drafts]
        if ask or None in known:
            written = Beside(write)
            known = [await written.of(self._queue.identity)]
            if written.failed is not None:
                raise written.failed
        else:
            await write()
        for identity in known:
            if identity is not None:
                refuse_other_topic(self._view.head.position, identity)

    async def _complete(self, found: Sequence[Found]) -> None:
        """See that the transaction files of what was found are there: only then its records may be answered."""
        for one in found:
            if one.settled.ours:
                await self._write(partial(complete, self._view.table, one.settled.version))

    async def _write(self, work: Callable[[], Awaitable[None]]) -> None:
        """Try until it is done."""
        backoff = self._backoff()
        while True:
            try:
                return await work()
            except StoreUnavailable as error:
                self._tell(error)
                await backoff.wait()

    async def _still_latest(self) -> bool:
        """Whether the version that we build on is still the latest, read anew when we last knew too long ago.

        A number that a cleanup freed meanwhile would otherwise take our version in, below the latest. The process may
        have slept for hours anywhere, also while it waited for this very answer: it counts from when it was asked.
        """
        view = self._view
        if not await view.still_latest(age_max=self._recheck_seconds, asked_age_max=_ANSWER_AGE_SECONDS_MAX):
            return False
        quick = isinstance(view.table.store, TakesSeveral)
        if quick and view.monotonic() - view.confirmed_at > _QUICK_CONFIRMED_SECONDS:
            await view.confirm()
        return True

    async def _read_back(self, draft: FormedVersion, *, taken: bool) -> Settlement | None:
        """Whose the version is; None while nothing is there, or while it can't be read."""
        try:
            news = await self._view.peek()
        except StoreUnavailable as error:
            self._tell(error)
            return None
        if not news.found:
            if taken:
                raise StartAgain(f"version {draft.group.version} was taken, but is not there")
            return None
        result = race(draft.own, news.found)
        if result is not Race.OURS:
            self._telemetry.commit_retries.add(reason=result.value)
            _log.info(
                "commit.raced",
                extra={
                    "version": draft.group.version,
                    "latest": news.found[-1].settled.version,
                    "by": result.value,
                },
            )
        self._view.learn(news)
        return Settlement(race=result, found=news.found)

    def _tell(self, error: Exception) -> None:
        draft = (self._left or self._tried)[0]
        reason = "unknown" if isinstance(error, OutcomeUnknown) else getattr(error, "code", "other")
        self._telemetry.commit_retries.add(reason=reason)
        _log.warning(
            "commit.retried",
            extra={"version": draft.prepared.version, "reason": reason, "error": str(error)},
        )


async def _is_there(table: Table, prepared: Prepared) -> bool:
    """Whether this number holds this very version."""
    tail = await table.store.get_tail(prepared.key, TAIL_BYTES)
    return tail == Tail(body=prepared.body.tail(TAIL_BYTES), size=len(prepared.body))
