"""Topics into a table, with a real Kafka, a real committer and pylance."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import STAYS
from tests.ingest.running import Flow, Topic, bad_records, flow_of, stopping, wait

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]


@pytest.fixture
def flow(kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch) -> Iterator[Flow]:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch) as made:
        yield made


def servers(flow: Flow) -> str:
    return flow.scene.topics.servers


def test_each_record_is_a_row_once_over_restarts(flow: Flow) -> None:
    flow.topic.send(300)
    ingest = flow.ingest(**STAYS)  # who loses its partitions meanwhile does not count what it has committed
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(300)
        flow.check()
        ingest.wait_ready(text="3 partitions")
        wait(lambda: ingest.metric("committerd_ingest_rows_total") == 300)
        wait(lambda: ingest.metric("committerd_ingest_lag_records") == 0)
        flow.topic.send(30)
        ingest.stop()
    flow.topic.send(30)
    again = flow.ingest()
    with stopping([again]):
        again.start()
        flow.wait_rows(360)
        flow.check()


def test_a_record_finds_the_table_as_it_was_changed_right_before_it(flow: Flow) -> None:
    """Lance appends files over a change of a column's type, and their values of the column are null.

    Files that were written for the columns before are not left behind.
    """
    ingest = flow.ingest(INGEST__ON_ERROR="skip")
    with stopping([ingest]):
        flow.topic.send(3)  # one for each partition
        ingest.start()
        flow.wait_rows(3)
        lance.dataset(flow.scene.table.uri).add_columns({"count": "cast(null as int)"})
        flow.topic.send_value(b'{"id":3,"count":3}')
        flow.topic.flush()
        flow.wait_rows(4)
        changed: Any = {"path": "count", "data_type": pa.int64()}
        lance.dataset(flow.scene.table.uri).alter_columns(changed)
        flow.topic.send_value(b'{"id":4,"count":4}')
        flow.topic.flush()
        flow.wait_rows(5)
    assert sorted((row["id"], row["count"]) for row in flow.rows() if row["id"] > 2) == [(3, 3), (4, 4)]
    table = lance.dataset(flow.scene.table.uri)
    versions = [table.checkout_version(one["version"]) for one in table.versions()]
    named = {file.path for one in versions for part in one.get_fragments() for file in part.metadata.files}
    assert {one.name for one in Path(flow.scene.table.uri, "data").iterdir()} == named


def test_sigterm_writes_what_waits(flow: Flow) -> None:
    ingest = flow.ingest(INGEST__FLUSH_SECONDS="3600", INGEST__FLUSH_ROWS="100")
    with stopping([ingest]):
        flow.topic.send(330)
        ingest.start()
        flow.wait_rows(300)  # the first 100 of each partition
        wait(lambda: ingest.metric("committerd_ingest_waiting_bytes") > 0)
        wait(lambda: ingest.metric("committerd_ingest_lag_records") == 30)
        ingest.stop(grace_seconds=120)
    flow.check()


def test_little_memory_for_what_waits_holds_nothing_up(flow: Flow) -> None:
    ingest = flow.ingest(INGEST__FLUSH_SECONDS="3600", INGEST__BUFFER_BYTES_MAX="20000")
    with stopping([ingest]):
        flow.topic.send(3000, text="x" * 500)
        ingest.start()
        flow.wait_rows(2900)
        ingest.stop(grace_seconds=120)
    flow.check()


def test_the_groups_offsets_decide_nothing(flow: Flow) -> None:
    flow.topic.send(90)
    ingest = flow.ingest()
    group = f"committerd.ingest.{flow.scene.name}"
    with contextlib.closing(KafkaConsumer(bootstrap_servers=servers(flow), group_id=group)) as consumer:
        place = TopicPartition(flow.topic.name, 0)
        consumer.assign([place])
        with stopping([ingest]):
            ingest.start()
            flow.wait_rows(90)
            wait(lambda: consumer.committed(place) == 30)  # for tools that show lag
            ingest.stop()
        consumer.seek(place, 3)
        consumer.poll(timeout_ms=1000, max_records=1)
        consumer.commit()
    flow.topic.send(30)
    again = flow.ingest()
    with stopping([again]):
        again.start()
        flow.wait_rows(120)
        flow.check()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_partition_that_was_never_read_begins_as_it_is_told(flow: Flow, start: str) -> None:
    flow.topic.send(30)
    ingest = flow.ingest(INGEST__START=start)
    with stopping([ingest]):
        ingest.start()
        wait(lambda: sum(key.startswith("committerd.app.") for key in flow.scene.table.metadata()) == 3)
        flow.topic.send(30)
        flow.wait_rows(60 if start == "earliest" else 30)
        assert sorted(row["id"] for row in flow.rows()) == list(range(0 if start == "earliest" else 30, 60))


def test_topics_of_a_pattern_come_and_go(flow: Flow) -> None:
    name = flow.topic.name
    ingest = flow.ingest(INGEST__TOPICS="", INGEST__TOPIC_PATTERN=f"{name}-[a-z]+")
    with stopping([ingest]), contextlib.closing(Topic(servers(flow), partitions=1, name=f"{name}-9")) as other:
        other.send(1)
        ingest.start()
        ingest.wait_unready("no topic was found")
        for count, made in enumerate(("a", "b"), start=1):
            with contextlib.closing(Topic(servers(flow), partitions=1, name=f"{name}-{made}")) as topic:
                topic.send(10)
                flow.wait_rows(10 * count)
                topic.delete()
                ingest.wait_unready("no topic was found")
        ingest.stop()
    assert flow.count() == 20


# Bad records


@pytest.mark.parametrize("on_error", ["dead-letter", "skip"])
def test_a_bad_record_is_passed_over_and_counted(flow: Flow, on_error: str) -> None:
    topic = f"{flow.topic.name}.bad"  # the pattern matches it, and it is not read
    reading = {"INGEST__TOPICS": "", "INGEST__TOPIC_PATTERN": f"{flow.topic.name}.*"}
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers(flow))) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    flow.topic.send(30)
    flow.topic.send_value(b"null", key=b"k")
    flow.topic.send_value(b'{"id": 1.5}')
    flow.topic.send_value(None, key=b"gone")
    flow.topic.flush()
    ingest = flow.ingest(INGEST__ON_ERROR=on_error, INGEST__DEAD_LETTER_TOPIC=topic, **reading, **STAYS)
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(30)
        wait(lambda: ingest.metric("committerd_ingest_bad_records_total") == 3)
        # Only bad records, and no row: the mark passes them, so that they are not published again and again.
        flow.topic.send_value(b"[]")
        flow.topic.flush()
        wait(lambda: ingest.metric("committerd_ingest_bad_records_total") == 4)
        ingest.stop()
    again = flow.ingest(INGEST__ON_ERROR=on_error, INGEST__DEAD_LETTER_TOPIC=topic, **reading)
    with stopping([again]):
        again.start()
        flow.topic.send(30)
        flow.wait_rows(60)
        flow.check()
    if on_error == "skip":
        assert bad_records(servers(flow), topic) == []
        return
    found = {int(dict(one.headers)["ingest-offset"]): one for one in bad_records(servers(flow), topic)}
    assert [(one.value, one.key) for _, one in sorted(found.items())] == [
        (b"null", b"k"), (b'{"id": 1.5}', None), (None, b"gone"), (b"[]", None)
    ]  # fmt: skip
    headers = dict(found[10].headers)
    assert (headers["ingest-topic"], headers["ingest-partition"]) == (flow.topic.name.encode(), b"0")
    assert (headers["trace"], headers["ingest-reason"]) == (b"7", b"the value is a JSON null, and an object is needed")


def test_a_bad_record_that_is_too_large_for_the_topic_of_bad_records_stops_its_partition(flow: Flow) -> None:
    topic = f"bad-{uuid4().hex[:8]}"
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers(flow))) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "2000"})])
    flow.topic.send(30)
    flow.topic.send_value(b"{" * 5000)
    flow.topic.send(30)
    ingest = flow.ingest(INGEST__ON_ERROR="dead-letter", INGEST__DEAD_LETTER_TOPIC=topic)
    with stopping([ingest]):
        ingest.start()
        said = ingest.wait_line("ingest.partition_stopped", reason="bad_record")["error"]
        assert "offset 10 or behind it, is too large" in said
        assert "max.message.bytes" in said
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers(flow))) as admin:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "20000"})
            admin.alter_configs([resource])
        flow.wait_rows(60)
        flow.check()
    assert {one.value for one in bad_records(servers(flow), topic)} == {b"{" * 5000}


def test_topics_to_which_the_pipeline_itself_writes_are_refused(flow: Flow) -> None:
    for own in (f"{flow.scene.name}.staged", f"{flow.scene.name}.bad"):
        said = flow.command("ingest", "--dry-run", good=False, INGEST__TOPICS=own)
        assert f"ingest.topics has {own}, to which this pipeline or the table's committer writes" in said


def test_a_bad_record_stops_its_partition_alone_until_it_is_passed_over(flow: Flow) -> None:
    flow.topic.send(30)
    flow.topic.send_value(b"{", partition=1)
    flow.topic.send(30)
    ingest = flow.ingest()
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(50)  # partition 1 has 10 of its 20
        said = ingest.wait_line("ingest.partition_stopped", reason="bad_record")["error"]
        assert "offset 10 makes no row: the value is not JSON" in said
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 1)
        assert "1 are stopped" in ingest.wait_ready(text="stopped")
        words = ("ingest", "move", flow.topic.name, "1", "--offset", "11")
        assert f"committerd {' '.join(words)} --apply --reason TEXT" in said
        assert "Nothing was written" in flow.command(*words)
        assert flow.count() == 50
        assert "goes on at offset 11" in flow.command(*words, "--apply", "--reason", "half a record")
        flow.wait_rows(60)
        flow.check()
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 0)


# Accidents with the topic


@pytest.mark.long
def test_a_topic_that_was_made_again_is_refused_until_somebody_says_where_to_go_on(flow: Flow) -> None:
    flow.topic.send(30)
    ingest = flow.ingest()
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(30)
        flow.topic.make_again()
        flow.topic.send(60)  # more than before, so that the old offsets are there
        ingest.wait_line("ingest.partition_stopped", reason="topic_recreated")
        ingest.kill()
        ingest.start()
        ingest.wait_line("ingest.partition_stopped", reason="topic_recreated")
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 3)
        assert flow.count() == 30
        for partition in "012":
            flow.command("ingest", "move", flow.topic.name, partition, "--offset", "0", "--apply", "--reason", "new")
        flow.wait_rows(90)
    assert sorted(row["id"] for row in flow.rows()) == list(range(90))


def test_expired_records_are_said_and_never_skipped(flow: Flow) -> None:
    flow.topic.send(30)
    ingest = flow.ingest()
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(30)
        ingest.stop()
        flow.topic.send(60)
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers(flow))) as admin:
            admin.delete_records({TopicPartition(flow.topic.name, 0): 20})
        ingest.start()
        said = ingest.wait_line("ingest.partition_stopped", reason="records_expired")["error"]
        assert "up to offset 10, and the topic begins at 20" in said
        flow.wait_rows(70)
        assert [row["offset"] for row in flow.rows() if row["partition"] == 0] == list(range(10))
        flow.command("ingest", "move", flow.topic.name, "0", "--offset", "earliest", "--apply", "--reason", "lost")
        flow.wait_rows(80)
        assert [row["offset"] for row in flow.rows() if row["partition"] == 0] == [*range(10), *range(20, 30)]


def test_a_released_mark_is_never_taken_for_none(flow: Flow) -> None:
    flow.topic.send(30)
    ingest = flow.ingest()
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(30)
        marks = [key.removeprefix("committerd.app.") for key in flow.scene.table.metadata() if ".app." in key]
        flow.scene.command(
            "app", "release", next(one for one in marks if one.endswith(".0")), "--apply", "--reason", "x"
        )
        flow.topic.send(30)
        ingest.wait_line("ingest.partition_stopped", reason="mark_released")
        flow.wait_rows(50)
        flow.command("ingest", "move", flow.topic.name, "0", "--offset", "10", "--apply", "--reason", "it has 10")
        flow.wait_rows(60)
        flow.check()


# What is read


def test_raw_records_with_all_that_kafka_says_of_them(
    kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch
) -> None:
    named = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        [
            ("body", pa.binary()), ("k", pa.binary()), ("h", named), ("at", pa.timestamp("us", "UTC")),
            ("t", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
        ]
    )  # fmt: skip
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, partitions=1, schema=schema) as flow:
        flow.topic.send_value(b"\xff\x00", key=b"key")
        flow.topic.send_value(None, key=b"gone")
        flow.topic.flush()
        columns = {"VALUE": "body", "KEY": "k", "HEADERS": "h", "TIMESTAMP": "at", "TOPIC": "t"}
        ingest = flow.ingest(
            INGEST__FORMAT="raw",
            INGEST__TOPICS="",
            INGEST__TOPIC_PATTERN=f"{flow.topic.name[:-1]}.",
            **{f"INGEST__{kind}_COLUMN": name for kind, name in columns.items()},
        )
        with stopping([ingest]):
            ingest.start()
            flow.wait_rows(2)
        first, second = flow.rows()
        assert first.pop("at").year >= 2024
        said = {"h": [{"name": "trace", "value": b"7"}], "t": flow.topic.name, "partition": 0}
        assert first == {"body": b"\xff\x00", "k": b"key", "offset": 0, **said}
        second.pop("at")
        assert second == {"body": None, "k": b"gone", "offset": 1, **said}


def test_a_dry_run_shows_rows_and_writes_nothing(flow: Flow) -> None:
    flow.topic.send(500)
    flow.topic.send_value(b"5", partition=2)
    flow.topic.flush()
    before = flow.scene.table.version
    said = flow.command("ingest", "--dry-run")
    assert "id: int64 not null" in said
    shown = [
        json.loads(line.partition(": ")[2]) for line in said.splitlines() if line.startswith(f"{flow.topic.name}-0: ")
    ]
    assert shown[:2] == [
        {"id": 0, "text": "x", "partition": 0, "offset": 0},
        {"id": 3, "text": "x", "partition": 0, "offset": 1},
    ]
    assert "99 records make 99 rows; 0 are bad. Nothing was written." in said
    assert flow.scene.table.version == before


def test_settings_that_do_not_fit_the_table_are_said(flow: Flow) -> None:
    said = flow.command("ingest", "--dry-run", good=False, INGEST__KEY_COLUMN="txt")
    assert "the table has no column 'txt' (did you mean 'text'?)" in said
    flow.topic.send(3)
    ingest = flow.ingest(INGEST__KEY_COLUMN="txt")
    with stopping([ingest]):
        ingest.start()
        ingest.wait_line("ingest.partition_stopped", reason="wrong_columns")
        lance.dataset(flow.scene.table.uri).add_columns({"txt": "cast(null as string)"})
        flow.wait_rows(3)
