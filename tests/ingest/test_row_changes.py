"""Rows of a reader that change a table by its keys: what is put in, what is taken out, and what is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from committerd_batch.target import Mode
from committerd_client.errors import StagingError
from committerd_ingest.keyed import OP, ORDER
from committerd_ingest.row_changes import RowChanges, columns_of

TABLE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


def changes(mode: str, *batches: list[dict[str, Any]] | pa.Table, bytes_max: int = 10_000) -> list[dict[str, Any]]:
    parts = [one if isinstance(one, pa.Table) else pa.Table.from_pylist(one) for one in batches]
    made = RowChanges(TABLE, mode=Mode(mode), keys=["id"], bytes_max=bytes_max)
    reader = pa.RecordBatchReader.from_batches(parts[0].schema, [b for one in parts for b in one.to_batches()])
    found: list[dict[str, Any]] = made(reader).to_pylist()
    return sorted(found, key=lambda row: row[ORDER])


def change(op: str, order: int, id: int, text: str | None = None) -> dict[str, Any]:
    return {"id": id, "text": text, ORDER: order, OP: op}


def test_rows_are_put_in_or_taken_out_in_their_order() -> None:
    rows = [{"id": 1, "text": "a"}, {"id": 1, "text": "b"}]
    put = [change("upsert", 0, 1, "a"), change("upsert", 1, 1, "b"), change("upsert", 2, 1, "a")]
    assert changes("upsert", rows, rows[:1]) == put
    taken = [change("delete", 0, 1), change("delete", 1, 1)]
    assert changes("delete", rows) == taken
    assert changes("delete", [{"id": 1}, {"id": 1}]) == taken


def test_envelopes_put_rows_in_and_take_rows_out() -> None:
    row, none = {"id": 1, "text": "a"}, None
    given = [
        {"op": "c", "before": none, "after": row, "source": {"lsn": 1}},
        {"op": "d", "before": row, "after": none, "source": {"lsn": 2}},
        {"op": "m", "before": none, "after": none, "source": {"lsn": 3}},
        {"op": "u", "before": row, "after": {"id": 2, "text": none}, "source": none},
    ]
    wanted = [change("upsert", 0, 1, "a"), change("delete", 1, 1), change("upsert", 3, 2)]
    assert changes("cdc", given) == wanted
    assert changes("cdc", [{"op": "d", "before": {"id": 1}}]) == [change("delete", 0, 1)]
    assert changes("cdc", [{"op": "m"}]) == []
    assert changes("cdc", pa.table({"op": ["c"], "after": [row]}, columns_of(Mode.CDC, TABLE).remove(0))) == wanted[:1]


@pytest.mark.parametrize(
    ("mode", "row", "why"),
    [
        ("upsert", {"id": None, "text": "a"}, "id"),
        ("upsert", {"text": "a"}, "id"),
        ("upsert", {"id": 1, "other": 1}, "other"),
        ("upsert", {"id": 1.5}, "id"),
        ("delete", {"text": "a"}, "no columns .'id'."),
        ("delete", {"id": None}, "id"),
        ("cdc", {"id": 1}, "is no envelope"),
        ("cdc", {"op": None, "after": {"id": 1}}, "op is None"),
        ("cdc", {"op": "t", "after": None}, "truncated"),
        ("cdc", {"op": "c", "after": None}, "no row in after"),
        ("cdc", {"op": "d", "before": None}, "no row in before"),
        ("cdc", {"op": "c", "after": {"id": None}}, "id"),
        ("cdc", {"op": "c", "after": {"id": 1, "other": 1}}, "other"),
    ],
)
def test_rows_that_make_no_change_are_refused_with_a_reason(mode: str, row: dict[str, Any], why: str) -> None:
    with pytest.raises(StagingError, match=why):
        changes(mode, [row])


def test_what_must_be_in_memory_together_has_a_bound_and_keys_are_columns() -> None:
    rows = [{"id": 1, "text": "a" * 600}]
    assert len(changes("upsert", rows, bytes_max=1000)) == 1
    with pytest.raises(StagingError, match=r"more than 1,000 bytes.*ingest.buffer_bytes_max"):
        changes("upsert", rows, rows, bytes_max=1000)
    with pytest.raises(StagingError, match=r"no columns .'key'., which are ingest.keys"):
        RowChanges(TABLE, mode=Mode.UPSERT, keys=["key"], bytes_max=1)
