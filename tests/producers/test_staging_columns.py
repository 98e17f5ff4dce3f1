"""Changes of columns, held against pylance on a copy of the table: the same table afterwards, or both refuse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd.queue.outcomes import Status
from committerd_client import StagingError, staging
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance

KEY = {"lance-schema:unenforced-primary-key": "true"}
PAIR = pa.struct([("a", pa.int64()), ("deep", pa.struct([("c", pa.utf8())]))])
TABLE = pa.table(
    {
        "id": [1, 2],
        "some": [1, None],
        "full": [1, 2],
        "pair": [{"a": 1, "deep": {"c": "x"}}, {"a": None, "deep": None}],
        "one": [{"z": 1}, {"z": 2}],
        "list": [[1, None], [2]],
        "two words": [1, None],
        "real": [1.5, 2.0],
        "vector": [[1, 2], [3, 4]],
        "text": ["1", "x"],
    },
    schema=pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata=KEY),
            pa.field("some", pa.int64()),
            pa.field("full", pa.int64()),
            pa.field("pair", PAIR),
            pa.field("one", pa.struct([("z", pa.int64())])),
            pa.field("list", pa.list_(pa.int64())),
            pa.field("two words", pa.int64()),
            pa.field("real", pa.float64()),
            pa.field("vector", pa.list_(pa.float32(), 2)),
            pa.field("text", pa.utf8()),
        ]
    ),
)
INDICES = {"full": "BTREE", "text": "BITMAP", "list": "LABEL_LIST"}
Change = tuple[Callable[[lance.LanceDataset], Any], Callable[[lance.LanceDataset], Any]]


def alter(*alterations: Any) -> Change:
    return (lambda t: staging.alter_columns(t, *alterations), lambda t: t.alter_columns(*alterations))


def retype(path: str, kind: pa.DataType, **more: Any) -> Change:
    return alter({"path": path, "data_type": kind, **more})


def require(path: str, **more: Any) -> Change:
    return alter({"path": path, "nullable": False, **more})


def drop(*paths: str) -> Change:
    return (lambda t: staging.drop_columns(t, paths), lambda t: t.drop_columns([*paths]))


def add(transforms: Any) -> Change:
    return (lambda t: staging.add_columns(t, transforms), lambda t: t.add_columns(transforms))


FINE: dict[str, Change] = {
    "require": require("full"),
    "require a struct": require("pair"),
    "require a nested field": require("one.z"),
    "require a list": require("list"),
    "require a vector": require("vector"),
    "require what is required": require("id"),
    "require and rename": require("full", name="new"),
    "rename a key": alter({"path": "id", "name": "new"}),
    "swap": alter({"path": "some", "name": "full"}, {"path": "full", "name": "some"}),
    "narrower": retype("full", pa.int8()),
    "other text": retype("text", pa.large_utf8()),
    "dictionary": retype("text", pa.dictionary(pa.int8(), pa.utf8())),
    "narrower list": retype("list", pa.list_(pa.int32())),
    "narrower vector": retype("vector", pa.list_(pa.float16(), 2)),
    "narrower with nulls": retype("some", pa.int32()),
    "drop a key": drop("id"),
    "drop a nested field": drop("pair.a"),
    "drop the last field of a struct": drop("one.z"),
    "drop the last field of a nested struct": drop("pair.deep.c"),
    "drop all fields of a struct": drop("pair.a", "pair.deep"),
    "drop a struct and its field": drop("pair", "pair.a"),
    "drop the items of a list": drop("list.item"),
    "add nulls": add({"new": "null"}),
}
REFUSED: dict[str, Change] = {
    "require where there are nulls": require("some"),
    "require a nested field where there are nulls": require("pair.a"),
    "require a field whose struct is null": require("pair.deep.c"),
    "require a nested struct that is null": require("pair.deep"),
    "require the items of a list": require("list.item"),
    "require a column of two words": require("two words"),
    "require a quoted column": require("`two words`"),
    "require and rename where there are nulls": require("some", name="new"),
    "require and retype": require("full", data_type=pa.int32()),
    "require and retype where there are nulls": require("some", data_type=pa.int32()),
    "require one and retype another": alter(
        {"path": "full", "nullable": False}, {"path": "real", "data_type": pa.float32()}
    ),
    "whole numbers of fractions": retype("real", pa.int32()),
    "whole numbers of text": retype("text", pa.int32()),
    "text of numbers": retype("full", pa.utf8()),
    "bytes of text": retype("text", pa.binary()),
    "fractions of whole numbers": retype("full", pa.float32()),
    "decimals of whole numbers": retype("full", pa.decimal128(20, 2)),
    "times of whole numbers": retype("full", pa.timestamp("us")),
    "booleans of whole numbers": retype("full", pa.bool_()),
    "vectors of another length": retype("vector", pa.list_(pa.float32(), 1)),
    "struct of fewer fields": retype("pair", pa.struct([("a", pa.int64())])),
    "name that is taken": alter({"path": "some", "name": "full"}),
    "unknown column": alter({"path": "none", "nullable": True}),
    "a key that may be null": alter({"path": "id", "nullable": True}),
    "name with a dot": alter({"path": "some", "name": "a.b"}),
    "drop of an unknown column": drop("none"),
    "addition of what is required": add(pa.field("new", pa.int64(), nullable=False)),
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns") / "base"
    lance.write_dataset(TABLE, folder, max_rows_per_file=1)
    return folder


def copies(base: Path, folder: Path) -> tuple[str, str]:
    """Two copies of a table."""
    ours, theirs = str(folder / "ours"), str(folder / "theirs")
    for place in (ours, theirs):
        shutil.copytree(base, place)
    return ours, theirs


@pytest.mark.parametrize("name", FINE)
async def test_what_pylance_does_is_done(base: Path, tmp_path: Path, name: str) -> None:
    ours, theirs = copies(base, tmp_path)
    stage, change = FINE[name]
    change(lance.dataset(theirs))
    assert (await commit(ours, stage(lance.dataset(ours)))).status is Status.COMMITTED
    assert lance.dataset(ours).schema.equals(lance.dataset(theirs).schema, check_metadata=True)
    assert lance.dataset(ours).to_table() == lance.dataset(theirs).to_table()


@pytest.mark.parametrize("name", REFUSED)
async def test_what_pylance_refuses_is_refused(base: Path, tmp_path: Path, name: str) -> None:
    ours, theirs = copies(base, tmp_path)
    stage, change = REFUSED[name]
    with pytest.raises(Exception, match=r"."):
        change(lance.dataset(theirs))
    with pytest.raises(StagingError):
        stage(lance.dataset(ours))


@pytest.mark.parametrize(
    ("column", "kind"), [("full", pa.int8()), ("text", pa.large_utf8()), ("list", pa.list_(pa.int32()))]
)
def test_no_index_is_dropped_in_silence(base: Path, tmp_path: Path, column: str, kind: pa.DataType) -> None:
    ours, theirs = copies(base, tmp_path)
    stage, change = retype(column, kind)
    for place in (ours, theirs):
        made: Any = lance.dataset(place)
        made.create_scalar_index(column, INDICES[column])
    with pytest.raises(OSError, match="1 index"):
        change(lance.dataset(theirs))
    with pytest.raises(StagingError, match=f"column '{column}' has index '{column}_idx'") as caught:
        stage(lance.dataset(ours))
    assert caught.value.code == "index"
    staging.alter_columns(lance.dataset(ours), {"path": column, "nullable": False})


def test_rows_of_a_mem_wal_are_not_judged(tmp_path: Path) -> None:
    made: Any = lance.write_dataset(TABLE, tmp_path)
    made.initialize_mem_wal()
    for stage, change in (require("full"), retype("full", pa.int32()), alter({"path": "id", "name": "new"})):
        with pytest.raises(OSError, match="MemWAL"):
            change(lance.dataset(tmp_path))
        with pytest.raises(StagingError, match="drop the MemWAL first"):
            stage(lance.dataset(tmp_path))
    staging.alter_columns(lance.dataset(tmp_path), {"path": "some", "name": "new"})


@pytest.mark.parametrize(
    "name", ["_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"]
)
async def test_no_column_gets_the_name_of_one_that_scans_add(base: Path, tmp_path: Path, name: str) -> None:
    """pylance commits such a name, and then nobody can open the table."""
    uri, _ = copies(base, tmp_path)
    for change in (alter({"path": "some", "name": name}), add(pa.schema([(name, pa.int64())]))):
        with pytest.raises(StagingError, match="choose another name"):
            change[0](lance.dataset(uri))
    staged = staging.alter_columns(lance.dataset(uri), {"path": "some", "name": "other"})
    (found,) = (one for one in staged.transaction.project.schema if one.name == "other")
    found.name = name
    outcome = await commit(uri, staged)
    assert (outcome.status, outcome.reason) == (Status.INVALID, "schema")


async def test_rows_that_are_deleted_have_no_nulls(base: Path, tmp_path: Path) -> None:
    uri, _ = copies(base, tmp_path)
    lance.dataset(uri).delete("some is null")
    staged = staging.alter_columns(lance.dataset(uri), {"path": "some", "nullable": False})
    lance.write_dataset(TABLE, uri, mode="append")
    assert (await commit(uri, staged)).status is Status.RETRYABLE, "others may have added nulls"
    assert lance.dataset(uri).schema.field("some").nullable


async def test_an_append_does_not_lose_the_values_of_a_column_that_is_cast_meanwhile(
    base: Path, tmp_path: Path
) -> None:
    """pylance commits it, and then its rows have null there."""
    ours, theirs = copies(base, tmp_path)
    tables = {uri: lance.dataset(uri) for uri in (ours, theirs)}
    written = {uri: lance.fragment.write_fragments(TABLE, table, mode="append") for uri, table in tables.items()}
    for uri in tables:
        alter({"path": "full", "data_type": pa.int32()})[1](lance.dataset(uri))
    there = lance.LanceDataset.commit(theirs, lance.LanceOperation.Append(written[theirs]), read_version=1)
    assert there.to_table()["full"].to_pylist() == [1, 2, None, None]
    for staged in (staging.append(written[ours], dataset=tables[ours]), staging.append(written[ours])):
        outcome = await commit(ours, staged)
        assert outcome.status is Status.RETRYABLE
        assert "cast" in outcome.message
