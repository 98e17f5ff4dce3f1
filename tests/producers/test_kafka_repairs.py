"""What the client knows of the insides of kafka-python's clients."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.errors import RequestTimedOutError

from committerd_client.kafka_repairs import connect, is_throttled, partitions_of


def producer(*throttled_until: float) -> Any:
    """A producer with a connection for each of these times (`time.monotonic`)."""
    connections = {
        f"node {number}": SimpleNamespace(_throttle_time=until) for number, until in enumerate(throttled_until)
    }
    return SimpleNamespace(
        _sender=SimpleNamespace(_client=SimpleNamespace(_manager=SimpleNamespace(_conns=connections)))
    )


@pytest.mark.parametrize(
    ("seconds", "throttled"),
    [((), False), ((0.0,), False), ((-0.1,), False), ((60.0,), True), ((-0.1, 60.0), True)],
)
def test_a_producer_is_throttled_until_the_time_that_the_broker_named(
    seconds: tuple[float, ...], *, throttled: bool
) -> None:
    """Afterwards one whose thread has died would wait without an end."""
    now = time.monotonic()
    assert is_throttled(producer(*(now + one if one else 0.0 for one in seconds))) is throttled


@pytest.mark.kafka
def test_partitions_are_asked_for_of_one_topic_and_not_of_all(servers: str, dataset: str) -> None:
    consumer = connect(KafkaConsumer, {"bootstrap_servers": servers, "allow_auto_create_topics": False})
    deadline = time.monotonic() + 60
    for topic in (f"{dataset}.staged", f"{dataset}.outcomes", f"{dataset}.staged"):
        assert partitions_of(consumer, topic, deadline=deadline)
        assert consumer._cluster.topics() == {topic}
    assert partitions_of(consumer, f"{dataset}.missing", deadline=deadline) == set()
    consumer.close(autocommit=False)


@pytest.mark.kafka
def test_partitions_are_asked_for_again_if_a_response_is_lost(
    servers: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = connect(KafkaConsumer, {"bootstrap_servers": servers, "allow_auto_create_topics": False})
    wait_for, lost = consumer._manager.wait_for, list[object]()

    async def loses_the_first(future: Any, timeout_ms: float | None) -> object:
        found = await wait_for(future, timeout_ms)
        if not lost:
            lost.append(found)
            raise RequestTimedOutError
        return found

    monkeypatch.setattr(consumer._manager, "wait_for", loses_the_first)
    # Otherwise the lost response may be one that the consumer asked for by itself; no retry is needed after that.
    monkeypatch.setattr(type(consumer._cluster), "metadata_refresh_in_progress", property(lambda _: False))
    with pytest.raises(RequestTimedOutError):
        partitions_of(consumer, f"{dataset}.staged", deadline=time.monotonic())
    lost.clear()
    assert partitions_of(consumer, f"{dataset}.staged", deadline=time.monotonic() + 60)
    assert len(lost) == 1
    consumer.close(autocommit=False)
