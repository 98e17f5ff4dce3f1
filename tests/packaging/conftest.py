"""Both wheels, built once for each run of the tests, and folders for environments."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import cache_folder
from tests.packaging.environments import CLIENT, COMMITTER, build_wheel


@pytest.fixture(scope="session")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(CLIENT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def committer_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(COMMITTER, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def environment_folder() -> Iterator[Path]:
    """A folder that is not there yet, on the file system of uv's cache: packages are linked from there, not copied."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".environment-", dir=cache_folder()) as folder:
        yield Path(folder, "environment")
