"""The next versions, formed while those before them are put.

Only where a full group waits: whatever arrives meanwhile would not have joined it. It is formed on what the put is
expected to make. Where that came true, and soon, it is put next; else it is thrown away, as forming changes nothing. A
version whose files are still being written can't be built upon: behind such a one nothing is formed ahead.

Where a store writes an object in less time than it takes to ask for it, several versions are formed ahead, each on the
one before it, and put in one go: what a version costs beside its own work is then paid once for all of them.
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
from committerd.committer.intake import Intake
from committerd.committer.putting import Draft, Putter, Settlement
from committerd.committer.view import View
from committerd.concurrency import Beside
from committerd.ports import TakesSeveral, TopicIdentity

RUN_MAX = 100
"""Versions that are put in one go: their answers wait for the last of them."""
_RUN_SECONDS = 0.05
"""What forming them may take, and what putting them is expected to take at most."""
_AT_ONCE = 16
"""Versions that are formed without a pause: some 10 ms."""
_FRESH_SECONDS = 1.0
"""How late a draft may be put that was formed ahead: records in it have deadlines."""

Run = Sequence[Draft]
"""Drafts that follow each other, to be put in one go; at least one."""


class _Ahead:
    """A run that is formed ahead."""

    def __init__(self, view: View, *, most: int) -> None:
        self.view = self.last = view
        """As it will be before the first of the drafts, and before the last."""
        self.drafts: list[Draft] = []
        self.most = most
        """How many they may become."""
        self.formed_at = view.monotonic()
        """When it was begun."""
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()


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
        """`identity` asks for the topic's. `run_max`: of versions put in one go, where the store takes several."""
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

    async def form(self, view: View, *, held_for: Container[str] | None = None) -> Run | None:
        """One version, as `Former.form`; what was formed ahead is dropped."""
        await self._drop(view)
        draft = await self._form(view, held_for=held_for)
        return None if draft is None else [draft]

    async def form_keys(self, view: View) -> Run:
        """As `Former.form_keys`; what was formed ahead is dropped."""
        await self._drop(view)
        return [await self._former.form_keys(view)]

    async def put(self, run: Run, view: View) -> Settlement:
        """As `Putter.put`. Where not all of the run was made, nothing is kept that was formed on the rest."""
        if self._tasks is not None and self._may_follow(run[-1]):
            self._ahead = _Ahead(_expecting(run, view), most=self._most(view))
            self._tasks.start_soon(self._form_ahead, self._ahead)
        began, made = view.monotonic(), 0
        try:
            settlement = await self._putter.put(run, view)
            made = len(settlement.made)
        finally:
            if made < len(run):
                await self._drop(view)
        self._put_seconds = (view.monotonic() - began) / made if made else _RUN_SECONDS
        return settlement

    async def take(self, view: View) -> Run | None:
        """What was formed ahead, if it follows what the table is now; None when it has to be formed anew."""
        ahead = self._ahead
        if ahead is None:
            return None
        await ahead.ended.wait()
        expected = ahead.view
        follows = view.latest is expected.latest
        follows = follows and (view.position, view.marks) == (expected.position, expected.marks)
        if not follows or not ahead.drafts or view.monotonic() - ahead.formed_at > _FRESH_SECONDS:
            await self._drop(view)
            return None
        self._ahead = None
        return ahead.drafts

    async def _form(self, view: View, *, held_for: Container[str] | None = None) -> Draft | None:
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
        view = _expecting(ahead.drafts[-1:], ahead.last) if ahead.drafts else ahead.view
        draft = await self._form(view)
        if draft is None or (ahead.drafts and not draft.group.members):
            return False  # refusals alone have their time
        ahead.drafts.append(draft)
        ahead.last = view
        if len(ahead.drafts) == ahead.most or view.monotonic() - ahead.formed_at > _RUN_SECONDS:
            return False
        # Whoever is refused may have to come first, so nothing is put behind it before its answer is given.
        return not draft.group.refusals and self._may_follow(draft)

    def _known_of(self, number: int) -> TopicIdentity | None:
        """The topic's identity as it was asked for when that record was here already."""
        return self._known[1] if self._known is not None and number <= self._known[0] else None

    def _newest_expected(self, view: View, held_for: Container[str] | None) -> int:
        """The number of the last record that may be in the next draft, as far as that can be said before."""
        if held_for is not None or self._intake.waiting_retries():
            return self._intake.arrived
        assert view.position is not None
        return self._intake.newest_of(self._former.options.limits.full, behind=view.position)

    def _most(self, view: View) -> int:
        """How many versions the next run may have."""
        if not isinstance(view.table.store, TakesSeveral):
            return 1
        return max(1, min(self._run_max, int(_RUN_SECONDS / max(self._put_seconds, 1e-6))))

    def _may_follow(self, draft: Draft) -> bool:
        """Whether a version may be formed on this one before it is put."""
        prepared = draft.prepared
        if prepared.before is None or prepared.files or prepared.copies or self._intake.waiting_retries():
            return False
        return self._intake.behind(draft.group.position) >= self._former.options.limits.full

    async def _drop(self, view: View) -> None:
        """Forget what was formed ahead, and that it was expected."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.scope.cancel()
            # It may be at a read that can't be interrupted, and note what it found once that returns.
            await ahead.ended.wait()
        view.table.expect_no_more()


def _expecting(run: Run, view: View) -> View:
    """As the view will be when these are versions; the last is expected to be there from now on."""
    last = run[-1].prepared
    view.table.expect(last.file, before=last.before)
    return view.ahead(last.file, [draft.own for draft in run])
