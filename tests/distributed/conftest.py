"""Tests with Ray and Daft, which `.venv` lacks (350 MB): `make ray-daft` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from tests.spark.queue import Queue

collect_ignore_glob = [] if find_spec("ray") and find_spec("daft") else ["test_*.py"]


@pytest.fixture
def queue(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Queue]:
    """A table that does not exist yet, and the committer of its queue."""
    with Queue(name=dataset, kafka=kafka.bootstrap_servers, folder=tmp_path, launch=launch) as made:
        yield made


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A Ray of two processors."""
    import ray  # imported here: where it is missing, this file is loaded all the same

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    yield
    ray.shutdown()
