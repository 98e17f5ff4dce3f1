"""Where a partition begins, decided from what the table and Kafka say.

Two entries of the table count. The committer keeps the *mark*: the last unit of the application, whose number is the
offset behind the last record that is in the table. It forgets a mark that nothing has used for 30 days. So there is a
*note* too, under `committerd-ingest.APP-ID` in the table's metadata, which nobody forgets: it says that the partition
was begun, and where the mark was at a time. A note is written when a partition begins, and again when it is a week old.

A mark that is missing although there is a note was forgotten or never written. If the note is younger than a mark's
life, no unit was committed since: the mark of such a unit would be there. Then the note says where to go on. If not,
nothing proves what the table has, and the partition is stopped: it is never begun at a guess.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from committerd_client.app_marks import AppMark
from committerd_ingest.records import Partition

_T = TypeVar("_T")

NOTE_PREFIX = "committerd-ingest."
_APP_ID_MAX = 128
_DAY_MS = 24 * 3600 * 1000
NOTE_PROVES_MS = 25 * _DAY_MS
"""A note that is younger proves where the mark was: marks live 30 days, and clocks differ by less than the rest."""
NOTE_RENEWED_MS = 7 * _DAY_MS

Start: TypeAlias = Literal["earliest", "latest"]
"""Where a partition begins that the pipeline has never read."""


def app_id_of(pipeline: str, cluster_id: str, partition: Partition) -> str:
    """The application of a partition: pipeline, cluster, topic and number, at most 128 characters.

    A cluster or a topic that does not fit is replaced by a hash of both. `pipeline` has no dot.
    """
    topic, number = partition
    if re.fullmatch(r"[A-Za-z0-9_-]+", cluster_id):
        whole = f"{pipeline}.{cluster_id}.{topic}.{number}"
        if len(whole) <= _APP_ID_MAX:
            return whole
    hashed = hashlib.sha256(f"{cluster_id}\0{topic}".encode()).hexdigest()[:32]
    return f"{pipeline}.{hashed}.{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What the table's metadata says of a partition."""

    topic_id: str
    offset: int
    """Where the mark was when the note was written."""
    at_ms: int
    """When it was written: Unix milliseconds by the clock of the process."""

    def text(self) -> str:
        return json.dumps({"topic_id": self.topic_id, "offset": self.offset, "at_ms": self.at_ms})


def note_in(table_metadata: Mapping[str, str], app_id: str) -> Note | None:
    """The note of a partition; None if there is none. Raises `ValueError` for a note that can't be read."""
    return read_note(
        table_metadata,
        app_id,
        lambda raw: Note(topic_id=str(raw["topic_id"]), offset=int(raw["offset"]), at_ms=int(raw["at_ms"])),
    )


def read_note(table_metadata: Mapping[str, str], app_id: str, made: Callable[[Any], _T]) -> _T | None:
    """The note of an application, made of its JSON; None if there is none. Raises `ValueError` if it can't be made."""
    text = table_metadata.get(NOTE_PREFIX + app_id)
    if text is None:
        return None
    try:
        return made(json.loads(text))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{NOTE_PREFIX}{app_id} in the table's metadata is {text[:200]!r}, which is no note"
        ) from error


@dataclass(frozen=True, slots=True)
class Log:
    """What Kafka says of a partition."""

    topic_id: str
    start: int
    """Offset of the first record that is still there."""
    end: int
    """Offset behind the last one."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The partition goes on at the mark."""

    offset: int
    renew: bool
    """Whether the note is missing or old."""


@dataclass(frozen=True, slots=True)
class Enter:
    """The table has no mark of the partition, and it is certain where to begin: write note and mark first."""

    offset: int


@dataclass(frozen=True, slots=True)
class Stop:
    """It is not certain what the table has, or Kafka has lost records: an operator decides."""

    reason: str
    """`topic_recreated`, `log_truncated`, `records_expired`, `mark_lost` or `mark_released`."""
    text: str


def where_to_begin(
    mark: AppMark | None, note: Note | None, log: Log, *, start: Start, now_ms: int
) -> Begin | Enter | Stop:
    """Where a partition begins. `now_ms`: Unix milliseconds."""
    if mark is not None and mark.version < 0:
        return Stop(
            "mark_released",
            "an operator has released the partition's mark (`committerd app release`), so the table does not say which "
            "records it has",
        )
    known = mark.run if mark is not None else note.topic_id if note is not None else log.topic_id
    if known != log.topic_id:
        return Stop(
            "topic_recreated",
            f"the topic was deleted and made again: the table has records of topic id {known}, and it is {log.topic_id}"
            " now, whose offsets count anew",
        )
    if mark is not None:
        renew = note is None or now_ms - note.at_ms >= NOTE_RENEWED_MS
        return _lost(mark.version, log) or Begin(mark.version, renew)
    if note is None:
        return Enter(log.start if start == "earliest" else log.end)
    if now_ms - note.at_ms < NOTE_PROVES_MS or note.offset == log.end:
        return _lost(note.offset, log) or Enter(note.offset)
    return Stop(
        "mark_lost",
        f"the table was at offset {note.offset} once, and has forgotten the mark since, as it does after 30 days "
        f"without a commit; the topic has records up to {log.end}, and some of them may be in the table",
    )


def _lost(offset: int, log: Log) -> Stop | None:
    if offset > log.end:
        return Stop(
            "log_truncated",
            f"the table has the records up to offset {offset}, and the topic ends at {log.end}: Kafka has lost "
            "records, and new ones would get their offsets",
        )
    if offset < log.start:
        return Stop(
            "records_expired",
            f"the table has the records up to offset {offset}, and the topic begins at {log.start}: Kafka has deleted "
            "records that were never read",
        )
    return None
