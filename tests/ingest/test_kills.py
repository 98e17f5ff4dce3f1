"""Each record once, whatever is killed or stands still, and whenever; `make ingest-kills` runs it for longer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.child import Launch
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from tests.acceptance.ingest_kills import run
from tests.ingest.running import flow_of, stopping

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.long]


@pytest.mark.timeout(1800)
def test_kills_at_random_points_of_two_processes_a_third_by_mistake_the_committers_and_the_broker(
    breakable_kafka: KafkaBroker, tmp_path: Path, launch: Launch
) -> None:
    report = run(14, 14, broker=breakable_kafka, folder=tmp_path, launch=launch, tell=print)
    assert not report.wrong
    assert {"kill broker", "kill committer", "kill ingest", "freeze ingest"} <= report.happened.keys()


@pytest.mark.timeout(900)
def test_a_process_that_stood_still_beyond_its_session_adds_nothing_twice(
    kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch
) -> None:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch) as flow:
        first, second = flow.ingest(), flow.ingest()
        with stopping([first, second]):
            first.start()
            flow.topic.send(30)
            flow.wait_rows(30)
            for _ in range(4):
                # It stands still with records in its memory, or with a transaction on its way.
                flow.topic.send(300)
                first.freeze()
                flow.topic.send(300)
                second.start()
                flow.wait_rows(flow.topic.sent, seconds=300)  # the group has taken the partitions from the first
                first.thaw()
                flow.topic.send(60)
                flow.wait_rows(flow.topic.sent, seconds=300)
                first, second = second, first
                second.kill()
            time.sleep(2)
        flow.check()


def met(process: Daemon) -> bool:
    """Whether the process has begun a partition again, because another was faster."""
    return any(process.metric("committerd_ingest_begun_again_total", cause=cause) for cause in ("mark_moved", "failed"))


@pytest.mark.timeout(600)
def test_two_pipelines_with_one_name_by_mistake(
    kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch
) -> None:
    """Their groups differ, so both read all partitions."""
    with flow_of(kafka.bootstrap_servers, tmp_path, launch) as flow:
        name = flow.scene.name
        mine = flow.ingest(INGEST__PIPELINE=name, INGEST__FLUSH_SECONDS="0.05")
        theirs = flow.ingest(INGEST__PIPELINE=name, INGEST__FLUSH_SECONDS="0.4", KAFKA__GROUP_PREFIX="other.")
        with stopping([mine, theirs]):
            for one in (mine.start(), theirs.start()):
                one.wait_ready(text="3 partitions")
            until = time.monotonic() + 240
            while not any(met(one) for one in (mine, theirs)):
                assert time.monotonic() < until, "they did not meet"
                flow.topic.send(30)
                time.sleep(0.1)
            flow.topic.send(600)
            flow.wait_rows(flow.topic.sent)
        flow.check()
