"""A record of the staged topic as a whole: what tells it from another, and what it takes in memory."""

from __future__ import annotations

import hashlib

from committerd.queue.port import Record
from committerd_common.request import headers_size

HEADER_OVERHEAD_BYTES = 160
"""What a tuple, a str and a bytes object take beside their content."""


def record_sha256(record: Record) -> str:
    """What tells a record from another at the same offset: hex digest over key and value."""
    digest = hashlib.sha256()
    digest.update(b"-" if record.key is None else b"+" + len(record.key).to_bytes(4, "big") + record.key)
    digest.update(record.value)
    return digest.hexdigest()


def record_size(record: Record) -> int:
    """What a record takes in memory, in bytes: value, key, headers, and what Python adds to each header."""
    headers = record.headers
    return len(record.value) + len(record.key or b"") + headers_size(headers) + HEADER_OVERHEAD_BYTES * len(headers)
