"""The audit: it finds lost records, doubled records and false outcomes, from the table's versions, the staged topic and
the outcomes.

A committer may run meanwhile, so the caller must read in this order: the group's offset and the end of the outcomes
topic, then the versions (into an `AuditedHistory`), then the outcomes up to that end, then the staged records. Then the
table, which is read later, must have every outcome that was published before.

Versions that were cleaned up, and records and outcomes that have expired, can't be checked. They are not findings, but
are counted as unchecked. An operator who sets the position begins a new era; outcomes of earlier eras prove nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from committerd.audit.history import AuditedHistory, Entry, Finding, Findings, NumberMap, NumbersInMemory
from committerd.lance.format.kind import Kind
from committerd.queue.port import Record, TopicIdentity, record_sha256
from committerd_common.messages import DecodeError, Outcome, Transaction
from committerd_common.messages import Status as StatusNumber

OUTCOME_CLOCK_MS = 60 * 60 * 1000
"""The largest difference, in milliseconds, between a committer's clock, which dates outcomes, and the broker's, which
dates records.
"""

_WITHOUT_ROWS = frozenset({Kind.REWRITE, Kind.RESERVE_FRAGMENTS})
_LOST = 2
"""The number in `Audit.outcome_numbers` of an offset whose transaction is known to be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """The state of the queue when the audit began."""

    identity: TopicIdentity
    log_start: int
    log_end: int
    acknowledged: int | None
    """The offset that the group has committed, read before anything else; None = it has committed none."""
    acknowledged_era: int | None = None
    """The era that the metadata of that offset names; None if it names none."""
    outcomes_since_ms: int = 0
    """Unix milliseconds since when no outcome has expired; 0 = no outcome ever has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit."""

    findings: Sequence[Finding]
    """The first findings, at most `Findings.KEPT_MAX`."""
    by_code: Mapping[str, int]
    """The number of findings of each code, all counted."""
    counts: Mapping[str, int]
    """The numbers of versions, records and outcomes that were checked, by kind."""
    unchecked: Mapping[str, int]
    """The numbers of versions, records and outcomes that could not be checked, by cause."""


