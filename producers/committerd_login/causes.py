"""Finds, among the lines that kafka-python logs, those that say why a connection failed."""

from __future__ import annotations

import re

_VARYING = re.compile(r"^<.*?>: | \(backoff [\d.]+ secs\)$| after [\d.]+ ms\b")
"""Object names with ports, backoff times, and how long attempts took. Without them a repeated line equals the first."""
LINES_KEPT = 10
"""How many lines are kept: those of an attempt that was refused, and of later attempts that got no time."""
_NO_CAUSE = re.compile(r"not ready; waiting|^Bootstrap failed")


def cause_in(line: str) -> str:
    """The line without what varies from one repetition to the next; empty if it names no cause."""
    line = _VARYING.sub("", line)
    return "" if _NO_CAUSE.search(line) else line
