"""A record of the staged topic as a whole: the hash that identifies it, and its size in memory."""

from __future__ import annotations

from committerd.queue.port import Record
from committerd_common.request import headers_size, sent_sha256

HEADER_OVERHEAD_BYTES = 160
"""Memory that a tuple, a str and a bytes object take in addition to their content."""


def record_sha256(record: Record) -> str:
    """The SHA-256 of key and value, as hex digits; it differs for another record at the same offset."""
    return sent_sha256(record.key, record.value)


def record_size(record: Record) -> int:
    """The bytes that a record takes in memory: value, key, headers, and Python's overhead for each header."""
    headers = record.headers
    return len(record.value) + len(record.key or b"") + headers_size(headers) + HEADER_OVERHEAD_BYTES * len(headers)
