"""Puts a formed version to the store, and determines the result.

`table.landing` has the commit protocol. This module adds the parts that the queue needs. Before a put it checks that
the topic is the same, and that the head's version is still the latest and still the same; during the put it checks the
latter once more. `queue.race.race` decides whose version took a number.

The transaction file is written alongside the manifest, which also has the transaction inline, so readers can do without
it. Before a committer builds on a version of the queue it ensures that the file exists. So only the newest version can
lack it, after a crash.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from committerd.committer.current_head import SAME_SECONDS_MAX, CurrentHead
from committerd.committer.head import StartAgain
from committerd.committer.members import FormedVersion
from committerd.concurrency import Concurrently
from committerd.errors import CommitterError, PutUnknown, StoreUnavailable, Unavailable
from committerd.queue.port import Queue
from committerd.queue.race import Race, VersionSummary, race
from committerd.queue.start import refuse_other_topic
from committerd.stores.port import Exists
from committerd.table.backoff import Backoff, until_done
from committerd.table.landing import land
from committerd.table.manifests import end_of
from committerd.table.versions import VersionState
from committerd.table.writing import complete, put, write_referenced, write_transaction
from committerd.telemetry import STARTED_AGAIN, Telemetry

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """The result of putting a version. The current head already includes the versions `found`."""

    race: Race
    """Whose version has the number."""
    found: Sequence[VersionSummary]
    """The versions that are new to the head, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Putter:
    """Puts formed versions, one at a time."""

    queue: Queue
    telemetry: Telemetry
    rng: random.Random
    recheck_seconds: float
    note_error: Callable[[Exception], None] = lambda error: None
    """Called with each error after which a put is tried again."""
    astray: dict[int, bytes] = field(default_factory=dict)
    """By version: the end of a manifest of ours that may have landed in a table that it was not built on."""

    async def put(self, formed: FormedVersion, current: CurrentHead) -> RaceResult:
        """Put a version, and move the current head to the table's latest version.

        Raises `RefusedToRun` when the topic is another one now, and `StartAgain` as `CurrentHead` does.
        """
        landing = FormedLanding(self, formed, current, current.monotonic())
        try:
            return await land(landing, Backoff(self.rng))
        except (StartAgain, CommitterError):
            landing.resolved(STARTED_AGAIN)  # Start reads table and queue again and finds the result
            raise


