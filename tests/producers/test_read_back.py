"""What a compaction writes is read back before it is committed; what pylance can't rewrite is left alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field

from committerd_client import StagingError, staging
from committerd_client.panics import NOT_AS_BEFORE, panics_raised
from committerd_client.staging import compaction
from committerd_client.staging import read_back as read_back_module
from committerd_client.staging.read_back import read_back
from committerd_common.messages import DataFragment
from tests.producers.arrow_values import ROWS, TYPES, array_of
from tests.producers.direct_commit import commit
from tests.producers.old_pylance import in_4

pytestmark = pytest.mark.pylance

VERSIONS: tuple[Any, ...] = ("2.0", "2.1", "2.2")
APPENDS = 3


def columns(version: Any, folder: Path) -> list[pa.DataType]:
    """The types that pylance writes and reads in files of this version."""
    found = []
    for number, kind in enumerate(TYPES):
        uri = str(folder / f"{version}-{number}.lance")
        try:
            with panics_raised():
                lance.write_dataset(pa.table({"c": array_of(kind, 0)}), uri, data_storage_version=version)
                lance.dataset(uri).to_table()
        except Exception:  # noqa: BLE001  # of many kinds
            continue
        found.append(kind)
    return found


def files_in(uri: str) -> list[Path]:
    return list(Path(uri, "data").iterdir())


def has_small_indices(kind: Any) -> bool:
    return "indices=int8" in str(kind) or "indices=uint8" in str(kind)


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """Tables of three fragments: one with all types, and one for each dictionary with small indices."""
    for version in VERSIONS:
        kinds = columns(version, folder)
        alone = [[one] for one in kinds if has_small_indices(one)]
        for number, some in enumerate([[one for one in kinds if not has_small_indices(one)], *alone]):
            for stable in (False, True):
                uri = str(folder / f"{version}-{stable}-{number}-several.lance")
                for first in range(0, APPENDS * ROWS, ROWS):
                    names = {f"c{place}": array_of(kind, first) for place, kind in enumerate(some)}
                    lance.write_dataset(
                        pa.table({"x": range(first, first + ROWS), **names}),
                        uri,
                        mode="append",
                        data_storage_version=version,
                        enable_stable_row_ids=stable,
                    )
                yield f"{some} in {version}", uri


_READ_IN_4 = """
import json, lance, sys
def read(uri, version):
    try:
        return repr(lance.dataset(uri, version=version).to_table().to_pylist())
    except BaseException as error:
        return f"error: {{error}}"
print(json.dumps([uri for uri, before, after in {tables!r}
    if not (old := read(uri, before)).startswith("error") and old != read(uri, after)]))
"""


async def test_all_types_in_all_versions_of_files(tmp_path: Path) -> None:
    """Both pylances read after a compaction what they read before; only dictionaries with small indices stay."""
    alone, tables = [], []
    for name, uri in written(tmp_path):
        table = lance.dataset(uri)
        before = table.to_table().to_pylist()
        done = staging.compact_files(table)
        if done.left_alone:
            alone.append(name)
        if done.groups:
            assert (await commit(uri, done.rewrite(range(APPENDS, APPENDS + 1)))).version == APPENDS + 1, name
            after = lance.dataset(uri)
            assert repr(after.to_table().to_pylist()) == repr(before), name
            tables.append((uri, APPENDS, APPENDS + 1))
        assert len(files_in(uri)) == APPENDS + len(done.groups), name
    assert all(has_small_indices(one) for one in alone), alone
    assert len(alone) > len(VERSIONS)
    assert len(tables) >= 2 * len(VERSIONS)
    assert json.loads(in_4(_READ_IN_4.format(tables=tables))) == []


def small_dictionary(uri: Path, first: int, count: int = 100) -> lance.LanceDataset:
    values = [f"v{number}" for number in range(first, first + count)]
    column = pa.DictionaryArray.from_arrays(pa.array([*range(count)], pa.int8()), pa.array(values))
    return lance.write_dataset(pa.table({"c": column}), uri, mode="append")


def test_halves_of_a_task_are_rewritten_where_all_of_it_cannot_be(tmp_path: Path) -> None:
    uri = tmp_path / "t.lance"
    for place, count in enumerate((30, 30, 30, 30, 50, 50, 100, 100)):
        small_dictionary(uri, place * 1000, count)
    done = staging.compact_files(lance.dataset(uri))
    assert [[one.id for one in group.old] for group in done.groups] == [[0, 1, 2, 3], [4, 5]]
    assert [one.fragments for one in done.left_alone] == [(6, 7)]
    assert "dictionary indices use 32 bits" in done.left_alone[0].why
    assert len(list(Path(uri, "data").iterdir())) == 8 + 2, "files that can't be read are deleted"


def test_a_fragment_that_cannot_be_rewritten_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are deleted in part, so it is a task of its own."""
    uri = tmp_path / "t.lance"
    small_dictionary(uri, 0)
    lance.dataset(uri).delete("c > 'v50'")

    def differs(*_: Any) -> None:
        raise StagingError("no", code=NOT_AS_BEFORE)

    monkeypatch.setattr(compaction, "read_back", differs)
    done = staging.compact_files(lance.dataset(uri))
    assert (done.groups, [one.fragments for one in done.left_alone]) == ((), [(0,)])


