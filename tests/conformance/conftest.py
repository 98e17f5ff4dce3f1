"""The tables that cases read through a base, in their places."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.conformance import cases


@pytest.fixture(scope="module")
def mounted() -> Iterator[None]:
    made = [path for name in cases.names() for path in cases.load(name).mount()]
    yield
    for path in made:
        shutil.rmtree(path)
