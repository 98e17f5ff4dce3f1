"""All that uses private names of kafka-python 3.0.12: patches of its classes, and requests for which it has no API.

`docs/decisions/kafka-python.md` lists the faults, with the report of each for its maintainers and the test that fails
when a newer version needs no repair. Patched are:

* Header names. kafka-python can't read a record whose header names aren't UTF-8, nor the rest of its batch, ever. Kafka
  accepts such records; its Java client replaces the bytes that can't be decoded, and so do we.
* Many headers. A record of 1 MiB may have 500,000 headers, which take more than 30 times as much memory, and the
  library reads many records ahead. We read only the first headers of such a record.
* Last bytes. kafka-python drops the bytes that a broker sends right before it closes a connection: the reason why it
  refuses a login, or the response to a request.
* Joins. A member that joins again because the topic's metadata changed does not finish if `poll` returns in between: it
  believes forever that it is the owner, and sends no heartbeats. The Java client had the same fault (KAFKA-9815).
* Metadata. If one topic may not be described, a consumer in a group takes notice of no metadata at all. Our assignor
  needs none, so we drop what the coordinator does with it. With an assignor of the library, the coordinator gets the
  metadata as if there were no such topics.
* Metadata that stops. An unexpected error ends the loop that requests metadata, and kafka-python never begins it anew;
  the client seems well. We look whether it has ended, so that the client is replaced.
* Unreadable records. The error does not say which partition it is about, and the next `poll` never returns, because it
  goes on with records that have ended. We note the partition, and drop its records.
* Backoff. A connection that the broker refuses after the handshake of TCP or TLS counts as a success, so kafka-python
  connects again at once, for as long as a certificate or a login is refused.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch, decode_varint

from committerd_login.backoff import if_connected

HEADERS_MAX = 1000
"""Number of headers that are read. The wire contract has 18; tracing and routing may add a few dozen."""

_CLOSE_SECONDS = 1.0
_SLACK_SECONDS = 0.1

Method = Callable[..., Any]


def repair_kafka_python() -> None:
    """Patch the classes, once per process. Call it before a client is made."""
    for owner, name, mended in (
        (DefaultRecordBatch, "_read_msg", _with_few_headers),
        (KafkaTCPTransport, "_sock_recv", _with_last_bytes),
        (KafkaSSLTransport, "_sock_recv", _with_last_bytes),
        (ConsumerCoordinator, "need_rejoin", _until_joined),
        (ConsumerCoordinator, "_handle_metadata_update", _of_shown_topics),
        (Fetcher, "_parse_fetched_data", _naming_the_completed),
        (Fetcher, "_append", _naming_the_part),
        (KafkaConnectionManager, "reset_backoff", if_connected),
    ):
        method = getattr(owner, name)
        if not hasattr(method, "__wrapped__"):
            setattr(owner, name, functools.wraps(method)(mended(method)))


def send_to(network: KafkaNetClient, request: Any, *, node: int | None, seconds: float) -> Any:
    """Send a request to this node (None = any) and return the response. Blocks. Raises KafkaError."""
    (answer,) = send_to_each(network, {node: request}, seconds=seconds).values()
    if isinstance(answer, errors.KafkaError):
        raise answer
    return answer


def send_to_each(
    network: KafkaNetClient, requests: Mapping[int | None, Any], *, seconds: float
) -> dict[int | None, Any]:
    """Send a request to each node at once, and return the response or the KafkaError of each. Blocks."""
    manager = network._manager

    async def ask() -> dict[int | None, Any]:
        # With its own timeout a request that gets no response closes its connection, where the response may be lost.
        milliseconds = seconds * 1000
        until = time.monotonic() + seconds + _SLACK_SECONDS
        sent = {
            node: manager.send(request, node_id=node, request_timeout_ms=milliseconds)
            for node, request in requests.items()
        }
        answers: dict[int | None, Any] = {}
        for node, future in sent.items():
            try:
                answers[node] = await manager.wait_for(future, max(0.0, until - time.monotonic()) * 1000)
            except errors.KafkaError as error:
                answers[node] = error
        return answers

    found: dict[int | None, Any] = manager.run(ask)
    return found


def connection_to(network: KafkaNetClient, node: int | None) -> object | None:
    """The open connection to a node, another object after each reconnect; None if there is none."""
    connection = network._manager._conns.get(node)
    return connection if connection is not None and connection.connected else None


def heard_at(network: KafkaNetClient) -> float | None:
    """When a broker last sent anything (monotonic clock, seconds); None without a connection."""
    transports = [connection.transport for connection in list(network._manager._conns.values())]
    return max((transport.last_read for transport in transports if transport is not None), default=None)


def without_haste(network: KafkaNetClient, then: Callable[[], object] = lambda: None) -> None:
    """Don't request the metadata of topics that don't exist, or have no leader, ten times a second: the caller does.

    `then` is called, in the IO thread, when metadata has come.
    """
    cluster = network.cluster
    update = cluster.update_metadata

    def updated(metadata: Any) -> None:
        try:
            update(metadata)
        finally:
            cluster._need_update = False
            then()

    cluster.update_metadata = updated


def partitions_known(producer: KafkaProducer, topic: str) -> set[int] | None:
    """The partitions of a topic as the producer knows them: empty if this user may not see them; None = not known."""
    cluster = producer._metadata
    partitions: set[int] | None = cluster.partitions_for_topic(topic)
    return set() if partitions is None and topic in cluster.unauthorized_topics else partitions


def request_topic(producer: KafkaProducer, topic: str) -> None:
    """Request the metadata of a topic, without a wait. Raises `MetadataStopped`."""
    _require_metadata(producer._metadata)
    producer._sender.add_topic(topic)
    producer._metadata.request_update()
    producer._sender.wakeup()


class MetadataStopped(Exception):
    """The client requests metadata no more, and must be replaced: it would not learn of new topics and leaders."""


def _require_metadata(cluster: Any) -> None:
    loop = cluster._refresh_loop_future
    if loop is not None and loop.is_done and loop.exception is not None:
        raise MetadataStopped(repr(loop.exception)) from loop.exception


# The consumer of a member: `poll` would fetch nothing while the group rebalances, and can't be woken.


def watch_consumer(
    consumer: KafkaConsumer,
    network: KafkaNetClient,
    *,
    wake: Callable[[], None],
    metadata_came: Callable[[], None],
) -> None:
    """Call `wake`, in the IO thread, when the member must join again, and both when metadata has come."""
    coordinator = consumer._coordinator
    for name in ("request_rejoin", "reset_generation"):
        setattr(coordinator, name, _then(getattr(coordinator, name), wake))

    def came() -> None:
        metadata_came()
        wake()

    without_haste(network, then=came)


def take_part(consumer: KafkaConsumer, milliseconds: int) -> None:
    """Do what the group asks of this member: find its coordinator, join, and show that this thread is alive.

    Does not wait for longer than this. Raises KafkaError and `MetadataStopped`.
    """
    coordinator = consumer._coordinator
    _require_metadata(coordinator._cluster)
    settled = coordinator.stable() and not coordinator.need_rejoin() and not coordinator.coordinator_unknown()
    coordinator.poll(timeout_ms=0 if settled else milliseconds)


def must_join(consumer: KafkaConsumer) -> bool:
    """Whether this member is not in the group, or has to join it again."""
    return bool(not consumer._coordinator.stable() or consumer._coordinator.need_rejoin())


def is_joining(consumer: KafkaConsumer) -> bool:
    """Whether a request to join the group is under way: the group shares out the topics that it names."""
    joining = consumer._coordinator._join_task
    return bool(joining is not None and not joining.is_done)


def fetch(consumer: KafkaConsumer, records_max: int) -> dict[TopicPartition, list[Any]]:
    """Return what was fetched, and request more, without a wait. Raises KafkaError."""
    fetcher = consumer._fetcher
    current, waiting = fetcher._next_partition_records, fetcher._completed_fetches
    if not current:
        fetcher._next_partition_records = None  # else it never takes up the records of a partition that was paused
    elif (following := _taken(consumer, waiting)) is not None:
        # Many records of one partition go on after those of the others.
        fetcher._paused_partition_records[current.topic_partition] = current
        fetcher._next_partition_records = None
        fetcher._next_partition_records = fetcher._parse_fetched_data(following)
    fetcher.maybe_validate_positions()
    fetcher.validate_offsets_if_needed()
    # `fetch_records` does the same, and then waits. It sends no request after a response that comes while it waits.
    records, more_is_here = fetcher.fetched_records(records_max)
    if not more_is_here:
        fetcher.send_fetches()
    return dict(records)


def _taken(consumer: KafkaConsumer, waiting: deque[Any]) -> Any:
    """Take the first of the responses that wait; None if there is none, or if its partition is paused."""
    with suppress(IndexError):  # kafka-python's thread has removed it meanwhile
        if not consumer._subscription.is_paused(waiting[0].topic_partition):
            return waiting.popleft()
    return None


def has_fetched(consumer: KafkaConsumer) -> bool:
    """Whether records were fetched that `fetch` has not returned; those of paused partitions don't count."""
    fetcher, is_paused = consumer._fetcher, consumer._subscription.is_paused
    current = fetcher._next_partition_records
    if current and not is_paused(current.topic_partition):
        return True
    parked = (*fetcher._paused_partition_records, *fetcher._paused_completed_fetches)
    # kafka-python's thread appends to the responses that wait.
    waiting = (completed.topic_partition for completed in tuple(fetcher._completed_fetches))
    return not all(map(is_paused, (*parked, *waiting)))


