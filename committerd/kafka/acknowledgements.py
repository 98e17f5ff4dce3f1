"""Commits the group's offsets for all datasets of a member: one request at a time, with what has come meanwhile.

So many tables need no more requests than one, and the owner thread waits for no response: it sends, and looks again
when the response has come. An error may be about one topic only; then each offset is sent again, by itself.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio import from_thread
from kafka import TopicPartition, errors
from kafka.structs import OffsetAndMetadata

from committerd.kafka.assignment import Assignment
from committerd.kafka.repairs import commit

_SLACK_SECONDS = 1.0
"""How much longer than its own timeout a request may take."""
_TOGETHER_MAX = 500
"""Maximum number of offsets in a request."""


@dataclass(eq=False, slots=True)
class _Offset:
    """An offset on its way to Kafka; the event loop waits for it."""

    partition: TopicPartition
    assignment: Assignment
    generation: int
    offset: int
    metadata: str
    done: anyio.Event = field(default_factory=anyio.Event)
    taken: bool | None = None
    error: errors.KafkaError | None = None
    abandoned: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class _Sent:
    offsets: Sequence[_Offset]
    response: Any
    until: float


class Acknowledgements:
    """The offsets that wait, and the request that is under way."""

    def __init__(self, *, timeout_ms: int, wake: Callable[[], None]) -> None:
        """`wake`: makes the owner thread call `turn`; called from any thread."""
        self._timeout_ms = timeout_ms
        self._wake = wake
        self._waiting: collections.deque[_Offset] = collections.deque()
        self._sent: _Sent | None = None

    # From the event loop

    async def commit(
        self, partition: TopicPartition, assignment: Assignment, generation: int, *, offset: int, metadata: str
    ) -> bool | None:
        """Commit the group's offset of a partition.

        Returns False if this member no longer owns the partition, None if the group rebalances (try again then). Raises
        KafkaError if the commit fails.
        """
        given = _Offset(partition, assignment, generation, offset, metadata)
        self._waiting.append(given)
        self._wake()
        try:
            await given.done.wait()
        finally:
            given.abandoned = True
        if given.error is not None:
            raise given.error
        return given.taken

    # In the owner thread

    def turn(self, consumer: Any) -> bool:
        """Take the response if it has come, and send what waits. Returns whether anything happened."""
        if self._sent is not None:
            if not self._sent.response.is_done and time.monotonic() < self._sent.until:
                return False
            self._take_response(self._sent)
            self._sent = None
            self._send(consumer)
            return True
        return bool(self._waiting) and self._send(consumer)

    def break_off(self) -> None:
        """The consumer is closed: the request under way gets no response."""
        if self._sent is not None:
            _finish(self._sent.offsets, error=errors.KafkaConnectionError("the connection was closed"))
            self._sent = None

    def _send(self, consumer: Any) -> bool:
        offsets: list[_Offset] = []
        outdated: list[_Offset] = []
        while self._waiting and len(offsets) < _TOGETHER_MAX and not (offsets and self._waiting[0].alone):
            given = self._waiting.popleft()
            if not given.assignment.owns(given.generation):
                outdated.append(given)
            elif not given.abandoned:
                offsets.append(given)
                if given.alone:
                    break
        if outdated:
            _finish(outdated, taken=False)
        if offsets:
            # Of several offsets of a partition, the last counts.
            last = {given.partition: OffsetAndMetadata(given.offset, given.metadata, -1) for given in offsets}
            try:
                response = commit(consumer, last, self._timeout_ms)
            except Exception as error:
                _finish(offsets, error=errors.KafkaConnectionError(f"the consumer has failed: {error!r}"))
                raise
            self._sent = _Sent(offsets, response, time.monotonic() + self._timeout_ms / 1000 + _SLACK_SECONDS)
            response.add_both(lambda _: self._wake())
        return bool(offsets or outdated)

    def _take_response(self, sent: _Sent) -> None:
        response = sent.response
        error = response.exception if response.is_done else errors.KafkaTimeoutError("no response in time")
        match error:
            case None:
                _finish(sent.offsets, taken=True)
            case errors.RebalanceInProgressError():
                _finish(sent.offsets, taken=None)
            case errors.CommitFailedError():
                rebalances = any(isinstance(one, errors.RebalanceInProgressError) for one in error.args)
                _finish(sent.offsets, taken=None if rebalances else False)
            case errors.RetriableError() | errors.GroupAuthorizationFailedError():
                _finish(sent.offsets, error=error)
            case errors.KafkaError() if len({given.partition for given in sent.offsets}) > 1:
                for given in sent.offsets:
                    given.alone = True
                self._waiting.extendleft(reversed(sent.offsets))
            case errors.KafkaError():
                _finish(sent.offsets, error=error)
            case _:
                raise error


def _finish(offsets: Iterable[_Offset], *, taken: bool | None = None, error: errors.KafkaError | None = None) -> None:
    """Tell the event loop what became of the offsets; called from the owner thread."""

    def finish() -> None:
        for given in offsets:
            given.taken, given.error = taken, error
            given.done.set()

    from_thread.run_sync(finish)
