"""The audit accepts what is right, finds each thing that is wrong, and does not guess."""

from __future__ import annotations

import pytest

from committerd.audit.audit import OUTCOME_CLOCK_MS, Audit
from committerd.audit.history import AuditedHistory
from committerd.queue.port import Record
from committerd_common.messages import Outcome
from tests.audit.samples import (
    BOUNDS,
    NOW_MS,
    OTHER,
    OUTCOMES,
    RECORDS,
    VERSIONS,
    audited,
    codes,
    committed,
    foreign_version,
    member,
    position,
    queue_version,
    record,
    refusal,
    refused,
    uuid_of,
)

# What is right


def test_what_is_right_has_no_findings_and_is_counted() -> None:
    report = audited()
    assert report.findings == []
    assert report.unchecked == {}
    assert report.counts == {
        "versions": 4,
        "versions of the queue": 2,
        "transactions committed": 2,
        "transactions refused": 1,
        "outcomes": 4,
        "staged records": 5,
        "records passed": 3,
        "records with an outcome in a version": 3,
        "records pending": 2,
    }


def test_a_table_that_no_queue_has_touched_has_all_records_pending() -> None:
    report = audited([foreign_version(1)], [], acknowledged=None)
    assert report.findings == []
    assert report.counts["records pending"] == 5


def test_answers_that_are_on_their_way_are_no_finding() -> None:
    for bounds in ({"acknowledged": 1}, {"acknowledged": None}):
        report = audited(outcomes=OUTCOMES[:1], **bounds)
        assert report.findings == []
        assert report.counts["records whose outcome is not published yet"] == 2


def test_offsets_without_a_record_are_kafkas_own() -> None:
    versions = [foreign_version(1), queue_version(2, position(3), member(0), member(2))]
    outcomes = [committed(0, 2), committed(2, 2)]
    records = [record(0), record(2)]
    assert codes(audited(versions, outcomes, records)) == []


def test_a_record_that_went_ahead_is_answered_once() -> None:
    ahead = queue_version(2, position(0, settled=(2,)), member(2))
    rest = queue_version(3, position(3), member(0), member(1))
    outcomes = [committed(2, 2), committed(0, 3), committed(1, 3)]
    assert codes(audited([foreign_version(1), ahead, rest], outcomes)) == []


def test_a_foreign_restore_may_show_an_older_position() -> None:
    versions = [*VERSIONS, foreign_version(5, position(1)), foreign_version(6), queue_version(7, position(3))]
    assert codes(audited(versions)) == []


def test_a_transaction_that_lies_beside_the_table_is_not_compared() -> None:
    claim = Record(offset=1, value=b"", headers=(("transaction-file", b"x.txn"),))
    report = audited(records=[RECORDS[0], claim, *RECORDS[2:]])
    assert report.findings == []
    assert report.unchecked == {"uuids of transactions that are in claim check files": 1}


# What is wrong with the outcomes


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (committed(1, 2), "outcome_false"),
        (committed(2, 4), "outcome_false"),
        (refused(1), "outcome_false"),
        (refused(2, reason="other"), "outcome_false"),
        (committed(1, 4, uuid=uuid_of(9)), "outcome_false"),
        (committed(4, 5), "outcome_beyond_position"),
        (refused(3), "outcome_beyond_position"),
    ],
)
def test_an_outcome_that_the_table_contradicts_is_found(outcome: Outcome, code: str) -> None:
    assert codes(audited(outcomes=[*OUTCOMES, outcome])) == [code]


def test_an_outcome_of_a_table_without_a_position_is_found() -> None:
    assert codes(audited([foreign_version(1)], [committed(0, 2)])) == ["outcome_beyond_position"]


def test_a_record_that_was_acknowledged_and_not_answered_is_found() -> None:
    assert codes(audited(outcomes=OUTCOMES[:2])) == ["record_without_outcome"]


def test_outcomes_that_have_expired_are_not_missed() -> None:
    early = audited(outcomes=OUTCOMES[1:], outcomes_since_ms=NOW_MS - OUTCOME_CLOCK_MS + 1)
    assert early.findings == []
    assert early.unchecked == {"records whose outcome has expired": 1}
    late = audited(outcomes=OUTCOMES[1:], outcomes_since_ms=NOW_MS - OUTCOME_CLOCK_MS)
    assert codes(late) == ["record_without_outcome"]


def test_what_is_no_outcome_is_found() -> None:
    audit = Audit(BOUNDS, AuditedHistory())
    audit.undecodable_outcome(3, 7)
    (found,) = audit.report().findings
    assert (found.code, "offset 7 of partition 3" in found.message) == ("outcome_undecodable", True)


# What is wrong with the topic


def test_a_passed_record_that_no_version_names_is_found() -> None:
    versions = [*VERSIONS, queue_version(5, position(5), member(4))]
    assert codes(audited(versions)) == ["record_without_answer"]


def test_another_record_than_the_one_that_was_settled_is_found() -> None:
    assert codes(audited(records=[RECORDS[0], record(1, 50), *RECORDS[2:]])) == ["wrong_record"]
    garbage = Record(offset=1, value=b"\xff")
    report = audited(records=[RECORDS[0], garbage, *RECORDS[2:]])
    assert "the record there is of none" in report.findings[0].message


def test_a_refusal_without_a_uuid_fits_any_garbage() -> None:
    versions = [*VERSIONS[:3], queue_version(4, position(3), member(1), refusal(2, uuid=""))]
    outcomes = [*OUTCOMES[:2], refused(2, uuid="")]
    garbage = Record(offset=2, value=b"\xff")
    report = audited(versions, outcomes, [*RECORDS[:2], garbage, *RECORDS[3:]])
    assert codes(report) == ["log_rewritten"]


def test_a_record_that_vanished_is_found() -> None:
    assert codes(audited(records=[RECORDS[0], *RECORDS[2:]])) == ["record_missing"]
    assert codes(audited(records=RECORDS[:2])) == ["record_missing"]


def test_a_topic_that_ends_or_starts_elsewhere_is_found() -> None:
    beyond = audited(records=RECORDS[:2], log_end=2)
    assert codes(beyond) == ["position_beyond_end"]
    lost = audited(records=RECORDS[4:], log_start=4)
    assert codes(lost) == ["records_lost_unread"]
    assert "offsets 3 to 3" in lost.findings[0].message
    assert lost.unchecked == {"records that have expired, and which versions name": 3}


def test_another_topic_than_the_positions_is_found_once() -> None:
    report = audited(outcomes=[], identity=OTHER)
    assert codes(report) == ["topic_id"]
    assert report.unchecked == {"records of another topic than the position's": 5}
    old = audited(outcomes=[committed(1, 2)], identity=OTHER)
    assert codes(old) == ["outcome_false", "topic_id"]
