"""A partition that was stopped: what it costs, what is shown of it, and how it goes on."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import LeaderNotAvailableError, UnknownTopicOrPartitionError

from committerd_ingest.kafka_facts import Topics
from committerd_ingest.records import Partition
from harness.child import Launch
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from tests.ingest.running import SCHEMA, Flow, Topic, bad_records, flow_of, stopping, wait

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def flow(kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch) -> Iterator[Flow]:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch) as made:
        yield made


def wait_rare_attempts(ingest: Daemon, reason: str) -> None:
    """Wait until it tries again more rarely than `ingest.retry_seconds` (0.5) says, and see that it did so by and by.

    The log leaves lines out that come in short order. A partition that the group has given out anew begins anew.
    """

    def said() -> list[float]:
        found = [line for line in ingest.lines("ingest.partition_stopped") if line["reason"] == reason]
        return [one["next_attempt_seconds"] for one in found]

    wait(lambda: max(said(), default=0) >= 4, seconds=240, what=lambda: f"{said()}")
    assert set(said()) <= {0.5 * 2**n for n in range(12)}


def test_a_bad_record_is_decoded_ever_more_rarely_until_the_table_says_something_else(flow: Flow) -> None:
    flow.topic.send(30)
    flow.topic.send_value(b'{"id": 30, "note": "new"}')
    flow.topic.sent += 1
    flow.topic.flush()
    ingest = flow.ingest(INGEST__RETRY_SECONDS="0.5")
    with stopping([ingest]):
        ingest.start()
        wait_rare_attempts(ingest, "bad_record")
        # What arrives behind it is counted, although nothing of it is fetched.
        flow.topic.send(29)
        flow.wait_rows(30 + 20)
        behind = 1 + sum(number % 3 == 0 for number in range(31, 60))
        wait(lambda: ingest.metric("committerd_ingest_lag_records") == behind)
        wait(lambda: ingest.metric("committerd_ingest_lag_seconds") > 1)
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 1)
        lance.dataset(flow.scene.table.uri).add_columns({"note": "cast(null as string)"})
        flow.wait_rows(60)
        flow.check()
        wait(lambda: ingest.metric("committerd_ingest_lag_records") == 0)
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 0)


@pytest.mark.long
def test_a_partition_whose_last_record_was_passed_over_counts_as_stopped_no_longer(flow: Flow) -> None:
    flow.topic.send(30)
    flow.topic.send_value(b"{")
    flow.topic.flush()
    ingest = flow.ingest(INGEST__RETRY_SECONDS="15")  # nothing is looked at before the first attempt
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(30)
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 1)
        flow.command("ingest", "move", flow.topic.name, "0", "--offset", "11", "--apply", "--reason", "no JSON")
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 0)
        wait(lambda: ingest.metric("committerd_ingest_lag_records") == 0)
        flow.check()


@pytest.mark.long
def test_what_the_committer_refuses_is_staged_ever_more_rarely(
    kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch
) -> None:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, COMMIT__APP_MARKS_MAX="2") as flow:
        flow.topic.send(30)
        ingest = flow.ingest(INGEST__RETRY_SECONDS="0.5")
        with stopping([ingest]):
            ingest.start()
            wait_rare_attempts(ingest, "refused")
            said = ingest.wait_line("ingest.partition_stopped", reason="refused")["error"]
            assert "commit.app_marks_max is 2" in said
            flow.wait_rows(20)
            assert ingest.wait_ready(text="1 are stopped")
            flow.restart_committer(COMMIT__APP_MARKS_MAX="3")
            flow.wait_rows(30)
            flow.check()


def test_timestamps_that_lie_ahead_or_are_missing_hold_nothing_up(
    kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch
) -> None:
    schema = SCHEMA.append(pa.field("at", pa.timestamp("ms", "UTC")))
    ahead = int(time.time() * 1000) + 48 * 3600 * 1000
    with flow_of(
        kafka.bootstrap_servers,
        tmp_path,
        launch,
        partitions=1,
        schema=schema,
        configs={"message.timestamp.after.max.ms": str(2**63 - 1)},
    ) as flow:
        bad = f"bad-{uuid4().hex[:8]}"
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
            admin.create_topics([NewTopic(bad, 1, 1)])  # it takes no timestamps that lie ahead
        flow.topic.send_value(b"{", timestamp_ms=ahead)
        flow.topic.send_value(b"[]", timestamp_ms=-1)
        flow.topic.send_value(b'{"id": 0}', timestamp_ms=ahead)
        flow.topic.send_value(b'{"id": 1}', timestamp_ms=-1)
        flow.topic.flush()
        ingest = flow.ingest(
            INGEST__TIMESTAMP_COLUMN="at", INGEST__ON_ERROR="dead-letter", INGEST__DEAD_LETTER_TOPIC=bad
        )
        with stopping([ingest]):
            ingest.start()
            flow.wait_rows(2)
            wait(lambda: ingest.metric("committerd_ingest_bad_records_total") == 2)
            assert ingest.metric("committerd_ingest_lag_seconds") == 0
        found = lance.dataset(flow.scene.table.uri).to_table(columns=["id", "at"])
        assert found["at"].cast(pa.int64()).to_pylist() == [ahead, None]
        letters = {one.value: one for one in bad_records(kafka.bootstrap_servers, bad)}
        stamped = {value: int(dict(one.headers)["ingest-timestamp"]) for value, one in letters.items()}
        assert stamped == {b"{": ahead, b"[]": -1}
        assert all(0 < one.timestamp < ahead for one in letters.values())


async def test_a_partition_without_a_leader_is_said_at_once(kafka: KafkaBroker | RunningKafka) -> None:
    """With a real broker, whose metadata says so of partition 0."""

    class WithoutLeader(KafkaAdminClient):  # type: ignore[misc]  # kafka-python has no types
        def describe_topics(self, topics: Any = None) -> Any:
            found = super().describe_topics(topics)
            for one in found[0]["partitions"]:
                one["leader_id"] = -1 if one["partition_index"] == 0 else one["leader_id"]
            return found

        def list_partition_offsets(self, specs: Any, **rest: Any) -> Any:
            assert [one.partition for one in specs] == [1], "it would wait for a leader"
            return super().list_partition_offsets(specs, **rest)

    with contextlib.closing(Topic(kafka.bootstrap_servers, partitions=2)) as topic:
        topic.send_value(json.dumps({"id": 0}).encode(), partition=1)
        topic.flush()
        topics = Topics(lambda: WithoutLeader(bootstrap_servers=kafka.bootstrap_servers))
        try:
            with pytest.raises(LeaderNotAvailableError, match=f"{topic.name}-0 has no leader"):
                await topics.bounds(Partition(topic.name, 0))
            assert await topics.bounds(Partition(topic.name, 1)) == (0, 1)
            with pytest.raises(UnknownTopicOrPartitionError, match=f"no partition {topic.name}-2"):
                await topics.bounds(Partition(topic.name, 2))
        finally:
            topics.close()
