"""All that uses private names of kafka-python 3.0.12, or that a fault of it needs.

`docs/decisions/kafka-python.md` in committerd's repository lists the faults, with the report of each for its
maintainers and the test that fails when a newer version needs no repair.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from kafka.errors import KafkaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from committerd_login.backoff import if_connected

_SETUP = {"socket_connection_setup_timeout_ms": 5_000, "socket_connection_setup_timeout_max_ms": 5_000}
"""Limits a connection attempt: one that began during an outage ends within this time, and the next one succeeds."""
_CLOSE_SECONDS = 1.0
_AGAIN_SECONDS = 0.1


def connect(kind: Any, config: Mapping[str, Any]) -> Any:
    """A connected `KafkaProducer`, `KafkaConsumer` or `KafkaAdminClient`. Raises what kafka-python raises.

    If a client can't connect, kafka-python leaves its sockets open and a consumer's thread running; this function
    closes them. kafka-python also waits up to 36 s for a connection whose packets are lost, and its clients have no
    option for that; this function sets a limit of 5 s. And it drops the bytes that a broker sends right before it
    closes a connection, such as the reason why it refuses a login; connections of these clients read them. And it
    connects again without a pause while a broker refuses it; these clients wait longer each time.
    """
    networks: list[Any] = []

    def network(**options: Any) -> Any:
        networks.append(kind.DEFAULT_CONFIG["kafka_client"](**{**options, **_SETUP}))
        _read_last_bytes(networks[-1]._manager)
        _keep_backoff(networks[-1]._manager)
        return networks[-1]

    try:
        return kind(**config, kafka_client=network)
    except BaseException:
        for one in networks:
            one.close()
        raise


def partitions_of(consumer: Any, topic: str, *, deadline: float) -> set[int]:
    """The partitions of a topic; empty if it does not exist, or if this user may not see it.

    Call it before the consumer is assigned a partition. If Kafka does not respond, it asks again, as long as the
    deadline (monotonic clock, seconds) is not over. The consumer's own method asks only once, and for all topics of the
    cluster; if the response is lost, all later requests of the consumer are for all topics too. Raises `KafkaError`.
    """
    cluster, manager = consumer._cluster, consumer._manager

    def update() -> None:
        manager._net.run(manager.wait_for, cluster.request_update(), None)  # request_timeout_ms limits it

    while True:
        cluster.set_topics([topic])
        if cluster.metadata_refresh_in_progress:  # its request was for other topics
            with contextlib.suppress(KafkaError):
                update()
        try:
            update()
            return cluster.partitions_for_topic(topic) or set()
        except (UnknownTopicOrPartitionError, TopicAuthorizationFailedError):
            return set()
        except KafkaError as error:
            if not error.retriable or time.monotonic() >= deadline:
                raise
        time.sleep(_AGAIN_SECONDS)


def hidden_topics(consumer: Any) -> set[str]:
    """The topics for which a `KafkaConsumer` has asked, and which its user may not see."""
    return set(consumer._cluster.unauthorized_topics)


def heard_at(consumer: Any) -> float:
    """The time at which a broker last sent anything to a `KafkaConsumer` (monotonic clock, seconds); 0 if none did.

    `poll` returns nothing if there are no new records, and also if no broker responds.
    """
    transports = [connection.transport for connection in _connections(consumer._client)]
    return max((transport.last_read for transport in transports if transport is not None), default=0.0)


def is_throttled(producer: Any) -> bool:
    """Whether a quota of Kafka limits a `KafkaProducer`: a broker has told it to wait, and the time is not over.

    The time decides, because a producer whose thread has died never notes that it is over.
    """
    now = time.monotonic()
    return any(connection._throttle_time > now for connection in _connections(producer._sender._client))


def abandon_producer(producer: Any) -> None:
    """Close the producer without waiting for Kafka; its undelivered records fail.

    `close` alone would wait for deliveries, and then leave its thread running.
    """
    producer._sender.force_close()
    threading.Thread(target=_close_producer, args=(producer,), name="closes-a-producer", daemon=True).start()


def leave_to_parent(producer: Any) -> None:
    """In a forked process, keep the producer from waiting at exit for records that only its parent can send."""
    producer._unregister_cleanup()
    producer._closed = True


def _connections(network: Any) -> list[Any]:
    """The connections of a client's network at this moment: the client's thread changes them."""
    return list(network._manager._conns.values())


def _read_last_bytes(manager: Any) -> None:
    """Let the manager's connections return data before the error that came with them; the next read has it again."""
    build = manager._build_transport

    async def built(*args: Any, **given: Any) -> Any:
        transport = await build(*args, **given)
        receive = transport._sock_recv

        def received() -> tuple[bytes, Exception | None]:
            data, error = receive()
            return (data, None) if data else (data, error)

        transport._sock_recv = received
        return transport

    manager._build_transport = built


def _keep_backoff(manager: Any) -> None:
    """Let a connection that failed after its TLS handshake count as a failure; kafka-python resets the backoff."""
    manager.reset_backoff = partial(if_connected(type(manager).reset_backoff), manager)


def _close_producer(producer: Any) -> None:
    with contextlib.suppress(KafkaError):
        producer.close(timeout=_CLOSE_SECONDS)
