"""Fixtures of the client's tests."""

from __future__ import annotations

import pytest

from harness.kafka import KafkaBroker, RunningKafka
from tests.producers.answering import make_topics


@pytest.fixture
def servers(kafka: KafkaBroker | RunningKafka, dataset: str) -> str:
    """Bootstrap servers of a Kafka in which the dataset has its topics."""
    make_topics(kafka.bootstrap_servers, dataset)
    return kafka.bootstrap_servers
