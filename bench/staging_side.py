"""Each staging helper and pylance's own call for the same work, on one dataset object, in a process of its own.

The helper executes the work and commits nothing; pylance's call commits too. The table changes only by pylance's calls,
so both begin each time with the same version, the same caches and the same files.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")
os.environ.setdefault("LANCE_MEM_POOL_SIZE", str(4 * 2**30))  # by default too little for a million rows and an index

import lance
import pyarrow as pa
from lance.fragment import write_fragments
from lance.optimize import Compaction

from bench.pool import rows
from committerd_client import staging

Call = Callable[[Any, int], object]
"""Takes the dataset and the number of the repetition; no two repetitions touch the same rows or names. If it returns a
dataset, that one is used from then on.
"""
Took = tuple[float, float]
"""Seconds, and seconds of processor time of all threads of the process."""
KEY = "id"
_MANY = 10**6
_MERGED_OLD, _MERGED_NEW = 400, 10**9
"""Merges change ten rows from the first id on, and add rows from the second id on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One helper, and pylance's call."""

    ours: Call
    theirs: Call
    before: Call | None = None
    """What has to be done before both, not timed."""
    heavy: bool = False
    """Whether it works on every fragment: measured once on large tables."""
    most: int = 100
    """How often there is something to do."""
    needs_index: bool = False


def _append(table: Any, number: int) -> Any:
    return lance.LanceDataset.commit(
        table, lance.LanceOperation.Append(_written(table, number)), read_version=table.version
    )


_files: dict[int, Any] = {}


def _written(table: Any, number: int) -> Any:
    """The fragments of a new file with one row, written once."""
    if number not in _files:
        _files[number] = write_fragments(rows([2 * _MERGED_NEW + number]), table, mode="append")
    return _files[number]


@cache
def _merged(count: int, number: int) -> pa.Table:
    """The rows of a merge: ten are in the table, the others are not."""
    old = range(_MERGED_OLD + 10 * number, _MERGED_OLD + 10 * number + 10)
    first = _MERGED_NEW + number * _MANY
    return rows([*old, *range(first, first + count - len(old))], number)


def _upsert(count: int) -> Pair:
    def theirs(table: Any, number: int) -> None:
        builder = table.merge_insert(KEY).when_matched_update_all().when_not_matched_insert_all()
        builder.execute(_merged(count, number))

    return Pair(
        before=lambda _, number: _merged(count, number) and None,
        ours=lambda table, number: staging.merge_insert(table, _merged(count, number), on=KEY),
        theirs=theirs,
    )


def _deletion(predicate: Callable[[int], str], **given: Any) -> Pair:
    return Pair(
        ours=lambda table, number: staging.delete(table, predicate(number)),
        theirs=lambda table, number: table.delete(predicate(number)),
        **given,
    )


