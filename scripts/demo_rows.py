"""The rows of the demo. Each tells who wrote it, and follows from that alone: so a reader can know them all."""

from __future__ import annotations

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("producer", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
    ]
)


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


def all_rows(appends: list[int], rows_each: int) -> pa.Table:
    """What is there in the end; `appends[i]` is how many producer i + 1 commits."""
    return pa.concat_tables(rows(producer, range(count * rows_each)) for producer, count in enumerate(appends, start=1))


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
