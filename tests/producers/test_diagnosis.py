"""The client's reason for a missing outcome: a sentence for each cause, and none if nothing is known."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from committerd_client import CommitClient, CommitTimeout
from committerd_client.diagnosis import Observed, explain, table_exists
from harness.kafka import KafkaBroker
from tests.producers.answering import answering, append, make_topics, never

FACTS = Observed(
    servers="broker1:9092",
    group="committerd.events",
    topic="events.staged",
    uri="/data/events.lance",
    kafka_answered=True,
    topic_exists=True,
    members=1,
    position=5,
    log_start=0,
    readable_end=100,
    table_exists=True,
)


@pytest.mark.parametrize(
    ("changes", "offset", "why", "says"),
    [
        (
            {"kafka_answered": False, "error": "no broker"},
            7,
            "kafka",
            "Kafka at broker1:9092 does not answer (no broker).",
        ),
        ({"kafka_answered": False}, None, "kafka", "does not answer."),
        ({"topic_exists": False}, 7, "no_topic", "Topic events.staged is gone"),
        ({"members": 0}, 7, "no_committer", "No committer runs: consumer group committerd.events has no member"),
        ({"members": 0, "table_exists": False}, 7, "no_committer", "There is no table at /data/events.lance"),
        ({"table_exists": False}, 7, "no_table", "There is no table at /data/events.lance: records wait"),
        ({}, 7, "behind", "2 records are ahead of it: the committer has answered those below offset 5."),
        ({}, 7, "behind", "`committerd status`"),
        ({"position": None, "log_start": 3}, 7, "behind", "4 records are ahead of it"),
        ({}, 5, "stalled", "`committerd status`"),
        ({}, 4, "passed", "client.resume"),
        ({"readable_end": 6}, 7, "open_transaction", "nothing from offset 6 of events.staged on can be read"),
    ],
)
def test_each_cause_has_its_sentence(changes: dict[str, object], offset: int | None, why: str, says: str) -> None:
    found = explain(replace(FACTS, **changes), offset)  # type: ignore[arg-type]
    assert found is not None
    assert found.why == why
    assert says in found.text


def test_nothing_is_said_where_nothing_is_known() -> None:
    unknown = Observed(servers="b", group="g", topic="t", kafka_answered=True)
    assert explain(unknown, 7) is None
    assert explain(FACTS, None) is None
    assert explain(replace(FACTS, position=None, log_start=7, members=None), 7) is None


def test_a_local_table_is_looked_for_where_this_machine_has_the_folder_above_it(tmp_path: Path) -> None:
    table = tmp_path / "a b.lance"
    assert table_exists(str(table), {}) is False
    assert table_exists(str(tmp_path / "elsewhere" / "events.lance"), {}) is None
    assert table_exists(None, {}) is None
    (table / "_versions").mkdir(parents=True)  # as the committer's probe of the store leaves it
    assert table_exists(str(table), {}) is False
    (table / "_versions" / "1.manifest").touch()
    assert table_exists(str(table), {}) is True
    assert table_exists(f"file://{tmp_path}/a%20b.lance", {}) is True


async def test_where_no_more_threads_can_be_made_the_timeout_is_as_without_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    diagnosis = CommitClient("broker1:9092", dataset="events")._diagnosis

    async def wait(seconds: float | None) -> bool:
        await asyncio.sleep(seconds or 0)
        return False

    assert await diagnosis.waited(wait, 0.6) is False
    assert diagnosis.finding(7) is None


@pytest.mark.kafka
async def test_the_look_neither_prolongs_the_timeout_nor_delays_an_answer(servers: str, dataset: str) -> None:
    with answering(servers, dataset, never):
        async with CommitClient(servers, dataset=dataset) as client:
            began = time.monotonic()
            outcomes = await asyncio.gather(
                *(client.commit(append(), timeout=4) for _ in range(200)), return_exceptions=True
            )
            assert time.monotonic() - began < 5.5
    assert {type(one) for one in outcomes} == {CommitTimeout}
    assert {one.why for one in outcomes if isinstance(one, CommitTimeout)} == {"no_committer"}


@pytest.mark.kafka
@pytest.mark.slow
async def test_a_kafka_that_hangs_is_named(breakable_kafka: KafkaBroker, dataset: str) -> None:
    make_topics(breakable_kafka.bootstrap_servers, dataset)
    async with CommitClient(breakable_kafka.bootstrap_servers, dataset=dataset, close_timeout=1) as client:
        handle = await client.submit(append(), timeout=10)
        breakable_kafka.freeze()
        try:
            began = time.monotonic()
            with pytest.raises(
                CommitTimeout, match=f"Kafka at {breakable_kafka.bootstrap_servers} does not answer"
            ) as told:
                await handle.outcome(timeout=6)
            assert time.monotonic() - began < 7
        finally:
            breakable_kafka.thaw()
    assert told.value.why == "kafka"
