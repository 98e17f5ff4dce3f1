"""Which dead letters may be staged again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from committerd.queue.dead_letter import refuse_replay
from committerd.queue.dedupe import Refused
from committerd.queue.ledger import Earlier, names, refusal_in
from committerd.queue.outcomes import Settled, Status
from committerd.queue.position import AppMark
from committerd_common.messages import Member, Outcome, Refusal, Transaction
from committerd_common.messages import Status as StatusNumber
from committerd_common.request import AppUnit, Envelope, Request
from tests.queue.letters import LETTER

_UUID = str(uuid.UUID(int=7))


def _request(**envelope: Any) -> Request:
    return Request(
        offset=-1, envelope=Envelope(replay_of=LETTER.place, **envelope), transaction=Transaction(uuid=_UUID), size=1
    )


def _since(
    *settled: Settled, outcomes: Sequence[Outcome] = (), marks: dict[str, AppMark] | None = None, **waiting: int
) -> dict[str, Any]:
    version = next((one.version for one in settled if names(one, _UUID)), None)
    refusals = [refusal for one in settled if (refusal := refusal_in(one, _UUID)) is not None]
    earlier = Earlier(committed=version, refusal=refusals[0] if refusals else None)
    places = {f"t.staged:{name[1:]}": offset for name, offset in waiting.items()}
    return {"earlier": earlier, "marks": marks or {}, "outcomes": outcomes, "waiting": places, "now_ms": 1000}


def _settled(version: int, **given: Any) -> Settled:
    return Settled(version=version, uuid=f"of version {version}", operation="append", ours=True, **given)


def test_a_letter_that_nothing_has_happened_to_may_be_staged_again() -> None:
    refusal = Refusal(offset=17, uuid=_UUID, status=StatusNumber.INVALID, reason="unknown_fragment")
    told = Outcome(uuid=_UUID, status=StatusNumber.INVALID, topic="t.staged", offset=17)
    cleaned = Outcome(uuid=_UUID, status=StatusNumber.UNDECIDED, topic="t.staged", offset=17)
    since = _since(_settled(3, refusals=[refusal]), outcomes=[told, cleaned], o18=40)
    assert refuse_replay(LETTER, _request(deadline_ms=1001), **since) == ""


def test_what_would_be_refused_again_is_refused_here() -> None:
    again = Refused(status=Status.INVALID, reason="wrong_dataset", message="another table")
    assert "again, as wrong_dataset: another table" in refuse_replay(LETTER, again, **_since())
    assert "only its producer" in refuse_replay(replace(LETTER, cut=True), _request(), **_since())
    assert "1048576 bytes did not fit" in refuse_replay(replace(LETTER, dropped_bytes=1 << 20), _request(), **_since())
    assert "deadline-ms has passed" in refuse_replay(LETTER, _request(deadline_ms=1000), **_since())


def test_a_replay_that_waits_is_not_staged_twice() -> None:
    assert "at offset 40" in refuse_replay(LETTER, _request(), **_since(o17=40))


def test_what_is_in_the_table_is_not_staged_again() -> None:
    alone = Settled(version=4, uuid=_UUID, operation="append", ours=False)
    assert "in the table at version 4" in refuse_replay(LETTER, _request(), **_since(alone))
    member = _settled(5, members=[Member(uuid=_UUID)])
    assert "in the table at version 5" in refuse_replay(LETTER, _request(), **_since(member))


def test_an_application_that_has_come_as_far_keeps_its_work_out() -> None:
    mark = AppMark(run="r", version=3, uuid="u", table_version=9, used_ms=0)
    asked = _request(app=AppUnit(app_id="a", version=3, run="r"))
    assert "has committed version 3" in refuse_replay(LETTER, asked, **_since(marks={"a": mark}))
    later = _request(app=AppUnit(app_id="a", version=4, run="r"))
    assert refuse_replay(LETTER, later, **_since(marks={"a": mark})) == ""


def test_answers_whose_version_is_gone_still_count() -> None:
    for status in (StatusNumber.COMMITTED, StatusNumber.DUPLICATE):
        told = Outcome(uuid=_UUID, status=status, version=6, topic="t.staged", offset=30)
        said = refuse_replay(LETTER, _request(), **_since(outcomes=[told]))
        assert f"{StatusNumber.Name(status)} at version 6, for the record at offset 30" in said
    undecided = Outcome(uuid=_UUID, status=StatusNumber.UNDECIDED, topic="t.staged", offset=30)
    assert "UNDECIDED for the record at offset 30" in refuse_replay(LETTER, _request(), **_since(outcomes=[undecided]))


def test_an_outcome_of_a_record_that_was_judged_again_since_counts_no_more() -> None:
    told = Outcome(uuid=_UUID, status=StatusNumber.COMMITTED, version=6, topic="t.staged", offset=17)
    again = Outcome(uuid=_UUID, status=StatusNumber.INVALID, topic="t.staged", offset=17, era=1)
    assert "COMMITTED at version 6" in refuse_replay(LETTER, _request(), **_since(outcomes=[told]))
    for outcomes in ([told, again], [again, told]):
        assert refuse_replay(LETTER, _request(), **_since(outcomes=outcomes)) == ""
    # Another record of the same transaction was not judged again: it is in the table.
    other = Outcome(uuid=_UUID, status=StatusNumber.DUPLICATE, version=6, topic="t.staged", offset=9)
    assert "for the record at offset 9" in refuse_replay(LETTER, _request(), **_since(outcomes=[other, told, again]))
