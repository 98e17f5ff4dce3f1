"""The member of a consumer group: one thread that owns one consumer, for all datasets that the process serves.

                      calls                        poll
    event loop  ---------------->  owner thread  -------->  kafka-python's IO thread  <-->  broker
                <----------------                <--------
                    deliveries                    assigned, revoked, lost

kafka-python's consumer serves one thread, so a thread of its own polls it all the time: a consumer that isn't polled
leaves its group. Work for the consumer comes as calls, which run between two polls. Events and records go to the event
loop as deliveries, in order. The thread sleeps until a call, a response or a request of the group wakes it.

Each dataset has a `Share`: its partition, with an `Assignment` of its own. An assignment begins parked: the partition
is paused, at a position that is never read, until `seek` sets the offset. Kafka's committed offset decides nothing.
Deliveries carry the assignment's generation and the count of seeks; if either has changed since a fetch, its records
are dropped, at any stage.

A partition that can't be read, or whose topic is gone, is suspended: its committer sees it revoked, and later assigned
again. The others go on. A consumer that can't continue is closed and replaced, whatever the reason, and its fetched
records are dropped; the thread tries until the broker is back.
"""

from __future__ import annotations

import collections
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import anyio
from anyio import from_thread
from kafka import KafkaConsumer, TopicPartition, errors
from kafka.consumer.fetcher import RecordTooLargeError
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.future import Future
from kafka.structs import MemberState

from committerd.errors import CommitterError, QueueUnavailable
from committerd.kafka.acknowledgements import Acknowledgements
from committerd.kafka.assignment import Assignment, Delivery
from committerd.kafka.assignor import StagedAssignor
from committerd.kafka.clients import OpenClient, in_words, open_client, silent_seconds
from committerd.kafka.options import member_options
from committerd.kafka.records import to_record
from committerd.kafka.repairs import (
    connections,
    fetch,
    forget_fetched,
    has_fetched,
    is_joining,
    must_join,
    must_request,
    only_topics,
    partition_of,
    requests_of,
    take_part,
    watch_consumer,
)
from committerd.queue.port import Assigned
from committerd.settings.kafka import KafkaSettings
from committerd_login.access import denied, lacking

_log = logging.getLogger(__name__)

_JOIN_MS = 20
"""How long a turn of the owner thread waits for the group, while the member finds its coordinator or joins."""
_REST_SECONDS = 0.5
"""How long the owner thread sleeps if nothing wakes it."""
_REST_SECONDS_UNSETTLED = 0.1
_FRUITLESS_SECONDS = 0.01
"""How long it sleeps at least after a turn in which nothing came, because a response with an error comes at once, and
again. It does not sleep if no response was there when the turn began to fetch, and one is there now.
"""
_POLL_RECORDS_MAX = 1_000
"""Records of one poll: as many as one version takes. Other partitions' records wait until they are unpacked."""
_COMMIT_MS_MAX = 3_000
_CLOSE_MS_MAX = 5_000
_BOOTSTRAP_MS = 5_000
_REOPEN_SECONDS = (0.5, 4.0)
_LIVED_SECONDS = 30.0
"""A consumer that has lived this long is replaced without a wait; so is a partition that was read for this long."""
_TOPICS_SECONDS = 0.1
"""Changes of the subscribed topics are collected until none has come for so long: each makes all members join again."""
_TOPICS_SECONDS_MAX = 0.5
"""How long they are collected at most."""
_PREPARATION_SECONDS_MAX = 10.0
"""How long they are collected at most while the topics of other datasets are prepared: a member that begins to serve
its datasets one by one would have more partitions moved than one that joins with all of them."""
_METADATA_SECONDS = 2.0
"""How often metadata is requested while a topic is not known, or is not fetched, so that no fetch can fail."""
_METADATA_SECONDS_NEW = 0.1
"""How often it is requested while a topic was added less than `_METADATA_SECONDS` ago."""
_WARNING_AGE_SECONDS = 10.0

