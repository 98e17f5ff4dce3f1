"""Dead letters: what a committer wrote with the record, and what is staged again."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from committerd.queue.dead_letter import Letter, decode_letter, letter_of, smaller_letter, smaller_outcome
from committerd.queue.port import Publication, Record
from committerd.queue.producers import Producer, Signing
from committerd_common.messages import INVALID, Outcome, Transaction
from committerd_common.request import decode_envelope

_REASONS = (
    ("committerd-status", b"INVALID"),
    ("committerd-reason", b"unknown_fragment"),
    ("committerd-message", "fragment 7 is not there – look".encode()),
    ("committerd-topic", b"events.staged"),
    ("committerd-offset", b"17"),
    ("committerd-timestamp-ms", b"1700000000000"),
)
_OUTCOME = Outcome(
    status=INVALID,
    reason="unknown_fragment",
    message="fragment 7 is not there – look",
    topic="events.staged",
    offset=17,
)


def _record(value: bytes, *headers: tuple[str, bytes]) -> Record:
    return Record(offset=3, value=value, key=b"key", headers=headers, timestamp_ms=1700000000500)


def test_a_letter_tells_where_and_why_and_keeps_the_original_apart() -> None:
    transaction = Transaction(uuid=str(uuid.UUID(int=1)))
    letter = decode_letter(_record(transaction.SerializeToString(), ("producer", b"p"), *_REASONS))
    assert letter is not None
    assert (letter.offset, letter.timestamp_ms, letter.key) == (3, 1700000000500, b"key")
    assert (letter.status, letter.reason, letter.message) == (
        "INVALID",
        "unknown_fragment",
        "fragment 7 is not there – look",
    )
    assert (letter.place, letter.staged_timestamp_ms) == ("events.staged:17", 1700000000000)
    assert letter.headers == [("producer", b"p")]
    assert letter.transaction == transaction
    assert letter.dropped_bytes == 0


def test_of_reasons_that_stand_twice_the_last_count_and_none_is_staged_again() -> None:
    """A dead letter was staged with all its headers, and was refused once more."""
    letter = decode_letter(_record(b"x", *_REASONS, *_REASONS, ("committerd-offset", b"90")))
    assert letter is not None
    assert letter.place == "events.staged:90"
    assert letter.headers == []


def test_a_replay_has_the_same_bytes_and_what_its_producer_said() -> None:
    kept = (("producer", b"p"), ("app-id", b"a"), ("app-version", b"3"), ("dataset", b"/t"), ("x", b"\xff"))
    dropped = (("attempt", b"2"), ("retry-of", str(uuid.UUID(int=5)).encode()), ("replay-of", b"events.staged:4"))
    letter = decode_letter(_record(b"bytes", *kept, *dropped, *_REASONS))
    assert letter is not None
    replay = letter.replay()
    assert (replay.key, replay.value) == (b"key", b"bytes")
    assert replay.headers == [*kept, ("replay-of", b"events.staged:17")]
    record = letter.as_staged()
    assert (record.key, record.value, list(record.headers)) == (replay.key, replay.value, replay.headers)
    assert decode_envelope(record.headers).replay_of == "events.staged:17"


def test_a_replay_is_signed_by_the_operator_where_records_are_signed() -> None:
    letter = decode_letter(_record(b"bytes", ("producer", b"p"), ("signature", b"v1:0"), *_REASONS))
    assert letter is not None
    signing = Signing(topic="events.staged", producer=Producer(name="operator", keys=("k" * 32,)))
    replay = letter.replay(signing)
    assert replay == signing.signed(letter.replay())
    assert [one for one in replay.headers if one[0] == "producer"] == [("producer", b"operator")]
    assert letter.as_staged(signing).headers == tuple(replay.headers)


def test_a_value_that_did_not_fit_is_told_and_garbage_is_no_transaction() -> None:
    letter = decode_letter(_record(b"", *_REASONS, ("committerd-value-bytes", b"1048576")))
    assert letter is not None
    assert letter.dropped_bytes == 1048576
    garbage = decode_letter(_record(b"\xff\xff", *_REASONS))
    assert garbage is not None
    assert garbage.transaction == Transaction()


@pytest.mark.parametrize(
    "headers",
    [(), _REASONS[:-1], (*_REASONS, ("committerd-offset", b"seventeen"))],
    ids=["none", "one lacks", "one is no number"],
)
def test_what_no_committer_wrote_is_no_letter(headers: tuple[tuple[str, bytes], ...]) -> None:
    assert decode_letter(_record(b"x", *headers)) is None


def _letter(value: bytes, *headers: tuple[str, bytes], cuts: int = 0, headers_found: int = 0) -> Publication:
    """`cuts`: how often the topic refuses the letter as too large."""
    record = Record(
        offset=17,
        value=value,
        key=b"key",
        headers=headers,
        headers_found=headers_found,
        timestamp_ms=1700000000000,
    )
    letter: Publication | None = letter_of(record, _OUTCOME)
    for _ in range(cuts):
        assert letter is not None
        letter = smaller_letter(letter)
    assert letter is not None
    return letter


def _decoded(letter: Publication) -> Letter:
    decoded = decode_letter(Record(offset=3, value=letter.value, key=letter.key, headers=letter.headers))
    assert decoded is not None
    return decoded


def test_a_letter_has_its_whole_record() -> None:
    letter = _letter(b"v" * 1000, ("producer", b"p"))
    assert (letter.key, letter.value) == (b"key", b"v" * 1000)
    assert letter.headers == [("producer", b"p"), *_REASONS]
    decoded = _decoded(letter)
    assert decoded.headers == [("producer", b"p")]
    assert (decoded.dropped_bytes, decoded.cut) == (0, False)


def test_what_does_not_fit_is_left_out_and_a_header_says_so() -> None:
    """The value first, then the headers, then the key."""
    named = ("\N{REPLACEMENT CHARACTER}" * 1000, b"")  # a name that is not UTF-8, as it is read: 3,000 bytes
    without_value = _letter(b"v" * 1000, ("producer", b"p"), cuts=1)
    assert (without_value.key, without_value.value) == (b"key", b"")
    assert (_decoded(without_value).dropped_bytes, _decoded(without_value).cut) == (1000, False)
    without_headers = _letter(b"v" * 1000, named, ("producer", b"p"), cuts=2)
    assert _decoded(without_headers).headers == []
    assert (_decoded(without_headers).dropped_bytes, _decoded(without_headers).cut) == (1000, True)
    assert ("committerd-headers", b"2") in without_headers.headers
    nothing = _letter(b"v", ("producer", b"p"), cuts=3)
    assert (nothing.key, nothing.value) == (None, b"")
    assert ("committerd-key-bytes", b"3") in nothing.headers
    assert _decoded(nothing).cut
    assert smaller_letter(nothing) is None


def test_headers_that_were_not_even_read_are_counted() -> None:
    letter = _letter(b"v", ("producer", b"p"), headers_found=500_000)
    assert [value for name, value in letter.headers if name == "committerd-headers"] == [b"500000"]
    assert _decoded(letter).cut
    smallest = _letter(b"v", ("producer", b"p" * 2000), cuts=2, headers_found=500_000)
    assert [value for name, value in smallest.headers if name == "committerd-headers"] == [b"500000"]
    assert _decoded(smallest).headers == []


def test_a_producers_headers_are_not_taken_for_the_committers() -> None:
    letter = _letter(b"v", ("committerd-value-bytes", b"7"), ("committerd-x", b"x" * 5000))
    assert _decoded(letter).dropped_bytes == 0
    assert letter.value == b"v"


def test_an_outcome_may_lose_what_is_said_for_people() -> None:
    outcome = Outcome(uuid="u", offset=17, reason="invalid", message="m" * 300, producer="p" * 1000)
    smaller = smaller_outcome(Publication(key=b"u", value=outcome.SerializeToString(), headers=[("topic", b"t")]))
    assert smaller is not None
    assert Outcome.FromString(smaller.value) == Outcome(uuid="u", offset=17, reason="invalid")
    assert (smaller.key, smaller.headers) == (b"u", [("topic", b"t")])
    assert smaller_outcome(smaller) is None
    assert smaller_outcome(Publication(key=b"u", value=b"\xff")) is None


@pytest.mark.parametrize(
    ("change", "can"), [({}, True), ({"dropped_bytes": 9}, False), ({"cut": True}, False), ({"value": b""}, True)]
)
def test_a_letter_that_lacks_a_part_of_its_record_cannot_be_replayed(change: dict[str, Any], can: bool) -> None:
    letter = decode_letter(_record(b"bytes", *_REASONS))
    assert letter is not None
    assert replace(letter, **change).can_be_replayed is can
