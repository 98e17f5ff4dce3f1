"""Let the installed pylance write small tables, and keep the parts that the format tests need.

    python tests/lance/format/golden/write_golden.py        (once for each supported pylance)

Writes a folder named after pylance's version beside this file: manifests, deletion and transaction files as they were
written, and `facts.json`, what pylance itself reads from them. File names and uuids are random, so a new run gives
other bytes for the same facts.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa


def main() -> None:
    target = Path(__file__).resolve().parent / lance.__version__
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    facts = {}
    with tempfile.TemporaryDirectory() as scratch:
        for table in (plain, many_deletions, rebased_delete, stable_row_ids, fragment_reuse):
            root = Path(scratch, table.__name__)
            facts[table.__name__] = table(root)
            keep(root, target / table.__name__)
    (target / "facts.json").write_text(lines(facts), encoding="utf-8")


def plain(root: Path) -> dict[str, Any]:
    """Create, append, index, delete a few rows, set metadata and config."""
    lance.write_dataset(rows(0, 20), root, commit_message="first")
    dataset = lance.write_dataset(rows(20, 5), root, mode="append")
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id in (3, 17, 4)")
    dataset.update_config({"owner": "golden"})
    return read(dataset)


def many_deletions(root: Path) -> dict[str, Any]:
    """More than the 5,000 deleted rows from which on pylance writes a bitmap."""
    dataset = lance.write_dataset(rows(0, 6000), root)
    dataset.delete("id >= 300 and id < 5400")
    return read(dataset)


def rebased_delete(root: Path) -> dict[str, Any]:
    """Two deletions of other rows from one version: pylance merges their deletion files."""
    lance.write_dataset(rows(0, 100), root)
    late = lance.dataset(root)
    lance.dataset(root).delete("id < 10")
    late.delete("id >= 20 and id < 30")
    return read(late)


def stable_row_ids(root: Path) -> dict[str, Any]:
    """Row ids with holes after a compaction, and rows of several versions after an update."""
    dataset = lance.write_dataset(rows(0, 50), root, enable_stable_row_ids=True)
    dataset.delete("id in (3, 5, 7) or (id > 10 and id < 20)")
    dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
    dataset = lance.write_dataset(rows(50, 10), root, mode="append")
    dataset.update({"name": "'changed'"}, where="id in (1, 55, 49)")
    return read(dataset, stable=True)


def fragment_reuse(root: Path) -> dict[str, Any]:
    """A compaction that leaves the index to be remapped later."""
    lance.write_dataset(rows(0, 10), root)
    dataset = lance.write_dataset(rows(10, 10), root, mode="append")
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 4")
    dataset.optimize.compact_files(defer_index_remap=True)
    return read(dataset)


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"row {i}" for i in ids]})


def read(dataset: Any, *, stable: bool = False) -> dict[str, Any]:
    """What pylance reads of every version, by version."""
    return {str(found["version"]): version(dataset, found["version"], stable) for found in dataset.versions()}


def version(dataset: Any, number: int, stable: bool) -> dict[str, Any]:
    dataset = dataset.checkout_version(number)
    return {
        "fragments": {
            str(fragment.fragment_id): fragment_facts(fragment, stable) for fragment in dataset.get_fragments()
        },
        "indices": [index["name"] for index in dataset.list_indices()],
    }


def fragment_facts(fragment: Any, stable: bool) -> dict[str, Any]:
    """Of the remaining rows, in their order: offset and row id as ranges, versions as runs."""
    columns = ["_rowid", "_rowaddr"]
    if stable:
        columns += ["_row_created_at_version", "_row_last_updated_at_version"]
    found = fragment.scanner(columns=columns).to_table().to_pydict()
    facts = {
        "physical_rows": fragment.physical_rows,
        "offsets": ranges([address & 0xFFFFFFFF for address in found["_rowaddr"]]),
        "row_ids": ranges(found["_rowid"]),
    }
    if stable:
        facts["created"] = runs(found["_row_created_at_version"])
        facts["updated"] = runs(found["_row_last_updated_at_version"])
    return facts


def ranges(values: list[int]) -> list[list[int]]:
    """Half-open ranges of consecutive values, in the order of the values."""
    found: list[list[int]] = []
    for value in values:
        if found and found[-1][1] == value:
            found[-1][1] += 1
        else:
            found.append([value, value + 1])
    return found


def runs(values: list[int]) -> list[list[int]]:
    """How often each value is repeated, and the value."""
    return [[len(list(same)), value] for value, same in groupby(values)]


def lines(facts: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each version."""
    tables = []
    for table, versions in facts.items():
        each = [f"  {json.dumps(number)}: {json.dumps(found)}" for number, found in versions.items()]
        tables.append(f" {json.dumps(table)}: {{\n" + ",\n".join(each) + "\n }")
    return "{\n" + ",\n".join(tables) + "\n}\n"


def keep(root: Path, target: Path) -> None:
    """Copy metadata: everything but data and index files."""
    for folder in ("_versions", "_transactions", "_deletions"):
        if (root / folder).is_dir():
            shutil.copytree(root / folder, target / folder)
    for leftover in target.glob("_versions/*.json"):
        leftover.unlink()


if __name__ == "__main__":
    main()
