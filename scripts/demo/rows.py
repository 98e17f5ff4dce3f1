"""The rows of the demo. Each row follows from its writer and number alone, so a reader can compute all of them."""

from __future__ import annotations

import itertools

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("producer", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
    ]
)
SPARK_SCHEMA = "producer int, sequence long, value long"
"""The same for Spark."""
KEYS = ["producer", "sequence"]
UPSERTED = 20
"""Rows in each upsert; half of them were in the previous one."""
DELETED = 5


def rows(producer: int, sequences: range) -> pa.Table:
    """The rows that this producer writes under these sequence numbers."""
    return pa.table(
        {
            "producer": [producer] * len(sequences),
            "sequence": sequences,
            "value": [31 * sequence + producer for sequence in sequences],
        },
        schema=SCHEMA,
    )


def upserted(producer: int, number: int) -> pa.Table:
    """The rows that the upsert with this number writes."""
    start = number * UPSERTED // 2
    changed = rows(producer, range(start, start + UPSERTED))
    values = [1_000_003 * (number + 1) + sequence for sequence in changed["sequence"].to_pylist()]
    return changed.set_column(2, SCHEMA.field("value"), pa.array(values, pa.int64()))


def deleted(number: int) -> range:
    """The sequence numbers that the delete after this upsert removes."""
    return range(number * UPSERTED // 2, number * UPSERTED // 2 + DELETED)


def changed_rows(producer: int, rounds: int) -> pa.Table:
    """The rows that remain after this many upserts, each followed by a delete."""
    left: dict[int, int] = {}
    for number in range(rounds):
        table = upserted(producer, number)
        left |= dict(zip(table["sequence"].to_pylist(), table["value"].to_pylist(), strict=True))
        for sequence in deleted(number):
            left.pop(sequence, None)
    columns = {"producer": [producer] * len(left), "sequence": list(left), "value": list(left.values())}
    return pa.table(columns, schema=SCHEMA)


def all_rows(counts: dict[int, int], rows_each: int) -> pa.Table:
    """The final rows of writers that only append; `counts`: batches of rows by producer."""
    written = (rows(producer, range(count * rows_each)) for producer, count in counts.items())
    return pa.concat_tables(itertools.chain([SCHEMA.empty_table()], written))


def differences(found: pa.Table, expected: pa.Table) -> dict[str, int]:
    """How many rows are missing, doubled or unknown; empty if each is there exactly once."""
    names = SCHEMA.names
    distinct = found.group_by(names).aggregate([])
    counts = {
        "missing": expected.join(distinct, names, join_type="left anti").num_rows,
        "there more than once": found.num_rows - distinct.num_rows,
        "not written by any producer": distinct.join(expected, names, join_type="left anti").num_rows,
    }
    return {what: count for what, count in counts.items() if count}
