"""What pylance reads of a table, as JSON.

Runs under any pylance, and imports nothing of ours. As a program it reads one request a line, {"root": ..., "before":
...}, and prints a line for each.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa
from lance.query import MatchQuery


def read(root: str, storage_options: dict[str, str] | None = None) -> dict[str, Any]:
    """A digest of the latest version. It depends on the rows, and not on their order in a fragment."""
    dataset = lance.dataset(root, storage_options=storage_options)
    digest = _digest(dataset.to_table())
    digest["version"] = dataset.version
    digest["fragments"] = [[one.fragment_id, _digest(one.to_table())["hash"]] for one in dataset.get_fragments()]
    digest["fragment_rows"] = sum(fragment.count_rows() for fragment in dataset.get_fragments())
    if dataset.count_rows() != digest["rows"] or digest["fragment_rows"] != digest["rows"]:
        raise AssertionError(f"counted {dataset.count_rows()} rows, read {digest['rows']}")
    if digest["rows"]:
        digest["rowid_hash"] = _digest(dataset.scanner(with_row_id=True).to_table())["hash"]
    return digest


def lookups(root: str, storage_options: dict[str, str] | None = None) -> list[str]:
    """Wrong results of indices: queries that find other rows with the index than without."""
    dataset = lance.dataset(root, storage_options=storage_options)
    wrong = []
    try:
        if "id" in dataset.schema.names:
            dataset.scanner(filter="id = 0", columns=["id"]).to_table()
    except BaseException as error:  # noqa: BLE001 - pylance panics with what is no Exception
        wrong.append(f"any: a filter finds an error: {_said(error, root)}")
    for index in _indices(dataset):
        column = index["fields"][0] if index["fields"] else ""
        kind = str(index["type"]).lower().replace("_", "")
        if not column or _field(dataset.schema, column) is None:
            continue
        if pa.types.is_fixed_size_list(_field(dataset.schema, column).type):
            queries = _by_distance(dataset, column)
        elif kind == "inverted":
            queries = _by_words(dataset, column)
        else:
            queries = _by_filters(dataset, column, kind)
        try:
            for query, found, wanted in queries:
                if found != wanted:
                    wrong.append(f"{index['name']}: {query} finds {found} of {wanted}")
        except BaseException as error:  # noqa: BLE001 - pylance panics with what is no Exception
            wrong.append(f"{index['name']}: a query finds an error: {_said(error, root)}")
    return wrong


def _said(error: BaseException, root: str) -> str:
    """A message without what differs between two tables, and without the place in pylance's source."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    text = f"{type(error).__name__}: {error}".partition(", /")[0].replace(root.strip("/"), "TABLE")
    return re.sub(r"task \d+", "a task", text)


