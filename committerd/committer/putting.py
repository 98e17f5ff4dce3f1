"""Versions onto the store: put if absent, and find out what came of it.

Created is ours. Taken is read back: `rules.settle.race` says whose it is. A lost answer is unknown, and stays so
until the number is occupied: the same bytes are tried and read back, and nothing that was staged is deleted meanwhile.

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

import anyio

from committerd.committer.view import StartAgain, View
from committerd.concurrency import Beside
from committerd.errors import CommitterError, OutcomeUnknown, QueueUnavailable, StoreUnavailable
from committerd.format.manifest_file import TAIL_BYTES
from committerd.format.paths import data_key
from committerd.ports import Answer, Created, Exists, ExternallyDecided, Queue, Tail, TakesSeveral, TopicIdentity
from committerd.prepare import Prepared
from committerd.rules.grouping import Group
from committerd.rules.settle import Found, Race, race
from committerd.rules.startup import refuse_other_topic
from committerd.table import Standing, Table
from committerd.telemetry import STARTED_AGAIN, Telemetry
from committerd.writing import complete, put_in_turn, write_referenced, write_transaction, write_transactions

_log = logging.getLogger(__name__)

_BACKOFF_SECONDS_MIN = 0.05
_BACKOFF_SECONDS_MAX = 2.5
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
class Draft:
    """A version, complete: the group that it settles and every byte to write."""

    group: Group
    prepared: Prepared
    own: Found
    """What it will say of the queue, to tell it from another's."""
    newest: int = 0
    """`Pending.number` of the record that arrived last of those that it settles; 0 = it settles none."""
    dropped_marks: tuple[int, int] = (0, 0)
    """Marks of applications that it does not carry on: unused for 30 days, and beyond the most that it may carry."""
    identity: TopicIdentity | None = None
    """The topic's, asked for when the records were there already; None = to be asked for before it is put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What came of a put. The view has taken in `found`, the versions that are new in it, ascending."""

    race: Race
    """Whose the version is that was tried last."""
    found: Sequence[Found]
    made: Sequence[Draft] = ()
    """The drafts that are versions now."""


