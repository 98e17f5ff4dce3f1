"""Reads tables in every way a reader may, as a program for any pylance: `python looking.py [--work] URI...`.

Prints the faults of each table as a line of JSON: errors, and filters that give other rows with an index than without.
With `--work` it also appends rows, optimizes the indices and compacts the table, and looks again after each.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

warnings.filterwarnings("ignore")

import lance  # noqa: E402
import pyarrow as pa  # noqa: E402

_NEW = (1_000, 1_001)
"""The values of column `id` in the rows that are appended."""


def main(uris: list[str]) -> None:
    works = "--work" in uris
    for uri in uris:
        if uri != "--work":
            steps = [("read", _nothing), *(_WORK if works else ())]
            print(json.dumps([fault for name, step in steps for fault in _after(name, step, uri)]), flush=True)


def _after(name: str, step: Callable[[Any], Any], uri: str) -> Iterator[str]:
    try:
        step(lance.dataset(uri))
        for fault in _faults(lance.dataset(uri)):
            yield f"{name}: {fault}"
    except BaseException as error:  # pylance's panics are not derived from Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        yield f"{name}: {type(error).__name__}: {str(error)[:300]}"


def _faults(dataset: Any) -> Iterator[str]:
    whole = dataset.to_table()
    if dataset.count_rows() != whole.num_rows:
        yield f"{dataset.count_rows()} rows are counted, and {whole.num_rows} read"
    for column in whole.schema:
        if dataset.to_table(columns=[column.name]).column(0).to_pylist() != whole.column(column.name).to_pylist():
            yield f"column {column.name} differs if it is read alone"
        for condition in _conditions(column, whole.column(column.name).to_pylist()):
            found = _rows(dataset.to_table(filter=condition))
            right = _rows(dataset.scanner(filter=condition, use_scalar_index=False).to_table())
            if found != right:
                yield f"{condition}: {len(found)} rows with an index, {len(right)} without"
    dataset.take(list(range(whole.num_rows)))
    for index in dataset.list_indices():
        dataset.stats.index_stats(index["name"])


def _conditions(column: Any, values: list[Any]) -> Iterator[str]:
    if pa.types.is_list(column.type):
        values = [one for several in values for one in several or ()]
        wanted = "array_has({name}, {value!r})"
    else:
        yield f"{column.name} IS NULL"
        yield f"{column.name} IS NOT NULL"
        wanted = "{name} = {value!r}"
    known = list(dict.fromkeys(one for one in values if isinstance(one, (int, str))))
    for value in dict.fromkeys([*known[:3], *known[-3:]]):
        yield wanted.format(name=column.name, value=value)


def _rows(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def _nothing(dataset: Any) -> None:
    return


def _append(dataset: Any) -> None:
    rows = dataset.to_table().slice(0, len(_NEW))
    place = rows.schema.get_field_index("id")
    rows = rows.set_column(place, rows.schema.field(place), pa.array(_NEW, rows.schema.field(place).type))
    lance.write_dataset(rows, dataset, mode="append")


def _optimize(dataset: Any) -> None:
    dataset.optimize.optimize_indices()


def _compact(dataset: Any) -> None:
    dataset.optimize.compact_files(target_rows_per_fragment=10**6)


_WORK = (("append", _append), ("optimize_indices", _optimize), ("compact", _compact))

if __name__ == "__main__":
    main(sys.argv[1:])
