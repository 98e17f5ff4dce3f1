"""Kafka is killed or frozen during the work, and comes back."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

import pytest

from committerd.kafka.operator import TopicOperator
from committerd.kafka.topics import TopicSurvey
from committerd_common.messages import Status
from harness.kafka import KafkaBroker
from harness.scene import Scene, until, wait_one_active
from tests.commands.running import answered, run

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]


def _staged_meanwhile(scene: Scene, total: int) -> tuple[threading.Thread, list[int], list[int]]:
    """A thread that stages Appends, ten at a time; (thread, offsets, ids)."""
    transactions = scene.table.appends(total)
    offsets: list[int] = []
    scene.topics.stage()  # the producer knows the topic before anything fails

    def stage() -> None:
        for start in range(0, total, 10):
            offsets.extend(scene.stage(*transactions[start : start + 10]))
            time.sleep(0.05)

    thread = threading.Thread(target=stage)
    thread.start()
    return thread, offsets, [i for t in transactions for i in scene.table.brought[t.uuid]]


def _wait_version(scene: Scene, wanted: int) -> None:
    until(lambda: scene.table.version > wanted)


def test_kafka_is_killed_during_500_appends(breakable_scene: Scene, breakable_kafka: KafkaBroker) -> None:
    scene = breakable_scene
    ids = scene.table.create()
    daemon = scene.started(COMMIT__GROUP_RECORDS_MAX="10")
    thread, offsets, staged = _staged_meanwhile(scene, 500)
    for _ in range(2):
        _wait_version(scene, scene.table.version + 5)
        breakable_kafka.kill()
        time.sleep(0.5)
        breakable_kafka.start()
    thread.join()
    answers = scene.topics.wait_answers(offsets)
    # A producer without a response sends again: then the record is there twice, and one of the two is a duplicate.
    assert {answer.status for answer in answers} <= {Status.COMMITTED, Status.DUPLICATE}
    scene.audit([*ids, *staged])
    assert daemon.running()
    until(lambda: daemon.metric("committerd_active") == 1)
    daemon.stop()
    assert daemon.code == 0


def test_kafka_hangs_for_longer_than_a_session(breakable_scene: Scene, breakable_kafka: KafkaBroker) -> None:
    scene = breakable_scene
    ids = scene.table.create()
    daemons = scene.started(), scene.daemon()
    wait_one_active(*daemons)
    thread, offsets, staged = _staged_meanwhile(scene, 100)
    until(lambda: len(offsets) > 20)
    breakable_kafka.freeze()
    time.sleep(5)
    breakable_kafka.thaw()
    thread.join()
    assert {a.status for a in scene.topics.wait_answers(offsets)} <= {Status.COMMITTED, Status.DUPLICATE}
    scene.audit([*ids, *staged])
    wait_one_active(*daemons)


@pytest.mark.long
def test_an_outage_is_seen_and_does_not_flood_the_log(breakable_scene: Scene, breakable_kafka: KafkaBroker) -> None:
    scene = breakable_scene
    scene.table.create()
    active, standby = scene.started(), scene.daemon()
    wait_one_active(active, standby)
    scene.committed(1)
    until(lambda: active.ready()[0] and standby.ready()[0])  # a standby that has not joined is not ready anyway
    assert [one.metric("committerd_kafka_connected") for one in (active, standby)] == [1, 1]
    sizes = [one.log.stat().st_size for one in (active, standby)]
    killed = time.monotonic()
    breakable_kafka.kill()
    for one in (active, standby):
        one.wait_unready("Kafka has not responded for ")
        until(lambda one=one: one.metric("committerd_kafka_connected") == 0)  # type: ignore[misc]
    for one, size in zip((active, standby), sizes, strict=True):
        said = [json.loads(line) for line in one.log.read_bytes()[size:].decode().splitlines()]
        spoken = Counter((line["logger"], line["event"], line.get("error")) for line in said)
        # A line for each connection that breaks at once, and then each 10 s; there are about ten kinds of lines.
        seconds = time.monotonic() - killed
        assert max(spoken.values()) <= 10 + seconds / 10, spoken.most_common(3)
        assert len(said) < 60 + seconds, spoken.most_common(10)
    breakable_kafka.start()
    for one in (active, standby):
        until(lambda one=one: one.ready()[0])  # type: ignore[misc]  # a default is not inferred
        until(lambda one=one: one.metric("committerd_kafka_connected") == 1)  # type: ignore[misc]
    scene.topics.disconnect()
    scene.committed(1)


def test_if_kafka_goes_away_midway_topics_create_says_what_it_has_created(
    breakable_scene: Scene, breakable_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = breakable_scene
    queues = [f"{scene.name}.{number}" for number in range(3)]
    survey, asked = TopicOperator.survey, list[str | None]()

    async def stopping(self: TopicOperator, name: str | None = None, **given: Any) -> TopicSurvey:
        asked.append(name)
        if name == queues[1] and len(asked) == 2:
            breakable_kafka.stop()
        return await survey(self, name, **given)

    monkeypatch.setattr(TopicOperator, "survey", stopping)
    quick = {"KAFKA__REQUEST_TIMEOUT_MS": "10000"}
    words = ("topics", "create", *(f"--queue={queue}" for queue in queues), "--json")
    ran = run(scene, *words, **quick)
    assert ran.code == 1
    first = [f"{queues[0]}.{role}" for role in ("staged", "outcomes", "dead")]
    said = ran.json()
    assert (said["created"], said["left"]) == (first, queues[1:])
    assert f"3 topics were created. What became of the topics of {queues[1]}, {queues[2]} is not known" in ran.err
    breakable_kafka.start()
    assert len(answered(scene, *words[:-1])["created"]) == 6
