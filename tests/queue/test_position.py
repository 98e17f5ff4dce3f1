"""The position and the application marks: what a table records of its queue, and that it never goes down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.errors import CorruptTable, RefusedToRun
from committerd.queue.offsets import Offsets
from committerd.queue.port import Record, TopicIdentity, record_sha256
from committerd.queue.position import (
    APP_KEY_PREFIX,
    FORMAT_KEY,
    LISTED_MAX,
    MARK_UNUSED_MS_MAX,
    PAUSED_KEY,
    POSITION_KEY,
    RANGES_MAX,
    AppMark,
    LostHistory,
    MarkRoom,
    Pause,
    SaysOfPause,
    advance,
    decode_marks,
    decode_pause,
    decode_position,
    encode_metadata,
    highest,
    is_new_to,
    kept_marks,
    merge_marks,
    pause_of,
    start_of,
)

TOPIC = TopicIdentity(cluster_id="c1", topic="events.staged", topic_id="Zm9vYmFyYmF6cXV4Zm9vYg")
START = start_of(TOPIC, 0)


def mark(version: int = 1, *, life: int = 0, used_ms: int = 1000, run: str = "r") -> AppMark:
    return AppMark(run=run, version=version, uuid="u", table_version=3, used_ms=used_ms, life=life)


def record(offset: int) -> Record:
    return Record(offset=offset, value=b"%d" % offset, leader_epoch=5)


def test_position_and_marks_survive_the_table_metadata() -> None:
    position = replace(
        START, next_offset=7, settled=Offsets.of((9, 12)), era=2, last_offset=6, last_sha256="ab", leader_epoch=4
    )
    marks = {"spark-1": mark(), "b": mark(life=3)}
    metadata = encode_metadata(position, marks)
    assert decode_position(metadata) == position
    assert decode_marks(metadata) == marks
    assert metadata[FORMAT_KEY] == "1"


def test_what_a_table_has_lost_survives_too_and_costs_nothing_where_there_is_nothing() -> None:
    lost = replace(START, lost=LostHistory(kept=3, latest=5, start=10, end=20))
    assert decode_position(encode_metadata(lost, {})) == lost
    assert "lost" not in encode_metadata(START, {})[POSITION_KEY]
    assert lost.union(replace(lost, next_offset=4)).lost == lost.lost


def test_a_position_says_of_which_branch_it_is_and_that_of_the_main_branch_costs_nothing() -> None:
    of_branch = replace(START, branch="exp")
    assert decode_position(encode_metadata(of_branch, {}), branch="exp") == of_branch
    assert "branch" not in encode_metadata(START, {})[POSITION_KEY]


@pytest.mark.parametrize("inherited", ["", "exp", "exp/2"])
def test_a_branch_does_not_go_on_at_the_position_of_another_queue_but_keeps_its_marks(inherited: str) -> None:
    marks = {"app": replace(mark(), offset=5)}
    metadata = encode_metadata(replace(START, next_offset=7, branch=inherited), marks)
    assert decode_position(metadata, branch="other") is None
    # The unit is in the branch's rows, so it stays a duplicate; offset 5 of its own queue is another record.
    assert decode_marks(metadata, branch="other") == {"app": replace(mark(), offset=-1)}
    assert decode_marks(metadata, branch=inherited) == marks


def test_marks_without_a_position_keep_their_offsets() -> None:
    metadata = encode_metadata(START, {"app": replace(mark(), offset=5)})
    del metadata[POSITION_KEY]
    assert decode_marks(metadata, branch="exp") == {"app": replace(mark(), offset=5)}


def test_a_pause_survives_the_table_metadata_and_is_none_of_a_branch_that_began_in_it() -> None:
    pause = Pause(reason="a backup", since_ms=1_790_000_000_123, who="ann")
    metadata = encode_metadata(START, {}, pause)
    assert decode_pause(metadata) == pause
    assert decode_pause(metadata, branch="exp") is None
    assert decode_pause(encode_metadata(replace(START, branch="exp"), {}, pause), branch="exp") == pause
    assert decode_pause(encode_metadata(START, {})) is None
    assert str(pause) == "paused since 2026-09-21T14:13:20Z by ann: a backup"
    assert str(replace(pause, who="")) == "paused since 2026-09-21T14:13:20Z: a backup"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"reason":"x","since_ms":1}', '{"reason":1,"since_ms":1,"who":""}']
    + [f'{{"reason":"x","since_ms":{wrong},"who":""}}' for wrong in ('"1"', -1, 1 << 62, 1 << 70)],
)
def test_a_pause_that_someone_spoilt_is_named(text: str) -> None:
    with pytest.raises(CorruptTable, match=r"committerd\.paused"):
        decode_pause({PAUSED_KEY: text})


def test_a_table_that_is_no_branch_is_a_copy_if_it_has_the_position_of_one() -> None:
    copied = replace(START, branch="exp")
    assert decode_position(encode_metadata(copied, {})) == copied


def test_a_table_without_our_keys_carries_nothing() -> None:
    assert decode_position({"owner": "someone"}) is None
    assert decode_marks({"owner": "someone"}) == {}


def test_keys_of_a_newer_committerd_are_refused_and_nothing_is_guessed() -> None:
    with pytest.raises(RefusedToRun, match="run the newer committerd") as caught:
        decode_position({FORMAT_KEY: "3"})
    assert caught.value.code == "format_newer"


@pytest.mark.parametrize(
    "metadata",
    [
        {FORMAT_KEY: "one"},
        {FORMAT_KEY: "²"},
        {POSITION_KEY: "{"},
        {POSITION_KEY: "[]"},
        {POSITION_KEY: "null"},
        {POSITION_KEY: "{}"},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"next":"0"')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"next":true')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"next":-1')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', f'"next":{1 << 63}')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"topic":"events.staged"', '"topic":1')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"lost":7,"next":0')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"lost":[1,2,3],"next":0')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"lost":"1234","next":0')},
        {POSITION_KEY: encode_metadata(START, {})[POSITION_KEY].replace('"next":0', '"lost":[1,2,3,-4],"next":0')},
    ],
)
def test_a_position_that_someone_spoilt_is_named(metadata: dict[str, str]) -> None:
    with pytest.raises(CorruptTable, match="committerd") as caught:
        decode_position(metadata)
    assert caught.value.code == "position_unreadable"


def test_a_mark_that_someone_spoilt_is_named() -> None:
    for text in (json.dumps({"run": "r"}), "[]", "7", "null", '"run"', "{"):
        with pytest.raises(CorruptTable, match=r"committerd\.app\.x"):
            decode_marks({APP_KEY_PREFIX + "x": text})


def test_settling_in_order_moves_the_next_offset_and_remembers_the_last_record() -> None:
    moved = advance(START, [0, 1, 2], [0, 1], last=record(1))
    assert (moved.next_offset, moved.settled, moved.last_offset) == (2, Offsets(), 1)
    assert (moved.last_sha256, moved.leader_epoch) == (record_sha256(record(1)), 5)


def test_a_record_settled_ahead_waits_for_those_before_it_and_proves_them() -> None:
    ahead = advance(START, [0, 1, 2], [2], last=record(2))
    assert (ahead.next_offset, ahead.settled, ahead.last_offset) == (0, Offsets.of([2]), 2)
    assert ahead.last_sha256 == record_sha256(record(2))
    assert ahead.passes(2)
    assert not ahead.passes(0)
    joined = advance(ahead, [0, 1, 2], [0, 1], last=record(1))
    assert (joined.next_offset, joined.settled) == (3, Offsets())
    assert (joined.last_offset, joined.last_sha256) == (2, ahead.last_sha256)


def test_a_record_settled_ahead_is_passed_with_the_one_before_it_though_it_waits_no_more() -> None:
    ahead = replace(START, next_offset=1, settled=Offsets.of((2, 3)), last_offset=0)
    joined = advance(ahead, [1], [1], last=record(1))
    assert (joined.next_offset, joined.settled, joined.last_offset) == (4, Offsets(), 1)
    late = advance(replace(START, settled=Offsets.of([0])), [], [], last=None)
    assert (late.next_offset, late.settled, late.last_offset) == (1, Offsets(), -1)


def test_offsets_that_kafka_left_out_are_passed_with_the_next_record() -> None:
    assert advance(START, [4, 9], [4, 9], last=record(9)).next_offset == 10


@given(st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12)))
def test_a_union_passes_exactly_what_either_passed(one: set[int], other: set[int]) -> None:
    every = list(range(13))
    a = advance(START, every, one, last=record(max(one)) if one else None)
    b = advance(START, every, other, last=record(max(other)) if other else None)
    union = a.union(b)
    assert union.last_offset == max(one | other, default=-1)
    assert [o for o in every if union.passes(o)] == [o for o in every if a.passes(o) or b.passes(o)]
    assert highest([a, b]) == union
    missing = [o for o in every if b.passes(o) and not a.passes(o)]
    assert a.lacks(b) == (missing[0] if missing else None)


def test_the_highest_of_several_versions_is_of_the_last_era() -> None:
    old = replace(START, next_offset=500)
    rewound = replace(START, next_offset=10, era=1)
    assert highest([old, rewound]) == highest([rewound, old]) == rewound
    assert highest([]) is None


def test_positions_of_one_era_on_two_topics_are_not_mixed() -> None:
    other = replace(START, topic_id="another", next_offset=99)
    assert highest([START, other]) == START


def test_a_mark_only_rises_and_a_release_outranks_any_version() -> None:
    released = mark(-1, life=1)
    assert released.released
    marks = {"a": mark(5), "c": mark(900), "d": mark(1)}
    merge_marks(marks, {"a": mark(4), "b": mark(1), "c": released, "d": mark(2)})
    assert marks == {"a": mark(5), "b": mark(1), "c": released, "d": mark(2)}


def test_a_mark_names_the_record_that_brought_it_and_not_the_same_bytes_staged_again() -> None:
    found = replace(mark(), offset=4, era=1)
    assert found.names("u", era=1, offset=4)
    assert not found.names("u", era=1, offset=5)
    assert not found.names("u", era=0, offset=4)
    assert not found.names("v", era=1, offset=4)


def test_only_marks_that_nobody_uses_go() -> None:
    now = MARK_UNUSED_MS_MAX + 5000
    marks = {"old": mark(used_ms=4999), "edge": mark(used_ms=5000)}
    marks |= {f"m{n}": mark(used_ms=now) for n in range(3000)}
    assert kept_marks(marks).keys() == marks.keys() - {"old"}


def test_marks_age_by_each_other_and_by_no_clock() -> None:
    marks = {"a": mark(used_ms=1), "b": mark(used_ms=2)}
    assert kept_marks(marks) == marks
    assert kept_marks({}) == {}


def test_there_is_room_for_so_many_marks_and_no_more() -> None:
    room = MarkRoom.left_by({}, most=3)
    assert room.used == 0
    marks: dict[str, AppMark] = {}
    for app_id in ("a", "b", "c"):
        assert room.takes(app_id, "run")
        room.add(app_id, "run")
        marks[app_id] = mark(run="run")
    assert not room.takes("d", "run")
    assert room.used == 1
    assert MarkRoom.left_by(marks, most=3) == room
    assert MarkRoom.left_by(marks, most=4).takes("d", "run")
    assert MarkRoom.left_by(marks, most=2).used == 1.5


def test_age_and_release_make_room() -> None:
    now = MARK_UNUSED_MS_MAX + 5000
    marks = {"old": mark(used_ms=4999), "released": replace(mark(used_ms=now), version=-1), "b": mark(used_ms=5000)}
    assert [is_new_to(marks, app_id) for app_id in ("b", "released", "none")] == [False, True, True]
    assert MarkRoom.left_by(marks, most=9).count == 1
    assert MarkRoom.left_by({"old": mark(used_ms=4999)}, most=9).count == 1
    assert MarkRoom.left_by({"old": mark(used_ms=4999)}, most=9, now_ms=now).count == 0


def test_the_position_has_a_bound_in_bytes() -> None:
    most = 2**63 - 1
    topic = TopicIdentity(cluster_id="c" * 64, topic="t" * 249, topic_id="i" * 22)
    listed = Offsets.of(range(most - 2 * LISTED_MAX, most, 2))
    full = replace(start_of(topic, most - 2 * LISTED_MAX), settled=listed, era=most, last_sha256="a" * 64)
    assert sum(map(len, encode_metadata(full, {}).values())) <= 8 * 1024
    # Whatever joins while there is room, from records side by side to those that lie a million apart.
    for step in (1, 2, 60, 5_000, 1_000_000):
        position, at = replace(full, next_offset=most // 2, settled=Offsets()), most // 2
        while position.room:
            more = range(at + step, at + step * min(position.room, 64) + 1, step)
            position, at = replace(position, settled=position.settled.union(Offsets.of(more))), more[-1]
            assert position.settled.range_count <= RANGES_MAX
            if step == 1 and at > most // 2 + 100_000:
                break
        metadata = encode_metadata(position, {})
        assert sum(map(len, metadata.values())) <= 17 * 1024
        assert decode_position(metadata) == position
        assert step == 1 or len(position.settled) > (2400 if step == 1_000_000 else 3000)


@pytest.mark.parametrize("count", [LISTED_MAX, LISTED_MAX + 1])
def test_an_older_committer_reads_a_position_that_lists_its_offsets_and_refuses_to_run_on_others(count: int) -> None:
    position = replace(START, settled=Offsets.of(range(1, count + 1)))
    metadata, is_listed = encode_metadata(position, {}), count <= LISTED_MAX
    assert metadata[FORMAT_KEY] == ("1" if is_listed else "2")
    assert json.loads(metadata[POSITION_KEY])["settled"] == (list(range(1, count + 1)) if is_listed else "A/8B")
    assert decode_position(metadata) == position
    assert encode_metadata(advance(position, [0], [0], last=record(0)), {})[FORMAT_KEY] == "1"


@pytest.mark.parametrize(
    "wrong", ['"!"', '"gA=="', '"AgA="', '"////////////////////"', '"/v//////////Aw=="', "1", "[-1]", '["1"]']
)
def test_settled_offsets_that_someone_spoilt_are_named(wrong: str) -> None:
    text = encode_metadata(START, {})[POSITION_KEY].replace("[]", wrong)
    with pytest.raises(CorruptTable, match="can't be read"):
        decode_position({POSITION_KEY: text})


def test_people_see_ranges() -> None:
    position = replace(START, next_offset=3, settled=Offsets.of((5, 6, 9)))
    assert position.shown()["settled"] == [[5, 7], [9, 10]]
    assert json.dumps(position.shown())


@pytest.mark.parametrize("run", ["r", "r" * 1024, "\U0001f600" * 256, "\x00" * 1024, '"' * 1024, "é" * 512, ""])
def test_the_size_of_a_mark_is_never_above_its_estimate(run: str) -> None:
    """JSON escapes what is not ASCII."""
    most, app_id = 64, "a" * 128
    room, marks = MarkRoom(most=most), dict[str, AppMark]()
    big = 2**63 - 1
    while room.takes(app_id, run):
        room.add(app_id, run)
        marks[f"{len(marks):0128}"] = replace(
            mark(used_ms=big),
            run=run,
            uuid="00000000-0000-0000-0000-000000000000",
            version=2**53 - 1,
            table_version=big,
            era=big,
            offset=big,
            life=big,
        )
    plain = encode_metadata(START, {})
    encoded = encode_metadata(START, marks).items() - plain.items()
    size = sum(len(key.encode()) + len(value.encode()) for key, value in encoded)
    assert size <= room.bytes <= most * 1024
    assert len(marks) == most or size > most * 1024 / 12


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_keys_that_are_nested_too_deeply_are_unreadable(text: str) -> None:
    with pytest.raises(CorruptTable):
        decode_position({POSITION_KEY: text})


A, B = Pause(reason="a", since_ms=1), Pause(reason="b", since_ms=2)


def ours(pause: Pause | None) -> SaysOfPause:
    return SaysOfPause(ours=True, has_keys=True, pause=pause)


def copied(pause: Pause | None) -> SaysOfPause:
    return SaysOfPause(ours=False, has_keys=True, pause=pause)


DROPPED = SaysOfPause(ours=False, has_keys=False, pause=None)


@pytest.mark.parametrize(
    ("newest_first", "pause"),
    [
        ([], None),
        ([DROPPED], None),
        ([None], None),
        ([ours(A), ours(B)], A),
        ([ours(None), ours(B)], None),
        ([DROPPED, copied(None), ours(A)], A),  # whatever other writers do
        ([copied(A), ours(None)], None),  # a Restore
        ([DROPPED, copied(A), copied(B)], A),  # none of the queue is left
        ([copied(B), None, ours(A)], B),  # the unreadable one may be of the queue, and was copied
        ([copied(None), None, ours(A)], None),
        ([DROPPED, None, ours(A)], A),
        ([None, copied(B), ours(A)], A),
        ([copied(B), None, None, ours(A)], B),
        ([None, ours(A), copied(B)], A),
    ],
)
def test_the_newest_version_of_the_queue_decides_about_the_pause(
    newest_first: list[SaysOfPause | None], pause: Pause | None
) -> None:
    assert pause_of(newest_first) == pause
