"""Proves from topics and table alone that no record is lost, doubled or skipped, and that all outcomes are true.

`collect` reads everything; `contradictions` returns a sentence for each contradiction, so an empty list is the proof.
The audit uses no log, no metric and no state of a committer.
"""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from committerd_common.messages import Member, Outcome, Refusal, Status, Transaction
from harness.lance_table import LanceTable, Version
from harness.topics import Letter, RecordId, Staged, Topics

_DEAD = (Status.INVALID, Status.UNSUPPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The whole content of the topics and the table."""

    staged: Sequence[Staged]
    """Records in the topic, and staged records that it has lost since."""
    outcomes: Sequence[Outcome]
    """Every published outcome, in order within its partition."""
    letters: Sequence[Letter]
    versions: Sequence[Version]
    """The readable versions, ascending."""
    ids: Sequence[int]
    """Ids of the rows in the latest version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Facts of the test that the topics and the table don't hold."""

    ids: Collection[int]
    """Ids of the rows that the latest version must have, each once."""
    unanswered: Collection[RecordId] = field(default_factory=frozenset)
    """Records that were deleted before a committer could read them."""
    rewound: bool = False
    """The table had lost versions, and an operator has set the position: outcomes from before that may be false now."""
    cleaned: bool = False
    """Old versions were cleaned up, so outcomes that name them can't be checked."""


def collect(topics: Topics, table: LanceTable) -> Evidence:
    """Read the topics and the table."""
    present = topics.read_staged()
    known = {record.record_id for record in present}
    return Evidence(
        staged=[*(record for record in topics.sent if record.record_id not in known), *present],
        outcomes=topics.read_outcomes(),
        letters=topics.read_letters(),
        versions=table.versions(),
        ids=table.ids(),
    )


def contradictions(evidence: Evidence, expected: Expected) -> list[str]:
    """The contradictions, a sentence each; empty if all is well."""
    return [
        *_rows(evidence, expected),
        *_history(evidence),
        *_positions(evidence),
        *_members(evidence),
        *_answers(evidence, expected),
        *_truth(evidence, expected),
        *_dead_letters(evidence),
    ]


def _rows(evidence: Evidence, expected: Expected) -> Iterator[str]:
    found = Counter(evidence.ids)
    lost = set(expected.ids) - found.keys()
    strange = found.keys() - set(expected.ids)
    doubled = [i for i, times in found.items() if times > 1]
    for what, ids in (("lost", lost), ("there and should not be", strange), ("there more than once", doubled)):
        if ids:
            yield f"{len(ids)} rows are {what}: {sorted(ids)[:10]}"


def _history(evidence: Evidence) -> Iterator[str]:
    numbers = [version.number for version in evidence.versions]
    if numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
        yield f"versions are not contiguous: {numbers}"


def _positions(evidence: Evidence) -> Iterator[str]:
    """Versions of the queue: the position never goes back within an era, and passes exactly the records they settle."""
    last: Mapping[str, object] | None = None
    for version in evidence.versions:
        if not version.ours:
            continue
        position = version.position
        if position is None:
            yield f"version {version.number} is of the queue and carries no position"
            continue
        settled = [entry.offset for entry in version.entries()]
        unpassed = [o for o in settled if not _passes(position, o)]
        if unpassed:
            yield f"version {version.number} settles {unpassed}, which its position does not pass"
        if last is not None:
            if _rank(position) < _rank(last):
                yield f"version {version.number} has position {position}, after {last}"
            if position["era"] == last["era"] and (again := [o for o in settled if _passes(last, o)]):
                yield f"version {version.number} settles {again}, which the version before has passed"
        last = position


def _rank(position: Mapping[str, object]) -> tuple[int, int]:
    era, offset = position["era"], position["next"]
    assert isinstance(era, int)
    assert isinstance(offset, int)
    return era, offset


def _passes(position: Mapping[str, object], offset: int) -> bool:
    return offset < _rank(position)[1] or offset in settled_ahead(position)


def settled_ahead(position: Mapping[str, object]) -> set[int]:
    """The offsets settled ahead in a position as a version carries it: one by one, or as ranges in base64."""
    ahead, last = position["settled"], _rank(position)[1]
    if isinstance(ahead, list):
        return set(ahead)
    assert isinstance(ahead, str)
    numbers, digits = list[int](), ""
    for byte in base64.b64decode(ahead):
        digits = f"{byte & 0x7F:07b}{digits}"  # the lowest ones come first
        if byte < 0x80:
            numbers.append(int(digits, 2))
            digits = ""
    found, left = set[int](), iter(numbers)
    for number in left:
        start = last + number // 2
        last = start + (next(left) + 2 if number % 2 else 1)
        found.update(range(start, last))
    return found


def _members(evidence: Evidence) -> Iterator[str]:
    where: dict[str, list[int]] = defaultdict(list)
    for version in evidence.versions:
        for uuid in {member.uuid for member in version.members} or {version.uuid}:
            where[uuid].append(version.number)
        counted = Counter(member.uuid for member in version.members)
        for uuid, times in counted.items():
            if times > 1:
                yield f"version {version.number} has transaction {uuid} {times} times"
    for uuid, versions in where.items():
        if len(versions) > 1:
            yield f"transaction {uuid} was committed in versions {versions}"


def _answers(evidence: Evidence, expected: Expected) -> Iterator[str]:
    """Each record has an outcome, and all its outcomes are equal; UNDECIDED contradicts nothing."""
    given: dict[tuple[str, int, int], set[tuple[object, ...]]] = defaultdict(set)
    answered: set[RecordId] = set()
    staged = {record.record_id: record for record in evidence.staged}
    for outcome in evidence.outcomes:
        record_id = outcome.topic_id, outcome.offset
        answered.add(record_id)
        if record_id not in staged:
            yield f"an answer to a record that nobody staged: {_told(outcome)}"
        elif outcome.uuid and outcome.uuid != _uuid(staged[record_id]):
            yield f"record {record_id} is of {_uuid(staged[record_id])}, its answer of {outcome.uuid}"
        if outcome.status != Status.UNDECIDED:
            given[*record_id, outcome.era if expected.rewound else 0].add(_content(outcome))
    for (topic_id, offset, _), contents in given.items():
        if len(contents) > 1:
            yield f"record {offset} of {topic_id} has {len(contents)} different answers: {contents}"
    missing = sorted(staged.keys() - answered - set(expected.unanswered))
    if missing:
        yield f"{len(missing)} records have no outcome: {missing[:10]}"


def _truth(evidence: Evidence, expected: Expected) -> Iterator[str]:
    """The table confirms every outcome, and every record that the table settles has that outcome."""
    versions = {version.number: version for version in evidence.versions}
    entries: dict[tuple[str, int], tuple[Version, Member | Refusal]] = {}
    for version in evidence.versions:
        if version.ours and version.position is not None:
            for entry in version.entries():
                entries[str(version.position["topic_id"]), entry.offset] = version, entry
    told = {(outcome.topic_id, outcome.offset) for outcome in evidence.outcomes}
    era = max((_rank(v.position)[0] for v in evidence.versions if v.position is not None), default=0)
    for record_id in entries.keys() - told:
        yield f"version {entries[record_id][0].number} settles record {record_id}, and nobody was told"
    for outcome in evidence.outcomes:
        if expected.rewound and outcome.era < era:
            continue
        if outcome.status == Status.COMMITTED:
            version_or_none = versions.get(outcome.version)
            if version_or_none is None:
                if not expected.cleaned:
                    yield f"there is no such version: {_told(outcome)}"
            elif not any(m.uuid == outcome.uuid and m.offset == outcome.offset for m in version_or_none.members):
                yield f"the version does not have it: {_told(outcome)}"
        elif outcome.status == Status.DUPLICATE and outcome.reason == "uuid_seen" and outcome.version in versions:
            version = versions[outcome.version]
            if outcome.uuid != version.uuid and all(m.uuid != outcome.uuid for m in version.members):
                yield f"it is no duplicate of anything in that version: {_told(outcome)}"
        elif outcome.status != Status.UNDECIDED:
            found = entries.get((outcome.topic_id, outcome.offset))
            if found is None and not expected.cleaned:
                yield f"no version has passed it: {_told(outcome)}"
            if found is not None and not isinstance(found[1], Refusal):
                yield f"version {found[0].number} has committed it: {_told(outcome)}"


def _dead_letters(evidence: Evidence) -> Iterator[str]:
    """INVALID and UNSUPPORTED records have a dead letter with the original record; no other record has one."""
    staged = {record.record_id: record for record in evidence.staged}
    letters: dict[int, list[Letter]] = defaultdict(list)
    for letter in evidence.letters:
        letters[int(letter.header("committerd-offset"))].append(letter)
    dead = {(outcome.topic_id, outcome.offset): outcome for outcome in evidence.outcomes if outcome.status in _DEAD}
    for record_id, outcome in dead.items():
        record, fitting = staged.get(record_id), False
        for letter in letters.get(record_id[1], ()):
            kept = letter.headers[: len(record.headers)] if record else ()
            fitting = fitting or (
                record is not None
                and (letter.key, letter.value or b"", list(kept))
                == (record.key, record.value or b"", list(record.headers))
                and letter.header("committerd-reason") == outcome.reason
                and letter.header("committerd-status") == Status.Name(outcome.status)
            )
        if not fitting:
            yield f"no dead letter with the record and its reason: {_told(outcome)}"
    for offset in letters.keys() - {offset for _, offset in dead}:
        yield f"a dead letter for record {offset}, which was not refused so"


def _content(outcome: Outcome) -> tuple[object, ...]:
    return (
        Status.Name(outcome.status),
        outcome.uuid,
        outcome.version,
        outcome.reason,
        outcome.message,
        outcome.read_version,
        outcome.operation,
        outcome.conflicting_version,
        outcome.conflicting_operation,
        outcome.reserved_first,
        outcome.reserved_count,
        outcome.producer,
    )


def _told(outcome: Outcome) -> str:
    named = f"{Status.Name(outcome.status)} {outcome.reason}".strip()
    return f"record {outcome.offset} of {outcome.topic_id} ({outcome.uuid}): {named} at version {outcome.version}"


def _uuid(record: Staged) -> str:
    try:
        return Transaction.FromString(record.value or b"").uuid
    except DecodeError:
        return ""
