"""Signed records, for docs/wire-vectors.json: header `signature` of the wire contract, spelt out.

This is a second implementation. tests/common/test_signature.py compares that of client and committer.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Any

ABOUT = (
    "Header `signature` of records, made with the producer's key `secret`. `signed` is what the HMAC is made of, in "
    "hexadecimal, as are keys, values and headers; a key that is null is none."
)
TOPIC = "events.staged"
SECRET = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
_NOT_SIGNED = ("signature", "traceparent", "x-request-id")
_DATASET = ("dataset", b"s3://example/lake/events.lance")
_UUID = b"00000000-0000-4000-8000-000000000001"

Header = tuple[str, bytes]


def _part(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _vector(name: str, key: bytes | None, value: bytes, headers: Sequence[Header]) -> dict[str, Any]:
    """`headers`: in the order in which they are sent."""
    counted = {name: content for name, content in headers if name not in _NOT_SIGNED}
    signed = b"".join(
        (
            _part(b"committerd.signature.v1"),
            _part(TOPIC.encode()),
            _part(hashlib.sha256(value).digest()),
            _part(b"\0" if key is None else b"\1" + key),
            *(_part(name.encode()) + _part(counted[name]) for name in sorted(counted)),
        )
    )
    return {
        "name": name,
        "key": None if key is None else key.hex(),
        "value": value.hex(),
        "headers": [[header, content.hex()] for header, content in headers],
        "signed": signed.hex(),
        "signature": "v1:" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest(),
    }


def signature_vectors() -> list[dict[str, Any]]:
    """Return the records, with their signatures."""
    producer = ("producer", b"loader")
    unit: list[Header] = [("app-version", b"7"), ("app-id", b"loader-1"), ("app-run", "Zoë".encode())]
    claim: list[Header] = [
        ("transaction-file", b"claimed.txn"),
        ("transaction-sha256", hashlib.sha256(b"claimed").hexdigest().encode()),
    ]
    added: list[Header] = [("traceparent", b"00-11-22-01"), ("x-request-id", b"5")]
    return [
        _vector("the least", _UUID, b"\x01\x02", [producer]),
        _vector("no key", None, b"\x01\x02", [producer, _DATASET]),
        _vector("headers in another order", _UUID, b"\x01\x02", [*unit, _DATASET, producer]),
        _vector("the last of a name counts", _UUID, b"\x01\x02", [("producer", b"other"), producer]),
        _vector("claim check", _UUID, b"", [producer, *claim]),
        _vector("headers that are not signed", _UUID, b"\x01\x02", [producer, *added]),
    ]
