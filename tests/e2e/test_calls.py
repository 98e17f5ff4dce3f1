"""The calls that take data, against a real committer: one call each, from nothing to rows in the table."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from bench.same_new_keys import twice, with_committerd
from committerd_client import (
    CommitClient,
    CompactionResult,
    InvalidTransaction,
    Staged,
    StagingError,
    SyncCommitClient,
    TableExists,
    TableMissing,
    WriteResult,
)
from committerd_client.changes import Append
from committerd_client.data import rows_of
from committerd_client.headers import StagedChange
from committerd_client.table_location import TableLocation
from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def _client(scene: Scene, **options: Any) -> SyncCommitClient:
    return SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri, **options)


def _rows(scene: Scene) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in lance.dataset(scene.table.uri).to_table().to_pylist())


def test_each_call_changes_the_table_and_counts_its_rows(scene: Scene) -> None:
    scene.daemon()
    with _client(scene) as client:
        with pytest.raises(TableMissing, match="create=True"):
            client.append([{"id": 1}])
        with pytest.raises(StagingError, match="a table needs columns"):
            client.append([], create=True)
        made = client.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], create=True)
        assert (made.version, made.num_inserted_rows, made.attempts) == (1, 2, 1)
        added = client.append(pa.table({"name": ["c"], "id": pa.array([3], pa.int32())}), create=True)
        assert (added.version, added.num_inserted_rows) == (2, 1)
        merged = client.upsert([{"id": 3, "name": "C"}, {"id": 4, "name": "d"}, {"id": 5, "name": "e"}], on="id")
        assert (merged.num_inserted_rows, merged.num_updated_rows, merged.num_deleted_rows) == (2, 1, 0)
        set_to = client.update({"name": "it's"}, where="id = 1")
        computed = client.update(values_sql={"id": "id + 10", "name": "upper(name)"}, where="id = 2")
        assert set_to.num_updated_rows == computed.num_updated_rows == 1
        gone = client.delete("id = 5")
        assert gone.num_deleted_rows == 1
        assert _rows(scene) == [(1, "it's"), (3, "C"), (4, "d"), (12, "B")]
        nothing = client.delete("id = 5")
        assert (nothing.num_deleted_rows, nothing.version, nothing.commit) == (0, gone.version, None)
        only_new = client.merge_insert(
            [{"id": 1, "name": "x"}, {"id": 6, "name": "f"}], on="id", when_not_matched_insert_all=True
        )
        assert (only_new.num_inserted_rows, only_new.num_updated_rows) == (1, 0)
        replaced = client.overwrite({"id": [7, 8]})
        assert replaced.num_inserted_rows == 2
        assert _rows(scene) == [(7,), (8,)]
        with pytest.raises(TableExists):
            client.create(pa.schema([("id", pa.int64())]))
        assert client.create(pa.schema([("id", pa.int64())]), exist_ok=True).num_inserted_rows == 0


@pytest.mark.parametrize("call", ["append", "upsert"])
def test_no_rows_make_a_table_if_they_have_columns(call: str, scene: Scene) -> None:
    scene.daemon()
    nothing = pa.schema([("id", pa.int64()), ("name", pa.string())]).empty_table()
    with _client(scene) as client:
        add = client.append if call == "append" else partial(client.upsert, on="id")
        made = add(nothing, create=True)
        assert (made.version, made.num_inserted_rows) == (1, 0)
        again = add(nothing, create=True)
        assert (again.version, again.commit) == (1, None)
    assert lance.dataset(scene.table.uri).schema == nothing.schema


async def test_two_that_create_the_table_at_once_both_add_their_rows(scene: Scene) -> None:
    scene.daemon()
    async with CommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri) as client:
        results = await asyncio.gather(*(client.append([{"id": number}], create=True) for number in range(8)))
        merged = await asyncio.gather(*(client.upsert([{"id": number}], on="id") for number in range(4, 12)))
    assert {one.num_inserted_rows for one in results} == {1}
    assert sum(one.num_inserted_rows for one in merged) == 4
    assert [row for (row,) in _rows(scene)] == list(range(12))


def test_upserts_go_on_under_a_stream_of_appends(scene: Scene) -> None:
    scene.daemon()
    begun, stop = threading.Event(), threading.Event()

    def append() -> None:
        with _client(scene) as client:
            number = 1_000
            while not stop.wait(0.005):
                client.append([{"id": number, "count": 0}])
                begun.set()
                number += 1

    with _client(scene) as client:
        client.create(pa.schema([("id", pa.int64()), ("count", pa.int32())]))
        appending = threading.Thread(target=append)
        appending.start()
        try:
            assert begun.wait(60)
            results: list[WriteResult] = []
            # Ten, and until an append has come between the reading and the commit of one of them.
            while len(results) < 10 or max(one.attempts for one in results) == 1:
                assert len(results) < 300, "no append has ever overtaken an upsert"
                results.append(client.upsert([{"id": 1, "count": len(results)}], on="id"))
        finally:
            stop.set()
            appending.join()
    last = len(results) - 1
    assert [one.num_inserted_rows for one in results] == [1] + [0] * last
    rows = _rows(scene)
    assert rows[0] == (1, last)
    assert len(rows) == len({id for id, _ in rows})


async def test_columns_indices_compaction_and_restore_are_one_call_each(scene: Scene) -> None:
    scene.daemon()
    async with CommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri) as client:
        await client.create(pa.schema([("id", pa.int64()), ("n", pa.int32())]))
        for first in (0, 10, 20):
            await client.append({"id": range(first, first + 10), "n": range(10)})
        added = await client.append({"id": range(30, 40), "n": range(10)})
        index = await client.create_index("id", "BTREE")
        assert index.commit is not None
        assert index.commit.operation == "create_index"
        await client.add_columns({"double": "n * 2"})
        await client.alter_columns({"path": "double", "name": "twice"}, {"path": "n", "data_type": pa.int64()})
        await client.drop_columns("n")
        await client.append({"id": [40], "twice": [80]})
        await client.optimize_indices()
        compacted = await client.compact(target_rows_per_fragment=1_000)
        assert (compacted.fragments_removed, compacted.fragments_added) == (5, 1)
        assert await client.compact(target_rows_per_fragment=1_000) == CompactionResult()
        assert added.version is not None
        table = lance.dataset(scene.table.uri)
        assert table.schema.names == ["id", "twice"]
        assert table.to_table(filter="id = 40").to_pylist() == [{"id": 40, "twice": 80}]
        await client.restore(added.version)
    assert lance.dataset(scene.table.uri).to_table().schema.names == ["id", "n"]
    assert lance.dataset(scene.table.uri).count_rows() == 40


def test_a_unit_of_a_source_is_added_once_and_says_so(scene: Scene) -> None:
    scene.daemon()
    with _client(scene) as client:
        results = [client.append([{"id": 1}], create=True, app=("load", 7)) for _ in range(2)]
        assert [(one.num_inserted_rows, one.duplicate) for one in results] == [(1, False), (0, True)]
        assert client.delete("id = 99", app=("load", 8)).commit is not None  # the mark moves on
        assert client.append([{"id": 2}], app=("load", 8)).duplicate
    assert _rows(scene) == [(1,)]


Call = Callable[[SyncCommitClient, tuple[str, int]], WriteResult]
UNITS: dict[str, Call] = {
    "append": lambda client, app: client.append([{"id": 2}], app=app),
    "append to a new table": lambda client, app: client.append([{"id": 2}], create=True, app=app),
    "upsert": lambda client, app: client.upsert([{"id": 2}], on="id", app=app),
    "merge": lambda client, app: client.merge_insert(
        [{"id": 1}], on="id", when_matched_delete=True, when_not_matched_insert_all=True, app=app
    ),
    "delete": lambda client, app: client.delete("id = 1", app=app),
    "update": lambda client, app: client.update({"id": 7}, app=app),
    "overwrite": lambda client, app: client.overwrite([{"id": 7}], app=app),
}


def test_a_unit_that_the_table_has_writes_nothing_and_an_older_one_warns(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "committerd_client")
    scene.daemon()

    def said() -> list[tuple[str, str]]:
        """What was logged about the unit; beside it, the client tells of a slow connection."""
        return [(one.levelname, one.getMessage()) for one in caplog.records if "20261031" in one.getMessage()]

    with _client(scene) as client:
        last = client.append([{"id": 1}], create=True, app=("daily", 20261031))
        files = _all_files(scene)
        for name, call in UNITS.items():
            caplog.clear()
            again = call(client, ("daily", 20261031))
            assert (again.duplicate, again.version, again.num_inserted_rows) == (True, last.version, 0), name
            assert "duplicate=True" in repr(again)
            assert said() == [("INFO", "app=('daily', 20261031): it is in the table already (version 1)")]
            caplog.clear()
            older = call(client, ("daily", 20261030))
            assert (older.duplicate, older.version) == (True, None), name
            ((level, warning),) = said()
            assert level == "WARNING"
            assert "records version 20261031 of application 'daily'" in warning
            assert "write them under another app-id" in warning
        assert _all_files(scene) == files, "nothing was written"
        with pytest.raises(InvalidTransaction, match="in run '', and this is run 'other'") as caught:
            client.append([{"id": 2}], app=("daily", 20261101, "other"))
        assert caught.value.code == "app_id_in_use"
    assert _rows(scene) == [(1,)]


def test_the_committer_finds_a_unit_that_came_while_the_call_worked(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.daemon()
    with _client(scene) as client:
        client.create(pa.schema([("id", pa.int64())]))
        append = Append(place=TableLocation(uri=scene.table.uri), rows=rows_of(pa.table({"id": [1]})))

        def late(name: str, again: Any = None) -> StagedChange:
            client.append([{"id": 2}], app=(name, 8))
            return append(again)

        for name, unit, version in (("last", 8, 2), ("older", 7, None)):

            def write(one: CommitClient, name: str = name, unit: int = unit) -> Any:
                return one._write(partial(late, name), app=(name, unit), timeout=60, attempts=1)

            found = client._call(write)
            assert (found.duplicate, found.version, found.num_inserted_rows) == (True, version, 0)
    assert _rows(scene) == [(2,), (2,)]
    assert ["older" in one for one in caplog.messages if "another app-id" in one] == [True]


def _all_files(scene: Scene) -> set[str]:
    return {str(path) for path in Path(scene.table.uri).rglob("*") if path.is_file()}


def test_an_append_that_was_overtaken_is_made_again_and_uses_its_files_as_long_as_they_fit(scene: Scene) -> None:
    scene.daemon()
    table = scene.table
    with _client(scene) as client:
        client.create(pa.schema([("id", pa.int32())]))
        place = TableLocation(uri=table.uri)
        append = Append(place=place, rows=rows_of(pa.table({"id": pa.array([1], pa.int64())})))
        first = append()
        table.open().add_columns({"n": "id + 1"})
        assert _files(append()) == _files(first)

        stopped, go_on = threading.Event(), threading.Event()

        class Slow(Append):
            def __call__(self, again: Any = None) -> StagedChange:
                staged = super().__call__(again)
                if not stopped.is_set():
                    stopped.set()
                    go_on.wait(60)
                return staged

        with concurrent.futures.ThreadPoolExecutor() as pool:
            slow = Slow(place=place, rows=append.rows)
            running = pool.submit(client._call, lambda one: one._write(slow, timeout=120, attempts=3))
            assert stopped.wait(60)
            client.overwrite(pa.table({"id": pa.array([5], pa.int8())}))
            go_on.set()
            result = running.result()
    assert (result.attempts, result.num_inserted_rows) == (2, 1)
    assert _rows(scene) == [(1,), (5,)]
    assert table.open().schema == pa.schema([("id", pa.int8())])


def test_clients_that_upsert_the_same_new_keys_insert_each_once(scene: Scene) -> None:
    scene.daemon()
    client = partial(with_committerd, kafka=scene.topics.servers, name=scene.name, upserts=8)
    assert twice(scene.table.uri, client, clients=3, upserts=8) == (0, 160)


def _files(staged: Staged) -> list[str]:
    return [file.path for fragment in staged.transaction.append.fragments for file in fragment.files]
