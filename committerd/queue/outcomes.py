"""The outcome of each settled record, and the entry for it in the version that settled it.

A version of the queue names in its transaction's properties every record that its position passes:
`committerd.members` are the records that it commits, `committerd.refused` all others (refusals and duplicates alike).
An outcome is a function of these alone, so it is the same after a restart, from a standby and after an upgrade.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from google.protobuf.message import DecodeError

from committerd.errors import CorruptTable
from committerd.lance.format.own_keys import KEY_PREFIX
from committerd.queue.position import Position
from committerd_common.messages import (
    COMMITTED,
    UNDECIDED,
    Member,
    Members,
    Outcome,
    Refusal,
    Refusals,
    Transaction,
    TransactionLabel,
)
from committerd_common.messages import Status as StatusNumber
from committerd_common.own_properties import OF_ANY_COMMIT

MEMBERS_KEY = "committerd.members"
REFUSED_KEY = "committerd.refused"
REASON_KEY = "committerd.reason"
"""The operator's reason for setting the position or releasing an application."""

_REPEATED = {
    kind: [one.name for one in kind.DESCRIPTOR.fields if one.name in Outcome.DESCRIPTOR.fields_by_name]
    for kind in (Member, Refusal)
}
"""The fields of an entry that its outcome repeats: all that have the same name there."""
MESSAGE_CHARS_MAX = 300
MESSAGE_BYTES_MAX = 600


class Status(StrEnum):
    """The status of an outcome; the names are those of the enum `Status` on the wire."""

    COMMITTED = "COMMITTED"
    DUPLICATE = "DUPLICATE"
    RETRYABLE = "RETRYABLE"
    INCOMPATIBLE = "INCOMPATIBLE"
    INVALID = "INVALID"
    UNSUPPORTED = "UNSUPPORTED"
    EXPIRED = "EXPIRED"
    UNDECIDED = "UNDECIDED"

    @classmethod
    def of_number(cls, number: int) -> Status:
        """The status with this number on the wire. Raises `ValueError` for an unknown number."""
        return cls(StatusNumber.Name(StatusNumber.ValueType(number)))

    @property
    def is_dead_letter(self) -> bool:
        """Whether the record also goes to the dead letter topic."""
        return self in (Status.INVALID, Status.UNSUPPORTED)


def known_status(number: int) -> Status | None:
    """The status with this number on the wire; None if only a later committerd knows it."""
    try:
        return Status.of_number(number)
    except ValueError:
        return None


