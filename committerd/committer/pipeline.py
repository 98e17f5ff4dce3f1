"""Forms the next versions while the previous ones are put.

If a full group waits, the pipeline forms ahead at once, because records that arrive later would not have joined it. If
fewer records wait, and the store has a round trip, it forms ahead shortly before the put returns: the round trip then
hides the time that forming takes, and records that arrive during most of it still join. It forms on the head that
will follow once the put succeeds. If that becomes the current head soon, the formed version is put next. Otherwise it
is dropped, and there is nothing to roll back. A version whose files are still being written can't be built on, so
nothing is formed ahead on it.

On some stores a call costs more than the write itself (`stores.port.TakesSeveral`). For those the pipeline forms
several versions, each on the one before it, and puts them in one go: a run. The overhead of a put is then paid once per
run. With `commit.coalesce = none`, on a local disk and two busy cores, that gives 2.5 times as many commits
per second, with or without syncing to disk.
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
from committerd.concurrency import Concurrently
from committerd.queue.port import TopicIdentity
from committerd.stores.port import TakesSeveral
from committerd.table.versions import Table

RUN_MAX = 100
"""Maximum number of versions in a run. The outcomes of all of them wait until the last one is put."""
_RUN_SECONDS = 0.05
"""Longest time to form a run, and roughly the longest time to put it."""
_AT_ONCE = 16
"""Versions to form between two checkpoints of the event loop: about 10 ms of work."""
_LEAD_FACTOR, _LEAD_SECONDS = 1.25, 0.002
"""If no full group waits, the next version is begun shortly before the put is expected to return. The lead is the time
that the last version took to form, times this factor, plus these seconds.
"""
_LEAD_SHARE_MAX = 0.25
"""The longest such lead, as a share of the put's expected time."""
_FRESH_SECONDS = 1.0
"""Maximum age of a run formed ahead when it is put: its records have deadlines."""

Run = Sequence[FormedVersion]
"""Consecutive formed versions, to be put in one go; at least one."""


class _Ahead:
    """A run that is formed ahead."""

    def __init__(self, before: FormedVersion, *, most: int, monotonic: Callable[[], float]) -> None:
        self.before = before
        """The version that is put meanwhile."""
        self.put_ended = anyio.Event()
        """Set when the put of `before` has ended, whatever its result."""
        self.formed: list[FormedVersion] = []
        self.most = most
        """Maximum number of versions in the run."""
        self._monotonic = monotonic
        self._begun_at = monotonic()
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()

    def begin(self) -> None:
        """Count the age from now on."""
        self._begun_at = self._monotonic()

    @property
    def head(self) -> Head:
        """The head that the first version is formed on."""
        return self.before.after

    @property
    def age(self) -> float:
        """Seconds since it was begun, including those in which the machine slept."""
        return self._monotonic() - self._begun_at

    @property
    def round_end(self) -> int | None:
        """The last offset of the round that the next version continues; None = it begins one."""
        return self._newest.round_end

    @property
    def last(self) -> Head:
        """The head that the next version is formed on."""
        return self._newest.after

    @property
    def _newest(self) -> FormedVersion:
        return self.formed[-1] if self.formed else self.before