@pytest.mark.parametrize("version", VERSIONS)
def test_blobs(tmp_path: Path, version: Any) -> None:
    """Their descriptions say where they are, which changes."""
    uri = tmp_path / "t.lance"
    values = [None if number % 5 == 4 else bytes([number]) * (number * 300) for number in range(100)]
    if version == "2.2":
        schema = pa.schema([pa.field("x", pa.int64()), blob_field("b")])
        column: Any = blob_array(values)
    else:
        field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        schema, column = pa.schema([pa.field("x", pa.int64()), field]), values
    for _ in range(3):
        rows = pa.table({"x": range(100), "b": column}, schema=schema)
        lance.write_dataset(rows, uri, mode="append", data_storage_version=version)
    done = staging.compact_files(lance.dataset(uri))
    assert (len(done.groups), done.left_alone) == (1, ())


def test_columns_that_some_fragments_lack_and_deleted_rows(tmp_path: Path) -> None:
    uri = tmp_path / "t.lance"
    lance.write_dataset(pa.table({"a": range(100), "b": range(100)}), uri)
    lance.dataset(uri).add_columns({"c": "a + 1"})
    lance.write_dataset(pa.table({"a": range(100, 200)}), uri, mode="append")
    lance.dataset(uri).drop_columns(["b"])
    lance.dataset(uri).delete("a % 3 = 0")
    done = staging.compact_files(lance.dataset(uri))
    assert (len(done.groups), done.left_alone) == (1, ())


def groups_of(uri: Path) -> tuple[lance.LanceDataset, tuple[DataFragment, ...], tuple[DataFragment, ...]]:
    table = lance.dataset(uri)
    (group,) = staging.compact_files(table).groups
    return table, group.old, group.new


@pytest.fixture
def uri(tmp_path: Path) -> Path:
    for first in (0, 100, 200):
        rows = pa.table({"x": range(first, first + 100), "y": [None if one % 7 == 0 else one for one in range(100)]})
        lance.write_dataset(rows, tmp_path / "t.lance", mode="append")
    return tmp_path / "t.lance"


def wrong(table: lance.LanceDataset, old: Any, new: Any) -> str:
    with pytest.raises(StagingError) as raised:
        read_back(table, old, new)
    assert raised.value.code == NOT_AS_BEFORE
    return str(raised.value)


@pytest.mark.parametrize("batch_bytes", [1, 100, 1 << 20])
def test_what_differs_is_named(uri: Path, batch_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_back_module, "_BATCH_BYTES", batch_bytes)
    table, old, new = groups_of(uri)
    read_back(table, old, new)
    assert "fewer rows" in wrong(table, old, old[:2])
    assert "more rows" in wrong(table, old[:2], old)
    assert "column 'x' in rows 0 to" in wrong(table, old, [old[1], old[0], old[2]])
    (other,) = lance.fragment.write_fragments(
        pa.table({"x": range(100), "y": [None if one % 7 == 1 else one for one in range(100)]}), uri, mode="append"
    )
    assert "column 'y'" in wrong(table, old[:1], [staging.append([other], read_version=0).append.fragments[0]])


