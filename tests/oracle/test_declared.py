"""What Lance checks of a table's own description: its clustering key, segments of indices, rows that an update names.

What pylance 14.0.2 commits, we commit; what it refuses or repairs, we refuse.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter
from lance.fragment import DataFile
from pyroaring import BitMap

from committerd_common.index_details import encode_fragments
from committerd_common.messages import Transaction
from committerd_common.paths import index_prefix
from tests.conformance.facts import manifests
from tests.oracle import native, scenario
from tests.oracle.native import Opened
from tests.oracle.scenario import Report, commit_staged
from tests.oracle.test_bearable import P, X, Y, latest, made_by, make, rows, staged_at

pytestmark = pytest.mark.pylance

POSITION = "lance-schema:unenforced-clustering-key:position"


def declare(table: Any, column: str, **entries: str | None) -> None:
    table.update_field_metadata({column: {POSITION if key == "position" else key: entries[key] for key in entries}})


async def test_a_clustering_key_is_declared_as_by_pylance(tmp_path: Path) -> None:
    table = tmp_path / "t"
    make(table, indices=False)
    for number, (column, entries) in enumerate((("a", {"position": "2"}), ("a", {"other": "x"}), ("t", {"x": "1"}))):
        theirs, ours = tmp_path / f"pylance{number}", tmp_path / f"queued.{number}"
        native.link_tree(table, theirs)

        def apply(opened: Opened, column: str = column, entries: dict[str, str] = entries) -> None:
            declare(opened.dataset, column, **entries)

        made = native.change(theirs, max(manifests(theirs)), ours, apply)
        case = await scenario.by_queue(made, theirs=theirs, ours=ours)
        assert scenario.compare(case, Report(0)) == set()
        table = ours
    assert [field.unenforced_clustering_key_position for field in latest(table).manifest.fields][:3] == [0, 2, 0]
    for column, field, value in (("a", 1, "2"), ("a", 1, None), ("t", 2, "1")):
        with pytest.raises(OSError, match="cannot be changed once set"):
            declare(lance.dataset(str(table)), column, position=value)
        staged = staged_at(table)
        entry = staged.update_config.field_metadata_updates[field].update_entries.add(key=POSITION)
        if value is not None:
            entry.value = value
        assert (await commit_staged(table, staged.SerializeToString())).reason == "schema"


async def test_two_segments_of_an_index_cover_no_fragment_both(tmp_path: Path) -> None:
    """pylance opens such segments at each commit and counts their fragments anew, and calls the table corrupt."""
    root = tmp_path / "t"
    make(root)
    assert (await commit_staged(root, another_segment(root, [0, 1]))).reason == "index_bitmap"


async def test_two_segments_of_an_index_find_rows_in_the_same_way(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    (append,) = made_by(root, lambda table: lance.write_dataset(table.to_table(), table, mode="append"))
    assert (await commit_staged(root, append.SerializeToString())).verdict == "committed"
    for other, reason in ((True, "index_details"), (False, "")):
        assert (await commit_staged(root, another_segment(root, [2], other=other))).reason == reason


def another_segment(root: Path, fragments: list[int], *, other: bool = False) -> bytes:
    """A CreateIndex of one more segment of the B-tree; `other`: of a version that finds rows in another way."""
    (known,) = (index for index in latest(root).indices if index.name == "a_idx")
    made = Transaction.CreateIndex(new_indices=[known])
    (index,) = made.new_indices
    index.uuid.uuid = uuid.uuid4().bytes
    index.index_version = 1 - known.index_version if other else known.index_version
    index.fragment_bitmap = encode_fragments(BitMap(fragments))
    shutil.copytree(root / index_prefix(known.uuid.uuid), root / index_prefix(index.uuid.uuid))
    return staged_at(root, create_index=made).SerializeToString()


async def test_an_update_names_rows_of_fragments_that_it_changes(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root, stable=True, indices=False)
    source = pa.table({"id": pa.array([1], pa.int64()), "a": pa.array([77], pa.int32())})

    def change(table: Any, number: int) -> None:
        fragment, fields = table.get_fragments()[0].update_columns(source, left_on="id")[:2]
        operation = lance.LanceOperation.Update(
            updated_fragments=[fragment], fields_modified=fields, update_mode="rewrite_columns",
            updated_fragment_offsets={number: BitMap([1]).serialize()},
        )  # fmt: skip
        lance.LanceDataset.commit(table.uri, operation, read_version=table.version)

    (staged,) = made_by(root, lambda table: change(table, 0))
    wrong = Transaction.FromString(staged.SerializeToString())
    wrong.update.updated_fragment_offset_bitmaps[1] = wrong.update.updated_fragment_offset_bitmaps[0]
    with pytest.raises(OSError, match="not in updated_fragments"):
        change(lance.dataset(str(root)), 1)
    assert (await commit_staged(root, wrong.SerializeToString())).reason == "updated_offsets"
    assert (await commit_staged(root, staged.SerializeToString())).verdict == "committed"


async def test_a_struct_is_replaced_whether_files_list_its_field_or_not(tmp_path: Path) -> None:
    """Files of pylance 14 list the fields in a struct alone, and those of 4.0.0 the struct as well."""
    table = tmp_path / "t"
    make(table, indices=False)
    for number, (fields, columns) in enumerate((([P, X, Y], [-1, 0, 1]), ([X, Y], [0, 1]))):
        theirs, ours = tmp_path / f"pylance{number}", tmp_path / f"queued.{number}"
        native.link_tree(table, theirs)

        def apply(opened: Opened, fields: list[int] = fields, columns: list[int] = columns) -> None:
            path = Path(opened.uri, "data", f"{uuid.uuid4()}.lance")
            values = rows(range(50, 58)).select(["p"])
            with LanceFileWriter(str(path), values.schema, version="2.1") as writer:
                writer.write_batch(values)
            file = DataFile(path.name, fields, columns, 2, 1, path.stat().st_size)
            operation = lance.LanceOperation.DataReplacement([lance.LanceOperation.DataReplacementGroup(0, file)])
            lance.LanceDataset.commit(
                opened.uri, operation, read_version=opened.dataset.version, commit_lock=opened.lock
            )

        made = native.change(theirs, max(manifests(theirs)), ours, apply)
        case = await scenario.by_queue(made, theirs=theirs, ours=ours)
        assert [outcome.verdict for outcome in case.outcomes] == ["committed"]
        assert scenario.compare(case, Report(0)) == set()
        table = ours
    assert lance.dataset(str(table)).to_table(["p"])["p"][0].as_py() == {"x": 50, "y": "y50"}
