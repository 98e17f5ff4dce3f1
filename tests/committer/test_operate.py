"""`position adopt` and `rewind`: the records that an operator's position passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from committerd.committer.head import StartAgain
from committerd.committer.loading import Loaded
from committerd.committer.older_history import SettledVersions
from committerd.committer.operate import Situation, adopted, undecided_below
from committerd.committer.starting import require_same_log
from committerd.errors import RefusedToRun, SettingsError
from committerd.queue.ledger import Ledger
from committerd.queue.port import Queue, Record, TopicIdentity
from committerd.queue.position import Position, start_of
from committerd.queue.start import QueueFacts
from committerd.stores.local import LocalStore
from committerd.table.versions import Table
from committerd_common.messages import Outcome

TOPIC = TopicIdentity(cluster_id="c", topic="events.staged", topic_id="i")
FACTS = QueueFacts(identity=TOPIC, log_start=10, log_end=100, group_offset=50, group_era=0)


def outcomes(*offsets: int, era: int = 0) -> list[Outcome]:
    return [Outcome(offset=offset, era=era, topic_id=TOPIC.topic_id) for offset in offsets]


def situation(code: str, facts: QueueFacts, carried: Position | None = None, unchanged: int = 0) -> Situation:
    loaded = Loaded(
        table=Table(LocalStore(Path("nowhere"))),
        read_at=0.0,
        version=1,
        ledger=Ledger.empty(),
        position=carried,
        marks={},
        carried_marks={},
        settled_versions=SettledVersions(),
    )
    refusal = RefusedToRun("refused", code=code) if code else None
    return Situation(loaded=loaded, facts=facts, refusal=refusal, unchanged_below=unchanged)


def proposed(code: str, facts: QueueFacts, carried: Position | None = None) -> tuple[int, tuple[int, ...], int]:
    position = adopted(situation(code, facts, carried), None)
    return position.next_offset, position.settled, position.era


def test_a_record_that_was_settled_ahead_does_not_pass_over_those_before_it() -> None:
    facts = replace(FACTS, group_offset=50, outcomes=outcomes(48, 49, 50, 84))
    assert proposed("keys_missing", facts) == (51, (84,), 1)


def test_outcomes_tell_what_is_answered_where_all_are_read() -> None:
    facts = replace(FACTS, group_offset=None, group_era=None, outcomes=outcomes(10, 11, 40))
    assert proposed("keys_missing", facts) == (12, (40,), 1)


def test_nothing_is_proposed_where_too_little_is_known() -> None:
    facts = replace(FACTS, group_offset=None, group_era=None, outcomes=outcomes(80), outcomes_are_all=False)
    found = situation("keys_missing", facts)
    with pytest.raises(SettingsError, match="--offset"):
        adopted(found, None)
    assert undecided_below(found, 80) is None


def test_what_the_table_passes_is_answered() -> None:
    carried = replace(start_of(TOPIC, 60), settled=(62,))
    facts = replace(FACTS, group_offset=50, outcomes=outcomes(60, 64))
    assert proposed("position_went_back", facts, carried) == (61, (62, 64), 1)


def test_answers_of_an_earlier_era_prove_nothing() -> None:
    carried = replace(start_of(TOPIC, 20), era=1)
    facts = replace(FACTS, group_offset=50, outcomes=[*outcomes(20, era=1), *outcomes(48, 49)])
    assert proposed("position_went_back", facts, carried) == (21, (), 2)


def test_what_was_settled_ahead_stays_settled_when_the_log_has_lost_records() -> None:
    carried = replace(start_of(TOPIC, 5), settled=(10, 30))
    facts = replace(FACTS, group_offset=5)
    assert proposed("position_below_log_start", facts, carried) == (11, (30,), 1)


@pytest.mark.parametrize("code", ["topic_id", "log_rewritten"])
def test_another_log_is_taken_on_from_its_start(code: str) -> None:
    found = situation(code, replace(FACTS, outcomes=outcomes(10)), start_of(TOPIC, 60))
    assert adopted(found, None) == replace(start_of(TOPIC, 10), era=1)
    assert undecided_below(found, 25) == 15


@pytest.mark.parametrize("code", ["position_beyond_end", "log_rewritten"])
@pytest.mark.parametrize(
    ("unchanged", "next_offset"),
    [(0, 10), (60, 60), (105, 100)],
    ids=["nothing is proven", "a part is proven", "all is proven"],
)
def test_a_log_that_lost_its_end_is_taken_on_where_it_is_proven_unchanged(
    code: str, unchanged: int, next_offset: int
) -> None:
    carried = replace(start_of(TOPIC, 120), settled=(130,))
    found = situation(code, replace(FACTS, outcomes=outcomes(60, 84)), carried, unchanged)
    assert adopted(found, None) == replace(start_of(TOPIC, next_offset), era=1)
    assert undecided_below(found, 100) == 100 - next_offset


SETTLED = replace(start_of(TOPIC, 60), last_offset=59, last_sha256="00" * 32)


class RewrittenLog:
    """The part of a queue that is read here: its log has another record than the table settled."""

    def __init__(self, identity: TopicIdentity) -> None:
        self._identity = identity

    async def identity(self) -> TopicIdentity:
        return self._identity

    async def read(self, start: int, end: int) -> list[Record]:
        return [Record(offset=offset, value=b"another record") for offset in range(start, end)]


@pytest.mark.parametrize(
    ("identity", "error"),
    [(TOPIC, RefusedToRun), (replace(TOPIC, topic_id="made again"), StartAgain)],
    ids=["the same topic", "a topic that was recreated"],
)
async def test_a_log_is_called_rewritten_only_if_it_is_still_the_same_topic(
    identity: TopicIdentity, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await require_same_log(cast(Queue, RewrittenLog(identity)), SETTLED, FACTS)


async def test_a_log_that_no_longer_has_the_record_before_the_position_is_not_read() -> None:
    await require_same_log(cast(Queue, RewrittenLog(TOPIC)), SETTLED, replace(FACTS, log_start=60))


def test_an_operator_who_asks_for_more_is_told_how_many_records_that_skips() -> None:
    found = situation("keys_missing", replace(FACTS, outcomes=outcomes(50, 84)))
    assert adopted(found, 90) == replace(start_of(TOPIC, 90), era=1)
    assert undecided_below(found, 90) == 90 - 51 - 1
    assert undecided_below(found, 51) == 0
    assert undecided_below(found, 20) == 0


@pytest.mark.parametrize("offset", [9, 101])
def test_an_offset_outside_the_log_is_refused(offset: int) -> None:
    with pytest.raises(SettingsError, match="outside the log"):
        adopted(situation("keys_missing", FACTS), offset)


def test_without_a_refusal_the_offset_must_be_said() -> None:
    with pytest.raises(SettingsError, match="--offset"):
        adopted(situation("", FACTS), None)
