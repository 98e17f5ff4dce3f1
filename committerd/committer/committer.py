"""The loop that commits the records of one queue to one table.

    assigned -> Start -> { form a version -> put it -> publish its outcomes } until revoked, stopped or contradicted

Every outcome is stored in the table before it is published, so this loop may crash between any two lines. It waits
while there is no table, and while it refuses to run. It never skips a record and never resets a position.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import anyio

from committerd.committer.assembling import Assembler
from committerd.committer.change_feed import ChangeFeed
from committerd.committer.containing import as_unavailable
from committerd.committer.current_head import CurrentHead
from committerd.committer.head import StartAgain
from committerd.committer.holding import Holding
from committerd.committer.intake import Intake, Pending
from committerd.committer.members import FormedVersion
from committerd.committer.outcome_maker import OutcomeMaker, PutTime
from committerd.committer.pipeline import Pipeline
from committerd.committer.publisher import OutcomeBatch, Publisher
from committerd.committer.putting import Putter
from committerd.committer.stages import Period, VersionStages
from committerd.committer.starting import Starter
from committerd.committer.state import HeadMetrics, Intervals, State, note_commit
from committerd.committer.table_wait import TableWait
from committerd.concurrency import beside
from committerd.errors import CorruptTable, RefusedToRun, Unavailable, UnsupportedTable
from committerd.queue.most_waiting import NAMED_MIN, most_waiting
from committerd.queue.outcomes import status_of
from committerd.queue.port import Queue
from committerd.queue.position import Pause
from committerd.queue.race import Race, VersionSummary
from committerd.table.backoff import Backoff
from committerd.telemetry import Telemetry

_log = logging.getLogger(__name__)

_REFUSALS_WAIT_SECONDS_MAX = 30.0
"""Longest time for which refusals are collected, even if the last put took very long because the store was down."""
_LAST_EVENTS_SECONDS = 5.0
"""How long a committer that stops waits for the events of its last versions, unless events fail. The next committer
publishes the rest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """What a committer's loop puts together."""

    queue: Queue
    intake: Intake
    publisher: Publisher
    outcome_maker: OutcomeMaker
    prove_store: Callable[[], Awaitable[None]]
    """Raises `RefusedToRun` for an unsafe store; costs nothing once the store has passed."""
    start_turn: AbstractAsyncContextManager[object]
    """Entered while it reads table and queue: other tables of the process may have to wait for that."""
    begins: Callable[[int], None]
    """Called in the turn, with the generation of the assignment: the table has begun to be served."""
    starter: Starter
    assembler: Assembler
    putter: Putter
    telemetry: Telemetry
    backoff: Callable[[], Backoff]
    wall_clock: Callable[[], datetime]
    feed: ChangeFeed | None = None
    """Publishes change events; None = none are published."""


