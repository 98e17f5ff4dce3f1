"""Changes that can't be staged: the error says so, and what to do instead; and the alternatives work."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd.queue.outcomes import Status
from committerd_client import RetryableConflict, Staged, panics, staging
from committerd_client.reexecution import Reexecution
from committerd_client.staging.transactions import ReadTable, read_table
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance

TABLE = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"], "pair": [{"x": 1, "y": 2}] * 3})
Change = Callable[[lance.LanceDataset], Any]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    lance.write_dataset(TABLE, tmp_path / "t.lance")
    return str(tmp_path / "t.lance")


REFUSED: dict[str, tuple[Change, str, str]] = {
    "update of an unknown column": (
        lambda t: staging.update(t, {"no": "1"}),
        "column",
        "no column 'no' .* id, text, pair",
    ),
    "value of another type": (
        lambda t: staging.update(t, {"id": "text"}),
        "schema_differs",
        "'id' is int64 in the table, and the values are string",
    ),
    "name that is taken": (
        lambda t: staging.alter_columns(t, {"path": "id", "name": "text"}),
        "column",
        "'text' would be there twice",
    ),
    "null column that is taken": (
        lambda t: staging.add_columns(t, pa.field("text", pa.int8())),
        "column",
        "'text' would be there twice",
    ),
    "null column that may not be null": (
        lambda t: staging.add_columns(t, pa.field("new", pa.int8(), nullable=False)),
        "column",
        "needs values",
    ),
    "nested type": (
        lambda t: staging.alter_columns(t, {"path": "pair.x", "data_type": pa.int8()}),
        "column",
        "'pair.x' is nested",
    ),
    "drop of an unknown column": (lambda t: staging.drop_columns(t, ["pair.z"]), "column", "no column 'pair.z'"),
    "drop of all columns": (lambda t: staging.drop_columns(t, ["id", "text", "pair"]), "column", "none would be left"),
    "no config": (staging.update_config, "nothing_to_stage", "nothing to change"),
    "the committer's key": (
        lambda t: staging.update_config(t, table_metadata={"committerd.position": None}),
        "reserved_property",
        "the committer's",
    ),
    "metadata of an unknown column": (
        lambda t: staging.update_config(t, field_metadata={"no": {}}),
        "column",
        "no column 'no'",
    ),
    "no file": (lambda t: staging.data_replacement(t, {}), "fragment", "no file was given"),
    "no fragment id": (lambda t: staging.reserve_fragments(t, 0), "nothing_to_stage", "0 fragment ids"),
    "unknown index": (lambda t: staging.drop_index(t, "no"), "index", "the table has no index 'no'"),
    "no segments": (lambda t: staging.add_index_segments(t, []), "index", "no segment was given"),
    "deferred remap": (
        lambda t: staging.compact_files(t, defer_index_remap=True),
        "index",
        "optimize the indices in `reindex`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_staged_says_so(uri: str, name: str) -> None:
    change, code, said = REFUSED[name]
    dataset = lance.dataset(uri)
    with pytest.raises(staging.StagingError, match=said) as caught:
        change(dataset)
    assert caught.value.code == code
    assert lance.dataset(uri).version == dataset.version


async def test_an_update_of_rows_by_chance_deletes_those_that_it_has_written_anew(tmp_path: Path) -> None:
    uri = str(tmp_path)
    lance.write_dataset(pa.table({"id": range(2_000)}), uri, max_rows_per_file=100)
    staged = staging.update(lance.dataset(uri), {"id": "id + 5000"}, "random() < 0.5")
    assert (await commit(uri, staged)).status is Status.COMMITTED
    assert sorted(one % 5000 for one in lance.dataset(uri).to_table()["id"].to_pylist()) == list(range(2_000))


def test_a_pylance_that_would_not_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.0.0 deletes by predicate only, which is evaluated again; in a local folder the client deletes."""
    monkeypatch.delattr(lance.LanceFragment, "delete_rows")
    dataset = lance.write_dataset(pa.table({"id": range(2_000)}), "memory://by_chance", max_rows_per_file=100)
    with pytest.raises(staging.StagingError, match="depends on nothing but the row") as caught:
        staging.update(dataset, {"id": "1"}, "random() < 0.5")
    assert caught.value.code == "predicate_not_deterministic"
    assert staging.update(dataset, {"id": "1"}, "id < 150").transaction.update.removed_fragment_ids == [0]


REWRITES: dict[str, Change] = {
    "update": lambda t: staging.update(t, {"id": "1"}),
    "merge_insert": lambda t: staging.merge_insert(t, pa.table({"id": [1]}), on="id"),
    "add_columns": lambda t: staging.add_columns(t, {"new": "id + 1"}),
    "alter_columns": lambda t: staging.alter_columns(t, {"path": "id", "data_type": pa.int32()}),
    "compaction": staging.compact_files,
}


@pytest.mark.parametrize("name", REWRITES)
def test_files_of_the_legacy_format_are_not_rewritten(tmp_path: Path, name: str) -> None:
    dataset = lance.write_dataset(TABLE, tmp_path, data_storage_version="legacy")
    with pytest.raises(staging.StagingError, match="Copy it into a new table") as caught:
        REWRITES[name](dataset)
    assert caught.value.code == "legacy_files"
    assert staging.delete(dataset, "id = 1").transaction.delete.updated_fragments[0].physical_rows == 3


