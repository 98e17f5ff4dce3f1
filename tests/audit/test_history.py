"""The audit of versions: versions that contradict each other, missing versions, and versions of an operator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from committerd.audit.audit import Audit, AuditReport
from committerd.audit.history import AuditedHistory, AuditedVersion, Findings, audited_version
from committerd.errors import CorruptTable
from committerd.queue.outcomes import encode_settled
from committerd.queue.position import AppMark, encode_metadata
from committerd_common.messages import Manifest, Transaction
from committerd_common.messages import Status as StatusNumber
from tests.audit.samples import (
    BOUNDS,
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

# What is wrong with the versions


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (queue_version(5, None), "position_missing"),
        (queue_version(5, position(2)), "position_went_back"),
        (queue_version(5, position(3, topic=OTHER)), "position_of_another_topic"),
        (queue_version(5, position(3), member(3)), "entry_beyond_position"),
        (queue_version(5, position(3), member(1, 77)), "settled_twice"),
        (queue_version(5, position(4), member(3), refusal(3)), "settled_twice"),
        (queue_version(5, position(4), member(3, 1)), "committed_twice"),
        (foreign_version(5, position(3), uuid=uuid_of(0)), "committed_twice"),
        (queue_version(5, position(3), misplaced=("a.lance",)), "data_misplaced"),
    ],
)
def test_a_version_that_contradicts_the_others_is_found(version: AuditedVersion, code: str) -> None:
    assert code in codes(audited([*VERSIONS, version]))


def test_a_position_that_lost_what_went_ahead_is_found() -> None:
    versions = [
        foreign_version(1),
        queue_version(2, position(0, settled=(2,)), member(2)),
        queue_version(3, position(1), member(0)),
    ]
    assert "position_went_back" in codes(audited(versions))


def test_an_era_that_went_down_is_found() -> None:
    versions = [foreign_version(1), queue_version(2, position(3, era=1)), queue_version(3, position(4), member(3))]
    assert "position_went_back" in codes(audited(versions, []))


def test_a_record_that_only_the_position_has_passed_before_is_settled_twice() -> None:
    versions = [foreign_version(9, position(3)), queue_version(10, position(3), member(1))]
    (found,) = [f for f in audited(versions, []).findings if f.code == "settled_twice"]
    assert "the position had passed" in found.message


def test_a_duplicate_must_be_where_it_is_said_to_be() -> None:
    def report(at: int, number: int) -> AuditReport:
        duplicate = refusal(3, StatusNumber.DUPLICATE, reason="uuid_seen", version=at, uuid=uuid_of(number))
        records = [*RECORDS[:3], record(3, number), RECORDS[4]]
        return audited([*VERSIONS, queue_version(5, position(4), duplicate)], records=records, acknowledged=3)

    assert codes(report(2, 0)) == ["log_rewritten"]  # the samples' positions know records by their own numbers
    assert codes(report(2, 1)) == ["duplicate_false", "log_rewritten"]
    gone = report(40, 0)
    assert codes(gone) == ["log_rewritten"]
    assert gone.unchecked == {"duplicates of versions that were not read": 1}


def test_a_duplicate_of_an_applications_version_has_no_version_to_look_in() -> None:
    duplicate = refusal(3, StatusNumber.DUPLICATE, reason="app_version_seen", version=2)
    assert codes(audited([*VERSIONS, queue_version(5, position(4), duplicate)])) == []


def test_a_version_of_an_application_is_committed_once_in_a_life_of_its_mark() -> None:
    def unit(number: int, offset: int, app_version: int, *, life: int = 0, run: str = "r") -> AuditedVersion:
        mark = AppMark(run=run, version=app_version, uuid="", table_version=number, used_ms=0, life=life)
        brought = member(offset, app_id="a", app_version=app_version, app_run=run)
        return queue_version(number, position(offset + 1), brought, marks={"a": mark})

    first = [foreign_version(1), unit(2, 0, 7)]
    again = audited([*first, unit(3, 1, 7)])
    assert "app_version_twice" in codes(again)
    assert "version 7 of its work in version 2" in again.findings[0].message
    for other in (unit(3, 1, 8), unit(3, 1, 7, life=1), unit(3, 1, 7, run="s")):
        assert "app_version_twice" not in codes(audited([*first, other]))
    unmarked = replace(unit(2, 0, 7), marks={})
    assert "app_version_twice" in codes(audited([foreign_version(1), unmarked, unit(3, 1, 6)]))


def test_a_unit_that_must_follow_another_one_follows_it() -> None:
    def unit(number: int, offset: int, app_version: int, **after: int) -> AuditedVersion:
        mark = AppMark(run="", version=app_version, uuid="", table_version=number, used_ms=0)
        brought = member(offset, app_id="a", app_version=app_version, **after)
        return queue_version(number, position(offset + 1), brought, marks={"a": mark})

    first = [foreign_version(1), unit(2, 0, 150, app_after=100)]  # what was before is not known
    assert "app_version_missing" not in codes(audited([*first, unit(3, 1, 200, app_after=150)]))
    overlapping = audited([*first, unit(3, 1, 200, app_after=100)])
    assert "app_version_missing" in codes(overlapping)
    assert "must follow its version 100, after version 150 of its work in version 2" in overlapping.findings[0].message


def test_a_version_that_can_not_be_read_is_found() -> None:
    history = AuditedHistory()
    history.unreadable(7, "bad magic")
    report = Audit(BOUNDS, history).report()
    assert [(f.code, f.version) for f in report.findings] == [("version_unreadable", 7)]


# What can't be known


def test_versions_that_are_gone_leave_their_records_unchecked() -> None:
    report = audited(VERSIONS[3:])
    assert report.findings == []
    assert report.unchecked == {
        "versions that were not read (cleaned up, or not asked for)": 3,
        "outcomes whose version was not read": 1,
        "records settled by versions that were not read": 1,
    }


def test_a_hole_hides_only_what_it_can_have_settled() -> None:
    later = queue_version(9, position(5), member(4))
    report = audited([*VERSIONS, later])
    assert report.findings == []
    assert report.unchecked["records settled by versions that were not read"] == 1
    without_1 = [*VERSIONS[:2], queue_version(3, position(3), member(2)), later]
    report = audited(without_1, [committed(0, 2), committed(2, 3)], acknowledged=1)
    assert [(f.code, f.offset) for f in report.findings] == [("record_without_answer", 1)]


def test_a_hole_ends_with_the_next_version_of_the_queue() -> None:
    late = queue_version(9, position(3), member(1), refusal(2))
    # A foreign version before it carries no position, or an older one.
    for foreign in (foreign_version(8), foreign_version(8, position(0))):
        report = audited([foreign, late], [], acknowledged=None)
        assert report.findings == []
        assert report.unchecked["records settled by versions that were not read"] == 1


def test_outcomes_must_agree_even_when_their_version_is_gone() -> None:
    one, other = committed(0, 2), committed(0, 3)
    assert codes(audited(VERSIONS[3:], [*OUTCOMES, one])) == []
    assert codes(audited(VERSIONS[3:], [*OUTCOMES, other])) == ["outcomes_differ"]


def test_a_committed_outcome_needs_its_version_where_that_is_known() -> None:
    assert codes(audited(VERSIONS[3:], [committed(0, 4), *OUTCOMES[1:]])) == ["outcome_false"]
    assert codes(audited(VERSIONS[3:], [committed(0, 9), *OUTCOMES[1:]])) == ["outcome_false"]


def test_outcomes_of_another_topic_are_not_compared_with_each_other() -> None:
    elsewhere = [committed(0, 40, topic_id="gone"), committed(0, 41, topic_id="gone")]
    report = audited([*VERSIONS, foreign_version(50, position(3))], [*OUTCOMES, *elsewhere])
    assert report.findings == []
    assert report.unchecked["outcomes whose version was not read"] == 2


# Positions that an operator has set


def test_records_that_were_passed_by_hand_need_no_version() -> None:
    adopted = queue_version(5, position(5, era=1))
    undecided = [refused(o, status=StatusNumber.UNDECIDED, era=1) for o in (3, 4)]
    report = audited([*VERSIONS, adopted], [*OUTCOMES, *undecided], acknowledged=5, acknowledged_era=1)
    assert report.findings == []
    assert report.counts["records that an operator has passed"] == 2


def test_a_table_that_was_made_anew_begins_at_a_position_of_a_later_era() -> None:
    anew = [queue_version(1, position(3, era=1)), queue_version(2, position(5, era=1), member(3), member(4))]
    report = audited(anew, [*OUTCOMES, committed(3, 2, era=1), committed(4, 2, era=1)], acknowledged_era=1)
    assert report.findings == []
    assert report.counts["records that an operator has passed"] == 3
    # Without an operator, nothing but versions passes a record.
    assert "record_without_answer" in codes(audited([queue_version(1, position(3))], [], acknowledged=3))


def test_records_from_a_rewound_position_on_are_judged_again() -> None:
    rewound = queue_version(5, position(1, era=1))
    again = queue_version(6, position(3, era=1), refusal(1), refusal(2))
    second = [refused(1, era=1), refused(2, era=1)]
    report = audited([*VERSIONS, rewound, again], [*OUTCOMES, *second], acknowledged_era=1)
    assert report.findings == []
    assert report.unchecked == {"outcomes of an earlier era that the table does not confirm": 1}
    behind = audited([*VERSIONS, rewound], acknowledged_era=0)
    assert behind.counts["records pending"] == 4
    lost = audited([*VERSIONS, rewound, queue_version(6, position(3, era=1), refusal(2))], acknowledged_era=1)
    assert codes(lost) == ["record_without_answer"]


def test_what_an_earlier_era_acknowledged_proves_nothing() -> None:
    rewound = [
        *VERSIONS,
        queue_version(5, position(1, era=1)),
        queue_version(6, position(3, era=1), refusal(1), refusal(2)),
    ]
    report = audited(rewound, [], acknowledged=3, acknowledged_era=0)
    assert report.findings == []
    assert report.counts["records whose outcome is not published yet"] == 3


def test_an_answer_of_an_earlier_era_counts_below_the_adopted_position() -> None:
    """The uuid is not compared there: the log may have been rewritten before it was adopted."""
    adopted = queue_version(5, position(3, era=1))
    told_again = [committed(0, 2, era=1), committed(1, 4, era=1), refused(2, era=1)]
    records = [RECORDS[0], record(1, 60), *RECORDS[2:]]
    report = audited([*VERSIONS, adopted], told_again, records, acknowledged_era=1)
    assert report.findings == []


def test_an_outcome_of_an_era_whose_versions_are_gone_is_not_held_against_an_earlier_entry() -> None:
    rewound_unseen = foreign_version(9, position(3, era=1))
    report = audited([*VERSIONS, rewound_unseen], [refused(1, era=1), *OUTCOMES], acknowledged_era=1)
    assert report.findings == []
    assert report.unchecked["outcomes whose version was not read"] == 1


def test_findings_are_counted_beyond_those_that_are_kept() -> None:
    findings = Findings()
    for number in range(Findings.KEPT_MAX + 5):
        findings.add("x", str(number))
    assert len(findings.kept) == Findings.KEPT_MAX
    assert findings.by_code["x"] == Findings.KEPT_MAX + 5


# What is read of a version


def test_what_a_version_of_the_queue_says_is_all_taken() -> None:
    mark = AppMark(run="r", version=1, uuid="", table_version=2, used_ms=0)
    transaction = Transaction(
        uuid=uuid_of(0), transaction_properties=encode_settled([member(0)], [], topic_id="present")
    )
    found = audited_version(_version(encode_metadata(position(1), {"a": mark})), transaction, ("lost",))
    assert (found.settled.ours, list(found.settled.members), found.settled.version) == (True, [member(0)], 2)
    assert (found.position, found.marks, found.misplaced) == (position(1), {"a": mark}, ("lost",))
    with pytest.raises(CorruptTable):
        audited_version(_version({"committerd.position": "{"}), transaction)


def test_of_a_foreign_version_its_keys_are_taken_where_they_can_be_read() -> None:
    transaction = Transaction(uuid=uuid_of(0), append=Transaction.Append())
    whole = audited_version(_version(encode_metadata(position(1), {})), transaction)
    assert (whole.settled.ours, whole.settled.uuid, whole.position) == (False, uuid_of(0), position(1))
    assert audited_version(_version({"committerd.position": "{"}), None).position is None


def _version(metadata: dict[str, str]) -> Manifest:
    return Manifest(version=2, table_metadata=metadata)
