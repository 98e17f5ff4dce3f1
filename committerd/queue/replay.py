"""May a dead letter be staged again? Not if its data is, or may be, in the table already.

The committer looks for duplicates itself when it gets the replay. This check saves a replay that would be refused, and
knows outcomes whose versions were cleaned up since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from committerd.queue.dead_letter import Letter
from committerd.queue.dedupe import Refused, dedupe
from committerd.queue.ledger import Earlier
from committerd.queue.position import Marks
from committerd_common.messages import Outcome
from committerd_common.messages import Status as StatusNumber
from committerd_common.request import Request


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

    `decoded` is the replay as the committer decodes it, or its refusal, without a look at the table's history.
    `earlier` is the history of its transaction in the readable versions, and `outcomes` are its outcomes. `waiting`:
    replays that no version has settled yet, offset by the value of header `replay-of`. `now_ms`: Unix milliseconds.
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
