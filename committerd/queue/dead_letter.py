"""A record of the dead letter topic, decoded: the staged record as it was, and why it was refused.

The committer puts its reasons beside the original headers, with names that begin with `committerd-`. A replay stages
the original again, so that it is judged anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from committerd.queue.port import Publication, Record
from committerd_common.messages import DecodeError, Outcome, Transaction
from committerd_common.request import sent_size

HEADER_PREFIX = "committerd-"
OVERHEAD_BYTES = 64 * 1024
"""What the dead letter topic takes beyond the staged topic: room for the reasons."""
_CUT = frozenset({f"{HEADER_PREFIX}headers", f"{HEADER_PREFIX}key-bytes"})
"""Headers of a letter that lacks some of the record's own headers, or its key."""
_NOT_REPLAYED = frozenset({"replay-of", "attempt", "retry-of"})
"""Of an earlier replay; and of a re-execution, which goes before waiting records: the replay of a dead letter waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter."""

    offset: int
    """In the dead letter topic."""
    timestamp_ms: int
    """When it was written, in Unix milliseconds."""
    status: str
    reason: str
    message: str
    topic: str
    staged_offset: int
    staged_timestamp_ms: int
    key: bytes | None
    value: bytes
    """Empty where it was so, or where record and reasons together did not fit into the topic."""
    headers: Sequence[tuple[str, bytes]]
    """The original ones."""
    dropped_bytes: int
    """Of the value that did not fit; 0 = the value is here."""
    cut: bool = False
    """Whether headers or key are missing."""

    @property
    def place(self) -> str:
        """Where the refused record lay, as header `replay-of` names it."""
        return f"{self.topic}:{self.staged_offset}"

    @property
    def transaction(self) -> Transaction:
        """What the value holds; an empty one where it can't be decoded."""
        try:
            return Transaction.FromString(self.value)
        except DecodeError:
            return Transaction()

    def replay(self) -> Publication:
        """What to stage: the same key and bytes, with header `replay-of`."""
        kept = [(name, value) for name, value in self.headers if name not in _NOT_REPLAYED]
        return Publication(key=self.key, value=self.value, headers=[*kept, ("replay-of", self.place.encode())])

    def as_staged(self) -> Record:
        """The record that a replay would be, at no offset."""
        replay = self.replay()
        return Record(offset=-1, key=replay.key, value=replay.value, headers=tuple(replay.headers))


def decode_letter(record: Record) -> Letter | None:
    """The dead letter in a record; None when a committer did not write it."""
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


def letter_of(record: Record, reasons: Sequence[tuple[str, bytes]], *, room: int) -> Publication:
    """What the dead letter topic gets: the record as it was, with the reasons beside it.

    Where that takes more than `room` bytes in Kafka, value, headers and key are left out, in this order, and headers
    say how large they were.
    """
    # What a producer called like ours would be taken for ours.
    original = [(name, value) for name, value in record.headers if not name.startswith(HEADER_PREFIX)]
    letter = Publication(key=record.key, value=record.value, headers=[*original, *reasons])
    if record.headers_found:
        letter = _with_note(letter, "headers", record.headers_found)
    while sent_size(letter.key, letter.value, letter.headers) > room:
        smaller = smaller_letter(letter)
        if smaller is None:
            break
        letter = smaller
    return letter


def smaller_letter(letter: Publication) -> Publication | None:
    """The same dead letter without its value; without that, without the original headers, then without the key.

    None where nothing is left to be left out. A header says what is missing.
    """
    if letter.value:
        return _with_note(replace(letter, value=b""), "value", len(letter.value))
    own = [(name, value) for name, value in letter.headers if name.startswith(HEADER_PREFIX)]
    if len(own) < len(letter.headers):
        noted = replace(letter, headers=own)
        has_note = any(name == f"{HEADER_PREFIX}headers" for name, _ in own)
        return noted if has_note else _with_note(noted, "headers", len(letter.headers) - len(own))
    if letter.key:
        return _with_note(replace(letter, key=None), "key", len(letter.key))
    return None


def smaller_outcome(outcome: Publication) -> Publication | None:
    """The same answer without what is said for people; None where it says nothing for them."""
    try:
        answer = Outcome.FromString(outcome.value)
    except DecodeError:
        return None
    answer.ClearField("message")
    answer.ClearField("producer")
    value = answer.SerializeToString()
    return replace(outcome, value=value) if len(value) < len(outcome.value) else None


def _with_note(letter: Publication, what: str, size: int) -> Publication:
    name = f"{HEADER_PREFIX}{what}" if what == "headers" else f"{HEADER_PREFIX}{what}-bytes"
    return replace(letter, headers=[*letter.headers, (name, str(size).encode())])
