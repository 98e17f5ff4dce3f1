"""Has this record been settled before? By uuid, by application version, within the group too."""

from __future__ import annotations

import pytest

from committerd.format.messages import DUPLICATE, INVALID, Member, Refusal
from committerd.format.request import AppUnit
from committerd.rules.answers import Settled, Status
from committerd.rules.ledger import Asked, Ledger, dedupe
from committerd.rules.position import AppMark

MARKS = {"spark": AppMark(run="q1", version=7, uuid="u7", table_version=40, used_ms=0)}


def ledger(*settled: Settled) -> Ledger:
    known = Ledger()
    for one in settled:
        known.add(one)
    return known


def asked(uuid: str = "u", read_version: int = 1, **more: object) -> Asked:
    return Asked(uuid=uuid, read_version=read_version, **more)  # type: ignore[arg-type]  # test shorthand


OURS = Settled(
    version=5,
    uuid="v5",
    operation="append",
    ours=True,
    members=[Member(offset=0, uuid="a"), Member(offset=1, uuid="b")],
    refusals=[
        Refusal(offset=2, uuid="bad", status=INVALID, reason="path_invalid", message="m", conflicting_version=3),
        Refusal(offset=3, uuid="a", status=DUPLICATE, reason="uuid_seen", version=5),
        Refusal(offset=4, status=INVALID, reason="record_empty"),
    ],
)
FOREIGN = Settled(version=6, uuid="f", operation="append", ours=False)


@pytest.mark.parametrize("uuid", ["a", "b", "v5", "f"])
def test_a_uuid_that_any_version_has_is_a_duplicate(uuid: str) -> None:
    answer = dedupe(asked(uuid), ledger(OURS, FOREIGN), {}, version=7)
    assert answer is not None
    assert (answer.status, answer.reason) == (Status.DUPLICATE, "uuid_seen")
    assert answer.version == (6 if uuid == "f" else 5)


def test_only_versions_after_the_read_version_count() -> None:
    assert dedupe(asked("a", read_version=5), ledger(OURS), {}, version=6) is None


def test_a_uuid_twice_in_one_group_is_committed_once() -> None:
    answer = dedupe(asked("x"), ledger(), {}, version=9, members={"x"})
    assert answer is not None
    assert answer.version == 9


def test_a_refused_uuid_gets_the_same_answer_again_unless_it_is_a_replay() -> None:
    answer = dedupe(asked("bad"), ledger(OURS), {}, version=6)
    assert answer is not None
    assert (answer.status, answer.reason, answer.message, answer.conflicting_version) == (
        Status.INVALID,
        "path_invalid",
        "m",
        3,
    )
    assert dedupe(asked("bad", is_replay=True), ledger(OURS), {}, version=6) is None


def test_a_refusal_in_the_same_group_counts_and_a_duplicate_there_does_not() -> None:
    mates = [Refusal(uuid="x", status=DUPLICATE), Refusal(uuid="y", status=INVALID, reason="r")]
    assert dedupe(asked("x"), ledger(), {}, version=2, refusals=mates) is None
    answer = dedupe(asked("y"), ledger(), {}, version=2, refusals=mates)
    assert answer is not None
    assert answer.reason == "r"


@pytest.mark.parametrize(("version", "expected"), [(6, 0), (7, 40)])
def test_an_application_version_at_or_below_the_mark_is_a_duplicate(version: int, expected: int) -> None:
    app = AppUnit(app_id="spark", version=version, run="q1")
    answer = dedupe(asked(app=app), ledger(), MARKS, version=50)
    assert answer is not None
    assert (answer.status, answer.reason, answer.version) == (Status.DUPLICATE, "app_version_seen", expected)


def test_the_next_application_version_is_new() -> None:
    assert dedupe(asked(app=AppUnit(app_id="spark", version=8, run="q1")), ledger(), MARKS, version=50) is None


def test_another_run_of_the_same_application_is_refused_and_told_the_way_out() -> None:
    answer = dedupe(asked(app=AppUnit(app_id="spark", version=0, run="q2")), ledger(), MARKS, version=50)
    assert answer is not None
    assert (answer.status, answer.reason) == (Status.INVALID, "app_id_in_use")
    assert "committerd app release spark" in answer.message


def test_a_released_or_unknown_application_may_start_anew() -> None:
    released = {"spark": AppMark(run="", version=-1, uuid="u7", table_version=40, used_ms=0, life=1)}
    app = AppUnit(app_id="spark", version=0, run="q2")
    assert dedupe(asked(app=app), ledger(), released, version=50) is None
    assert dedupe(asked(app=app), ledger(), {}, version=50) is None


def test_the_uuid_counts_before_the_application() -> None:
    answer = dedupe(asked("a", app=AppUnit(app_id="spark", version=0, run="q2")), ledger(OURS), MARKS, version=50)
    assert answer is not None
    assert answer.reason == "uuid_seen"


def test_a_uuid_committed_twice_by_others_is_found_at_its_last_version() -> None:
    twice = ledger(FOREIGN, Settled(version=3, uuid="f", operation="append", ours=False))
    assert twice.committed_after("f", 3) == 6
    assert twice.refused("f") is None
    twice.add(Settled(version=8, uuid="", operation="", ours=False))
    assert len(twice) == 1


def test_a_ledger_ahead_knows_one_version_more_and_changes_nothing() -> None:
    below = ledger(FOREIGN)
    ahead = below.ahead([OURS])
    assert (ahead.committed_after("f", 1), ahead.committed_after("a", 1)) == (6, 5)
    assert ahead.committed_after("nobody", 1) is None
    assert below.committed_after("a", 1) is None
    assert below.refused("bad") is None
    refusal = ahead.refused("bad")
    assert refusal is not None
    assert refusal.reason == "path_invalid"


def test_an_earlier_refusal_speaks_for_one_ahead_too() -> None:
    earlier = Settled(
        version=4,
        uuid="v4",
        operation="append",
        ours=True,
        refusals=[Refusal(offset=0, uuid="bad", status=INVALID, reason="file_version")],
    )
    refusal = ledger(earlier).ahead([OURS]).refused("bad")
    assert refusal is not None
    assert refusal.reason == "file_version"