class Backoff:
    """Waits that double from 50 ms to 2.5 s, each drawn from its upper half."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._seconds = _BACKOFF_SECONDS_MIN

    async def wait(self) -> None:
        await anyio.sleep(self._seconds * self._dice.uniform(0.5, 1.0))
        self._seconds = min(self._seconds * 2, _BACKOFF_SECONDS_MAX)


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
    """Puts drafts, one after the other."""

    def __init__(self, queue: Queue, telemetry: Telemetry, *, dice: random.Random, recheck_seconds: float) -> None:
        self._queue = queue
        self._telemetry = telemetry
        self._dice = dice
        self._recheck_seconds = recheck_seconds

    async def put(self, drafts: Sequence[Draft], view: View) -> Settlement:
        """Try until it is known what version the first of these numbers holds that could not be created at once.

        Each draft is formed on the one before it, so those behind that one are left: what is there may be another's.
        Raises `RefusedToRun` when the topic is another one now, `StartAgain` as the view does.
        """
        unknown = _Unknown(self._telemetry)
        try:
            settlement = await self._settle(drafts, view, unknown)
        except (StartAgain, CommitterError):
            unknown.settled(STARTED_AGAIN)  # whoever reads table and queue anew finds what became of it
            raise
        return settlement

    async def _settle(self, drafts: Sequence[Draft], view: View, unknown: _Unknown) -> Settlement:
        backoff, left, made, asked = Backoff(self._dice), drafts, list[Draft](), False
        tried, sent_at = left, view.monotonic()
        while True:
            try:
                again, asked = asked, True
                await self._ready(left, view, ask=again)
                answer: Answer = Exists()
                tried, sent_at = left, view.monotonic()
                if await self._still_latest(view):
                    count, answer = await self._create(left, view, unknown)
                    made += left[:count]
                    left = left[count:]
                if isinstance(answer, Created):
                    return Settlement(race=Race.OURS, found=[one.own for one in made], made=made)
                left = left[:1]
                if not isinstance(answer, Exists):
                    raise answer
                taken = True
            except OutcomeUnknown as error:
                taken = False
                unknown.began()
                self._tell(left[0], error)
            except (StoreUnavailable, QueueUnavailable) as error:
                self._tell(left[0], error)
                await backoff.wait()
                continue
            try:
                settlement = await self._read_back(left[0], view, taken=taken)
            except StartAgain:
                if not taken:
                    await self._withdraw_what_landed(tried, view, sent_at=sent_at)
                raise
            if settlement is not None:
                unknown.settled(settlement.race.value)
                await self._complete(left[0], view, settlement.found)
                found = [*(one.own for one in made), *settlement.found]
                if settlement.race is Race.OURS:
                    made.append(left[0])
                return Settlement(race=settlement.race, found=found, made=made)
            await backoff.wait()

    async def _create(self, drafts: Sequence[Draft], view: View, unknown: _Unknown) -> tuple[int, Answer]:
        """Try each in turn; returns how many of them are versions now, and the answer to the last that was tried.

        After a sleep of the process no further one is tried: see `_still_latest`. Raises `StartAgain` when they were
        made in another table than the one that they were built on.
        """
        table, prepared, sent_at = view.table, [draft.prepared for draft in drafts], view.monotonic()
        transaction = Beside(partial(write_transaction, table, prepared[-1]))
        create = partial(put_in_turn, as_long_as=lambda: view.monotonic() - sent_at < self._recheck_seconds)
        look = Beside(partial(table.standing, view.base))
        put = partial(create, table, prepared)
        beside = view.base and not isinstance(table.store, TakesSeveral)
        answers = await transaction.of(partial(look.of, put) if beside else put)
        self._telemetry.commit_attempts.add(len(answers))
        count = len(answers) - (not isinstance(answers[-1], Created))
        if count and view.base:
            at_once = look.done and view.monotonic() - sent_at <= _AT_ONCE_SECONDS
            standing = look.result if at_once else await self._standing(drafts[0], view)
            if standing is not Standing.SAME:
                await self._withdraw(drafts[:count], view, standing, sent_at=sent_at)
            view.require_same(standing)
        for draft in drafts[:count]:
            unknown.settled("created")
            view.learn_own(draft.prepared.file, draft.own, read_at=sent_at)
        if count == len(drafts) and not transaction.done:
            await self._write(drafts[-1], partial(write_transaction, table, prepared[-1]))
        return count, answers[-1]

    async def _standing(self, draft: Draft, view: View) -> Standing:
        """What became of the version that we have built on. Tries until the store answers."""
        found: list[Standing] = []

        async def look() -> None:
            found.append(await view.table.standing(view.base))

        await self._write(draft, look)
        return found[0]

    async def _withdraw_what_landed(self, drafts: Sequence[Draft], view: View, *, sent_at: float) -> None:
        """As `_withdraw`, of those that are there, when the answer to their put was lost."""
        standing = await self._standing(drafts[0], view)
        if standing is Standing.SAME:
            return
        landed: list[Draft] = []

        async def look() -> None:
            landed[:] = [draft for draft in drafts if await _is_there(view.table, draft.prepared)]

        await self._write(drafts[0], look)
        if landed:
            await self._withdraw(landed, view, standing, sent_at=sent_at)

    async def _withdraw(self, drafts: Sequence[Draft], view: View, standing: Standing, *, sent_at: float) -> None:
        """Delete versions that landed in another table than the one they were built on: no reader could open it.

        Only when it is certain: the version below is another one, it is gone together with its data, or a version
        further below is another one. Only within `_WITHDRAWN_SECONDS_MAX` of the put: later a cleanup may have removed
        the version below, and another committer may have answered the records. Never when another writer has built on
        them.
        """
        made, withdrawn, backoff = [draft.prepared for draft in drafts], False, Backoff(self._dice)
        while view.monotonic() - sent_at <= _WITHDRAWN_SECONDS_MAX:
            try:
                withdrawn = await self._taken_out(made, view, standing)
                break
            except CommitterError as error:
                self._tell(drafts[0], error)
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

    async def _taken_out(self, made: Sequence[Prepared], view: View, standing: Standing) -> bool:
        """Delete these versions where they are there. False: it is not certain, or another writer has built on them."""
        table = view.table
        if isinstance(table.store, ExternallyDecided):
            return False
        if not (
            standing is Standing.REPLACED
            or await self._data_is_gone(view)
            or await table.is_another_below(view.base)  # which has no data, perhaps
        ):
            return False
        # Those that were made before the table was deleted went with it: what is there now is not ours.
        there = [prepared for prepared in made if await _is_there(table, prepared)]
        if there and await table.latest_version() != there[-1].version:
            return False
        for prepared in reversed(there):
            await table.store.delete(prepared.key)
        return True

    async def _data_is_gone(self, view: View) -> bool:
        """Whether one of the first data files of the version that we have built on is not there any more.

        One is enough, as no reader can open that version then. Some may be there again: producers can stage them twice.
        """
        assert view.latest is not None
        files = (file for fragment in view.latest.fragments for file in fragment.files)
        first = islice((file.path for file in files if not file.HasField("base_id")), _DATA_FILES_LOOKED_AT)
        return any([await view.table.store.head(data_key(path)) is None for path in first])

    async def _complete(self, draft: Draft, view: View, found: Sequence[Found]) -> None:
        """See that the transaction files of what was found are there: only then its records may be answered."""
        for one in found:
            if one.settled.ours:
                await self._write(draft, partial(complete, view.table, one.settled.version))

    async def _write(self, draft: Draft, work: Callable[[], Awaitable[None]]) -> None:
        """Try until it is done."""
        backoff = Backoff(self._dice)
        while True:
            try:
                return await work()
            except StoreUnavailable as error:
                self._tell(draft, error)
                await backoff.wait()

    async def _still_latest(self, view: View) -> bool:
        """Whether the version that we build on is still the latest, read anew when we last knew too long ago.

        A number that a cleanup freed meanwhile would otherwise take our version in, below the latest. The process may
        have slept for hours anywhere, also while it waited for this very answer: it counts from when it was asked.
        """
        age_max = self._recheck_seconds
        while view.monotonic() - view.read_at > age_max:
            read_at = view.monotonic()
            newest = await view.table.latest_version() or 0
            if newest < view.base:
                raise StartAgain(f"the table went back from version {view.base} to {newest}")
            if newest > view.base:
                return False
            await view.confirm()
            view.read_at, age_max = read_at, _ANSWER_AGE_SECONDS_MAX
        if isinstance(view.table.store, TakesSeveral) and (
            view.monotonic() - view.confirmed_at > _QUICK_CONFIRMED_SECONDS
        ):
            await view.confirm()
        return True

    async def _ready(self, drafts: Sequence[Draft], view: View, *, ask: bool) -> None:
        """Check the topic while everything that a reader of these versions needs is written.

        With it the transaction files of all but the last, so that only the newest version can lack its own. `ask`: for
        the topic's identity, whatever the drafts say of it.
        """
        assert view.position is not None

        async def write() -> None:
            for draft in drafts:
                await write_referenced(view.table, draft.prepared)
            if len(drafts) > 1:
                await write_transactions(view.table, [draft.prepared for draft in drafts[:-1]])

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
                refuse_other_topic(view.position, identity)

    async def _read_back(self, draft: Draft, view: View, *, taken: bool) -> Settlement | None:
        """Whose the version is; None while nothing is there, or while it can't be read."""
        try:
            found = await view.peek()
        except StoreUnavailable as error:
            self._tell(draft, error)
            return None
        if not found:
            if taken:
                raise StartAgain(f"version {draft.group.version} was taken, but is not there")
            return None
        result = race(draft.own, found)
        if result is not Race.OURS:
            self._telemetry.commit_retries.add(reason=result.value)
            _log.info(
                "commit.raced",
                extra={
                    "version": draft.group.version,
                    "latest": found[-1].settled.version,
                    "by": result.value,
                },
            )
        view.learn(found)
        return Settlement(race=result, found=found)

    def _tell(self, draft: Draft, error: Exception) -> None:
        reason = "unknown" if isinstance(error, OutcomeUnknown) else getattr(error, "code", "other")
        self._telemetry.commit_retries.add(reason=reason)
        _log.warning(
            "commit.retried",
            extra={"version": draft.group.version, "reason": reason, "error": str(error)},
        )


async def _is_there(table: Table, prepared: Prepared) -> bool:
    """Whether this number holds this very version."""
    tail = await table.store.get_tail(prepared.key, TAIL_BYTES)
    return tail == Tail(body=prepared.body.tail(TAIL_BYTES), size=len(prepared.body))
