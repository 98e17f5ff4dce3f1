"""Tables with columns of many kinds, for changes of any kind. Runs under any pylance."""

from __future__ import annotations

import decimal
from datetime import UTC, datetime

import lance
import pyarrow as pa

_KEY = {"lance-schema:unenforced-primary-key": "true"}
_TIMES = [datetime(2026, 1, day, 12, tzinfo=UTC) for day in range(1, 29)]


def schema(*, key: bool) -> pa.Schema:
    return pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata=_KEY if key else None),
            pa.field("text", pa.utf8(), metadata={"kept": "yes"}),
            pa.field("nested", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.utf8()))])),
            pa.field("price", pa.decimal128(12, 2)),
            pa.field("seen", pa.timestamp("us", "UTC")),
            pa.field("kind", pa.dictionary(pa.int8(), pa.utf8())),
            pa.field("number", pa.int64()),
            pa.field("vector", pa.list_(pa.float32(), 4)),
        ]
    )


def rows(first: int, count: int, *, key: bool = False, mark: str = "row") -> pa.Table:
    ids = range(first, first + count)
    columns = {
        "id": ids,
        "text": [f"{mark} {one}" for one in ids],
        "nested": [{"x": one, "y": [str(one)] * (one % 3)} if one % 5 else None for one in ids],
        "price": [decimal.Decimal(one) / 4 for one in ids],
        "seen": [_TIMES[one % 28] for one in ids],
        "kind": pa.array([f"kind {one % 3}" for one in ids])
        .dictionary_encode()
        .cast(pa.dictionary(pa.int8(), pa.utf8())),
        "number": [one if one % 7 else None for one in ids],
        "vector": [[one % 11, one % 3, 0.5, 1.0] for one in ids],
    }
    return pa.table({name: columns[name] for name in schema(key=key).names}, schema=schema(key=key))


def make_table(folder: str, name: str) -> None:
    """300 rows with ids from 0 in three fragments, two of which have deletions."""
    key = name == "keyed"
    lance.write_dataset(rows(0, 300, key=key), folder, max_rows_per_file=100, enable_stable_row_ids=name == "stable")
    lance.dataset(folder).delete("id in (3, 5, 250)")
