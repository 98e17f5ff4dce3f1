"""helm, the chart, a Kubernetes API server, images and Compose; skipped with what to install where one can't be had."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from harness import PartMissingError
from harness.helm import HELM
from harness.node import NodeProgram
from tests.deploy.chart import Chart
from tests.deploy.compose import Compose
from tests.deploy.image import Builder, Image
from tests.deploy.parts_kubernetes import KubeApiServer, kubernetes


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart of this repository."""
    try:
        return Chart(HELM.built())
    except PartMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def axe() -> str:
    """The program that checks how accessible a page is; it runs in the page."""
    try:
        return NodeProgram("axe", "4.10.2", "axe-core/axe.min.js").installed().read_text("utf-8")
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


@pytest.fixture(scope="session")
def builder() -> Builder:
    """What builds the images of deploy/Dockerfile, for `COMMITTERD_IMAGE_ARCHITECTURE` if it is set."""
    try:
        return Builder(os.environ.get("COMMITTERD_IMAGE_ARCHITECTURE", ""))
    except PartMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def image(builder: Builder) -> Iterator[Image]:
    """The committer's image, as the working tree makes it."""
    with builder.mounted("committerd") as built:
        yield built


@pytest.fixture(scope="session")
def producer_image(builder: Builder) -> Iterator[Image]:
    """The example producer's."""
    with builder.mounted("producer") as built:
        yield built


@pytest.fixture(scope="session")
def maintain_image(builder: Builder) -> Iterator[Image]:
    """The one of `committerd maintain`."""
    with builder.mounted("maintain") as built:
        yield built


@pytest.fixture(scope="session")
def compose() -> Compose:
    """deploy/docker-compose.yml, as Docker Compose reads it."""
    try:
        return Compose.loaded()
    except PartMissingError as error:
        pytest.skip(str(error))
