"""Bad records that are replayed: each once, whatever is killed, copied, or run twice."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from committerd.commands.ingest.parts import dead_letter_topic, group_name, pipeline_of
from committerd.commands.ingest.replaying import Batch, Place
from committerd.settings.load import load_settings
from committerd_client.app_marks import AppMark
from committerd_ingest.dead_letters import Letter, Origin, headers_of, letter_of
from committerd_ingest.marks import NOTE_PREFIX
from committerd_ingest.records import Partition, Record
from committerd_ingest.registry import Registry
from committerd_ingest.replays import (
    Known,
    Offsets,
    Replays,
    TooScattered,
    known,
    replay_app_id,
    replays_in,
)
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from tests.ingest.running import Flow, flow_of, stopping, wait

# The record


LETTER = Letter("orders", Origin(Partition("t", 3), "id"), Record(7, -1, b"k", b"v", [("a", b"1"), ("b", None)]), "why")


def test_a_bad_record_is_read_as_it_was_in_its_topic() -> None:
    found = letter_of(b"k", b"v", headers_of(LETTER))
    assert found == Letter("orders", LETTER.origin, Record(7, -1, b"k", b"v", [("a", b"1"), ("b", b"")]), "why")
    assert found is not None
    # A record of a topic for bad records is bad in another pipeline, which reads that topic.
    outer = Letter("second", Origin(Partition("orders.bad", 0), "x"), Record(1, 2, b"k", b"v", headers_of(found)), "no")
    again = letter_of(b"k", b"v", headers_of(outer))
    assert again == outer
    assert again is not None
    assert letter_of(b"k", b"v", again.record.headers) == found


def test_bad_records_of_the_first_releases_are_read_and_other_records_are_none() -> None:
    written = [("ingest-topic", b"t"), ("ingest-partition", b"3"), ("ingest-offset", b"7")]
    written += [("ingest-timestamp", b"-1"), ("ingest-reason", b"why")]
    found = letter_of(b"k", b"v", [("a", b"1"), *written])
    assert found == Letter("", Origin(Partition("t", 3), ""), Record(7, -1, b"k", b"v", [("a", b"1")]), "why")
    for wrong in (b"x", b"-1", b"", None):
        for place in range(1, 4):
            changed: list[tuple[str, bytes | None]] = [*written]
            changed[place] = (written[place][0], wrong)
            assert (letter_of(None, b"", changed) is None) is not (place == 3 and wrong == b"-1")
    assert letter_of(b"k", b"v", []) is None
    assert letter_of(b"k", b"v", written[1:]) is None


# What the table says


def test_offsets_are_kept_as_stretches() -> None:
    made = Offsets.of([(0, 3), (0, 1), (0, 2), (1, 5), (0, 9)]) | Offsets({1: [(6, 8), (4, 5)], 2: [(5, 5)]})
    assert made == Offsets({0: [(1, 4), (9, 10)], 1: [(4, 8)]})
    assert str(made) == "partition 0: 1 to 3, 9, partition 1: 4 to 7"
    places = [(number, offset) for number in range(3) for offset in range(11) if (number, offset) in made]
    assert places == [*((0, one) for one in (1, 2, 3, 9)), *((1, one) for one in (4, 5, 6, 7))]
    assert made.from_on({0: 3, 1: 8}) == Offsets({0: [(3, 4), (9, 10)]})
    assert not Offsets({0: [(4, 4)]})


def test_a_note_is_read_as_it_was_written_and_has_a_bound() -> None:
    note = Replays(unit=3, by="x", settled=Offsets.of([(0, 1)]), plan=Offsets.of([(0, 2)]), doubt=Offsets.of([(1, 1)]))
    assert replays_in({f"{NOTE_PREFIX}a": note.text()}, "a") == note
    assert replays_in({}, "a") == Replays()
    for wrong in ("{", "[]", "{}", json.dumps({**json.loads(note.text()), "plan": 7})):
        with pytest.raises(ValueError, match="is no note"):
            replays_in({f"{NOTE_PREFIX}a": wrong}, "a")
    scattered = Offsets.of((0, 2 * one) for one in range(1001))
    with pytest.raises(TooScattered, match="more than 1000 stretches"):
        Replays(settled=scattered).text()


def test_the_mark_says_whether_a_plan_was_carried_out() -> None:
    first, second, third = (Offsets.of([(0, one)]) for one in range(3))
    note = Replays(unit=5, by="x", settled=first, plan=second, doubt=third)

    def mark(version: int) -> AppMark:
        return AppMark(app_id="a", run="", version=version, uuid="", table_version=1, offset=1)

    assert known(mark(5), note) == Known(unit=5, after=5, settled=first, doubt=third, left_a_plan=True)
    assert known(mark(6), note) == Known(unit=6, after=6, settled=first | second, doubt=third, left_a_plan=True)
    for gone in (None, mark(-1)):  # forgotten; released by an operator
        assert known(gone, note) == Known(unit=5, after=0, settled=first, doubt=second | third, left_a_plan=True)
    assert known(None, Replays()) == Known(unit=0, after=0, settled=Offsets(), doubt=Offsets(), left_a_plan=False)
    assert replay_app_id("p", "c", "t", "1") != replay_app_id("p", "c", "t", "2")


# The command


def test_a_batch_has_few_schemas_that_must_be_asked_for_and_each_branch_its_own_records() -> None:
    main = load_settings(
        dataset={"name": "orders", "uri": "/orders"},
        kafka={"bootstrap_servers": "kafka:9092"},
        ingest={"topics": ["t"], "format": "avro", "registry_url": "http://registry"},
    )
    branch = main.model_copy(update={"dataset": main.dataset.model_copy(update={"branch": "a/b"})})
    assert [group_name(one) for one in (main, branch)] == ["orders", "orders.tree.a..b"]
    assert [dead_letter_topic(one) for one in (main, branch)] == ["orders.bad", "orders.tree.a..b.bad"]

    batch = Batch(
        pipeline_of(main, written=()), Registry("http://registry", format="avro", login=None, tls=None, timeout=1)
    )
    origin = Origin(Partition("t", 0), "")
    full = [
        batch.add(Place(0, n), Letter("orders", origin, Record(n, 0, None, struct.pack(">bI", 0, n // 2)), "x"))
        for n in range(199)
    ]
    assert full == [*(False for _ in range(198)), True]


@pytest.fixture
def flow(kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch) -> Iterator[Flow]:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, partitions=2) as made:
        yield made


def is_note(name: str) -> bool:
    """Whether an entry of the table's metadata is the note of the replays."""
    return name.startswith(NOTE_PREFIX) and ".replay." in name


