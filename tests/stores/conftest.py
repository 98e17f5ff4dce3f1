"""Fixtures for the tests of stores on a server in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from committerd.stores.retries import Fault
from tests.stores.fake_s3 import FakeS3


@pytest.fixture
def server() -> Iterator[FakeS3]:
    with FakeS3() as running:
        yield running


@pytest.fixture
def faults() -> list[Fault]:
    """What a store has told of its failed requests."""
    return []
