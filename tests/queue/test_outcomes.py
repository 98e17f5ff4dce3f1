"""A version's entries about the records that it settles, and the outcomes made of them."""

from __future__ import annotations

from typing import Any

import pytest

from committerd.errors import CorruptTable
from committerd.queue.outcomes import (
    MEMBERS_KEY,
    MESSAGE_BYTES_MAX,
    MESSAGE_CHARS_MAX,
    REFUSED_KEY,
    Settled,
    Status,
    Timings,
    committed,
    decode_settled,
    encode_settled,
    known_status,
    refused,
    settled_by,
    short,
    status_name,
    status_of,
    undecided_refusal,
)
from committerd.queue.port import TopicIdentity
from committerd.queue.position import start_of
from committerd_common.messages import (
    COMMITTED,
    INVALID,
    UNDECIDED,
    Member,
    Refusal,
    Transaction,
)
from committerd_common.own_properties import CHANGES, EMPTIED, KEYS, MERGE, ROWS

POSITION = start_of(TopicIdentity(cluster_id="c", topic="t.staged", topic_id="i"), 0)
MEMBER = Member(offset=4, uuid="a", producer="p", read_version=2, reserved_first=8, reserved_count=2)
REFUSAL = Refusal(
    offset=5,
    uuid="b",
    status=INVALID,
    reason="path_invalid",
    message="m",
    conflicting_version=3,
    conflicting_operation="delete",
    producer="p",
    operation="append",
    read_version=1,
)


def version(**properties: str) -> Transaction:
    transaction = Transaction(uuid="v", read_version=6)
    transaction.append.SetInParent()
    transaction.transaction_properties.update(properties)
    return transaction


def test_members_and_refusals_survive_the_transaction_properties() -> None:
    settled = decode_settled(version(**encode_settled([MEMBER], [REFUSAL], topic_id="i")), version=7)
    assert settled == Settled(
        version=7, uuid="v", operation="append", ours=True, members=[MEMBER], refusals=[REFUSAL], topic_id="i"
    )
    assert list(settled.entries()) == [MEMBER, REFUSAL]


def test_a_version_without_our_properties_is_foreign_and_still_has_a_uuid() -> None:
    settled = decode_settled(version(who="spark"), version=7)
    assert (settled.ours, settled.uuid, list(settled.entries())) == (False, "v", [])


def test_a_version_whose_transaction_is_lost_is_foreign() -> None:
    assert not decode_settled(None, version=7).ours


@pytest.mark.parametrize("key", [ROWS, KEYS, MERGE, CHANGES, EMPTIED])
def test_what_a_producer_says_makes_no_version_ours(key: str) -> None:
    """Such a transaction may be committed without the queue; its position may be an older one."""
    assert not decode_settled(version(**{key: ""}), version=7).ours
    assert decode_settled(version(**{key: ""}, **encode_settled([], [], topic_id="i")), version=7).ours


def test_any_property_of_ours_makes_a_version_ours() -> None:
    assert decode_settled(version(**{"committerd.reason": "by hand"}), version=7).ours
    assert decode_settled(Transaction(transaction_properties={"committerd.reason": ""}), version=7).operation == ""


@pytest.mark.parametrize("text", ["not base64!", "//8="])
def test_members_that_can_not_be_read_stop_the_table(text: str) -> None:
    with pytest.raises(CorruptTable, match="version 7"):
        decode_settled(version(**{MEMBERS_KEY: text, REFUSED_KEY: ""}), version=7)


@pytest.mark.parametrize("text", ["not base64!", "//8="])
def test_a_version_whose_members_can_not_be_read_is_foreign(text: str) -> None:
    settled = settled_by(version(**{MEMBERS_KEY: text, REFUSED_KEY: ""}), version=7)
    assert settled == Settled(version=7, uuid="v", operation="append", ours=False)
    good = version(**encode_settled([MEMBER], [], topic_id="i"))
    assert settled_by(good, version=7) == decode_settled(good, version=7)
    bare = Transaction(transaction_properties={MEMBERS_KEY: text})
    assert settled_by(bare, version=7).operation == ""


