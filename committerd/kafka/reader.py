"""Reads existing records without joining the group: ranges, and tails.

Each read opens a consumer of its own. That takes a tenth of a second, but reads are rare; and no read can return
records that an earlier read had fetched, perhaps from a topic that was deleted since.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from kafka import KafkaConsumer, TopicPartition, errors

from committerd.errors import QueueUnavailable
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.clients import OpenClient, close_consumer, in_words, open_client, silent_seconds
from committerd.kafka.options import Topics, reader_options
from committerd.kafka.records import to_record
from committerd.queue.port import READ_BYTES_MAX, Record, record_size
from committerd.settings.kafka import KafkaSettings
from committerd_login.access import denied

_POLL_MS = 200
_BOOTSTRAP_MS = 5_000


def range_options(settings: KafkaSettings, name: str) -> dict[str, Any]:
    """Options of the consumers that `read_batches` opens. `name`: of the client, in the broker's logs."""
    return reader_options(settings, name) | {"bootstrap_timeout_ms": min(settings.request_timeout_ms, _BOOTSTRAP_MS)}


class RangeReader:
    """Reads ranges of the topics. Methods block, run one at a time, and raise `QueueUnavailable` on errors."""

    def __init__(self, settings: KafkaSettings, topics: Topics, name: str, *, admin: TopicAdmin) -> None:
        self._options = range_options(settings, name)
        self._staged = TopicPartition(topics.staged, 0)
        self._outcomes = topics.outcomes
        self._events = TopicPartition(topics.events, 0)
        self._admin = admin
        self._one = threading.Lock()

    def staged(self, start: int, end: int, bytes_max: int = READ_BYTES_MAX) -> list[Record]:
        """The records of the staged partition in the half-open range that still exist.

        If all of them have more than `bytes_max` bytes, it returns the first of them only, but at least one record.
        """
        first, last = self._admin.bounds([self._staged])[self._staged]
        found: list[Record] = []
        with (
            self._one,
            closing(read_batches(self._options, {self._staged: (max(start, first), min(end, last))})) as some,
        ):
            for record in (to_record(one) for batch in some for one in batch):
                bytes_max -= record_size(record)
                if found and bytes_max < 0:
                    break
                found.append(record)
        return found

    def held_back(self, offset: int) -> Record | None:
        """The first record at or after this offset, even if an open Kafka transaction holds it back; None = none."""
        options = self._options | {"isolation_level": "read_uncommitted"}
        with self._one:
            for batch in read_batches(options, {self._staged: (offset, offset + 1)}):
                return to_record(batch[0])
        return None

    def outcomes_tail(self, limit: int) -> list[bytes]:
        """Values of the last records of the outcomes topic, at most `limit` of each partition."""
        return self._tail(self._admin.partitions(self._outcomes), limit)

    def events_tail(self, limit: int) -> list[bytes]:
        """Values of the last records of the events topic, at most `limit`, in offset order."""
        return self._tail([self._events], limit)

    def _tail(self, partitions: Sequence[TopicPartition], limit: int) -> list[bytes]:
        bounds = self._admin.bounds(partitions)
        ranges = {p: (max(first, last - limit), last) for p, (first, last) in bounds.items()}
        return [found.value or b"" for found in self._read(ranges)]

    def _read(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Any]:
        """kafka-python's records in the half-open ranges, each partition in offset order."""
        with self._one:
            return [found for batch in read_batches(self._options, ranges) for found in batch]


def read_batches(
    options: Mapping[str, Any], ranges: Mapping[TopicPartition, tuple[int, int]]
) -> Generator[list[Any], None, None]:
    """Yield kafka-python's records in the half-open ranges, in batches; each partition in offset order.

    Blocks at each step; no batch is empty. Raises `QueueUnavailable`, also if no record arrives within a request's
    timeout.
    """
    ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
    if not ends:
        return
    topic = next(iter(ends)).topic
    with _opened_consumer(options, topic) as opened:
        consumer = opened.client
        consumer.assign(list(ends))
        for partition in ends:
            consumer.seek(partition, ranges[partition][0])
        received_at = time.monotonic()
        # Compare positions, not the last record's offset: the last offsets may have no record (transaction markers).
        while any(consumer.position(p) < end for p, end in ends.items()):
            polled = consumer.poll(timeout_ms=_POLL_MS)
            batch = [f for partition, records in polled.items() for f in records if f.offset < ends[partition]]
            if polled:
                received_at = time.monotonic()
            if batch:
                yield batch
                received_at = time.monotonic()  # the caller may have taken long to ask for the next batch
            if (time.monotonic() - received_at) * 1000 > options["request_timeout_ms"]:
                raise QueueUnavailable(f"no records came from {', '.join(_shown(ends))}")


def follow_batches(
    options: Mapping[str, Any], starts: Mapping[TopicPartition, int]
) -> Generator[tuple[list[Any], float], None, None]:
    """Yield what comes from these offsets on, for ever, and the seconds since a broker last sent anything.

    Blocks at each step, for a fifth of a second if nothing is new. Raises `QueueUnavailable`, also if no broker has
    sent anything for a request's timeout.
    """
    topic = next(iter(starts)).topic
    with _opened_consumer(options, topic) as opened:
        consumer = opened.client
        consumer.assign(list(starts))
        for partition, offset in starts.items():
            consumer.seek(partition, offset)
        heard_at = time.monotonic()
        while True:
            polled = consumer.poll(timeout_ms=_POLL_MS)
            heard_at = max(heard_at, time.monotonic() - silent_seconds(opened.network))
            silent = time.monotonic() - heard_at
            yield [found for records in polled.values() for found in records], silent
            if silent * 1000 > options["request_timeout_ms"]:
                raise QueueUnavailable(f"reading {topic}: no broker has sent anything for {silent:.0f} s")


@contextmanager
def _opened_consumer(options: Mapping[str, Any], topic: str) -> Iterator[OpenClient[Any]]:
    opened = open_client(KafkaConsumer, options)
    try:
        yield opened
    except errors.KafkaError as error:
        why = denied(error, "Read", topic=topic) or in_words(error)
        raise QueueUnavailable(f"reading {topic}: {why}") from error
    finally:
        close_consumer(opened)


def _shown(partitions: Mapping[TopicPartition, int]) -> Iterator[str]:
    return (f"{partition.topic}[{partition.partition}]" for partition in partitions)