def letters(servers: str, topic: str) -> list[Any]:
    """All records of a topic with two partitions."""
    with contextlib.closing(KafkaConsumer(bootstrap_servers=servers)) as consumer:
        places = [TopicPartition(topic, one) for one in range(2)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        found: list[Any] = []
        while any(consumer.position(place) < ends[place] for place in places):
            for records in consumer.poll(timeout_ms=200).values():
                found += records
    return found


def publish(
    servers: str, topic: str, records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]
) -> None:
    """Publish records, in the partitions in turn."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=servers, max_block_ms=60_000)) as producer:
        for number, (key, value, headers) in enumerate(records):
            producer.send(topic, key=key, value=value, headers=headers, partition=number % 2)
        producer.flush(240)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.slow
def test_bad_records_make_one_row_each_over_kills_copies_and_two_replays_at_once(flow: Flow) -> None:
    servers, bad = flow.scene.topics.servers, f"bad-{uuid4().hex[:8]}"
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_topics([NewTopic(bad, 2, 1)])
    settings = {
        "INGEST__DEAD_LETTER_TOPIC": bad,
        "INGEST__ON_ERROR": "dead-letter",
        "INGEST__HEADERS_COLUMN": "headers",
    }
    lance.dataset(flow.scene.table.uri).add_columns(
        pa.schema([("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])))])
    )
    flow.topic.send(20)
    for number in range(20, 60):
        flow.topic.send_value(b'{"id":%d,"note":"n"}' % number, partition=number % 2, key=b"k")
    for value in (b"{", b"[]"):
        flow.topic.send_value(value)
    flow.topic.flush()
    ingest = flow.ingest(**settings)
    with stopping([ingest]):
        ingest.start()
        wait(lambda: ingest.metric("committerd_ingest_bad_records_total") >= 42)
        ingest.stop()

    def replay(*words: str, good: bool = True) -> dict[str, Any]:
        """What the command prints; again, while a transaction of a replay that was killed is committed first."""
        while "another replay" in (said := flow.command("ingest", "replay", "--json", *words, good=good, **settings)):
            assert not good
        return dict(json.JSONDecoder().raw_decode(said[said.index("{") :])[0])  # messages on waits may follow

    def counts(said: dict[str, Any]) -> dict[str, int]:
        return {name: one for name, one in said.items() if type(one) is int and one}

    keyed = flow.command("ingest", "replay", good=False, INGEST__MODE="upsert", INGEST__KEYS="id", **settings)
    assert "would undo later changes of its key" in keyed
    first = flow.command("ingest", "replay", good=False, **settings)
    assert "42  are bad still" in first
    assert ", offset 10 (here " in first
    assert "field 'note' is not in the table" in first
    assert not any(is_note(name) for name in flow.scene.table.metadata())
    lance.dataset(flow.scene.table.uri).add_columns({"note": "cast(null as string)"})
    chosen = ("--reason", "field 'note'", "--topic", flow.topic.name)
    assert counts(replay(*chosen)) == {"replayed": 40, "not_chosen": 2}

    # Each a second time; one that the pipeline has not passed yet; those of others.
    published = letters(servers, bad)
    copies = [(one.key, one.value, list(one.headers)) for one in published]
    publish(servers, bad, copies)
    found = [letter_of(*one) for one in copies]
    row = next(one for one in found if one is not None and one.record.value == b'{"id":20,"note":"n"}')
    behind = Letter(row.pipeline, row.origin, Record(1000, 0, None, b'{"id":1000}'), "x")
    other = Letter("other", row.origin, Record(10, 0, None, b'{"id":1001}'), "x")
    # Of the topic before it was made anew: the table has a row of its offset, which is that of the new topic's record.
    of_old = Letter(row.pipeline, Origin(row.origin.partition, "old"), Record(1, 0, None, b"{}"), "x")
    written = [(None, b"{}", headers_of(behind)), (None, b"{}", headers_of(other)), (None, b"{}", [])]
    publish(servers, bad, [*written, (None, b'{"id":1002}', headers_of(of_old))])

    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "committerd", "ingest", "replay", "--apply"],
            env={**os.environ, **flow.ingest(**settings, INGEST__FLUSH_ROWS="4").environment},
            stdout=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    wait(lambda: any(is_note(name) for name in flow.scene.table.metadata()))
    processes[0].kill()
    for one in processes:
        one.wait(240)
    assert counts(replay("--apply", good=False))["bad"] == 2
    publish(servers, bad, copies)
    last = {"replayed_before": 41, "bad": 2, "not_passed": 1, "others": 2}
    assert counts(replay("--apply", good=False)) == last

    rows = {row["id"]: row for row in flow.rows()}
    assert flow.count() == len(rows) == 61
    assert sorted(rows) == [*range(60), 1002]
    assert (rows[1002]["partition"], rows.pop(1002)["offset"]) == (row.origin.partition.number, 1)
    where = {number: (number % 2, number // 2) for number in range(60)}  # as the topic's records were sent in turn
    assert {number: (row["partition"], row["offset"]) for number, row in rows.items()} == where
    assert {row["note"] for number, row in rows.items() if number >= 20} == {"n"}
    assert {str(row["headers"]) for row in rows.values()} == {"[{'name': 'trace', 'value': b'7'}]"}
    for name, text in flow.scene.table.metadata().items():
        if is_note(name):
            assert json.loads(text)["plan"] == {}
