"""Dead letters: what a committer wrote beside the record, and what is staged again."""

from __future__ import annotations

import uuid

import pytest

from committerd.format.letter import decode_letter
from committerd.format.messages import Transaction
from committerd.format.request import decode_envelope
from committerd.ports import Record

_REASONS = (
    ("committerd-status", b"INVALID"),
    ("committerd-reason", b"unknown_fragment"),
    ("committerd-message", "fragment 7 is not there – look".encode()),
    ("committerd-topic", b"events.staged"),
    ("committerd-offset", b"17"),
    ("committerd-timestamp-ms", b"1700000000000"),
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
    """Somebody staged a dead letter with all its headers, and it died once more."""
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