def must_request(consumer: KafkaConsumer) -> bool:
    """Whether a response has come since `fetch` last sent requests: its partitions may have no request under way."""
    return any(future.is_done for future in tuple(consumer._fetcher._fetch_futures))


def requests_of(consumer: KafkaConsumer) -> list[Future]:
    """The fetch requests that have no response yet, and a join that is under way."""
    waiting = [*consumer._fetcher._fetch_futures, consumer._coordinator._join_task]
    return [future for future in waiting if future is not None and not future.is_done]


def forget_fetched(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """Drop the records of a partition that were fetched and not returned. Call it in the thread that fetches."""
    fetcher = consumer._fetcher
    fetcher._paused_completed_fetches.pop(partition, None)
    fetcher._paused_partition_records.pop(partition, None)
    for completed in list(fetcher._completed_fetches):
        if completed.topic_partition == partition:
            with suppress(ValueError):
                fetcher._completed_fetches.remove(completed)
    current = fetcher._next_partition_records
    if current and current.topic_partition == partition:
        current.drain()


def partition_of(error: errors.KafkaError) -> TopicPartition | None:
    """The partition whose records an error of `fetch` is about; None if it is about none."""
    found: TopicPartition | None = getattr(error, "committerd_partition", None)
    return found


def only_topics(consumer: KafkaConsumer, network: KafkaNetClient) -> None:
    """Request the metadata of the topics that the consumer subscribes to, and of no other."""
    network.cluster._topics = set(consumer._subscription.subscription or ())


def commit(consumer: KafkaConsumer, offsets: Mapping[TopicPartition, Any], milliseconds: int) -> Future:
    """Commit offsets like `KafkaConsumer.commit`, without a wait: returns the future of the response."""
    coordinator = consumer._coordinator
    return coordinator._manager.call_soon(coordinator._commit_offsets_sync_async, dict(offsets), milliseconds)


def connections(network: KafkaNetClient) -> dict[object, object]:
    """The open connection to each node; another object after each reconnect."""
    return {node: one for node, one in list(network._manager._conns.items()) if one.connected}


def _then(method: Method, wake: Callable[[], None]) -> Method:
    def then(*given: Any, **named: Any) -> Any:
        try:
            return method(*given, **named)
        finally:
            wake()

    return then


def _of_shown_topics(handle: Method) -> Method:
    def handled(coordinator: Any, cluster: Any) -> None:
        if all(type(one).__module__.startswith("kafka.") for one in coordinator._assignors.values()):
            handle(coordinator, _Shown(cluster))  # the library's own assignors share out the partitions of the metadata

    return handled


class _Shown:
    """The metadata, as if there were no topics that the user may not see."""

    unauthorized_topics = frozenset[str]()

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


def _naming_the_completed(parse: Method) -> Method:
    def parsed(fetcher: Any, completed: Any) -> Any:
        try:
            return parse(fetcher, completed)
        except Exception as error:
            raise _about(completed.topic_partition, error) from error

    return parsed


def _naming_the_part(append: Method) -> Method:
    def appended(fetcher: Any, drained: Any, part: Any, *given: Any) -> Any:
        try:
            return append(fetcher, drained, part, *given)
        except Exception as error:
            part.drain()
            raise _about(part.topic_partition, error) from error

    return appended


def _about(partition: TopicPartition, error: Exception) -> errors.KafkaError:
    """The error with its partition; one that is not of the library comes from records that can't be unpacked."""
    known = isinstance(error, errors.KafkaError)
    about: Any = error if known else errors.CorruptRecordError(f"the records can't be unpacked: {error!r}")
    about.committerd_partition = partition
    return about


def abandon(producer: KafkaProducer) -> None:
    """Close a producer without waiting for its records, which fail. `close` alone leaves its thread running."""
    producer._sender.force_close()
    threading.Thread(target=_close, args=(producer,), name="closes-a-producer", daemon=True).start()


def _close(producer: KafkaProducer) -> None:
    with suppress(errors.KafkaError):
        producer.close(timeout=_CLOSE_SECONDS)


def _with_last_bytes(receive: Method) -> Method:
    def received(transport: Any) -> tuple[bytes, Exception | None]:
        data, error = receive(transport)
        # Return the data first; the next read finds no data and gets the error again.
        return (data, None) if data else (data, error)

    return received


def _until_joined(need_rejoin: Method) -> Method:
    def needed(coordinator: Any) -> bool:
        wanted = bool(need_rejoin(coordinator))
        if wanted:
            coordinator.request_rejoin()  # stays set until the member has joined
        return wanted

    return needed


class CutHeaders(list[tuple[str, "bytes | None"]]):
    """The first `HEADERS_MAX` headers of a record that has more."""

    found: int = 0
    """Number of headers in the record."""


def _with_few_headers(read: Method) -> Method:
    def bounded(batch: Any) -> Any:
        return read(batch) if batch.is_control_batch else _read_record(batch)

    return bounded


def _read_record(batch: Any) -> DefaultRecord:
    """Read one record of format 2: length, attributes, deltas, key, value, headers; lengths are varints.

    Source: Kafka, DefaultRecord.java. `_pos` moves only if the whole record was read.
    """
    buffer = batch._buffer
    length, start = decode_varint(buffer, batch._pos)
    _attributes, position = decode_varint(buffer, start)
    delta_ms, position = decode_varint(buffer, position)
    offset_delta, position = decode_varint(buffer, position)
    key = value = None
    size, position = decode_varint(buffer, position)
    if size >= 0:
        key = bytes(buffer[position : position + size])
        position += size
    size, position = decode_varint(buffer, position)
    if size >= 0:
        value = bytes(buffer[position : position + size])
        position += size
    count, position = decode_varint(buffer, position)
    headers: list[tuple[str, bytes | None]] = [] if count <= HEADERS_MAX else CutHeaders()
    for _ in range(min(count, HEADERS_MAX)):
        size, position = decode_varint(buffer, position)
        name = buffer[position : position + size].decode("utf-8", "replace")
        position += size
        size, position = decode_varint(buffer, position)
        if size >= 0:
            headers.append((name, bytes(buffer[position : position + size])))
            position += size
        else:
            headers.append((name, None))
    if isinstance(headers, CutHeaders):
        headers.found = count
        position = start + length
    if position - start != length:
        raise errors.CorruptRecordError(f"record of {length} bytes ends after {position - start}")
    batch._pos = position
    appended = batch.timestamp_type == batch.LOG_APPEND_TIME
    timestamp = batch.max_timestamp if appended else batch.first_timestamp + delta_ms
    return DefaultRecord(
        length,
        batch.base_offset + offset_delta,
        timestamp,
        batch.timestamp_type,
        key,
        value,
        headers,
    )
