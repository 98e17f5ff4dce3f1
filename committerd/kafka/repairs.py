"""Four faults of kafka-python 3.0 that would stop a committer, mended in the library's own classes.

* Header names. A record whose header names aren't UTF-8 is refused, and the rest of its batch with it,
  for ever. Kafka takes such records; its Java client replaces what can't be decoded, and so do we.
* Many headers. A record of 1 MiB may have 500,000 headers, which take 100 times as much memory, and the
  library reads many records ahead. Of such a record we read the first headers only.
* Last words. What a broker says right before it hangs up is thrown away: the reason why it refuses a
  login, or the answer to a request.
* Joins. A member that joins again because the topic's metadata changed forgets to finish when `poll`
  returns in between: it takes itself for the owner, without heartbeats, for ever. Java's client had
  the same fault (KAFKA-9815).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kafka import errors
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch, decode_varint

HEADERS_MAX = 1000
"""The wire contract has 16; with those of tracing and routing a record has some dozens."""

Method = Callable[[Any], Any]


def repair_kafka_python() -> None:
    """Mend the classes, once for the process; to be called before a client is made."""
    for owner, name, mended in (
        (DefaultRecordBatch, "_read_msg", _with_few_headers),
        (KafkaTCPTransport, "_sock_recv", _with_last_words),
        (KafkaSSLTransport, "_sock_recv", _with_last_words),
        (ConsumerCoordinator, "need_rejoin", _until_joined),
    ):
        method = getattr(owner, name)
        if not hasattr(method, "__wrapped__"):
            setattr(owner, name, functools.wraps(method)(mended(method)))


def _with_last_words(receive: Method) -> Method:
    def heard(transport: Any) -> tuple[bytes, Exception | None]:
        data, error = receive(transport)
        # The end is met again by the next read, which finds nothing before it.
        return (data, None) if data else (data, error)

    return heard


def _until_joined(need_rejoin: Method) -> Method:
    def needed(coordinator: Any) -> bool:
        wanted = bool(need_rejoin(coordinator))
        if wanted:
            coordinator.request_rejoin()  # stands until the member has joined
        return wanted

    return needed


class CutHeaders(list[tuple[str, "bytes | None"]]):
    """The first headers of a record that has more than anybody needs."""

    found: int = 0
    """How many it has."""


def _with_few_headers(read: Method) -> Method:
    def bounded(batch: Any) -> Any:
        return read(batch) if batch.is_control_batch else _read_record(batch)

    return bounded


def _read_record(batch: Any) -> DefaultRecord:
    """One record of format 2: length, attributes, deltas, key, value, headers; lengths are varints.

    Kafka: DefaultRecord.java. `_pos` moves only when the record was read whole.
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
