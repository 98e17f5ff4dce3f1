"""The helpers stage what pylance itself writes for the same change, with the oldest and the newest pylance."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import DataFile, FragmentMetadata, RowIdMeta, write_fragments

from committerd.queue.outcomes import Status
from committerd_client import Staged, staging
from committerd_common.request import decode_transaction
from tests.producers import staging_oracle
from tests.producers.direct_commit import commit
from tests.producers.old_pylance import ROOT, old_pylance

NAMES = [name for name, _ in staging_oracle.cases()]

pytestmark = pytest.mark.pylance


@pytest.mark.parametrize("name", NAMES)
def test_helpers_stage_what_pylance_writes(tmp_path: Path, name: str) -> None:
    ours, theirs = dict(staging_oracle.cases())[name](str(tmp_path))
    assert ours == theirs


@cache
def compared_by(python: str) -> dict[str, Any]:
    """All comparisons, run once in another environment."""
    script = ROOT / "tests" / "producers" / "staging_oracle.py"
    command = [python, str(script), str(ROOT), sysconfig.get_path("platlib")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize("name", [*NAMES, "external row ids"])
def test_helpers_stage_what_pylance_4_writes(name: str) -> None:
    results = compared_by(old_pylance())
    assert results["pylance"] == "4.0.0"
    ours, theirs = results[name]
    assert ours == theirs


def test_a_create_asks_not_to_overwrite_and_carries_its_options(tmp_path: Path) -> None:
    fragments = write_fragments(pa.table({"a": [1]}), str(tmp_path), mode="create")
    plain = staging.create(fragments, pa.schema([("a", pa.int64())]))
    assert plain.create_only
    assert plain.create_options == {}
    assert plain.transaction.read_version == 0
    staged = staging.create(
        fragments,
        pa.schema([("a", pa.int64())]),
        config={"lance.x": "1"},
        properties={"job": "7"},
        enable_stable_row_ids=True,
        enable_v2_manifest_paths=False,
        data_storage_version="2.1",
    )
    assert isinstance(staged, Staged)
    assert staged.create_options == {
        "enable_stable_row_ids": True,
        "enable_v2_manifest_paths": False,
        "data_storage_version": "2.1",
    }
    assert staged.transaction.overwrite.config_upsert_values == {"lance.x": "1"}
    assert staged.transaction.transaction_properties == {"job": "7"}


def test_the_schema_of_a_create_follows_the_version_of_its_files(tmp_path: Path) -> None:
    """A blob is one column up to 2.1 and several from 2.2 on."""
    schema = pa.schema([pa.field("a", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    table = pa.table([pa.array([b"x"], pa.large_binary())], schema=schema)
    names = {}
    for version in ("2.1", "2.2"):
        fragments = write_fragments(table, str(tmp_path / version), mode="create", data_storage_version=version)
        transaction = staging.create(fragments, schema).transaction
        names[version] = [field.name for field in transaction.overwrite.schema]
    assert names == {"2.1": ["a"], "2.2": ["a", "data", "uri"]}


def test_each_transaction_has_a_uuid_of_its_own_unless_one_is_given(tmp_path: Path) -> None:
    fragments = write_fragments(pa.table({"a": [1]}), str(tmp_path / "t"))
    first, second = staging.append(fragments), staging.append(fragments)
    assert first.uuid != second.uuid
    assert decode_transaction(first.SerializeToString(), bytes_max=1000) == first
    assert first.WhichOneof("operation") == "append"
    given = staging.new_uuid()
    assert staging.append(fragments, uuid=given).uuid == given


def test_an_append_says_for_which_version_its_files_were_written(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "t"))
    fragments = write_fragments(pa.table({"a": [2]}), dataset, mode="append")
    staged = staging.append(fragments, dataset=dataset, uuid="u", properties={"k": "v"})
    assert staged.read_uuid is not None
    assert (staged.transaction.read_version, staged.transaction.uuid) == (1, "u")
    assert staged.transaction.transaction_properties == {"k": "v"}
    assert staged.transaction.append == staging.append(fragments, read_version=1).append
    with pytest.raises(TypeError, match="either dataset= or read_version="):
        staging.append(fragments, dataset=dataset, read_version=1)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"a": [1], "b": [2], "c": [3]}, r"has fields \[2\], which version 1 of the table does not have"),
        ({"b": [2]}, r"lacks the columns \['b'\], which version 1 of the table requires"),
    ],
)
def test_an_append_of_files_for_another_schema_is_refused(
    tmp_path: Path, columns: dict[str, list[int]], told: str
) -> None:
    schema = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    dataset = lance.write_dataset(pa.table({"a": [1], "b": [2]}, schema=schema), str(tmp_path / "t"))
    others = write_fragments(pa.table(columns), str(tmp_path / "other"))
    with pytest.raises(staging.StagingError, match=told) as refused:
        staging.append(others, dataset=dataset)
    assert refused.value.code == "schema_differs"


def test_properties_of_the_committer_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'committerd\.position'.*the committer's"):
        staging.append([], properties={"committerd.position": "{}"})


def test_what_a_newer_pylance_has_added_is_refused_when_it_is_filled_in() -> None:
    @dataclasses.dataclass
    class Newer(FragmentMetadata):
        shards: Any = None

    empty = Newer(id=1, files=[], physical_rows=3)
    assert staging.fragment(empty).physical_rows == 3
    with pytest.raises(ValueError, match=r"Newer\.shards is set"):
        staging.fragment(dataclasses.replace(empty, shards=["x"]))


def test_overlays_are_refused(tmp_path: Path) -> None:
    (fragment,) = write_fragments(pa.table({"a": [1]}), str(tmp_path))
    overlay = lance.LanceOperation.DataOverlayFile(data_file=DataFile("x.lance", [0]), offsets=[0])
    with pytest.raises(ValueError, match=r"FragmentMetadata\.overlays is set"):
        staging.fragment(dataclasses.replace(fragment, overlays=[overlay]))


def test_row_ids_kept_in_a_column_are_refused(tmp_path: Path) -> None:
    (fragment,) = write_fragments(pa.table({"a": [1]}), str(tmp_path))
    row_id_meta: Any = RowIdMeta  # its stub is wrong
    fragment.row_id_meta = row_id_meta.from_json('"Column"')
    with pytest.raises(ValueError, match="fragment 0 keeps its row_ids in a way"):
        staging.fragment(fragment)


@pytest.mark.parametrize("by_offset", [True, False], ids=["delete_rows", "pylance 4.0.0"])
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "scanned"])
def test_a_delete_elsewhere_opens_the_fragments_that_have_its_rows_only(
    monkeypatch: pytest.MonkeyPatch, *, by_offset: bool, indexed: bool
) -> None:
    dataset = lance.write_dataset(pa.table({"id": range(3000)}), "memory://opens", max_rows_per_file=10)
    if indexed:
        dataset.create_scalar_index("id", "ZONEMAP")  # it answers inexactly, and does not know the rows added below
    dataset = lance.write_dataset(pa.table({"id": range(3000, 3010)}), dataset, mode="append")
    dataset.delete("id = 75")
    name = "delete_rows" if by_offset else "delete"
    if not by_offset:
        monkeypatch.delattr(lance.LanceFragment, "delete_rows")
    real, opened = getattr(lance.LanceFragment, name), []

    def noted(one: lance.LanceFragment, argument: Any) -> Any:
        opened.append(one.fragment_id)
        return real(one, argument)

    monkeypatch.setattr(lance.LanceFragment, name, noted)
    few = staging.delete(dataset, "id in (75, 77, 1234) or id between 20 and 29").transaction.delete
    assert sorted(opened) == [2, 7, 123]
    assert list(few.deleted_fragment_ids) == [2]
    assert [(one.id, one.deletion_file.num_deleted_rows) for one in few.updated_fragments] == [(7, 2), (123, 1)]
    opened.clear()
    many = staging.delete(dataset, "id % 20 = 5").transaction.delete
    assert sorted(opened) == list(range(0, 301, 2))  # threads open them
    assert [one.id for one in many.updated_fragments] == sorted(opened)
    opened.clear()
    assert not staging.delete(dataset, "id = -1").transaction.delete.updated_fragments
    assert not opened


async def test_a_delete_in_a_local_folder_writes_the_deletion_files_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 600 fragments: pylance has written deletion files (arrays), the first delete writes more, one is emptied."""
    uri = str(tmp_path / "many.lance")
    dataset = lance.write_dataset(pa.table({"id": range(3000)}), uri, max_rows_per_file=5)
    dataset.delete("id in (0, 11) or id between 20 and 23")
    monkeypatch.delattr(lance.LanceFragment, "delete_rows")
    monkeypatch.delattr(lance.LanceFragment, "delete")
    left = set(range(3000)) - {0, 11, 20, 21, 22, 23}
    for predicate, rows in [
        ("id % 5 = 3", {one for one in left if one % 5 == 3}),
        ("id % 5 = 4 and id < 100", set(range(4, 100, 5))),
    ]:
        change = staging.delete(lance.dataset(uri), predicate)
        assert change.deleted == len(rows)
        assert (await commit(uri, change)).status is Status.COMMITTED
        left -= rows
        assert set(lance.dataset(uri).to_table()["id"].to_pylist()) == left
    assert 4 not in [one.fragment_id for one in lance.dataset(uri).get_fragments()]