UNREADABLE = (
    errors.OffsetOutOfRangeError,
    errors.LogTruncationError,
    errors.NoOffsetForPartitionError,
    errors.CorruptRecordError,
    errors.UnsupportedCodecError,
    RecordTooLargeError,
)
"""Errors of `fetch` that mean that the position can't be read, now or later."""

MembershipState = Literal["active", "standby", "joining"]
Result = TypeVar("Result")


class Call(Generic[Result]):
    """Work for the owner thread; the event loop creates and awaits it."""

    def __init__(self, work: Callable[[Any], Result]) -> None:
        self._work = work
        self._done = anyio.Event()
        self._results: list[Result] = []
        self._error: Exception | None = None
        self._abandoned = False

    def execute(self, consumer: Any) -> None:
        """Execute the work, in the owner thread. Raises what the client should not raise."""
        if self._abandoned:
            return
        try:
            self._results.append(self._work(consumer))
        except errors.KafkaError as error:
            self._error = error
        except Exception as error:
            self._error = QueueUnavailable(f"the Kafka consumer has failed: {error!r}")
            raise
        finally:
            from_thread.run_sync(self._done.set)

    async def result(self) -> Result:
        """Await the result. If cancelled, work that has not begun is dropped.

        Raises the KafkaError of the work, and `QueueUnavailable` after any other error, when the consumer is replaced.
        """
        try:
            await self._done.wait()
        finally:
            self._abandoned = True
        if self._error is not None:
            raise self._error
        return self._results[0]


class Share:
    """One dataset's part in the member: its staged partition."""

    def __init__(
        self, member: GroupMember, staged: TopicPartition, dataset: str, *, deliver: Callable[[Delivery], None]
    ) -> None:
        """`dataset`: its name, for the log. `deliver` is called on the event loop."""
        self.staged = staged
        self.dataset = dataset
        self.assignment = member.new_assignment(staged)
        self.trouble = ""
        """Why this dataset's partition can't be read now; empty while it can."""
        self.end_offset: int | None = None
        """Last known end of the partition, from a request; `GroupMember.end_offset` knows of fetches too."""
        # The rest is for the owner thread alone.
        self.deliver = deliver
        self.leaves = False
        self.assigned = False
        """Whether the group assigns the partition to this member. The assignment is not owned while it is suspended."""
        self.suspended_until: float | None = None
        self.pending: Sequence[Any] = ()
        """The requests that were under way when it was suspended: their records are of the time before."""
        self.renew_seconds = _REOPEN_SECONDS[0]
        self.taken_at = float("-inf")
        self.topic_id: object = None
        self.missed_at: int | None = None
        """The response with metadata in which its topic was missing at first; None if it was in the last one."""
        self.connection: object = None
        self._member = member

    @property
    def state(self) -> MembershipState:
        """active: this member owns the partition. standby: another may own it. joining: not a member yet."""
        if self.trouble or not self._member.takes_part(self):
            return "joining"
        return "active" if self.assignment.owned else "standby"


