"""Files and other sources into a table, with a real Kafka, a real committer and pylance."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import obstore
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from obstore.store import S3Store

from committerd_ingest.dead_letters import letter_of
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import s3_place
from harness.s3 import S3Endpoint
from tests.ingest.running import FilesFlow, bad_records, flow_of, stopping, wait

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


@pytest.fixture
def flow(kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch) -> Iterator[FilesFlow]:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, schema=SCHEMA, kind=FilesFlow) as made:
        assert isinstance(made, FilesFlow)
        yield made


def test_each_file_is_in_the_table_once_over_kills_and_two_processes(flow: FilesFlow) -> None:
    flow.put("1.parquet", 0, 1, 2)
    flow.put("2.csv", 3, 4)
    flow.put("3.jsonl", 5)
    processes = [flow.ingest(), flow.ingest()]
    with stopping(processes):
        for one in processes:
            one.start()
        wait(lambda: flow.count() >= 6, what=lambda: str(flow.ids()))
        for number in range(4):
            flow.put(f"more-{number}.jsonl", *range(10 * number + 10, 10 * number + 20))
            wait(lambda number=number: flow.count() >= 6 + 10 * number)  # type: ignore[misc]
            processes[number % 2].kill()
            processes[number % 2] = flow.ingest()
            processes[number % 2].start()
        wait(lambda: flow.count() >= 46, what=lambda: str(flow.ids()))
        wait(lambda: all(one.metric("committerd_ingest_lag_records") == 0 for one in processes))
        processes[0].wait_ready(text="1 splits")
        for one in processes:
            one.stop(grace_seconds=120)
    assert flow.ids() == [*range(6), *range(10, 50)]


@pytest.mark.s3
def test_objects_of_a_bucket_are_in_a_table_there_once_over_kills(
    kafka: KafkaBroker | RunningKafka, s3: S3Endpoint, tmp_path: Path, launch: Launch
) -> None:
    place = s3_place(s3)
    bucket = S3Store(
        place.bucket,
        endpoint=s3.url,
        region=s3.region,
        access_key_id=s3.access_key,
        secret_access_key=s3.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

    def put(key: str, body: bytes) -> None:
        obstore.put(bucket, f"landing/{key}", body, use_multipart=False)

    with flow_of(kafka.bootstrap_servers, tmp_path, launch, schema=None, kind=FilesFlow, place=place) as flow:
        reading = {**place.settings, "INGEST__FOLDER": f"s3://{place.bucket}/landing", "INGEST__CREATE_FROM": "rows"}
        assert isinstance(flow, FilesFlow)
        process = flow.ingest(**reading)
        for number in range(4):
            body = io.BytesIO()
            pyarrow.parquet.write_table(pa.table({"id": [3 * number, 3 * number + 1, 3 * number + 2]}), body)
            put(f"day-{number}/rows.parquet", body.getvalue())
            with stopping([process]):
                process.start()
                wait(lambda number=number: flow.exists() and flow.ids()[-1:] == [3 * number + 2])  # type: ignore[misc]
            process = flow.ingest(**reading)
        with stopping([process]):
            process.start()
            obstore.delete(bucket, "landing/day-0/rows.parquet")
            put("last.jsonl", b'{"id": 12}')
            wait(lambda: flow.ids()[-1] == 12)
            process.stop(grace_seconds=120)
        assert flow.ids() == [*range(13)]


def test_files_that_are_bad_changed_late_or_gone_are_never_passed_over_in_silence(flow: FilesFlow) -> None:
    flow.put("b.jsonl", 1)
    ingest = flow.ingest()
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(1)
        (flow.folder / "b.jsonl").unlink()  # done files may go
        flow.put("a.jsonl", 2, changed_at=1)  # its name and time lie before those of the file that is done
        flow.wait_rows(2)

        (flow.folder / "c.jsonl").write_text('{"id": 3}\n{"id": "x"}\n')
        ingest.wait_ready(text="c.jsonl")
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 1)
        (stopped, *_) = ingest.lines("ingest.split_stopped")
        assert stopped["reason"] == "bad_rows"
        assert "line 2" in stopped["error"]
        (flow.folder / "c.jsonl").rename(flow.folder / "_c.jsonl")
        flow.put("d.jsonl", 4)
        flow.wait_rows(3)
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 0)

        flow.put("d.jsonl", 4, 5)
        ingest.wait_ready(text="It was read before".lower())
        ingest.stop()
    again = flow.ingest(INGEST__ON_ERROR="skip")
    with stopping([again]):
        flow.put("e.txt", 6)
        flow.put("f.jsonl", 7)
        again.start()
        flow.wait_rows(4)
        wait(lambda: again.metric("committerd_ingest_bad_records_total") == 2)  # d.jsonl and e.txt
        # What does not fit the columns of then is not passed over if it fits those of now.
        lance.dataset(flow.scene.table.uri).add_columns({"more": "cast(null as bigint)"})
        flow.put("g.jsonl", 8)
        (flow.folder / "_h").write_text('{"id": 9, "more": 1}\n')
        (flow.folder / "_h").rename(flow.folder / "h.jsonl")
        flow.wait_rows(6)
        again.stop()
    assert flow.ids() == [1, 2, 4, 7, 8, 9]

    (flow.folder / "i.jsonl").write_text('{"id": 20}\n{"id": "x"}\nnull\n{"id": 21, "other": 1}\n{"id": 22}\n')
    (flow.folder / "j.parquet").write_text("none")
    bad = f"{flow.scene.name}.bad"
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=flow.scene.topics.servers)) as admin:
        admin.create_topics([NewTopic(bad, 1, 1)])
    last = flow.ingest(INGEST__ON_ERROR="dead-letter")
    with stopping([last]):
        last.start()
        wait(lambda: last.metric("committerd_ingest_bad_records_total") >= 4)
        last.stop(grace_seconds=120)
    assert flow.ids() == [1, 2, 4, 7, 8, 9, 20, 22]
    letters = [letter_of(one.key, one.value, one.headers) for one in bad_records(flow.scene.topics.servers, bad)]
    found = {(Path(one.origin.partition.topic).name, one.record.offset, one.record.value) for one in letters if one}
    lines = {2: b'{"id": "x"}', 3: b"null", 4: b'{"id": 21, "other": 1}'}
    assert found == {("i.jsonl", number, line) for number, line in lines.items()} | {("j.parquet", 0, b"")}


def test_the_first_rows_may_make_the_table_and_a_dry_run_shows_them(
    kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch
) -> None:
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, schema=None, kind=FilesFlow) as flow:
        assert isinstance(flow, FilesFlow)
        flow.put("1.jsonl", 1, 2)
        (flow.folder / "2.jsonl").write_text('{"id": 1.5}')
        assert "there is no table" in flow.command("ingest", "--dry-run", good=False)
        making = {"INGEST__CREATE_FROM": "rows", "INGEST__ON_ERROR": "skip"}
        ingest = flow.ingest(**making)
        with stopping([ingest]):
            ingest.start()
            wait(flow.exists)
            flow.wait_rows(2)
            wait(lambda: ingest.metric("committerd_ingest_bad_records_total") == 1)
            ingest.stop()
        assert flow.schema().equals(pa.schema([("id", pa.int64()), ("text", pa.string())]))
        flow.put("3.jsonl", 3)
        shown = flow.command("ingest", "--dry-run")
        assert '{"id": 3, "text": "row 3"}' in shown
        assert "1 rows were read; 0 parts are bad" in shown
        assert flow.ids() == [1, 2]


@pytest.mark.long
def test_a_split_whose_mark_was_released_goes_on_when_somebody_says_where(flow: FilesFlow) -> None:
    flow.put("1.jsonl", 1)
    ingest = flow.ingest()
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(1)
        assert "nothing to settle" in flow.command("ingest", "settle", "files", "--rows", "there", good=False)
        (app_id,) = (
            key.removeprefix("committerd.app.")
            for key in flow.scene.table.metadata()
            if key.startswith("committerd.app.")
        )
        ingest.stop()
        flow.command("app", "release", app_id, "--apply", "--reason", "test")
        again = flow.ingest()
        with stopping([again]):
            again.start()
            wait(lambda: any(one["reason"] == "mark_released" for one in again.lines("ingest.split_stopped")))
            flow.put("2.jsonl", 2)
            settling = ("ingest", "settle", "files", "--rows", "there")
            assert "Nothing was written" in flow.command(*settling)
            found: Mapping[str, Any] = json.loads(flow.command(*settling, "--json", "--apply", "--reason", "test"))
            assert found["written"]
            flow.wait_rows(2)
            again.stop()
    assert flow.ids() == [1, 2]
    assert lance.dataset(flow.scene.table.uri).count_rows() == 2


def test_a_reader_that_responds_no_more_stops_its_split_alone_and_the_process_ends_on_sigterm(flow: FilesFlow) -> None:
    reading = {"INGEST__SOURCE": "tests.ingest.stuck:Stuck", "INGEST__FOLDER": "", "DAEMON__DRAIN_SECONDS": "1"}
    ingest = flow.ingest(**reading)
    with stopping([ingest]):
        ingest.start()
        flow.wait_rows(2)
        ingest.wait_ready(text="has not responded for split stuck")
        ingest.wait_ready(text="The lag is not known: RuntimeError: the reader raised SystemExit: no number")
        wait(lambda: ingest.metric("committerd_ingest_stopped_partitions") == 2)
        stopped = {one["split"]: (one["reason"], one["error"]) for one in ingest.lines("ingest.split_stopped")}
        assert stopped["stuck"][0] == "reader_silent"
        assert stopped["bad"][0] == "bad_rows"
        assert "7: it is half a number" in stopped["bad"][1]
        ingest.stop(grace_seconds=120)
        assert ingest.code == 0
    assert flow.ids() == [1, 3]


@pytest.mark.long
def test_files_change_rows_by_their_keys_over_kills_as_debezium_writes_them_or_row_by_row(flow: FilesFlow) -> None:
    def envelope(op: str, before: int | None, after: dict[str, object] | None) -> dict[str, object]:
        row = None if before is None else {"id": before, "text": None}
        return {"before": row, "after": after, "source": {"lsn": 7, "snapshot": "last"}, "op": op, "ts_ms": 1}

    def put(name: str, rows: list[dict[str, object]]) -> None:
        hidden = flow.folder / f"_{name}"
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows), hidden)
        else:
            hidden.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
        hidden.rename(flow.folder / name)

    def table() -> dict[int, str]:
        rows = flow.rows()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["text"] for row in rows}

    flow.folder.mkdir()
    keyed: dict[str, Any] = {"INGEST__MODE": "cdc", "INGEST__KEYS": "id"}
    put("1.jsonl", [envelope("c", None, {"id": one, "text": "new"}) for one in range(5)])
    shown = flow.command("ingest", "--dry-run", **keyed)
    assert '{"id": 4, "text": "new", "__committerd_offset": 4, "__committerd_op": "upsert"}' in shown
    ingest = flow.ingest(**keyed)
    with stopping([ingest]):
        ingest.start()
        wait(lambda: table() == dict.fromkeys(range(5), "new"))
        put("2.parquet", [envelope("u", 1, {"id": 1, "text": "a"}), envelope("u", 1, {"id": 1, "text": "b"})])
        ingest.kill()
        ingest = flow.ingest(**keyed)
        ingest.start()
        put("3.jsonl", [envelope("d", 2, None), envelope("d", 3, None), envelope("c", None, {"id": 3, "text": "c"})])
        wait(lambda: table() == {0: "new", 1: "b", 3: "c", 4: "new"}, what=lambda: f"{table()}")
        put("4.jsonl", [envelope("d", 2, None)])  # there is no such row
        put("5.jsonl", [envelope("d", 4, None)])
        wait(lambda: table() == {0: "new", 1: "b", 3: "c"}, what=lambda: f"{table()}")
        put("6.jsonl", [envelope("d", None, None)])
        ingest.wait_ready(text="no row in before")
        (flow.folder / "6.jsonl").unlink()
        ingest.stop(grace_seconds=120)
        files = {"INGEST__PIPELINE": "rows", "INGEST__MODE": "upsert", "INGEST__KEYS": "id"}
        for name in ("1.jsonl", "2.parquet", "3.jsonl", "4.jsonl", "5.jsonl"):
            (flow.folder / name).unlink()
        put("7.jsonl", [{"id": 0, "text": "x"}, {"id": 9, "text": "y"}, {"id": 0, "text": "z"}])
        again = flow.ingest(**files)
        with stopping([again]):
            again.start()
            wait(lambda: table() == {0: "z", 1: "b", 3: "c", 9: "y"}, what=lambda: f"{table()}")
            again.stop(grace_seconds=120)