async def test_columns_of_many_small_fragments_are_added_by_one_call_of_pylance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "many.lance")
    lance.write_dataset(pa.table({"id": range(40)}), uri, max_rows_per_file=2)
    opened = lance.dataset(uri)
    with monkeypatch.context() as patched:
        patched.delattr(lance.LanceFragment, "merge_columns")
        change = staging.add_columns(opened, {"next": "id + 1"})
        nothing = staging.add_columns(lance.dataset(uri), {"next": "cast(null as int)"})
    assert lance.dataset(uri).version == 1
    assert nothing.transaction.uuid != change.transaction.uuid
    assert (await commit(uri, change)).status is Status.COMMITTED
    assert lance.dataset(uri).to_table()["next"].to_pylist() == list(range(1, 41))
    # By now others have changed the table, which pylance's own call would refuse. The committer decides about it.
    late = staging.add_columns(opened, {"late": "id + 1"})
    assert late.transaction.read_version == 1
    assert len(late.transaction.merge.fragments) == 20
    with pytest.raises(Exception, match="no_such"):
        staging.add_columns(lance.dataset(uri), {"more": "no_such + 1"})


async def test_a_column_is_cast_to_a_type_that_sql_has_no_short_name_for(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"day": pa.array([1, None], pa.date32())}), tmp_path)
    changed = staging.alter_columns(lance.dataset(tmp_path), {"path": "day", "data_type": pa.timestamp("s")})
    assert (await commit(tmp_path, changed)).status is Status.COMMITTED
    assert lance.dataset(tmp_path).to_table()["day"].cast(pa.int64()).to_pylist() == [86_400, None]
