"""What a client can see of its dataset's queue, and what follows from it. Does no I/O."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

_POSITION_KEY = "committerd.position"
"""The key of table_metadata under which a version carries the position."""
_PAUSED_KEY = "committerd.paused"
"""The key under which it carries the pause that an operator has put in place."""


class Progress(NamedTuple):
    """The group's offset at some time."""

    position: int
    at: float
    """Monotonic clock, seconds."""


class TablePosition(NamedTuple):
    """The position that the table's latest version carries."""

    next_offset: int
    topic_id: str
    era: int
    last_offset: int
    """Offset of the last record before it; negative if there was none."""
    last_sha256: str
    """Hash of that record (`sent_sha256`)."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The most likely cause of a long wait."""

    why: str
    """kafka, no_topic, no_committer, refuses, no_table, paused, open_transaction, behind, passed or stalled."""
    text: str
    """Some sentences for people: the cause, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The state of a dataset's queue, as far as a client can see it; None = not known."""

    kafka_responds: bool
    committers: int | None
    """Number of members of the committers' group: one is active, the others are standbys."""
    waiting: int | None
    """Number of records that have no outcome yet."""
    records_per_second: float | None
    """How many records the committer has settled in a second lately; also None if nothing waits."""
    table_exists: bool | None
    version: int | None
    """The table's latest version."""
    refusal: str | None
    """Why a committer refuses to run on this table and topic; None if the client sees no reason."""
    why: str
    """The cause as one word, as in `CommitTimeout.why`; empty if nothing is wrong."""
    text: str
    """The cause for people, and what to do."""

    @property
    def ok(self) -> bool:
        """Whether a committer takes records, and there is a table."""
        return self.why in ("", "behind")

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class QueueFacts:
    """The results of a check so far; None = not known (yet)."""

    servers: str
    group: str
    topic: str
    uri: str | None = None
    branch: str = ""
    """The branch of the table; empty for the main branch."""
    started: float = 0.0
    ended: float | None = None
    before: Progress | None = None
    """The progress at the end of the check before."""
    kafka_responds: bool = False
    error: str = ""
    """Why a request to Kafka failed; empty if none did."""
    topic_exists: bool | None = None
    topic_id: str | None = None
    members: int | None = None
    """Number of committers in the group."""
    position: int | None = None
    """The group's offset: all records before it have an outcome."""
    acknowledged: int | None = None
    """The group's offset as it was before the table was read."""
    acknowledged_era: int | None = None
    progress: Progress | None = None
    rate: float | None = None
    """How fast the group's offset grows, in records per second."""
    log_start: int | None = None
    readable_end: int | None = None
    """First offset that can't be read: an open Kafka transaction holds it back, or it does not exist yet."""
    table_exists: bool | None = None
    version: int | None = None
    table_position: TablePosition | None = None
    paused: str = ""
    """The operator's reason to pause the queue, and who it was if that is known; empty if it is not paused."""
    last_sha256: str | None = None
    """Hash of the record at the last offset of the table's position; also None if there is no record any more."""

    @property
    def settled_offset(self) -> int | None:
        """The last offset of the table's position, if the topic still has it."""
        if self.table_position is None or self.log_start is None or self.readable_end is None:
            return None
        last = self.table_position.last_offset
        return last if self.log_start <= last < self.readable_end else None

    def note_position(self, position: int | None, at: float) -> None:
        """Note the group's offset; a second one gives the rate."""
        self.position = position
        if position is None:
            return
        before = self.progress or self.before
        if before is not None and at > before.at:
            self.rate = max(position - before.position, 0) / (at - before.at)
        self.progress = Progress(position, at)

    @property
    def waiting(self) -> int | None:
        """Number of records that have no outcome yet."""
        first = self.position if self.position is not None else self.log_start
        if first is None or self.readable_end is None:
            return None
        return max(self.readable_end - first, 0)

    def status(self) -> QueueStatus:
        """The state, for people and programs."""
        cause = explain(self, None)
        waiting = self.waiting
        if cause is None and waiting:
            kind = "stalled" if self.rate == 0 and self.members else "behind"
            cause = Cause(kind, f"{_records(waiting)} wait{'' if waiting > 1 else 's'}{_pace(self, waiting)}.")
        return QueueStatus(
            kafka_responds=self.kafka_responds,
            committers=self.members,
            waiting=waiting,
            records_per_second=self.rate if waiting else None,
            table_exists=self.table_exists,
            version=self.version,
            refusal=refusal(self),
            why="" if cause is None else cause.why,
            text=self._all_is_well() if cause is None else cause.text,
        )

    def _all_is_well(self) -> str:
        count = self.members
        run = "a committer runs" if count is None else f"{count} committer{'s run' if count > 1 else ' runs'}"
        table = "" if self.version is None else f", and the table is at version {self.version}"
        return f"{run} in group {self.group}, no record waits{table}."


