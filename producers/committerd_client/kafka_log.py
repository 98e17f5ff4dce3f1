"""Keeps kafka-python from flooding the application's log, and passwords out of it.

kafka-python logs an error, several times a second, for what is normal: a broker that is away, a connection that its
owner closes. In threads that work for a `CommitClient`, its warnings and errors become one warning a minute for each
address, and those about the client's own closing are left out. `KafkaUnavailable` and `CommitTimeout` name the cause.
Lines at INFO pass, at most once in ten seconds each. Lines at DEBUG do not pass: they hold whole requests, such as a
login. The filter changes neither the application's handlers, levels and formats nor the lines of the application's own
Kafka clients.
"""

from __future__ import annotations

import logging
import threading
import time

from committerd_client.connection import RecentWarnings
from committerd_common.repeats import RepeatFilter

_SECONDS = 60.0
"""The least time between two warnings about the same brokers."""
_OWN_THREADS = ("sender", "reader", "diagnosis")
_KAFKA_CLIENTS = ("staged", "outcomes", "diagnosis")
"""Suffixes of the names of a `CommitClient`'s threads and Kafka clients, after its client id."""
_NORMAL = ("Cancelled", "blocking the event loop")
"""Parts of lines that no user needs: a request ends because its client is closed; the machine is busy."""

_threads: dict[str, str] = {}
"""The brokers' addresses, by the names of the threads that work with them."""


class _KafkaLogFilter(RepeatFilter):
    def __init__(self) -> None:
        super().__init__(lambda: _servers() is not None)
        self._warned_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        servers = _servers()
        if servers is not None and record.levelno < logging.INFO:
            return False  # whole frames, with passwords
        if servers is None or record.levelno < logging.WARNING:
            return super().filter(record)
        said = record.getMessage()
        if any(part in said for part in _NORMAL):
            return False
        # Callers that wait for a client to start need every cause.
        for handler in logging.getLogger("kafka").handlers:
            if isinstance(handler, RecentWarnings):
                handler.hear(said)
        now = time.monotonic()
        if now - self._warned_at.get(servers, -_SECONDS) < _SECONDS:
            return False
        self._warned_at[servers] = now
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        record.msg, record.args = f"Kafka at {servers}: {said}", ()
        return True


def _servers() -> str | None:
    """The brokers of the client that this thread works for; None if it works for none."""
    return _threads.get(threading.current_thread().name)


_filter = _KafkaLogFilter()


def filter_kafka_log(client_id: str, servers: str) -> None:
    """Filter the lines of the threads of clients with this id from now on. Further calls change nothing."""
    for name in _OWN_THREADS:
        _threads[f"{client_id}-{name}"] = servers
    for name in _KAFKA_CLIENTS:
        for thread in (f"kafka-io-{client_id}-{name}", f"{client_id}-{name}-network-thread"):
            _threads[thread] = servers  # as kafka-python names its threads
    below = [name for name in logging.root.manager.loggerDict if name.startswith("kafka.")]
    for name in ("kafka", *below):
        logging.getLogger(name).addFilter(_filter)  # `addFilter` ignores a filter that is there already
