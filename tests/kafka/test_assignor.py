"""How the staged topics are shared out among the members of a group."""

from __future__ import annotations

from collections.abc import Set
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from committerd.kafka.assignor import Claim, StagedAssignor, marked, now_assigned, share_out, unmarked

TOPICS = [f"t{number:03}" for number in range(50)]


def claim(topics: list[str], owned: list[str] | None = None) -> Claim:
    return Claim(topics=frozenset(topics), owned=frozenset(owned or ()))


def settled(claims: dict[str, Claim]) -> dict[str, Claim]:
    """The members when nothing moves any more: each owns what it was given. Two rounds or more: give up, take over."""
    for _ in range(10):
        given = now_assigned(claims, share_out(claims))
        claims = {m: claim(sorted(c.topics), given[m]) for m, c in claims.items()}
    return claims


def test_a_standby_of_one_topic_takes_nothing() -> None:
    claims = {"b": claim(["t"], ["t"]), "a": claim(["t"])}
    assert share_out(claims) == {"a": set(), "b": {"t"}}


def test_two_to_three_members_moves_a_third_at_most_and_nothing_else() -> None:
    two = settled({"b": claim(TOPICS), "c": claim(TOPICS)})
    assert sorted(len(c.owned) for c in two.values()) == [25, 25]
    three = {**two, "a": claim(TOPICS)}
    final = share_out(three)
    assert sorted(map(len, final.values())) == [16, 17, 17]
    moved = sum(len(two[m].owned - final[m]) for m in two)
    assert moved == len(final["a"])
    # In the first round the owners give up, and the new member gets nothing that another still owns.
    first = now_assigned(three, final)
    assert first["a"] == []
    assert sum(len(two[m].owned) - len(first[m]) for m in two) == 4
    assert all(set(first[m]) >= final[m] for m in two)
    assert sorted(len(c.owned) for c in settled(three).values()) == [16, 17, 17]


def test_a_member_that_joins_gets_some_at_a_time_and_the_rest_stays_where_it_is_meanwhile() -> None:
    many = [f"t{number:03}" for number in range(200)]
    claims = {"a": claim(many, many), "b": claim(many)}
    for _ in range(30):
        given = now_assigned(claims, share_out(claims))
        free = set(many) - set(given["a"]) - set(given["b"])
        assert len(free) <= 4
        assert set(given["b"]) >= claims["b"].owned
        claims = {member: claim(many, topics) for member, topics in given.items()}
    assert [len(one.owned) for one in claims.values()] == [100, 100]


def test_what_its_owner_has_not_begun_to_serve_moves_all_at_once() -> None:
    claims = {"a": Claim(topics=frozenset(TOPICS), owned=frozenset(TOPICS), waiting=frozenset(TOPICS[16:]))}
    claims |= {member: claim(TOPICS) for member in "bcde"}
    given = now_assigned(claims, share_out(claims))
    # Of the sixteen that it serves, six are too many: fewer than four for each of the others.
    assert given == {"a": TOPICS[6:16], "b": [], "c": [], "d": [], "e": []}
    next_round = {member: claim(TOPICS, topics) for member, topics in given.items()}
    assert [len(topics) for topics in now_assigned(next_round, share_out(next_round)).values()] == [10] * 5


def test_what_is_served_moves_some_at_a_time_beside_what_waits() -> None:
    claims = {"a": Claim(topics=frozenset(TOPICS), owned=frozenset(TOPICS), waiting=frozenset(TOPICS[-5:]))}
    claims["b"] = claim(TOPICS)
    given = now_assigned(claims, share_out(claims))
    assert given["b"] == []
    assert len(given["a"]) == len(TOPICS) - 5 - 4
    assert not claims["a"].waiting & set(given["a"])


def sent(member: str, *, owned: list[str], waiting: Set[str] = frozenset(), said: bytes | None = None) -> Any:
    """A member as the leader sees it. `said`: its user data; None = that of this version."""
    assignor = StagedAssignor(lambda: waiting)
    assignor.member_assignment = [TopicPartition(topic, 0) for topic in owned]
    subscription = assignor.metadata(frozenset(TOPICS))
    if said is not None:
        subscription.user_data = said
    return SimpleNamespace(member_id=member, metadata=ConsumerProtocolSubscription.decode(subscription.encode()))


def kept(first: Any) -> int:
    """How many topics the first member keeps when a second joins."""
    given = StagedAssignor().assign(None, [first, sent("b", owned=[])])
    return len(given["a"].assigned_partitions)