def table_position(metadata: Mapping[str, str], *, branch: str = "") -> TablePosition | None:
    """The position in a version's table_metadata; None if there is none that this client can read.

    `branch`: that of the version. It begins with the position of another queue, which does not count.
    """
    try:
        raw = json.loads(metadata[_POSITION_KEY])
        if branch and raw.get("branch") != branch:
            return None
        return TablePosition(
            next_offset=int(raw["next"]),
            topic_id=str(raw["topic_id"]),
            era=int(raw["era"]),
            last_offset=int(raw["last"]),
            last_sha256=str(raw["sha256"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def pause_in(metadata: Mapping[str, str], *, branch: str = "") -> str:
    """The pause in a version's table_metadata, for `QueueFacts.paused`; empty if there is none that this client can
    read.

    `branch`: as for `table_position`.
    """
    if branch and table_position(metadata, branch=branch) is None:
        return ""
    try:
        raw = json.loads(metadata[_PAUSED_KEY])
        by = f" (by {raw['who']})" if raw["who"] else ""
        return f"{raw['reason']}{by}"
    except (KeyError, TypeError, ValueError):
        return ""


def refusal(facts: QueueFacts) -> str | None:
    """Why a committer refuses to run on these facts; None if they show no reason.

    These are the committer's own rules (`committerd.queue.start`), as far as the facts go: it also compares outcomes.
    """
    position, acknowledged = facts.table_position, facts.acknowledged
    if facts.table_exists is False and acknowledged:
        return f"there is no table at {facts.uri}, but the group has acknowledged offset {acknowledged}: it was deleted"
    if position is None:
        return None
    if facts.topic_id is not None and position.topic_id != _written(facts.topic_id):
        return f"topic {facts.topic} was recreated: the table was written from an earlier topic of this name"
    named = f"the table's position is offset {position.next_offset}"
    reached = max(position.next_offset, position.last_offset + 1)
    if facts.readable_end is not None and reached > facts.readable_end:
        return f"the table's position reaches offset {reached}, and topic {facts.topic} ends at {facts.readable_end}"
    if facts.log_start is not None and position.next_offset < facts.log_start:
        return (
            f"{named}, and topic {facts.topic} starts at {facts.log_start}: records were deleted before they were read"
        )
    same_era = facts.acknowledged_era is None or facts.acknowledged_era >= position.era
    if acknowledged is not None and same_era and position.next_offset < acknowledged:
        return f"{named}, and the group has acknowledged {acknowledged}: the table went back"
    if facts.last_sha256 not in (None, position.last_sha256):
        return (
            f"the log of topic {facts.topic} was rewritten: the record at offset {position.last_offset} is another "
            "record than the table settled"
        )
    return None


def explain(facts: QueueFacts, offset: int | None) -> Cause | None:
    """The most likely cause for a record at this offset; None if the facts show no cause.

    `offset`: None if Kafka has not acknowledged the record.
    """
    if not facts.kafka_responds:
        return Cause("kafka", _kafka_is_away(facts))
    if facts.topic_exists is False:
        text = (
            f"There is no topic {facts.topic}. The committer creates the topics of its dataset when it first starts: "
            "start it, or check dataset and topic_prefix. If the topic was there before, it was deleted"
        )
        return Cause("no_topic", f"{text}.")
    refused, table = refusal(facts), _table_is_missing(facts)
    if facts.members == 0:
        text = (
            f"No committer runs: consumer group {facts.group} has no member. Start `committerd run` for this dataset, "
            f"with the same Kafka; records wait until then.{table and ' ' + table}"
        )
        return Cause("no_committer", text)
    if refused:
        return Cause(
            "refuses", f"The committer refuses to run: {refused}. `committerd status` says what to do; records wait."
        )
    if table:
        return Cause("no_table", table)
    is_settled = offset is not None and facts.position is not None and facts.position > offset
    if facts.paused and not is_settled:
        text = (
            f"The queue is paused: {facts.paused}. Records wait until an operator ends that with `committerd resume`."
        )
        return Cause("paused", text)
    return None if offset is None else _place_in_queue(facts, offset)


def _kafka_is_away(facts: QueueFacts) -> str:
    cause = f" ({facts.error})" if facts.error else ""
    return f"Kafka at {facts.servers} does not respond{cause}."


def _table_is_missing(facts: QueueFacts) -> str:
    if facts.table_exists is not False:
        return ""
    return (
        f"There is no table at {facts.uri}: records wait until somebody creates it. Create it through the queue, with "
        "`client.create(schema)` or `client.append(rows, create=True)`, or with pylance."
    )


def _place_in_queue(facts: QueueFacts, offset: int) -> Cause | None:
    if facts.readable_end is not None and offset >= facts.readable_end:
        return Cause(
            "open_transaction",
            f"A producer holds a Kafka transaction open, and nothing from offset {facts.readable_end} of {facts.topic} "
            "on can be read until it ends.",
        )
    if facts.position is not None and facts.position > offset:
        text = "The committer has settled it; its outcome was not read here in time. `client.resume(uuid)` finds it."
        return Cause("passed", text)
    first = facts.position if facts.position is not None else facts.log_start
    if first is None:
        return None
    ahead = offset - first
    if ahead > 0:
        verb = "are" if ahead > 1 else "is"
        text = (
            f"{_records(ahead)} {verb} ahead of it: the committer has settled the records below offset {first}"
            f"{_pace(facts, ahead)}."
        )
        return Cause("behind", text)
    if facts.members is None:
        return None
    return Cause(
        "stalled",
        "It is the next record and a committer runs, but makes no progress. `committerd status`, the "
        "committer's /readyz and its log say why.",
    )


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


def _pace(facts: QueueFacts, ahead: int) -> str:
    """How fast the committer works, and how long it takes for that many records."""
    if facts.rate is None:
        return ". If that number does not grow, `committerd status` and the committer's /readyz say why"
    if facts.rate == 0:
        return ", and none lately: `committerd status` and the committer's /readyz say why"
    return f", {facts.rate:,.1f} in a second: about {ahead / facts.rate:,.0f} s"


def era_of(metadata: str | None) -> int | None:
    """The era in which the group's offset was acknowledged; None if its metadata does not have it."""
    try:
        return int(json.loads(metadata or "")["era"])
    except (KeyError, TypeError, ValueError):
        return None


def _written(topic_id: str) -> str:
    """Kafka's topic id as the committer writes it."""
    try:
        return base64.urlsafe_b64encode(uuid.UUID(topic_id).bytes).rstrip(b"=").decode()
    except ValueError:
        return topic_id
