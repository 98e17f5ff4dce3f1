"""Form the next versions while those before them are put.

The pipeline forms ahead only when a full group waits: records that arrive meanwhile would not have joined it. It forms
on the head that will follow once the put succeeds. If that becomes the head, and soon, the draft is put next;
otherwise the draft is dropped, and nothing has to be taken back. A version whose files are still being written can't be
built upon, so nothing is formed ahead on it.

Some stores write an object in less time than one question to them takes (`stores.port.TakesSeveral`). For those
several versions are formed ahead, each on the one before it, and put in one go. What a version costs besides its own
work is then paid once for all of them: with `commit.coalesce_appends = false`, on a local disk and two busy cores,
that makes two and a half times as many commits a second, synced to the disk or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from committerd.committer.forming import Former
from committerd.committer.head import Head
from committerd.committer.intake import Intake
from committerd.committer.putting import FormedVersion, Putter, Settlement
from committerd.committer.view import View
from committerd.concurrency import Beside
from committerd.queue.port import TopicIdentity
from committerd.stores.port import TakesSeveral
from committerd.table.versions import Table

RUN_MAX = 100
"""Versions that are put in one go: their answers wait for the last of them."""
_RUN_SECONDS = 0.05
"""How long a run may take to form, and about how long it may take to put."""
_AT_ONCE = 16
"""Versions that are formed without a pause: about 10 ms."""
_FRESH_SECONDS = 1.0
"""How old a draft may be that was formed ahead, when it is put: records in it have deadlines."""

Run = Sequence[FormedVersion]
"""Drafts that follow each other, to be put in one go; at least one."""


class _Ahead:
    """A run that is formed ahead."""

    def __init__(self, head: Head, *, most: int, monotonic: Callable[[], float]) -> None:
        self.head = head
        """The head that the first draft is formed on."""
        self.drafts: list[FormedVersion] = []
        self.most = most
        """How many drafts the run may have."""
        self._monotonic = monotonic
        self._begun_at = monotonic()
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()

    @property
    def age(self) -> float:
        """Seconds since it was begun, those in which the machine slept too."""
        return self._monotonic() - self._begun_at

    @property
    def last(self) -> Head:
        """The head that the next draft is formed on."""
        return self.drafts[-1].after if self.drafts else self.head


class Pipeline:
    """Puts runs and forms those that follow, in one task each."""

    def __init__(
        self,
        former: Former,
        putter: Putter,
        intake: Intake,
        identity: Callable[[], Awaitable[TopicIdentity]],
        *,
        run_max: int,
    ) -> None:
        """`identity` asks for the topic's. `run_max`: how many versions are put in one go at most."""
        self._former = former
        self._putter = putter
        self._intake = intake
        self._identity = identity
        self._run_max = run_max
        self._put_seconds = _RUN_SECONDS
        """What putting one version took the last time."""
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

    async def form(self, head: Head, *, held_for: Container[str] | None = None) -> Run | None:
        """One version, as `Former.form`; what was formed ahead is dropped."""
        await self._drop()
        draft = await self._form(head, held_for=held_for)
        return None if draft is None else [draft]

    async def form_keys(self, head: Head) -> Run:
        """As `Former.form_keys`; what was formed ahead is dropped."""
        await self._drop()
        return [await self._former.form_keys(head)]

    async def put(self, run: Run, view: View) -> Settlement:
        """As `Putter.put`, and form what follows meanwhile. Drops that unless all of the run was created."""
        if self._tasks is not None and self._may_follow(run[-1]):
            self._ahead = _Ahead(run[-1].after, most=self._most(view.table), monotonic=view.monotonic)
            self._tasks.start_soon(self._form_ahead, self._ahead)
        began, made = view.monotonic(), 0
        try:
            settlement = await self._putter.put(run, view)
            made = len(settlement.made)
        finally:
            if made < len(run):
                await self._drop()
        self._put_seconds = (view.monotonic() - began) / made if made else _RUN_SECONDS
        return settlement

    async def take(self, head: Head) -> Run | None:
        """What was formed ahead, if it follows this head; None when it has to be formed anew."""
        ahead = self._ahead
        if ahead is None:
            return None
        await ahead.ended.wait()
        expected = ahead.head
        follows = head.manifest is expected.manifest
        follows = follows and (head.position, head.marks) == (expected.position, expected.marks)
        if not follows or not ahead.drafts or ahead.age > _FRESH_SECONDS:
            await self._drop()
            return None
        self._ahead = None
        return ahead.drafts

    async def _form(self, head: Head, *, held_for: Container[str] | None = None) -> FormedVersion | None:
        """As `Former.form`, and with the identity of the topic.

        The broker is asked for it when all records of the draft have arrived. They are of the topic that the answer
        names, or else of an earlier one, and that is noticed; nothing that happens to the topic later changes them. So
        one answer is enough for all drafts whose records had arrived before the question.
        """
        if not (self._intake.pending if held_for is None else self._intake.waiting_retries()):
            return None
        forming = partial(self._former.form, head, self._intake, held_for=held_for)
        if self._known_of(self._newest_expected(head, held_for)) is not None:
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

    async def _form_ahead(self, ahead: _Ahead) -> None:
        try:
            with ahead.scope:
                while await self._form_one_more(ahead):
                    if len(ahead.drafts) % _AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()  # others have things to do meanwhile
        except Exception:  # noqa: BLE001  # met again when it is formed on what is there
            pass
        finally:
            ahead.ended.set()

    async def _form_one_more(self, ahead: _Ahead) -> bool:
        """Add a draft to the run; whether another may follow in it."""
        draft = await self._form(ahead.last)
        if draft is None or (ahead.drafts and not draft.group.members):
            return False  # refusals alone have their time
        ahead.drafts.append(draft)
        if len(ahead.drafts) == ahead.most or ahead.age > _RUN_SECONDS:
            return False
        # Whoever is refused may have to come first, so nothing is put behind it before its answer is given.
        return not draft.group.refusals and self._may_follow(draft)

    def _known_of(self, number: int) -> TopicIdentity | None:
        """The topic's identity as it was asked for when that record was here already."""
        return self._known[1] if self._known is not None and number <= self._known[0] else None

    def _newest_expected(self, head: Head, held_for: Container[str] | None) -> int:
        """The highest number of a record that may be in the next draft, as far as that can be said before."""
        if held_for is not None or self._intake.waiting_retries():
            return self._intake.arrived
        return self._intake.newest_of(self._former.options.limits.full, behind=head.position)

    def _most(self, table: Table) -> int:
        """How many versions the next run may have."""
        if not isinstance(table.store, TakesSeveral):
            return 1
        return max(1, min(self._run_max, int(_RUN_SECONDS / max(self._put_seconds, 1e-6))))

    def _may_follow(self, draft: FormedVersion) -> bool:
        """Whether a version may be formed on this one before it is put."""
        prepared = draft.prepared
        if prepared.before is None or prepared.files or prepared.copies or self._intake.waiting_retries():
            return False
        return self._intake.behind(draft.group.position) >= self._former.options.limits.full

    async def _drop(self) -> None:
        """Drop what was formed ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.scope.cancel()
            await ahead.ended.wait()  # it may be at a read that can't be interrupted