def _indices(dataset: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its successor does not know the older versions
        return list(dataset.list_indices())


def _field(schema: Any, path: str) -> Any:
    """The field of a schema with this path; None if there is none."""
    field = None
    for step in path.split("."):
        place = schema.names.index(step) if hasattr(schema, "names") and step in schema.names else -1
        if place < 0:
            return None
        field = schema.field(place)
        schema = _children(field.type)
    return field


def _children(kind: Any) -> Any:
    return pa.schema(list(kind)) if pa.types.is_struct(kind) else pa.schema([])


def _values(dataset: Any, column: str) -> list[Any]:
    """The values of a column; the items of lists one by one."""
    top, *steps = column.split(".")
    values = dataset.to_table(columns=[top]).column(top).to_pylist()
    for step in steps:
        values = [None if one is None else one[step] for one in values]
    return [item for one in values for item in (one if isinstance(one, list) else [one])]


Query = tuple[str, list[int], list[int]]


def _by_filters(dataset: Any, column: str, kind: str) -> Iterator[Query]:
    """Yield filters that an index of this kind can use, the rows that it finds, and those of a scan."""
    values = sorted({one for one in _values(dataset, column) if one is not None}, key=str)
    filters = []
    for value in values:
        literal = f"'{value}'" if isinstance(value, str) else str(value)
        if kind == "labellist":
            filters += [f"array_has_any({column}, [{literal}])", f"array_has_all({column}, [{literal}])"]
        elif kind == "ngram":
            # 4.0.0 finds nothing that is shorter than the three letters of a gram.
            filters += [f"contains({column}, '{word}')" for word in str(value).split() if len(word) > 2]
        elif kind == "bloomfilter":
            filters.append(f"{column} = {literal}")
        else:
            filters += [f"{column} = {literal}", f"{column} <= {literal}", f"{column} in ({literal}, {literal})"]
    if kind not in ("labellist", "ngram"):
        filters.append(f"{column} is null")
    filters = list(dict.fromkeys(filters))
    for one, wanted in zip(filters, _scanned(dataset, filters), strict=True):
        found = dataset.scanner(filter=one, columns=[], with_row_id=True, use_scalar_index=True).to_table()
        yield one, sorted(found.column("_rowid").to_pylist()), wanted


def _scanned(dataset: Any, filters: list[str]) -> Iterator[list[int]]:
    """Yield the row ids that each filter finds without an index: one scan evaluates all of them as columns."""
    columns = {f"filter {number}": one for number, one in enumerate(filters)}
    table = dataset.scanner(columns=columns, with_row_id=True, use_scalar_index=False).to_table()
    ids = table.column("_rowid").to_pylist()
    for name in columns:
        yield sorted(row for row, matches in zip(ids, table.column(name).to_pylist(), strict=True) if matches)


def _by_words(dataset: Any, column: str) -> Iterator[Query]:
    top, *steps = column.split(".")
    table = dataset.to_table(columns=[top], with_row_id=True)
    texts = table.column(top).to_pylist()
    for step in steps:
        texts = [None if one is None else one[step] for one in texts]
    ids = table.column("_rowid").to_pylist()
    words = sorted({word for text in texts if text is not None for word in text.split()})
    for word in words:
        wanted = sorted(row for row, text in zip(ids, texts, strict=True) if text is not None and word in text.split())
        query = MatchQuery(word, column)
        found = dataset.scanner(full_text_query=query, columns=[], with_row_id=True, limit=10_000).to_table()
        yield f"the word {word!r} in {column}", sorted(found.column("_rowid").to_pylist()), wanted


def _by_distance(dataset: Any, column: str) -> Iterator[Query]:
    """As `_by_filters`, for vectors: all rows that have one are neighbours, near or far."""
    width = _field(dataset.schema, column).type.list_size
    table = dataset.to_table(columns=[column], with_row_id=True)
    pairs = zip(table.column("_rowid").to_pylist(), table.column(column).to_pylist(), strict=True)
    wanted = sorted(row for row, vector in pairs if vector is not None)
    if not wanted:
        return
    nearest = {"column": column, "q": [0.0] * width, "k": len(wanted) + 5, "nprobes": 100, "refine_factor": 10}
    found = dataset.scanner(nearest=nearest, columns=[], with_row_id=True).to_table()
    yield f"all neighbours in {column}", sorted(found.column("_rowid").to_pylist()), wanted


def commit_over(root: str, before: int) -> str:
    """Commit a delete of no row that was planned on version `before`, so that pylance compares it with the versions
    since.

    Returns "committed", or the conflict. Raises all other errors.
    """
    dataset = lance.dataset(root, version=before)
    try:
        dataset.delete("false")
    except Exception as error:
        if "onflict" in str(error) or "ncompatible" in str(error) or "concurrent" in str(error):
            return "conflict"
        raise
    return "committed"


def _digest(table: Any) -> dict[str, Any]:
    rows = sorted(json.dumps(row, sort_keys=True, default=str) for row in table.to_pylist())
    return {
        "rows": len(rows),
        "schema": [[field.name, str(field.type), field.nullable] for field in table.schema],
        "hash": hashlib.sha256("\n".join(rows).encode()).hexdigest()[:24],
    }


def run(request: dict[str, Any]) -> dict[str, Any]:
    try:
        answer = read(request["root"])
        if request.get("lookups"):
            answer["lookups"] = lookups(request["root"])
        if request.get("before"):
            answer["over"] = commit_over(request["root"], request["before"])
    except BaseException as error:  # noqa: BLE001 - pylance panics with what is no Exception
        return {"error": _said(error, request["root"])}
    return answer


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
