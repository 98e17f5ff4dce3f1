"""Where a partition begins: every case of mark, note and log."""

from __future__ import annotations

from itertools import product

import pytest

from committerd_client.app_marks import AppMark
from committerd_ingest.marks import (
    NOTE_PROVES_MS,
    NOTE_RENEWED_MS,
    Begin,
    Enter,
    Log,
    Note,
    Start,
    Stop,
    app_id_of,
    note_in,
    where_to_begin,
)
from committerd_ingest.records import Partition

NOW = 2_000_000_000_000
LOG = Log("t1", 10, 100)


def mark(version: int, run: str = "t1") -> AppMark:
    return AppMark(app_id="a", run=run, version=version, uuid="u", table_version=3, offset=7)


def note(offset: int, *, age_ms: int = 0, topic_id: str = "t1") -> Note:
    return Note(topic_id=topic_id, offset=offset, at_ms=NOW - age_ms)


def begin(
    mark: AppMark | None, note: Note | None, log: Log = LOG, start: Start = "earliest"
) -> Begin | Enter | Stop | str:
    found = where_to_begin(mark, note, log, start=start, now_ms=NOW)
    return found.reason if isinstance(found, Stop) else found


def test_a_new_partition_begins_as_told() -> None:
    assert begin(None, None) == Enter(10)
    assert begin(None, None, start="latest") == Enter(100)


def test_the_mark_decides_whatever_the_note_says() -> None:
    assert begin(mark(50), note(20), start="latest") == Begin(50, renew=False)
    assert begin(mark(50), None) == Begin(50, renew=True)
    assert begin(mark(50), note(50, age_ms=NOTE_RENEWED_MS)) == Begin(50, renew=True)
    assert begin(mark(100), note(100)) == Begin(100, renew=False)
    assert begin(mark(10), note(10)) == Begin(10, renew=False)


def test_what_kafka_has_lost_stops_it() -> None:
    assert begin(mark(101), note(0)) == "log_truncated"
    assert begin(mark(9), note(0)) == "records_expired"
    assert begin(mark(50, "t0"), note(50, topic_id="t0")) == "topic_recreated"
    assert begin(None, note(50, topic_id="t0")) == "topic_recreated"
    assert begin(None, note(9)) == "records_expired"
    assert begin(None, note(101)) == "log_truncated"


def test_a_mark_that_is_gone_is_replaced_by_a_note_that_proves_where_it_was() -> None:
    assert begin(None, note(50, age_ms=NOTE_PROVES_MS - 1)) == Enter(50)
    assert begin(None, note(50, age_ms=NOTE_PROVES_MS)) == "mark_lost"
    assert begin(None, note(100, age_ms=10 * NOTE_PROVES_MS)) == Enter(100)  # there were no records since
    assert begin(mark(-1, ""), note(50)) == "mark_released"


def test_nothing_is_ever_appended_twice_or_left_out() -> None:
    """A history of the table: whatever is forgotten, the partition begins at the true mark or stops."""
    for true, noted, age, forgotten in product((10, 50, 100), (10, 50, 100), (0, 26), (False, True)):
        age_ms = age * 24 * 3600 * 1000
        # A note was true when it was written. What was committed since has a mark that lives 30 days.
        if noted > true or (forgotten and noted < true and age < 26):
            continue
        found = begin(None if forgotten else mark(true), note(noted, age_ms=age_ms))
        assert isinstance(found, str | Stop) or found.offset == true, (true, noted, age, forgotten)


def test_an_application_names_pipeline_cluster_topic_and_partition() -> None:
    assert app_id_of("p", "MkU3OEVBNTcwNTJENDM2Qg", Partition("a.b", 7)) == "p.MkU3OEVBNTcwNTJENDM2Qg.a.b.7"
    others = [("p", "redpanda.1", Partition("a", 1)), ("p", "redpanda", Partition("1.a", 1))]
    others += [("p", "c" * 22, Partition("t" * 200 + end, 1)) for end in "ab"]
    names = {app_id_of(*one) for one in others}
    assert len(names) == len(others)
    assert all(len(name) <= 128 for name in names)


def test_a_note_is_read_as_it_was_written() -> None:
    assert note_in({"committerd-ingest.a": note(7).text()}, "a") == note(7)
    assert note_in({"committerd-ingest.ab": note(7).text()}, "a") is None
    for text in ("{}", "7", "x", '{"topic_id": "t", "offset": "x", "at_ms": 1}'):
        with pytest.raises(ValueError, match="no note"):
            note_in({"committerd-ingest.a": text}, "a")
