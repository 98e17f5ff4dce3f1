"""Wrong use is an error at once: the message says what is wrong and what to do, and nothing is sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd_client import CommitClient, StagingError, SyncCommitClient, TableMissing, staging
from committerd_client.headers import Asking, make_record
from tests.producers.old_pylance import in_4

ROWS = pa.table({"id": [1, 2, 3]})


def test_a_path_is_taken_and_the_name_of_the_queue_follows_from_it() -> None:
    client = CommitClient("broker1:9092", dataset_uri=Path("/data/events.lance"))
    assert client._dataset_uri == "/data/events.lance"
    assert client._connection.staged_topic == "events.staged"
    assert CommitClient("b:1", dataset="e", dataset_uri="s3://b/t.lance")._connection.staged_topic == "e.staged"


@pytest.mark.parametrize("given", ["events.lance", "./events.lance", "file:events.lance", Path("data/events.lance")])
def test_a_relative_uri_is_refused_with_the_absolute_one(given: Any) -> None:
    with pytest.raises(ValueError, match=f"is relative.*{re.escape(str(Path.cwd()))}.*events.lance"):
        CommitClient("broker1:9092", dataset="events", dataset_uri=given)


def test_a_client_needs_a_name_or_a_uri() -> None:
    with pytest.raises(ValueError, match=r"dataset=.*dataset_uri="):
        SyncCommitClient("broker1:9092")
    with pytest.raises(TypeError, match=r"bytes.*a str or a Path"):
        CommitClient("broker1:9092", dataset_uri=b"/data/events.lance")  # type: ignore[arg-type]


@pytest.mark.parametrize("helper", ["append", "create", "overwrite"])
@pytest.mark.parametrize("rows", [ROWS, ROWS.to_batches(), ROWS.to_pylist()], ids=["table", "batches", "dicts"])
def test_rows_where_fragments_belong(helper: str, rows: Any) -> None:
    arguments = [] if helper == "append" else [ROWS.schema]
    with pytest.raises(TypeError, match=rf"write_fragments\(\) returned, not .*client\.{helper}\(rows\)"):
        getattr(staging, helper)(rows, *arguments)


def test_rows_where_a_transaction_belongs() -> None:
    with pytest.raises(TypeError, match=r"not Table\..*client\.append\(rows\)"):
        make_record(ROWS, Asking(), [])


def test_no_fragments(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, tmp_path / "t.lance")
    none = write_fragments(ROWS.slice(0, 0), dataset, mode="append")
    with pytest.raises(StagingError, match="there are no fragments") as refused:
        staging.append(none, dataset=dataset)
    assert refused.value.code == "nothing_to_stage"


def test_fragments_of_the_table_itself_and_of_another_table(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, tmp_path / "t.lance")
    with pytest.raises(TypeError, match="fragments of a table, and not new ones"):
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


CALLS: dict[str, tuple[Callable[[SyncCommitClient], Any], type[Exception], str]] = {
    "path": (lambda client: client.append("/data/events.parquet"), TypeError, "the path '/data/events.parquet': read"),  # type: ignore[arg-type]
    "schema": (lambda client: client.append(ROWS.schema), TypeError, r"not pyarrow\.lib\.Schema"),
    "number": (lambda client: client.append(7), TypeError, "a list of dicts or a dict of columns is needed, not int"),  # type: ignore[arg-type]
    "mixed list": (lambda client: client.append([{"id": 1}, 2]), TypeError, "not a list with"),  # type: ignore[arg-type]
    "uneven": (lambda client: client.append({"id": [1], "n": []}), StagingError, "different numbers of rows"),
    "no table": (lambda client: client.append(ROWS), TableMissing, r"no table at /.*create=True"),
    "no table to delete from": (lambda client: client.delete("id = 1"), TableMissing, "no table at /"),
    "delete by list": (lambda client: client.delete([1, 2]), TypeError, "such as 'id = 3', not list"),  # type: ignore[arg-type]
    "update swapped": (lambda client: client.update("id = 1", {"id": 2}), TypeError, "values first"),  # type: ignore[arg-type]
    "update of nothing": (lambda client: client.update({}), ValueError, "needs the new values"),
    "update twice": (lambda client: client.update({"id": 1}, values_sql={"id": "2"}), ValueError, "'id' in values and"),
    "merge of nothing": (lambda client: client.merge_insert(ROWS, on="id"), ValueError, "without a clause"),
    "no columns": (lambda client: client.create([]), StagingError, "a table needs columns"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_call_is_refused_before_the_client_has_connected(case: str, tmp_path: Path) -> None:
    call, kind, told = CALLS[case]

    class NoKafka(SyncCommitClient):
        def _call(self, make: Any) -> Any:
            import asyncio

            return asyncio.run(make(self._make()))

    with pytest.raises(kind, match=told):
        call(NoKafka("broker1:9092", dataset_uri=tmp_path / "events.lance"))
