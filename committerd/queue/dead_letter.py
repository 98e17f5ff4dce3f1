"""Dead letters: a staged record as its producer sent it, why it was refused, and whether it may be staged again.

The committer adds headers to the original ones; their names begin with `committerd-`. A replay stages the original
record again, and the committer judges it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from committerd.queue.dedupe import Refused, dedupe
from committerd.queue.ledger import Earlier
from committerd.queue.port import Publication, Record
from committerd.queue.position import Marks
from committerd.queue.producers import Signing
from committerd_common.messages import DecodeError, Outcome, Transaction
from committerd_common.messages import Status as StatusNumber
from committerd_common.request import Request

HEADER_PREFIX = "committerd-"
OVERHEAD_BYTES = 64 * 1024
"""The bytes by which a record of the dead letter topic may exceed one of the staged topic: room for added headers."""
_CUT = frozenset({f"{HEADER_PREFIX}headers", f"{HEADER_PREFIX}key-bytes"})
"""A letter that has one of these headers lacks some of the record's own headers, or its key."""
_NOT_REPLAYED = frozenset({"replay-of", "attempt", "retry-of", "will-retry"})
"""Headers that a replay leaves out: `replay-of` names an earlier replay; `attempt` and `retry-of` mark a re-execution,
which goes before waiting records, and the replay of a dead letter does not.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter."""

    offset: int
    """The letter's offset in the dead letter topic."""
    timestamp_ms: int
    """When the letter was written, in Unix milliseconds."""
    status: str
    reason: str
    message: str
    topic: str
    staged_offset: int
    staged_timestamp_ms: int
    key: bytes | None
    value: bytes
    """Empty if the record's value was empty, or if record and added headers together did not fit into the topic."""
    headers: Sequence[tuple[str, bytes]]
    """The headers of the staged record."""
    dropped_bytes: int
    """Size of a value that did not fit and was left out; 0 = nothing was left out."""
    cut: bool = False
    """Whether some of the record's headers or its key were left out."""

    @property
    def can_be_replayed(self) -> bool:
        """Whether it has all that its record had."""
        return not self.dropped_bytes and not self.cut

    @property
    def place(self) -> str:
        """Topic and offset of the refused record, as header `replay-of` names them: `TOPIC:OFFSET`."""
        return f"{self.topic}:{self.staged_offset}"

    @property
    def transaction(self) -> Transaction:
        """The transaction in the value; an empty one if the value can't be decoded."""
        try:
            return Transaction.FromString(self.value)
        except DecodeError:
            return Transaction()

    def replay(self, signing: Signing | None = None) -> Publication:
        """The record to stage: the same key and value, with header `replay-of`, signed if `signing` is given."""
        kept = [(name, value) for name, value in self.headers if name not in _NOT_REPLAYED]
        made = Publication(key=self.key, value=self.value, headers=[*kept, ("replay-of", self.place.encode())])
        return made if signing is None else signing.signed(made)

    def as_staged(self, signing: Signing | None = None) -> Record:
        """The replay as the committer would read it from the staged topic; its offset is -1."""
        replay = self.replay(signing)
        return Record(offset=-1, key=replay.key, value=replay.value, headers=tuple(replay.headers))


def decode_letter(record: Record) -> Letter | None:
    """The dead letter that a record of the dead letter topic holds; None if no committer wrote the record."""
    ours = {name: value.decode("utf-8", "replace") for name, value in record.headers if name.startswith(HEADER_PREFIX)}
    try:
        return Letter(
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            status=ours["committerd-status"],
            reason=ours["committerd-reason"],
            message=ours["committerd-message"],
            topic=ours["committerd-topic"],
            staged_offset=int(ours["committerd-offset"]),
            staged_timestamp_ms=int(ours["committerd-timestamp-ms"]),
            key=record.key,
            value=record.value,
            headers=[(name, value) for name, value in record.headers if not name.startswith(HEADER_PREFIX)],
            dropped_bytes=int(ours.get("committerd-value-bytes", "0")),
            cut=not ours.keys().isdisjoint(_CUT),
        )
    except (KeyError, ValueError):
        return None


def letter_of(record: Record, outcome: Outcome) -> Publication:
    """The dead letter of a record: the record itself, with its outcome in added headers."""
    reasons = [
        ("committerd-status", StatusNumber.Name(outcome.status)),
        ("committerd-reason", outcome.reason),
        ("committerd-message", outcome.message),
        ("committerd-topic", outcome.topic),
        ("committerd-offset", str(outcome.offset)),
        ("committerd-timestamp-ms", str(record.timestamp_ms)),
    ]
    # A reader would take a producer's header with our prefix for one of ours.
    original = [(name, value) for name, value in record.headers if not name.startswith(HEADER_PREFIX)]
    letter = Publication(
        key=record.key, value=record.value, headers=[*original, *((name, text.encode()) for name, text in reasons)]
    )
    return _with_note(letter, "headers", record.headers_found) if record.headers_found else letter


