"""Diagnoses why a commit has no outcome, so that a log line and the error of a timeout can name the cause.

While a commit waits long, and in the last seconds of a timeout, it asks Kafka (does Kafka respond, does the committers'
group have a member, what is the group's offset, and how fast does it grow) and, if `dataset_uri` is given, looks for
the table and its position. One check serves all waiting commits of a client. It runs in a thread of its own, and nobody
waits for it: a slow check makes the message shorter, never the timeout longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import CoordinatorNotAvailableError, GroupIdNotFoundError, KafkaError, for_code

from committerd_client.connection import Connection
from committerd_client.kafka_log import filter_kafka_log
from committerd_client.kafka_repairs import connect
from committerd_client.queue_status import Cause, QueueFacts, QueueStatus, era_of, explain, pause_in, table_position
from committerd_client.table_location import TableLocation
from committerd_common.request import sent_sha256

_LOOK_SECONDS = 4.0
"""The check begins this long before the end of a timeout, or at half of a shorter timeout."""
_TIMEOUT_SECONDS_MIN = 0.5
"""A shorter timeout leaves no time for a check."""
_FRESH_SECONDS = 10.0
"""A check that is younger than this is not repeated."""
_LONG_SECONDS = 10.0
"""A commit that waits longer than this is checked, and the cause is logged."""
_TELL_SECONDS = 30.0
"""The least time between two such log lines of one client."""
_RATE_SECONDS = 1.0
"""Time between two requests for the group's offset, if there is no earlier one to compare with."""
_REQUEST_MS = 2_000
_SHORT = {"bootstrap_timeout_ms": _REQUEST_MS, "request_timeout_ms": _REQUEST_MS}
_COORDINATOR_TRIES, _COORDINATOR_SECONDS = 6, 0.25


class Diagnosis:
    """Runs the checks of one client. Use it only in that client's event loop."""

    def __init__(
        self,
        connection: Connection,
        *,
        group: str,
        uri: str | None,
        storage_options: Mapping[str, str] | None,
        branch: str = "",
    ) -> None:
        self._connection = connection
        self._group, self._uri, self._branch = group, uri, branch
        self._storage_options = dict(storage_options or {})
        self._facts: QueueFacts | None = None
        self._told_at = float("-inf")

    async def waited(
        self, wait: Callable[[float | None], Awaitable[bool]], seconds: float | None, *, tell: Callable[[], None]
    ) -> bool:
        """Call `wait` for `seconds` in all, and check why it takes long. Returns the result of `wait`.

        `tell`: called after a check that found the wait long, at most once in 30 s for all commits of the client; in
        the thread of the check.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        until = None if seconds is None or seconds < _TIMEOUT_SECONDS_MIN else began + seconds
        if until is None and seconds is not None:
            return await wait(seconds)
        last = None if until is None or seconds is None else max(until - _LOOK_SECONDS, began + seconds / 2)
        next_look = began + _LONG_SECONDS
        while last is None or next_look < last:
            if await wait(next_look - clock()):
                return True
            self._look(tell)
            next_look = clock() + _TELL_SECONDS
        if last is not None and await wait(max(last - clock(), 0.0)):
            return True
        self._look()
        return await wait(None if until is None else max(until - clock(), 0.0))

    def finding(self, offset: int | None) -> Cause | None:
        """The cause that the latest check found for a record at this offset; None if it found none (yet)."""
        facts = self._facts
        if facts is None or not (facts.kafka_responds or facts.error or _patience_is_over(facts)):
            return None
        return explain(facts, offset)

    def status(self) -> QueueStatus:
        """Check now, and wait for the result, a few seconds at most."""
        facts = self._observed()
        filter_kafka_log(self._connection.client_id, facts.servers)
        asking = threading.Thread(target=self._ask, args=(facts,), name=self._thread_name, daemon=True)
        asking.start()
        asking.join()
        return facts.status()

    @property
    def _thread_name(self) -> str:
        return f"{self._connection.client_id}-diagnosis"

    def _observed(self) -> QueueFacts:
        before, connection = self._facts, self._connection
        self._facts = QueueFacts(
            servers=", ".join(connection.bootstrap_servers),
            group=self._group,
            topic=connection.staged_topic,
            uri=self._uri,
            branch=self._branch,
            started=time.monotonic(),
            before=None if before is None else before.progress,
        )
        return self._facts

    def _look(self, tell: Callable[[], None] | None = None) -> None:
        before, now = self._facts, time.monotonic()
        if tell is not None:
            if now - self._told_at < _TELL_SECONDS:
                return
            self._told_at = now
        if before is not None and now - before.started < _FRESH_SECONDS:
            return

        def ask(facts: QueueFacts) -> None:
            self._ask(facts)
            if tell is not None:
                tell()

        with contextlib.suppress(RuntimeError):  # no more threads can be started: the message is shorter
            threading.Thread(target=ask, args=(self._observed(),), name=self._thread_name, daemon=True).start()

    def _ask(self, facts: QueueFacts) -> None:
        try:
            self._ask_kafka(facts)
        except Exception as error:  # noqa: BLE001  # no error of a check may do harm
            facts.error = facts.error or str(error) or type(error).__name__
        if facts.table_exists is None:
            self._look_at_table(facts)
        facts.ended = time.monotonic()

    def _look_at_table(self, facts: QueueFacts) -> None:
        with contextlib.suppress(Exception):  # it is then not known whether there is a table
            look_at_table(facts, self._storage_options)

    def _read_last(self, facts: QueueFacts, place: TopicPartition) -> None:
        """Note the hash of the record at the position's last offset; unknown if this user may not read the topic."""
        offset = facts.settled_offset
        if offset is None:
            return
        with contextlib.suppress(KafkaError):
            consumer = connect(KafkaConsumer, self._connection.consumer_config() | _SHORT)
            try:
                consumer.assign([place])
                consumer.seek(place, offset)
                polled = consumer.poll(timeout_ms=_REQUEST_MS, max_records=1)
            finally:
                consumer.close()
            for record in polled.get(place, []):
                if record.offset == offset:
                    facts.last_sha256 = sent_sha256(record.key, record.value or b"")

    def _ask_kafka(self, facts: QueueFacts) -> None:
        admin = connect(KafkaAdminClient, self._connection.admin_config() | _SHORT)
        place = TopicPartition(facts.topic, 0)
        try:
            for ask in (_ask_topic, _ask_group, None, _ask_bounds):
                # The table must hold what the group has acknowledged before, and not more than the topic holds later.
                if ask is None:
                    self._look_at_table(facts)
                    continue
                # A request that this user may not make leaves its facts unknown.
                try:
                    _repeated(ask, admin, facts, place)
                except KafkaError as error:
                    facts.error = str(error) or type(error).__name__
            self._read_last(facts, place)
            if facts.waiting and facts.rate is None:
                time.sleep(_RATE_SECONDS)
                _ask_progress(admin, facts, place)
        finally:
            admin.close()


