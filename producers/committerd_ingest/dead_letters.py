"""The form of a record in the topic for bad records: the record itself, and headers behind its own that say where it
came from, whose it is and why it is bad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from committerd_ingest.records import Partition, Record

_NAMES = tuple(
    f"ingest-{one}" for one in ("pipeline", "topic", "topic-id", "partition", "offset", "timestamp", "reason")
)
_FIRST = ("ingest-topic", "ingest-partition", "ingest-offset", "ingest-timestamp", "ingest-reason")
"""Those that the first releases of `committerd ingest` wrote."""


class Origin(NamedTuple):
    """The partition from which a bad record came."""

    partition: Partition
    topic_id: str
    """Of the topic, which is another one after it was made anew; empty if the record does not say it."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of the topic for bad records."""

    pipeline: str
    """Whose it is; empty if the record does not say it."""
    origin: Origin
    record: Record
    """As it was in its own topic."""
    reason: str


def headers_of(letter: Letter) -> list[tuple[str, bytes]]:
    """The record's own headers, and those that describe it. A header without a value gets an empty one."""
    origin, record = letter.origin, letter.record
    values = (
        letter.pipeline,
        origin.partition.topic,
        origin.topic_id,
        str(origin.partition.number),
        str(record.offset),
        str(record.timestamp_ms),
        letter.reason,
    )
    own = [(name, value or b"") for name, value in record.headers]
    return [*own, *((name, value.encode(errors="replace")) for name, value in zip(_NAMES, values, strict=True))]


def letter_of(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> Letter | None:
    """What a record of the topic for bad records says; None if `headers_of` has not made it."""
    for names in (_NAMES, _FIRST):
        own, ours = headers[: -len(names)], headers[-len(names) :]
        if tuple(name for name, _ in ours) != names:
            continue
        said = {name: (text or b"").decode(errors="replace") for name, text in ours}
        try:
            number, offset = int(said["ingest-partition"]), int(said["ingest-offset"])
            record = Record(offset, int(said["ingest-timestamp"]), key, value, own)
        except ValueError:
            return None
        if number < 0 or offset < 0:
            return None
        origin = Origin(Partition(said["ingest-topic"], number), said.get("ingest-topic-id", ""))
        return Letter(said.get("ingest-pipeline", ""), origin, record, said["ingest-reason"])
    return None
