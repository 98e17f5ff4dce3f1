"""What kafka-python tells in words alone: why a connection failed, and that a user may write to no topic."""

from __future__ import annotations

import re

_VARYING = re.compile(r"^<.*?>: | \(backoff [\d.]+ secs\)$| after [\d.]+ ms\b")
"""Object names with ports, backoff times, and how long attempts took. Without them a repeated line equals the first."""
LINES_KEPT = 10
"""How many lines are kept: those of an attempt that was refused, and of later attempts that got no time."""
_NO_PRODUCER_ID = "InitProducerIdResponse: [Error 31]"
"""In the error for a user who may write to no topic: whoever may write to any gets an id (KIP-679)."""
_NO_CAUSE = re.compile(r"not ready; waiting|^Bootstrap failed")


def cause_in(line: str) -> str:
    """The line without what varies from one repetition to the next; empty if it names no cause."""
    line = _VARYING.sub("", line)
    return "" if _NO_CAUSE.search(line) else line


def gets_no_producer_id(error: Exception) -> bool:
    """Whether Kafka refuses a producer because its user may write to no topic. The topic's own error may come first."""
    return _NO_PRODUCER_ID in str(error)
