"""May a dead letter be staged again? Not if its data is, or may be, in the table already.

The committer looks for duplicates itself when it gets the replay. This check saves a replay that would be refused, and
knows outcomes whose versions were cleaned up since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from committerd.queue.dead_letter import Letter
from committerd.queue.dedupe import Candidate, Refused, dedupe
from committerd.queue.ledger import Earlier
from committerd.queue.position import Marks
from committerd_common.messages import Outcome
from committerd_common.messages import Status as StatusNumber
from committerd_common.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """The events since the letter was written."""

    earlier: Earlier
    """The history of the letter's transaction in the readable versions."""
    marks: Marks
    outcomes: Iterable[Outcome]
    """The outcomes of the letter's transaction."""
    waiting: Mapping[str, int]
    """Replays that no version has settled yet: offset by the value of header `replay-of`."""
    now_ms: int
    """The present time in Unix milliseconds."""


def refuse_replay(letter: Letter, decoded: Request | Refused, since: Since) -> str:
    """The reason why the letter must not be staged again, as a sentence; empty if it may be.

    `decoded` is the replay as the committer decodes it, or its refusal, without a look at the table's history.
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
    if deadline is not None and deadline <= since.now_ms:
        return "the deadline in its header deadline-ms has passed"
    if letter.place in since.waiting:
        return f"it is staged again already, at offset {since.waiting[letter.place]}, and has no outcome yet"
    candidate = Candidate(uuid=decoded.uuid, read_version=0, app=decoded.envelope.app, is_replay=True)
    known = dedupe(candidate, since.earlier, since.marks, version=0)
    if known is not None:
        return known.message
    return next(filter(None, (_known(letter, outcome) for outcome in _last_ones(since.outcomes))), "")


def _last_ones(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes without those of records that were judged again since, in a later era."""
    given = list(outcomes)
    eras: dict[tuple[str, int], int] = {}
    for one in given:
        place = one.topic_id, one.offset
        eras[place] = max(one.era, eras.get(place, 0))
    return [one for one in given if one.era == eras[one.topic_id, one.offset]]


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