def test_files_that_are_not_there_are_the_fault_of_those_who_wrote_them(uri: Path) -> None:
    table, old, new = groups_of(uri)
    Path(uri, "data", new[0].files[0].path).unlink()
    assert "what was written can't be read" in wrong(table, old, new)
    table, old, new = groups_of(uri)
    Path(uri, "data", old[2].files[0].path).unlink()
    with pytest.raises(Exception, match=r"(?i)not found") as raised:
        read_back(lance.dataset(uri), old, new)
    assert not isinstance(raised.value, StagingError), "the store may be away"


NAN = float("nan")
OTHER_NAN = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]


def masked(values: list[Any], valid: list[bool], kind: Any) -> pa.Array:
    """An array that has values below its nulls."""
    whole = pa.array(values, kind)
    bits = pa.array(valid, pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [bits, *whole.buffers()[1:]])


def dictionary(indices: list[int | None], values: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (pa.array([1.0, NAN]), pa.array([1.0, NAN]), True),
        (pa.array([NAN]), pa.array([OTHER_NAN]), False),
        (pa.array([[NAN], []]), pa.array([[NAN], []]), True),
        (pa.array([[NAN, 1.0], [2.0]]), pa.array([[NAN], [1.0, 2.0]]), False),
        (pa.array([{"a": NAN, "b": "x"}]), pa.array([{"a": NAN, "b": "x"}]), True),
        (pa.array([{"a": NAN, "b": "x"}]), pa.array([{"a": NAN, "b": "y"}]), False),
        (pa.array([{"a": 1.0}, None]), pa.array([{"a": 1.0}, {"a": None}]), False),
        (pa.array([[NAN, 1.0]], pa.list_(pa.float64(), 2)), pa.array([[NAN, 1.0]], pa.list_(pa.float64(), 2)), True),
        (pa.array([[NAN, 1.0]], pa.list_(pa.float64(), 2)), pa.array([[NAN, 2.0]], pa.list_(pa.float64(), 2)), False),
        (masked([1, 2], [True, False], pa.int64()), masked([1, 3], [True, False], pa.int64()), True),
        (pa.array([1, 2]), pa.array([1, 2], pa.int32()), False),
        (pa.array([1, 2]), pa.array([1]), False),
        (pa.array([1, None]), pa.array([None, 1]), False),
        (dictionary([0, 1, None], ["a", "b"]), dictionary([1, 0, None], ["b", "a"]), True),
        (dictionary([0, 1], ["a", "b"]), dictionary([0, 1], ["a", "c"]), False),
        (
            pa.array([[("a", NAN)], None, [("b", 1.0)]], pa.map_(pa.string(), pa.float64())),
            pa.array([[("z", 0.0)], [("a", NAN)], None, [("b", 1.0)]], pa.map_(pa.string(), pa.float64()))[1:],
            True,
        ),
        (
            pa.array([[("a", NAN)], [("b", 1.0)]], pa.map_(pa.string(), pa.float64())),
            pa.array([[("a", NAN), ("b", 1.0)], []], pa.map_(pa.string(), pa.float64())),
            False,
        ),
        (
            pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16, None], pa.binary(16))),
            pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16, None], pa.binary(16))),
            True,
        ),
        (
            pa.array([{"position": 0, "size": 3}, None]),
            pa.array([{"position": 8, "size": 3}, None]),
            False,
        ),
    ],
)
def test_which_values_are_the_same(one: Any, other: Any, same: bool) -> None:
    assert read_back_module._same(one, other) is same
    assert read_back_module._same(other, one) is same


def test_where_blobs_are_does_not_count() -> None:
    one, other = pa.array([{"position": 0, "size": 3}, None]), pa.array([{"position": 8, "size": 3}, None])
    assert read_back_module._same(one, other, blobs=True)
    assert not read_back_module._same(one, pa.array([{"position": 8, "size": 4}, None]), blobs=True)
    assert not read_back_module._same(one, pa.array([{"position": 8, "size": 4}] * 2), blobs=True)
