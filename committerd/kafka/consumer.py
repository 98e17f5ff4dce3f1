"""The member of the dataset's consumer group: one thread that owns one consumer.

                      calls                        poll
    event loop  ---------------->  owner thread  -------->  kafka-python's IO thread  <-->  broker
                <----------------                <--------
                    deliveries                    assigned, revoked, lost

kafka-python's consumer serves one thread and blocks, so a thread of its own polls it all the time: a consumer that
isn't polled leaves its group. Work for the consumer comes as calls, which run between two polls. Events and records go
to the event loop as deliveries, in order.

An assignment begins parked: the partition is paused, at a position that is never read, until `seek` sets the offset.
Kafka's committed offset decides nothing. Deliveries carry the assignment's generation and the count of seeks; if either
has changed since a fetch, its records are dropped, at any stage.

A consumer that can't continue is closed and replaced, whatever the reason, and its fetched records are dropped. An
error while the first consumer is opened ends the thread; later the thread tries until the broker is back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Literal, TypeVar

import anyio
from anyio import from_thread
from kafka import KafkaConsumer, TopicPartition, errors
from kafka.consumer.fetcher import RecordTooLargeError
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import MemberState, OffsetAndMetadata

from committerd.errors import CommitterError
from committerd.kafka.access import denied
from committerd.kafka.assignment import Assignment, Delivery
from committerd.kafka.clients import OpenClient, in_words, open_client, silent_seconds
from committerd.kafka.options import Topics, member_options
from committerd.kafka.records import to_record
from committerd.kafka.repairs import connection_to
from committerd.queue.port import Assigned
from committerd.settings.kafka import KafkaSettings

_log = logging.getLogger(__name__)

_POLL_MS = 100
_POLL_MS_IDLE = 20
"""Poll timeout while the partition is parked or full: then the next event is a call and not a record."""
_POLL_RECORDS_MAX = 2_500
_COMMIT_MS_MAX = 3_000
_CLOSE_MS_MAX = 5_000
_REOPEN_BOOTSTRAP_MS = 5_000
_REOPEN_SECONDS = (0.5, 4.0)
_LIVED_SECONDS = 30.0
"""A consumer that has lived this long is replaced without a wait."""
_METADATA_SECONDS = 2.0
_METADATA_PAUSE_SECONDS = 0.02
_METADATA_AGE_SECONDS = 2.0
_WARNING_AGE_SECONDS = 10.0

_UNREADABLE = (
    errors.OffsetOutOfRangeError,
    errors.LogTruncationError,
    errors.NoOffsetForPartitionError,
    errors.CorruptRecordError,
    errors.UnsupportedCodecError,
    RecordTooLargeError,
)
"""Errors of `poll` that mean that the position can't be read, now or later."""

MembershipState = Literal["active", "standby", "joining"]
Result = TypeVar("Result")


class Call(Generic[Result]):
    """Work for the owner thread; the event loop creates and awaits it."""

    def __init__(self, work: Callable[[Any], Result]) -> None:
        self._work = work
        self._done = anyio.Event()
        self._results: list[Result] = []
        self._error: errors.KafkaError | None = None
        self._abandoned = False

    def execute(self, consumer: Any) -> None:
        """Execute the work, in the owner thread."""
        if self._abandoned:
            return
        try:
            self._results.append(self._work(consumer))
        except errors.KafkaError as error:
            self._error = error
        from_thread.run_sync(self._done.set)

    async def result(self) -> Result:
        """Await the result. Raises the KafkaError of the work. If cancelled, work that has not begun is dropped."""
        try:
            await self._done.wait()
        finally:
            self._abandoned = True
        if self._error is not None:
            raise self._error
        return self._results[0]