class Committer:
    """The loop. `run` runs the intake, the publisher and the prefetcher as tasks."""

    def __init__(self, parts: Components, intervals: Intervals) -> None:
        self._parts = parts
        self._intervals = intervals
        self._stopping = False
        self._last_put = self._last_refusals = float("-inf")
        self._refusal_interval = 0.0
        """Time between two versions of refusals, in seconds, that keeps them to a small share of the time."""
        self._holding = Holding(parts.intake, parts.telemetry, seconds_max=intervals.hold_max)
        self._pipeline = Pipeline(
            assembler=parts.assembler,
            putter=parts.putter,
            intake=parts.intake,
            identity=parts.queue.identity,
            telemetry=parts.telemetry,
        )
        self._refused_code = ""
        self._pause: Pause | None = None
        """The pause that is in the log already."""
        self._metrics = HeadMetrics(parts.telemetry, app_marks_max=parts.assembler.decider.options.app_marks_max)
        self.machine = parts.assembler.containment.machine
        """What this process or its machine lacks."""
        self.state = State()
        self._table_wait = TableWait(
            intake=parts.intake,
            assembler=parts.assembler,
            outcome_maker=parts.outcome_maker,
            publisher=parts.publisher,
            state=self.state,
            recheck_seconds=intervals.recheck,
        )
        self.current: CurrentHead | None = None
        """The head of the current or last assignment; None before the first Start."""
        telemetry = parts.telemetry
        telemetry.queue_depth_records.track(lambda: len(parts.intake.pending))
        telemetry.queue_depth_bytes.track(lambda: sum(p.size for p in parts.intake.pending))
        telemetry.oldest_pending_age.track(self._oldest_pending_seconds)
        telemetry.waiting_records.track(lambda: most_waiting(parts.intake.waiting, at_least=NAMED_MIN))

    @property
    def most_waiting(self) -> Mapping[str, int]:
        """The producers with the most waiting records, as `queue.most_waiting`."""
        return most_waiting(self._parts.intake.waiting)

    def stop(self) -> None:
        """Finish the commit in flight, publish its outcomes, then let `run` return."""
        self._stopping = True
        self._parts.intake.notify()

    async def run(self) -> None:
        """Serve every assignment until `stop` is called."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._parts.intake.run)
            tasks.start_soon(self._parts.publisher.run)
            tasks.start_soon(self._parts.assembler.prefetcher.run)
            while not self._stopping:
                generation = self._parts.intake.generation
                if generation is None:
                    await self._stand_by()
                else:
                    await self._serve(generation)
            await self._parts.publisher.drained()
            self.state.show("stopped", "stopped")
            tasks.cancel_scope.cancel()

    async def _stand_by(self) -> None:
        """Wait for the partition, and check that the topic exists: Kafka assigns no partition of a deleted topic."""
        try:
            await self._parts.prove_store()
        except RefusedToRun as refusal:
            await self._refuse(refusal, None)
            return
        except Exception as raised:  # noqa: BLE001  # raised again if it is no outage
            error = self._note_unavailable(raised)
            _log.warning("store.unproved", extra={"code": error.code, "error": str(error)})
            await self._parts.intake.changed(timeout=self._intervals.refused_retry)
            return
        self.state.show("standby", "waits for the partition")
        if self._parts.intake.generation is not None:  # assigned during the probe
            return
        try:
            if self._refused_code or not await self._parts.intake.changed(timeout=self._intervals.refused_retry):
                await self._parts.queue.identity()
                self._refused_code = ""
        except RefusedToRun as error:
            await self._refuse(error, None)
        except Unavailable:
            self._refused_code = ""  # the next call asks again

    async def _serve(self, generation: int) -> None:
        """Serve one assignment: Start, then commit. Start again whenever our state contradicts table or queue."""
        backoff = self._parts.backoff()
        while self._goes_on(generation):
            self.state.show("starting", "reads the table and the queue")
            try:
                await self._parts.prove_store()
                self.current = current = await self._parts.starter.start(
                    generation, partial(self.state.show, "starting"), turn=partial(self._turn, generation)
                )
                backoff = self._parts.backoff()
                self._refused_code = ""
                await self._parts.assembler.require_buildable(current.head)
                if current.head.version:
                    self._holding.note_settled(None)
                    notify, stale_history = self._parts.intake.notify, self._parts.assembler.decider.stale_history
                    self._parts.assembler.prefetcher.switch(on=True)
                    try:
                        async with (
                            beside(partial(current.older.read_beside, backoff=self._parts.backoff, progressed=notify)),
                            beside(partial(stale_history.run, current.table, notify)),
                            self._events(),
                            self._pipeline.open(),
                        ):
                            await self._commit_groups(current)
                    finally:
                        self._parts.assembler.prefetcher.switch(on=False)
                        await self._publish_held_back(self._holding.end(), current)
                else:
                    first = await self._table_wait.version_1(current, partial(self._goes_on, generation))
                    if first is not None:
                        await self._commit(first, current)
                        raise StartAgain("the table was created")
            except StartAgain as reason:
                _log.info("start.again", extra={"reason": str(reason)})
            except (RefusedToRun, UnsupportedTable, CorruptTable) as refusal:
                await self._refuse(refusal, generation)
            except Exception as raised:  # noqa: BLE001  # raised again if it is no outage
                error = self._note_unavailable(raised)
                _log.warning("start.unavailable", extra={"code": error.code, "error": str(error)})
                await backoff.wait()
        self._parts.starter.loading.part.leave()
        self._parts.telemetry.active.set(0)
        self._parts.telemetry.paused.set(0)

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[None]:
        """Publish change events inside the block, and the last ones at its end if the committer stops."""
        feed = self._parts.feed
        if feed is None:
            yield
            return
        async with beside(feed.run):
            yield
            if self._stopping and not feed.trouble:  # a standby waits for the end
                with anyio.move_on_after(_LAST_EVENTS_SECONDS):
                    await feed.caught_up()

    @asynccontextmanager
    async def _turn(self, generation: int) -> AsyncIterator[None]:
        """The turn to read table and queue. Raises `StartAgain` if the assignment is over before it comes."""
        async with self._parts.start_turn:
            if not self._goes_on(generation):
                raise StartAgain("the assignment was over before it was the table's turn to start")
            self._parts.begins(generation)
            yield

    async def _commit_groups(self, current: CurrentHead) -> None:
        """Commit waiting records, version by version."""
        parts, backoff = self._parts, self._parts.backoff()
        self._parts.telemetry.active.set(1)
        while self._goes_on(current.generation):
            parts.intake.require_fetching()
            await self._drop_settled_elsewhere(current)
            current.head = current.head.without_what_is_gone()
            current.keep_within(parts.starter.loading.part)
            self._metrics.show(current)
            unread = current.older.unread_versions
            reading = f"; has still to read {unread} versions of the history" if unread else ""
            self._note_pause(current.head.pause)
            if parts.feed is not None and current.head.manifest is not None:
                parts.feed.reached(current.head.manifest)
                self.state.aside = parts.feed.trouble
            if current.head.pause is None:
                self.state.show("active", f"commits{reading}")
            self.state.version, self.state.position = current.head.version, current.head.position.next_offset
            parts.assembler.prefetcher.latest = current.head.manifest
            try:
                if current.head.pause is not None:
                    await self._stay_paused(current, current.head.pause)
                    formed: FormedVersion | None = None
                elif current.head.lacks_keys():
                    formed = await self._pipeline.form_keys(current.head)
                    _log.info("keys.put_back", extra={"version": current.head.version + 1})
                else:
                    formed = await self._next(current)
                if formed is not None:
                    await self._commit(formed, current)
                    backoff = parts.backoff()
                self.machine.works()
            except Unavailable as error:
                await parts.assembler.containment.note(error, partial(parts.assembler.self_trial, current.head))
                parts.telemetry.commit_retries.add(reason=error.code)
                _log.warning("commit.unavailable", extra={"code": error.code, "error": str(error)})
                await backoff.wait()

    async def _stay_paused(self, current: CurrentHead, pause: Pause) -> None:
        """Settle nothing, and look for the version that ends the pause. Records wait in the queue meanwhile."""
        self.state.show("paused", str(pause))
        # They are in the table already.
        await self._publish_held_back(self._holding.pass_time(), current)
        current.learn_history()
        until = anyio.current_time() + min(self._intervals.recheck, self._holding.seconds_until())
        while self._goes_on(current.generation) and anyio.current_time() < until:
            await self._parts.intake.changed(timeout=until - anyio.current_time())
        await self._look_for_foreign(current)

    async def _next(self, current: CurrentHead) -> FormedVersion | None:
        """Form the next version when it is due; None when the caller must check its state and call again."""
        intake = self._parts.intake
        wait = self._last_put + self._intervals.interval_min - anyio.current_time()
        if intake.pending and wait > 0:
            await anyio.sleep(wait)
        moment = intake.moment()
        await self._publish_held_back(self._holding.pass_time(), current)
        current.learn_history()
        hold = intake.reservations.hold
        may_take = self._pipeline.is_in_round or not intake.waiting_retries()
        formed = await self._pipeline.take(current.head) if not hold and may_take else None
        if formed is None:
            formed = await self._pipeline.form(current)
        if formed is None:
            patience = min(self._intervals.recheck, self._holding.seconds_until())
            if not await intake.changed(since=moment, timeout=patience) and patience == self._intervals.recheck:
                await self._look_for_foreign(current)
            return None
        settled = formed.own.settled
        few = len(settled.refusals) < self._parts.assembler.decider.options.limits.records
        if few and not settled.members and not hold:
            # Refusals alone get a version only at intervals; under load the next commit includes them. A hold has no
            # such commits, and a producer that is refused in it must be able to retry before it ends. The interval is
            # shorter if rows may be reserved for one of them: its producer waits for it.
            least = 0.0 if formed.rows_and_keys else self._intervals.refusal_interval
            wait = self._last_refusals + max(least, self._refusal_interval) - anyio.current_time()
            if wait > 0 and await intake.changed(since=moment, timeout=wait):
                return None
        return formed

    async def _commit(self, formed: FormedVersion, current: CurrentHead) -> None:
        """Put a version, and publish the outcomes of all records that it, or another committer's version, settled."""
        parts, started = self._parts, anyio.current_time()
        before = current.head.version
        result = await self._pipeline.put(formed, current)
        seconds = anyio.current_time() - started
        self._last_put = started
        parts.telemetry.commit_duration.observe(seconds, stage="put")
        is_ours = result.race is Race.OURS
        if is_ours:
            note_commit(parts.telemetry, formed, seconds, parts.wall_clock())
            if parts.feed is not None:
                parts.feed.put(formed.prepared.file)
            if not formed.own.settled.members:
                self._last_refusals = anyio.current_time()
                # At most 5 % of the time is spent on versions that commit nothing.
                self._refusal_interval = min(seconds * 20, _REFUSALS_WAIT_SECONDS_MAX)
        await self._publish_outcomes(
            result.found, formed if is_ours else None, current, put=Period(started, started + seconds)
        )
        foreign = sum(not found.settled.ours for found in result.found)
        if foreign:
            parts.telemetry.foreign_commits.add(foreign)
        if current.head.manifest is not formed.prepared.file:
            # Another writer created it, or it was read back.
            await parts.assembler.require_buildable(current.head)
        if not is_ours:
            _log.info("table.moved", extra={"from": before, "to": current.head.version, "by": result.race.value})

    async def _publish_outcomes(
        self,
        versions: Sequence[VersionSummary],
        formed: FormedVersion | None,
        current: CurrentHead,
        *,
        put: Period,
    ) -> None:
        """Publish the outcomes that the new versions contain, and free the room of their records in the queue.

        `formed`: what this committer has put, the first of these versions; None = other writers have put all of them.
        """
        parts = self._parts
        entries = [(found.settled, entry) for found in versions for entry in found.settled.entries()]
        refusals = [refusal for found in versions for refusal in found.settled.refusals]
        pending = parts.intake.records({entry.offset for _, entry in entries})
        records = {offset: one.record for offset, one in pending.items()}
        if any(status_of(one).is_dead_letter and one.offset not in records for one in refusals):
            # Another committer settled it, or it was revoked: Start reads such records again and publishes all.
            raise StartAgain("a dead letter needs its record, which is not here")
        commit_ms = int((put.ended - put.began) * 1000)
        stages = self._stages(formed, pending, put) if formed is not None and parts.publisher.traces else None
        time = PutTime(began_ms=self._now_ms() - commit_ms, commit_ms=commit_ms, stages=stages)
        make = partial(parts.outcome_maker.make, position=current.head.position, records=records, put=time)
        rows_and_keys = formed.rows_and_keys if formed is not None else {}
        later = self._holding.settle(current.head.position, refusals, pending, rows_and_keys)
        for of, entry in entries:
            if entry.offset in later:
                self._holding.hold_back(entry.offset, entry.uuid, await make([(of, entry)]))
        self._holding.note_settled(current.head.acknowledgeable())
        room = parts.intake.settle(current.head.position)
        await parts.publisher.give(
            await make([one for one in entries if one[1].offset not in later]),
            generation=current.generation,
            acknowledge=self._holding.acknowledgeable(),
            room=room,
        )

    def _stages(self, formed: FormedVersion, pending: Mapping[int, Pending], put: Period) -> VersionStages | None:
        """The stages of a version that was put, for traces; None if it holds no records.

        `pending`: the records that it settles, by offset, as far as the intake has them.
        """
        if formed.decided is None:
            return None
        fetched = {offset: self._parts.assembler.prefetcher.fetched(one) for offset, one in pending.items()}
        return VersionStages(
            version=formed.own.settled.version,
            unix=self._parts.wall_clock().timestamp() - anyio.current_time(),
            decided=formed.decided,
            put=put,
            fetched={offset: one for offset, one in fetched.items() if one is not None},
            rules=formed.rules,
        )

    async def _publish_held_back(self, held_back: Sequence[OutcomeBatch], current: CurrentHead) -> None:
        """Publish outcomes that were held back, and acknowledge the offsets that waited for them."""
        for place, batch in enumerate(held_back, start=1):
            upto = self._holding.acknowledgeable() if place == len(held_back) else None
            await self._parts.publisher.give(batch, generation=current.generation, acknowledge=upto)

    async def _drop_settled_elsewhere(self, current: CurrentHead) -> None:
        """Drop records that were delivered although another committer had settled them, and free their room."""
        intake = self._parts.intake
        if intake.pending and current.head.position.passes(intake.pending[0].offset):
            self._holding.settle(current.head.position, (), {}, {})
            await self._parts.queue.done(current.generation, *intake.settle(current.head.position))

    async def _look_for_foreign(self, current: CurrentHead) -> None:
        """While idle: read versions of other writers, so that metrics are current and dropped keys are put back."""
        news = await current.peek()
        found = news.found
        if not found:
            return
        current.learn(news)
        await self._parts.assembler.require_buildable(current.head)
        self._parts.telemetry.foreign_commits.add(sum(not one.settled.ours for one in found))
        if any(one.settled.ours for one in found):
            raise StartAgain("another committer has committed")

    def _note_pause(self, pause: Pause | None) -> None:
        """Log when a pause begins or ends."""
        if pause == self._pause:
            return
        self._pause = pause
        if pause is None:
            _log.info("queue.resumed")
        else:
            _log.warning("queue.paused", extra={"reason": pause.reason, "who": pause.who, "since_ms": pause.since_ms})

    def _note_unavailable(self, raised: Exception) -> Unavailable:
        """Show an error of the store, the queue or the machine, and return it; raises any other."""
        error = as_unavailable(raised)
        if error is None:
            raise raised
        self.machine.note(error)
        self.state.show("unavailable", str(error))
        return error

    async def _refuse(self, error: RefusedToRun | UnsupportedTable | CorruptTable, generation: int | None) -> None:
        """Report why the committer refuses to run, log each cause once, and wait: an operator may resolve it."""
        self._parts.starter.loading.part.leave()
        self._parts.telemetry.active.set(0)
        self._parts.telemetry.paused.set(0)
        cause = error.code if isinstance(error, RefusedToRun) else type(error).code
        self._parts.telemetry.refused_to_run.set(1, cause=cause)
        if self._refused_code != error.code:
            self._refused_code = error.code
            _log.error("refused", extra={"code": error.code, "error": str(error)})
        self.state.show("refused", str(error), code=error.code)
        until = anyio.current_time() + self._intervals.refused_retry
        while self._goes_on(generation) and anyio.current_time() < until:
            await self._parts.intake.changed(timeout=until - anyio.current_time())
        self._parts.telemetry.refused_to_run.set(0, cause=cause)

    def _goes_on(self, generation: int | None) -> bool:
        return not self._stopping and self._parts.intake.generation == generation

    def _oldest_pending_seconds(self) -> float:
        first = self._table_wait.first
        since = self._parts.intake.oldest_ms if first is None else first.record.timestamp_ms
        return 0.0 if since is None else max(self._now_ms() - since, 0) / 1000

    def _now_ms(self) -> int:
        return int(self._parts.wall_clock().timestamp() * 1000)
