"""Waits for a table, or for a create that can be committed: without a table no record can have an outcome.

Records are checked for creates and dropped. Once there is a table, Start makes the queue deliver them again. Refusals
that hold whatever table comes are published at once (`queue/before_table`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from committerd.committer.assembling import Assembler
from committerd.committer.current_head import CurrentHead
from committerd.committer.head import StartAgain
from committerd.committer.intake import Intake, Pending
from committerd.committer.members import FormedVersion
from committerd.committer.outcome_maker import OutcomeMaker
from committerd.committer.publisher import Publisher
from committerd.committer.state import State
from committerd.queue.before_table import may_be_published
from committerd.queue.dedupe import Refused
from committerd.table.heavy_work import LIGHT_BYTES_MAX
from committerd.table.refusals import INTERNAL_ERROR
from committerd_common.request import Request

_log = logging.getLogger(__name__)

_LOG_SECONDS = 60.0
_LOOK_SECONDS = 1.0
"""Interval between two looks for creates that are due again."""
_CREATES_MAX = 256
_CREATES_BYTES_MAX = 32 * 1024 * 1024
"""The maximum number and bytes of failed creates that are kept. The oldest are dropped first. They are kept because
their files may still appear.
"""
_TRY_SECONDS = 10.0
"""Interval between retries of the kept creates."""
_READ_AGAIN_SECONDS = 60.0
"""Time without a table after which the log is read from its start again, if creates were dropped."""


class _Creates:
    """Transactions that create a table and could not be committed when they arrived; retried at intervals."""

    def __init__(self) -> None:
        self._kept: deque[Pending] = deque()
        self._bytes = 0
        self._began = self._tried = anyio.current_time()
        self._lost = False

    def due(self) -> list[Pending]:
        """Return all kept creates when their retry is due, else none."""
        if anyio.current_time() - self._tried < _TRY_SECONDS:
            return []
        self._tried = anyio.current_time()
        return list(self._kept)

    def keep(self, create: Pending) -> None:
        """Keep a create; drop the oldest ones beyond the bounds."""
        self._kept.append(create)
        self._bytes += create.size
        while len(self._kept) > _CREATES_MAX or (self._bytes > _CREATES_BYTES_MAX and len(self._kept) > 1):
            self._bytes -= self._kept.popleft().size
            self._lost = True

    def read_again(self) -> bool:
        """Whether creates were dropped and the log is due to be read again."""
        return self._lost and anyio.current_time() - self._began >= _READ_AGAIN_SECONDS


@dataclass(slots=True, kw_only=True)
class TableWait:
    """Waits for a table in the name of the committer's loop."""

    intake: Intake
    assembler: Assembler
    outcome_maker: OutcomeMaker
    publisher: Publisher
    state: State
    recheck_seconds: float
    first: Pending | None = None
    """The first record that waits for a table; None = none waits, or there is a table."""

    async def version_1(self, current: CurrentHead, goes_on: Callable[[], bool]) -> FormedVersion | None:
        """Return the version that creates the table, as soon as a record brings it; None when `goes_on` says no.

        Raises `StartAgain` when a table appears, or when records must be read again, and `Unavailable`.
        """
        queue, telemetry = self.outcome_maker.queue, self.outcome_maker.telemetry
        telemetry.waiting_for_table.set(1)
        creates, failed = _Creates(), set[int]()
        waiting, logged_at, looked_at = 0, float("-inf"), anyio.current_time()
        try:
            while goes_on():
                self.intake.require_fetching()
                arrived = list(self.intake.pending)
                if arrived and self.first is None:
                    self.first = arrived[0]
                fresh = [pending for pending in arrived if await self._is_create(pending, current)]
                waiting += len(arrived)
                room = self.intake.drop(arrived)
                if arrived:
                    await queue.done(current.generation, *room)
                uri = current.table.uri
                self.state.show("waiting_for_table", f"{waiting} records wait: there is no table at {uri}")
                if waiting and anyio.current_time() - logged_at > _LOG_SECONDS:
                    logged_at = anyio.current_time()
                    _log.warning("table.missing", extra={"uri": uri, "waiting": waiting})
                for create in [*creates.due(), *fresh]:
                    if create.offset in failed:
                        continue
                    is_first = self.first is not None and create.offset == self.first.offset
                    formed = await self.assembler.assemble_create(current.head, create, is_first=is_first)
                    if isinstance(formed, FormedVersion):
                        return formed
                    await self._refuse(create, formed, current)
                    if formed.reason == INTERNAL_ERROR:
                        failed.add(create.offset)  # it is logged and counted once
                for create in fresh:
                    if create.offset not in self.assembler.decider.before_table:
                        creates.keep(create)
                if creates.read_again():
                    raise StartAgain("there were more creates than can be kept in memory")
                if anyio.current_time() - looked_at >= self.recheck_seconds:
                    looked_at = anyio.current_time()
                    await current.peek()
                await self.intake.changed(timeout=_LOOK_SECONDS)
            return None
        finally:
            self.first = None
            telemetry.waiting_for_table.set(0)

    async def _refuse(self, pending: Pending, decision: Refused, current: CurrentHead) -> None:
        """Publish a refusal that holds whatever table comes; once for each record.

        Raises `StartAgain` if the record may be of another topic than the one that Start has found.
        """
        assembler, maker = self.assembler, self.outcome_maker
        known = assembler.decider.before_table
        if pending.offset in known or not may_be_published(decision, known=known):
            return
        if await maker.queue.identity() != current.head.position.identity:
            raise StartAgain("the topic was deleted and recreated")
        request = await assembler.decode(pending, current.head)
        refusal = assembler.decider.refusal(pending, request if isinstance(request, Request) else None, decision)
        known[pending.offset] = refusal
        await self.publisher.give(
            maker.make_before_table(refusal, current.head.position), generation=current.generation
        )

    async def _is_create(self, pending: Pending, current: CurrentHead) -> bool:
        """Whether a record may create the table. It is decoded again when it is tried: many of them may wait."""
        if pending.size > LIGHT_BYTES_MAX:
            await anyio.lowlevel.checkpoint()  # lets other tasks run
        request = await self.assembler.decode(pending, current.head)
        if isinstance(request, Refused):
            await self._refuse(pending, request, current)
            return False
        return request.operation in ("overwrite", "clone")
