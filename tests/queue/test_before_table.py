"""Refusals that are published while there is no table: which, how many, and that Start finds them again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from committerd.queue.before_table import (
    REASONS,
    REFUSALS_MAX,
    may_be_published,
    outcome_before_table,
    refused_before_table,
)
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.queue.port import TopicIdentity
from committerd.queue.position import start_of
from committerd.queue.start import OUTCOMES_TAIL, QueueFacts, starting_position
from committerd.reasons import INVALID_REASONS, UNSUPPORTED_REASONS
from committerd_common.messages import INVALID, Refusal

IDENTITY = TopicIdentity(cluster_id="c", topic="t.staged", topic_id="id")
BEGINNING = start_of(IDENTITY, 0)
REFUSAL = Refusal(
    offset=3,
    uuid="u",
    status=INVALID,
    reason="schema",
    message="too deep",
    read_version=0,
    operation="overwrite",
    producer="p",
)


def _refused(reason: str) -> Refused:
    return Refused(status=Status.INVALID, reason=reason, message="m")


def test_only_what_follows_from_the_record_alone_is_answered() -> None:
    assert set(INVALID_REASONS + UNSUPPORTED_REASONS) >= REASONS
    assert may_be_published(_refused("wrong_dataset"), known={})
    for reason in ("missing_file", "claim_missing", "internal_error", "budget_exceeded", "table_exists"):
        assert not may_be_published(_refused(reason), known={})


def test_start_sees_all_that_were_answered() -> None:
    """The end of each partition of the outcomes topic has all of them, even if they are in one partition."""
    assert REFUSALS_MAX <= OUTCOMES_TAIL
    assert not may_be_published(_refused("schema"), known=dict.fromkeys(range(REFUSALS_MAX), REFUSAL))


def test_an_answer_is_found_again_as_it_was() -> None:
    outcome = outcome_before_table(REFUSAL, BEGINNING)
    assert outcome.before_table
    assert refused_before_table([outcome], BEGINNING) == {3: REFUSAL}


@pytest.mark.parametrize("change", ["topic_id", "era", "passed", "in a version"])
def test_an_answer_of_another_topic_or_era_or_that_a_version_holds_does_not_count(change: str) -> None:
    outcome, position = outcome_before_table(REFUSAL, BEGINNING), BEGINNING
    match change:
        case "topic_id":
            outcome.topic_id = "other"
        case "era":
            position = replace(position, era=1)
        case "passed":
            position = replace(position, next_offset=4)
        case _:
            outcome.before_table = False
    assert refused_before_table([outcome], position) == {}


def test_a_committer_starts_on_a_table_without_keys_although_records_were_refused_before_it() -> None:
    outcome = outcome_before_table(REFUSAL, BEGINNING)
    facts = QueueFacts(identity=IDENTITY, log_start=0, log_end=9, group=None, outcomes=[outcome])
    assert starting_position(None, facts, table_exists=True) == BEGINNING
    assert starting_position(BEGINNING, facts, table_exists=True) == BEGINNING
