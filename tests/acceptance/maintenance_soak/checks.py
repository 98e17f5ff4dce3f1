"""What must hold when a run has ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow.compute as pc

from harness.lance_table import run_in_4
from harness.scene import Scene
from tests.acceptance.maintenance_soak.expected import Expected
from tests.acceptance.maintenance_soak.kills import Clients, Names
from tests.acceptance.maintenance_soak.table import columns_of, wrong_rows

_READ_IN_4 = """
import json, sys, lance, pyarrow.compute as pc
uri, references = sys.argv[1], json.loads(sys.argv[2])
found = []
for branch, version in references:
    table = lance.dataset(uri)
    table = table.checkout_version((branch, version) if branch else version)
    rows = table.to_table()
    found.append([rows.num_rows, *(pc.sum(rows[name]).as_py() or 0 for name in ("id", "value"))])
print(json.dumps(found))
"""
Reference = tuple[str | None, int | str | None]
"""A branch or None, and a version, a tag, or None for the latest one."""


def check_rows(scene: Scene, written: Expected, clients: Clients) -> list[str]:
    """All rows must be those that were written, and some of them found through the index."""
    table = scene.table.open()
    found = table.to_table()
    ids, values, _ = columns_of(found)
    known, unknown = clients.ids()
    expected = written.copy()
    for id_ in known | (unknown & set(ids.tolist())):
        expected.put(id_, 0)
    problems = expected.differences(ids, values)
    if wrong := wrong_rows(found):
        problems.append(f"the vectors of {len(wrong)} rows are not those of their values: {wrong[:10]}")
    wanted, _ = expected.rows()
    some = wanted[:: max(len(wanted) // 100, 1)].tolist()
    missed = [one for one in some if table.count_rows(f"id = {one}") != 1]
    return problems + [f"a query through the index does not find row {one}" for one in missed]


def check_references(scene: Scene, names: Names) -> list[str]:
    """Every version, tag and branch must be readable as a whole, by both pylances and with the same rows."""
    table = scene.table.open()
    references: list[Reference] = [(None, one["version"]) for one in table.versions()]
    references += [(None, tag) for tag in names.tags]
    references += [(branch, None) for branch in names.branches]
    here, problems = [], []
    for branch, version in references:
        try:
            opened = table.checkout_version((branch, version) if branch else version)
            rows = opened.to_table()
        except (OSError, ValueError) as error:
            problems.append(f"{branch or ''} {version or ''} can't be read: {error}")
            here.append([0, 0, 0])
            continue
        here.append([rows.num_rows, *(pc.sum(rows[name]).as_py() or 0 for name in ("id", "value"))])
        if wrong := wrong_rows(rows):
            problems.append(f"{branch or ''} {version or ''} has wrong vectors: {wrong[:10]}")
        expected = names.branches.get(branch) if branch else names.tags.get(str(version))
        if expected is not None and expected != rows.num_rows:
            problems.append(f"{branch or version} had {expected} rows, and has {rows.num_rows}")
    there = run_in_4(_READ_IN_4, scene.table.uri, json.dumps(references))
    problems += [
        f"{reference}: pylance 4.0.0 reads {four}, {lance.__version__} reads {own}"
        for reference, own, four in zip(references, here, there, strict=True)
        if own != four
    ]
    return problems


def needless(scene: Scene) -> list[str]:
    """The files that no version names, by what pylance says of the versions; the names are the keys."""
    folder = Path(scene.table.uri)
    named: set[str] = set()
    versions = [one["version"] for one in scene.table.open().versions()]
    for version in versions:
        table = scene.table.open(version)
        for fragment in table.get_fragments():
            named.update(f"data/{file.path}" for file in fragment.data_files())
            deletions = fragment.deletion_file()
            named.update({deletions} if deletions else ())
        named.update(f"_indices/{one.uuid}" for index in table.describe_indices() for one in index.segments)
    found = []
    for name in ("data", "_deletions"):
        found += [f"{name}/{path.name}" for path in (folder / name).glob("*") if f"{name}/{path.name}" not in named]
    # A folder whose files are deleted takes no room.
    indices = {path.parent.name for path in (folder / "_indices").glob("*/*")}
    found += [key for one in indices if (key := f"_indices/{one}") not in named]
    transactions = [*(folder / "_transactions").glob("*")]
    if len(transactions) > len(versions):
        found.append(f"{len(transactions)} transaction files for {len(versions)} versions")
    return sorted(found)


def unfinished_reports(scene: Scene) -> list[str]:
    """Reports of deletions that nobody has finished."""
    folder = Path(scene.table.uri, "_maintenance")
    return [one.name for one in folder.glob("*.jsonl") if not one.with_suffix(".done").exists()]


def dry_run(command: Callable[..., str]) -> list[str]:
    """What a dry run would delete still."""
    lines = [json.loads(line) for line in command("maintain", "--dry-run", "--json").splitlines() if line[:1] == "{"]
    (cleanup,) = [one for one in lines if one["event"] == "cleanup"]
    return [f"a dry run would delete {cleanup['bytes']} bytes"] if cleanup["bytes"] else []
