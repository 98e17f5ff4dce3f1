"""helm, the chart and a Kubernetes API server; skipped with what to install where one can't be had."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.chart import Chart
from tests.deploy.parts_kubernetes import HELM, KubeApiServer, kubernetes
from tests.parts import PartMissingError


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart of this repository."""
    try:
        return Chart(HELM.built())
    except PartMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cluster() -> Iterator[KubeApiServer]:
    """A Kubernetes API for the whole run; use namespaces of your own."""
    try:
        running = kubernetes()
        server = running.__enter__()
    except PartMissingError as error:
        pytest.skip(str(error))
    try:
        yield server
    finally:
        running.__exit__(None, None, None)
