"""An echo through Kafka, by two processes: the lower limit of a response that comes through two topics.

Both sides use kafka-python, as committerd and its clients do. Nothing is decoded, judged, built or written.
"""

from __future__ import annotations

import time
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

_WARMING = 20
"""Echoes before the first one that is timed."""
_TIMEOUT_SECONDS = 30.0


class _End:
    """Sends to one topic and receives from another; each has one partition."""

    def __init__(self, *, servers: str, sends: str, takes: str) -> None:
        self._sends, self._from = sends, TopicPartition(takes, 0)
        self._producer: Any = KafkaProducer(
            bootstrap_servers=servers, acks="all", linger_ms=0, metrics_enabled=False, allow_auto_create_topics=False
        )
        self._producer.partitions_for(sends)
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=servers, metrics_enabled=False, allow_auto_create_topics=False
        )
        self._consumer.assign([self._from])
        self._consumer.seek(self._from, 0)

    def send(self, value: bytes) -> None:
        self._producer.send(self._sends, value=value, partition=0)

    def take(self) -> bytes:
        """Return the next record; wait if there is none."""
        until = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < until:
            for records in self._consumer.poll(timeout_ms=1000, max_records=1).values():
                return bytes(records[0].value)
        raise RuntimeError(f"no record of {self._from.topic} arrived within {_TIMEOUT_SECONDS:g} s")

    def close(self) -> None:
        """Disconnect."""
        self._producer.close()
        self._consumer.close()


class Asker(_End):
    """Sends records, each after the previous one came back."""

    def ask(self, record: bytes, times: int) -> list[float]:
        """Return how many seconds each echo took; the first echoes are not timed."""
        taken = []
        for number in range(_WARMING + times):
            began = time.perf_counter()
            self.send(record)
            self.take()
            if number >= _WARMING:
                taken.append(time.perf_counter() - began)
        return taken


class OutcomeMaker(_End):
    """Sends each record back."""

    def answer(self, times: int) -> None:
        """Echo this many records, and those that are not timed."""
        for _ in range(_WARMING + times):
            self.send(self.take())