def test_a_committed_record_is_told_where_it_is() -> None:
    settled = Settled(version=7, uuid="v", operation="append", ours=True, members=[MEMBER, MEMBER])
    outcome = committed(MEMBER, settled, POSITION, Timings(queued_ms=3, commit_ms=4))
    assert (outcome.status, outcome.version, outcome.uuid, outcome.offset) == (COMMITTED, 7, "a", 4)
    assert (outcome.transactions, outcome.queued_ms, outcome.commit_ms) == (2, 3, 4)
    assert (outcome.reserved_first, outcome.reserved_count, outcome.operation) == (8, 2, "append")
    assert (outcome.topic, outcome.topic_id, outcome.cluster_id) == ("t.staged", "i", "c")


def test_a_refused_record_is_told_why() -> None:
    outcome = refused(REFUSAL, POSITION)
    assert (outcome.status, outcome.reason, outcome.message) == (INVALID, "path_invalid", "m")
    assert (outcome.conflicting_version, outcome.conflicting_operation) == (3, "delete")
    assert (outcome.operation, outcome.read_version, outcome.producer) == ("append", 1, "p")


def test_the_same_answer_comes_from_the_table_again_without_its_timings() -> None:
    first, again = refused(REFUSAL, POSITION, Timings(queued_ms=9)), refused(REFUSAL, POSITION)
    first.queued_ms = 0
    assert first == again


def test_a_record_that_can_be_neither_found_nor_ruled_out_is_undecided() -> None:
    refusal = undecided_refusal(offset=3, uuid="x", producer="p", outcome_partition=2)
    assert (refusal.status, refusal.reason, refusal.outcome_partition) == (UNDECIDED, "version_cleaned_up", 2)
    assert len(refusal.message) <= MESSAGE_CHARS_MAX


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", "\ud800"])
@pytest.mark.parametrize("count", [0, 1, 149, 150, 151, 299, 300, 301, 9000])
def test_a_message_has_a_bound_in_characters_and_in_bytes(letter: str, count: int) -> None:
    message = short(letter * count)
    assert len(message) <= MESSAGE_CHARS_MAX
    assert len(message.encode()) <= MESSAGE_BYTES_MAX
    whole = (letter * count).encode("utf-8", "backslashreplace").decode()
    assert message == whole or (message.endswith("…") and whole.startswith(message[:-1]) and len(message) > 100)


def test_what_a_version_says_of_a_record_has_a_bound_in_bytes() -> None:
    """Whatever its headers say, and as it is encoded in the version."""
    text, most = "\U0001f600" * 64, 2**63 - 1
    numbers: dict[str, Any] = {"offset": most, "outcome_partition": 2**31 - 1, "read_version": most}
    member = Member(
        uuid="00000000-0000-4000-8000-000000000000",
        producer=text,
        traceparent=text,
        app_id="a" * 128,
        app_run="\U0001f600" * 256,
        app_version=2**53 - 1,
        reserved_first=most,
        reserved_count=2**31 - 1,
        note=short("\U0001f600" * 999),
        operation="update_mem_wal_state",
        **numbers,
    )
    refusal = Refusal(
        uuid=member.uuid,
        producer=text,
        traceparent=text,
        status=INVALID,
        reason="r" * 40,
        message=member.note,
        version=most,
        conflicting_version=most,
        conflicting_operation=member.operation,
        operation=member.operation,
        **numbers,
    )
    whole = encode_settled([member] * 1000, [refusal] * 1000, topic_id="t")
    assert max(map(len, whole.values())) <= 1000 * 4096


def test_only_wrong_and_unsupported_records_are_dead_letters() -> None:
    assert {s for s in Status if s.is_dead_letter} == {Status.INVALID, Status.UNSUPPORTED}


def test_a_long_message_is_cut_before_it_swells_the_manifest() -> None:
    assert short("x" * 300) == "x" * 300
    assert short("x" * 301) == "x" * 299 + "…"


def test_the_status_of_a_settled_record() -> None:
    assert status_of(Member(uuid="u")) is Status.COMMITTED
    assert status_of(Refusal(uuid="u", status=INVALID)) is Status.INVALID
    with pytest.raises(ValueError, match="99"):
        Status.of_number(99)
    assert (known_status(99), status_name(99)) == (None, "99")
    assert (known_status(1), status_name(1)) == (Status.COMMITTED, "COMMITTED")
