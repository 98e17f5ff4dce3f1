"""The table: rows with a vector, a scalar and a vector index, and what each row must contain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import write_fragments

from committerd_client import staging
from committerd_client.staging.keys import KeyHashes
from committerd_common.messages import Transaction

DIMENSIONS = 8
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSIONS))])
STORAGE: Final = "2.0"
"""Both versions of pylance can write and read it."""
INDICES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "id": ("BTREE", {}),
    "vector": ("IVF_FLAT", {"num_partitions": 4}),
}
"""By column: the kind of its index, and its options."""


def rows(values: Mapping[int, int]) -> pa.Table:
    """Rows with these values by id. The vector of a row follows from id and value."""
    vectors = np.concatenate([_vector(id_, value) for id_, value in values.items()] or [np.empty(0, np.float32)])
    columns = [pa.array(values.keys(), pa.int64()), pa.array(values.values(), pa.int64())]
    return pa.table([*columns, pa.FixedSizeListArray.from_arrays(vectors, DIMENSIONS)], schema=SCHEMA)


def wrong_rows(found: pa.Table) -> list[int]:
    """The ids of the rows whose vector is not that of their id and value."""
    vectors = found["vector"].combine_chunks().flatten().to_numpy().reshape(-1, DIMENSIONS)
    pairs = zip(found["id"].to_pylist(), found["value"].to_pylist(), vectors, strict=True)
    return [id_ for id_, value, vector in pairs if not np.array_equal(vector, _vector(id_, value))]


Keyed = Sequence[tuple[int, pa.Field]]
"""The key column, as `key_columns` returns it."""


def appends(uri: str, groups: Sequence[Mapping[int, int]], keyed: Keyed) -> list[Transaction]:
    """One Append of one fragment for each group of rows; all files are written at once. They name their keys."""
    size = len(groups[0])
    together = rows({id_: value for group in groups for id_, value in group.items()})
    fragments = write_fragments(together, uri, mode="append", max_rows_per_file=size, data_storage_version=STORAGE)
    made = zip(fragments, groups, strict=True)
    return [staging.append([one], keys=_keys(rows(group), keyed)) for one, group in made]


def values_of(table: lance.LanceDataset) -> dict[int, int]:
    """The values of all rows by id. Raises `ValueError` if an id is there twice."""
    found = table.to_table(columns=["id", "value"])
    values: dict[int, int] = dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))
    if len(values) != found.num_rows:
        raise ValueError(f"version {table.version} has {found.num_rows - len(values)} rows twice")
    return values


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


def _keys(given: pa.Table, keyed: Keyed) -> Transaction.KeyExistenceFilter:
    hashes = KeyHashes(keyed, most=given.num_rows)
    hashes.add_all(given)
    return hashes.filter()


def _vector(id_: int, value: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([id_, value]).random(DIMENSIONS, np.float32)
