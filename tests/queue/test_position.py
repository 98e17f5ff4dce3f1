"""The position and the application marks: what a table records of its queue, and that it never goes down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.errors import CorruptTable, RefusedToRun
from committerd.queue.port import TopicIdentity
from committerd.queue.position import (
    APP_KEY_PREFIX,
    FORMAT_KEY,
    MARK_UNUSED_MS_MAX,
    POSITION_KEY,
    AppMark,
    advance,
    decode_marks,
    decode_position,
    dropped_marks,
    encode_metadata,
    higher_mark,
    highest,
    kept_marks,
    merge_marks,
    start_of,
)

TOPIC = TopicIdentity(cluster_id="c1", topic="events.staged", topic_id="Zm9vYmFyYmF6cXV4Zm9vYg")
START = start_of(TOPIC, 0)


def mark(version: int = 1, *, life: int = 0, used_ms: int = 1000, run: str = "r") -> AppMark:
    return AppMark(run=run, version=version, uuid="u", table_version=3, used_ms=used_ms, life=life)


def prints(*offsets: int) -> dict[int, tuple[str, int]]:
    return {o: (f"sha{o}", 5) for o in offsets}


def test_position_and_marks_survive_the_table_metadata() -> None:
    position = replace(START, next_offset=7, settled=(9, 12), era=2, last_offset=6, last_sha256="ab", leader_epoch=4)
    marks = {"spark-1": mark(), "b": mark(life=3)}
    metadata = encode_metadata(position, marks)
    assert decode_position(metadata) == position
    assert decode_marks(metadata) == marks
    assert metadata[FORMAT_KEY] == "1"


def test_a_table_without_our_keys_carries_nothing() -> None:
    assert decode_position({"owner": "someone"}) is None
    assert decode_marks({"owner": "someone"}) == {}


def test_keys_of_a_newer_committerd_are_refused_and_nothing_is_guessed() -> None:
    with pytest.raises(RefusedToRun, match="run the newer committerd") as caught:
        decode_position({FORMAT_KEY: "2"})
    assert caught.value.code == "format_newer"


@pytest.mark.parametrize(
    "metadata",
    [
        {FORMAT_KEY: "one"},
        {FORMAT_KEY: "²"},
        {POSITION_KEY: "{"},
        {POSITION_KEY: "[]"},
        {POSITION_KEY: "{}"},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"next":"0"')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"next":true')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"next":-1')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', f'"next":{1 << 63}')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"topic":"events.staged"', '"topic":1')},
    ],
)
def test_a_position_that_someone_spoilt_is_named(metadata: dict[str, str]) -> None:
    with pytest.raises(CorruptTable, match="committerd") as caught:
        decode_position(metadata)
    assert caught.value.code == "position_unreadable"


def test_a_mark_that_someone_spoilt_is_named() -> None:
    with pytest.raises(CorruptTable, match=r"committerd\.app\.x"):
        decode_marks({APP_KEY_PREFIX + "x": json.dumps({"run": "r"})})


def test_settling_in_order_moves_the_next_offset_and_remembers_the_last_record() -> None:
    moved = advance(START, [0, 1, 2], [0, 1], fingerprints=prints(0, 1, 2))
    assert (moved.next_offset, moved.settled, moved.last_offset) == (2, (), 1)
    assert (moved.last_sha256, moved.leader_epoch) == ("sha1", 5)


def test_a_record_settled_ahead_waits_for_those_before_it() -> None:
    ahead = advance(START, [0, 1, 2], [2], fingerprints=prints(0, 1, 2))
    assert (ahead.next_offset, ahead.settled, ahead.last_offset) == (0, (2,), -1)
    assert ahead.passes(2)
    assert not ahead.passes(0)
    joined = advance(ahead, [0, 1, 2], [0, 1], fingerprints=prints(0, 1, 2))
    assert (joined.next_offset, joined.settled, joined.last_offset) == (3, (), 2)


def test_a_record_settled_ahead_is_passed_with_the_one_before_it_though_it_waits_no_more() -> None:
    ahead = replace(START, next_offset=1, settled=(2, 3), last_offset=0)
    joined = advance(ahead, [1], [1], fingerprints=prints(1))
    assert (joined.next_offset, joined.settled, joined.last_offset) == (4, (), 1)
    late = advance(replace(START, settled=(0,)), [], [], fingerprints={})
    assert (late.next_offset, late.settled, late.last_offset) == (1, (), -1)


def test_offsets_that_kafka_left_out_are_passed_with_the_next_record() -> None:
    assert advance(START, [4, 9], [4, 9], fingerprints=prints(4, 9)).next_offset == 10


@given(st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12)))
def test_a_union_passes_exactly_what_either_passed(one: set[int], other: set[int]) -> None:
    every = list(range(13))
    a = advance(START, every, one, fingerprints=prints(*every))
    b = advance(START, every, other, fingerprints=prints(*every))
    union = a.union(b)
    assert [o for o in every if union.passes(o)] == [o for o in every if a.passes(o) or b.passes(o)]
    assert highest([a, b]) == union


def test_the_highest_of_several_versions_is_of_the_last_era() -> None:
    old = replace(START, next_offset=500)
    rewound = replace(START, next_offset=10, era=1)
    assert highest([old, rewound]) == highest([rewound, old]) == rewound
    assert highest([]) is None


def test_positions_of_one_era_on_two_topics_are_not_mixed() -> None:
    other = replace(START, topic_id="another", next_offset=99)
    assert highest([START, other]) == START


def test_a_mark_only_rises_and_a_release_outranks_any_version() -> None:
    assert higher_mark(None, mark(3)) == mark(3)
    assert higher_mark(mark(3), mark(2)) == mark(3)
    released = mark(-1, life=1)
    assert higher_mark(mark(900), released) == released
    assert released.released
    marks = {"a": mark(5)}
    merge_marks(marks, {"a": mark(4), "b": mark(1)})
    assert marks == {"a": mark(5), "b": mark(1)}


def test_a_mark_names_the_record_that_brought_it_and_not_the_same_bytes_staged_again() -> None:
    found = replace(mark(), offset=4, era=1)
    assert found.names("u", era=1, offset=4)
    assert not found.names("u", era=1, offset=5)
    assert not found.names("u", era=0, offset=4)
    assert not found.names("v", era=1, offset=4)


def test_marks_that_nobody_uses_go_and_the_newest_stay() -> None:
    now = MARK_UNUSED_MS_MAX + 5000
    marks = {"old": mark(used_ms=4999), "edge": mark(used_ms=5000), "b": mark(used_ms=now), "a": mark(used_ms=now)}
    assert set(kept_marks(marks, most=10)) == {"edge", "a", "b"}
    assert set(kept_marks(marks, most=1)) == {"a"}


def test_marks_that_are_dropped_are_counted_by_cause() -> None:
    now = MARK_UNUSED_MS_MAX + 5000
    marks = {"old": mark(used_ms=4999), "edge": mark(used_ms=5000), "b": mark(used_ms=now), "a": mark(used_ms=now)}
    assert dropped_marks(marks, kept_marks(marks, most=10)) == (1, 0)
    assert dropped_marks(marks, kept_marks(marks, most=1)) == (1, 2)
    assert dropped_marks({}, {}) == (0, 0)


def test_marks_age_by_each_other_and_by_no_clock() -> None:
    marks = {"a": mark(used_ms=1), "b": mark(used_ms=2)}
    assert kept_marks(marks, most=10) == marks
    assert kept_marks({}, most=10) == {}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_keys_that_are_nested_too_deeply_are_unreadable(text: str) -> None:
    with pytest.raises(CorruptTable):
        decode_position({POSITION_KEY: text})


def test_a_position_is_a_container_of_the_offsets_that_it_passes() -> None:
    position = replace(START, next_offset=3, settled=(5,))
    assert [o for o in range(7) if o in position] == [0, 1, 2, 5]
    assert "5" not in position
