"""Files of a new table, where another process may create it at the same moment."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from committerd_client import StagingError
from committerd_client.changes import Overwrite
from committerd_client.data import rows_of
from committerd_client.place import Place

pytestmark = pytest.mark.pylance

ROWS = pa.table({"id": range(10_000)})


class _JustCreated(Place):
    """A table that another process has created since it was looked for."""

    def find(self) -> lance.LanceDataset | None:
        return None


def test_all_rows_of_a_reader_are_written_whether_the_table_exists_or_not(tmp_path: Path) -> None:
    lance.write_dataset(ROWS.slice(0, 1), tmp_path / "there.lance")
    for name in ("there", "new"):
        place = Place(uri=str(tmp_path / f"{name}.lance"))
        rows = rows_of(ROWS.to_reader(max_chunksize=1000))
        assert Overwrite(place=place, rows=rows)().inserted == len(ROWS)


def test_a_table_that_appears_meanwhile_costs_no_rows(tmp_path: Path) -> None:
    lance.write_dataset(ROWS.slice(0, 1), tmp_path / "t.lance")
    place = _JustCreated(uri=str(tmp_path / "t.lance"))
    assert Overwrite(place=place, rows=rows_of(ROWS))().inserted == len(ROWS)
    with pytest.raises(StagingError, match="somebody has just created the table"):
        Overwrite(place=place, rows=rows_of(ROWS.to_reader(max_chunksize=1000)))()