@dataclass(slots=True)
class FormedLanding:
    """The `committerd.table.landing.Landing` of a formed version."""

    _putter: Putter
    _formed: FormedVersion
    _current: CurrentHead
    _sent_at: float
    """When the last put was sent, in monotonic seconds."""
    _is_first: bool = True
    """Whether no earlier attempt has checked topic and table."""
    _is_unknown: bool = False
    """Whether a put's result is unknown, and counted as such."""

    def resolved(self, result: str) -> None:
        """Count that an unknown put result is known now."""
        if self._is_unknown:
            self._putter.telemetry.unknown_outcomes_settled.add(result=result)
        self._is_unknown = False

    async def put(self) -> RaceResult | None:
        """Put the version; None when its number is taken.

        Raises `StartAgain` when it landed in a table other than the one it was built on.
        """
        await self._ready()
        if not await self._still_latest():
            return None
        self._is_first = False
        current, prepared = self._current, self._formed.prepared
        table, base = current.table, current.head.version
        sent_at = self._sent_at = current.monotonic()
        self._putter.telemetry.commit_attempts.add()
        transaction = Concurrently(partial(write_transaction, table, prepared))
        look = Concurrently(self._standing)
        put_manifest = partial(put, table, prepared)
        result = await transaction.of(partial(look.of, put_manifest) if base else put_manifest)
        if isinstance(result, Exists):
            return None
        if base:
            at_once = look.done and current.monotonic() - sent_at <= SAME_SECONDS_MAX
            standing = look.result if at_once else await self._until_done(self._standing)
            self._note_if_astray(standing)
            current.confirmed(standing, sent_at)
        self.resolved("created")
        current.follow(self._formed.after.created(), read_at=sent_at)
        if not transaction.done:
            await self._until_done(partial(write_transaction, table, prepared))
        return RaceResult(race=Race.OURS, found=[self._formed.own])

    async def read_back(self, *, taken: bool) -> RaceResult | None:
        """Find whose version has the number; None when it is free, or can't be read now."""
        try:
            news = await self._current.peek()
        except StoreUnavailable as error:
            self._report_failure(error)
            return None
        except StartAgain:
            if not taken and self._current.head.version:
                self._note_if_astray(await self._until_done(self._standing))
            raise
        if not news.found:
            if taken:
                raise StartAgain(f"version {self._formed.prepared.version} was taken, but is not there")
            return None
        result = race(self._formed.own, news.found)
        if result is not Race.OURS:
            self._putter.telemetry.commit_retries.add(reason=result.value)
            _log.info(
                "commit.raced",
                extra={
                    "version": self._formed.prepared.version,
                    "latest": news.found[-1].settled.version,
                    "by": result.value,
                },
            )
        self._current.learn(news)
        self.resolved(result.value)
        for one in news.found:  # only with their transaction files may their outcomes be published
            if one.settled.ours:
                await self._until_done(partial(complete, self._current.table, one.settled.version))
        return RaceResult(race=result, found=news.found)

    def failed(self, error: PutUnknown | Unavailable, *, may_be_there: bool) -> None:
        if isinstance(error, PutUnknown) and not self._is_unknown:
            self._putter.telemetry.unknown_outcomes.add()
            self._is_unknown = True
        self._report_failure(error)

    async def _ready(self) -> None:
        """Check the topic, and concurrently write all files that readers of the version need.

        Requests the topic's identity unless the version has it. Raises `RefusedToRun` for another topic.
        """
        write = partial(write_referenced, self._current.table, self._formed.prepared)
        identity = self._formed.identity if self._is_first else None
        if identity is None:
            written = Concurrently(write)
            identity = await written.of(self._putter.queue.identity)
            written.required()
        else:
            await write()
        refuse_other_topic(self._current.head.position, identity)

    async def _still_latest(self) -> bool:
        """Whether the version that we build on is still the latest, and the same; reads it if that was known too long
        ago.

        If it is not the latest, our version could get a number that a cleanup has freed, below the latest. The process
        may have slept for hours at any point, also during the request, so the age of the result counts from the
        request. While versions follow each other without a break, it still looks once in `recheck_seconds`: that leaves
        another writer, such as an operator, the time to commit between two of them. Raises `StartAgain` when the table
        is another one.
        """
        current = self._current
        age_max = self._putter.recheck_seconds
        if current.monotonic() - current.looked_at > age_max:
            age_max = -1.0
        if not await current.still_latest(age_max=age_max):
            return False
        if self._is_first and current.confirmed_seconds <= SAME_SECONDS_MAX:
            return True
        await current.confirm()
        return await current.still_latest(age_max=self._putter.recheck_seconds)  # the process may have slept meanwhile

    async def _standing(self) -> VersionState:
        """Whether the version that we built on still exists and is the same."""
        return await self._current.table.standing(self._current.head.version)

    def _note_if_astray(self, standing: VersionState) -> None:
        """Note the version if it may have landed in a table other than the one it was built on.

        `standing`: that of the version below. If it is gone, and the put was sent long ago, a cleanup may have removed
        it.
        """
        recent = self._current.monotonic() - self._sent_at <= SAME_SECONDS_MAX
        if standing is VersionState.REPLACED or (standing is VersionState.GONE and recent):
            prepared = self._formed.prepared
            self._putter.astray[prepared.version] = end_of(prepared.body)
            _log.error(
                "commit.on_another_table",
                extra={"version": prepared.version, "below": standing.value, "key": prepared.key},
            )

    async def _until_done(self, call: Callable[[], Awaitable[_T]]) -> _T:
        return await until_done(call, Backoff(self._putter.rng), self._report_failure)

    def _report_failure(self, error: Exception) -> None:
        self._putter.note_error(error)
        version = self._formed.prepared.version
        reason = "unknown" if isinstance(error, PutUnknown) else getattr(error, "code", "other")
        self._putter.telemetry.commit_retries.add(reason=reason)
        _log.warning("commit.retried", extra={"version": version, "reason": reason, "error": str(error)})
