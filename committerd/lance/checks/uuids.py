"""The two forms of a uuid: text in a transaction, 16 bytes in the messages inside it."""

from __future__ import annotations

import re

UUID_BYTES = 16

_CANONICAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_canonical(text: str) -> bool:
    """Whether the text is a uuid in lower case, with hyphens."""
    return _CANONICAL.fullmatch(text) is not None


def is_uuid(value: bytes) -> bool:
    """Whether the value has 16 bytes, the size of a uuid."""
    return len(value) == UUID_BYTES
