"""A dataset's topics as operators' commands read them: whole, in part, and without membership of the group."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import pytest
from kafka import KafkaProducer

from committerd.commands.maintain import topic
from committerd.commands.maintain.topic import OperatorsTopic
from committerd.errors import QueueUnavailable, RefusedToRun
from committerd.kafka.operator import TopicOperator, open_operator
from committerd.queue.port import Publication
from committerd.settings.kafka import KafkaSettings
from harness.kafka import KafkaBroker, RunningKafka
from tests.kafka.staging import settings_for, stage_records

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: KafkaBroker | RunningKafka) -> KafkaSettings:
    return settings_for(kafka.bootstrap_servers, request_timeout_ms=20_000, delivery_timeout_ms=30_000)


async def offsets(operator: TopicOperator, start: int, end: int) -> list[int]:
    async with aclosing(operator.stream(operator.topics.staged, {0: (start, end)})) as batches:
        return [record.offset async for batch in batches for _, record in batch]


async def test_a_range_is_streamed_whole_and_may_be_left_early(settings: KafkaSettings, dataset: str) -> None:
    async with open_operator(settings, dataset) as operator:
        await operator.survey(create=True)
        stage_records(operator.topics.staged, settings, [b"x"] * 1200, [("name", b"value")])
        assert await operator.bounds(operator.topics.staged) == {0: (0, 1200)}
        assert await offsets(operator, 0, 1200) == list(range(1200))
        assert await offsets(operator, 700, 702) == [700, 701]
        assert await offsets(operator, 5, 5) == []
        async with aclosing(operator.stream(operator.topics.staged, {0: (0, 1200)})) as batches:
            batch = await anext(batches)
        assert 0 < len(batch) < 1200
        ((partition, record), *_) = batch
        assert (partition, record.offset, record.value, record.key) == (0, 0, b"x", b"key")
        assert list(record.headers) == [("name", b"value")]
        # From a time on, and after all that is there.
        assert await operator.since(operator.topics.staged, record.timestamp_ms) == {0: (0, 1200)}
        assert await operator.since(operator.topics.staged, record.timestamp_ms + 3_600_000) == {0: (1200, 1200)}


async def test_records_are_staged_where_it_says(settings: KafkaSettings, dataset: str) -> None:
    async with open_operator(settings, dataset) as operator:
        await operator.survey(create=True)
        publications = [Publication(key=None, value=str(n).encode(), headers=[("n", b"1")]) for n in range(3)]
        assert await operator.stage(publications) == [0, 1, 2]
        assert [record.value for record in await operator.read(1, 3)] == [b"1", b"2"]


async def test_what_is_not_there_is_said(settings: KafkaSettings, dataset: str) -> None:
    async with open_operator(settings, dataset) as operator:
        survey = await operator.survey()
        assert [check.actual for check in survey.checks] == ["missing"] * 3
        with pytest.raises(QueueUnavailable, match=rf"{dataset}\.dead"):
            await operator.bounds(operator.topics.dead)
        with pytest.raises(RefusedToRun):
            await operator.identity()
        group = await operator.group()
        assert (group.state, list(group.members), await operator.acknowledged()) == ("Dead", [], None)


async def test_maintenance_reads_no_more_dead_letters_than_the_newest(
    settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are young, and without what no committer wrote."""
    monkeypatch.setattr(topic, "LETTERS_MAX", 3)
    reasons = [(f"committerd-{name}", b"1") for name in ("status", "reason", "message", "topic")]
    reasons += [(f"committerd-{name}", b"1") for name in ("offset", "timestamp-ms")]
    async with open_operator(settings, dataset) as operator:
        await operator.survey(create=True)
        stage_records(operator.topics.dead, settings, [b"x"] * 4, reasons)
        stage_records(operator.topics.dead, settings, [b"x"], [])
        found = [one async for batch in OperatorsTopic(operator).letters(-1) for one in batch]
        assert [one.offset for one in found] == [2, 3]
        late = OperatorsTopic(operator).letters(found[-1].timestamp_ms + 3_600_000)
        assert [one async for batch in late for one in batch] == []


@pytest.mark.parametrize("known", [True, False], ids=["known_to_its_coordinator", "unknown_to_its_coordinator"])
async def test_an_open_transaction_is_listed_and_ended(settings: KafkaSettings, dataset: str, known: bool) -> None:
    async with open_operator(settings, dataset) as operator:
        await operator.survey(create=True)
        staged = operator.topics.staged
        assert await operator.open_transactions() == []
        producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, transactional_id=f"{dataset}.writer")
        try:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(staged, value=b"never read", partition=0)
            producer.flush()
            stage_records(staged, settings, [b"x"] * 3, [])
            assert await operator.bounds(staged) == {0: (0, 0)}
            assert await operator.end() == 4
            (one,) = await operator.open_transactions()
            assert (one.transactional_id, one.first_offset) == (f"{dataset}.writer", 0)
            assert one.started_ms is not None
            assert one.timeout_ms is not None
            await operator.end_transaction(one if known else replace(one, transactional_id=None, is_hanging=True))
            # The end of a transaction takes an offset.
            assert await operator.bounds(staged) == {0: (0, 5)}
            assert await operator.open_transactions() == []
            assert [record.offset for record in await operator.read(0, 5)] == [1, 2, 3]
        finally:
            producer.close()