def smaller_letter(letter: Publication) -> Publication | None:
    """The same dead letter with one part fewer, for a topic that refuses it as too large; None if nothing is left.

    First it loses its value, then the original headers, then its key. An added header says how many bytes (or headers)
    are missing.
    """
    if letter.value:
        return _with_note(replace(letter, value=b""), "value-bytes", len(letter.value))
    own = [(name, value) for name, value in letter.headers if name.startswith(HEADER_PREFIX)]
    if len(own) < len(letter.headers):
        noted = replace(letter, headers=own)
        has_note = any(name == f"{HEADER_PREFIX}headers" for name, _ in own)
        return noted if has_note else _with_note(noted, "headers", len(letter.headers) - len(own))
    if letter.key:
        return _with_note(replace(letter, key=None), "key-bytes", len(letter.key))
    return None


def smaller_outcome(outcome: Publication) -> Publication | None:
    """The same outcome without `message` and `producer`; None if it has neither, or can't be decoded."""
    try:
        smaller = Outcome.FromString(outcome.value)
    except DecodeError:
        return None
    smaller.ClearField("message")
    smaller.ClearField("producer")
    value = smaller.SerializeToString()
    return replace(outcome, value=value) if len(value) < len(outcome.value) else None


def _with_note(letter: Publication, what: str, size: int) -> Publication:
    return replace(letter, headers=[*letter.headers, (HEADER_PREFIX + what, str(size).encode())])


def refuse_replay(
    letter: Letter,
    decoded: Request | Refused,
    *,
    earlier: Earlier,
    marks: Marks,
    outcomes: Sequence[Outcome],
    waiting: Mapping[str, int],
    now_ms: int,
) -> str:
    """The reason why the letter must not be staged again, as a sentence; empty if it may be.

    It must not if its data is, or may be, in the table already. The committer looks for duplicates itself when it gets
    the replay; this check saves a replay that would be refused, and knows outcomes whose versions were cleaned up.

    `decoded` is the replay as the committer decodes it, or its refusal, without a look at the table's history.
    `earlier` is the history of its transaction in the readable versions, and `outcomes` are its outcomes. `waiting`:
    the offset of each replay that no version has settled yet, by the value of its header `replay-of`. `now_ms`: Unix
    milliseconds.
    """
    if letter.dropped_bytes:
        return (
            f"the letter lacks the record's value ({letter.dropped_bytes} bytes did not fit): only its producer can "
            "stage it again"
        )
    if letter.cut:
        return "the letter lacks some of the record's headers or its key: only its producer can stage it again"
    if isinstance(decoded, Refused):
        return f"it would be refused again, as {decoded.reason}: {decoded.message}"
    deadline = decoded.envelope.deadline_ms
    if deadline is not None and deadline <= now_ms:
        return "the deadline in its header deadline-ms has passed"
    if letter.place in waiting:
        return f"it is staged again already, at offset {waiting[letter.place]}, and has no outcome yet"
    known = dedupe(decoded, earlier, marks, version=0)
    if known is not None:
        return known.message
    eras: dict[tuple[str, int], int] = {}
    for one in outcomes:
        eras[one.topic_id, one.offset] = max(one.era, eras.get((one.topic_id, one.offset), 0))
    # A record that was judged again since, in a later era, has only its last outcome.
    last = (one for one in outcomes if one.era == eras[one.topic_id, one.offset])
    return next(filter(None, (_known(letter, one) for one in last)), "")


def _known(letter: Letter, outcome: Outcome) -> str:
    """The reason against a replay that an outcome of the same transaction gives; empty if it gives none."""
    if outcome.status in (StatusNumber.COMMITTED, StatusNumber.DUPLICATE):
        return (
            f"transaction {outcome.uuid} got outcome {StatusNumber.Name(outcome.status)} at version "
            f"{outcome.version or 'unknown'}, for the record at offset {outcome.offset}"
        )
    if outcome.status == StatusNumber.UNDECIDED and f"{outcome.topic}:{outcome.offset}" != letter.place:
        return (
            f"transaction {outcome.uuid} got outcome UNDECIDED for the record at offset {outcome.offset}: look in the "
            "table whether its data is there"
        )
    return ""