PAIRS: dict[str, Pair] = {
    "append": Pair(
        before=lambda table, number: _written(table, number) and None,
        ours=lambda table, number: staging.append(_written(table, number), dataset=table),
        theirs=_append,
    ),
    "update_config": Pair(
        ours=lambda table, number: staging.update_config(table, config={"bench.key": str(number)}),
        theirs=lambda table, number: table.update_config({"bench.key": str(number)}),
    ),
    "delete, no row": _deletion(lambda _: f"{KEY} = -5"),
    "delete, one row": _deletion(lambda number: f"{KEY} = {number}"),
    "delete, 200 rows": _deletion(
        lambda number: f"{KEY} >= {800 + 200 * number} AND {KEY} < {1000 + 200 * number}", most=2
    ),
    "update, one row": Pair(
        ours=lambda table, number: staging.update(table, {"value": "value + 1"}, f"{KEY} = {number + 100}"),
        theirs=lambda table, number: table.update({"value": "value + 1"}, f"{KEY} = {number + 100}"),
    ),
    "merge_insert, 20 rows": _upsert(20),
    "compaction_tasks": Pair(
        ours=lambda table, _: staging.compaction_tasks(table),
        theirs=lambda table, _: Compaction.plan(table, {}).tasks,
    ),
    "create_index": Pair(
        ours=lambda table, number: staging.create_index(table, "value", "BTREE", name=f"value{number}"),
        theirs=lambda table, number: table.create_scalar_index("value", "BTREE", name=f"value{number}"),
        heavy=True,
    ),
    "drop_index": Pair(
        ours=lambda table, number: staging.drop_index(table, f"value{number}"),
        theirs=lambda table, number: table.drop_index(f"value{number}"),
        heavy=True,
    ),
    "optimize_indices": Pair(
        before=_append,
        ours=lambda table, _: staging.optimize_indices(table),
        theirs=lambda table, _: table.optimize.optimize_indices(),
        needs_index=True,
    ),
    "merge_insert, 1,000,000 rows": _upsert(_MANY),
    "delete, a row of each fragment": _deletion(lambda number: f"{KEY} % 4 = {3 - number}", heavy=True, most=2),
    "add_columns, null": Pair(
        ours=lambda table, number: staging.add_columns(table, pa.field(f"null{number}", pa.int32())),
        theirs=lambda table, number: table.add_columns(pa.field(f"null{number}", pa.int32())),
    ),
    "alter_columns, name": Pair(
        ours=lambda table, number: staging.alter_columns(table, {"path": f"null{number}", "name": f"new{number}"}),
        theirs=lambda table, number: table.alter_columns({"path": f"null{number}", "name": f"new{number}"}),
    ),
    "drop_columns": Pair(
        ours=lambda table, number: staging.drop_columns(table, [f"new{number}"]),
        theirs=lambda table, number: table.drop_columns([f"new{number}"]),
    ),
    "add_columns": Pair(
        ours=lambda table, number: staging.add_columns(table, {f"next{number}": "value + 1"}),
        theirs=lambda table, number: table.add_columns({f"next{number}": "value + 1"}),
        heavy=True,
    ),
    "alter_columns, type": Pair(
        ours=lambda table, number: staging.alter_columns(table, {"path": f"next{number}", "data_type": pa.int32()}),
        theirs=lambda table, number: table.alter_columns({"path": f"next{number}", "data_type": pa.int32()}),
        heavy=True,
    ),
    "compact_files": Pair(
        ours=lambda table, _: staging.compact_files(table),
        theirs=lambda table, _: [table.optimize.compact_files()],
        most=1,
    ),
}
"""In the order in which they are measured: the last ones change every fragment."""


class Helpers:
    """For a worker: one table, and the measurement of each pair on it."""

    def __init__(self, *, uri: str) -> None:
        self._table: Any = lance.dataset(uri)
        self._table.count_rows(f"{KEY} = 1")  # opens every file

    def index(self) -> None:
        """Create an index on the key."""
        self._table.create_scalar_index(KEY, "BTREE")

    def measure(self, *, name: str, times: int, warm: bool) -> tuple[list[Took], list[Took]]:
        """Return what the helper's calls and pylance's calls took; both are called in turn.

        `warm`: whether to call the helper once more before each pair, and not only before the first one.
        """
        pair = PAIRS[name]
        ours, theirs = [], []
        for number in range(min(times, pair.most)):
            if pair.before is not None:
                self._call(pair.before, number)
            if warm or not number:
                self._call(pair.ours, number)  # so that what comes now finds the caches that pylance's call finds
            ours.append(self._call(pair.ours, number))
            theirs.append(self._call(pair.theirs, number))
        return ours, theirs

    def _call(self, call: Call, number: int) -> Took:
        gc.collect()
        processor, began = time.process_time(), time.perf_counter()
        result = call(self._table, number)
        took = time.perf_counter() - began, time.process_time() - processor
        if isinstance(result, lance.LanceDataset):
            self._table = result
        return took
