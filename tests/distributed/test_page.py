"""The programs on the page about Ray and Daft, with folders and a Kafka of the test."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.queue import Queue

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ray-daft.md"
RAY, DAFT, RAY_SINK, DAFT_SINK = re.findall(
    r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize(("job", "sink"), [(RAY, RAY_SINK), (DAFT, DAFT_SINK)], ids=["ray", "daft"])
def test_the_jobs_write_their_rows_once_and_the_sinks_upsert(
    job: str, sink: str, queue: Queue, cluster: None, tmp_path: Path
) -> None:
    for place, rows in (("incoming", {"id": [1, 2], "v": ["a", "b"]}), ("changes", {"id": [2, 3], "v": ["B", "c"]})):
        (tmp_path / place).mkdir()
        pq.write_table(pa.table(rows), tmp_path / place / "rows.parquet")
    first, again = queue.run(job)["result"], queue.run(job)["result"]
    assert (first.version, first.duplicate, again.duplicate) == (1, False, True)
    queue.run(sink)
    assert queue.rows() == [{"id": 1, "v": "a"}, {"id": 2, "v": "B"}, {"id": 3, "v": "c"}]
    assert queue.versions() == 2
