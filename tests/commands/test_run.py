"""`committerd run` on a table that no store supports: it reports this at once, whatever else is wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from committerd.dev.parts import free_port


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("gs://lake/events.lance", "tables on Google Cloud Storage (gs://) are not served"),
        ("az://lake/events.lance", "tables on Azure Blob Storage (az://) are not served"),
        ("abfss://lake@account.dfs.core.windows.net/events.lance", "tables on Azure Blob Storage"),
        ("hdfs://lake/events.lance", "tables of the scheme hdfs:// are not served"),
        ("s3://lake-a-use1-az4--xa-s3/events.lance", "access point of a directory bucket (S3 Express One Zone)"),
    ],
)
def test_a_place_that_is_not_served_is_a_wrong_setting_and_kafka_is_not_looked_for(uri: str, sentence: str) -> None:
    settings = {
        "COMMITTERD_DATASET__NAME": "events",
        "COMMITTERD_DATASET__URI": uri,
        "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
    }
    bare = {name: value for name, value in os.environ.items() if not name.startswith("COMMITTERD_")}
    done = subprocess.run(
        [sys.executable, "-m", "committerd", "run"],
        env=bare | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,  # it would look for Kafka for a minute
    )
    assert done.returncode == 2
    assert done.stderr.startswith("committerd: settings:\n")
    assert sentence in done.stderr
    assert done.stdout == ""
