"""The cases, unpacked for a module of tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import cases


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cases")
    cases.unpack(folder)
    mounted = cases.mount(folder)
    yield folder
    for path in mounted:
        shutil.rmtree(path)
