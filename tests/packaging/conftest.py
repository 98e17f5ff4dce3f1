"""Both wheels, built once for each run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.environments import CLIENT, COMMITTER, build_wheel


@pytest.fixture(scope="session")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(CLIENT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def committer_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(COMMITTER, tmp_path_factory.mktemp("wheel"))
