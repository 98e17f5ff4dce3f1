"""Scenes: on the shared Kafka, or on the one that tests may kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene


@pytest.fixture
def scene(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Scene]:
    """A dataset without a table and without topics."""
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as made:
        yield made


@pytest.fixture
def breakable_scene(breakable_kafka: KafkaBroker, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Scene]:
    """The same on a Kafka that the test may kill."""
    with Scene(kafka=breakable_kafka.bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as made:
        yield made
