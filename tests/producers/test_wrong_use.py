"""Wrong use is an error at once: the message says what is wrong and what to do, and nothing is sent."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kafka import KafkaConsumer, TopicPartition
from lance.fragment import write_fragments

from committerd_batch.job import Job
from committerd_client import (
    ClientClosed,
    CommitClient,
    InvalidTransaction,
    StagingError,
    SyncCommitClient,
    TableMissing,
    staging,
)
from committerd_client.headers import RecordOptions, make_record
from committerd_spark import LanceBatchWriter
from committerd_spark.options import Options
from harness.kafka import KafkaBroker, RunningKafka
from tests.producers.answering import make_topics
from tests.producers.old_pylance import in_4

ROWS = pa.table({"id": [1, 2, 3]})
TABLE = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})


def test_a_path_is_taken_and_the_name_of_the_queue_follows_from_it() -> None:
    client = CommitClient("broker1:9092", dataset_uri=Path("/data/events.lance"))
    assert client._dataset_uri == "/data/events.lance"
    assert client._connection.staged_topic == "events.staged"
    assert CommitClient("b:1", dataset="e", dataset_uri="s3://b/t.lance")._connection.staged_topic == "e.staged"


@pytest.mark.parametrize("given", ["events.lance", "./events.lance", "file:events.lance", Path("data/events.lance")])
def test_a_relative_uri_is_refused_with_the_absolute_one(given: Any) -> None:
    with pytest.raises(ValueError, match=f"is relative.*{re.escape(str(Path.cwd()))}.*events.lance"):
        CommitClient("broker1:9092", dataset="events", dataset_uri=given)


OPTIONS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "neither name nor URI": ("b:1", {}, ValueError, r"dataset=.*dataset_uri="),
    "URI of bytes": ("b:1", {"dataset_uri": b"/data/e.lance"}, TypeError, r"bytes.*a str or a Path"),
    "URI of a dataset": ("b:1", {"dataset_uri": ROWS}, TypeError, r"Table.*a str or a Path"),
    "empty URI": ("b:1", {"dataset": "e", "dataset_uri": " "}, ValueError, "dataset_uri is empty"),
    "URI as the name": ("b:1", {"dataset": "/data/e.lance"}, ValueError, "the table's URI goes to dataset_uri"),
    "path as the name": ("b:1", {"dataset": Path("/e.lance")}, TypeError, "dataset takes a str, not PosixPath"),
    "no servers": ("", {"dataset": "e"}, ValueError, "'broker1:9092,broker2:9092' or a list .* none was given"),
    "empty list of servers": ([], {"dataset": "e"}, ValueError, "none was given"),
    "None for servers": (None, {"dataset": "e"}, TypeError, "bootstrap_servers takes Kafka's addresses.*not None"),
    "table in place of servers": ("/data/e.lance", {"dataset": "e"}, ValueError, "'/data/e.lance' is not an address"),
    "port that is none": ("b:kafka", {"dataset": "e"}, ValueError, r"'b:kafka' is not an address \(host:port\)"),
    "port that is too high": ("b:90920", {"dataset": "e"}, ValueError, "'b:90920' is not an address"),
    "timeout as text": ("b:1", {"dataset": "e", "timeout": "30"}, TypeError, "timeout takes a number of sec.*'30'"),
    "negative timeout": ("b:1", {"dataset": "e", "timeout": -1}, ValueError, "timeout=-1: .* None means no limit"),
    "endless end": ("b:1", {"dataset": "e", "close_timeout": None}, ValueError, "close_timeout needs a number"),
    "start as text": ("b:1", {"dataset": "e", "connect_timeout": "9"}, TypeError, "connect_timeout takes a number"),
    "storage options as a list": (
        "b:1",
        {"dataset": "e", "storage_options": ["a"]},
        TypeError,
        "a dict of strings.*list",
    ),
    "storage option that is no text": ("b:1", {"dataset": "e", "storage_options": {"port": 9}}, TypeError, "'port': 9"),
    "Kafka options as text": ("b:1", {"dataset": "e", "kafka_options": "ssl"}, TypeError, "a dict of kafka-python"),
    "unknown Kafka option": ("b:1", {"dataset": "e", "kafka_options": {"ack": 1}}, ValueError, "mean 'acks'|no option"),
    "producer without a name": ("b:1", {"dataset": "e", "producer": ""}, ValueError, "producer is empty"),
    "unknown option": ("b:1", {"dataset": "e", "time_out": 3}, TypeError, "unexpected keyword argument 'time_out'"),
}


@pytest.mark.parametrize("kind", [CommitClient, SyncCommitClient])
@pytest.mark.parametrize("case", OPTIONS)
def test_a_client_with_wrong_options_is_not_made(case: str, kind: Any) -> None:
    servers, options, error, told = OPTIONS[case]
    with pytest.raises(error, match=told):
        kind(servers, **options)


@pytest.mark.parametrize("where", ["ssl_keyfile", "ssl_certfile"])
def test_an_encrypted_key_without_a_password_never_asks_on_the_terminal(where: str, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMII=\n")
    given = {"security_protocol": "SSL", where: file}
    with pytest.raises(ValueError, match=r"key\.pem' is encrypted: set ssl_password"):
        SyncCommitClient("b:1", dataset="e", kafka_options=given)
    assert "not started" in repr(CommitClient("b:1", dataset="e", kafka_options={**given, "ssl_password": "s3cret"}))


@pytest.mark.parametrize("servers", ["b", "b:1, c:2", ["b:1", "[::1]:9092", "::1"], "SASL_SSL://b:1", ("b:1",)])
def test_servers_in_the_forms_of_kafka_are_taken(servers: Any) -> None:
    assert "not started" in repr(CommitClient(servers, dataset="e"))


@pytest.mark.parametrize("helper", ["append", "create", "overwrite"])
@pytest.mark.parametrize("rows", [ROWS, ROWS.to_batches(), ROWS.to_pylist()], ids=["table", "batches", "dicts"])
def test_rows_where_fragments_belong(helper: str, rows: Any) -> None:
    arguments = [] if helper == "append" else [ROWS.schema]
    with pytest.raises(TypeError, match=rf"write_fragments\(\) returned, not .*client\.{helper}\(rows\)"):
        getattr(staging, helper)(rows, *arguments)


def test_rows_where_a_transaction_belongs() -> None:
    with pytest.raises(TypeError, match=r"not Table\..*client\.append\(rows\)"):
        make_record(ROWS, RecordOptions(), [])


def test_no_fragments(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, tmp_path / "t.lance")
    none = write_fragments(ROWS.slice(0, 0), dataset, mode="append")
    with pytest.raises(StagingError, match="there are no fragments") as refused:
        staging.append(none, dataset=dataset)
    assert refused.value.code == "nothing_to_stage"


def test_fragments_of_the_table_itself_and_of_another_table(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, tmp_path / "t.lance")
    with pytest.raises(TypeError, match="fragments belong to a table already"):
        staging.append(dataset.get_fragments(), dataset=dataset)
    others = write_fragments(ROWS, str(tmp_path / "other.lance"), mode="create")
    with pytest.raises(StagingError, match=rf"no file {tmp_path}/t.lance/data/.*written for another table") as refused:
        staging.append(others, dataset=dataset)
    assert refused.value.code == "files_elsewhere"


def test_a_create_without_rows_has_the_storage_version_of_this_pylance(tmp_path: Path) -> None:
    default = lance.write_dataset(ROWS, tmp_path / "t.lance").data_storage_version
    assert staging.create([], ROWS.schema).create_options == {"data_storage_version": default}
    old = in_4(
        "from committerd_client import staging; import pyarrow as pa;"
        "print(staging.create([], pa.schema([('id', pa.int64())])).create_options['data_storage_version'])"
    )
    assert old.strip() == "2.0"
    assert default == "2.2"


Call = Callable[[Any], Any]
CALLS: dict[str, tuple[Call, type[Exception], str]] = {
    # Rows
    "path": (lambda c: c.append("/data/e.parquet"), TypeError, "the path '/data/e.parquet': read the file"),
    "schema in place of rows": (
        lambda c: c.append(ROWS.schema),
        TypeError,
        r"not pyarrow\.lib\.Schema: create\(schema\)",
    ),
    "number": (lambda c: c.append(7), TypeError, "a list of dicts or a dict of columns is needed, not int"),
    "None": (lambda c: c.append(None), TypeError, "is needed, not NoneType"),
    "mixed list": (lambda c: c.append([{"id": 1}, 2]), TypeError, "not a list with int"),
    "tuples": (lambda c: c.append([(1, "a")]), TypeError, "not a list with tuple"),
    "one row": (lambda c: c.append({"id": 1, "name": "a"}), TypeError, r"'id' has 1\. One row is a list .*\[row\]"),
    "text in place of a column": (
        lambda c: c.append({"name": "abc"}),
        TypeError,
        "for each column, and 'name' has 'abc'",
    ),
    "scalar of numpy": (
        lambda c: c.append({"id": np.array(1)}),
        TypeError,
        "a list of values for each column, and 'id'",
    ),
    "series": (lambda c: c.append(pd.Series([1])), TypeError, "has no column's name: give {'name': values}"),
    "array": (lambda c: c.append(ROWS["id"]), TypeError, "ChunkedArray has no column's name"),
    "uneven": (lambda c: c.append({"id": [1], "name": []}), StagingError, "different numbers of rows"),
    "rows without columns": (lambda c: c.append([{}]), StagingError, "the rows have no columns"),
    "unknown column": (lambda c: c.append([{"id": 1, "nam": ""}]), StagingError, r"'nam' is not in .*mean 'name'\?"),
    "value of another type": (lambda c: c.append([{"id": "x"}]), StagingError, "column 'id' is int64 in the table"),
    # Keys
    "unknown key": (lambda c: c.upsert(TABLE, on="nme"), StagingError, r"no column 'nme' .*mean 'name'\?.* id, name"),
    "no key": (lambda c: c.upsert(TABLE), StagingError, "no unenforced primary key: name the columns"),
    "empty key": (lambda c: c.upsert(TABLE, on=[]), ValueError, "on names no column"),
    "key that is a number": (lambda c: c.upsert(TABLE, on=7), TypeError, "on takes a name or a list of names, not 7"),
    "rows without the key": (
        lambda c: c.upsert([{"name": "a"}], on="id"),
        StagingError,
        "no column 'id', which is part",
    ),
    "keys of an Append": (
        lambda c: c.append(TABLE, keys="idd"),
        StagingError,
        "no column 'idd', which is part of the key",
    ),
    "keys that are a number": (lambda c: c.append(TABLE, keys=7), TypeError, "keys takes a name or a list of names"),
    "merge of nothing": (lambda c: c.merge_insert(ROWS, on="id"), ValueError, "without a clause: give one of when_m"),
    # Predicates and values
    "delete by list": (lambda c: c.delete([1, 2]), TypeError, "such as 'id = 3', not list"),
    "delete of None": (lambda c: c.delete(None), TypeError, "such as 'id = 3', not None"),
    "empty predicate": (lambda c: c.delete(" "), ValueError, "predicate of delete is empty: 'true' means all rows"),
    "predicate on an unknown column": (lambda c: c.delete("nme = 1"), ValueError, "No field named nme"),
    "predicate that is a column": (lambda c: c.delete("id"), ValueError, "does not return a boolean"),
    "update swapped": (lambda c: c.update("id = 1", {"id": 2}), TypeError, "values first and the predicate second"),
    "update of nothing": (lambda c: c.update({}), ValueError, "needs the new values"),
    "update of a list": (lambda c: c.update(["name"]), TypeError, r"values takes a dict of columns.*\['name'\]"),
    "update twice": (lambda c: c.update({"id": 1}, values_sql={"id": "2"}), ValueError, "'id' in values and"),
    "update of an unknown column": (lambda c: c.update({"nme": 1}), StagingError, "no column 'nme' in the table"),
    "update of another type": (lambda c: c.update({"id": "x"}), StagingError, "column 'id' is int64 in the table, and"),
    "SQL of an unknown column": (lambda c: c.update(values_sql={"nme": "1"}), StagingError, "no column 'nme'"),
    "SQL as text": (lambda c: c.update(values_sql="id = 3"), TypeError, "values_sql takes a dict of columns"),
    "where as a number": (lambda c: c.update({"id": 1}, 7), TypeError, "update takes an SQL predicate.*not int"),
    "empty where": (lambda c: c.update({"id": 1}, ""), ValueError, "predicate of update is empty"),
    # Schemas, columns and indices
    "create of types": (lambda c: c.create({"id": pa.int64()}), TypeError, r"For a schema, give pa\.schema"),
    "create of a table that exists": (
        lambda c: c.create([{"id": 1}], schema="id"),
        TypeError,
        "schema takes a pyarrow sch",
    ),
    "schema as a dict": (
        lambda c: c.overwrite(ROWS, schema={"id": "int"}),
        TypeError,
        r"schema takes a pyarrow schema",
    ),
    "overwrite by a schema": (lambda c: c.overwrite(ROWS.schema), TypeError, r"schema\.empty_table\(\) has no rows"),
    "overwrite by nothing": (lambda c: c.overwrite([]), StagingError, "a table needs columns"),
    "column that is there": (lambda c: c.add_columns({"name": "id"}), StagingError, "'name' would be there twice"),
    "columns as a list": (lambda c: c.add_columns(["total"]), TypeError, "a dict of SQL expressions"),
    "columns as types": (lambda c: c.add_columns({"n": pa.int64()}), TypeError, r"give pa\.schema"),
    "no columns to add": (lambda c: c.add_columns({}), StagingError, "add_columns got no column"),
    "drop of an unknown column": (lambda c: c.drop_columns("nme"), StagingError, "no column 'nme' in the table"),
    "drop of nothing": (lambda c: c.drop_columns([]), StagingError, "drop_columns got no column"),
    "no alteration": (lambda c: c.alter_columns(), StagingError, "alter_columns got no change"),
    "alterations as a list": (lambda c: c.alter_columns([{"path": "id"}]), TypeError, "such as {'path': 'id', 'name'"),
    "alteration without a path": (lambda c: c.alter_columns({"name": "x"}), TypeError, "changes such as {'path'"),
    "alteration of nothing": (lambda c: c.alter_columns({"path": "id"}), StagingError, "changes nothing; give name"),
    "unknown part of an alteration": (
        lambda c: c.alter_columns({"path": "id", "nme": "x"}),
        TypeError,
        "knows no 'nme': a change has path, name, nullable and data_type",
    ),
    "type as text": (
        lambda c: c.alter_columns({"path": "id", "data_type": "int32"}),
        TypeError,
        r"such as pa\.int64\(\), not 'int32'",
    ),
    "index on an unknown column": (lambda c: c.create_index("nme", "BTREE"), StagingError, "no column 'nme' in the"),
    "index on two columns": (lambda c: c.create_index(["id", "name"], "BTREE"), TypeError, "the name of one column"),
    "index without a type": (lambda c: c.create_index("id", None), TypeError, "as a str, such as 'BTREE', not None"),
    "unknown index": (lambda c: c.optimize_indices("id_idx"), StagingError, "no index 'id_idx'; it has none"),
    "version as text": (lambda c: c.restore("1"), TypeError, "version takes a whole number, not '1'"),
    "version to come": (lambda c: c.restore(99), StagingError, "no version 99; its latest one is 1"),
    "unknown option of a compaction": (lambda c: c.compact(nope=1), ValueError, "nope"),
    # What all calls have
    "app as a name": (lambda c: c.append(TABLE, app="daily"), TypeError, r"app takes \(app_id, version\).*'daily'"),
    "app without a version": (lambda c: c.append(TABLE, app=("daily",)), TypeError, r"app takes \(app_id, version\)"),
    "app with a date": (lambda c: c.append(TABLE, app=("daily", "2026-03-29")), TypeError, "'2026-03-29'"),
    "app swapped": (lambda c: c.append(TABLE, app=(20260329, "daily")), TypeError, r"not \(20260329, 'daily'\)"),
    "app id with a blank": (
        lambda c: c.append(TABLE, app=("a b", 1)),
        InvalidTransaction,
        r"app=\('a b', 1\).*characters",
    ),
    "properties of numbers": (lambda c: c.append(TABLE, properties={"a": 1}), TypeError, "and has 'a': 1"),
    "properties of the committer": (
        lambda c: c.append(TABLE, properties={"committerd.x": ""}),
        StagingError,
        "property 'committerd.x': .* the committer's",
    ),
    "no attempts": (
        lambda c: c.upsert(TABLE, on="id", attempts=0),
        ValueError,
        "attempts=0: the first execution counts",
    ),
    "attempts as text": (lambda c: c.upsert(TABLE, on="id", attempts="3"), TypeError, "attempts takes a whole number"),
    "timeout as text": (lambda c: c.append(TABLE, timeout="1m"), TypeError, "timeout takes a number of seconds.*'1m'"),
    "files without rows": (
        lambda c: c.append(TABLE, max_rows_per_file=0),
        ValueError,
        "max_rows_per_file=0: at least 1",
    ),
    # Transactions
    "rows as a transaction": (lambda c: c.commit(ROWS), TypeError, r"not Table\..*client\.append\(rows\)"),
    "None as a transaction": (lambda c: c.commit(None), TypeError, "None, which helpers return if there is nothing"),
    "several transactions": (lambda c: c.commit([_staged()]), TypeError, "not a list of them: call commit_many"),
    "one transaction for many": (
        lambda c: c.commit_many(_staged()),
        TypeError,
        "takes a list of transactions.*call commit",
    ),
    "bytes that are none": (lambda c: c.commit(b"x"), InvalidTransaction, "is not a lance.table.Transaction"),
    "unknown option of a commit": (
        lambda c: c.commit(_staged(), app_id="a"),
        TypeError,
        "no option 'app_id'; it has app,",
    ),
    "deadline in seconds": (
        lambda c: c.commit(_staged(), deadline=30),
        TypeError,
        "a datetime with a time zone, not 30",
    ),
    "work in place of a function": (
        lambda c: c.commit(_staged(), reexecute=_staged()),
        TypeError,
        "reexecute takes a function that does the work again and returns it, not Staged",
    ),
    "bookmark as a tuple": (
        lambda c: c.resume("5e1dcf7e-1f0c-4b6e-9f57-0d2f1b3a7c11", since=(1, 2)),
        TypeError,
        r"Bookmark\(\*kept\), or a datetime, not \(1, 2\)",
    ),
    "uuid that is an object": (lambda c: c.resume(uuid.uuid4(), since=None), TypeError, "resume takes a str, not UUID"),
}


def _staged() -> Any:
    return staging.create([], ROWS.schema)


class Place:
    """A table and its topics, which stay as they are; and a client that is connected."""

    def __init__(self, client: SyncCommitClient, uri: str) -> None:
        self.client, self.uri = client, uri

    def make(self, call: Call, *, own_loop: bool) -> Any:
        """Make the call on the client; `own_loop`: on the `CommitClient` behind it, in its event loop."""
        return self.client._call(call) if own_loop else call(self.client)


@pytest.fixture(scope="module")
def place(kafka: KafkaBroker | RunningKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    name, uri = f"wrong-{uuid.uuid4().hex[:8]}", str(tmp_path_factory.mktemp("wrong") / "t.lance")
    make_topics(kafka.bootstrap_servers, name)
    lance.write_dataset(TABLE, uri)
    with SyncCommitClient(kafka.bootstrap_servers, dataset=name, dataset_uri=uri, timeout=60) as client:
        yield Place(client, uri)
    topic = TopicPartition(f"{name}.staged", 0)
    with contextlib.closing(KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)) as consumer:
        assert consumer.end_offsets([topic])[topic] == 0, "something was sent"
    assert lance.dataset(uri).version == 1


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.parametrize("own_loop", [False, True], ids=["SyncCommitClient", "CommitClient"])
@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_call_is_refused_and_nothing_is_sent(case: str, own_loop: bool, place: Place) -> None:
    call, kind, told = CALLS[case]
    with pytest.raises(kind, match=told):
        place.make(call, own_loop=own_loop)


WITHOUT_A_TABLE: dict[str, tuple[Call, type[Exception], str]] = {
    "append": (lambda c: c.append(TABLE), TableMissing, "no table at /.*create=True"),
    "delete": (lambda c: c.delete("id = 1"), TableMissing, "no table at /"),
    "compact": (lambda c: c.compact(), TableMissing, "no table at /"),
    "create without columns": (lambda c: c.create([]), StagingError, "a table needs columns"),
    "upsert by an unknown key": (
        lambda c: c.upsert(TABLE, on="idd", create=True),
        StagingError,
        "no column 'idd', which is part of the key; they have id, name",
    ),
    "upsert without a key": (
        lambda c: c.upsert(TABLE, create=True),
        StagingError,
        "the new table would have no unenforced primary key: name the columns",
    ),
    "append that names an unknown key": (
        lambda c: c.append(TABLE, keys="idd", create=True),
        StagingError,
        "no column 'idd'",
    ),
}


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.parametrize("case", WITHOUT_A_TABLE)
def test_a_call_that_makes_no_sense_without_a_table(
    case: str, place: Place, kafka: KafkaBroker | RunningKafka, tmp_path: Path
) -> None:
    call, kind, told = WITHOUT_A_TABLE[case]
    name = place.client._make()._connection.dataset
    with (
        SyncCommitClient(kafka.bootstrap_servers, dataset=name, dataset_uri=tmp_path / "new.lance") as client,
        pytest.raises(kind, match=told),
    ):
        call(client)
    assert not (tmp_path / "new.lance").exists()


@pytest.mark.kafka
@pytest.mark.pylance
def test_no_rows_are_no_error(place: Place) -> None:
    for call in (lambda c: c.append([]), lambda c: c.upsert([], on="id"), lambda c: c.append({})):
        assert place.make(call, own_loop=False).version == 1


helpers: Any = staging  # its types know better

STAGING: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "path as a dataset": (
        lambda t: helpers.delete(t.uri, "id = 1"),
        TypeError,
        r"such as lance\.dataset\(uri\), not '/",
    ),
    "swapped": (lambda t: helpers.delete("id = 1", t), TypeError, "a dataset of pylance is needed.*'id = 1'"),
    "path of an append": (lambda t: helpers.append([], dataset=t.uri), TypeError, "a dataset of pylance is needed"),
    "path as fragments": (lambda t: helpers.append(t.uri, dataset=t), TypeError, "returned, not str"),
    "None as fragments": (lambda t: helpers.append(None, dataset=t), TypeError, "returned, not None"),
    "names as keys": (
        lambda t: helpers.append(_new(t), dataset=t, keys="id"),
        TypeError,
        r"keys takes what .*keys_of\(",
    ),
    "version as text": (lambda t: helpers.append(_new(t), read_version="1"), TypeError, "number of a version, not '1'"),
    "no schema": (lambda t: helpers.create(_new(t), None), TypeError, r"pa\.schema\(.*rows\.schema, not None"),
    "rows as a schema": (
        lambda t: helpers.overwrite(_new(t), TABLE),
        TypeError,
        "a pyarrow schema is needed.*not Table",
    ),
    "another schema": (
        lambda t: helpers.create(_new(t), ROWS.schema),
        StagingError,
        r"fields \[1\], which the schema does",
    ),
    "predicate": (lambda t: helpers.delete(t, 1), TypeError, "an SQL predicate as a string"),
    "no update": (lambda t: helpers.update(t, {}), StagingError, "update got no column to set"),
    "update as text": (lambda t: helpers.update(t, "id = 1"), TypeError, "update takes a dict of columns"),
    "empty where": (lambda t: helpers.update(t, {"id": "1"}, ""), ValueError, "predicate of update is empty"),
    "rows of a merge": (lambda t: helpers.merge_insert(t, [{"id": 1}], on="id"), TypeError, "pyarrow Table.*not list"),
    "column of a merge": (
        lambda t: helpers.merge_insert(t, pa.table({"id": [1], "nam": [""]}), on="id"),
        StagingError,
        r"no column 'nam' in the table \(did you mean 'name'\?\)",
    ),
    "rows of keys": (lambda t: helpers.keys_of(t, "id", [1]), TypeError, "keys_of takes rows as a pyarrow Table"),
    "rows without keys": (lambda t: helpers.keys_of(t, "name", ROWS), StagingError, "the rows have no column 'name'"),
    "keys of other columns": (
        lambda t: helpers.joined_keys([helpers.keys_of(t, one, TABLE) for one in ("id", "name")]),
        ValueError,
        "keys of different columns",
    ),
    "unknown column in a text": (
        lambda t: helpers.drop_columns(t, "nme"),
        StagingError,
        "no column 'nme' in the table",
    ),
    "unknown index in a text": (lambda t: helpers.optimize_indices(t, "id_idx"), StagingError, "no index 'id_idx'"),
    "config of numbers": (lambda t: helpers.update_config(t, config={"a": 1}), TypeError, "dicts of strings.*'a': 1"),
    "config as a list": (lambda t: helpers.update_config(t, config=["a"]), TypeError, "dicts of strings.*not list"),
    "empty config": (lambda t: helpers.update_config(t, config={}), StagingError, "nothing to change"),
    "ids as text": (lambda t: helpers.reserve_fragments(t, "2"), TypeError, "takes a whole number, not '2'"),
    "files as a list": (lambda t: helpers.data_replacement(t, [1]), TypeError, "a dict of files by fragment id"),
    "uuid that is an object": (
        lambda t: helpers.delete(t, "id = 1", uuid=uuid.uuid4()),
        TypeError,
        "uuid takes a str, not UUID",
    ),
}


def _new(table: lance.LanceDataset) -> Any:
    return write_fragments(TABLE, table, mode="append")


@pytest.mark.pylance
@pytest.mark.parametrize("case", STAGING)
def test_a_helper_refuses_what_it_can_not_stage(case: str, tmp_path: Path) -> None:
    call, kind, told = STAGING[case]
    with pytest.raises(kind, match=told):
        call(lance.write_dataset(TABLE, tmp_path / "t.lance"))


@pytest.mark.kafka
@pytest.mark.pylance
def test_changes_of_another_table_are_not_sent(place: Place, tmp_path: Path) -> None:
    other = lance.write_dataset(TABLE, tmp_path / "other.lance")
    for staged in (staging.append(_new(other), dataset=other), staging.delete(other, "id = 1")):
        with pytest.raises(StagingError, match=f"for the table at {other.uri}, and this client commits to {place.uri}"):
            place.client.commit(staged)
    files = write_fragments(TABLE, other.uri, mode="overwrite")
    with pytest.raises(StagingError, match=f"no file {place.uri}/data/.* written for another table") as refused:
        place.client.commit(staging.overwrite(files, TABLE.schema))
    assert refused.value.code == "files_elsewhere"
    with pytest.raises(StagingError, match=f"no file {place.uri}/data/"):
        staging.overwrite(files, TABLE.schema, dataset=lance.dataset(place.uri))


@pytest.mark.kafka
@pytest.mark.pylance
def test_a_client_that_is_not_open_writes_no_file(place: Place, kafka: KafkaBroker | RunningKafka) -> None:
    options: dict[str, Any] = {"dataset": place.client._make()._connection.dataset, "dataset_uri": place.uri}
    before = len(list(Path(place.uri, "data").iterdir()))
    sync = SyncCommitClient(kafka.bootstrap_servers, **options)
    sync.close()
    with pytest.raises(ClientClosed, match="make another client"):
        sync.append(TABLE)
    fresh = CommitClient(kafka.bootstrap_servers, **options)
    with pytest.raises(RuntimeError, match=r"not started: use `async with CommitClient"):
        asyncio.run(fresh.append(TABLE))

    async def closed() -> None:
        async with CommitClient(kafka.bootstrap_servers, **options) as client:
            pass
        await client.append(TABLE)

    with pytest.raises(ClientClosed, match="make another client"):
        asyncio.run(closed())
    started = CommitClient(kafka.bootstrap_servers, **options)

    async def start(then: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        await then()

    with asyncio.Runner() as runner:
        runner.run(start(started.start))
        with pytest.raises(RuntimeError, match="another event loop: make a client in each"):
            asyncio.run(started.append(TABLE))
        runner.run(started.aclose())
    assert len(list(Path(place.uri, "data").iterdir())) == before


@pytest.mark.kafka
async def test_a_synchronous_client_works_where_a_loop_runs_as_in_a_notebook(place: Place) -> None:
    assert place.client.append([]).version == 1


WRITES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "relative": ({"uri": "e.lance"}, ValueError, "is relative"),
    "URI of bytes": ({"uri": b"/e.lance"}, TypeError, "a str or a Path"),
    "unknown mode": (
        {"mode": "replace"},
        ValueError,
        "mode takes one of append, overwrite, upsert, delete, cdc, not 're",
    ),
    "unknown schema mode": (
        {"schema_mode": "loose"},
        ValueError,
        "schema_mode takes one of strict, merge, not 'loose'",
    ),
    "mode without keys": ({"mode": "upsert"}, ValueError, r"needs keys=\[\.\.\.\]"),
    "keys that are a number": ({"keys": 7}, TypeError, "keys takes a name or a list of names, not 7"),
    "schema as a dict": ({"schema": {"id": "int"}}, TypeError, "schema takes a pyarrow schema"),
    "rows per file": ({"target_rows_per_file": 0}, ValueError, "target_rows_per_file=0: at least 1"),
    "no servers": ({"bootstrap_servers": ""}, ValueError, "none was given"),
    "unknown argument": ({"app": ("a", 1)}, TypeError, "'app'"),
}


@pytest.mark.parametrize("writer", ["spark", "job"])
@pytest.mark.parametrize("case", WRITES)
def test_a_batch_writer_with_wrong_arguments_is_not_made(case: str, writer: str) -> None:
    given, kind, told = WRITES[case]
    options = {"uri": "/data/e.lance", "bootstrap_servers": "b:1", **given}
    uri = options.pop("uri")

    def make() -> Any:
        made: Any = options
        return LanceBatchWriter(uri, **made) if writer == "spark" else Job(uri, ROWS.schema, made, engine="ray")

    with pytest.raises(kind, match=told):
        make()


def test_a_job_needs_servers_and_both_halves_of_its_key() -> None:
    for options, told in (
        ({}, "needs bootstrap_servers"),
        ({"bootstrap_servers": "b:1", "app_id": "a"}, "belong together"),
        ({"bootstrap_servers": "b:1", "app_id": "a", "app_version": "1"}, r"app takes \(app_id, version\)"),
        (
            {"bootstrap_servers": "b:1", "appid": "a", "app_version": 1},
            r"no argument 'appid' \(did you mean 'app_id'\?\)",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=told):
            Job("/data/e.lance", ROWS.schema, options, engine="ray")  # type: ignore[arg-type]


def test_a_path_is_taken_by_batch_writers() -> None:
    assert "/data/e.lance" in repr(LanceBatchWriter(Path("/data/e.lance"), bootstrap_servers="b:1"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"path": "e.lance"}, "is relative"),
        ({"mode": "replace"}, "mode takes one of append, overwrite"),
        ({"timeout": "1m"}, "option 'timeout' is a number, not '1m'"),
        ({"attempts": "many"}, "option 'attempts' is a number"),
        ({"target_rows_per_file": "all"}, "option 'target_rows_per_file' is a number"),
        ({"app_id": "a", "app_version": "2026-03-29"}, "option 'app_version' is a number, not '2026-03-29'"),
        ({"app_id": "a"}, "belong together"),
        ({"appid": "a", "keis": "id"}, r"no option 'keis' \(did you mean 'keys'\?\)"),
    ],
)
def test_options_of_the_data_source_that_can_not_be_right(given: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        _planned({"path": "/data/e.lance", "bootstrap_servers": "b:1", **given})


def _planned(given: dict[str, str]) -> Any:
    options = Options.of(given)
    return options.mode(overwrite=False), options.target, options.queue, options.app
