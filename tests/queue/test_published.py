"""Kafka's knowledge about earlier outcomes: the metadata of the group's offset, and the end of the outcomes topic."""

from __future__ import annotations

import pytest

from committerd.queue.outcomes import Status, status_of
from committerd.queue.port import Acknowledged
from committerd.queue.position import Position
from committerd.queue.published import acknowledgement, decode_outcomes, era_of
from committerd_common.messages import INVALID, Member, Outcome, Refusal


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


def test_the_status_of_a_settled_record() -> None:
    assert status_of(Member(uuid="u")) is Status.COMMITTED
    assert status_of(Refusal(uuid="u", status=INVALID)) is Status.INVALID
    with pytest.raises(ValueError, match="99"):
        Status.of_number(99)
