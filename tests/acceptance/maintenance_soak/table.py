"""The table: rows with a vector, a scalar and a vector index, and what each row must contain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import lance
import numpy as np
import pyarrow as pa

from committerd_client import staging
from committerd_client.staging.keys import KeyHashes
from committerd_common.messages import Status, Transaction
from harness.scene import Scene
from tests.acceptance.maintenance_soak.expected import Expected, Numbers

DIMENSIONS = 8
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSIONS))])
STORAGE: Final = "2.0"
"""Both versions of pylance can write and read it."""
INDICES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "id": ("BTREE", {}),
    "vector": ("IVF_FLAT", {"num_partitions": 4}),
}
"""By column: the kind of its index, and its options."""


_BEGUN = 300
"""Rows that a table begins with: the ids from 0 on, with the value 0."""


def create(uri: str) -> Expected:
    """Create the table with pylance; returns what is in it."""
    expected = Expected()
    for id_ in range(_BEGUN):
        expected.put(id_, 0)
    lance.write_dataset(rows(dict.fromkeys(range(_BEGUN), 0)), uri, data_storage_version=STORAGE)
    return expected


def index(scene: Scene) -> None:
    """Create the indices through the queue; needs an active committer."""
    for column, (kind, options) in INDICES.items():
        (outcome,) = scene.ask(staging.create_index(scene.table.open(), column, kind, **options))
        assert outcome.status == Status.COMMITTED, outcome


def rows(values: Mapping[int, int]) -> pa.Table:
    """Rows with these values by id. The vector of a row follows from id and value."""
    count = len(values)
    ids, numbers = (np.fromiter(given, np.int64, count) for given in (values.keys(), values.values()))
    vectors = pa.FixedSizeListArray.from_arrays(vectors_of(ids, numbers).reshape(-1), DIMENSIONS)
    return pa.table([ids, numbers, vectors], schema=SCHEMA)


def vectors_of(ids: Numbers, values: Numbers) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vectors of rows with these ids and values, one in each line; the numbers are from 0 to 1."""
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + values.astype(np.uint64)
    place = np.arange(1, DIMENSIONS + 1, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    mixed = (mixed[:, None] ^ place) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)


def wrong_rows(found: pa.Table) -> list[int]:
    """The ids of the rows whose vector is not that of their id and value."""
    ids, values, vectors = columns_of(found)
    wrong: list[int] = ids[(vectors != vectors_of(ids, values)).any(axis=1)].tolist()
    return wrong


def columns_of(found: pa.Table) -> tuple[Numbers, Numbers, np.ndarray[Any, np.dtype[np.float32]]]:
    """The ids, the values, and the vectors, one in each line."""
    vectors = np.concatenate([np.empty(0, np.float32), *(one.flatten().to_numpy() for one in found["vector"].chunks)])
    return found["id"].to_numpy(), found["value"].to_numpy(), vectors.reshape(-1, DIMENSIONS)


Keyed = Sequence[tuple[int, pa.Field]]
"""The key column, as `key_columns` returns it."""


def disagreements(table: lance.LanceDataset, ids: Iterable[int], point: np.ndarray[Any, Any]) -> list[str]:
    """Queries through the indices that return something else than a scan of the same version."""
    wanted = f"id in ({', '.join(map(str, ids))})"
    # All partitions: pylance splits those that grow large when it optimizes the index, so their number is not known.
    nearest = {"column": "vector", "q": point, "k": 5, "nprobes": 10_000}
    queries: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("scalar", {"filter": wanted}, {"filter": wanted, "use_scalar_index": False}),
        ("vector", {"nearest": nearest}, {"nearest": {**nearest, "use_index": False}}),
    ]
    problems = []
    for name, query, scan in queries:
        through, whole = (
            sorted(table.to_table(columns=["id"], disable_scoring_autoprojection=True, **one)["id"].to_pylist())
            for one in (query, scan)
        )
        if through != whole:
            problems.append(f"version {table.version}: the {name} index finds {through}, a scan {whole}")
    return problems


def keys_named(given: pa.Table, keyed: Keyed) -> Transaction.KeyExistenceFilter:
    """The keys of these rows, as an Append or an upsert names them."""
    hashes = KeyHashes(keyed, most=given.num_rows)
    hashes.add_all(given)
    return hashes.filter()
