"""A panic of pylance is an error of the call, and not the end of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd.lance.format.manifest_file import decode, encode
from committerd_client import StagingError, staging
from committerd_client.compacting import compact
from committerd_client.panics import panics_raised, run_sync
from committerd_common.paths import NamingScheme, manifest_key
from tests.producers.test_compacting import Queue

pytestmark = pytest.mark.pylance

PANICS: Any = pa.table({"c": pa.array([["a", "b", "c"]], pa.list_(pa.string(), 3))})
"""Rows at which pylance 14.0.2 panics when it writes files of 2.1."""


def panic() -> None:
    lance.write_dataset(PANICS, "memory://t", data_storage_version="2.1")


def test_it_is_no_exception_for_others() -> None:
    with pytest.raises(BaseException, match="compute_stat") as raised:
        panic()
    assert not isinstance(raised.value, Exception), "else this module is not needed any more"


async def test_here_and_in_a_thread_it_is_an_error() -> None:
    with pytest.raises(StagingError, match="pylance panicked") as raised, panics_raised():
        panic()
    assert raised.value.code == "pylance_panic"
    with pytest.raises(StagingError, match="compute_stat"):
        await run_sync(panic)
    with pytest.raises(KeyboardInterrupt), panics_raised():
        raise KeyboardInterrupt


def without_fields(uri: Path, name: str = "id_idx") -> None:
    """Take the field from an index of the latest version."""
    version = lance.dataset(uri).version
    path = uri / manifest_key(version, NamingScheme.V2)
    file = decode(path.read_bytes())
    assert file.transaction is not None
    given = list(file.indices)
    (one,) = [one for one in given if one.name == name]
    del one.fields[:]
    path.write_bytes(encode(file.manifest, given, file.transaction))


async def test_a_compaction_beside_an_index_without_a_field(tmp_path: Path) -> None:
    """pylance panics when it carries that index along."""
    uri = tmp_path / "t.lance"
    lance.write_dataset(pa.table({"id": range(100), "b": range(100)}), uri, max_rows_per_file=10)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    without_fields(uri)
    lance.dataset(uri).create_scalar_index("b", "BTREE")
    with pytest.raises(StagingError, match="An index existed with no fields"), panics_raised():
        lance.dataset(uri).optimize.compact_files()
    done = await compact(Queue(str(uri)), lambda: lance.dataset(uri), reindex=False)
    assert done is not None
    assert (done.fragments_removed, done.fragments_added, done.stale) == (10, 1, ("id_idx",))
    (carried,) = [one for one in lance.dataset(uri).describe_indices() if one.name == "b_idx"]
    assert carried.num_rows_indexed == 100
    assert lance.dataset(uri).count_rows("id = 7 AND b = 7") == 1


async def test_indices_that_pylance_panics_at_are_left_behind(tmp_path: Path) -> None:
    uri = tmp_path / "t.lance"
    lance.write_dataset(pa.table({"id": range(100)}), uri, max_rows_per_file=10)
    lance.dataset(uri).create_scalar_index("id", "BTREE")

    def remap(*_: Any) -> Any:
        panic()

    done = await compact(Queue(str(uri)), lambda: lance.dataset(uri), reindex=False, remap=remap)
    assert done is not None
    assert (done.fragments_added, done.stale) == (1, ("id_idx",))


async def test_a_task_that_panics_is_left_alone(tmp_path: Path) -> None:
    uri = tmp_path / "t.lance"
    for _ in range(2):
        lance.write_dataset(pa.table({"id": range(100)}), uri, mode="append")

    class Task:
        def __init__(self, task: Any) -> None:
            self._task = task

        def execute(self, _: Any) -> None:
            panic()

        def json(self) -> str:
            return str(self._task.json())

    def execute(dataset: lance.LanceDataset, tasks: Any) -> Any:
        given: Any = Task(tasks[0])
        return staging.compaction.execute_task(dataset, given)

    done = await compact(Queue(str(uri)), lambda: lance.dataset(uri), execute=execute)
    assert done is not None
    assert done.version is None
    assert [one.fragments for one in done.left_alone] == [(0, 1)]
    assert "compute_stat" in done.left_alone[0].why
