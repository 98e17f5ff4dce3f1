"""Signatures: which producer staged a record, and that nobody has changed it since.

Kafka does not tell a consumer who wrote a record. So a producer with a key signs each record, in header `signature`:
`v1:` and the HMAC-SHA256, in lower-case hex, of what `signed_bytes` makes of the record (`docs/wire-contract.md`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from committerd_common.request import HEADER_BYTES_MAX, SIGNATURE

KEY_CHARACTERS_MIN = 32
"""The fewest characters of a key: as hex digits, 128 bits."""

_VERSION = "v1:"
_MAGIC = b"committerd.signature.v1"
_SIGNED = HEADER_BYTES_MAX.keys() - {SIGNATURE, "traceparent"}
"""Every header that the committer reads, except those that libraries for tracing add after the record is signed."""


def require_key(key: str) -> str:
    """Return the key. Raises `ValueError` for one that is too short to be a secret; the message does not hold it."""
    if len(key) < KEY_CHARACTERS_MIN:
        raise ValueError(
            f"a key of a producer has at least {KEY_CHARACTERS_MIN} characters, and this one has {len(key)}: make one "
            "with `openssl rand -hex 32`"
        )
    return key


def signed_bytes(topic: str, *, key: bytes | None, value: bytes, headers: Iterable[tuple[str, bytes]]) -> bytes:
    """What a signature is made of; it differs where topic, key, value, or a header that the committer reads differs.

    Each part is preceded by its length, as 4 bytes, big-endian: the magic, the topic's name, the SHA-256 of the value,
    the record's key, if it has one after the byte 1, else the byte 0; then, in the order of the names' bytes, name and
    value of each signed header. Of a header that occurs twice, only the last one counts.
    """
    last = {name: given for name, given in headers if name in _SIGNED}
    parts = [_MAGIC, topic.encode(), hashlib.sha256(value).digest(), b"\0" if key is None else b"\1" + key]
    for name in sorted(last):
        parts += name.encode(), last[name]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def signature(secret: str, signed: bytes) -> bytes:
    """The value of header `signature`. `signed`: as `signed_bytes` returns it."""
    return (_VERSION + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()).encode()


def is_signed_by(secrets: Sequence[str], signed: bytes, given: bytes) -> bool:
    """Whether one of these keys has made the signature `given`; takes equally long for each wrong signature."""
    matches = [hmac.compare_digest(signature(secret, signed), given) for secret in secrets]
    return any(matches)
