"""The heads that follow a head: versions of the queue, of other writers, and versions that are only formed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from committerd.committer.head import Head, StartAgain
from committerd.lance.conflicts.grid import Unreadable
from committerd.lance.format.manifest_file import ManifestFile
from committerd.queue.ledger import Ledger
from committerd.queue.outcomes import Settled
from committerd.queue.position import AppMark, Pause, Position
from committerd.queue.race import VersionSummary
from committerd.table.versions import Committed, History, Table
from tests.simulation.store import Bucket, FakeStore

START = Position(cluster_id="c", topic="t", topic_id="i", next_offset=5, last_offset=4, last_sha256="x")
MANIFEST = ManifestFile.__new__(ManifestFile)
"""Never read."""
MARK = AppMark(run="r", version=1, uuid="u", table_version=2, used_ms=0)


def head(**changes: object) -> Head:
    """Version 3, which is the queue's."""
    made = Head(
        version=3,
        manifest=None,
        history=History(Table(FakeStore(Bucket()))),
        ledger=Ledger(),
        position=START,
        marks={"a": MARK},
        is_carried=True,
        carried=START,
        carried_marks={"a": MARK},
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # test shorthand


def found(
    version: int, position: Position | None, marks: Mapping[str, AppMark] | None = None, *, ours: bool = True
) -> VersionSummary:
    settled = Settled(version=version, uuid=f"u{version}", operation="append", ours=ours)
    return VersionSummary(settled=settled, position=position, marks=marks or {})


def then(before: Head, *versions: VersionSummary) -> Head:
    return before.then(versions, MANIFEST)


def test_the_newest_version_of_ours_says_whether_the_queue_is_paused() -> None:
    pause = Pause(reason="a backup", since_ms=1)
    paused = then(head(), replace(found(4, START, {"a": MARK}), pause=pause))
    assert (paused.pause, paused.lacks_keys()) == (pause, False)
    dropped = then(paused, found(5, START, {"a": MARK}, ours=False))
    assert (dropped.pause, dropped.lacks_keys()) == (pause, True)
    resumed = then(dropped, found(6, START, {"a": MARK}))
    assert (resumed.pause, resumed.lacks_keys()) == (None, False)
    brought_back = then(resumed, replace(found(7, START, {"a": MARK}, ours=False), pause=pause))
    assert (brought_back.pause, brought_back.lacks_keys()) == (None, True)


def test_a_version_of_ours_raises_the_position_and_says_which_marks_are_left() -> None:
    before = head()
    after = then(before, found(4, replace(START, next_offset=9)))
    assert (after.version, after.position.next_offset, after.marks, after.manifest) == (4, 9, {}, MANIFEST)
    assert not after.lacks_keys()
    assert not after.ledger.rules_out("u4", 0)
    assert (before.version, before.position, before.marks) == (3, START, {"a": MARK})
    assert before.ledger.rules_out("u4", 0)


@pytest.mark.parametrize("position", [None, replace(START, next_offset=2), replace(START, next_offset=99)])
def test_a_foreign_version_moves_neither_position_nor_marks(position: Position | None) -> None:
    after = then(head(), found(4, position, ours=False))
    assert (after.version, after.position, after.marks) == (4, START, {"a": MARK})
    assert after.lacks_keys()


def test_a_dropped_mark_is_put_back() -> None:
    assert head(carried_marks={}).lacks_keys()
    assert not head().lacks_keys()
    assert not head(is_carried=False, carried=None).lacks_keys()


def test_a_position_set_by_hand_makes_it_start_again() -> None:
    with pytest.raises(StartAgain, match="by hand"):
        then(head(), found(4, replace(START, era=1)))


def test_nothing_is_acknowledged_before_a_version_carries_a_position() -> None:
    before = head(is_carried=False, carried=None)
    assert before.acknowledgeable() is None
    after = then(before, found(4, replace(START, next_offset=6)))
    assert after.acknowledgeable() == (replace(START, next_offset=6), 4)


def test_a_formed_version_is_in_the_history_of_what_follows_until_it_is_created() -> None:
    before = head()
    formed = Committed(version=4, uuid="u4", footprint=Unreadable.NO_TRANSACTION, bytes=600)
    after = before.then([found(4, START)], MANIFEST, formed=formed)
    assert (before.history.ahead, after.history.ahead) == ((), (formed,))
    assert after.created().history.ahead == ()
    assert replace(after.created(), history=after.history) == after


def test_two_heads_that_follow_one_are_independent() -> None:
    before = head()
    one, other = then(before, found(4, START)), then(before, found(5, START))
    assert [one.ledger.rules_out(uuid, 0) for uuid in ("u4", "u5")] == [False, True]
    assert [other.ledger.rules_out(uuid, 0) for uuid in ("u4", "u5")] == [True, False]
