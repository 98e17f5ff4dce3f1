"""The rows of the demo. Each tells who wrote it, and follows from that alone: so a reader can know them all."""

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

KEYS = ["producer", "sequence"]
UPSERTED = 20
"""Rows in each upsert; half of them were in the one before."""
DELETED = 5


def rows(producer: int, sequences: range) -> pa.Table:
    """What this producer writes under these sequence numbers."""
    return pa.table(
        {
            "producer": [producer] * len(sequences),
            "sequence": sequences,
            "value": [31 * sequence + producer for sequence in sequences],
        },
        schema=SCHEMA,
    )


def upserted(producer: int, number: int) -> pa.Table:
    """What an upsert of this number writes."""
    start = number * UPSERTED // 2
    changed = rows(producer, range(start, start + UPSERTED))
    values = [1_000_003 * (number + 1) + sequence for sequence in changed["sequence"].to_pylist()]
    return changed.set_column(2, SCHEMA.field("value"), pa.array(values, pa.int64()))


def deleted(number: int) -> range:
    """Sequence numbers that the delete after this upsert takes away."""
    return range(number * UPSERTED // 2, number * UPSERTED // 2 + DELETED)


def changed_rows(producer: int, rounds: int) -> pa.Table:
    """What is left of so many upserts, each with a delete after it."""
    left: dict[int, int] = {}
    for number in range(rounds):
        table = upserted(producer, number)
        left |= dict(zip(table["sequence"].to_pylist(), table["value"].to_pylist(), strict=True))
        for sequence in deleted(number):
            left.pop(sequence, None)
    columns = {"producer": [producer] * len(left), "sequence": list(left), "value": list(left.values())}
    return pa.table(columns, schema=SCHEMA)


def all_rows(counts: dict[int, int], rows_each: int) -> pa.Table:
    """What is there in the end of those who only append; `counts`: by producer, how many batches of rows."""
    written = (rows(producer, range(count * rows_each)) for producer, count in counts.items())
    return pa.concat_tables(itertools.chain([SCHEMA.empty_table()], written))


def differences(found: pa.Table, expected: pa.Table) -> dict[str, int]:
    """How many rows are missing, there more than once, or nobody's; empty when each is there exactly once."""
    names = SCHEMA.names
    distinct = found.group_by(names).aggregate([])
    counts = {
        "missing": expected.join(distinct, names, join_type="left anti").num_rows,
        "there more than once": found.num_rows - distinct.num_rows,
        "not written by any producer": distinct.join(expected, names, join_type="left anti").num_rows,
    }
    return {what: count for what, count in counts.items() if count}
