"""The writer of the version whose number we wanted: the table of results, row by row."""

from __future__ import annotations

from dataclasses import replace

from committerd.queue.outcomes import Settled
from committerd.queue.port import Record, TopicIdentity
from committerd.queue.position import Pause, advance, start_of
from committerd.queue.race import Race, VersionSummary, race
from committerd_common.messages import INVALID, Member, Refusal

POSITION = advance(
    start_of(TopicIdentity(cluster_id="c", topic="t", topic_id="i"), 0),
    [0, 1],
    [0, 1],
    last=Record(offset=1, value=b""),
)
OURS = VersionSummary(
    settled=Settled(
        version=5,
        uuid="g",
        operation="append",
        ours=True,
        members=[Member(offset=0, uuid="a")],
        refusals=[Refusal(offset=1, uuid="b", status=INVALID)],
    ),
    position=POSITION,
)
FOREIGN = VersionSummary(settled=Settled(version=5, uuid="f", operation="append", ours=False), position=POSITION)


def other(**changes: object) -> VersionSummary:
    return replace(OURS, settled=replace(OURS.settled, **changes))  # type: ignore[arg-type]  # test shorthand


def test_our_own_earlier_try_is_ours() -> None:
    assert race(OURS, [OURS, FOREIGN]) is Race.OURS


def test_a_version_with_other_members_refusals_or_position_is_another_committers() -> None:
    assert race(OURS, [other(members=[Member(offset=0, uuid="x")])]) is Race.OTHER_COMMITTER
    assert race(OURS, [other(refusals=[])]) is Race.OTHER_COMMITTER
    assert race(OURS, [replace(OURS, position=replace(POSITION, next_offset=1))]) is Race.OTHER_COMMITTER


def test_an_operators_pause_is_not_ours_though_it_carries_the_same_position() -> None:
    keys = other(members=[], refusals=[])
    assert race(keys, [replace(keys, pause=Pause(reason="x", since_ms=1))]) is Race.OTHER_COMMITTER


def test_one_version_of_another_committer_anywhere_above_is_enough() -> None:
    assert race(OURS, [FOREIGN, FOREIGN, other(members=[])]) is Race.OTHER_COMMITTER


def test_foreign_versions_alone_let_us_judge_again() -> None:
    assert race(OURS, [FOREIGN, FOREIGN]) is Race.FOREIGN


def test_a_foreign_version_that_carries_our_position_on_is_not_ours() -> None:
    assert race(replace(OURS, settled=replace(OURS.settled, members=[], refusals=[])), [FOREIGN]) is Race.FOREIGN
