"""Whether a committer may run on this table and topic: every refusal, and odd states in which it may."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from committerd.errors import RefusedToRun
from committerd.queue.offsets import Offsets
from committerd.queue.port import Acknowledged, Record, TopicIdentity, record_sha256
from committerd.queue.position import Position, start_of
from committerd.queue.start import (
    QueueFacts,
    acknowledgement,
    decode_outcomes,
    era_of,
    owed_from,
    refuse_other_topic,
    refuse_rewritten_log,
    starting_position,
)
from committerd_common.messages import Outcome


def acknowledged(offset: int, *, era: int = 0) -> Acknowledged:
    return Acknowledged(offset=offset, metadata=json.dumps({"era": era}))


TOPIC = TopicIdentity(cluster_id="c", topic="events.staged", topic_id="i")
FACTS = QueueFacts(identity=TOPIC, log_start=10, log_end=100, group=acknowledged(50, era=0))
AT_50 = replace(start_of(TOPIC, 50), last_offset=49, last_sha256="s")


def answered(offset: int, *, era: int = 0, topic_id: str = "i") -> Outcome:
    return Outcome(offset=offset, era=era, topic_id=topic_id)


def refusal(position: Position | None, facts: QueueFacts, *, table_exists: bool = True) -> RefusedToRun:
    with pytest.raises(RefusedToRun) as caught:
        starting_position(position, facts, table_exists=table_exists)
    return caught.value


def test_a_table_and_a_topic_that_agree_go_on_at_the_position() -> None:
    facts = replace(FACTS, outcomes=[answered(49), answered(70, topic_id="earlier topic")])
    assert starting_position(AT_50, facts, table_exists=True) == AT_50


def test_a_new_topic_is_taken_on_from_its_start() -> None:
    facts = replace(FACTS, group=None)
    assert starting_position(None, facts, table_exists=True) == start_of(TOPIC, 10)
    assert starting_position(None, facts, table_exists=False) == start_of(TOPIC, 10)


@pytest.mark.parametrize(
    ("position", "facts", "code"),
    [
        (AT_50, replace(FACTS, identity=replace(TOPIC, topic_id="new")), "topic_id"),
        (AT_50, replace(FACTS, identity=replace(TOPIC, cluster_id="new")), "topic_id"),
        (AT_50, replace(FACTS, log_end=49), "position_beyond_end"),
        (AT_50, replace(FACTS, log_start=51), "position_below_log_start"),
        (AT_50, replace(FACTS, group=acknowledged(51)), "position_went_back"),
        (AT_50, replace(FACTS, group=Acknowledged(offset=51)), "position_went_back"),
        (AT_50, replace(FACTS, outcomes=[answered(50)]), "position_went_back"),
        (None, FACTS, "keys_missing"),
        (None, replace(FACTS, group=None, outcomes=[answered(12)]), "keys_missing"),
    ],
)
def test_contradictions_are_refused_and_name_the_way_out(
    position: Position | None, facts: QueueFacts, code: str
) -> None:
    error = refusal(position, facts)
    assert error.code == code
    assert "committerd position adopt" in str(error)


def test_a_table_that_was_deleted_under_a_queue_is_not_silently_replaced() -> None:
    assert refusal(None, FACTS, table_exists=False).code == "table_gone"


def test_what_was_told_in_an_earlier_era_proves_nothing() -> None:
    later = replace(AT_50, era=1)
    facts = replace(FACTS, group=acknowledged(80, era=0), outcomes=[answered(79, era=0)])
    assert starting_position(later, facts, table_exists=True) == later
    assert refusal(later, replace(facts, outcomes=[answered(79, era=1)])).code == "position_went_back"


def test_a_position_covers_answers_that_were_settled_ahead() -> None:
    ahead = replace(AT_50, settled=Offsets.of([70]))
    assert starting_position(ahead, replace(FACTS, outcomes=[answered(70)]), table_exists=True) == ahead


def test_a_rewritten_log_is_noticed_by_the_record_before_the_position() -> None:
    record = Record(offset=49, value=b"v", key=b"k")
    refuse_rewritten_log(replace(AT_50, last_sha256=record_sha256(record)), [record])
    refuse_rewritten_log(AT_50, [])
    refuse_rewritten_log(AT_50, [replace(record, offset=48)])
    with pytest.raises(RefusedToRun, match="position adopt") as caught:
        refuse_rewritten_log(AT_50, [record])
    assert caught.value.code == "log_rewritten"


def test_the_topic_is_checked_before_each_put() -> None:
    refuse_other_topic(AT_50, TOPIC)
    with pytest.raises(RefusedToRun):
        refuse_other_topic(AT_50, replace(TOPIC, topic_id="new"))


def owed(facts: QueueFacts, *, republish_max: int = 5, position: Position = AT_50) -> int:
    known = facts.acknowledged(position.era)
    return owed_from(position, known, republish_max=republish_max, log_start=facts.log_start)


def test_answers_are_owed_from_the_group_offset_on() -> None:
    assert owed(replace(FACTS, group=acknowledged(40))) == 40
    assert owed(replace(FACTS, group=acknowledged(50))) == 50


def test_a_group_offset_of_an_earlier_era_says_nothing() -> None:
    later_era = replace(AT_50, era=1)
    assert owed(replace(FACTS, group=acknowledged(40, era=0)), position=later_era) == 45
    assert owed(replace(FACTS, group=acknowledged(40, era=1)), position=later_era) == 40


def test_without_a_group_offset_a_bounded_number_is_owed() -> None:
    none = replace(FACTS, group=None)
    assert owed(none) == 45
    assert owed(none, republish_max=1000) == 10


def test_the_era_is_read_from_what_was_acknowledged() -> None:
    position = Position(cluster_id="c", topic="t", topic_id="i", next_offset=7, era=3)
    assert era_of(Acknowledged(offset=7, metadata=acknowledgement(position, 12))) == 3


@pytest.mark.parametrize("metadata", ["", "{}", "[]", '{"era": "3"}', '{"era": null}', "[" * 100_000])
def test_metadata_of_others_tells_no_era(metadata: str) -> None:
    assert era_of(Acknowledged(offset=7, metadata=metadata)) is None


def test_a_group_without_an_offset_has_no_era() -> None:
    assert era_of(None) is None


def test_outcomes_that_can_not_be_decoded_are_passed_over() -> None:
    good = Outcome(offset=5, uuid="u")
    assert decode_outcomes([b"\xff", good.SerializeToString()]) == [good]
