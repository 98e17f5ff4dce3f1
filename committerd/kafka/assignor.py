"""Shares the group's staged partitions out among its members: kafka-python's cooperative assignor, with our own rule.

A partition stays with its owner unless the owner has at least two more than another member that subscribes to the
topic. So a member that joins takes what makes the numbers equal, and nothing else moves; a standby of a single dataset
takes nothing. A partition that moves is first given up by its owner, and assigned a round later: nobody else's
partition stops meanwhile. Only some are given up in a round: while a member starts them, the others still flow.
Partitions that their owner has not begun to serve are given up all at once, because nobody serves them yet. So members
that start together share the work of the start, although the first of them gets all partitions for a moment.

The library's own rule needs the metadata of all topics in the group, which the leader of the group may not have, or
may not read, and it takes seconds for a thousand topics, during which the leader sends no heartbeat. Ours assigns
partition 0 of each topic that a member subscribes to, because a staged topic has one partition. On the wire only the
user data of a subscription differs, which other versions ignore. So members of different versions share a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

_MOVED_TOGETHER = 4
"""Partitions that a member gets from others at a time, at most. It starts a few tables at a time; if it got more at
once, the rest would have no committer meanwhile. The next partitions follow in the next round, when their owners have
given them up. Partitions that their owner has not begun to serve are not counted."""
_STARTED_TOGETHER = 8
"""Partitions that a member should start within two rounds. A partition that nobody owns, such as a partition of a
member that stops, is assigned at once. The more of them a member gets, the fewer partitions others give up for it. They
give up at least one partition, because only that brings another round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a member brings to an assignment."""

    topics: Set[str]
    """The staged topics that it subscribes to."""
    owned: Set[str]
    """Those whose partition it owns."""
    waiting: Set[str] = frozenset()
    """Those of the owned that it has not begun to serve."""


def share_out(claims: Mapping[str, Claim]) -> dict[str, set[str]]:
    """The topics of each member, by member id, when the assignment is complete."""
    held: dict[str, set[str]] = {member: set() for member in claims}
    candidates: dict[str, list[str]] = {}
    for member in sorted(claims):
        for topic in claims[member].topics:
            candidates.setdefault(topic, []).append(member)
    unowned = []
    for topic in sorted(candidates, key=lambda topic: (len(candidates[topic]), topic)):
        owner = next((member for member in candidates[topic] if topic in claims[member].owned), None)
        if owner is None:
            unowned.append(topic)
        else:
            held[owner].add(topic)
    for topic in unowned:
        held[min(candidates[topic], key=lambda member: (len(held[member]), member))].add(topic)
    waiting = _waiting(claims)
    # Those that wait move first: the last one before the others, because its owner mostly begins with the first.
    movable = {
        member: dict.fromkeys([*sorted(topics & waiting, reverse=True), *sorted(topics - waiting)])
        for member, topics in held.items()
    }
    while _level(movable, candidates):
        pass
    return {member: set(topics) for member, topics in movable.items()}


def now_assigned(claims: Mapping[str, Claim], final: Mapping[str, Set[str]]) -> dict[str, list[str]]:
    """What each member gets at once: its topics, without those that another member has to give up first.

    Those that are not to be given up in this round stay with their owners.
    """
    waiting = _waiting(claims)
    owners = {topic: member for member in sorted(claims, reverse=True) for topic in _held(claims[member])}
    now: dict[str, list[str]] = {member: [] for member in final}
    for member, topics in final.items():
        held = _held(claims[member])
        coming = sorted(topic for topic in topics if topic in owners and topic not in held)
        now[member] += topics - set(coming)
        unowned = len(topics - owners.keys())
        room = max(min(_STARTED_TOGETHER - unowned, _MOVED_TOGETHER), 1)
        for topic in [topic for topic in coming if topic not in waiting][room:]:
            now[owners[topic]].append(topic)
    return {member: sorted(topics) for member, topics in now.items()}


def _held(claim: Claim) -> Set[str]:
    return claim.owned & claim.topics


def _waiting(claims: Mapping[str, Claim]) -> Set[str]:
    """The topics whose owner has not begun to serve them."""
    return frozenset().union(*(_held(claim) & claim.waiting for claim in claims.values()))


def _level(movable: Mapping[str, dict[str, None]], candidates: Mapping[str, Iterable[str]]) -> bool:
    """Move one topic from a member to a candidate that has at least two fewer. Returns False if there is none.

    `movable`: the topics of each member, in the order in which they are to move.
    """
    fewest = min((len(topics) for topics in movable.values()), default=0)
    for member in sorted(movable, key=lambda member: (-len(movable[member]), member)):
        number = len(movable[member])
        if number < fewest + 2:
            return False
        for topic in movable[member]:
            to = min(candidates[topic], key=lambda other: (len(movable[other]), other))
            if len(movable[to]) + 2 <= number:
                del movable[member][topic]
                movable[to][topic] = None
                return True
    return False


def marked(topics: Sequence[str], some: Set[str]) -> bytes:
    """Which of the topics are among `some`: a bit for each topic, the first in the lowest bit of the first byte."""
    bits = sum(1 << place for place, topic in enumerate(topics) if topic in some)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def unmarked(topics: Sequence[str], marks: bytes) -> Set[str]:
    """The topics that `marked` has marked. Takes any bytes."""
    bits = int.from_bytes(marks[: (len(topics) + 7) // 8], "little")
    return frozenset(topic for place, topic in enumerate(topics) if bits >> place & 1)


class StagedAssignor(CooperativeStickyAssignor):  # type: ignore[misc]  # kafka-python is untyped
    """The assignor of a member; the one of the group's leader decides."""

    def __init__(self, waiting: Callable[[], Set[str]] = frozenset) -> None:
        """`waiting`: returns the topics that the member owns and has not begun to serve; called in the IO thread."""
        super().__init__()
        self._waiting = waiting

    def metadata(self, topics: Set[str]) -> Any:
        """The subscription to send. What is not subscribed to any more is not claimed: it has been given up."""
        claimed: Iterable[TopicPartition] = self.member_assignment or ()
        self.member_assignment: Any = [partition for partition in claimed if partition.topic in topics]
        subscription = super().metadata(topics)
        subscription.user_data = marked(subscription.topics, self._waiting())
        return subscription

    def assign(self, cluster: Any, members: Iterable[Any]) -> dict[str, Any]:
        """The assignment of each member, by its id."""
        claims = {}
        for member in members:
            parsed = self.parse_member_metadata(member.metadata)
            owned = frozenset(partition.topic for partition in parsed.partitions)
            claims[member.member_id] = Claim(
                topics=frozenset(parsed.subscription),
                owned=owned,
                waiting=unmarked(parsed.subscription, member.metadata.user_data or b""),
            )
        assigned = now_assigned(claims, share_out(claims))
        return {
            member: ConsumerProtocolAssignment(self.version, [(topic, [0]) for topic in topics], b"")
            for member, topics in assigned.items()
        }
