"""When a node of Kafka counts as started."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator, Sequence

import pytest
from kafka.errors import (
    CoordinatorLoadInProgressError,
    GroupAuthorizationFailedError,
    KafkaError,
    KafkaTimeoutError,
    NotCoordinatorError,
)

from committerd.dev import kafka_node


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a node that responds, as that of cluster `c`."""
    monkeypatch.setattr(kafka_node, "answering", lambda *_, **__: "c")
    monkeypatch.setattr(kafka_node, "_REFUSES_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def say(monkeypatch: pytest.MonkeyPatch, errors: Sequence[type[KafkaError] | None]) -> None:
    """Let the node respond so to questions about a group, one after the other; the last one stays."""
    said = itertools.chain(errors, itertools.repeat(errors[-1]))
    monkeypatch.setattr(kafka_node, "_group_error", lambda *_, **__: next(said))


@pytest.mark.parametrize(
    "errors",
    [
        (None,),
        (CoordinatorLoadInProgressError, NotCoordinatorError, None),
        (KafkaTimeoutError, None),
        (GroupAuthorizationFailedError,),
    ],
    ids=["at once", "after a while", "slowly", "not for us"],
)
def test_a_node_is_ready_once_it_coordinates_groups(
    port: int, monkeypatch: pytest.MonkeyPatch, errors: Sequence[type[KafkaError] | None]
) -> None:
    say(monkeypatch, errors)
    assert kafka_node.ready(lambda: True, port, cluster="c", seconds=60)


def test_a_node_that_does_not_respond_is_not_ready(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, (KafkaTimeoutError,))
    assert not kafka_node.ready(lambda: True, port, cluster="c", seconds=1)


def test_a_node_that_gave_up_its_groups_is_started_again(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, (NotCoordinatorError,))
    began = time.monotonic()
    assert not kafka_node.ready(lambda: True, port, cluster="c", seconds=300)
    assert time.monotonic() - began < 100
    log = "ERROR ... Failed to load metadata from __consumer_offsets-0 with epoch 2 due to Stopped loading records ..."
    assert kafka_node.may_start_again(log)
    assert not kafka_node.may_start_again("ERROR ... Exiting Kafka due to fatal exception")
