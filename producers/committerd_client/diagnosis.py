"""Diagnoses, shortly before a commit times out, why it has no outcome, so that the error can name the cause.

In the last seconds of a timeout it asks Kafka (does Kafka respond, does the committers' group have a member, what is
the group's offset) and, if `dataset_uri` is given, looks for the table. One check serves all waiting commits of a
client. It runs in a thread of its own, and nobody waits for it: a slow check makes the message shorter, never the
timeout longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import CoordinatorNotAvailableError, GroupIdNotFoundError, KafkaError, for_code

from committerd_client.connection import Connection, connect

_LOOK_SECONDS = 4.0
"""The check begins this long before the end of a timeout, or at half of a shorter timeout."""
_TIMEOUT_SECONDS_MIN = 0.5
"""A shorter timeout leaves no time for a check."""
_FRESH_SECONDS = 10.0
"""A check that is younger than this is not repeated."""
_REQUEST_MS = 2_000
_COORDINATOR_TRIES, _COORDINATOR_SECONDS = 6, 0.25


@dataclass(slots=True)
class Observed:
    """The results of a check so far; None = not known (yet)."""

    servers: str
    group: str
    topic: str
    uri: str | None = None
    started: float = 0.0
    ended: float | None = None
    kafka_answered: bool = False
    error: str = ""
    """Why a request to Kafka failed; empty if none did."""
    topic_exists: bool | None = None
    members: int | None = None
    """Number of committers in the group."""
    position: int | None = None
    """The group's offset: all records before it have an outcome."""
    log_start: int | None = None
    readable_end: int | None = None
    """First offset that can't be read: an open Kafka transaction holds it back, or it does not exist yet."""
    table_exists: bool | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """The most likely cause."""

    why: str
    """kafka, no_topic, no_committer, no_table, open_transaction, behind, passed or stalled."""
    text: str
    """Some sentences for people: the cause, and what to do."""


def explain(facts: Observed, offset: int | None) -> Cause | None:
    """The most likely cause for a record at this offset; None if the facts show no cause.

    `offset`: None if Kafka has not acknowledged the record.
    """
    if not facts.kafka_answered:
        return Cause("kafka", _kafka_is_away(facts))
    if facts.topic_exists is False:
        return Cause("no_topic", f"Topic {facts.topic} is gone: it was deleted while the client was open.")
    table = _table_is_missing(facts)
    if facts.members == 0:
        text = (
            f"No committer runs: consumer group {facts.group} has no member. Start `committerd run` for this dataset, "
            f"with the same Kafka; records wait until then.{table and ' ' + table}"
        )
        return Cause("no_committer", text)
    if table:
        return Cause("no_table", table)
    return None if offset is None else _place_in_queue(facts, offset)


def _kafka_is_away(facts: Observed) -> str:
    cause = f" ({facts.error})" if facts.error else ""
    return f"Kafka at {facts.servers} does not answer{cause}."


def _table_is_missing(facts: Observed) -> str:
    if facts.table_exists is not False:
        return ""
    return (
        f"There is no table at {facts.uri}: records wait until somebody creates it. Create it through the queue, with "
        "`await client.commit(staging.create([], schema))`, or with pylance."
    )


def _place_in_queue(facts: Observed, offset: int) -> Cause | None:
    if facts.readable_end is not None and offset >= facts.readable_end:
        return Cause(
            "open_transaction",
            f"A producer holds a Kafka transaction open, and nothing from offset {facts.readable_end} of {facts.topic} "
            "on can be read until it ends.",
        )
    if facts.position is not None and facts.position > offset:
        text = "The committer has answered it; the answer was not read here in time. `client.resume(uuid)` finds it."
        return Cause("passed", text)
    first = facts.position if facts.position is not None else facts.log_start
    if first is None:
        return None
    ahead = offset - first
    if ahead > 0:
        text = (
            f"{ahead} records are ahead of it: the committer has answered those below offset {first}. If that number "
            "does not grow, `committerd status` and the committer's /readyz say why."
        )
        return Cause("behind", text)
    if facts.members is None:
        return None
    return Cause(
        "stalled",
        "It is the next record and a committer runs, but makes no progress. `committerd status`, the "
        "committer's /readyz and its log say why.",
    )


