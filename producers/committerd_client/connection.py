"""How a client talks to Kafka: its topics, the arguments of kafka-python's clients, and why it can't when it can't."""

from __future__ import annotations

import difflib
import logging
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")

_OURS = frozenset(
    {
        "bootstrap_servers", "client_id", "acks", "enable_idempotence", "transactional_id", "key_serializer",
        "value_serializer", "key_deserializer", "value_deserializer", "group_id", "group_instance_id",
        "enable_auto_commit", "auto_offset_reset", "isolation_level", "max_request_size", "bootstrap_timeout_ms",
        "allow_auto_create_topics", "max_in_flight_requests_per_connection", "kafka_client",
    }
)  # fmt: skip
"""What the client's promises rest on, or what has an argument of its own."""

_SETUP = {"socket_connection_setup_timeout_ms": 5_000, "socket_connection_setup_timeout_max_ms": 5_000}
"""After an outage the connection that was tried during it is given up in this time, and the next one succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where Kafka and the dataset's topics are."""

    bootstrap_servers: Sequence[str]
    dataset: str
    topic_prefix: str = ""
    client_id: str
    """As Kafka's quotas and logs know it."""
    partition_key: str
    """Chooses the client's partition of the outcomes topic: by its crc32."""
    connect_timeout: float = 30.0
    """Seconds."""
    max_record_bytes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of `KafkaProducer` and `KafkaConsumer`, such as `security_protocol` and `ssl_cafile`."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.dataset):
            raise ValueError(
                f"dataset {self.dataset!r} is no dataset name: 1 to 200 of the characters A-Z a-z 0-9 . _ - are needed "
                "(the committer's setting dataset.name; the table's URI goes to dataset_uri)"
            )
        known = {*KafkaProducer.DEFAULT_CONFIG, *KafkaConsumer.DEFAULT_CONFIG}
        for name in self.options:
            if name in _OURS:
                raise ValueError(f"kafka_options: {name!r} is set by the client itself")
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"kafka_options: kafka-python has no option {name!r}{hint}")

    @property
    def staged_topic(self) -> str:
        return f"{self.topic_prefix}{self.dataset}.staged"

    @property
    def outcomes_topic(self) -> str:
        return f"{self.topic_prefix}{self.dataset}.outcomes"

    def producer_config(self) -> dict[str, Any]:
        """Idempotent, and no linger: a batch is what has gathered while the one before was under way."""
        return {
            **self._common(KafkaProducer.DEFAULT_CONFIG),
            "client_id": f"{self.client_id}-staged",
            "acks": "all",
            "enable_idempotence": True,  # said aloud: where it is only the default, a conflict turns it off in silence
            "max_request_size": self.max_record_bytes,
        }

    def consumer_config(self) -> dict[str, Any]:
        """No group: the client reads one partition from where it ended when the client started."""
        return {
            **self._common(KafkaConsumer.DEFAULT_CONFIG),
            "client_id": f"{self.client_id}-outcomes",
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",  # answers older than the topic keeps are gone; go on with what is there
            "isolation_level": "read_committed",
        }

    def admin_config(self) -> dict[str, Any]:
        """For questions about topics and groups."""
        return {**self._common(KafkaAdminClient.DEFAULT_CONFIG), "client_id": f"{self.client_id}-diagnosis"}

    def _common(self, accepted: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {
            "request_timeout_ms": 7_000,
            "reconnect_backoff_max_ms": 1_000,
            "delivery_timeout_ms": 30_000,
            "max_block_ms": 5_000,
            "batch_size": 128 * 1024,
            "max_poll_records": 2_000,
            "metrics_enabled": False,  # kafka-python's own, which nobody reads
        }
        return {
            **{name: value for name, value in {**defaults, **self.options}.items() if name in accepted},
            "bootstrap_servers": list(self.bootstrap_servers),
            "bootstrap_timeout_ms": int(self.connect_timeout * 1000),
            **({"allow_auto_create_topics": False} if "allow_auto_create_topics" in accepted else {}),
        }


def connect(kind: Any, config: Mapping[str, Any]) -> Any:
    """A `KafkaProducer`, `KafkaConsumer` or `KafkaAdminClient` that has reached a broker; raises what they raise.

    kafka-python 3.0.12 leaves the sockets of a client that can't connect open, and a consumer's thread running. It also
    waits up to 36 s for a connection whose packets are lost, and has no option for that.
    """
    networks: list[Any] = []

    def network(**options: Any) -> Any:
        networks.append(kind.DEFAULT_CONFIG["kafka_client"](**{**options, **_SETUP}))
        return networks[-1]

    try:
        return kind(**config, kafka_client=network)
    except BaseException:
        for one in networks:
            one.close()
        raise


def heard_at(consumer: Any) -> float:
    """When a broker last sent anything to a `KafkaConsumer` (monotonic clock).

    kafka-python 3.0.12 shows it nowhere: `poll` returns nothing both where nothing is new and where nobody answers.
    """
    connections = list(consumer._client._manager._conns.values())
    transports = [connection.transport for connection in connections]
    return max((transport.last_read for transport in transports if transport is not None), default=0.0)


class RecentWarnings(logging.Handler):
    """The last warnings of kafka-python: a failed login or handshake reaches its caller only as a timeout."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[str] = deque(maxlen=3)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self._lines:
            self._lines.append(line)

    def __str__(self) -> str:
        return f" (kafka-python: {'; '.join(self._lines)})" if self._lines else ""


@contextmanager
def recent_warnings() -> Iterator[RecentWarnings]:
    """Listen to kafka-python's log for the time of the block."""
    logger, heard = logging.getLogger("kafka"), RecentWarnings()
    logger.addHandler(heard)
    try:
        yield heard
    finally:
        logger.removeHandler(heard)