def status_name(number: int) -> str:
    """The name of the status with this number on the wire; the number if only a later committerd knows it."""
    status = known_status(number)
    return str(number) if status is None else status.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The records that one version settles. A foreign version settles none; there `ours` is False."""

    version: int
    uuid: str
    operation: str
    ours: bool
    members: Sequence[Member] = ()
    refusals: Sequence[Refusal] = ()
    topic_id: str = ""
    """Id of the topic to which the offsets in `members` and `refusals` belong."""

    def entries(self) -> Iterator[Member | Refusal]:
        """All records that the version settles: members first, then refusals."""
        yield from self.members
        yield from self.refusals


class Timings(NamedTuple):
    """Durations of one record's way, in milliseconds; 0 if the outcome is published again from the table.

    `queued_ms` runs from the record's timestamp to when the committer begins to judge it, `commit_ms` from there to the
    durable version.
    """

    queued_ms: int = 0
    commit_ms: int = 0


def encode_settled(members: Sequence[Member], refusals: Sequence[Refusal], *, topic_id: str) -> dict[str, str]:
    """The transaction properties that mark a version as one of the queue; both are always set, even if empty."""
    return {
        MEMBERS_KEY: _encode(Members(members=members, topic_id=topic_id)),
        REFUSED_KEY: _encode(Refusals(refusals=refusals)),
    }


def decode_settled(transaction: Transaction | TransactionLabel | None, *, version: int) -> Settled:
    """The records that a version settles, from its transaction. None (a transaction that can't be read) is foreign.

    So is one whose properties are all of the kind that a commit without the queue has, too (`OF_ANY_COMMIT`).
    Raises `CorruptTable` for properties of the queue that can't be read.
    """
    foreign = _foreign(transaction, version)
    properties = (transaction or Transaction()).transaction_properties
    if not any(key.startswith(KEY_PREFIX) for key in properties.keys() - OF_ANY_COMMIT):
        return foreign
    try:
        members = Members.FromString(_decode(properties.get(MEMBERS_KEY, "")))
        refused = Refusals.FromString(_decode(properties.get(REFUSED_KEY, "")))
    except (DecodeError, binascii.Error) as error:
        raise CorruptTable(
            f"version {version}: the transaction property {MEMBERS_KEY} or {REFUSED_KEY} can't be read ({error})",
            code="members_unreadable",
        ) from error
    return replace(
        foreign,
        ours=True,
        members=members.members,
        refusals=refused.refusals,
        topic_id=members.topic_id,
    )


def settled_by(transaction: Transaction | TransactionLabel | None, *, version: int) -> Settled:
    """Same as `decode_settled`, but a version whose properties can't be read counts as foreign.

    Anybody can write `committerd.` properties, and they must not stop the queue. The queue itself never writes ones
    that can't be read.
    """
    try:
        return decode_settled(transaction, version=version)
    except CorruptTable:
        return _foreign(transaction, version)


def _foreign(transaction: Transaction | TransactionLabel | None, version: int) -> Settled:
    known = transaction or Transaction()
    return Settled(version=version, uuid=known.uuid, operation=known.WhichOneof("operation") or "", ours=False)


def committed(member: Member, settled: Settled, position: Position, timings: Timings | None = None) -> Outcome:
    """The outcome of a record that `settled` commits. `position` gives topic and era."""
    outcome = _outcome(member, position, timings)
    outcome.status = COMMITTED
    outcome.version = settled.version
    outcome.operation = member.operation or settled.operation
    outcome.message = member.note
    outcome.transactions = len(settled.members)
    return outcome


def refused(refusal: Refusal, position: Position, timings: Timings | None = None) -> Outcome:
    """The outcome of a record that is not committed. `position` gives topic and era."""
    return _outcome(refusal, position, timings)


def refusal_of_outcome(outcome: Outcome) -> Refusal:
    """The refusal of which `refused` has made this outcome, without partition and trace."""
    return Refusal(**{name: getattr(outcome, name) for name in _REPEATED[Refusal]})


def status_of(entry: Member | Refusal) -> Status:
    """The status of a record that a version settles."""
    return Status.COMMITTED if isinstance(entry, Member) else Status.of_number(entry.status)


def undecided_refusal(*, offset: int, uuid: str, producer: str = "", outcome_partition: int = 0) -> Refusal:
    """The entry for a record below the position, if the version that settled it was cleaned up.

    Its transaction can be neither found nor ruled out.
    """
    return Refusal(
        offset=offset,
        uuid=uuid,
        status=UNDECIDED,
        reason="version_cleaned_up",
        message="the table's position has passed this record, but the version that settled it was cleaned up: "
        "look in the table whether the data is there before staging it again",
        producer=producer,
        outcome_partition=outcome_partition,
    )


def short(message: str) -> str:
    """The message as a version stores it: at most 300 characters of 600 bytes, all of which protobuf can encode."""
    message = message.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(message) <= MESSAGE_CHARS_MAX and (message.isascii() or len(message.encode()) <= MESSAGE_BYTES_MAX):
        return message
    cut = message[: MESSAGE_CHARS_MAX - 1].encode()[: MESSAGE_BYTES_MAX - len("…".encode())]
    return cut.decode("utf-8", "ignore") + "…"


def _outcome(entry: Member | Refusal, position: Position, timings: Timings | None) -> Outcome:
    queued_ms, commit_ms = timings or Timings()
    return Outcome(
        cluster_id=position.cluster_id,
        topic=position.topic,
        topic_id=position.topic_id,
        era=position.era,
        queued_ms=queued_ms,
        commit_ms=commit_ms,
        **{name: getattr(entry, name) for name in _REPEATED[type(entry)]},
    )


def _encode(message: Members | Refusals) -> str:
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode("ascii")


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
