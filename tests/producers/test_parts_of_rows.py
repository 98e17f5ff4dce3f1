"""Merges of rows that lack columns, or fields of structs: rows of the table keep what the source does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd.queue.outcomes import Status
from committerd_client import StagingError, staging
from committerd_client.changes import Upsert
from committerd_client.data import rows_of
from committerd_client.table_location import TableLocation
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance

PAIR = pa.struct([("a", pa.int64()), ("b", pa.utf8())])
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("s", PAIR),
        ("deep", pa.struct([("s", PAIR), ("c", pa.int64())])),
        ("items", pa.list_(PAIR)),
    ]
)
ROW: dict[str, Any] = {
    "k": 1,
    "s": {"a": 1, "b": "q"},
    "deep": {"s": {"a": 1, "b": "q"}, "c": 7},
    "items": [{"a": 1, "b": "q"}, {"a": 2, "b": "r"}],
}
UPDATE = {"when_matched_update_all": True, "when_not_matched_insert_all": False}
DELETE = {"when_matched_delete": True, "when_matched_update_all": False, "when_not_matched_insert_all": False}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    lance.write_dataset(pa.Table.from_pylist([ROW], SCHEMA), tmp_path / "t.lance")
    return str(tmp_path / "t.lance")


async def merged(uri: str, rows: Any, **clauses: Any) -> list[dict[str, Any]]:
    """The rows afterwards, in the order of their keys."""
    staged = Upsert(place=TableLocation(uri=uri), rows=rows_of(rows), on=["k"], clauses=clauses)()
    assert (await commit(uri, staged)).status is Status.COMMITTED
    found: list[dict[str, Any]] = lance.dataset(uri).to_table().sort_by("k").to_pylist()
    return found


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({"s": {"a": 5}}, {"s": {"a": 5, "b": "q"}}),
        ({"s": {"b": "z"}}, {"s": {"a": 1, "b": "z"}}),
        ({"s": {"b": None}}, {"s": {"a": 1, "b": None}}),
        ({"s": {"b": "z", "a": 5}}, {"s": {"a": 5, "b": "z"}}),
        ({"s": None}, {"s": None}),
        ({"deep": {"s": {"a": 5}}}, {"deep": {"s": {"a": 5, "b": "q"}, "c": 7}}),
        ({"deep": {"c": 8}}, {"deep": {"s": {"a": 1, "b": "q"}, "c": 8}}),
        ({"deep": {"s": None}}, {"deep": {"s": None, "c": 7}}),
        ({"items": [{"a": 5}, {"a": 6}]}, {"items": [{"a": 5, "b": "q"}, {"a": 6, "b": "r"}]}),
        ({"items": [{"a": 5, "b": "z"}]}, {"items": [{"a": 5, "b": "z"}]}),
        ({"items": []}, {"items": []}),
        ({}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("clauses", [{}, UPDATE], ids=["upsert", "update"])
async def test_what_the_rows_lack_stays(
    uri: str, given: dict[str, Any], becomes: dict[str, Any], clauses: dict[str, Any]
) -> None:
    assert await merged(uri, [{"k": 1, **given}], **clauses) == [{**ROW, **becomes}]


async def test_what_new_rows_lack_is_null(uri: str) -> None:
    new = {"k": 2, "s": {"a": 5, "b": None}, "deep": None, "items": None}
    old = {**ROW, "s": {"a": 6, "b": "q"}}
    assert await merged(uri, [{"k": 1, "s": {"a": 6}}, {"k": 2, "s": {"a": 5}}]) == [old, new]


@pytest.mark.parametrize("items", [[{"a": 5}], [{"a": 5}] * 3])
def test_a_part_that_could_not_be_read_is_refused(uri: str, items: list[dict[str, int]]) -> None:
    """pylance 14.0.2 commits it, and then nobody can read the table."""
    upsert = Upsert(place=TableLocation(uri=uri), rows=rows_of([{"k": 1, "items": items}]), on=["k"], clauses={})
    with pytest.raises(StagingError, match=r"the rows lack 'items\[\]\.b'") as caught:
        upsert()
    assert caught.value.code == "schema_differs"


async def test_files_of_format_2_0_get_whole_structs_only(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.Table.from_pylist([ROW], SCHEMA), uri, data_storage_version="2.0")
    with pytest.raises(StagingError, match=r"the rows lack 's\.b'"):
        await merged(uri, [{"k": 1, "s": {"a": 5}}])
    assert await merged(uri, [{"k": 1, "s": {"a": 5, "b": "z"}}]) == [{**ROW, "s": {"a": 5, "b": "z"}}]


# Beside a column that may not be null


@pytest.fixture
def strict(tmp_path: Path) -> str:
    schema = pa.schema([("k", pa.int64()), pa.field("must", pa.int64(), nullable=False), ("v", pa.int64())])
    rows = pa.Table.from_pylist([{"k": 1, "must": 10, "v": 1}, {"k": 2, "must": 20, "v": 2}], schema)
    lance.write_dataset(rows, tmp_path / "strict.lance")
    return str(tmp_path / "strict.lance")


@pytest.mark.parametrize(
    ("given", "clauses", "becomes"),
    [
        ({"k": 1}, DELETE, [(2, 20, 2)]),
        ({"k": 1, "v": 5}, UPDATE, [(1, 10, 5), (2, 20, 2)]),
        ({"k": 1, "v": 5}, {**UPDATE, "when_matched_update_all": "source.v > target.v"}, [(1, 10, 5), (2, 20, 2)]),
        (
            {"k": 1},
            {**UPDATE, "when_matched_update_all": False, "when_not_matched_by_source_delete": True},
            [(1, 10, 1)],
        ),
        ({"k": 1}, {**DELETE, "when_not_matched_by_source_delete": "v > 1"}, []),
    ],
)
async def test_a_merge_that_inserts_nothing_needs_no_column_that_it_does_not_change(
    strict: str, given: dict[str, int], clauses: dict[str, Any], becomes: list[tuple[int, ...]]
) -> None:
    assert [tuple(row.values()) for row in await merged(strict, [given], **clauses)] == becomes


async def test_a_merge_that_inserts_needs_it(strict: str) -> None:
    for clauses in ({}, {"when_matched_update_all": False}):
        with pytest.raises(StagingError, match="no column 'must', which may not be null"):
            await merged(strict, [{"k": 1, "v": 5}], **clauses)
    with pytest.raises(OSError, match='"must"'):
        staging.merge_insert(lance.dataset(strict), pa.table({"k": [1], "v": [5]}), on="k")
