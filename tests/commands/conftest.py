"""Scenes for operators' commands: one that tests only read, and a new one for each test that changes something."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene
from tests.commands.story import Story, told


@pytest.fixture
def scene(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Scene]:
    """A dataset without a table and without topics."""
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as made:
        yield made


@pytest.fixture(scope="package")
def story(
    kafka: KafkaBroker | RunningKafka, tmp_path_factory: pytest.TempPathFactory, launch: Launch
) -> Iterator[Story]:
    """A dataset whose committer runs; nothing is staged any more. Tests must not change it."""
    folder = tmp_path_factory.mktemp("story")
    with Scene(kafka=kafka.bootstrap_servers, name=f"t-{uuid.uuid4().hex[:12]}", folder=folder, launch=launch) as made:
        yield told(made)
