"""Checks whether Kafka responds: each member sends requests every few seconds, on connections of their own.

Nothing else shows an outage in time: a consumer that gets no responses looks as if it had nothing to read. The request
goes to the leaders of the staged partitions, so a cluster that is up but can't serve a topic counts as not responding
for that topic. The response that the topic does not exist counts as a response. The number of requests does not grow
with the number of datasets: one for the leaders, and one or two to each leader.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka import TopicPartition, errors

from committerd.errors import CommitterError
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.clients import in_words
from committerd.parts import Parts
from committerd.settings.kafka import KafkaSettings

_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """What Kafka said about one partition."""

    at: float
    """When it said it (monotonic clock, seconds)."""
    failure: str = ""
    """Why there was no response; empty if there was one."""
    end: int | None = None
    """The offset after the last record, whether it can be read or not; None if it was not asked for, or not told."""
    readable: int | None = None
    """The offset after the last record that can be read now; None if it was not told."""


class KafkaContact:
    """Asks Kafka; methods block."""

    def __init__(self, settings: KafkaSettings, name: str, parts: Parts) -> None:
        timeout = max(min(settings.request_timeout_ms, _TIMEOUT_MS), settings.fetch_max_wait_ms + 1)
        self._settings = settings.model_copy(update={"request_timeout_ms": timeout})
        self._seconds = timeout / 1000
        self._name = name
        self._parts = parts
        self._admin: TopicAdmin | None = None

    def ask(self, partitions: Iterable[TopicPartition], *, ends: bool) -> Mapping[TopicPartition, Contact]:
        """Ask the leaders of the partitions. `ends`: also for the ends with what can't be read now."""
        asked = tuple(partitions)
        try:
            return self._ask(asked, ends=ends)
        except CommitterError as error:
            return dict.fromkeys(asked, Contact(at=time.monotonic(), failure=str(error)))

    def close(self) -> None:
        """Close the connections."""
        if self._admin is not None:
            self._admin.close()

    def _ask(self, partitions: Iterable[TopicPartition], *, ends: bool) -> Mapping[TopicPartition, Contact]:
        if self._admin is None:
            self._admin = TopicAdmin(self._settings, self._name, bootstrap_ms=_TIMEOUT_MS, parts=self._parts)
        leaders = self._admin.leaders([partition.topic for partition in partitions], seconds=self._seconds)
        led: dict[int | None, list[TopicPartition]] = {}
        said: dict[TopicPartition, Contact] = {}
        for partition in partitions:
            node = leaders[partition.topic]
            if node is None:
                said[partition] = Contact(at=time.monotonic())
            else:
                led.setdefault(node, []).append(partition)
        # The readable ends come last: records of a transaction that was committed meanwhile are not held back.
        all_ends = self._admin.ends(led, held_back=True, seconds=self._seconds) if ends else {}
        readable = self._admin.ends(led, held_back=False, seconds=self._seconds)
        for partition in (one for some in led.values() for one in some):
            end, until = all_ends.get(partition), readable.get(partition)
            failed = isinstance(until, errors.KafkaError) and not isinstance(until, errors.BrokerResponseError)
            said[partition] = Contact(
                at=time.monotonic(),
                failure=f"asking for the end of {partition.topic}: {in_words(until)}" if failed else "",
                end=end if isinstance(end, int) else None,
                readable=until if isinstance(until, int) else None,
            )
        return said
