"""How a client connects to Kafka: topics, arguments of kafka-python's clients, and the cause if a connection fails."""

from __future__ import annotations

import difflib
import logging
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from committerd_common.private_key import is_encrypted
from committerd_login import LOGIN_OPTIONS, kafka_python_options
from committerd_login.causes import LINES_KEPT, cause_in

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")

_OURS = frozenset(
    {
        "bootstrap_servers", "client_id", "acks", "enable_idempotence", "transactional_id", "key_serializer",
        "value_serializer", "key_deserializer", "value_deserializer", "group_id", "group_instance_id",
        "enable_auto_commit", "auto_offset_reset", "isolation_level", "max_request_size", "bootstrap_timeout_ms",
        "allow_auto_create_topics", "max_in_flight_requests_per_connection", "kafka_client",
    }
)  # fmt: skip
"""Options that users can't set: the client's guarantees depend on them, or `CommitClient` has its own argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Addresses of Kafka's brokers, names of the dataset's topics, and options of kafka-python's clients."""

    bootstrap_servers: Sequence[str]
    dataset: str
    topic_prefix: str = ""
    client_id: str
    """The names of its Kafka clients begin with this, in Kafka's quotas and logs."""
    partition_key: str
    """Its crc32 chooses the client's partition of the outcomes topic."""
    connect_timeout: float = 30.0
    """Seconds."""
    max_record_bytes: int
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """More arguments of `KafkaProducer` and `KafkaConsumer`, such as `security_protocol` and `ssl_cafile`, and
    `LOGIN_OPTIONS`.
    """
    _kafka_python: Mapping[str, Any] = field(init=False, repr=False)
    """The options with kafka-python's names."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.dataset):
            raise ValueError(
                f"dataset {self.dataset!r} is not a dataset name: 1 to 200 of the characters A-Z a-z 0-9 . _ - are "
                "needed (the committer's setting dataset.name; the table's URI goes to dataset_uri)"
            )
        known = {*KafkaProducer.DEFAULT_CONFIG, *KafkaConsumer.DEFAULT_CONFIG, *LOGIN_OPTIONS}
        for name in self.options:
            if name in _OURS:
                raise ValueError(f"kafka_options: {name!r} is set by the client itself")
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"kafka_options: there is no option {name!r}{hint}")
        try:
            object.__setattr__(self, "_kafka_python", kafka_python_options(self.options))
        except ValueError as error:
            raise ValueError(f"kafka_options: {error}") from error
        key = self.options.get("ssl_keyfile") or self.options.get("ssl_certfile")
        if (
            key
            and self.options.get("ssl_password") is None
            and Path(key).is_file()
            and is_encrypted(Path(key).read_bytes())
        ):
            # OpenSSL would ask for the password on the terminal, for each connection.
            raise ValueError(
                f"kafka_options: the private key in {str(key)!r} is encrypted: set ssl_password, or give a key without "
                "a password"
            )

    @property
    def staged_topic(self) -> str:
        return f"{self.topic_prefix}{self.dataset}.staged"

    @property
    def outcomes_topic(self) -> str:
        return f"{self.topic_prefix}{self.dataset}.outcomes"

    def producer_config(self) -> dict[str, Any]:
        """Arguments of `KafkaProducer`: idempotent, no linger. Records form a batch while another is in flight."""
        return {
            **self._common(KafkaProducer.DEFAULT_CONFIG),
            "client_id": f"{self.client_id}-staged",
            "acks": "all",
            "enable_idempotence": True,  # explicit: kafka-python drops the mere default silently on a conflict
            "max_request_size": self.max_record_bytes,
        }

    def consumer_config(self) -> dict[str, Any]:
        """Arguments of `KafkaConsumer`: no group. The client reads one partition, from its end at the start on."""
        return {
            **self._common(KafkaConsumer.DEFAULT_CONFIG),
            "client_id": f"{self.client_id}-outcomes",
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",  # if the topic has dropped older outcomes, read the others
            "isolation_level": "read_committed",
        }

    def admin_config(self) -> dict[str, Any]:
        """Arguments of the `KafkaAdminClient` that describes topics and groups."""
        return {**self._common(KafkaAdminClient.DEFAULT_CONFIG), "client_id": f"{self.client_id}-diagnosis"}

    def _common(self, accepted: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {
            "request_timeout_ms": 7_000,
            "reconnect_backoff_max_ms": 1_000,
            "delivery_timeout_ms": 30_000,
            "max_block_ms": 5_000,
            "batch_size": 128 * 1024,
            "max_poll_records": 2_000,
            "metrics_enabled": False,  # nobody reads kafka-python's own metrics
        }
        return {
            **{name: value for name, value in {**defaults, **self._kafka_python}.items() if name in accepted},
            "bootstrap_servers": list(self.bootstrap_servers),
            "bootstrap_timeout_ms": int(self.connect_timeout * 1000),
            **({"allow_auto_create_topics": False} if "allow_auto_create_topics" in accepted else {}),
        }


class RecentWarnings(logging.Handler):
    """Keeps the last warnings of kafka-python, which raises only a timeout for a failed login or handshake."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Nothing: `kafka_log` passes on the lines of the client's own threads."""

    def hear(self, line: str) -> None:
        """Keep a line that names a cause."""
        cause = cause_in(line)
        if cause and cause not in self._lines:
            self._lines.append(cause)

    def __str__(self) -> str:
        return f" (kafka-python: {'; '.join(self._lines)})" if self._lines else ""


@contextmanager
def recent_warnings() -> Iterator[RecentWarnings]:
    """Collect kafka-python's warnings during the block."""
    logger, heard = logging.getLogger("kafka"), RecentWarnings()
    logger.addHandler(heard)
    try:
        yield heard
    finally:
        logger.removeHandler(heard)
