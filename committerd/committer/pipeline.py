"""The next version, formed while the one before it is put.

Only where a full group waits: whatever arrives meanwhile would not have joined it. It is formed on what the put is
expected to make. Where that came true, and soon, it is put next; else it is thrown away, as forming changes nothing. A
version whose files are still being written can't be built upon: behind such a one nothing is formed ahead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
from anyio.abc import TaskGroup

from committerd.committer.beside import Beside
from committerd.committer.forming import Former
from committerd.committer.intake import Intake
from committerd.committer.putting import Draft, Putter, Settlement
from committerd.committer.view import View
from committerd.errors import CommitterError
from committerd.ports import TopicIdentity
from committerd.rules.settle import Race

_FRESH_SECONDS = 1.0
"""How late a draft may be put that was formed ahead: records in it have deadlines."""


class _Ahead:
    """One group that is formed ahead."""

    def __init__(self, view: View) -> None:
        self.view = view
        """As it will be."""
        self.draft: Draft | None = None
        self.formed_at = view.monotonic()
        """When it was begun."""
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()


class Pipeline:
    """Puts drafts and forms those that follow, in one task each."""

    def __init__(
        self, former: Former, putter: Putter, intake: Intake, *, identity: Callable[[], Awaitable[TopicIdentity]]
    ) -> None:
        self._former = former
        self._putter = putter
        self._intake = intake
        self._identity = identity
        self._tasks: TaskGroup | None = None
        self._ahead: _Ahead | None = None
        self._known: tuple[int, TopicIdentity] | None = None
        """How many records had arrived when the broker was asked for the topic's identity, and its answer."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Groups may be formed ahead in here; what is left of them at the end is dropped."""
        error: Exception | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield
            except Exception as raised:  # noqa: BLE001  # raised below, as it is and not as a group
                error = raised
            finally:
                self._tasks, self._ahead = None, None
                tasks.cancel_scope.cancel()
        if error is not None:
            raise error

    async def form(self, view: View, *, held_for: Container[str] | None = None) -> Draft | None:
        """As `Former.form`, and with the identity of the topic, asked for when all records of the draft were here.

        So they are of the topic that it says, or of one that was there before, which is noticed; what becomes of the
        topic afterwards changes nothing about them. One answer therefore does for all drafts of records that had
        arrived by then.
        """
        if not (self._intake.pending if held_for is None else self._intake.waiting_retries()):
            return None
        forming = partial(self._former.form, view, self._intake, held_for=held_for)
        if self._known_of(self._newest_expected(view, held_for)) is not None:
            draft = await forming()
        else:
            arrived, asked = self._intake.arrived, Beside(self._identity)
            draft = await asked.of(forming)
            if draft is None:
                return None
            if asked.failed is not None:
                raise asked.failed
            self._known = arrived, asked.result
        return None if draft is None else replace(draft, identity=self._known_of(draft.newest))

    async def put(self, draft: Draft, view: View) -> Settlement:
        """As `Putter.put`."""
        self._drop()
        version, settlement = draft.group.version, None
        if self._tasks is not None and self._full_group_waits(draft):
            view.table.expect(draft.prepared.file, before=draft.prepared.before)
            self._ahead = _Ahead(view.ahead(draft.prepared.file, draft.own))
            self._tasks.start_soon(self._form, self._ahead)
        try:
            settlement = await self._putter.put(draft, view)
        finally:
            ahead = self._ahead
            if ahead is not None and (settlement is None or settlement.race is not Race.OURS):
                self._drop()
                # It may be at a read that can't be interrupted, and note what it found once that returns.
                await ahead.ended.wait()
                view.table.expect_no_more(version)
        return settlement

    async def take(self, view: View) -> Draft | None:
        """What was formed ahead, if it follows what the table is now; None when it has to be formed anew."""
        ahead = self._ahead
        if ahead is None:
            return None
        await ahead.ended.wait()
        self._drop()
        expected = ahead.view
        if view.latest is not expected.latest or (view.position, view.marks) != (expected.position, expected.marks):
            return None
        if view.monotonic() - ahead.formed_at > _FRESH_SECONDS:
            return None
        return ahead.draft

    def _known_of(self, number: int) -> TopicIdentity | None:
        """The topic's identity as it was asked for when that record was here already."""
        return self._known[1] if self._known is not None and number <= self._known[0] else None

    def _newest_expected(self, view: View, held_for: Container[str] | None) -> int:
        """The number of the last record that may be in the next draft, as far as that can be said before."""
        limits, waiting = self._former.options.limits, self._intake.pending
        if held_for is not None or self._intake.waiting_retries():
            return self._intake.arrived
        assert view.position is not None
        passed = max(view.position.next_offset - waiting[0].offset, 0)
        most = limits.records if limits.coalesce_appends else 1
        return waiting[min(passed + most, len(waiting)) - 1].number

    def _drop(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.scope.cancel()

    def _full_group_waits(self, draft: Draft) -> bool:
        prepared = draft.prepared
        if prepared.before is None or prepared.files or prepared.copies or self._intake.waiting_retries():
            return False
        limits = self._former.options.limits
        waiting = len(self._intake.pending) - draft.group.settles
        return waiting >= (limits.records if limits.coalesce_appends else 1)

    async def _form(self, ahead: _Ahead) -> None:
        try:
            with ahead.scope:
                ahead.draft = await self.form(ahead.view)
        except CommitterError:
            ahead.draft = None  # met again when it is formed on what is there
        finally:
            ahead.ended.set()
