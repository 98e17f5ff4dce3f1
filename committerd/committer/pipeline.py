"""Forms the next version while the previous one is put.

If a full group waits, the pipeline forms ahead at once, because records that arrive later would not have joined it. If
fewer records wait, it forms ahead shortly before the put returns: the put then hides the time that forming takes, and
records that arrive during most of it still join. It forms on the head that will follow once the put succeeds. If that
becomes the current head soon, the formed version is put next. Otherwise it is dropped, and there is nothing to roll
back. A version whose files are still being written can't be built on, so nothing is formed ahead on it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
from anyio.abc import TaskGroup

from committerd.committer.assembling import Assembler
from committerd.committer.current_head import CurrentHead
from committerd.committer.head import Head
from committerd.committer.intake import Intake
from committerd.committer.members import FormedVersion
from committerd.committer.putting import Putter, RaceResult
from committerd.concurrency import Concurrently
from committerd.queue.port import TopicIdentity
from committerd.queue.race import Race
from committerd.telemetry import Telemetry

_log = logging.getLogger(__name__)

_LEAD_FACTOR, _LEAD_SECONDS = 1.25, 0.002
"""If no full group waits, the next version is begun shortly before the put is expected to return. The lead is the time
that the last version took to form, times this factor, plus these seconds.
"""
_LEAD_SHARE_MAX = 0.25
"""The longest such lead, as a share of the put's expected time."""
_PUT_SECONDS = 0.05
"""The expected time of a put while that of the last one is not known."""
_CONFIRMED_SECONDS = 0.1
"""How long ago the head's version was confirmed, at most, if it is not confirmed again."""
_FRESH_SECONDS = 60.0
"""Maximum age of a version formed ahead when it is put: its files were looked at before it was formed."""


