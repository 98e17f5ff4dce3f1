"""Three faults of kafka-python 3.0 that would stop a committer, mended in the library's own classes.

* Header names. A record whose header names aren't UTF-8 is refused, and the rest of its batch with it,
  for ever. Kafka takes such records; its Java client replaces what can't be decoded, and so do we.
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

Method = Callable[[Any], Any]


def repair_kafka_python() -> None:
    """Mend the classes, once for the process; to be called before a client is made."""
    for owner, name, mended in (
        (DefaultRecordBatch, "_read_msg", _with_any_header_name),
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


def _with_any_header_name(read: Method) -> Method:
    def tolerant(batch: Any) -> Any:
        # `_pos` moves only when a record was read whole, so the record can be read again.
        try:
            return read(batch)
        except UnicodeDecodeError:
            return _read_record(batch)

    return tolerant


def _read_record(batch: Any) -> DefaultRecord:
    """One record of format 2: length, attributes, deltas, key, value, headers; lengths are varints.

    Kafka: DefaultRecord.java.
    """
    buffer = batch._buffer
    length, start = decode_varint(buffer, batch._pos)
    _attributes, position = decode_varint(buffer, start)
    delta_ms, position = decode_varint(buffer, position)
    offset_delta, position = decode_varint(buffer, position)

    def field() -> bytes | None:
        nonlocal position
        size, position = decode_varint(buffer, position)
        if size < 0:
            return None
        found = bytes(buffer[position : position + size])
        position += size
        return found

    key, value = field(), field()
    count, position = decode_varint(buffer, position)
    headers = [((field() or b"").decode("utf-8", "replace"), field()) for _ in range(count)]
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
