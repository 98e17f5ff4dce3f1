"""The client's reason for a missing outcome: a sentence for each cause, and none if nothing is known."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from committerd_client import CommitClient, CommitTimeout
from committerd_client.diagnosis import Diagnosis, look_at_table
from committerd_client.queue_status import Progress, QueueFacts, TablePosition, explain, pause_in
from harness.kafka import KafkaBroker
from tests.producers.answering import answering, append, make_topics, never

FACTS = QueueFacts(
    servers="broker1:9092",
    group="committerd.events",
    topic="events.staged",
    uri="/data/events.lance",
    kafka_responds=True,
    topic_exists=True,
    members=1,
    position=5,
    log_start=0,
    readable_end=100,
    table_exists=True,
    topic_id="00000000-0000-0000-0000-000000000001",
)
HERE = "AAAAAAAAAAAAAAAAAAAAAQ"
"""That topic id, as the committer writes it."""
BEHIND = TablePosition(next_offset=3, topic_id=HERE, era=1, last_offset=2, last_sha256="a")
AHEAD, OTHER = BEHIND._replace(next_offset=101), BEHIND._replace(next_offset=5, topic_id="x")


@pytest.mark.parametrize(
    ("changes", "offset", "why", "says"),
    [
        (
            {"kafka_responds": False, "error": "no broker"},
            7,
            "kafka",
            "Kafka at broker1:9092 does not respond (no broker).",
        ),
        ({"kafka_responds": False}, None, "kafka", "does not respond."),
        ({"topic_exists": False}, 7, "no_topic", "There is no topic events.staged. The committer creates"),
        ({"members": 0}, 7, "no_committer", "No committer runs: consumer group committerd.events has no member"),
        ({"members": 0, "table_exists": False}, 7, "no_committer", "There is no table at /data/events.lance"),
        ({"table_exists": False}, 7, "no_table", "There is no table at /data/events.lance: records wait"),
        ({}, 6, "behind", "1 record is ahead of it: the committer has settled the records below offset 5."),
        ({}, 7, "behind", "`committerd status`"),
        (
            {"rate": 0.5},
            7,
            "behind",
            "2 records are ahead of it: the committer has settled the records below offset 5, 0.5 in",
        ),
        ({"rate": 0.5}, 7, "behind", "about 4 s"),
        ({"rate": 0.0}, 7, "behind", "and none lately: `committerd status`"),
        (
            {"table_position": AHEAD},
            7,
            "refuses",
            "refuses to run: the table's position reaches offset 101, and .* at 100",
        ),
        (
            {"table_position": BEHIND, "log_start": 4},
            7,
            "refuses",
            "starts at 4: records were deleted before they were",
        ),
        ({"table_position": BEHIND, "acknowledged": 5}, 7, "refuses", "has acknowledged 5: the table went back"),
        (
            {"table_position": OTHER},
            7,
            "refuses",
            "events.staged was recreated: the table was written from an earlier topic of this name",
        ),
        (
            {"table_position": BEHIND, "last_sha256": "b"},
            7,
            "refuses",
            "events.staged was rewritten: the record at offset 2 is another record than the table settled",
        ),
        ({"table_position": BEHIND, "last_sha256": "a"}, 7, "behind", "2 records are ahead of it"),
        ({"table_exists": False, "acknowledged": 5}, 7, "refuses", "no table at /data/events.lance, .* it was deleted"),
        ({"paused": "a backup (by ann)"}, 7, "paused", "The queue is paused: a backup (by ann). Records wait until"),
        ({"paused": "a backup"}, None, "paused", "committerd resume"),
        ({"paused": "a backup"}, 4, "passed", "client.resume"),
        ({"paused": "a backup", "members": 0}, 7, "no_committer", "No committer runs"),
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
    assert says in found.text or re.search(says, found.text)


def test_a_pause_is_read_as_far_as_it_can_be() -> None:
    written = json.dumps({"reason": "a backup", "since_ms": 1, "who": "ann"})
    assert pause_in({"committerd.paused": written}) == "a backup (by ann)"
    assert pause_in({"committerd.paused": written.replace("ann", "")}) == "a backup"
    for metadata in ({}, {"committerd.paused": "{"}, {"committerd.paused": "[]"}):
        assert pause_in(metadata) == ""
    assert pause_in({"committerd.paused": written}, branch="exp") == ""


def test_a_position_that_was_set_by_hand_is_no_contradiction() -> None:
    rewound = replace(FACTS, table_position=BEHIND, acknowledged=5, acknowledged_era=0)
    found = explain(rewound, 7)
    assert found is not None
    assert found.why == "behind"


def test_the_rate_follows_from_two_offsets_of_the_group() -> None:
    facts = QueueFacts(servers="b", group="g", topic="t", readable_end=200, before=Progress(40, 90.0))
    facts.note_position(100, 100.0)
    assert (facts.rate, facts.waiting) == (6.0, 100)
    alone = QueueFacts(servers="b", group="g", topic="t")
    alone.note_position(5, 1.0)
    assert alone.rate is None
    alone.note_position(5, 2.0)
    assert alone.rate == 0


@pytest.mark.parametrize(
    ("changes", "why", "ok", "text"),
    [
        ({"position": 100}, "", True, "1 committer runs in group committerd.events"),
        ({"rate": 20.0}, "behind", True, "95 records wait, 20.0 in a second: about 5 s."),
        ({"rate": 0.0}, "stalled", False, "95 records wait, and none lately"),
        ({"members": 0}, "no_committer", False, "No committer runs"),
        ({"kafka_responds": False}, "kafka", False, "does not respond"),
    ],
)
def test_the_status_says_it_in_a_sentence(changes: dict[str, object], why: str, ok: bool, text: str) -> None:
    found = replace(FACTS, **changes).status()  # type: ignore[arg-type]
    assert (found.why, found.ok) == (why, ok)
    assert text in str(found)


def test_nothing_is_said_where_nothing_is_known() -> None:
    unknown = QueueFacts(servers="b", group="g", topic="t", kafka_responds=True)
    assert explain(unknown, 7) is None
    assert explain(FACTS, None) is None
    assert explain(replace(FACTS, position=None, log_start=7, members=None), 7) is None


def _table_exists(uri: str | None) -> bool | None:
    facts = QueueFacts(servers="b", group="g", topic="t", uri=uri)
    with contextlib.suppress(ValueError):  # pylance can't read the manifest that this test makes
        look_at_table(facts, {})
    return facts.table_exists


def test_a_local_table_is_looked_for_where_this_machine_has_the_folder_above_it(tmp_path: Path) -> None:
    table = tmp_path / "a b.lance"
    assert _table_exists(str(table)) is False
    assert _table_exists(str(tmp_path / "elsewhere" / "events.lance")) is None
    assert _table_exists(None) is None
    (table / "_versions").mkdir(parents=True)  # as the committer's probe of the store leaves it
    assert _table_exists(str(table)) is False
    (table / "_versions" / "1.manifest").touch()
    assert _table_exists(str(table)) is True
    assert _table_exists(f"file://{tmp_path}/a%20b.lance") is True


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

    assert await diagnosis.waited(wait, 0.6, tell=lambda: None) is False
    assert diagnosis.finding(7) is None


@pytest.mark.kafka
async def test_a_look_that_takes_a_minute_does_not_prolong_the_timeout(
    servers: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, over = threading.Event(), threading.Event()

    def look(*_: object) -> None:
        looks.set()
        over.wait(300)

    monkeypatch.setattr(Diagnosis, "_ask", look)
    began = time.monotonic()
    try:
        async with CommitClient(servers, dataset=dataset) as client:
            handle = await client.submit(append())
            with pytest.raises(CommitTimeout):
                await handle.outcome(timeout=1)
            assert looks.wait(60)
    finally:
        over.set()
    assert time.monotonic() - began < 150


@pytest.mark.kafka
async def test_one_look_tells_all_commits_why_they_wait(servers: str, dataset: str) -> None:
    with answering(servers, dataset, never):
        async with CommitClient(servers, dataset=dataset) as client:
            said: set[str] = set()
            for seconds in (4, 20, 60):  # a busy machine may know less after four
                outcomes = await asyncio.gather(
                    *(client.commit(append(), timeout=seconds) for _ in range(200)), return_exceptions=True
                )
                assert {type(one) for one in outcomes} == {CommitTimeout}
                said = {one.why for one in outcomes if isinstance(one, CommitTimeout)}
                if said == {"no_committer"}:
                    break
    assert said == {"no_committer"}


@pytest.mark.kafka
async def test_a_commit_that_waits_long_says_why_in_the_log_once_for_all_commits(
    servers: str, dataset: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("committerd_client.diagnosis._LONG_SECONDS", 0.5)
    patient = {"bootstrap_timeout_ms": 30_000, "request_timeout_ms": 30_000}  # a busy Kafka is no cause
    monkeypatch.setattr("committerd_client.diagnosis._SHORT", patient)
    async with CommitClient(servers, dataset=dataset) as client:
        waiting = [asyncio.ensure_future(client.commit(append(), timeout=None)) for _ in range(20)]

        def said() -> list[str]:
            return [one.getMessage() for one in caplog.records if one.name == "committerd_client.client"]

        async with asyncio.timeout(60):
            while not said():  # noqa: ASYNC110  # the log announces nothing
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)  # nothing more is said
        for one in waiting:
            one.cancel()
        notes = []
        for one in waiting:
            with pytest.raises(asyncio.CancelledError) as ended:
                await one
            notes += ended.value.__notes__
    (line,) = said()
    assert re.search(r"transaction [0-9a-f-]{36} has no outcome after \d+ s: No committer runs", line)
    assert len(notes) == 20
    assert re.search(r"transaction [0-9a-f-]{36} is staged at offset \d+ of .*will be committed all the same", notes[0])


@pytest.mark.kafka
@pytest.mark.slow
async def test_a_kafka_that_hangs_is_named(breakable_kafka: KafkaBroker, dataset: str) -> None:
    make_topics(breakable_kafka.bootstrap_servers, dataset)
    async with CommitClient(breakable_kafka.bootstrap_servers, dataset=dataset, close_timeout=1) as client:
        handle = await client.submit(append(), timeout=60)
        breakable_kafka.freeze()
        said = dict[str, str]()
        try:
            for seconds in (6, 20, 60):  # a busy machine may know less after six
                with pytest.raises(CommitTimeout) as told:
                    await handle.outcome(timeout=seconds)
                said[told.value.why] = str(told.value)
                if "kafka" in said:
                    break
        finally:
            breakable_kafka.thaw()
    assert f"Kafka at {breakable_kafka.bootstrap_servers} does not respond" in said["kafka"]
