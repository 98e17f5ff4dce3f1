"""The change events of a table: what the topic `NAME.events` says of each version.

An event is a CloudEvent 1.0 in Kafka's structured content mode: the record's value is the whole event, as JSON, and the
header `content-type` says so. Programs that see only the value, as Spark, Flink, ksqlDB, ClickHouse and most sinks of
Kafka Connect do, need nothing else; the SDKs of CloudEvents read both modes by that header.

The topic itself says how far it has come: the last event of ours in it (`told_by`). Nothing else is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote

from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.timestamps import END_OF_CALENDAR_NS, to_ns
from committerd.lance.versions.difference import Difference
from committerd.queue.outcomes import settled_by
from committerd.queue.port import Publication
from committerd_common.messages import Transaction

CONTENT_TYPE = ("content-type", b"application/cloudevents+json; charset=UTF-8")
TRANSACTIONS_MAX = 100
"""Uuids that an event names; `transaction_count` says how many there are in all."""
PRODUCERS_MAX = 20
TEXT_CHARS_MAX = 200
"""Characters of a producer's name, and of a uuid: other writers may give any text."""
_SPEC_VERSION = "1.0"
_SAFE_IN_URI = "/:?#[]@!$&'()*+,;=~%"
_NS = 1_000_000_000


class EventType(StrEnum):
    """The attribute `type` of an event."""

    COMMITTED = "committerd.version.committed"
    MISSED = "committerd.versions.missed"
    REPLACED = "committerd.table.replaced"


class Missing(StrEnum):
    """Why the topic has no events of versions."""

    NEW_TOPIC = "new_topic"
    """The topic was empty, and its events begin later."""
    GONE = "gone"
    """They were cleaned up before they were told."""
    UNREADABLE = "unreadable"
    """Their manifests are damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Whose events they are."""

    dataset: str
    """`dataset.queue` of the settings."""
    uri: str
    """What is served: the table's root, or the branch's folder."""


class Told(NamedTuple):
    """Where the events of a topic end."""

    version: int
    """All versions up to this one are told."""
    id: str
    """The id of its event; empty if the last event is not about a single version."""


class ChangeEvent(NamedTuple):
    """An event, ready to publish."""

    type: EventType
    publication: Publication


def event_id(file: ManifestFile, transaction: Transaction | None) -> str:
    """The id of a version's event: the same whoever publishes it, and different for another table's version."""
    uuid = transaction.uuid[:TEXT_CHARS_MAX] if transaction is not None else ""
    return f"{file.version}-{uuid or to_ns(file.outline.timestamp)}"


def committed_event(
    source: EventSource, file: ManifestFile, transaction: Transaction | None, changed: Difference | None
) -> ChangeEvent:
    """The event of one version. `transaction`: what made it; None = unreadable.

    `changed`: how it differs from the version below; None = the version below can't be read.
    """
    settled = settled_by(transaction, version=file.version)
    uuids = [member.uuid for member in settled.members]
    operations = [member.operation for member in settled.members if member.operation]
    if not settled.ours and settled.uuid:
        uuids = [settled.uuid[:TEXT_CHARS_MAX]]
    producers = _distinct(member.producer[:TEXT_CHARS_MAX] for member in settled.members if member.producer)
    data: dict[str, Any] = {
        "dataset": source.dataset,
        "version": file.version,
        "branch": file.outline.branch,
        "through_queue": settled.ours,
        "uuid": settled.uuid[:TEXT_CHARS_MAX],
        "read_version": transaction.read_version if transaction is not None else None,
        "operations": _distinct(operations) or [settled.operation or "unknown"],
        "transactions": uuids[:TRANSACTIONS_MAX],
        "transaction_count": len(uuids),
        "producers": producers[:PRODUCERS_MAX],
        "producer_count": len(producers),
        "fragments": len(file.fragments),
        "fragments_added": changed.fragments_added if changed is not None else None,
        "fragments_removed": changed.fragments_removed if changed is not None else None,
        "rows_added": changed.rows_added if changed is not None else None,
        "rows_removed": changed.rows_removed if changed is not None else None,
    }
    if transaction is not None and settled.operation == "restore":
        data["restored_version"] = transaction.restore.version
    time = _time(to_ns(file.outline.timestamp))
    return _event(source, EventType.COMMITTED, data, name=event_id(file, transaction), time=time)


def missed_event(source: EventSource, first: int, last: int, why: Missing, *, now: datetime) -> ChangeEvent:
    """The event that says that the topic has no events of the versions from `first` to `last` (inclusive)."""
    data = {"dataset": source.dataset, "first": first, "last": last, "reason": why.value}
    return _event(source, EventType.MISSED, data, name=f"{first}-{last}-missed", time=now.isoformat())


def replaced_event(source: EventSource, told: Told, latest: int, *, now: datetime) -> ChangeEvent:
    """The event that says that the earlier events are about another table: this table was recreated or put back.

    `told`: where those events end. `latest`: the table's latest version. All its versions are told next.
    """
    data = {"dataset": source.dataset, "told_version": told.version, "told_id": told.id, "latest_version": latest}
    return _event(source, EventType.REPLACED, data, name=f"{told.id or told.version}-replaced", time=now.isoformat())


def told_by(value: bytes) -> Told | None:
    """Where the events end if the last record has this value; None if the value is no event of ours."""
    try:
        event = json.loads(value)
        kind, data = EventType(event["type"]), event["data"]
        if kind is EventType.COMMITTED:
            return Told(int(data["version"]), str(event["id"]))
        return Told(int(data["last"]) if kind is EventType.MISSED else 0, "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _event(
    source: EventSource, kind: EventType, data: Mapping[str, Any], *, name: str, time: str | None
) -> ChangeEvent:
    event = {
        "specversion": _SPEC_VERSION,
        "id": name,
        "source": quote(source.uri, safe=_SAFE_IN_URI),
        "type": kind.value,
        "subject": source.dataset,
        **({"time": time} if time is not None else {}),
        "datacontenttype": "application/json",
        "data": data,
    }
    value = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    # One key for all: they stay in order in a copy of the topic that has more partitions.
    return ChangeEvent(kind, Publication(key=source.dataset.encode(), value=value, headers=(CONTENT_TYPE,)))


def _time(ns: int) -> str | None:
    """RFC 3339 with nanoseconds; None outside the years 1970 to 9999."""
    if not 0 <= ns < END_OF_CALENDAR_NS:
        return None
    seconds, rest = divmod(ns, _NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _distinct(texts: Iterable[str]) -> Sequence[str]:
    return list(dict.fromkeys(texts))
