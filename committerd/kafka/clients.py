"""Opening kafka-python's clients, and what has to be put right around them.

* A constructor that can't connect waits out its time and then says only "unable to bootstrap". The
  cause (a wrong certificate, a wrong password) is in the log alone, so the log is listened to.
* It also leaves its thread and sockets behind. `kafka_client`, an option of all three clients, lets
  us hold the network part, and close it.
* It waits up to 36 s for a connection whose packets are lost, and has no option for that: the network
  part has.
* At level DEBUG kafka-python logs whole frames, passwords among them.
"""

from __future__ import annotations

import collections
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kafka import errors
from kafka.net.compat import KafkaNetClient

from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka.repairs import repair_kafka_python

_log = logging.getLogger(__name__)
_SETUP = {"socket_connection_setup_timeout_ms": 5_000, "socket_connection_setup_timeout_max_ms": 5_000}
"""After an outage the connection that was tried during it is given up in this time, and the next one succeeds."""
_LINES_KEPT = 10
_LINE_LENGTH_MAX = 300
_VARYING = re.compile(r"^<.*?>: | \(backoff [\d.]+ secs\)$")
"""Names of objects, with ports, and waits: without them a line that is said again is the same line."""
_NO_CAUSE = re.compile(r"not ready; waiting|^Bootstrap failed")

Client = TypeVar("Client")


@dataclass(frozen=True, slots=True)
class Opened(Generic[Client]):
    """A client of kafka-python, and the network part below it."""

    client: Client
    network: KafkaNetClient


def open_client(make: Callable[..., Client], options: Mapping[str, Any]) -> Opened[Client]:
    """Construct a KafkaConsumer, KafkaProducer or KafkaAdminClient; blocks until it is connected.

    Raises `QueueUnavailable` with what the client logged, `SettingsError` when it won't have an
    option's value. Nothing is left behind then.
    """
    keep_secrets_out_of_the_log()
    repair_kafka_python()
    held: list[KafkaNetClient] = []

    def hold(**configs: Any) -> KafkaNetClient:
        held.append(KafkaNetClient(**configs | _SETUP))
        return held[-1]

    with recent_lines() as lines:
        try:
            return Opened(make(**options, kafka_client=hold), held[0])
        except (errors.KafkaConfigurationError, ValueError) as error:
            _close_all(held)
            raise SettingsError(f"Kafka client: {error}") from error
        except errors.KafkaError as error:
            _close_all(held)
            raise no_broker(options["bootstrap_servers"], error, lines) from error
        except BaseException:
            _close_all(held)
            raise


def no_broker(servers: Sequence[str], error: errors.KafkaError, lines: Iterable[str]) -> QueueUnavailable:
    """What to raise when none could be connected to; `lines` are what kafka-python logged."""
    said = "; ".join(lines) or "nothing"
    return QueueUnavailable(
        f"no Kafka broker of {','.join(servers)} could be used: {in_words(error)}. The client said: {said}"
    )


def silent_seconds(network: KafkaNetClient) -> float:
    """How long no broker has sent anything to this client; infinite while it has no connection.

    kafka-python 3.0.12 shows it nowhere.
    """
    transports = [connection.transport for connection in list(network._manager._conns.values())]
    heard = [transport.last_read for transport in transports if transport is not None]
    return time.monotonic() - max(heard) if heard else float("inf")


def in_words(error: errors.KafkaError) -> str:
    """What a message says of the error; kafka-python leaves some without any words."""
    if isinstance(error, errors.NodeNotReadyError):
        return "no broker can be reached"
    if isinstance(error, errors.KafkaTimeoutError) and error.args in ((), (None,)):
        return "no answer in time"
    return str(error)


def keep_secrets_out_of_the_log() -> None:
    """Raise kafka-python's loggers to INFO where they are below it."""
    below = [name for name in logging.root.manager.loggerDict if name.startswith("kafka.")]
    for name in ("kafka", *below):
        logger = logging.getLogger(name)
        if logger.getEffectiveLevel() < logging.INFO:
            logger.setLevel(logging.INFO)


def _close_all(held: list[KafkaNetClient]) -> None:
    for network in held:
        network.close()


class _Lines(logging.Handler):
    """The last different warnings that name a cause, of any thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: collections.deque[str] = collections.deque(maxlen=_LINES_KEPT)
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        line = _VARYING.sub("", record.getMessage())[:_LINE_LENGTH_MAX]
        with self._guard:
            if line not in self.kept and not _NO_CAUSE.search(line):
                self.kept.append(line)


@contextmanager
def recent_lines() -> Iterator[collections.deque[str]]:
    """What kafka-python's loggers say meanwhile that may be the cause of a failure; no line twice."""
    lines = _Lines()
    logger = logging.getLogger("kafka")
    logger.addHandler(lines)
    try:
        yield lines.kept
    finally:
        logger.removeHandler(lines)
