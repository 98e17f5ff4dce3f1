"""A fragment has as many rows as its files: a reader believes the fragment, and makes up missing rows."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd.queue.outcomes import Status
from committerd.table.prepare import ANYTHING, Prepared, PrepareOptions, Rejected
from committerd_client.staging.fragments import fragment as message_of
from committerd_common.messages import DataFragment
from tests.lance.samples import fragment, manifest
from tests.table.scene import Scene, append

pytestmark = pytest.mark.pylance

ROWS = 200_000
VERIFYING = PrepareOptions(allowed=ANYTHING, verify_files=True)


def written(root: Path, data: pa.Table) -> DataFragment:
    """A fragment of one file, as pylance stages it."""
    lance.write_dataset(data.slice(0, 1), str(root), data_storage_version="2.0")
    (made,) = write_fragments(data, str(root), mode="append", data_storage_version="2.0")
    return message_of(made)


@pytest.mark.parametrize("says_size", [True, False])
@pytest.mark.parametrize("rows", [2**31, ROWS + 1])
async def test_more_rows_than_the_file_has_are_refused(tmp_path: Path, rows: int, says_size: bool) -> None:
    scene = Scene(tmp_path / "t")
    lying = written(scene.root, pa.table({"n": pa.nulls(ROWS)}))
    lying.physical_rows = rows
    if not says_size:
        lying.files[0].ClearField("file_size_bytes")
    answer = await scene.commit(append(1, lying), VERIFYING)
    assert isinstance(answer, Rejected)
    assert (answer.status, answer.reason) == (Status.INVALID, "physical_rows_too_many")
    assert f"says that it has {rows} rows" in answer.message
    assert f"has {ROWS}. " in answer.message


async def test_many_rows_in_few_bytes_are_committed_where_the_file_has_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    truthful = written(scene.root, pa.table({"n": pa.nulls(ROWS)}))
    assert truthful.files[0].file_size_bytes * 16 < ROWS
    answer = await scene.commit(append(1, truthful), VERIFYING)
    assert isinstance(answer, Prepared)
    assert lance.dataset(str(scene.root)).count_rows() == ROWS + 1


async def test_a_file_that_says_nothing_is_taken_as_it_is_described(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), version=1))
    many = fragment(0, rows=10_000, name="new")
    scene.path("data/new.lance").write_bytes(bytes(100))
    many.files[0].file_size_bytes = 100
    assert isinstance(await scene.commit(append(1, many), VERIFYING), Prepared)
