"""Files of a new table, where another process may create it at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from committerd_client import StagingError
from committerd_client.changes import Create, Overwrite
from committerd_client.data import rows_of
from committerd_client.table_location import TableLocation
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance

ROWS = pa.table({"id": range(10_000)})


class _JustCreated(TableLocation):
    """A table that another process has created since it was looked for."""

    def find(self) -> lance.LanceDataset | None:
        return None


def test_all_rows_of_a_reader_are_written_whether_the_table_exists_or_not(tmp_path: Path) -> None:
    lance.write_dataset(ROWS.slice(0, 1), tmp_path / "there.lance")
    for name in ("there", "new"):
        place = TableLocation(uri=str(tmp_path / f"{name}.lance"))
        rows = rows_of(ROWS.to_reader(max_chunksize=1000))
        assert Overwrite(place=place, rows=rows)().inserted == len(ROWS)


def test_a_table_that_appears_meanwhile_costs_no_rows(tmp_path: Path) -> None:
    lance.write_dataset(ROWS.slice(0, 1), tmp_path / "t.lance")
    place = _JustCreated(uri=str(tmp_path / "t.lance"))
    assert Overwrite(place=place, rows=rows_of(ROWS))().inserted == len(ROWS)
    with pytest.raises(StagingError, match="somebody has just created the table"):
        Overwrite(place=place, rows=rows_of(ROWS.to_reader(max_chunksize=1000)))()


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([{"vector": [0.5, 1]}, {"vector": None}], pa.list_(pa.float32(), 2)),
        ({"Text_Embedding": [[0.5, 1.0]]}, pa.list_(pa.float32(), 2)),
        ({"vector": [np.array([1, 2], np.float16)]}, pa.list_(pa.float16(), 2)),
        (pd.DataFrame({"vector": [np.array([1.0, 2.0]), None]}), pa.list_(pa.float32(), 2)),
        ({"vector": np.array([[1.0, 2.0]])}, pa.list_(pa.float64(), 2)),
        ({"embedding": np.ones((1, 2, 3))}, pa.fixed_shape_tensor(pa.float64(), (2, 3))),
        ([{"image": np.ones((2, 3))}, {"image": None}], pa.fixed_shape_tensor(pa.float64(), (2, 3))),
        ([{"numbers": [0.5, 1.0]}], pa.list_(pa.float64())),
        ([{"vector": [0.5, 1.0]}, {"vector": [0.5]}], pa.list_(pa.float64())),
        ([{"vector": [1, 0]}], pa.list_(pa.int64())),
        ([{"vector": ["a"]}], pa.list_(pa.string())),
        (pa.table({"vector": [[0.5, 1.0]]}), pa.list_(pa.float64())),
    ],
    ids=str,
)
def test_a_new_table_has_vectors_that_an_index_takes_or_the_log_has_a_warning(
    rows: Any, kind: pa.DataType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = TableLocation(uri=str(tmp_path / "t.lance"))
    anyio.run(commit, place.uri, Create(place=place, rows=rows_of(rows))())
    (field,) = place.open().schema
    assert field.type == kind
    warned = field.name != "numbers" and pa.types.is_list(kind) and kind.value_type != pa.string()
    assert ("which no vector index takes" in caplog.text) is warned
