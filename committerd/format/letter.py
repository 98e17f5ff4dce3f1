"""A record of the dead letter topic, decoded: the staged record as it was, and why it was refused.

The committer puts its reasons beside the original headers, with names that begin with `committerd-`. A replay stages
the original again, so that it is judged anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from committerd.format.messages import DecodeError, Transaction
from committerd.ports import Publication, Record

HEADER_PREFIX = "committerd-"
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
        )
    except (KeyError, ValueError):
        return None
