"""Small real tables, drawn from dice: a few columns of several kinds, a few rows in a few fragments."""

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
_FILE_VERSIONS = ("2.0", "2.1", "2.2")
COLUMNS = (
    pa.field("a", pa.int32()),
    pa.field("b", pa.utf8()),
    pa.field("c", pa.float64()),
    pa.field("p", _POINT),
    pa.field("v", pa.list_(pa.float32(), 4)),
)


def create(folder: Path, dice: random.Random) -> Path:
    """A new table below `folder`; one in ten reads its first rows from another table, through a base."""
    root = folder / "table"
    if dice.random() < 0.1:
        origin = folder / "origin"
        _write(origin, dice)
        lance.dataset(str(origin)).shallow_clone(str(root), 1)
    else:
        _write(root, dice)
    return root


def rows(schema: Any, ids: list[int], dice: random.Random) -> pa.Table:
    """Rows with these values of `id`, if there is such a column."""
    columns = []
    for column in schema:
        if column.name == "id":
            columns.append(pa.array(ids, column.type))
        else:
            columns.append(_values(column, len(ids), dice))
    return pa.Table.from_arrays(columns, schema=schema)


def some_ids(dice: random.Random, *, distinct: bool = False) -> list[int]:
    count = dice.randint(1, 12)
    return dice.sample(IDS, count) if distinct else [dice.choice(IDS) for _ in range(count)]


def _write(root: Path, dice: random.Random) -> None:
    key = PRIMARY_KEY if dice.random() < 0.4 else None
    columns = [pa.field("id", pa.int64(), nullable=False, metadata=key)]
    columns += dice.sample(COLUMNS, dice.randint(1, 3))
    schema = pa.schema(columns, metadata={"made": "by dice"} if dice.random() < 0.2 else None)
    lance.write_dataset(
        rows(schema, dice.sample(IDS, dice.randint(5, 40)), dice),
        str(root),
        max_rows_per_file=dice.choice((5, 10, 100)),
        data_storage_version=dice.choice(_FILE_VERSIONS),  # type: ignore[arg-type]  # one of its literals
        enable_stable_row_ids=dice.random() < 0.5,
        enable_v2_manifest_paths=dice.random() < 0.7,
    )


def _values(column: Any, count: int, dice: random.Random) -> pa.Array:
    kind = column.type
    values: list[Any] = [_value(kind, dice) for _ in range(count)]
    # Files of version 2.0 can't hold a struct that is null.
    if column.nullable and not pa.types.is_struct(kind):
        values = [None if dice.random() < 0.1 else value for value in values]
    return pa.array(values, kind)


def _value(kind: Any, dice: random.Random) -> Any:
    number = dice.randint(0, 9)
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, dice) for field in kind}
    if pa.types.is_fixed_size_list(kind):
        return [float(dice.randint(0, 9)) for _ in range(kind.list_size)]
    if pa.types.is_string(kind):
        return f"text {number}"
    return float(number) if pa.types.is_floating(kind) else number
