"""The example async_writer runs, against a Kafka where the test plays the committer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd_common.messages import Outcome, Transaction
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
    uri = str(tmp_path / "events.lance")
    empty = pa.schema([("writer", pa.int32()), ("number", pa.int64())]).empty_table()

    def answer(record: Any) -> Iterable[Outcome]:
        if Transaction.FromString(record.value).HasField("overwrite"):
            lance.write_dataset(empty, uri)
        return [committed(record)]

    make_topics(kafka.bootstrap_servers, dataset)
    if exists:
        lance.write_dataset(empty, uri)
    command = [sys.executable, str(ROOT / "examples" / "async_writer.py")]
    command += ["--bootstrap-servers", kafka.bootstrap_servers, "--dataset", dataset, "--uri", uri]
    command += ["--writers", "3", "--batches", "2", "--rows", "5"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'producers'}"}
    with answering(kafka.bootstrap_servers, dataset, answer) as committer:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "the table is there, version 1\n" in done.stdout
    assert len(re.findall(r"^writer \d batch \d: version \d+$", done.stdout, re.M)) == 6
    appends = committer.records if exists else committer.records[1:]
    if not exists:
        create = committer.records[0]
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
