"""Converts kafka-python's records to the committer's."""

from __future__ import annotations

from typing import Any

from committerd.kafka.repairs import CutHeaders
from committerd.queue.port import Record


def to_record(found: Any) -> Record:
    """Our record from kafka-python's. A null value becomes empty bytes; a null key stays None."""
    return Record(
        offset=found.offset,
        value=found.value or b"",
        key=found.key,
        headers=tuple((name, value or b"") for name, value in found.headers),
        timestamp_ms=found.timestamp,
        leader_epoch=found.leader_epoch,
        headers_found=found.headers.found if isinstance(found.headers, CutHeaders) else 0,
    )
