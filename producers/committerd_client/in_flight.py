"""Submissions in flight: records without an outcome yet. Only the event loop uses this module.

A handle or a waiting `commit` keeps its submission alive, and so does the sender until Kafka has acknowledged the
record. `Submissions` holds weak references: a submission that nobody waits for takes no memory, so a program that only
submits may run through an outage of the committer of any length.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from weakref import WeakValueDictionary

from committerd_client.errors import ClientClosed, ClientError, CommitTimeout, InFlightFull
from committerd_client.headers import StagedRecord
from committerd_client.outcomes import interpret
from committerd_client.queue_status import Cause
from committerd_client.results import CommitResult
from committerd_client.tracing import SendSpan
from committerd_common.messages import Outcome

_EARLY_MAX = 1_000


class Submission:
    """One record, from its submission to its outcome."""

    __slots__ = (
        "__weakref__",
        "_waiters",
        "acknowledged",
        "namesake",
        "offset",
        "record",
        "result",
        "size",
        "span",
        "uuid",
        "wanted",
    )

    def __init__(self, record: StagedRecord, size: int, span: SendSpan | None = None) -> None:
        self.uuid = record.uuid
        self.span = span
        """None once it has ended, or if the application has no trace."""
        self.record: StagedRecord | None = record
        """None once Kafka has acknowledged it."""
        self.size = size
        """Size of the record in bytes."""
        self.wanted = True
        """False once the caller has given up; read by the sender's thread."""
        self.acknowledged = False
        self.offset: int | None = None
        self.result: CommitResult | ClientError | None = None
        self.namesake: Submission | None = None
        """An earlier submission with the same uuid whose caller may still wait."""
        self._waiters: list[tuple[bool, asyncio.Future[None]]] = []

    def stage(self, offset: int | None) -> None:
        """Note Kafka's acknowledgement. `offset`: None if Kafka does not return it."""
        self.record = None
        self.acknowledged = True
        if offset is not None:
            self.offset = offset
        span, self.span = self.span, None
        if span is not None:
            span.sent(self.offset)
        self._wake()

    def fail(self, error: ClientError) -> None:
        """Note that Kafka's acknowledgement is not waited for any more, and that the result is this error."""
        span, self.span = self.span, None
        if span is not None:
            span.failed(error)
        self.resolve(error)

    def resolve(self, result: CommitResult | ClientError) -> None:
        """Note the result. The first one counts; later ones are equal."""
        if self.result is None:
            self.result = result
            self._wake()

    async def wait_staged(self, seconds: float | None) -> bool:
        """Wait until Kafka has acknowledged the record, or there is an outcome; False if the time is up first."""
        return self.acknowledged or self.result is not None or await self._wait(seconds, for_result=False)

    async def wait_result(self, seconds: float | None) -> bool:
        """Wait until there is an outcome; False if the time is up first."""
        return self.result is not None or await self._wait(seconds, for_result=True)

    async def _wait(self, seconds: float | None, *, for_result: bool) -> bool:
        # Each waiter has its own future, so cancelling one does not affect the others.
        waiter = self._enlist(for_result=for_result)
        try:
            return await wait_for_future(waiter, seconds)
        finally:
            if not waiter.done() or waiter.cancelled() or waiter.exception() is not None:
                self._waiters = [one for one in self._waiters if one[1] is not waiter]

    def _enlist(self, *, for_result: bool) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((for_result, waiter))
        return waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for for_result, waiter in waiters:
            if for_result and self.result is None:
                self._waiters.append((for_result, waiter))
            elif not waiter.done():
                waiter.set_result(None)


async def wait_for_future(future: asyncio.Future[None], seconds: float | None) -> bool:
    """Wait for the future; False if the time is up first.

    It costs less than a task or a timeout scope, and thousands of futures wait at once.
    """
    if seconds is None:
        await future
        return True
    timer = asyncio.get_running_loop().call_later(max(seconds, 0), _expire, future)
    try:
        await future
    except TimeoutError:
        return False
    finally:
        timer.cancel()
    return True


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def timed_out(
    submission: Submission, *, seconds: float | None, topic: str, trouble: str, found: Cause | None = None
) -> CommitTimeout:
    """The error for a caller that has waited `seconds` for the outcome. `found`: the cause, if it is known."""
    if submission.acknowledged:
        known = found is not None and found.why != "behind"
        where = f"Kafka holds it{_at(submission)} of {topic}{'' if known else ', and the committer will get to it'}"
    else:
        where = f"Kafka has not acknowledged it, and may or may not hold it in {topic}"
    cause = "" if found is None else f" {found.text}"
    error = CommitTimeout(
        f"transaction {submission.uuid} got no outcome within {seconds} s: unknown, not failed. {where}{trouble}."
        f"{cause} To learn what became of it, commit the same transaction again, with its uuid: DUPLICATE means that "
        "it was committed. The same data under a new uuid may be committed twice",
        uuid=submission.uuid,
    )
    error.offset = submission.offset
    error.why = "" if found is None else found.why
    return error


def withdrawn(submission: Submission, topic: str) -> str:
    """What became of a submission whose caller was cancelled or interrupted while it waited."""
    if submission.acknowledged:
        where = f"is staged{_at(submission)} of {topic}, and will be committed all the same"
    else:
        where = f"was sent to {topic}, and may be committed all the same"
    return (
        f"committerd: transaction {submission.uuid} {where}. `client.resume(uuid, since=...)` finds its outcome. The "
        "same transaction may be committed again; the same data under a new uuid would be there twice"
    )