class Pipeline:
    """Puts runs, and forms the run that follows in a concurrent task."""

    def __init__(
        self,
        former: Former,
        putter: Putter,
        intake: Intake,
        identity: Callable[[], Awaitable[TopicIdentity]],
        *,
        run_max: int,
    ) -> None:
        """`identity`: asks the broker for the topic's identity. `run_max`: most versions in a run."""
        self._former = former
        self._putter = putter
        self._intake = intake
        self._identity = identity
        self._run_max = run_max
        self._put_seconds = _RUN_SECONDS
        """Time per version of the last put, in seconds."""
        self._form_seconds = 0.0
        """Time to form the last version, in seconds."""
        self._tasks: TaskGroup | None = None
        self._ahead: _Ahead | None = None
        self._round_end: int | None = None
        """`FormedVersion.round_end` of the last version that was created."""
        self._known: tuple[int, TopicIdentity] | None = None
        """The number of records that had arrived when the topic's identity was requested, and the identity."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Allow forming ahead inside the block; at its end, a run formed ahead is dropped."""
        error: Exception | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield
            except Exception as raised:  # noqa: BLE001  # raised below, outside the exception group
                error = raised
            finally:
                self._tasks, self._ahead, self._round_end = None, None, None
                tasks.cancel_scope.cancel()
        if error is not None:
            raise error

    async def form(self, head: Head, *, held_for: Container[str] | None = None) -> Run | None:
        """Form a run of one version, as `Former.form`; drops what was formed ahead."""
        await self._drop()
        formed = await self._form(head, held_for=held_for, round_end=self._round_end if held_for is None else None)
        return None if formed is None else [formed]

    @property
    def is_in_round(self) -> bool:
        """Whether records of a round wait that has begun. They go before all others, re-executions too."""
        return self._round_end is not None

    async def form_keys(self, head: Head) -> Run:
        """Form a run of one version, as `Former.form_keys`; drops what was formed ahead."""
        await self._drop()
        return [await self._former.form_keys(head)]

    async def put(self, run: Run, view: View) -> Settlement:
        """As `Putter.put`, and form the next run meanwhile; drops that one unless the whole run was created."""
        delay = self._delay(run[-1], view.table)
        if self._tasks is not None and delay is not None:
            self._ahead = _Ahead(run[-1], most=self._most(view.table), monotonic=view.monotonic)
            self._tasks.start_soon(self._form_ahead, self._ahead, delay)
        began, made = view.monotonic(), 0
        try:
            settlement = await self._putter.put(run, view)
            made = len(settlement.made)
            if made:
                self._round_end = settlement.made[-1].round_end
        finally:
            if self._ahead is not None:
                self._ahead.put_ended.set()
            if made < len(run):
                await self._drop()
        self._put_seconds = (view.monotonic() - began) / made if made else _RUN_SECONDS
        return settlement

    async def take(self, head: Head) -> Run | None:
        """Return the run formed ahead if it follows this head; None when the caller must form one."""
        ahead = self._ahead
        if ahead is None:
            return None
        await ahead.ended.wait()
        expected = ahead.head
        follows = head.manifest is expected.manifest
        follows = follows and (head.position, head.marks) == (expected.position, expected.marks)
        if not follows or not ahead.formed or ahead.age > _FRESH_SECONDS:
            await self._drop()
            return None
        self._ahead = None
        return ahead.formed

    async def _form(
        self, head: Head, *, held_for: Container[str] | None = None, round_end: int | None = None
    ) -> FormedVersion | None:
        """As `Former.form`, with the identity of the topic that the records are from.

        The broker is asked for the identity after all records of the version have arrived. So they are from the topic
        that the response names, or from an earlier one, which the putter detects. Later changes to the topic do not
        affect them. So one response covers every version whose records had all arrived before the request.
        """
        if not (self._intake.pending if held_for is None else self._intake.waiting_retries()):
            return None
        forming = partial(self._timed, head, held_for=held_for, round_end=round_end)
        if self._known_of(self._newest_expected(head, held_for)) is not None:
            formed = await forming()
        else:
            arrived, request = self._intake.arrived, Concurrently(self._identity)
            formed = await request.of(forming)
            if formed is None:
                return None
            if request.failed is not None:
                raise request.failed
            self._known = arrived, request.result
        return None if formed is None else replace(formed, identity=self._known_of(formed.newest))

    async def _timed(
        self, head: Head, *, held_for: Container[str] | None, round_end: int | None
    ) -> FormedVersion | None:
        """Call `Former.form`, and remember how long it took to form a version."""
        began = anyio.current_time()
        formed = await self._former.form(head, self._intake, held_for=held_for, round_end=round_end)
        if formed is not None:
            self._form_seconds = anyio.current_time() - began
        return formed

    async def _form_ahead(self, ahead: _Ahead, delay: float = 0.0) -> None:
        """Form a run. `delay`: seconds to wait for more records; without it a full group waits."""
        try:
            with ahead.scope:
                if delay and not await self._is_due(ahead, delay):
                    return
                while await self._form_one_more(ahead):
                    if len(ahead.formed) % _AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()  # lets other tasks run
        except Exception:  # noqa: BLE001  # shows again when the version is formed on the current head
            pass
        finally:
            ahead.ended.set()

    async def _is_due(self, ahead: _Ahead, delay: float) -> bool:
        """Wait `delay` seconds. Whether a version can be formed then: the put still runs, and a record is ready."""
        with anyio.move_on_after(delay):
            await ahead.put_ended.wait()
            return False
        ahead.begin()
        return self._is_ready(ahead.before)

    async def _form_one_more(self, ahead: _Ahead) -> bool:
        """Add a version to the run; returns whether another one may follow in it."""
        formed = await self._form(ahead.last, round_end=ahead.round_end)
        if formed is None or not formed.group.members:
            return False  # records that arrive before it is put may share the version of the refusals
        ahead.formed.append(formed)
        if len(ahead.formed) == ahead.most or ahead.age > _RUN_SECONDS:
            return False
        # The re-execution of a refused transaction may have to go first: put nothing before its outcome is published,
        # but for the rest of a round, which goes before it.
        return (formed.round_end is not None or not formed.group.refusals) and self._may_follow(formed)

    def _known_of(self, number: int) -> TopicIdentity | None:
        """Return the topic's identity if it was asked for after the record with this number had arrived."""
        return self._known[1] if self._known is not None and number <= self._known[0] else None

    def _newest_expected(self, head: Head, held_for: Container[str] | None) -> int:
        """Return an upper bound of the `number` of the records that the next version may settle."""
        if held_for is not None or self._intake.waiting_retries():
            return self._intake.arrived
        return self._intake.newest_of(self._former.options.limits.full, behind=head.position)

    def _most(self, table: Table) -> int:
        """Return the most versions that the next run may have."""
        if not isinstance(table.store, TakesSeveral):
            return 1
        return max(1, min(self._run_max, int(_RUN_SECONDS / max(self._put_seconds, 1e-6))))

    def _delay(self, formed: FormedVersion, table: Table) -> float | None:
        """Return how many seconds after the put of this version has begun the next one is formed; None = after it."""
        if self._may_follow(formed):
            return 0.0
        if isinstance(table.store, TakesSeveral) or not _can_be_built_on(formed):
            return None
        lead = self._form_seconds * _LEAD_FACTOR + _LEAD_SECONDS
        return self._put_seconds - min(lead, self._put_seconds * _LEAD_SHARE_MAX)

    def _may_follow(self, formed: FormedVersion) -> bool:
        """Whether another version may be formed at once on this one, before it is put."""
        if not _can_be_built_on(formed):
            return False
        if formed.round_end is not None:
            return True
        if self._intake.waiting_retries():
            return False
        return self._intake.behind(formed.group.position) >= self._former.options.limits.full

    def _is_ready(self, formed: FormedVersion) -> bool:
        """Whether the next version can be formed of what waits behind this one: the first record's files were checked.

        A refusal's re-execution may have to go first, so nothing is formed before the refusal is published.
        """
        if formed.group.refusals or self._intake.waiting_retries():
            return False
        waiting = self._intake.first(1, behind=formed.group.position)
        return bool(waiting) and (waiting[0].file_check is None or waiting[0].file_check.is_set())

    async def _drop(self) -> None:
        """Drop what was formed ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.scope.cancel()
            await ahead.ended.wait()  # it may be in a read that can't be interrupted


def _can_be_built_on(formed: FormedVersion) -> bool:
    """Whether the next version can be formed on this one before this one is put."""
    prepared = formed.prepared
    if prepared.before is None or prepared.copies:
        return False
    return prepared.files.keys() <= prepared.deletion_vectors.keys()  # the content of other files can't be read yet
