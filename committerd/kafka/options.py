"""Converts our settings to the arguments of kafka-python's three clients.

Each client rejects options that it doesn't know, so the common options are made once and filtered by the names in the
client's defaults.
"""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
from pydantic import SecretStr

from committerd.errors import SettingsError
from committerd.settings.kafka import KafkaSettings
from committerd_common.private_key import is_encrypted
from committerd_login import LOGIN_OPTIONS, kafka_python_options

BATCH_BYTES = 128 * 1024
RECORD_OVERHEAD_BYTES = 1024
"""Upper bound of the bytes that a batch of one record adds to its key, value and headers."""
_REQUESTS_IN_FLIGHT = 64
"""Of an admin client, to one broker: more than its threads can send at a time. kafka-python refuses a request beyond
that as if the broker could not be reached."""
CONNECTION = (
    "bootstrap_servers",
    "bootstrap_timeout_ms",
    "request_timeout_ms",
    "metadata_max_age_ms",
    "reconnect_backoff_ms",
    "reconnect_backoff_max_ms",
    "connections_max_idle_ms",
    "security_protocol",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_check_hostname",
    "ssl_crlfile",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "client_dns_lookup",
    "proxy_url",
    "api_version",
)
"""Settings that are passed to each client under the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Names of a dataset's topics and group."""

    staged: str
    outcomes: str
    dead: str
    events: str
    group: str


def topics_of(settings: KafkaSettings, name: str, *, group: str | None = None) -> Topics:
    """The names for a dataset. Raises `SettingsError` if Kafka does not allow them.

    `group`: a group that serves other datasets too; None = that of the settings, or else the dataset's own.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise SettingsError(
            f"dataset name {name!r} can't be part of a Kafka topic: use letters, digits, '.', '_' and '-' only"
        )
    longest = f"{settings.topic_prefix}{name}.outcomes"
    if len(longest) > 249:  # Kafka: Topic.java, MAX_NAME_LENGTH
        raise SettingsError(
            f"topic name {longest!r} has {len(longest)} characters, and Kafka allows 249: shorten "
            "topic_prefix or the dataset's name"
        )
    stem = f"{settings.topic_prefix}{name}"
    return Topics(
        staged=f"{stem}.staged",
        outcomes=longest,
        dead=f"{stem}.dead",
        events=f"{stem}.events",
        group=group or settings.group or f"{settings.group_prefix}{name}",
    )


def client_id(role: str, name: str, *, machine: str | None = None) -> str:
    """The client id in the broker's logs, metrics and quotas: committerd-ROLE-DATASET-HOST; HOST is this machine's."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "unknown"
    return f"committerd-{role}-{name}-{host if machine is None else machine}"


def member_options(settings: KafkaSettings, group: str, name: str) -> dict[str, Any]:
    """Options of the consumer that joins the group, except the assignor."""
    return _filtered(
        KafkaConsumer,
        _connection(settings)
        | _reading(settings)
        | {
            "client_id": client_id("consumer", name),
            "group_id": group,
            # No group_instance_id: a static member does not leave the group, so each restart would cost a whole
            # session timeout; and a static member that is fenced gets no notice.
            "session_timeout_ms": settings.session_timeout_ms,
            "heartbeat_interval_ms": settings.heartbeat_interval_ms,
            "max_poll_interval_ms": settings.max_poll_interval_ms,
        },
    )


def reader_options(settings: KafkaSettings, name: str) -> dict[str, Any]:
    """Options of a consumer that reads ranges. It has no group, so that its user needs no right to the group."""
    return _filtered(
        KafkaConsumer,
        _connection(settings)
        | _reading(settings)
        | {
            "client_id": client_id("reader", name),
            "group_id": None,
            # Reads end at the end of the log, so it is useless to wait for more records.
            "fetch_max_wait_ms": min(settings.fetch_max_wait_ms, 50),
        },
    )


