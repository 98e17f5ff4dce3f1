"""Keeps kafka-python from flooding the application's log while Kafka is away.

A repeated line is logged once in ten seconds, with the number of suppressed ones. The filter suppresses only lines of
threads that work for a `CommitClient`. It changes neither the application's handlers, levels and formats nor the lines
of the application's own Kafka clients.
"""

from __future__ import annotations

import logging
import threading

from committerd_client.connection import RecentWarnings
from committerd_common.repeats import RepeatFilter

_OWN_THREADS = ("sender", "reader", "diagnosis")
_KAFKA_CLIENTS = ("staged", "outcomes", "diagnosis")
"""Suffixes of the names of a `CommitClient`'s threads and Kafka clients, after its client id."""

_threads: set[str] = set()


class _Quiet(RepeatFilter):
    def filter(self, record: logging.LogRecord) -> bool:
        passes = super().filter(record)
        if not passes:
            # Callers that wait for a client to start still need the cause.
            for handler in logging.getLogger("kafka").handlers:
                if isinstance(handler, RecentWarnings):
                    handler.handle(record)
        return passes


def _ours() -> bool:
    return threading.current_thread().name in _threads


_quiet = _Quiet(_ours)


def quieten_kafka(client_id: str) -> None:
    """Suppress repeated lines of the threads of clients with this id from now on. Further calls change nothing."""
    _threads.update(f"{client_id}-{name}" for name in _OWN_THREADS)
    _threads.update(f"kafka-io-{client_id}-{name}" for name in _KAFKA_CLIENTS)  # as kafka-python names its threads
    below = [name for name in logging.root.manager.loggerDict if name.startswith("kafka.")]
    for name in ("kafka", *below):
        logging.getLogger(name).addFilter(_quiet)  # `addFilter` ignores a filter that is there already
