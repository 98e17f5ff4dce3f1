"""What more than one folder of tests needs: a real Kafka, and names that nobody used before."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.parts import PartMissingError
from tests.parts.kafka import KafkaBroker, RunningKafka, kafka_broker


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker | RunningKafka]:
    """A broker for the whole run; use names of your own. Whoever stops it needs one of their own."""
    try:
        with kafka_broker() as broker:
            yield broker
    except PartMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def _breakable_kafka() -> Iterator[KafkaBroker]:
    try:
        with KafkaBroker() as broker:
            yield broker
    except PartMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def breakable_kafka(_breakable_kafka: KafkaBroker) -> Iterator[KafkaBroker]:
    """A second broker, which the test may kill, freeze and start again."""
    if not _breakable_kafka.running:
        _breakable_kafka.start()
    yield _breakable_kafka
    if _breakable_kafka.running:
        _breakable_kafka.thaw()


@pytest.fixture
def dataset() -> str:
    """A dataset's name, new for each test: its topics, its group."""
    return f"t-{uuid.uuid4().hex[:12]}"
