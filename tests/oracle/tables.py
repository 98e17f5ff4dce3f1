"""Small real tables with random content: a few columns of several kinds, a few rows in a few fragments."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

IDS = range(60)
"""Values of column `id`: few, so that changes meet in the same rows."""
PRIMARY_KEY = {"lance-schema:unenforced-primary-key": "true"}
_POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.utf8())])
FILE_VERSIONS = ("2.0", "2.1", "2.2")
COLUMNS = (
    pa.field("a", pa.int32()),
    pa.field("b", pa.utf8()),
    pa.field("c", pa.float64()),
    pa.field("p", _POINT),
    pa.field("v", pa.list_(pa.float32(), 4)),
)


def create(folder: Path, rng: random.Random) -> Path:
    """Make a new table below `folder`; one in ten reads its first rows from another table, through a base."""
    root = folder / "table"
    if rng.random() < 0.1:
        origin = folder / "origin"
        _write(origin, rng)
        lance.dataset(str(origin)).shallow_clone(str(root), 1)
    else:
        _write(root, rng)
    return root


def rows(schema: Any, ids: list[int], rng: random.Random) -> pa.Table:
    """Rows with these values of `id`, if there is such a column."""
    columns = []
    for column in schema:
        if column.name == "id":
            columns.append(pa.array(ids, column.type))
        else:
            columns.append(_values(column, len(ids), rng))
    return pa.Table.from_arrays(columns, schema=schema)


def some_ids(rng: random.Random, *, distinct: bool = False) -> list[int]:
    count = rng.randint(1, 12)
    return rng.sample(IDS, count) if distinct else [rng.choice(IDS) for _ in range(count)]


def _write(root: Path, rng: random.Random) -> None:
    key = PRIMARY_KEY if rng.random() < 0.4 else None
    columns = [pa.field("id", pa.int64(), nullable=False, metadata=key)]
    columns += rng.sample(COLUMNS, rng.randint(1, 3))
    schema = pa.schema(columns, metadata={"made": "by rng"} if rng.random() < 0.2 else None)
    lance.write_dataset(
        rows(schema, rng.sample(IDS, rng.randint(5, 40)), rng),
        str(root),
        max_rows_per_file=rng.choice((5, 10, 100)),
        data_storage_version=rng.choice(FILE_VERSIONS),  # type: ignore[arg-type]  # one of its literals
        enable_stable_row_ids=rng.random() < 0.5,
        enable_v2_manifest_paths=rng.random() < 0.7,
    )


def _values(column: Any, count: int, rng: random.Random) -> pa.Array:
    kind = column.type
    values: list[Any] = [_value(kind, rng) for _ in range(count)]
    # Files of version 2.0 can't hold a struct that is null.
    if column.nullable and not pa.types.is_struct(kind):
        values = [None if rng.random() < 0.1 else value for value in values]
    return pa.array(values, kind)


def _value(kind: Any, rng: random.Random) -> Any:
    number = rng.randint(0, 9)
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, rng) for field in kind}
    if pa.types.is_fixed_size_list(kind):
        return [float(rng.randint(0, 9)) for _ in range(kind.list_size)]
    if pa.types.is_string(kind):
        return f"text {number}"
    return float(number) if pa.types.is_floating(kind) else number