class GroupMember:
    """The owner thread's work and state. Comments group the methods by the thread that calls them."""

    def __init__(self, settings: KafkaSettings, group: str, name: str) -> None:
        """`name`: of the client, in the broker's logs."""
        self._options = member_options(settings, group, name)
        self._settings = settings
        self._group = group
        # Each delivery waits until the event loop takes it; small deliveries would make small groups of a backlog.
        self._poll_records = min(settings.outstanding_records_max // 4, _POLL_RECORDS_MAX)
        self._lock = threading.Lock()
        self._shares: dict[TopicPartition, Share] = {}
        self._held: set[TopicPartition] = set()
        """The partitions that the group assigns to this member. It and `Share.assigned` change under the lock: the IO
        thread may take a partition while its dataset comes back."""
        self._came: collections.deque[tuple[Share | None, Share]] = collections.deque()
        """The shares that were added, each after the share of the same partition that was removed and is not forgotten
        yet; None = there was none."""
        self._added_at = 0.0
        self._prepared = 0
        """Number of datasets whose topics are prepared now."""
        self._prepared_at = 0.0
        """When the last of them was prepared."""
        self._calls: queue.SimpleQueue[Call[Any]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._acknowledgements = Acknowledgements(
            timeout_ms=min(settings.request_timeout_ms, _COMMIT_MS_MAX), wake=self._woken.set
        )
        self._changed: collections.deque[Share] = collections.deque()
        """The shares whose assignment has changed, and whose queues were not told yet."""
        self._handed: list[tuple[Share, Delivery]] = []
        self._subscribed: frozenset[str] = frozenset()
        self._to_subscribe_at: float | None = None
        self._changing_since: float | None = None
        self._changed_at = 0.0
        """When datasets last came or went."""
        self._changes = self._changes_settled = 0
        """How often datasets have come or gone, and up to which change the group knows it."""
        self._suspended: set[Share] = set()
        self._broken: set[Share] = set()
        """The shares whose connection was lost since their last records."""
        self._connections: dict[object, object] = {}
        self._metadata_came = self._metadata_seen = 0
        """How many responses with metadata have come, and how many when the topics were last looked at."""
        self._metadata_at = 0.0
        self._watched: set[Future] = set()
        """The requests whose response wakes the owner thread."""
        self._takes_response = False
        """Whether a response was there when the last turn began to fetch."""
        self._warned_at = -_WARNING_AGE_SECONDS
        self._consumer: Any = None
        self._network: Any = None
        self._assignor: Any = None
        self._membership = MemberState.UNJOINED
        self._replace_because = ""
        self._reopen_seconds = _REOPEN_SECONDS[0]
        self.turned_at = time.monotonic()
        """When the owner thread last ran through its loop (monotonic clock, seconds)."""
        self.trouble = ""
        """Why this process can't become or stay a member of the group; empty while it can."""

    # From the event loop

    def add(self, share: Share) -> None:
        """Take part in the share-out of a staged partition."""
        staged = share.staged
        with self._lock:
            if (before := self._shares.get(staged)) is not None and not before.leaves:
                raise ValueError(f"{staged.topic} is served already")
            self._shares[staged] = share
            self._came.append((before, share))
        self._added_at = self._changed_at = time.monotonic()
        self._changes += 1
        self._woken.set()

    @contextmanager
    def preparing(self) -> Iterator[Callable[[], None]]:
        """While the topics of another dataset are prepared, which will be served soon.

        Yields a function that says that it takes longer: the changes of the other datasets wait for it no more.
        """
        counted = True
        self._prepared += 1

        def end() -> None:
            nonlocal counted
            if counted:
                counted = False
                self._prepared -= 1
                self._prepared_at = time.monotonic()
                self._woken.set()

        try:
            yield end
        finally:
            end()

    def remove(self, share: Share) -> None:
        """Give the partition up; another member of the group takes it over."""
        share.leaves = True
        self._changed_at = time.monotonic()
        self._changes += 1
        self._woken.set()

    def submit(self, work: Callable[[Any], Result]) -> Call[Result]:
        """Let the owner thread call `work` with its consumer."""
        call = Call(work)
        self._calls.put(call)
        self._woken.set()
        return call

    async def acknowledge(self, share: Share, generation: int, offset: int, metadata: str) -> bool | None:
        """Commit the group's offset.

        Returns False if this member no longer owns the partition, None if the group rebalances (try again then). Raises
        KafkaError if the commit fails.
        """
        return await self._acknowledgements.commit(
            share.staged, share.assignment, generation, offset=offset, metadata=metadata
        )

    def settle(self, share: Share, generation: int, records: int, size: int) -> None:
        """Subtract finished records, and their bytes, from what is outstanding, and fetch more if there is room now."""
        if share.assignment.settle(generation, records, size):
            self.submit(share.assignment.throttle)

    def stop(self) -> None:
        """Make `run` end: the consumer leaves the group, so the other members take over at once."""
        self._stopping.set()
        self._woken.set()

    def replace(self, reason: str) -> None:
        """Ask the owner thread to close the consumer and open another."""
        self._replace_because = reason
        self._woken.set()

    def silent_seconds(self) -> float:
        """Seconds since a broker last sent anything to the consumer; 0 while there is none."""
        network = self._network
        return 0.0 if network is None else silent_seconds(network)

    def leader(self, staged: TopicPartition) -> int | None:
        """Node id of the broker that leads a staged partition; None if it is not known."""
        network = self._network
        node = None if network is None else network.cluster.leader_for_partition(staged)
        return None if node is None or node < 0 else int(node)

    def end_offset(self, share: Share) -> int | None:
        """Last known end of a partition, from a fetch or from another request; None before the first."""
        consumer = self._consumer
        if consumer is not None and share.assignment.owned and not share.assignment.idle:
            with suppress(errors.KafkaError, KeyError):  # just revoked
                share.end_offset = consumer.highwater(share.staged) or share.end_offset
        return share.end_offset

    def joins(self) -> bool:
        """Whether there is something to join the group for, and this process is not a member yet."""
        return bool(self._shares) and self._membership == MemberState.UNJOINED

    def is_settled(self) -> bool:
        """Whether the group knows what this process serves, and has shared the rest out among the other members."""
        return self._changes_settled == self._changes

    def takes_part(self, share: Share) -> bool:
        """Whether the group knows that this member serves the dataset."""
        if self.trouble or share.leaves or share.staged.topic not in self._subscribed:
            return False
        return self._membership == MemberState.STABLE or (
            self._membership != MemberState.UNJOINED and share.assignment.owned
        )

    def new_assignment(self, staged: TopicPartition) -> Assignment:
        """The state of a partition that this member does not own yet."""
        settings = self._settings
        return Assignment(
            staged, records_max=settings.outstanding_records_max, bytes_max=settings.outstanding_bytes_max
        )

    # The owner thread

    def run(self) -> None:
        """Be a member of the group, while there are datasets to serve, until `stop`.

        Raises what the client should not raise; call it again then, which opens another consumer.
        """
        wait = False
        while not self._stopping.is_set():
            self.turned_at = time.monotonic()
            if not self._wanted():
                self._woken.wait(_REST_SECONDS)
                self._woken.clear()
                self._forget_the_leaving()
                continue
            if wait and self._stopping.wait(self._reopen_seconds):
                break
            wait = True
            opened = self._open()
            if opened is None:
                continue
            began = time.monotonic()
            try:
                wait = not self._serve(opened)
            except Exception as error:
                self.trouble = f"the consumer has failed: {error!r}"
                raise
            finally:
                self._close(opened)
            if time.monotonic() - began >= _LIVED_SECONDS:
                self._reopen_seconds = _REOPEN_SECONDS[0]
        self._forget_the_leaving()

    def _serve(self, opened: OpenClient[Any]) -> bool:
        """Take part in the group. Returns False if the consumer must be replaced, True if nothing is left to serve."""
        consumer = opened.client
        self._consumer, self._network, self._replace_because = consumer, opened.network, ""
        self._connections, self._metadata_seen = {}, self._metadata_came
        watch_consumer(consumer, opened.network, wake=self._woken.set, metadata_came=self._note_metadata)
        listener = _Listener(self, consumer)
        while not self._stopping.is_set():
            self.turned_at = time.monotonic()
            self._woken.clear()
            changes = self._changes
            if not self._subscribe(consumer, listener):
                return True
            active = self._execute_calls(consumer)
            active |= self._acknowledgements.turn(consumer)
            if self._replace_because:
                _log.warning("kafka.consumer_replaced", extra={"error": self._replace_because})
                return False
            arrived = self._turn(consumer)
            if arrived is None:
                return False
            if self._to_subscribe_at is None and not must_join(consumer):
                self._changes_settled = changes
            self._rest(consumer, fruitful=active or arrived)
        return True

    def _wanted(self) -> frozenset[str]:
        with self._lock:
            return frozenset(staged.topic for staged, share in self._shares.items() if not share.leaves)

    def _subscribe(self, consumer: Any, listener: _Listener) -> bool:
        """Subscribe to the topics of all shares. Returns False if there are none."""
        wanted = self._wanted()
        if not wanted:
            return False
        self._begin_what_came(consumer)
        if wanted == self._subscribed:
            self._to_subscribe_at = self._changing_since = None
            return True
        now = time.monotonic()
        self._changing_since = now if self._changing_since is None else self._changing_since
        if self._prepared or now < self._prepared_at + _TOPICS_SECONDS:
            self._to_subscribe_at = self._changing_since + _PREPARATION_SECONDS_MAX
        else:
            quiet_at = self._changed_at + _TOPICS_SECONDS
            self._to_subscribe_at = min(quiet_at, self._changing_since + _TOPICS_SECONDS_MAX)
        if now < self._to_subscribe_at or (self._subscribed - wanted and is_joining(consumer)):
            # kafka-python refuses an assignment that has a topic which was dropped after the request to join. It then
            # joins once more, and all partitions that are to move wait for that.
            return True
        self._to_subscribe_at = self._changing_since = None
        self._subscribed = wanted
        consumer.subscribe(sorted(wanted), listener=listener)
        only_topics(consumer, self._network)
        self._request_metadata(now)
        self._forget_the_leaving()
        return True

    def _begin_what_came(self, consumer: Any) -> None:
        """Let each share that was added begin its assignment, if the group has assigned its partition already."""
        while self._came:
            before, share = self._came.popleft()
            if before is not None:
                before.assigned = False
                before.assignment.revoked(lost=False)
                self._changed.append(before)
            with self._lock:
                if share.staged in self._held and not share.assigned:
                    self._take(consumer, share)

    def _turn(self, consumer: Any) -> bool | None:
        """Take part in the group, and fetch. Returns whether anything came, None if the consumer must be replaced."""
        try:
            take_part(consumer, _JOIN_MS)
            self._takes_response = has_fetched(consumer)
            polled = fetch(consumer, self._poll_records)
        except errors.KafkaError as error:
            self._hand_changes()
            survives = self._survives(consumer, error)
            self._deliver()
            return True if survives else None
        self._hand_changes()
        now = time.monotonic()
        if self._metadata_seen != self._metadata_came:
            self._metadata_seen = self._metadata_came
            self._look_at_topics(consumer, now)
            self._note_connections(tuple(self._shares.values()))
        elif connections(self._network) != self._connections:
            self._note_connections(tuple(self._shares.values()))
        self._renew(consumer, now)
        self._look_around(consumer, now)
        self._hand_records(consumer, polled)
        arrived = bool(self._handed)
        self._deliver()
        return arrived

    def _hand_records(self, consumer: Any, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        """Hand the records over to the shares whose assignment has not changed meanwhile."""
        shares = [share for share in map(self._shares.get, polled) if share is not None]
        self._note_connections(shares)
        # A delivery may be empty: after a change of connection the log may have the same end and other records.
        for share in {*shares, *self._broken}:
            records = [to_record(each) for each in polled.get(share.staged, ())]
            assignment = share.assignment
            delivery = assignment.hand_over(assignment.generation, records, unbroken=share not in self._broken)
            if delivery is not None:
                self._broken.discard(share)
                self._handed.append((share, delivery))
                assignment.throttle(consumer)
                if share.trouble:
                    share.trouble = ""

    def _survives(self, consumer: Any, error: errors.KafkaError) -> bool:
        """Whether the consumer can continue after an error of `take_part` or `fetch`."""
        if isinstance(error, errors.RetriableError):
            if time.monotonic() - self._warned_at >= _WARNING_AGE_SECONDS:
                self._warned_at = time.monotonic()
                _log.warning("kafka.no_response", extra={"error": in_words(error)})
            self._stopping.wait(_REST_SECONDS_UNSETTLED)
            return True
        about = list(error.divergent_offsets) if isinstance(error, errors.LogTruncationError) else [partition_of(error)]
        shares = [share for share in (self._shares.get(partition) for partition in about if partition) if share]
        if not shares:
            self.trouble = denied(error, "Read", group=self._group) or in_words(error)
            _log.error("kafka.consumer_replaced", extra={"error": self.trouble})
            return False
        for share in shares:
            topic = share.staged.topic
            if isinstance(error, errors.TopicAuthorizationFailedError):
                self._suspend(consumer, share, trouble=lacking("Read", "Topic", topic))
            elif isinstance(error, UNREADABLE):
                self._suspend(consumer, share, failed=f"{topic}: {error}")
            else:
                self._suspend(consumer, share, failed=f"{topic}: {error}", trouble=in_words(error))
        return True

    def _suspend(self, consumer: Any, share: Share, *, failed: str = "", trouble: str = "") -> None:
        """Give a partition up for a while, in the eyes of its committer; the group still assigns it to this member.

        `failed`: why its position can't be read. `trouble`: what an operator should know.
        """
        now = time.monotonic()
        if failed and (delivery := share.assignment.fail(consumer, failed)) is not None:
            _log.error("kafka.unreadable", extra={"dataset": share.dataset, "reason": failed})
            self._handed.append((share, delivery))
        elif trouble:
            facts = {"dataset": share.dataset, "topic": share.staged.topic, "error": trouble}
            _log.error("kafka.suspended", extra=facts)
        share.assignment.suspend(consumer)
        self._changed.append(share)
        self._hand_changes()
        share.trouble = trouble
        if now - share.taken_at >= _LIVED_SECONDS:
            share.renew_seconds = _REOPEN_SECONDS[0]
        share.suspended_until = now + share.renew_seconds
        share.renew_seconds = min(share.renew_seconds * 2, _REOPEN_SECONDS[1])
        share.pending = requests_of(consumer)
        self._suspended.add(share)

    def _renew(self, consumer: Any, now: float) -> None:
        """Take up the suspended partitions whose time has come, and whose topic is there."""
        for share in tuple(self._suspended):
            if share.suspended_until is None or now < share.suspended_until:
                continue
            known = self._network.cluster.partitions_for_topic(share.staged.topic) is not None
            if not known or not all(request.is_done for request in share.pending):
                continue
            self._suspended.discard(share)
            share.suspended_until, share.pending, share.trouble, share.taken_at = None, (), "", now
            forget_fetched(consumer, share.staged)
            with self._lock:
                if share.assigned:  # the group may have taken it just now
                    share.assignment.renew(consumer)
            self._changed.append(share)
        self._hand_changes()

    def _note_connections(self, shares: Iterable[Share]) -> None:
        """Note which leaders have changed, or have reconnected: their logs may have been rewritten meanwhile."""
        self._connections = connections(self._network)
        for share in shares:
            connection = self._connections.get(self.leader(share.staged))
            if connection is None or connection is share.connection:
                continue
            if share.connection is not None:
                self._broken.add(share)
            share.connection = connection

    def _look_at_topics(self, consumer: Any, now: float) -> None:
        """Suspend partitions whose topics are gone, may not be described, or were deleted and recreated.

        kafka-python fetches by name, and does not notice. A partition may be assigned before the first metadata of its
        topic has come, so a topic that was never seen counts as gone after a while. The response to a request of before
        the topic was subscribed to lacks it, so it counts as gone when a second response lacks it too.
        """
        cluster = self._network.cluster
        for share in tuple(self._shares.values()):
            topic, serves = share.staged.topic, share.assigned and share not in self._suspended
            if share.leaves or topic not in self._subscribed:
                continue  # the topic is not asked for any more, or only until this member has joined
            if cluster.partitions_for_topic(topic) is None:
                if topic in cluster.unauthorized_topics:
                    share.trouble = lacking("Describe", "Topic", topic)
                elif share.topic_id is not None or (serves and now - share.taken_at > _METADATA_SECONDS):
                    if share.missed_at is None:
                        share.missed_at = self._metadata_came
                        self._request_metadata(now)
                    if self._metadata_seen <= share.missed_at:
                        continue
                    share.trouble = f"there is no topic {topic}, or it has no leader"
                if serves and share.trouble:
                    self._suspend(consumer, share, trouble=share.trouble)
                continue
            share.missed_at = None
            if not share.assigned:
                share.trouble = ""
            before, share.topic_id = share.topic_id, cluster.topic_id(topic)
            if before is not None and before != share.topic_id and serves:
                reason = f"{topic} was deleted and recreated: its id was {before}, is {share.topic_id}"
                self._suspend(consumer, share, failed=reason)

    def _look_around(self, consumer: Any, now: float) -> None:
        """Note the state of the membership, and request metadata if it may have changed without a notice."""
        self._membership = consumer.group_metadata().state
        if self._membership == MemberState.STABLE:
            self.trouble = ""
        age = now - self._metadata_at
        if age < (_METADATA_SECONDS_NEW if now - self._added_at < _METADATA_SECONDS else _METADATA_SECONDS):
            return
        known = self._network.cluster.partitions_for_topic
        for staged, share in tuple(self._shares.items()):
            # kafka-python forgets a requested topic if the response to an earlier request comes in between. And while
            # nothing is fetched, no fetch can fail when the topic is deleted or recreated.
            if known(staged.topic) is None or (age >= _METADATA_SECONDS and share.assignment.idle):
                self._request_metadata(now)
                return

    def _request_metadata(self, now: float) -> None:
        self._metadata_at = now
        self._network.cluster.request_update()

    def _note_metadata(self) -> None:
        """Called from kafka-python's IO thread."""
        self._metadata_came += 1

    def _rest(self, consumer: Any, *, fruitful: bool) -> None:
        """Sleep until something is to be done."""
        if self._subscribed and must_join(consumer):
            return  # the next turn waits for the group
        if self._to_subscribe_at is not None and self._to_subscribe_at <= time.monotonic():
            return  # it waited for the group until now
        requests = requests_of(consumer)
        for request in requests:
            if request not in self._watched:
                request.add_both(lambda _: self._woken.set())
        self._watched = set(requests)
        if not fruitful and (self._takes_response or not has_fetched(consumer)):
            self._stopping.wait(_FRUITLESS_SECONDS)
        if has_fetched(consumer) or must_request(consumer):
            return  # more than one turn takes, or a response that came since the last requests
        unsettled = not requests and any(
            share.assignment.owned and not share.assignment.idle for share in tuple(self._shares.values())
        )
        seconds = _REST_SECONDS_UNSETTLED if unsettled else _REST_SECONDS
        now = time.monotonic()
        to_subscribe_at = self._to_subscribe_at and min(self._to_subscribe_at, now + _TOPICS_SECONDS)
        until = [to_subscribe_at, *(share.suspended_until for share in tuple(self._suspended))]
        for at in until:
            if at is not None and at > now:
                seconds = min(seconds, at - now)
        self._woken.wait(seconds)

    def _execute_calls(self, consumer: Any) -> bool:
        """Execute the calls that wait. Returns whether there were any."""
        found = False
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return found
            found = True
            call.execute(consumer)

    def _hand_changes(self) -> None:
        """Prepare the deliveries of assignments and revocations."""
        while self._changed:
            share = self._changed.popleft()
            for change in share.assignment.changes():
                event = change.event
                facts = {"dataset": share.dataset, "topic": share.staged.topic, "generation": event.generation}
                if isinstance(event, Assigned):
                    _log.info("kafka.assigned", extra=facts)
                else:
                    _log.info("kafka.revoked", extra=facts)
                self._handed.append((share, change))
            if share.leaves and not share.assigned:
                self._forget(share)

    def _deliver(self) -> None:
        """Hand what was prepared to the event loop."""
        if not self._handed:
            return
        handed, self._handed = self._handed, []

        def deliver() -> None:
            for share, delivery in handed:
                share.deliver(delivery)

        from_thread.run_sync(deliver)

    def _forget(self, share: Share) -> None:
        with self._lock:
            if self._shares.get(share.staged) is share:
                del self._shares[share.staged]
        self._suspended.discard(share)
        self._broken.discard(share)

    def _forget_the_leaving(self) -> None:
        for share in tuple(self._shares.values()):
            if share.leaves and not share.assigned:
                self._forget(share)

    def _close(self, opened: OpenClient[Any]) -> None:
        self._membership = MemberState.UNJOINED
        self._subscribed, self._to_subscribe_at, self._changing_since = frozenset(), None, None
        # Calls the listener, then leaves the group.
        leave = partial(opened.client.close, autocommit=False, timeout_ms=_CLOSE_MS_MAX)
        for close in (leave, opened.network.close):
            try:
                close()
            except Exception as error:  # noqa: BLE001  # whatever it is, the next consumer is another
                _log.warning("kafka.consumer_close_failed", extra={"error": repr(error)})
        self._consumer = self._network = None
        if self._stopping.is_set() or not self._wanted():
            _log.info("kafka.left", extra={"group": self._group})
        with self._lock:
            self._held.clear()
        self._suspended.clear()
        self._broken.clear()
        for share in tuple(self._shares.values()):
            share.assigned, share.suspended_until, share.pending = False, None, ()
            share.topic_id = share.connection = share.missed_at = None
            share.assignment.revoked(lost=True)  # in case the listener was not called
            self._changed.append(share)
        self._hand_changes()
        self._deliver()
        self._acknowledgements.break_off()

    def _open(self) -> OpenClient[Any] | None:
        """Open a consumer; None if no broker can be reached now."""
        self._reopen_seconds = min(self._reopen_seconds * 2, _REOPEN_SECONDS[1])
        self._assignor = StagedAssignor(self.waiting)
        strategy = {"partition_assignment_strategy": [self._assignor], "bootstrap_timeout_ms": _BOOTSTRAP_MS}
        try:
            return open_client(KafkaConsumer, self._options | strategy)
        except CommitterError as error:
            _log.warning("kafka.unreachable", extra={"error": str(error)})
            return None

    # From kafka-python's IO thread

    def waiting(self) -> frozenset[str]:
        """The topics that this member owns and has not begun to serve."""
        with self._lock:
            return frozenset(staged.topic for staged, share in self._shares.items() if share.assignment.waiting)

    def given(self, consumer: Any, assigned: Iterable[TopicPartition]) -> None:
        """The group has assigned these partitions to this member."""
        for partition in sorted(assigned):
            with self._lock:
                self._held.add(partition)
                share = self._shares.get(partition)
                if share is None:
                    consumer.pause(partition)
                    consumer.seek(partition, 0)
                else:
                    forget_fetched(consumer, partition)
                    self._take(consumer, share)

    def _take(self, consumer: Any, share: Share) -> None:
        """Begin an assignment; called with the lock."""
        share.assigned, share.taken_at = True, time.monotonic()
        share.assignment.assigned(consumer)
        self._changed.append(share)

    def taken(self, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """The group has taken these partitions from this member."""
        if lost:
            # kafka-python does not reset it: when it joins again it would claim the topics, and a process that was
            # suspended would take them from their new owners.
            self._assignor.member_assignment = None
        for partition in sorted(partitions):
            with self._lock:
                self._held.discard(partition)
                share = self._shares.get(partition)
                if share is not None:
                    share.assigned, share.suspended_until, share.pending = False, None, ()
                    self._suspended.discard(share)
                    share.assignment.revoked(lost=lost)
                    self._changed.append(share)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
    """Passes kafka-python's rebalance events on. It must not wait: heartbeats run in the same thread."""

    def __init__(self, member: GroupMember, consumer: Any) -> None:
        self._member = member
        self._consumer = consumer

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._member.given(self._consumer, assigned)

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self._member.taken(revoked, lost=False)

    def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        self._member.taken(lost, lost=True)
