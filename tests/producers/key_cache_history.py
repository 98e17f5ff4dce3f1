"""Random histories of a table, whose changes are staged with and without a `KeyCache`. Runs under any pylance."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from committerd_client import StagedChange, staging
from committerd_client.staging import key_cache
from committerd_client.staging.key_cache import with_fragments
from committerd_client.staging.transactions import read_table
from committerd_common.messages import DataFragment
from committerd_common.row_ids import decode_row_ids

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.utf8()), ("value", pa.int64())])
_KEYS = 60


def rows(ids: list[int], value: int = 0) -> pa.Table:
    """A row for each id."""
    return pa.table({"id": ids, "name": [f"n{one}" for one in ids], "value": [value] * len(ids)}, schema=SCHEMA)


def append(uri: str, *parts: list[int]) -> None:
    """Append a fragment for each part."""
    dataset = lance.dataset(uri)
    made = [one for part in parts for one in write_fragments(rows(part), dataset, mode="append")]
    lance.LanceDataset.commit(uri, lance.LanceOperation.Append(made), read_version=dataset.version)


def table_of(folder: Path, *parts: list[int], **options: Any) -> str:
    """Make a table with a fragment for each part; returns its URI."""
    uri = str(folder / "table.lance")
    lance.write_dataset(SCHEMA.empty_table(), uri, **options)
    append(uri, *parts)
    return uri


def run(folder: Path, seed: int) -> None:
    """One history. Raises `AssertionError` if a change differs."""
    rng = random.Random(seed)
    key_cache._FRAGMENTS_MIN = 2
    uri = table_of(folder, *([one] for one in range(20)), enable_stable_row_ids=bool(seed % 2))
    cache = staging.KeyCache(max_bytes=rng.choice([50_000, 1 << 20]))
    for value in range(12):
        if rng.random() < 0.6:
            append(uri, *(_some(rng) for _ in range(rng.randint(1, 3))))
        else:
            _change_otherwise(lance.dataset(uri), rng, value)
        _stage_both_ways(lance.dataset(uri), cache, rng, value)


def _some(rng: random.Random) -> list[int]:
    return rng.sample(range(_KEYS), rng.randint(1, 4))


def _change_otherwise(dataset: lance.LanceDataset, rng: random.Random, value: int) -> None:
    """Make a version with pylance that changes existing rows, moves them, or brings deleted ones back."""
    match rng.randrange(6):
        case 0:
            dataset.optimize.compact_files(target_rows_per_fragment=rng.choice([2, 10]))
        case 1:
            earlier: Any = dataset.checkout_version(rng.randint(2, dataset.version))
            earlier.restore()
        case 2:
            dataset.update({"value": str(value)}, f"id < {rng.randrange(_KEYS)}")
        case 3:
            dataset.create_scalar_index(rng.choice(["id", "name"]), "BTREE", replace=True)
        case 4:
            dataset.optimize.optimize_indices()
        case _:
            dataset.delete(f"id = {rng.randrange(_KEYS)}")


def _stage_both_ways(dataset: lance.LanceDataset, cache: staging.KeyCache, rng: random.Random, value: int) -> None:
    keys = _some(rng)
    listed = ", ".join(map(str, keys))
    source = rows(keys, value)
    merges: list[dict[str, Any]] = [
        {"on": "id"},
        {"on": ["id", "name"]},
        {"on": "name"},
        {"on": "id", "when_matched_update_all": "source.value > target.value"},
        {"on": "id", "when_matched_update_all": False},
        {"on": "id", "when_not_matched_by_source_delete": f"id > {value}"},
        {
            "on": "id",
            "when_matched_update_all": False,
            "when_matched_delete": True,
            "when_not_matched_insert_all": False,
        },
    ]
    changes: list[Callable[..., StagedChange]] = [
        lambda **given: staging.delete(dataset, f"id IN ({listed})", **given),
        lambda **given: staging.delete(dataset, f"name = 'n{keys[0]}'", **given),
        lambda **given: staging.update(dataset, {"value": str(value)}, f"id = {keys[0]}", **given),
        *(
            lambda clauses=clauses, **given: staging.merge_insert(dataset, source, **clauses, **given)
            for clauses in merges
        ),
    ]
    for change in rng.sample(changes, 2):
        plain, remembered = _outcome(dataset, change), _outcome(dataset, partial(change, cache=cache))
        assert remembered == plain, (keys, value, remembered, plain)


def _outcome(dataset: lance.LanceDataset, change: Callable[[], StagedChange]) -> object:
    """What a change does to the table; of a failure, its kind."""
    try:
        staged = change()
    except OSError as error:
        return str(error)[:40]
    table, transaction = read_table(dataset), staged.transaction
    if transaction.HasField("delete"):
        deleted = transaction.delete
        return {
            "count": staged.deleted,
            "removed": sorted(deleted.deleted_fragment_ids),
            "left": _rows_of(dataset, table, deleted.updated_fragments),
        }
    update = transaction.update
    for number, one in enumerate(update.new_fragments):
        one.id = 1_000_000 + number
    return {
        "counts": (staged.inserted, staged.updated, staged.deleted),
        "removed": sorted(update.removed_fragment_ids),
        "updated": sorted(one.id for one in update.updated_fragments),
        "left": _rows_of(dataset, table, update.updated_fragments),
        "new": _rows_of(dataset, table, update.new_fragments),
        "row ids": sorted(id for one in update.new_fragments for id in _row_ids(one)),
        "keys": update.inserted_rows.SerializeToString(deterministic=True),
        "fields": list(update.fields_for_preserving_frag_bitmap),
    }


def _rows_of(dataset: lance.LanceDataset, table: Any, fragments: Any) -> list[Any]:
    packed = []
    for one in fragments:
        copied = DataFragment()
        copied.CopyFrom(one)
        packed.append(copied.SerializeToString())
    found = with_fragments(dataset, table, packed).to_table().to_pylist() if packed else []
    return sorted(tuple(one.values()) for one in found)


def _row_ids(one: DataFragment) -> list[int]:
    if not one.inline_row_ids:
        return []
    return list(decode_row_ids(one.inline_row_ids, fragment=one.id, staged=True))