def closed(submission: Submission) -> ClientClosed:
    """The error for a caller that still waits when the client is closed."""
    if submission.acknowledged:
        where = f"It is staged{_at(submission)} and may be committed"
    else:
        where = "Kafka has not acknowledged it"
    error = ClientClosed(
        f"the client was closed before transaction {submission.uuid} got its outcome: unknown, not failed. {where}; "
        "commit the same transaction again to learn what became of it",
        uuid=submission.uuid,
    )
    error.offset = submission.offset
    return error


def _at(submission: Submission) -> str:
    return "" if submission.offset is None else f" at offset {submission.offset}"


class Submissions:
    """All submissions that may still get an outcome, by uuid and by offset."""

    def __init__(self) -> None:
        self._by_uuid: WeakValueDictionary[str, Submission] = WeakValueDictionary()
        self._by_offset: WeakValueDictionary[int, Submission] = WeakValueDictionary()
        self._early: OrderedDict[int, Outcome] = OrderedDict()

    def __iter__(self) -> Iterator[Submission]:
        for newest in list(self._by_uuid.values()):
            submission: Submission | None = newest
            while submission is not None:
                yield submission
                submission = submission.namesake

    def add(self, submission: Submission) -> None:
        """Add a submission. Call it before the record is sent: the outcome may come before Kafka's acknowledgement."""
        earlier = self._by_uuid.get(submission.uuid)
        while earlier is not None and not earlier.wanted:
            earlier = earlier.namesake
        submission.namesake = earlier
        self._by_uuid[submission.uuid] = submission

    def staged(self, submission: Submission, offset: int | None) -> None:
        """Note that Kafka has acknowledged the record."""
        submission.stage(offset)
        if offset is None:
            return
        self._by_offset[offset] = submission
        early = self._early.pop(offset, None)
        if early is not None:
            submission.resolve(interpret(_named(early, submission.uuid)))

    def received(self, outcome: Outcome) -> None:
        """Give the outcome to its submission; most outcomes of a partition belong to other clients.

        An outcome without a uuid belongs to a record that the committer could not decode; its offset identifies it.
        """
        if outcome.uuid:
            submission = self._by_uuid.get(outcome.uuid)
            result = interpret(outcome) if submission is not None else None
            while submission is not None and result is not None:
                submission.offset = outcome.offset if submission.offset is None else submission.offset
                submission.resolve(result)
                submission = submission.namesake
            return
        known = self._by_offset.get(outcome.offset)
        if known is not None:
            known.resolve(interpret(_named(outcome, known.uuid)))
            return
        self._early[outcome.offset] = outcome
        while len(self._early) > _EARLY_MAX:
            self._early.popitem(last=False)


def _named(outcome: Outcome, uuid: str) -> Outcome:
    named = Outcome()
    named.CopyFrom(outcome)
    named.uuid = uuid
    return named


class InFlightLimit:
    """Bounds the records that wait for Kafka's acknowledgement, in number and bytes. First come, first served."""

    def __init__(self, *, records_max: int, bytes_max: int) -> None:
        self.records_max, self.bytes_max = records_max, bytes_max
        self._records = self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int, seconds: float | None) -> None:
        """Wait until there is room. Raises `InFlightFull` if the time is up first."""
        if not self._waiting and self._fits(size):
            self._take(size)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            got = await wait_for_future(future, seconds)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back(size)  # there was room at the moment of the cancellation
            else:
                self._admit()
            raise
        if not got:
            self._admit()
            raise InFlightFull(
                f"{self._records} records of {self._bytes} bytes wait for Kafka's acknowledgement, and there was no "
                f"room for {size} more bytes within {seconds} s; nothing was sent. Kafka is slow or away, or "
                f"max_in_flight ({self.records_max}) or max_in_flight_bytes ({self.bytes_max}) is too low"
            )

    def close(self) -> None:
        """Raise `ClientClosed` in all callers that still wait."""
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(ClientClosed("the client was closed before there was room; nothing was sent"))
        self._waiting.clear()

    def give_back(self, size: int) -> None:
        """Release the room of a record that is acknowledged or given up."""
        self._records -= 1
        self._bytes -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        if self._records == 0:
            return True  # a single record always fits
        return self._records < self.records_max and self._bytes + size <= self.bytes_max

    def _take(self, size: int) -> None:
        self._records += 1
        self._bytes += size

    def _admit(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if not future.done():
                if not self._fits(size):
                    return
                self._take(size)
                future.set_result(None)
            self._waiting.popleft()


class Arrivals:
    """Takes what arrives from Kafka: acknowledgements, failures and outcomes. Called in the event loop."""

    def __init__(self, room: InFlightLimit, submissions: Submissions) -> None:
        self._room, self._submissions = room, submissions

    def acknowledged(self, submission: Submission, offset: int | None) -> None:
        """Kafka has acknowledged the record."""
        self._room.give_back(submission.size)
        self._submissions.staged(submission, offset)

    def failed(self, submission: Submission, error: ClientError) -> None:
        """The sender has given the record up."""
        self._room.give_back(submission.size)
        submission.fail(error)

    def received(self, outcome: Outcome) -> None:
        """Take an outcome from this client's partition; it may be for another client."""
        self._submissions.received(outcome)
