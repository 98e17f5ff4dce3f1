"""The hash of a key is what docs/wire-vectors.json says, for each type that a key column may have."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from committerd_client.staging.keys import KeyHashes

pytestmark = pytest.mark.pylance

KEYS = json.loads((Path(__file__).parents[2] / "docs" / "wire-vectors.json").read_text())["key_hash"]["keys"]
NAN = float("nan")
BEFORE = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC).replace(tzinfo=None)
DAY, MIDNIGHT = date(2026, 10, 30), datetime(2026, 10, 30, tzinfo=UTC)
LATE, SECOND, X = time(23, 30), timedelta(seconds=1), pa.dictionary(pa.int8(), pa.utf8())
UNITS = ("s", "ms", "us", "ns")
COLUMNS: list[tuple[pa.DataType, list[list[Any]]]] = [
    *((getattr(pa, f"int{bits}")(), [[-2]]) for bits in (8, 16, 32)),
    (pa.int64(), [[-2], [None]]),
    *((getattr(pa, f"uint{bits}")(), [[2**bits - 1]]) for bits in (8, 16, 32, 64)),
    (pa.bool_(), [[True], [False]]),
    (pa.float16(), [[np.float16(1.5)]]),
    *((kind, [[-1.5], [0.0, -0.0], [NAN, -NAN]]) for kind in (pa.float32(), pa.float64())),
    *((kind, [["Zoë"], [""]]) for kind in (pa.utf8(), pa.large_utf8())),
    *((kind, [[b"\0\xff"]]) for kind in (pa.binary(), pa.large_binary(), pa.binary(2))),
    *((kind, [[DAY]]) for kind in (pa.date32(), pa.date64())),
    *((kind, [[LATE]]) for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    *((pa.timestamp(unit), [[BEFORE]]) for unit in UNITS),
    *((pa.timestamp(unit, "UTC"), [[MIDNIGHT]]) for unit in UNITS),
    *((pa.duration(unit), [[SECOND]]) for unit in UNITS),
    (pa.decimal128(9, 2), [[Decimal("-1.55")]]),
    (pa.decimal256(40, 2), [[Decimal("1.55")]]),
    (X, [["x"]]),
]
"""Each type, and for each of its vectors the values that have this hash."""


def hashes(*columns: pa.Array) -> set[int]:
    fields = [pa.field(f"c{number}", column.type) for number, column in enumerate(columns)]
    made = KeyHashes(list(enumerate(fields)), most=10)
    made.add(pa.RecordBatch.from_arrays(list(columns), schema=pa.schema(fields)))
    return set(made.filter().exact.key_hashes)


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=lambda given: str(given)[:30])
def test_a_key_has_the_hash_of_the_contract(kind: pa.DataType, values: list[list[Any]]) -> None:
    expected = [int(one["hash"]) for one in KEYS if one["types"] == [str(kind)]]
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    assert [hashes(pa.array(some, plain).cast(kind)) for some in values] == [{one} for one in expected]


def test_a_key_of_two_columns_has_the_hash_of_the_contract() -> None:
    expected = [int(one["hash"]) for one in KEYS if len(one["types"]) == 2]
    made = [hashes(pa.array([first], pa.int64()), pa.array(["x"])) for first in (7, None)]
    assert made == [{one} for one in expected]


def test_each_vector_is_compared_and_is_the_hash_of_what_it_shows() -> None:
    compared = Counter({str(kind): len(values) for kind, values in COLUMNS})
    assert compared == Counter(one["types"][0] for one in KEYS if len(one["types"]) == 1)
    for one in KEYS:
        digest = blake2b(bytes.fromhex(one["encoded"]), digest_size=8).digest()
        assert int(one["hash"]) == int.from_bytes(digest, "little")