class GroupMember:
    """The owner thread's work and state. Comments group the methods by the thread that calls them."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Topics,
        name: str,
        *,
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._options = member_options(settings, topics, name)
        self._staged = TopicPartition(topics.staged, 0)
        # The owner thread does nothing else during an offset commit.
        self._commit_ms = min(settings.request_timeout_ms, _COMMIT_MS_MAX)
        self.assignment = Assignment(
            self._staged,
            records_max=settings.outstanding_records_max,
            bytes_max=settings.outstanding_bytes_max,
        )
        # Each delivery waits until the event loop takes it; small deliveries would make small groups of a backlog.
        self._poll_records = min(settings.outstanding_records_max // 4, _POLL_RECORDS_MAX)
        self._deliver = deliver
        self._calls: queue.SimpleQueue[Call[Any]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._warned_at = -_WARNING_AGE_SECONDS
        self._network: Any = None
        self._assignor: Any = None
        self._topic_id: object = None
        self._metadata_at = 0.0
        self._connection: object = None
        self._unbroken = True
        self.turned_at = time.monotonic()
        """When the owner thread last ran through its loop (monotonic clock, seconds)."""
        self.trouble = ""
        """Why this process can't become or stay a member of the group; empty while it can."""
        self._group = topics.group
        self._replace_because = ""
        self._reopen_seconds = _REOPEN_SECONDS[0]
        self.state: MembershipState = "joining"
        self.end_offset: int | None = None
        """Last known end of the staged partition, from each fetch or from another request; None before the first."""

    # From the event loop

    def submit(self, work: Callable[[Any], Result]) -> Call[Result]:
        """Let the owner thread call `work` with its consumer."""
        call = Call(work)
        self._calls.put(call)
        return call

    def stop(self) -> None:
        """Make `run` end: the consumer leaves the group, so a standby takes over at once."""
        self._stopping.set()

    def replace(self, reason: str) -> None:
        """Ask the owner thread to close the consumer and open another."""
        self._replace_because = reason

    def silent_seconds(self) -> float:
        """Seconds since a broker last sent anything to the consumer."""
        network = self._network
        return float("inf") if network is None else silent_seconds(network)

    def leader(self) -> int | None:
        """Node id of the broker that leads the staged partition; None if it is not known."""
        network = self._network
        node = None if network is None else network.cluster.leader_for_partition(self._staged)
        return None if node is None or node < 0 else int(node)

    # In the owner thread, as calls

    def acknowledge(self, consumer: Any, generation: int, offset: int, metadata: str) -> bool | None:
        """Commit the group's offset.

        Returns False if this member no longer owns the partition, None if the group rebalances (try again then). Raises
        KafkaError if the commit fails.
        """
        if not self.assignment.owns(generation):
            return False
        committed = {self._staged: OffsetAndMetadata(offset, metadata, -1)}
        try:
            consumer.commit(committed, timeout_ms=self._commit_ms)
        except errors.RebalanceInProgressError:
            return None
        except errors.CommitFailedError as error:
            rebalances = any(isinstance(a, errors.RebalanceInProgressError) for a in error.args)
            return None if rebalances else False
        return True

    # The owner thread

    def run(self, ready: Callable[[], None]) -> None:
        """Own a consumer until `stop`; `ready` is called on the event loop when the first consumer is open.

        Raises `QueueUnavailable` if the first consumer can't be opened.
        """
        opened: OpenClient[Any] | None = self._open(self._options)
        from_thread.run_sync(ready)
        while opened is not None:
            began = time.monotonic()
            try:
                self._serve(opened)
            finally:
                self._close(opened)
            if time.monotonic() - began >= _LIVED_SECONDS:
                self._reopen_seconds = _REOPEN_SECONDS[0]
            opened = self._open_again()
        self._network = None

    def _serve(self, opened: OpenClient[Any]) -> None:
        """Poll until stopped, or until the consumer must be replaced."""
        consumer = opened.client
        self._network, self._topic_id, self._replace_because = opened.network, None, ""
        self._connection, self._unbroken = None, True
        consumer.subscribe([self._staged.topic], listener=_Listener(self.assignment, opened, self._assignor))
        until = time.monotonic() + _METADATA_SECONDS
        while not self._knows_topic() and time.monotonic() < until:
            self._stopping.wait(_METADATA_PAUSE_SECONDS)
        while not self._stopping.is_set():
            self.turned_at = time.monotonic()
            self._execute_calls(consumer)
            self.assignment.throttle(consumer)
            if self._replace_because:
                _log.warning("kafka.consumer_replaced", extra={"error": self._replace_because})
                return
            if not self._turn(consumer):
                return

    def _knows_topic(self) -> bool:
        """Whether the client knows the partition; requests the metadata again if not.

        kafka-python forgets a requested topic if the response to an earlier request comes in between. The group then
        has nothing to assign until the metadata expires.
        """
        cluster = self._network.cluster
        if cluster.partitions_for_topic(self._staged.topic) is not None:
            return True
        cluster.request_update()
        return False

    def _turn(self, consumer: Any) -> bool:
        """Poll once. Returns False if the consumer must be replaced."""
        generation, idle = self.assignment.generation, self.assignment.idle
        try:
            polled = consumer.poll(timeout_ms=_POLL_MS_IDLE if idle else _POLL_MS, max_records=self._poll_records)
        except errors.KafkaError as error:
            self._deliver_changes()
            return self._survives(error)
        self._deliver_changes()
        self._knows_topic()
        if self._was_recreated():
            return False
        self._look_around(consumer, idle=idle)
        self._note_connection()
        found = polled.get(self._staged, [])
        if found or not self._unbroken:
            # `hand_over` drops the records if the assignment changed during the poll. A delivery may be empty: after a
            # change of connection the log may have the same end and other records.
            records = [to_record(each) for each in found]
            delivery = self.assignment.hand_over(generation, records, unbroken=self._unbroken)
            if delivery is not None:
                self._unbroken = True
                self._deliver(delivery)
        return True

    def _survives(self, error: errors.KafkaError) -> bool:
        """Whether the consumer can continue after an error of `poll`."""
        if isinstance(error, errors.RetriableError):
            if time.monotonic() - self._warned_at >= _WARNING_AGE_SECONDS:
                self._warned_at = time.monotonic()
                _log.warning("kafka.no_response", extra={"error": in_words(error)})
            self._stopping.wait(_POLL_MS / 1000)
            return True
        if isinstance(error, _UNREADABLE):
            self._report_unreadable(f"{self._staged.topic}: {error}")
        else:
            self.trouble = denied(error, "Read", topic=self._staged.topic, group=self._group) or in_words(error)
            _log.error("kafka.consumer_replaced", extra={"error": self.trouble})
        return False

    def _note_connection(self) -> None:
        """Note whether the leader has changed, or has reconnected: its log may have been rewritten meanwhile."""
        connection = connection_to(self._network, self.leader())
        if connection is None or connection is self._connection:
            return
        if self._connection is not None:
            self._unbroken = False
        self._connection = connection

    def _was_recreated(self) -> bool:
        """Whether the topic was deleted and recreated. kafka-python fetches by name, and does not notice."""
        found = self._network.cluster.topic_id(self._staged.topic)
        if not found or found == self._topic_id:
            return False
        before, self._topic_id = self._topic_id, found
        if before is None:
            return False
        self._report_unreadable(f"{self._staged.topic} was deleted and recreated: its id was {before}, is {found}")
        return True

    def _report_unreadable(self, reason: str) -> None:
        delivery = self.assignment.fail(reason)
        if delivery is not None:
            _log.error("kafka.unreadable", extra={"reason": reason})
            self._deliver(delivery)

    def _look_around(self, consumer: Any, *, idle: bool) -> None:
        """Note the state of the membership and the end of the partition."""
        state, owned = consumer.group_metadata().state, self.assignment.owned
        if state == MemberState.UNJOINED or (state != MemberState.STABLE and not owned):
            self.state = "joining"
        else:
            self.state, self.trouble = "active" if owned else "standby", ""
        if idle:
            # No fetch is sent meanwhile, so none can fail when the topic is deleted or recreated.
            if time.monotonic() - self._metadata_at >= _METADATA_AGE_SECONDS:
                self._metadata_at = time.monotonic()
                self._network.cluster.request_update()
        elif owned:
            with suppress(errors.KafkaError, KeyError):  # just revoked
                self.end_offset = consumer.highwater(self._staged) or self.end_offset

    def _execute_calls(self, consumer: Any) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            call.execute(consumer)

    def _deliver_changes(self) -> None:
        for change in self.assignment.changes():
            facts = {"generation": change.event.generation}
            if isinstance(change.event, Assigned):
                _log.info("kafka.assigned", extra=facts)
            else:
                _log.info("kafka.revoked", extra=facts)
            self._deliver(change)

    def _close(self, opened: OpenClient[Any]) -> None:
        self.state = "joining"
        try:
            # Calls the listener, then leaves the group.
            opened.client.close(autocommit=False, timeout_ms=_CLOSE_MS_MAX)
        except errors.KafkaError as error:
            _log.warning("kafka.consumer_close_failed", extra={"error": str(error)})
        opened.network.close()
        if self._stopping.is_set():
            _log.info("kafka.left", extra={"group": self._group})
        self.assignment.revoked(lost=True)  # in case the listener was not called
        self._deliver_changes()

    def _open(self, options: dict[str, Any]) -> OpenClient[Any]:
        # The only assignor that never takes the topic from its owner when a standby joins.
        self._assignor = CooperativeStickyAssignor()
        strategy = {"partition_assignment_strategy": [self._assignor]}
        return open_client(KafkaConsumer, options | strategy)

    def _open_again(self) -> OpenClient[Any] | None:
        """Open a new consumer, however long it takes; None if stopped meanwhile."""
        options = self._options | {"bootstrap_timeout_ms": _REOPEN_BOOTSTRAP_MS}
        while not self._stopping.wait(self._reopen_seconds):
            self.turned_at = time.monotonic()
            self._reopen_seconds = min(self._reopen_seconds * 2, _REOPEN_SECONDS[1])
            try:
                return self._open(options)
            except CommitterError as error:
                _log.warning("kafka.unreachable", extra={"error": str(error)})
        return None


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
    """Passes kafka-python's rebalance events on. It must not wait: heartbeats run in the same thread."""

    def __init__(self, assignment: Assignment, opened: OpenClient[Any], assignor: Any) -> None:
        self._assignment = assignment
        self._consumer = opened.client
        self._assignor = assignor

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._assignment.assigned(self._consumer, sorted(assigned))

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if _names_staged(revoked):
            self._assignment.revoked(lost=False)

    def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        # kafka-python does not reset it: when it joins again it would claim the topic, and a process that was
        # suspended would take it from its new owner.
        self._assignor.member_assignment = None
        if _names_staged(lost):
            self._assignment.revoked(lost=True)


def _names_staged(partitions: set[TopicPartition]) -> bool:
    # The group subscribes to one topic; only its first partition counts.
    return any(partition.partition == 0 for partition in partitions)
