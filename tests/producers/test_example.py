"""The example async_writer runs, against a Kafka where the test plays the committer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd_common.messages import RETRYABLE, Outcome, Transaction
from committerd_common.request import decode_envelope
from harness.kafka import KafkaBroker, RunningKafka
from tests.producers.answering import answering, committed, make_topics

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.parametrize("exists", [False, True])
def test_the_async_writer_creates_the_table_and_appends(
    kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, exists: bool
) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        operation = Transaction.FromString(record.value).WhichOneof("operation")
        if exists and operation == "overwrite":
            return [committed(record, status=RETRYABLE, reason="table_exists")]
        return [committed(record, transactions=3)]

    uri = str(tmp_path / "events.lance")
    make_topics(kafka.bootstrap_servers, dataset)
    schema = pa.schema([("writer", pa.int32()), ("number", pa.int64())])
    lance.write_dataset(pa.Table.from_batches([], schema), uri)  # the committer's outcome of the create
    command = [sys.executable, str(ROOT / "examples" / "async_writer.py")]
    command += ["--bootstrap-servers", kafka.bootstrap_servers, "--dataset", dataset, "--uri", uri]
    command += ["--writers", "3", "--batches", "2", "--rows", "5"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'producers'}"}
    with answering(kafka.bootstrap_servers, dataset, answer) as committer:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert (f"{uri} exists" if exists else "created the table, version 1") in done.stdout
    assert done.stdout.count("3 transactions in it") == 6
    create, *appends = committer.records
    assert decode_envelope(create.headers).create_only
    assert Transaction.FromString(create.value).overwrite.schema[1].name == "number"
    files = [
        file.path
        for record in appends
        for fragment in Transaction.FromString(record.value).append.fragments
        for file in fragment.files
    ]
    assert len(files) == len(set(files)) == 6
    assert all((tmp_path / "events.lance" / "data" / path).is_file() for path in files)
