"""Parts of arrays: pylance 14.0.2 panics for those of some nested types, and the client copies them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd.queue.outcomes import Status
from committerd_client import staging
from committerd_client.changes import Append, Create, Upsert
from committerd_client.data import rows_of
from committerd_client.headers import StagedChange
from committerd_client.table_location import TableLocation
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance

ONE = pa.struct([("c", pa.int32())])
TWO = pa.struct([("a", pa.int64()), ("one", ONE)])
KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "struct": (ONE, {"c": 1}),
    "struct in a struct": (TWO, {"a": 1, "one": {"c": 2}}),
    "structs in a fixed list": (pa.list_(ONE, 2), [{"c": 1}, {"c": 2}]),
    "fixed list of structs in a struct": (pa.struct([("v", pa.list_(ONE, 2))]), {"v": [{"c": 1}, {"c": 2}]}),
    "struct in a struct in a list": (pa.list_(TWO), [{"a": 1, "one": {"c": 2}}]),
    "vector in a struct": (pa.struct([("v", pa.list_(pa.float32(), 2))]), {"v": [1.0, 2.0]}),
}
Call = Callable[[str, Any], StagedChange]
CALLS: dict[str, Call] = {
    "append": lambda uri, rows: Append(place=TableLocation(uri=uri), rows=rows_of(rows))(),
    "create": lambda uri, rows: Create(place=TableLocation(uri=f"{uri}.new"), rows=rows_of(rows))(),
    "upsert": lambda uri, rows: Upsert(place=TableLocation(uri=uri), rows=rows_of(rows), on=["k"], clauses={})(),
    "merge": lambda uri, rows: staging.merge_insert(lance.dataset(uri), rows, on="k"),
    "merge that inserts nothing": lambda uri, rows: staging.merge_insert(
        lance.dataset(uri), rows, on="k", when_not_matched_insert_all=False
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", ["table", "batch", "reader"])
async def test_a_part_of_the_rows_is_written(tmp_path: Path, kind: str, call: str, form: str) -> None:
    made, value = KINDS[kind]
    table = pa.table({"k": range(6), "v": pa.array([value, None, value, value, None, value], made)})
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"k": [9], "v": pa.array([value], made)}), uri, data_storage_version="2.2")
    part = table.slice(2, 3)
    batches = part.to_batches()
    given = {"table": part, "batch": batches[0], "reader": pa.RecordBatchReader.from_batches(part.schema, batches)}
    staged = CALLS[call](uri, given[form])
    if call == "merge that inserts nothing":
        assert not staged.changes
        return
    target = f"{uri}.new" if call == "create" else uri
    assert (await commit(target, staged)).status is Status.COMMITTED
    assert lance.dataset(target).to_table(filter="k < 9").sort_by("k") == part.combine_chunks()
