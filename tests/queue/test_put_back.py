"""Records that were read at versions which a table has lost since: which ones they are, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from committerd.queue.outcomes import Status
from committerd.queue.port import TopicIdentity
from committerd.queue.position import LostHistory, Position, start_of
from committerd.queue.put_back import lost_history, lost_refusal, may_be_lost, on_the_latest
from committerd_common.messages import Transaction
from committerd_common.request import Envelope, Request

LOST = LostHistory(kept=3, latest=5, start=10, end=20)
POSITION = replace(start_of(TopicIdentity(cluster_id="c", topic="t.staged", topic_id="i"), 10), lost=LOST)
APPEND = Transaction(uuid="u", append=Transaction.Append())


def request(offset: int, read_version: int, transaction: Transaction = APPEND, *, replay_of: str = "") -> Request:
    made = Transaction()
    made.CopyFrom(transaction)
    made.read_version = read_version
    return Request(offset=offset, envelope=Envelope(replay_of=replay_of or None), transaction=made, size=1)


@pytest.mark.parametrize(
    ("asked", "is_lost"),
    [
        (request(10, 4), True),
        (request(19, 4), True),
        (request(9, 4), False),
        (request(20, 4), False),
        (request(10, 3), False),
        (request(10, 0), False),
        (request(10, 4, Transaction(clone=Transaction.Clone())), False),
        (request(40, 4, replay_of="t.staged:10"), True),
        (request(40, 4, replay_of="t.staged:20"), False),
        (request(40, 4, replay_of="another.staged:10"), False),
        (request(40, 4, replay_of="t.staged:"), False),
        (request(40, 4, replay_of="t.staged:ten"), False),
        (request(40, 4, replay_of="t.staged:" + "1" * 5000), False),
        (request(10, 4, replay_of="nonsense"), True),
    ],
)
def test_records_of_before_the_decision_that_name_a_later_version_than_was_kept(asked: Request, is_lost: bool) -> None:
    assert lost_history(asked, POSITION) == (LOST if is_lost else None)


def test_a_table_that_was_not_put_back_has_lost_nothing() -> None:
    untouched: Position = replace(POSITION, lost=None)
    assert lost_history(request(10, 10**6), untouched) is None


def test_an_append_is_judged_on_the_latest_version_and_everything_else_is_to_be_done_again() -> None:
    staged = request(10, 7).transaction
    assert on_the_latest(staged) == APPEND
    assert staged.read_version == 7
    asked = request(10, 7, Transaction(delete=Transaction.Delete()))
    refused = lost_refusal(asked)
    assert (refused.status, refused.reason) == (Status.RETRYABLE, "read_version_lost")
    assert refused.message.startswith("this delete was read at version 7")
    assert len(refused.message) <= 300


def test_work_that_was_begun_before_and_staged_later_may_have_been_read_at_a_lost_version_too() -> None:
    assert may_be_lost(request(40, 4), POSITION)
    assert not may_be_lost(request(40, 3), POSITION)
    assert not may_be_lost(request(40, 4, Transaction(clone=Transaction.Clone())), POSITION)
    assert not may_be_lost(request(40, 4), replace(POSITION, lost=None))
