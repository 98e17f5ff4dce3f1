"""Tests of the examples for dlt, Airflow and Dagster, which `.venv` lacks (170 MB): `make pipelines` runs them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from tests.spark.queue import Queue

collect_ignore_glob = [] if all(map(find_spec, ("dlt", "airflow", "dagster"))) else ["test_*.py"]


@pytest.fixture
def dataset() -> str:
    """A dataset's name that an asset of Dagster may have too."""
    return f"t_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Queue]:
    """A table that does not exist yet, and the committer of its queue."""
    with Queue(name=dataset, kafka=kafka.bootstrap_servers, folder=tmp_path, launch=launch) as made:
        yield made
