"""The audit accepts what is right, finds each thing that is wrong, and does not guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from committerd.audit.audit import OUTCOME_CLOCK_MS, Audit, AuditReport
from committerd.audit.history import AuditedHistory
from committerd.queue.port import Record
from committerd.queue.position import LostHistory
from committerd_common.messages import Member, Outcome, Refusal
from committerd_common.messages import Status as StatusNumber
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


def test_a_refusal_that_was_published_before_there_was_a_table_is_told_apart() -> None:
    """No version can confirm it until a version passes its record; then that version must agree with it."""
    early = refused(3, before_table=True)
    report = audited(outcomes=[*OUTCOMES, early])
    assert report.findings == []
    assert report.unchecked == {"refusals before there was a table": 1}
    versions = [*VERSIONS, queue_version(5, position(4), refusal(3))]
    assert audited(versions, [*OUTCOMES, early], acknowledged=4).unchecked == {}
    versions = [*VERSIONS, queue_version(5, position(4), member(3))]
    assert codes(audited(versions, [*OUTCOMES, early], acknowledged=4)) == ["outcome_false"]


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
    assert "the record at that offset holds transaction none" in report.findings[0].message


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


# What a restored table has lost

LOST = LostHistory(kept=2, latest=2, start=1, end=5)
GONE = refusal(2, StatusNumber.RETRYABLE, reason="read_version_lost")


def restored(
    *entries: Member | Refusal, told: Sequence[Outcome], next_offset: int = 5, records: Sequence[Record] = RECORDS
) -> AuditReport:
    """The table was put back to version 2, and the position rewound to offset 1; then the entries were settled."""
    versions = [
        foreign_version(1),
        queue_version(2, position(1), member(0)),
        queue_version(3, replace(position(1, era=1), lost=LOST)),
        queue_version(4, replace(position(next_offset, era=1), lost=LOST), *entries),
    ]
    return audited(versions, [committed(0, 2), committed(1, 3), *told], records, acknowledged=None)


def test_what_was_committed_again_or_is_in_the_table_already_is_not_lost() -> None:
    for second in (member(2), refusal(2, StatusNumber.DUPLICATE, reason="app_version_seen")):
        assert codes(restored(member(1), second, member(3), member(4), told=[committed(2, 4)])) == []
    # By a replay, which is another record.
    records = [*RECORDS[:3], record(3, 2), RECORDS[4]]
    assert codes(restored(member(1), GONE, member(3, 2), member(4), told=[committed(2, 4)], records=records)) == []


def test_a_transaction_that_did_not_come_back_is_named_once_with_its_reason_and_its_producer() -> None:
    told = [committed(2, 4, operation="delete", producer="p")] * 2
    # Those of this era confirm the table.
    told += [refused(2, status=StatusNumber.RETRYABLE, reason="read_version_lost", era=1)] * 2
    (finding,) = restored(member(1), GONE, member(3), member(4), told=told).findings
    assert (finding.code, finding.offset) == ("not_committed_again", 2)
    assert finding.message == (
        f"transaction {uuid_of(2)} is not in the table: RETRYABLE read_version_lost in version 4 (delete, lost with "
        "version 4, of p)"
    )
    (finding,) = restored(member(1), GONE, member(3), member(4), told=[committed(2, 4, operation="delete")]).findings
    assert finding.message.endswith("(delete, lost with version 4)")


def test_what_an_operator_has_passed_over_is_lost_too() -> None:
    """Its record had expired, and the position was set to behind it."""
    versions = [
        foreign_version(1),
        queue_version(2, position(1), member(0)),
        queue_version(3, replace(position(3, era=1), lost=LOST)),
    ]
    report = audited(versions, [committed(0, 2), committed(1, 3), committed(2, 4)], acknowledged=None)
    assert codes(report) == ["not_committed_again"] * 2
    assert "the position was set to an offset behind its record" in report.findings[0].message


@pytest.mark.parametrize(
    "told",
    [
        committed(2, 4, operation="rewrite"),
        committed(2, 4, operation="reserve_fragments"),
        committed(2, 2),
        committed(2, 4, topic_id=OTHER.topic_id),
        refused(2),
    ],
    ids=["no rows", "ids alone", "a version that was kept", "another topic", "refused then too"],
)
def test_what_brought_no_rows_or_was_not_lost_is_no_finding(told: Outcome) -> None:
    assert codes(restored(member(1), GONE, member(3), member(4), told=[told])) == []


def test_what_waits_or_can_not_be_known_is_no_finding() -> None:
    assert codes(restored(member(1), told=[committed(2, 4)], next_offset=2)) == []
    # The version that settled it was cleaned up.
    versions = [foreign_version(3), queue_version(5, replace(position(5, era=1), lost=LOST))]
    assert "not_committed_again" not in codes(audited(versions, [committed(2, 4)], acknowledged=None))


def test_the_number_of_a_lost_transaction_is_not_that_of_an_outcome() -> None:
    """Its version was not read, and an outcome of the present era is compared with others of its record alone."""
    versions = [
        foreign_version(1),
        queue_version(2, position(1), member(0)),
        queue_version(3, replace(position(3, era=1), lost=LOST)),
    ]
    told = [committed(2, 4), refused(2, era=1, version=0), refused(2, era=1, version=0)]
    assert codes(audited(versions, told, acknowledged=None)) == ["not_committed_again"]
