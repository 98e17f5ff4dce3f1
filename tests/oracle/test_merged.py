"""Merges that a program makes by hand: pylance 14.0.2 commits them, and so do we; or it refuses them, and so do we."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments
from lance.schema import LanceSchema

from committerd_common.messages import Transaction
from tests.conformance.facts import manifests
from tests.oracle import native, scenario
from tests.oracle.native import Opened
from tests.oracle.scenario import Report, commit_staged
from tests.oracle.test_bearable import SCHEMA, appended, latest, rows, staged_at

pytestmark = pytest.mark.pylance


def make(root: Path, *, stable: bool = False) -> None:
    for first in (0, 8):
        lance.write_dataset(
            rows(range(first, first + 8)), str(root), mode="append" if first else "create",
            data_storage_version="2.1", enable_stable_row_ids=stable,
        )  # fmt: skip


def merge(opened: Opened, schema: Any, *new: Any, first: bool = False) -> None:
    existing = [one.metadata for one in opened.dataset.get_fragments()]
    fragments = [*new, *existing] if first else [*existing, *new]
    operation = lance.LanceOperation.Merge(fragments, schema)
    lance.LanceDataset.commit(opened.uri, operation, read_version=opened.dataset.version, commit_lock=opened.lock)


def new_fragments(opened: Opened) -> list[Any]:
    """Two fragments with id 0, and one with an id of its own."""
    made = [write_fragments(rows(range(first, first + 3)), opened.uri)[0] for first in (100, 110, 120)]
    made[2].id = 9
    return made


@pytest.mark.parametrize("stable", [False, True])
async def test_a_merge_brings_new_fragments_after_those_of_the_table(stable: bool, tmp_path: Path) -> None:
    root, ours = tmp_path / "pylance", tmp_path / "queued."
    make(root, stable=stable)

    def apply(opened: Opened) -> None:
        merge(opened, opened.dataset.lance_schema, *new_fragments(opened))

    made = native.change(root, max(manifests(root)), ours, apply)
    case = await scenario.by_queue(made, theirs=root, ours=ours)
    assert [outcome.verdict for outcome in case.outcomes] == ["committed"]
    assert scenario.compare(case, Report(0)) == set()
    assert lance.dataset(str(ours)).count_rows() == 25


class Wrong(NamedTuple):
    told: str
    """pylance's words."""
    change: Callable[[pa.Schema], pa.Schema]
    code: str = "schema"


def with_field(schema: pa.Schema, place: int, **changes: Any) -> pa.Schema:
    field = schema.field(place)
    for name, value in changes.items():
        field = getattr(field, f"with_{name}")(value)
    return schema.set(place, field)


SCHEMAS = {
    "a column that may be null must not": Wrong(
        "nullable true -> false", lambda schema: with_field(schema, 1, nullable=False)
    ),
    "another type": Wrong(
        "logical type int32 -> int64", lambda schema: with_field(schema, 1, type=pa.int64()), "field_type"
    ),
    "exchanged names": Wrong(
        "remaps field id 1", lambda schema: with_field(with_field(schema, 1, name="t"), 2, name="a")
    ),
    "another order": Wrong(
        "remaps field id 0", lambda schema: pa.schema([schema.field(place) for place in (1, 0, 2, 3)])
    ),
    "the id of a dropped column": Wrong(
        "already used by current or dropped fields", lambda schema: schema.append(pa.field("new", pa.int32()))
    ),
}


@pytest.mark.parametrize("wrong", SCHEMAS.values(), ids=SCHEMAS.keys())
async def test_a_merge_keeps_the_fields_of_the_table(wrong: Wrong, tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    lance.dataset(str(root)).drop_columns(["l"])
    schema = wrong.change(pa.schema(list(SCHEMA)[:4]))
    with pytest.raises(OSError, match=wrong.told):
        merge(_opened(root), LanceSchema.from_pyarrow(schema))
    lance.write_dataset(schema.empty_table(), str(tmp_path / "schema"))
    staged = staged_at(root, merge=Transaction.Merge(fragments=latest(root).manifest.fragments))
    staged.merge.schema.extend(latest(tmp_path / "schema").manifest.fields)
    outcome = await commit_staged(root, staged.SerializeToString())
    assert (outcome.verdict, outcome.reason) == ("error", wrong.code)


async def test_new_fragments_come_last(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    opened = _opened(root)
    with pytest.raises(OSError, match="after a new fragment"):
        merge(opened, opened.dataset.lance_schema, *new_fragments(opened), first=True)
    manifest = latest(root).manifest
    fragments = [*appended(root).append.fragments, *manifest.fragments]
    staged = staged_at(root, merge=Transaction.Merge(fragments=fragments, schema=manifest.fields))
    assert (await commit_staged(root, staged.SerializeToString())).reason == "merge_fragments"


async def test_new_fragments_have_no_deleted_rows(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    lance.dataset(str(root)).delete("id = 1")
    opened, manifest = _opened(root), latest(root).manifest
    fragments = [one.metadata for one in opened.dataset.get_fragments()]
    with pytest.raises(OSError, match="must be newly written"):
        lance.LanceDataset.commit(opened.uri, lance.LanceOperation.Overwrite(SCHEMA, fragments))
    overwrite = Transaction.Overwrite(fragments=manifest.fragments, schema=manifest.fields)
    append = Transaction.Append(fragments=manifest.fragments)
    for staged in (staged_at(root, overwrite=overwrite), staged_at(root, append=append)):
        assert (await commit_staged(root, staged.SerializeToString())).reason == "deletion_file"
    # pylance commits the Append, and then it can't read the table.
    lance.LanceDataset.commit(
        opened.uri, lance.LanceOperation.Append(fragments[:1]), read_version=lance.dataset(str(root)).version
    )
    with pytest.raises((OSError, ValueError), match="_deletions"):
        lance.dataset(str(root)).to_table()


def _opened(root: Path) -> Opened:
    return Opened(uri=str(root), dataset=lance.dataset(str(root)), lock=None)  # type: ignore[arg-type]
