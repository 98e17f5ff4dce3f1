"""A dead letter, for tests that change what matters to them."""

from __future__ import annotations

from committerd.queue.dead_letter import Letter

LETTER = Letter(
    offset=2,
    timestamp_ms=5,
    status="INVALID",
    reason="unknown_fragment",
    message="",
    topic="t.staged",
    staged_offset=17,
    staged_timestamp_ms=1,
    key=None,
    value=b"x",
    headers=(),
    dropped_bytes=0,
)
