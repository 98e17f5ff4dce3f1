"""A table of 6,000 columns: its rows come, and a value that does not fit is found among them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from tests.ingest.running import flow_of, stopping, wait

COLUMNS = 6000
NAMES = [f"c{number}" for number in range(COLUMNS)]


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_table_of_6000_columns(kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in NAMES)])
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, partitions=1, schema=schema) as flow:
        values = dict.fromkeys(NAMES, 7)
        for number in range(20):
            flow.topic.send_value(json.dumps({"id": number, **values}).encode())
        flow.topic.send_value(json.dumps({"id": 20, **values, "c4321": 1.5}).encode())
        flow.topic.send_value(json.dumps({"id": 20, "c5999": None}).encode())
        flow.topic.flush()
        ingest = flow.ingest(INGEST__ON_ERROR="skip", INGEST__PARTITION_COLUMN="", INGEST__OFFSET_COLUMN="")
        with stopping([ingest]):
            ingest.start()
            flow.wait_rows(21)
            said = ingest.wait_line("ingest.bad_records")
            assert "field 'c4321' is 1.5, which does not fit int64" in said["error"]
            wait(lambda: ingest.metric("committerd_ingest_lag_records") == 0)
        rows = sorted(flow.rows(), key=lambda row: row["id"])
        nothing = dict.fromkeys(NAMES, None)
        assert rows == [*({"id": number, **values} for number in range(20)), {"id": 20, **nothing}]