@pytest.mark.parametrize("name", ["update", "merge_insert"])
@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_rows_with_blobs_are_not_rewritten(tmp_path: Path, name: str, version: Any) -> None:
    """A scan yields their places and not their content."""
    if version == "2.2":
        table = pa.table({"id": [1], "blob": lance.blob_array([b"x"])})
    else:
        blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        table = pa.table([[1], [b"x"]], schema=pa.schema([pa.field("id", pa.int64()), blob]))
    dataset = lance.write_dataset(table, tmp_path, data_storage_version=version)
    with pytest.raises(staging.StagingError, match="column 'blob' holds blobs") as caught:
        REWRITES[name](dataset)
    assert caught.value.code == "blob_columns"
    assert staging.delete(dataset, "id = 1").transaction.delete.deleted_fragment_ids == [0]


def test_detached_versions_are_refused(uri: str) -> None:
    operation = lance.LanceOperation.Append([])
    detached = lance.LanceDataset.commit(uri, operation, read_version=1, detached=True)
    with pytest.raises(staging.StagingError, match="is detached and has no successors") as caught:
        staging.delete(detached, "true")
    assert caught.value.code == "detached_version"


def test_a_table_with_features_that_are_unknown_is_refused(uri: str) -> None:
    class Newer:
        uri = "t.lance"

        class _ds:  # noqa: N801
            @staticmethod
            def serialized_manifest() -> bytes:
                return bytes(lance.dataset(uri)._ds.serialized_manifest()) + b"\xfa\x3f\x01x"

    newer: Any = Newer()
    with pytest.raises(staging.StagingError, match="#1023, which this version of committerd does not know") as caught:
        read_table(newer)
    assert caught.value.code == "table_unknown_fields"


async def test_a_change_of_a_table_that_was_made_anew_names_the_one_that_was_read(uri: str) -> None:
    """`read-uuid`: the committer refuses it if that version has another uuid."""
    staged = staging.delete(lance.dataset(uri), "id = 1")
    made = lance.dataset(uri).read_transaction(1)
    assert made is not None
    assert staged.read_uuid == made.uuid
    nameless = ReadTable(dataclasses.replace(read_table(lance.dataset(uri))).manifest)
    nameless.manifest.transaction_file = ""
    assert ReadTable(nameless.manifest).read_uuid is None


# Create or append


def refusal(staged: Staged) -> Reexecution:
    error = RetryableConflict("the table exists", code="table_exists", uuid=staged.transaction.uuid)
    return Reexecution(error=error, work=staged, attempt=2, attempts_max=10, seconds_left=None)


async def test_a_create_becomes_an_append_where_the_table_exists(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    first, second = (
        staging.create(write_fragments(TABLE, uri, mode="create"), TABLE.schema, properties={"job": job})
        for job in ("1", "2")
    )
    assert (await commit(uri, first)).status is Status.COMMITTED
    again = staging.append_if_exists(second, lambda: lance.dataset(uri))(refusal(second))
    assert again.transaction.uuid != second.transaction.uuid
    assert again.transaction.transaction_properties == {"job": "2"}
    assert not again.create_only
    assert (await commit(uri, again)).status is Status.COMMITTED
    assert lance.dataset(uri).to_table() == pa.concat_tables([TABLE, TABLE])


def test_a_create_does_not_become_an_append_to_a_table_with_other_columns(uri: str, tmp_path: Path) -> None:
    table = pa.table({"id": [1], "text": [2]})
    staged = staging.create(write_fragments(table, tmp_path / "other", mode="create"), table.schema)
    with pytest.raises(staging.StagingError, match=r"another schema .*: pair, text, x, y\. Write") as caught:
        staging.append_if_exists(staged, lambda: lance.dataset(uri))(refusal(staged))
    assert caught.value.code == "schema_differs"


async def test_an_overwrite_of_no_certain_version_replaces_what_there_is(uri: str) -> None:
    new = pa.table({"other": [1.5]})
    fragments = write_fragments(new, uri, mode="overwrite")
    staged = staging.overwrite(fragments, new.schema, config={"a": "b"})
    assert staged.transaction.read_version == 0
    assert staged.read_uuid is None
    lance.dataset(uri).delete("id = 1")
    assert (await commit(uri, staged)).status is Status.COMMITTED
    assert lance.dataset(uri).to_table() == new
    assert lance.dataset(uri).config()["a"] == "b"


async def test_an_overwrite_of_a_version_is_refused_after_another(uri: str) -> None:
    new = pa.table({"other": [1.5]})
    staged = staging.overwrite(write_fragments(new, uri, mode="overwrite"), new.schema, dataset=lance.dataset(uri))
    lance.write_dataset(TABLE, uri, mode="overwrite")
    assert (await commit(uri, staged)).status is Status.RETRYABLE


def test_every_code_is_documented() -> None:
    folder = Path(staging.__file__).parents[1]
    raised = {
        keyword.value.value
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "StagingError"
        for keyword in node.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    } | {panics.PANIC, panics.NOT_AS_BEFORE}
    documented = set(re.findall(r"`(\w+)`", (staging.StagingError.__doc__ or "").partition("Codes:")[2]))
    assert raised == documented
