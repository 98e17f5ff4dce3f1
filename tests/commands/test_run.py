"""`committerd run` with settings that can't be: it reports this at once, whatever else is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from committerd.dev.parts import free_port


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("oss://lake/events.lance", "tables of the scheme oss:// are not served"),
        ("az://la.ke/events.lance", "azure: az://la.ke can't be opened"),
        (
            "abfss://lake@account.elsewhere.net/events.lance",
            "azure: abfss://lake@account.elsewhere.net can't be opened",
        ),
        ("hdfs://lake/events.lance", "tables of the scheme hdfs:// are not served"),
        ("s3://lake-a-use1-az4--xa-s3/events.lance", "access point of a directory bucket (S3 Express One Zone)"),
    ],
)
def test_a_place_that_is_not_served_is_a_wrong_setting_and_kafka_is_not_looked_for(uri: str, sentence: str) -> None:
    refusal([sys.executable, "-m", "committerd", "run"], sentence, uri=uri)


def test_pylance_can_build_versions_only_where_it_is_installed(tmp_path: Path) -> None:
    without = "import sys; sys.modules['lance'] = None; from committerd.__main__ import main; main()"
    command = [sys.executable, "-c", without, "run"]
    refusal(command, "commit.unknown = pylance needs pylance: ", uri=str(tmp_path), COMMIT__UNKNOWN="pylance")


def refusal(command: Sequence[str], sentence: str, *, uri: str, **settings: str) -> None:
    """Run it, and check that it ends at once with this sentence."""
    chosen = {
        "DATASET__NAME": "events",
        "DATASET__URI": uri,
        "KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
        **settings,
    }
    bare = {name: value for name, value in os.environ.items() if not name.startswith("COMMITTERD_")}
    done = subprocess.run(
        command,
        env=bare | {f"COMMITTERD_{name}": value for name, value in chosen.items()},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("committerd: settings:\n")
    assert sentence in done.stderr
    assert done.stdout == ""
