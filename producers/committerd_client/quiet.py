"""Keeps kafka-python from flooding the application's log while Kafka is away: the same line once in ten seconds.

Only lines of threads that work for a `CommitClient` are left out, and the next line says how many.
The application's own handlers, levels and formats are not touched, and neither are its own Kafka clients.
"""

from __future__ import annotations

import logging
import threading

from committerd_client.connection import RecentWarnings
from committerd_common.repeats import RepeatFilter

_OWN_THREADS = ("sender", "reader", "diagnosis")
_KAFKA_CLIENTS = ("staged", "outcomes", "diagnosis")
"""What a `CommitClient` calls its threads and its Kafka clients, behind its client id."""

_threads: set[str] = set()


class _Quiet(RepeatFilter):
    def filter(self, record: logging.LogRecord) -> bool:
        passes = super().filter(record)
        if not passes:
            # Whoever waits for a client to start is told the cause, also the second time.
            for handler in logging.getLogger("kafka").handlers:
                if isinstance(handler, RecentWarnings):
                    handler.handle(record)
        return passes


def _ours() -> bool:
    return threading.current_thread().name in _threads


_quiet = _Quiet(_ours)


def quieten_kafka(client_id: str) -> None:
    """From now on, for the threads of clients of that name. Costs nothing when it is called again."""
    _threads.update(f"{client_id}-{name}" for name in _OWN_THREADS)
    _threads.update(f"kafka-io-{client_id}-{name}" for name in _KAFKA_CLIENTS)  # as kafka-python names its threads
    below = [name for name in logging.root.manager.loggerDict if name.startswith("kafka.")]
    for name in ("kafka", *below):
        logging.getLogger(name).addFilter(_quiet)  # once, however often it is added