@dataclass(slots=True)
class _Ahead:
    """A version that is formed ahead."""

    before: FormedVersion
    """The version that is put meanwhile."""
    monotonic: Callable[[], float]
    begun_at: float
    put_ended: anyio.Event = field(default_factory=anyio.Event)
    """Set when the put of `before` has ended, whatever its result."""
    formed: FormedVersion | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """Puts versions, and forms the version that follows in a concurrent task."""

    assembler: Assembler
    putter: Putter
    intake: Intake
    identity: Callable[[], Awaitable[TopicIdentity]]
    """Asks the broker for the topic's identity."""
    telemetry: Telemetry
    _put_seconds: float = _PUT_SECONDS
    """Time of the last put, in seconds."""
    _form_seconds: float = 0.0
    """Time to form the last version, in seconds."""
    _tasks: TaskGroup | None = None
    _ahead: _Ahead | None = None
    _round_left: Set[int] = frozenset()
    """`FormedVersion.round_left` of the last version that was created."""
    _known: tuple[int, TopicIdentity] | None = None
    """The number of records that had arrived when the topic's identity was requested, and the identity."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Allow forming ahead inside the block; at its end, a version formed ahead is dropped."""
        error: Exception | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield
            except Exception as raised:  # noqa: BLE001  # raised below, outside the exception group
                error = raised
            finally:
                self._tasks, self._ahead, self._round_left = None, None, frozenset()
                tasks.cancel_scope.cancel()
        if error is not None:
            raise error

    async def form(self, current: CurrentHead) -> FormedVersion | None:
        """Form a version on the current head, as `Assembler.assemble`; drops what was formed ahead.

        The head's version is confirmed meanwhile, unless it just was. Raises `StartAgain` as `CurrentHead` does.
        """
        await self._drop()
        forming = partial(self._form, current.head, round_left=self._round_left)
        if current.confirmed_seconds <= _CONFIRMED_SECONDS or not self._has_records:
            return await forming()
        asked_at, look = current.monotonic(), Concurrently(partial(current.table.standing, current.head.version))
        formed = await look.of(forming)
        if look.done:
            current.confirmed(look.result, asked_at)
        return formed

    @property
    def is_in_round(self) -> bool:
        """Whether records of a round wait that has begun. They go before all others, re-executions too."""
        return bool(self._round_left)

    async def form_keys(self, head: Head) -> FormedVersion:
        """Form a version, as `Assembler.assemble_keys`; drops what was formed ahead."""
        await self._drop()
        return await self.assembler.assemble_keys(head)

    async def put(self, formed: FormedVersion, current: CurrentHead) -> RaceResult:
        """As `Putter.put`, and form the next version meanwhile; drops that one unless this one was created."""
        delay = self._delay(formed)
        if self._tasks is not None and delay is not None:
            self._ahead = _Ahead(formed, current.monotonic, current.monotonic())
            self._tasks.start_soon(self._form_ahead, self._ahead, delay)
        began, is_ours = current.monotonic(), False
        try:
            result = await self.putter.put(formed, current)
            is_ours = result.race is Race.OURS
        finally:
            if self._ahead is not None:
                self._ahead.put_ended.set()
            if not is_ours:
                await self._drop()
        if is_ours:
            self._round_left = formed.round_left
        self._put_seconds = current.monotonic() - began if is_ours else _PUT_SECONDS
        return result

    async def take(self, head: Head) -> FormedVersion | None:
        """Return the version formed ahead if it follows this head; None when the caller must form one."""
        ahead = self._ahead
        if ahead is None:
            return None
        await ahead.ended.wait()
        expected = ahead.before.after
        follows = head.manifest is expected.manifest
        follows = follows and (head.position, head.marks) == (expected.position, expected.marks)
        is_fresh = ahead.monotonic() - ahead.begun_at <= _FRESH_SECONDS
        formed, now_ms = ahead.formed, self.assembler.decider.now_ms()
        if not follows or formed is None or not is_fresh or formed.deadline_ms < now_ms:
            await self._drop()
            return None
        self._ahead = None
        return formed

    async def _form(self, head: Head, *, round_left: Set[int]) -> FormedVersion | None:
        """As `Assembler.assemble`, with the identity of the topic that the records are from.

        The broker is asked for the identity after all records of the version have arrived. So they are from the topic
        that the response names, or from an earlier one, which the putter detects. Later changes to the topic do not
        affect them. So one response covers every version whose records had all arrived before the request.
        """
        if not self._has_records:
            return None
        forming = partial(self._timed, head, round_left=round_left)
        if self._known_of(self._newest_expected(head)) is not None:
            formed = await forming()
        else:
            arrived, request = self.intake.arrived, Concurrently(self.identity)
            formed = await request.of(forming)
            if formed is None:
                return None
            if request.failed is not None:
                raise request.failed
            self._known = arrived, request.result
        return None if formed is None else replace(formed, identity=self._known_of(formed.newest))

    @property
    def _has_records(self) -> bool:
        """Whether a record waits that the next version may settle."""
        return bool(self.intake.waiting_retries() if self.intake.reservations.hold else self.intake.pending)

    async def _timed(self, head: Head, *, round_left: Set[int]) -> FormedVersion | None:
        """Call `Assembler.assemble`, and remember how long it took to form a version."""
        formed = await self.assembler.assemble(head, self.intake, round_left=round_left)
        if formed is not None and formed.decided is not None:
            self._form_seconds = formed.decided.ended - formed.decided.began
        return formed

    async def _form_ahead(self, ahead: _Ahead, delay: float = 0.0) -> None:
        """Form a version. `delay`: seconds to wait for more records; without it a full group waits."""
        try:
            with ahead.scope:
                if not delay or await self._is_due(ahead, delay):
                    formed = await self._form(ahead.before.after, round_left=ahead.before.round_left)
                    # Refusals alone wait: records that arrive before they are put may share their version.
                    ahead.formed = formed if formed is not None and formed.own.settled.members else None
        except Exception as error:  # noqa: BLE001  # shows again when the version is formed on the current head
            reason = getattr(error, "code", "other")
            self.telemetry.commit_retries.add(reason=reason)
            _log.warning("commit.not_formed_ahead", extra={"reason": reason, "error": repr(error)})
        finally:
            ahead.ended.set()

    async def _is_due(self, ahead: _Ahead, delay: float) -> bool:
        """Wait `delay` seconds. Whether a version can be formed then: the put still runs, and a record is ready."""
        with anyio.move_on_after(delay):
            await ahead.put_ended.wait()
            return False
        ahead.begun_at = ahead.monotonic()
        return self._is_ready(ahead.before)

    def _known_of(self, number: int) -> TopicIdentity | None:
        """Return the topic's identity if it was asked for after the record with this number had arrived."""
        return self._known[1] if self._known is not None and number <= self._known[0] else None

    def _newest_expected(self, head: Head) -> int:
        """Return an upper bound of the `number` of the records that the next version may settle."""
        options = self.assembler.decider.options
        if self.intake.waiting_retries() or self.intake.takes_turns(options.most):
            return self.intake.arrived
        first = self.intake.first(options.limits.full, behind=head.position)
        return max((one.number for one in first), default=self.intake.arrived)

    def _delay(self, formed: FormedVersion) -> float | None:
        """Return how many seconds after the put of this version has begun the next one is formed; None = after it."""
        if not _can_be_built_on(formed):
            return None
        if self._may_follow(formed):
            return 0.0
        lead = self._form_seconds * _LEAD_FACTOR + _LEAD_SECONDS
        return self._put_seconds - min(lead, self._put_seconds * _LEAD_SHARE_MAX)

    def _may_follow(self, formed: FormedVersion) -> bool:
        """Whether the next version may be formed at once, without waiting for more records."""
        if formed.round_left:
            return True
        if self.intake.waiting_retries():
            return False
        full = self.assembler.decider.options.limits.full
        return len(self.intake.first(full, behind=formed.after.position)) == full

    def _is_ready(self, formed: FormedVersion) -> bool:
        """Whether the next version can be formed of what waits behind this one: the first record's facts are there.

        A refusal's re-execution may have to go first, so nothing is formed before the refusal is published.
        """
        if formed.own.settled.refusals or self.intake.waiting_retries():
            return False
        waiting = self.intake.first(1, behind=formed.after.position)
        return bool(waiting) and self.assembler.prefetcher.is_ready(waiting[0])

    async def _drop(self) -> None:
        """Drop what was formed ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.scope.cancel()
            await ahead.ended.wait()  # it may be in a read that can't be interrupted


def _can_be_built_on(formed: FormedVersion) -> bool:
    """Whether the next version can be formed on this one before this one is put."""
    judged = formed.prepared.judged
    if formed.prepared.before is None or judged.copies or judged.by_pylance:
        return False
    return judged.files.keys() <= judged.deletion_vectors.keys()  # the content of other files can't be read yet