def _patience_is_over(facts: QueueFacts) -> bool:
    return time.monotonic() - facts.started >= _REQUEST_MS / 1000


def _repeated(ask: Callable[[Any, QueueFacts, TopicPartition], None], *given: Any) -> None:
    """Call `ask`, again if needed: a new Kafka creates its topic of group offsets when a group is first requested."""
    for _ in range(_COORDINATOR_TRIES):
        try:
            ask(*given)
        except CoordinatorNotAvailableError:
            time.sleep(_COORDINATOR_SECONDS)
        else:
            return
    ask(*given)


def _ask_topic(admin: Any, facts: QueueFacts, place: TopicPartition) -> None:
    (described,) = admin.describe_topics([place.topic])
    facts.kafka_responds = True
    facts.topic_id = described.get("topic_id")
    error = for_code(described["error_code"])
    facts.topic_exists = error.__name__ != "UnknownTopicOrPartitionError"


def _ask_group(admin: Any, facts: QueueFacts, place: TopicPartition) -> None:
    try:
        facts.members = len(admin.describe_groups([facts.group])[facts.group]["members"])
    except GroupIdNotFoundError:
        facts.members = 0
    metadata = _ask_progress(admin, facts, place)
    facts.acknowledged, facts.acknowledged_era = facts.position, era_of(metadata)


def _ask_progress(admin: Any, facts: QueueFacts, place: TopicPartition) -> str | None:
    """Note the group's offset; returns its metadata."""
    found = admin.list_group_offsets({facts.group: [place]})[facts.group].get(place)
    if found is None or found.offset < 0:
        facts.note_position(None, time.monotonic())
        return None
    facts.note_position(found.offset, time.monotonic())
    return str(found.metadata or "")


def _ask_bounds(admin: Any, facts: QueueFacts, place: TopicPartition) -> None:
    facts.log_start = admin.list_partition_offsets({place: OffsetSpec.EARLIEST}, timeout_ms=_REQUEST_MS)[place].offset
    facts.readable_end = admin.list_partition_offsets(
        {place: OffsetSpec.LATEST}, isolation_level="read_committed", timeout_ms=_REQUEST_MS
    )[place].offset


def look_at_table(facts: QueueFacts, storage_options: Mapping[str, str]) -> None:
    """Note whether the table exists, its version, its position, and whether the queue is paused.

    Unknown without a URI, without pylance for an object store, and after an error.
    """
    if facts.uri is None:
        return
    path = _local_path(facts.uri)
    if path is not None:
        # If this machine lacks the parent folder, the path may exist on the committer's machine.
        facts.table_exists = any((path / "_versions").glob("*.manifest")) if path.parent.is_dir() else None
        if not facts.table_exists:
            return
    if "lance" not in sys.modules and find_spec("lance") is None:
        return
    found = TableLocation(uri=facts.uri, storage_options=storage_options).find()
    facts.table_exists = found is not None
    if found is not None:
        facts.version = found.version
        metadata = getattr(found, "metadata", {})
        facts.table_position = table_position(metadata, branch=facts.branch)
        facts.paused = pause_in(metadata, branch=facts.branch)


def _local_path(uri: str) -> Path | None:
    """The local folder that the URI names; None for an object store's URI."""
    parts = urlsplit(uri)
    if parts.scheme in ("file", "file-object-store"):
        return Path(unquote(parts.path))
    return Path(os.path.abspath(uri)) if "://" not in uri else None
