"""Opens kafka-python's clients, and works around their faults.

* A constructor that can't connect waits for its timeout and then raises only "unable to bootstrap". Only the log has
  the cause (a wrong certificate, a wrong password), so this module collects the log lines.
* It also leaks its thread and sockets. `kafka_client`, an option of all three clients, gives us the network client, so
  that we can close it.
* It waits up to 36 s for a connection whose packets are lost. Only the network client has an option that limits it.
* At level DEBUG kafka-python logs whole frames, including passwords.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kafka import errors
from kafka.net.compat import KafkaNetClient

from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka.repairs import heard_at, repair_kafka_python
from committerd_login.causes import LINES_KEPT, cause_in

_log = logging.getLogger(__name__)
_SETUP = {"socket_connection_setup_timeout_ms": 5_000, "socket_connection_setup_timeout_max_ms": 5_000}
"""Limits an attempt to connect: if it began during an outage, it ends within this time, and the next succeeds."""
_LINE_LENGTH_MAX = 300
_CLOSE_MS_MAX = 1_000

Client = TypeVar("Client")


@dataclass(frozen=True, slots=True)
class OpenClient(Generic[Client]):
    """A client of kafka-python, and its network client."""

    client: Client
    network: KafkaNetClient


def open_client(make: Callable[..., Client], options: Mapping[str, Any]) -> OpenClient[Client]:
    """Construct a KafkaConsumer, KafkaProducer or KafkaAdminClient. Blocks until it is connected.

    Raises `QueueUnavailable` with the lines that the client logged, or `SettingsError` if it rejects the value of an
    option. After an error no thread or socket is left.
    """
    keep_secrets_out_of_the_log()
    repair_kafka_python()
    held: list[KafkaNetClient] = []

    def hold(**configs: Any) -> KafkaNetClient:
        held.append(KafkaNetClient(**configs | _SETUP))
        return held[-1]

    with recent_lines() as lines:
        try:
            return OpenClient(make(**options, kafka_client=hold), held[0])
        except (errors.KafkaConfigurationError, ValueError) as error:
            _close_all(held)
            raise SettingsError(f"Kafka client: {error}") from error
        except errors.KafkaError as error:
            _close_all(held)
            raise no_broker(options["bootstrap_servers"], error, lines) from error
        except BaseException:
            _close_all(held)
            raise


def close_consumer(opened: OpenClient[Any]) -> None:
    """Close a KafkaConsumer that is in no group, and its network client. Blocks for about a second at most."""
    try:
        with suppress(errors.KafkaError):
            opened.client.close(autocommit=False, timeout_ms=_CLOSE_MS_MAX)
    finally:
        opened.network.close()


def no_broker(servers: Sequence[str], error: errors.KafkaError, lines: Iterable[str]) -> QueueUnavailable:
    """The error if no broker accepts a connection. `lines`: the lines that kafka-python logged."""
    logged = "; ".join(lines) or "nothing"
    return QueueUnavailable(
        f"no Kafka broker of {','.join(servers)} could be used: {in_words(error)}. The client logged: {logged}"
    )


def silent_seconds(network: KafkaNetClient) -> float:
    """Seconds since a broker last sent anything to this client; infinite if it has no connection."""
    heard = heard_at(network)
    return float("inf") if heard is None else time.monotonic() - heard


def in_words(error: errors.KafkaError) -> str:
    """The error as text for a message; some errors of kafka-python have no text of their own."""
    if isinstance(error, errors.NodeNotReadyError):
        return "no broker can be reached"
    if isinstance(error, errors.KafkaTimeoutError) and error.args in ((), (None,)):
        return "no response in time"
    if isinstance(error, errors.BrokerResponseError) and type(error).description:
        # Its own text begins with the number of the error and the name of a Python class.
        said = " ".join(str(one) for one in error.args if one is not None)
        return f"{said} ({type(error).description.rstrip('.')})" if said else str(type(error).description)
    return str(error)


def keep_secrets_out_of_the_log() -> None:
    """Set kafka-python's loggers to INFO if their level is lower."""
    below = [name for name in logging.root.manager.loggerDict if name.startswith("kafka.")]
    for name in ("kafka", *below):
        logger = logging.getLogger(name)
        if logger.getEffectiveLevel() < logging.INFO:
            logger.setLevel(logging.INFO)


def _close_all(held: list[KafkaNetClient]) -> None:
    for network in held:
        network.close()


class _Lines(logging.Handler):
    """Keeps the last distinct warnings that name a cause, from all threads."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: collections.deque[str] = collections.deque(maxlen=LINES_KEPT)
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        cause = cause_in(record.getMessage())[:_LINE_LENGTH_MAX]
        with self._guard:
            if cause and cause not in self.kept:
                self.kept.append(cause)


@contextmanager
def recent_lines() -> Iterator[collections.deque[str]]:
    """Collect distinct lines of kafka-python's loggers during the block that may be the cause of a failure."""
    lines = _Lines()
    logger = logging.getLogger("kafka")
    logger.addHandler(lines)
    try:
        yield lines.kept
    finally:
        logger.removeHandler(lines)