@dataclass(slots=True)
class Audit:
    """Compares outcomes and staged records with the history of the table, one after another, and collects findings."""

    bounds: QueueBounds
    history: AuditedHistory
    _counts: Counter[str] = field(default_factory=Counter)
    _unchecked: Counter[str] = field(default_factory=Counter)
    outcome_numbers: NumberMap[int] = field(default_factory=NumbersInMemory)
    """The offsets of the present topic that have an outcome, each with a hash of the outcome if its version was not
    read, and else 0.
    """
    _next: int = -1
    """The offset after the last staged record."""

    @property
    def findings(self) -> Findings:
        return self.history.findings

    def undecodable_outcome(self, partition: int, offset: int) -> None:
        """Note a record of the outcomes topic that is not an outcome."""
        text = f"the record at offset {offset} of partition {partition} of the outcomes topic is not an outcome"
        self.findings.add("outcome_undecodable", text)

    def outcome(self, outcome: Outcome) -> None:
        """Check the next outcome, from any partition."""
        self._counts["outcomes"] += 1
        present = outcome.topic_id == self.bounds.identity.topic_id
        if present and self.outcome_numbers.get(outcome.offset) is None:
            self.outcome_numbers.put(outcome.offset, 0)
        if outcome.status == StatusNumber.UNDECIDED:
            return
        if outcome.era < self.history.era:
            self._earlier(outcome)
            return
        entry = self.history.entry(outcome.topic_id, outcome.offset)
        if entry is not None:
            problem = disagreement(entry, outcome)
            if problem and entry.era < outcome.era and self.history.is_gone(outcome.topic_id, outcome.offset):
                self._unchecked["outcomes whose version was not read"] += 1
            elif problem:
                self._false("outcome_false", outcome, problem)
        elif present and outcome.before_table and not self._passes(outcome.offset):
            self._unchecked["refusals before there was a table"] += 1
        elif present and not self._passes(outcome.offset):
            self._false("outcome_beyond_position", outcome, "the table's position has not passed that record")
        elif outcome.status == StatusNumber.COMMITTED and outcome.version in self.history.read:
            self._false("outcome_false", outcome, "that version does not name the record")
        elif outcome.status == StatusNumber.COMMITTED and outcome.version > self.history.latest:
            self._false("outcome_false", outcome, f"the table ends at version {self.history.latest}")
        else:
            self._unchecked["outcomes whose version was not read"] += 1
            self._compare_with_earlier(outcome, present=present)

    def record(self, record: Record) -> None:
        """Check the next record of the staged topic. The caller passes all outcomes before the first record."""
        offset = record.offset
        self._missing_until(offset)
        self._next = offset + 1
        self._counts["staged records"] += 1
        position = self.history.position
        if position is not None and position.identity != self.bounds.identity:
            self._unchecked["records of another topic than the position's"] += 1
            return
        if position is None or not position.passes(offset):
            self._counts["records pending"] += 1
            return
        self._counts["records passed"] += 1
        if offset == position.last_offset and record_sha256(record) != position.last_sha256:
            self.findings.add(
                "log_rewritten",
                f"the record at offset {offset} is not the record that the table settled last",
                offset=offset,
            )
        entry = self.history.entry(self.bounds.identity.topic_id, offset)
        if entry is None:
            self._without_entry(offset)
        else:
            self._counts["records with an outcome in a version"] += 1
            if entry.era == position.era:
                self._same_uuid(entry, record)
        self._has_outcome(record)

    def report(self) -> AuditReport:
        """The result. The caller asks for it once, after the last record."""
        position, bounds = self.history.position, self.bounds
        if position is not None and position.identity != bounds.identity:
            self.findings.add(
                "topic_id",
                f"the table's position is of topic {position.topic} (id {position.topic_id}), the queue is "
                f"{bounds.identity.topic} (id {bounds.identity.topic_id})",
            )
        elif position is not None:
            self._missing_until(bounds.log_end)
            reached = max([position.next_offset, *position.settled.bounds])
            if reached > bounds.log_end:
                self.findings.add(
                    "position_beyond_end",
                    f"the table's position reaches offset {reached}, the topic ends at {bounds.log_end}",
                )
            if position.next_offset < bounds.log_start:
                self.findings.add(
                    "records_lost_unread",
                    f"offsets {position.next_offset} to {bounds.log_start - 1} were deleted from the topic before the "
                    "table settled them",
                    offset=position.next_offset,
                )
            expired = self.history.count_below(bounds.identity.topic_id, bounds.log_start)
            if expired:
                self._unchecked["records that have expired, and which versions name"] += expired
        counts = self.history.counts + self._counts
        return AuditReport(
            findings=self.findings.kept,
            by_code=dict(sorted(self.findings.by_code.items())),
            counts=dict(counts),
            unchecked=dict(self.history.unchecked + self._unchecked),
        )

    def _passes(self, offset: int) -> bool:
        position = self.history.position
        return position is not None and position.identity == self.bounds.identity and position.passes(offset)

    def _earlier(self, outcome: Outcome) -> None:
        """Count an outcome of an earlier era if the table does not confirm it: it may no longer be true.

        If the table has lost the transaction that it is about, and an operator wanted it committed again, that is a
        finding.
        """
        entry = self.history.entry(outcome.topic_id, outcome.offset)
        if entry is not None and not disagreement(entry, outcome):
            return
        self._unchecked["outcomes of an earlier era that the table does not confirm"] += 1
        if outcome.status == StatusNumber.COMMITTED and self._is_lost(outcome, entry):
            self._lost(outcome, entry)

    def _is_lost(self, outcome: Outcome, entry: Entry | None) -> bool:
        """Whether the transaction was in the history that the table has lost, and is certainly not in its present one.

        Compactions and reserved ids are not lost: they hold no rows of their own.
        """
        position, place = self.history.position, (outcome.topic_id, outcome.offset)
        if position is None or position.lost is None or outcome.topic_id != position.topic_id:
            return False
        if not position.lost.concerns(outcome.offset, outcome.version) or outcome.operation in _WITHOUT_ROWS:
            return False
        if self.history.uuids.get(outcome.uuid) is not None:
            return False
        if entry is None:
            return position.passes(outcome.offset) and not self.history.is_gone(*place)
        return entry.status not in (StatusNumber.COMMITTED, StatusNumber.DUPLICATE)

    def _lost(self, outcome: Outcome, entry: Entry | None) -> None:
        if self.outcome_numbers.get(outcome.offset) == _LOST:
            return
        self.outcome_numbers.put(outcome.offset, _LOST)
        who = f", of {outcome.producer}" if outcome.producer else ""
        why = (
            f"{StatusNumber.Name(entry.status)} {entry.reason} in version {entry.at}"
            if entry is not None
            else "the position was set to an offset behind its record"
        )
        self.findings.add(
            "not_committed_again",
            f"transaction {outcome.uuid} is not in the table: {why} ({outcome.operation}, lost with version "
            f"{outcome.version}{who})",
            offset=outcome.offset,
        )

    def _compare_with_earlier(self, outcome: Outcome, *, present: bool) -> None:
        """Compare the outcomes of one record with each other, because the version that settled it was not read."""
        if not present:
            return
        number = hash((outcome.era, outcome.status, outcome.version, outcome.reason, outcome.uuid))
        number = number if number not in (0, _LOST) else 1
        before = self.outcome_numbers.get(outcome.offset)
        self.outcome_numbers.put(outcome.offset, number)
        if before not in (0, _LOST, number):
            self._false("outcomes_differ", outcome, "another outcome differs from it")

    def _without_entry(self, offset: int) -> None:
        topic_id = self.bounds.identity.topic_id
        if self.history.is_gone(topic_id, offset):
            self._unchecked["records settled by versions that were not read"] += 1
        elif self.history.by_hand(topic_id, offset):
            self._counts["records that an operator has passed"] += 1
        else:
            self.findings.add(
                "record_without_answer",
                f"the position has passed the record at offset {offset}, and no version names it",
                offset=offset,
            )

    def _same_uuid(self, entry: Entry, record: Record) -> None:
        if not record.value and any(name == "transaction-file" for name, _ in record.headers):
            self._unchecked["uuids of transactions that are in claim check files"] += 1
            return
        try:
            staged = Transaction.FromString(record.value).uuid
        except DecodeError:
            staged = ""
        if entry.uuid and staged != entry.uuid:
            self.findings.add(
                "wrong_record",
                f"version {entry.at} names transaction {entry.uuid}, the record at that offset holds transaction "
                f"{staged or 'none'}",
                version=entry.at,
                offset=record.offset,
            )

    def _has_outcome(self, record: Record) -> None:
        offset, bounds, position = record.offset, self.bounds, self.history.position
        assert position is not None
        if self.outcome_numbers.get(offset) is not None:
            return
        owed = bounds.acknowledged
        if bounds.acknowledged_era is not None and bounds.acknowledged_era < position.era:
            owed = None
        if owed is None or offset >= owed:
            self._counts["records whose outcome is not published yet"] += 1
        elif record.timestamp_ms < bounds.outcomes_since_ms + OUTCOME_CLOCK_MS and bounds.outcomes_since_ms:
            self._unchecked["records whose outcome has expired"] += 1
        else:
            self.findings.add(
                "record_without_outcome",
                f"the group has acknowledged the record at offset {offset}, and it has no outcome",
                offset=offset,
            )

    def _missing_until(self, offset: int) -> None:
        """Check the offsets from the last record up to this one: Kafka has no record there, so no version names one."""
        topic_id = self.bounds.identity.topic_id
        first = max(self._next, self.bounds.log_start)
        for missing in range(first, offset):
            entry = self.history.entry(topic_id, missing)
            if entry is not None:
                self.findings.add(
                    "record_missing",
                    f"version {entry.at} names the record at offset {missing}, which the topic does not hold",
                    version=entry.at,
                    offset=missing,
                )
        self._next = max(self._next, offset)

    def _false(self, code: str, outcome: Outcome, why: str) -> None:
        text = " ".join(filter(None, [StatusNumber.Name(outcome.status), outcome.reason]))
        where = f" at version {outcome.version}" if outcome.version else ""
        self.findings.add(
            code,
            f"transaction {outcome.uuid or '(none)'} got {text}{where}: {why}",
            version=outcome.version or None,
            offset=outcome.offset,
        )


def disagreement(entry: Entry, outcome: Outcome) -> str:
    """The difference between a version's entry and an outcome of the same record, as text; empty if they agree."""
    of_entry = (entry.status, entry.version, entry.reason, entry.uuid)
    if of_entry == (outcome.status, outcome.version, outcome.reason, outcome.uuid):
        return ""
    if entry.status == StatusNumber.COMMITTED:
        return f"version {entry.at} has committed {'it' if entry.uuid == outcome.uuid else entry.uuid}"
    text = " ".join(filter(None, [StatusNumber.Name(entry.status), entry.reason]))
    return f"version {entry.at} records {text} for transaction {entry.uuid or '(none)'}"