class Diagnosis:
    """Runs the checks of one client. Use it only in that client's event loop."""

    def __init__(
        self, connection: Connection, *, group: str, uri: str | None, storage_options: Mapping[str, str] | None
    ) -> None:
        self._connection = connection
        self._group, self._uri = group, uri
        self._storage_options = dict(storage_options or {})
        self._facts: Observed | None = None

    async def waited(self, wait: Callable[[float | None], Awaitable[bool]], seconds: float | None) -> bool:
        """Call `wait` for `seconds` in all, and start a check shortly before the end. Returns the result of `wait`."""
        if seconds is None or seconds < _TIMEOUT_SECONDS_MIN:
            return await wait(seconds)
        until = asyncio.get_running_loop().time() + seconds
        if await wait(max(seconds - _LOOK_SECONDS, seconds / 2)):
            return True
        self._look()
        return await wait(max(until - asyncio.get_running_loop().time(), 0.0))

    def finding(self, offset: int | None) -> Cause | None:
        """The cause that the latest check found for a record at this offset; None if it found none (yet)."""
        facts = self._facts
        if facts is None or not (facts.kafka_answered or facts.error or _patience_is_over(facts)):
            return None
        return explain(facts, offset)

    def _look(self) -> None:
        before, now = self._facts, time.monotonic()
        if before is not None and (now - before.started < _FRESH_SECONDS):
            return
        connection = self._connection
        facts = self._facts = Observed(
            servers=", ".join(connection.bootstrap_servers),
            group=self._group,
            topic=connection.staged_topic,
            uri=self._uri,
            started=now,
        )
        name = f"{connection.client_id}-diagnosis"
        with contextlib.suppress(RuntimeError):  # no more threads can be started: the message is shorter
            threading.Thread(target=self._ask, args=(facts,), name=name, daemon=True).start()

    def _ask(self, facts: Observed) -> None:
        try:
            self._ask_kafka(facts)
        except Exception as error:  # noqa: BLE001  # no error of a check may do harm
            facts.error = facts.error or str(error) or type(error).__name__
        with contextlib.suppress(Exception):
            facts.table_exists = table_exists(facts.uri, self._storage_options)
        facts.ended = time.monotonic()

    def _ask_kafka(self, facts: Observed) -> None:
        config = self._connection.admin_config() | {
            "bootstrap_timeout_ms": _REQUEST_MS,
            "request_timeout_ms": _REQUEST_MS,
        }
        admin = connect(KafkaAdminClient, config)
        place = TopicPartition(facts.topic, 0)
        try:
            for ask in (_ask_topic, _ask_group, _ask_bounds):
                # A request that this user may not make leaves its facts unknown.
                try:
                    _repeated(ask, admin, facts, place)
                except KafkaError as error:
                    facts.error = str(error) or type(error).__name__
        finally:
            admin.close()


def _patience_is_over(facts: Observed) -> bool:
    return time.monotonic() - facts.started >= _REQUEST_MS / 1000


def _repeated(ask: Callable[[Any, Observed, TopicPartition], None], *given: Any) -> None:
    """Call `ask`, again if needed: a new Kafka creates its topic of group offsets when a group is first requested."""
    for _ in range(_COORDINATOR_TRIES):
        try:
            ask(*given)
        except CoordinatorNotAvailableError:
            time.sleep(_COORDINATOR_SECONDS)
        else:
            return
    ask(*given)


def _ask_topic(admin: Any, facts: Observed, place: TopicPartition) -> None:
    (described,) = admin.describe_topics([place.topic])
    facts.kafka_answered = True
    error = for_code(described["error_code"])
    facts.topic_exists = error.__name__ != "UnknownTopicOrPartitionError"


def _ask_group(admin: Any, facts: Observed, place: TopicPartition) -> None:
    try:
        facts.members = len(admin.describe_groups([facts.group])[facts.group]["members"])
    except GroupIdNotFoundError:
        facts.members = 0
    found = admin.list_group_offsets({facts.group: [place]})[facts.group].get(place)
    facts.position = found.offset if found is not None and found.offset >= 0 else None


def _ask_bounds(admin: Any, facts: Observed, place: TopicPartition) -> None:
    facts.log_start = admin.list_partition_offsets({place: OffsetSpec.EARLIEST}, timeout_ms=_REQUEST_MS)[place].offset
    facts.readable_end = admin.list_partition_offsets(
        {place: OffsetSpec.LATEST}, isolation_level="read_committed", timeout_ms=_REQUEST_MS
    )[place].offset


def table_exists(uri: str | None, storage_options: Mapping[str, str]) -> bool | None:
    """Whether the table exists; None if that is unknown: no URI, no pylance for an object store, or another error."""
    if uri is None:
        return None
    path = _local_path(uri)
    if path is not None:
        # If this machine lacks the parent folder, the path may exist on the committer's machine.
        return any((path / "_versions").glob("*.manifest")) if path.parent.is_dir() else None
    if "lance" not in sys.modules and find_spec("lance") is None:
        return None
    import lance  # imported here because it takes a third of a second

    try:
        lance.dataset(uri, storage_options=dict(storage_options) or None)
    except (OSError, ValueError) as error:  # pylance raises either if the table does not exist
        return False if "not found" in str(error).lower() else None
    return True


def _local_path(uri: str) -> Path | None:
    """The local folder that the URI names; None for an object store's URI."""
    parts = urlsplit(uri)
    if parts.scheme in ("file", "file-object-store"):
        return Path(unquote(parts.path))
    return Path(os.path.abspath(uri)) if "://" not in uri else None