def test_members_tell_the_leader_what_waits() -> None:
    assert kept(sent("a", owned=TOPICS, waiting=frozenset(TOPICS[16:]))) == 25


@pytest.mark.parametrize("said", [b"", b"\0" * 100, b"\0" * 6 + b"\xfc" + b"\xff" * 1_000_000], ids=len)
def test_of_a_member_that_does_not_say_what_waits_some_move_at_a_time(said: bytes) -> None:
    """As of an older version; whatever else it says is about no topic that it has."""
    assert kept(sent("a", owned=TOPICS, said=said)) == len(TOPICS) - 4


@given(st.lists(st.sampled_from(TOPICS), unique=True), st.sets(st.sampled_from(TOPICS)))
def test_what_is_marked_is_read_again(topics: list[str], some: set[str]) -> None:
    assert unmarked(topics, marked(topics, some)) == some & set(topics)


@pytest.mark.parametrize(("unowned", "moved"), [(0, 4), (4, 4), (6, 2), (7, 1), (8, 1), (16, 1)])
def test_a_member_that_gets_what_nobody_owns_gets_less_of_others(unowned: int, moved: int) -> None:
    """It would have to start all of them at once. One partition moves in any case, which brings the next round."""
    claims = {"a": claim(TOPICS, TOPICS[unowned:]), "b": claim(TOPICS)}
    given = now_assigned(claims, share_out(claims))
    assert given["b"] == TOPICS[:unowned]
    assert len(given["a"]) == len(TOPICS) - unowned - moved


def test_a_member_that_is_gone_leaves_its_topics_to_the_others_and_moves_no_other() -> None:
    three = settled({m: claim(TOPICS) for m in "abc"})
    two = {m: three[m] for m in "bc"}
    final = share_out(two)
    assert sorted(map(len, final.values())) == [25, 25]
    assert all(three[m].owned <= final[m] for m in two)
    assert now_assigned(two, final) == {m: sorted(topics) for m, topics in final.items()}


def test_what_a_member_does_not_serve_any_more_is_free_at_once() -> None:
    """An older version still claims it."""
    claims = {"a": claim(["t"], ["t", "u"]), "b": claim(["u"])}
    assert now_assigned(claims, share_out(claims)) == {"a": ["t"], "b": ["u"]}


def test_of_two_that_claim_a_topic_one_keeps_it() -> None:
    claims = {"a": claim(["t"], ["t"]), "b": claim(["t"], ["t"])}
    assert now_assigned(claims, share_out(claims)) == {"a": ["t"], "b": []}


@given(
    st.dictionaries(
        st.sampled_from("abcde"),
        st.tuples(*[st.sets(st.sampled_from(TOPICS[:12]))] * 3),
        min_size=1,
    )
)
def test_each_topic_has_one_subscriber_and_owners_keep_what_is_level(
    members: dict[str, tuple[set[str], set[str], set[str]]],
) -> None:
    claims = {
        member: Claim(topics=frozenset(topics), owned=frozenset(owned), waiting=frozenset(waiting))
        for member, (topics, owned, waiting) in members.items()
    }
    final = share_out(claims)
    assert sorted(topic for topics in final.values() for topic in topics) == sorted(
        set().union(*(c.topics for c in claims.values()))
    )
    for member, topics in final.items():
        assert topics <= claims[member].topics
        for topic in topics:
            fewest = min(len(final[other]) for other in claims if topic in claims[other].topics)
            assert len(topics) <= fewest + 1
    # Once settled, nothing moves; and no topic is ever assigned to two.
    after = settled(claims)
    assert share_out(after) == {m: set(c.owned) for m, c in after.items()}
    first = now_assigned(claims, final)
    flat = [topic for topics in first.values() for topic in topics]
    assert len(flat) == len(set(flat))


def test_a_thousand_topics_are_shared_out_level() -> None:
    """The leader computes this in the thread of its heartbeats."""
    many = [f"t{number:04}" for number in range(1_000)]
    final = share_out({"a": claim(many, many), "b": claim(many), "c": claim(many), "d": claim(many)})
    assert sorted(map(len, final.values())) == [250] * 4


@pytest.mark.parametrize("members", [1, 4])
def test_nothing_to_share_out(members: int) -> None:
    claims = {str(m): claim([]) for m in range(members)}
    assert share_out(claims) == {m: set() for m in claims}
