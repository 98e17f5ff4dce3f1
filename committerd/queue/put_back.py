"""Records that were read at versions which the table has lost, because it was put back to an older state.

An operator has set the position since, so the committer judges these records again. Their read version tells nothing
any more: the table may have no version of that number, or another one. An Append adds rows whatever the table holds, so
it is judged by what the table is now. All other operations depend on what was read, and the work must be done again.

So must the work of a producer that opened the table before and staged later: it still waits for its outcome. Whether it
meant this table can be told only by the uuid of the version that it read.
"""

from __future__ import annotations

from committerd.lance.format.kind import Kind
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.queue.position import LostHistory, Position
from committerd_common.messages import Transaction
from committerd_common.request import Request

_DIGITS_MAX = 19
"""An offset has 63 bits."""


def lost_history(request: Request, position: Position) -> LostHistory | None:
    """What the table has lost, if this record may have been read at a version of it; else None.

    The replay of a dead letter counts as the record that was refused.
    """
    lost = position.lost
    if lost is None or request.operation == Kind.CLONE:  # a Clone names a version of the table that it clones
        return None
    offset = _offset(request, position.topic)
    return lost if lost.concerns(offset, request.transaction.read_version) else None


def _offset(request: Request, topic: str) -> int:
    """The offset of the record, or of the one that it replays."""
    named, _, offset = (request.envelope.replay_of or "").rpartition(":")
    if named != topic or not offset.isdecimal() or len(offset) > _DIGITS_MAX:
        return request.offset
    return int(offset)


def may_be_lost(request: Request, position: Position) -> bool:
    """Whether the table has lost the version that this record was read at, if it has another one of that number."""
    lost = position.lost
    return lost is not None and request.operation != Kind.CLONE and request.transaction.read_version > lost.kept


def lost_refusal(request: Request) -> Refused:
    """The refusal of a record that was read at a lost version."""
    return Refused(
        status=Status.RETRYABLE,
        reason="read_version_lost",
        message=f"this {request.operation} was read at version {request.transaction.read_version}, which the table has "
        "lost: it was put back to an older state. Do the work again on the latest version",
    )


def on_the_latest(transaction: Transaction) -> Transaction:
    """The same Append with read version 0: to be appended to the latest version, whatever that is."""
    latest = Transaction()
    latest.CopyFrom(transaction)
    latest.read_version = 0
    return latest
