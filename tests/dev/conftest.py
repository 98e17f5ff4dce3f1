"""A cache for each test, with Kafka's jars in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from committerd.dev.jars import KAFKA, folder_of, jars


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Kafka's jars, downloaded by whoever was first."""
    return jars(KAFKA)


@pytest.fixture
def cache(tmp_path: Path, kafka_jars: Path) -> Path:
    """A cache of its own, in which Kafka's jars are already."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / folder_of(KAFKA).name).symlink_to(kafka_jars)
    return folder
