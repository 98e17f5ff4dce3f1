"""Assembles versions: takes the records whose facts are there, runs the decision, and fetches what else it needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import anyio

from committerd.committer.containing import Containment, require_contained
from committerd.committer.deciding import Decider, Queued
from committerd.committer.head import Head
from committerd.committer.intake import Intake, Pending
from committerd.committer.members import FormedVersion
from committerd.committer.prefetching import DECODED_BYTES_MAX, Prefetched, Prefetcher
from committerd.committer.self_trial import Raising, own_changes, require_room
from committerd.committer.stages import Period
from committerd.lance.operations.permissions import ALL_OPERATIONS, Permissions
from committerd.queue.dedupe import Refused
from committerd.queue.grouping import work_of_version
from committerd.queue.port import Record
from committerd.queue.reservations import Reservations
from committerd.queue.turns import count_beyond
from committerd.stretches import GiveWay, to_all
from committerd.table.fetching import BuildWithPylance, Fetcher, OpenStore, run
from committerd.table.heavy_work import HeavyWork, at_once
from committerd.table.judge import require_buildable_by_any
from committerd.table.needs import NOTHING_KNOWN, Enough, Need, Stage, Steps
from committerd.telemetry import Telemetry
from committerd_common.request import Request

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Assembler:
    """Assembles versions of one table without writing them.

    Methods may raise an `Unavailable`, `UnsupportedTable` or `CorruptTable`.
    """

    decider: Decider
    prefetcher: Prefetcher
    telemetry: Telemetry
    open_store: OpenStore | None = None
    """Opens the store of a base path or of the source of a Clone; None = those can't be read."""
    pylance: BuildWithPylance | None = None
    """Builds versions where committerd's knowledge ends; None = `Sources.knowledge` is not set."""
    work: HeavyWork = at_once
    """Runs steps that may take long."""
    give_way: GiveWay = to_all
    _records_max: int | None = None
    """The most records in a version, after a group could not be built; None = as many as the settings allow.

    It keeps the search for the records at fault cheap, however many there are.
    """

    @property
    def containment(self) -> Containment:
        """Whose fault errors are."""
        return self.decider.containment

    async def assemble(self, head: Head, intake: Intake, *, round_left: Set[int] = frozenset()) -> FormedVersion | None:
        """Assemble the next version; None when no record waits, or the first one waits for the table's older history.

        During a hold (`Reservations.hold`) only re-executions are judged, and only those that have reserved everything
        are committed. Others that conflict are refused, so that their next attempt comes in the hold.
        `round_left`: the offsets of the present round that still wait; empty = a round begins. No record joins a round
        that has begun, so none waits for more than the versions of two rounds. If all that is left of it is refused, it
        is over, and the version is one of the next round.
        """
        began, options = anyio.current_time(), self.decider.options
        # A snapshot: while we read, more records may arrive, or the assignment may end.
        waiting = intake.first(options.most + 1, behind=head.position)
        retries, reservations = intake.waiting_retries(), intake.reservations
        hold = reservations.hold
        retries.sort(key=lambda pending: pending.retry_of not in hold)  # a stable sort: the others by offset
        left = intake.records(round_left) if round_left and not hold else {}
        begun = [pending for offset, pending in left.items() if not head.position.passes(offset)]
        # As many re-executions go before the others as the position can carry offsets that are settled ahead.
        upcoming = [pending.offset for pending in waiting]
        room = head.position.room
        first = [p for p in retries if not head.position.passes(p.offset)]
        first = first[: max(room - count_beyond(left.keys(), upcoming), 0)]
        others = waiting
        if not hold and not self.containment.judges_alone and self._takes_turns(intake, waiting):
            chosen = intake.turns.chosen(
                options.most,
                own_work=_own_work(head),
                passes=head.position.passes,
                is_ready=self.prefetcher.is_ready,
                work_of=self.prefetcher.work_of,
            )
            beyond = count_beyond({p.offset for p in (*begun, *chosen)}, upcoming)
            if chosen and len(first) + beyond <= room:
                others = list(chosen)
        in_turn = {p.offset: p for p in (*begun, *first, *(() if hold else others))}
        ordered = self.containment.to_judge(list(in_turn.values()))
        if not ordered:
            return None
        line = None if begun or first or hold else intake.turns.line_of_all([one.offset for one in ordered])
        is_enough = None if line is None else partial(self._is_enough, head, intake, line)
        try:
            decided = await self._decided(
                head, ordered, waiting, begun=len(begun), reservations=reservations, is_enough=is_enough
            )
        except Exception as error:
            require_contained(error)  # raises `MachineUnavailable` instead of an error of the machine
            raise
        if decided is None:
            return None
        settled = {entry.offset for entry in decided.own.settled.entries()}
        intake.turns.formed(settled, passes=head.position.passes)
        count = len(decided.own.settled.members)
        if self.containment.judges_alone:
            self._records_max = 1
        if self._records_max is not None and count >= self._records_max:
            doubled = self._records_max * 2
            self._records_max = doubled if doubled < options.limits.records else None
        self.containment.formed(count)
        if self.containment.in_doubt:
            self.containment.tried(await self.self_trial(head))
        return replace(decided, decided=Period(began, anyio.current_time()))

    def _takes_turns(self, intake: Intake, waiting: Sequence[Pending]) -> bool:
        """Whether the version takes from producers in turn: more records wait than it may hold, or they are more work.

        `waiting`: the first of the records that wait, at least as many as the version may hold if there are so many.
        """
        most = self.decider.options.most
        if intake.takes_turns(most):
            return True
        return intake.turns.are_several and sum(map(self.prefetcher.work_of, waiting)) > most

    def _is_enough(self, head: Head, intake: Intake, line: bytes, work: int) -> bool:
        """Whether a version with so much work, all of this line, is to end because others wait for it."""
        if work < intake.turns.enough(line, self.decider.options.most, own_work=_own_work(head)):
            return False
        return intake.turns.is_other_ready(line, passes=head.position.passes, is_ready=self.prefetcher.is_ready)

    async def self_trial(self, head: Head) -> Exception | None:
        """Decode, judge and build changes of our own on this head, without a put; returns what fails.

        A change that is refused, because the table can't take it, is no failure.
        """
        try:
            await self._try_itself(head)
        except Exception as error:  # noqa: BLE001  # the caller decides whose fault it is
            _log.error("self_trial.failed", extra={"error": repr(error)}, exc_info=error)
            return error
        _log.info("self_trial.passed", extra={"version": head.version})
        return None

    async def _try_itself(self, head: Head) -> None:
        require_room()
        if head.manifest is None:
            return
        await head.table.standing(head.version)
        decider, containment = self.decider, Raising()
        options = replace(decider.options, verify_files="never", allowed=Permissions(operations=ALL_OPERATIONS))
        decider = replace(decider, options=options, containment=containment, before_table={})
        decoder = replace(self.prefetcher.decoder, containment=containment)
        offset = max([head.position.next_offset, *head.position.settled.bounds]) + 1
        now_ms = int(decider.sources.wall_clock().timestamp() * 1000)
        for change in own_changes(head.manifest):
            change.uuid, change.read_version = str(decider.sources.new_uuid()), head.version
            value = change.SerializeToString()
            pending = Pending(Record(offset=offset, value=value, timestamp_ms=now_ms), len(value))
            known = _known(pending, await decoder.decode(pending.record, head.table))
            await self._run(decider.decide(head, Queued(ordered=[known], waiting=[pending])), head)

    async def _decided(
        self,
        head: Head,
        ordered: Sequence[Pending],
        waiting: Sequence[Pending],
        *,
        begun: int,
        reservations: Reservations,
        is_enough: Callable[[int], bool] | None,
    ) -> FormedVersion | None:
        """Decide about the records whose facts are there; if these settle nothing, wait for the facts of more.

        `is_enough`: answers `Enough`; None = the version ends for nobody.
        """
        refused = self.containment.refused_alone(ordered[0])
        ready = await self.prefetcher.ready(ordered) if refused is None else [_known(ordered[0], refused)]
        while True:
            queued = Queued(ordered=ready, waiting=waiting, begun=begun, reservations=reservations)
            steps = self.decider.decide(head, queued, most=self._records_max)
            decided = await self._run(steps, head, is_enough=is_enough)
            if isinstance(decided, int):
                self._records_max = decided
                continue
            if decided is not None or len(ready) == len(ordered) or _is_much(ready):
                return decided
            # All of these wait for the table's history, and those behind them may go on.
            ready += await self.prefetcher.ready(ordered[len(ready) :])

    async def assemble_create(self, head: Head, pending: Pending, *, is_first: bool) -> FormedVersion | Refused:
        """As `Decider.decide_create`."""
        began, decoded = anyio.current_time(), await self.decode(pending, head)
        steps = self.decider.decide_create(head, _known(pending, decoded), is_first=is_first)
        formed = await self._run(steps, head)
        if isinstance(formed, Refused):
            return formed
        return replace(formed, decided=Period(began, anyio.current_time()))

    async def require_buildable(self, head: Head) -> None:
        """Return if a version can be built on the head. Raises `UnsupportedTable` or `CorruptTable`."""
        steps = require_buildable_by_any(head.manifest, scheme=head.table.scheme, sources=self.decider.sources)
        await self._run(steps, head)

    async def assemble_keys(self, head: Head) -> FormedVersion:
        """As `Decider.decide_keys`."""
        return await self._run(self.decider.decide_keys(head), head)

    async def decode(self, pending: Pending, head: Head) -> Request | Refused:
        """Decode a record, or say why it can't be."""
        return await self.prefetcher.decoder.decode(pending.record, head.table)

    async def _run(self, steps: Steps[_T], head: Head, *, is_enough: Callable[[int], bool] | None = None) -> _T:
        """Run a decision, and observe how long its stages take. `is_enough`: as for `_decided`."""
        fetcher = Fetcher(head.table, self.open_store, self.pylance, give_way=self.give_way)
        stage, began = "", anyio.current_time()

        async def fetch(need: Need) -> Any:
            nonlocal stage, began
            if isinstance(need, Enough) and is_enough is not None:
                return is_enough(need.work)
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


def _own_work(head: Head) -> int:
    """How long a version on this head takes beside its records, as `work_of_version`."""
    return 0 if head.manifest is None else work_of_version(len(head.manifest.fragments))


def _known(pending: Pending, decoded: Request | Refused) -> Prefetched:
    """A record for which nothing was fetched."""
    now = anyio.current_time()
    return Prefetched(pending, decoded, NOTHING_KNOWN, now, now)
