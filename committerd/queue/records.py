"""A record of the staged topic as a whole: the hash that identifies it, and its size in memory."""

from __future__ import annotations

import hashlib

from committerd.queue.port import Record
from committerd_common.request import headers_size

HEADER_OVERHEAD_BYTES = 160
"""Memory that a tuple, a str and a bytes object take in addition to their content."""


def record_sha256(record: Record) -> str:
    """The SHA-256 of key and value, as hex digits; it differs for another record at the same offset."""
    digest = hashlib.sha256()
    digest.update(b"-" if record.key is None else b"+" + len(record.key).to_bytes(4, "big") + record.key)
    digest.update(record.value)
    return digest.hexdigest()


def record_size(record: Record) -> int:
    """The bytes that a record takes in memory: value, key, headers, and Python's overhead for each header."""
    headers = record.headers
    return len(record.value) + len(record.key or b"") + headers_size(headers) + HEADER_OVERHEAD_BYTES * len(headers)
