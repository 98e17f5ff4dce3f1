"""Finds, among the lines that kafka-python logs, those that say why a connection failed."""

from __future__ import annotations

import re

_VARYING = re.compile(r"^<.*?>: | \(backoff [\d.]+ secs\)$")
"""Object names with ports, and backoff times. Without them a repeated line equals the first."""
_NO_CAUSE = re.compile(r"not ready; waiting|^Bootstrap failed")


def cause_in(line: str) -> str:
    """The line without what varies from one repetition to the next; empty if it names no cause."""
    line = _VARYING.sub("", line)
    return "" if _NO_CAUSE.search(line) else line
