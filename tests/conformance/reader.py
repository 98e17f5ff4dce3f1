"""What pylance reads of a table, as JSON.

Runs under any pylance, imports nothing of ours: as a program it reads one request a line, {"root": ..., "before": ...},
and answers each with a line.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from typing import Any

import lance


def read(root: str, storage_options: dict[str, str] | None = None) -> dict[str, Any]:
    """Digest of the latest version. Rows count, not their order."""
    dataset = lance.dataset(root, storage_options=storage_options)
    digest = _digest(dataset.to_table())
    digest["version"] = dataset.version
    digest["fragment_rows"] = sum(fragment.count_rows() for fragment in dataset.get_fragments())
    if dataset.count_rows() != digest["rows"] or digest["fragment_rows"] != digest["rows"]:
        raise AssertionError(f"counted {dataset.count_rows()} rows, read {digest['rows']}")
    if digest["rows"]:
        digest["rowid_hash"] = _digest(dataset.scanner(with_row_id=True).to_table())["hash"]
    return digest


def lookups(root: str, storage_options: dict[str, str] | None = None) -> list[str]:
    """Wrong answers of scalar indices: values for which a query with the index finds other rows than without."""
    dataset = lance.dataset(root, storage_options=storage_options)
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its successor does not know the older versions
        indices = dataset.list_indices()
    for index in indices:
        column = index["fields"][0] if index["fields"] else ""
        if column not in dataset.schema.names or str(index["type"]).lower() not in ("btree", "bitmap"):
            continue
        values = dataset.to_table(columns=[column]).column(column).to_pylist()
        for value in sorted({one for one in values if one is not None}, key=str):
            literal = f"'{value}'" if isinstance(value, str) else str(value)
            found = dataset.scanner(filter=f"{column} = {literal}", columns=[column]).to_table().num_rows
            if found != values.count(value):
                wrong.append(f"{index['name']}: {column} = {literal} finds {found} of {values.count(value)}")
    return wrong


def commit_over(root: str, before: int) -> str:
    """Commit a delete of nothing that was planned on version `before`, so that the versions since are looked at.

    Returns how it ended: "committed", or the conflict. Anything else is raised.
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


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = read(request["root"])
            if request["before"]:
                answer["over"] = commit_over(request["root"], request["before"])
        except BaseException as error:  # noqa: BLE001 - pylance panics with what is no Exception
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