def producer_options(settings: KafkaSettings, role: str, name: str, *, record_bytes_max: int) -> dict[str, Any]:
    """Options of an idempotent producer for records up to the given size in bytes."""
    return _filtered(
        KafkaProducer,
        _connection(settings)
        | {
            "client_id": client_id(role, name),
            "acks": "all",
            # Explicit, although it is the default: only then do contradicting options raise.
            "enable_idempotence": True,
            "max_in_flight_requests_per_connection": 5,
            "linger_ms": 0,
            "batch_size": min(BATCH_BYTES, record_bytes_max),
            "max_request_size": record_bytes_max + RECORD_OVERHEAD_BYTES,
            "delivery_timeout_ms": settings.delivery_timeout_ms,
            "max_block_ms": settings.request_timeout_ms,
            "allow_auto_create_topics": False,
        },
    )


def admin_options(settings: KafkaSettings, name: str) -> dict[str, Any]:
    """Options of an admin client."""
    return _filtered(
        KafkaAdminClient,
        _connection(settings)
        | {
            "client_id": client_id("admin", name),
            "max_in_flight_requests_per_connection": _REQUESTS_IN_FLIGHT,
        },
    )


def writer_options(settings: KafkaSettings) -> dict[str, Any]:
    """Options for a program that writes through the queue: it connects and logs in as the committer does."""
    options = _connection(settings)
    own = ("bootstrap_servers", "bootstrap_timeout_ms")
    return {name: value for name, value in options.items() if name not in own and value is not None}


def _reading(settings: KafkaSettings) -> dict[str, Any]:
    return {
        "enable_auto_commit": False,
        # A missing offset must raise: 'earliest' would skip lost records silently.
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "check_crcs": True,
        "max_poll_records": 500,
        "fetch_max_wait_ms": settings.fetch_max_wait_ms,
        "fetch_max_bytes": settings.fetch_max_bytes,
        "max_partition_fetch_bytes": max(10 * 1024 * 1024, settings.max_record_bytes),
        "allow_auto_create_topics": False,
        "exclude_internal_topics": True,
    }


def _connection(settings: KafkaSettings) -> dict[str, Any]:
    # Nobody reads kafka-python's own metrics, and they cost a few percent of the interpreter's time.
    options: dict[str, Any] = {"metrics_enabled": False}
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"):
        path = getattr(settings, name)
        if path is not None and not Path(path).is_file():
            raise SettingsError(f"{name}: there is no file {path!r}")
    _require_plain_key(settings)
    for name in (*CONNECTION, *LOGIN_OPTIONS):
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
        options[name] = list(value) if name == "bootstrap_servers" else value
    if settings.sasl_oauth_token_provider is not None:
        options["sasl_oauth_token_provider"] = _token_provider(settings.sasl_oauth_token_provider)
    try:
        return kafka_python_options(options)
    except ValueError as error:
        raise SettingsError(f"group kafka: {error}") from error


def _require_plain_key(settings: KafkaSettings) -> None:
    """Refuse an encrypted key without a password: OpenSSL would ask for it on the terminal, for each connection."""
    path = settings.ssl_keyfile or settings.ssl_certfile
    if path is None or settings.ssl_password is not None:
        return
    if is_encrypted(Path(path).read_bytes()):
        raise SettingsError(
            f"the private key in {path!r} is encrypted: set ssl_password, or give a key without a password"
        )


def _filtered(client: type, options: Mapping[str, Any]) -> dict[str, Any]:
    known = client.DEFAULT_CONFIG  # type: ignore[attr-defined]  # each of the three has it
    return {name: value for name, value in options.items() if name in known}


def _token_provider(path: str) -> AbstractTokenProvider:
    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"sasl_oauth_token_provider {path!r}: {error}") from error
    if not isinstance(made, AbstractTokenProvider):
        raise SettingsError(
            f"sasl_oauth_token_provider {path!r} makes a {type(made).__name__}, not a "
            "kafka.net.sasl.oauth.AbstractTokenProvider"
        )
    return made
