"""Assembles versions: takes the records whose facts are there, runs the decision, and fetches what else it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio

from committerd.committer.containing import Containment, require_contained
from committerd.committer.deciding import Decider, Queued
from committerd.committer.head import Head
from committerd.committer.intake import Intake, Pending
from committerd.committer.members import FormedVersion
from committerd.committer.prefetching import DECODED_BYTES_MAX, Prefetched, Prefetcher
from committerd.committer.self_trial import self_trial
from committerd.queue.dedupe import Refused
from committerd.queue.position import AHEAD_MAX
from committerd.queue.reservations import Reservations
from committerd.table.fetching import Fetcher, OpenStore, run
from committerd.table.heavy_work import Work, at_once
from committerd.table.needs import NOTHING_KNOWN, Need, Stage, Steps
from committerd.telemetry import Telemetry
from committerd_common.request import Request

_T = TypeVar("_T")


@dataclass(slots=True)
class _RecordLimit:
    """A reduced limit of records per version, after a group could not be built.

    It keeps the search for the records at fault cheap, however many there are.
    """

    records: int | None = None
    """Maximum number of records in a version; None = as many as the settings allow."""

    def succeeded(self, count: int, *, limit: int) -> None:
        """Raise the limit again after `count` records shared a version. `limit`: as many as the settings allow."""
        if self.records is not None and count >= self.records:
            self.records = None if self.records * 2 >= limit else self.records * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembler:
    """Assembles versions of one table without writing them.

    Methods may raise an `Unavailable`, `UnsupportedTable` or `CorruptTable`.
    """

    decider: Decider
    prefetcher: Prefetcher
    telemetry: Telemetry
    open_store: OpenStore | None = None
    """Opens the store of a base path or of the source of a Clone; None = those can't be read."""
    work: Work = at_once
    """Runs steps that may take long."""
    _limit: _RecordLimit = field(default_factory=_RecordLimit)

    @property
    def containment(self) -> Containment:
        """Whose fault errors are."""
        return self.decider.containment

    async def assemble(self, head: Head, intake: Intake, *, round_end: int | None = None) -> FormedVersion | None:
        """Assemble the next version; None when no record waits, or the first one waits for the table's older history.

        During a hold (`Reservations.hold`) only re-executions are judged, and only those that have reserved everything
        are committed. Others that conflict are refused, so that their next attempt comes in the hold.
        `round_end`: the last offset of the present round; None = a round begins. No record joins a round that has
        begun, so none waits for more than the versions of two rounds. If all that is left of it is refused, it is over,
        and the version is one of the next round.
        """
        options = self.decider.options
        # A snapshot: while we read, more records may arrive, or the assignment may end.
        waiting = intake.first(options.most + 1, behind=head.position)
        retries, reservations = intake.waiting_retries(), intake.reservations
        hold = reservations.hold
        retries.sort(key=lambda pending: pending.retry_of not in hold)  # a stable sort: the others by offset
        begun = [p for p in waiting if round_end is not None and not hold and p.offset <= round_end]
        # As many re-executions go before the others as the position can carry offsets that are settled ahead.
        room = max(AHEAD_MAX - len(head.position.settled), 0)
        first = [p for p in retries if not head.position.passes(p.offset)][:room]
        in_turn = {p.offset: p for p in (*begun, *first, *(() if hold else waiting))}
        ordered = self.containment.to_judge(list(in_turn.values()))
        if not ordered:
            return None
        try:
            decided = await self._decided(head, ordered, waiting, begun=len(begun), reservations=reservations)
        except Exception as error:
            require_contained(error)  # raises `MachineUnavailable` instead of an error of the machine
            raise
        if decided is None:
            return None
        count = len(decided.own.settled.members)
        if self.containment.judges_alone:
            self._limit.records = 1
        self._limit.succeeded(count, limit=options.limits.records)
        self.containment.formed(count)
        if self.containment.in_doubt:
            self.containment.tried(await self.self_trial(head))
        return decided

    async def self_trial(self, head: Head) -> Exception | None:
        """Decode, judge and build changes of our own on this head, without a put; returns what fails."""
        return await self_trial(self.decider, self.prefetcher.decoder, head, partial(self._run, head=head))

    async def _decided(
        self,
        head: Head,
        ordered: Sequence[Pending],
        waiting: Sequence[Pending],
        *,
        begun: int,
        reservations: Reservations,
    ) -> FormedVersion | None:
        refused = self.containment.refused_alone(ordered[0])
        ready = await self.prefetcher.ready(ordered) if refused is None else [_known(ordered[0], refused)]
        while True:
            queued = Queued(ordered=ready, waiting=waiting, begun=begun, reservations=reservations)
            decided = await self._run(self.decider.decide(head, queued, most=self._limit.records), head)
            if isinstance(decided, int):
                self._limit.records = decided
                continue
            if decided is not None or len(ready) == len(ordered) or _is_much(ready):
                return decided
            # All of these wait for the table's history, and those behind them may go on.
            ready += await self.prefetcher.ready(ordered[len(ready) :])

    async def assemble_create(self, head: Head, pending: Pending, *, is_first: bool) -> FormedVersion | Refused:
        """As `Decider.decide_create`."""
        decoded = await self.decode(pending, head)
        return await self._run(self.decider.decide_create(head, _known(pending, decoded), is_first=is_first), head)

    async def assemble_keys(self, head: Head) -> FormedVersion:
        """As `Decider.decide_keys`."""
        return await self._run(self.decider.decide_keys(head), head)

    async def decode(self, pending: Pending, head: Head) -> Request | Refused:
        """Decode a record, or say why it can't be."""
        return await self.prefetcher.decoder.decode(pending.record, head.table)

    async def _run(self, steps: Steps[_T], head: Head) -> _T:
        """Run a decision, and observe how long its stages take."""
        fetcher, stage, began = Fetcher(head.table, self.open_store), "", anyio.current_time()

        async def fetch(need: Need) -> Any:
            nonlocal stage, began
            if not isinstance(need, Stage):
                return await fetcher(need)
            if stage:
                self.telemetry.commit_duration.observe(anyio.current_time() - began, stage=stage)
            stage, began = need.name, anyio.current_time()
            return None

        return await run(steps, fetch, work=self.work)


def _is_much(ready: Sequence[Prefetched]) -> bool:
    """Whether no more records may be decoded at the same time."""
    return sum(one.bytes for one in ready) > DECODED_BYTES_MAX


def _known(pending: Pending, decoded: Request | Refused) -> Prefetched:
    """A record for which nothing was fetched."""
    return Prefetched(pending, decoded, NOTHING_KNOWN, anyio.current_time())
