"""Signatures of records: what they cover, and what they leave out."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from committerd_common.errors import InvalidRequest
from committerd_common.request import HEADER_BYTES_MAX, decode_envelope
from committerd_common.signature import is_signed_by, require_key, signature, signed_bytes

VECTORS = json.loads((Path(__file__).parents[2] / "docs" / "wire-vectors.json").read_text())["signature"]
KEY, OTHER = "k" * 32, "o" * 32
HEADERS = [("producer", b"loader"), ("app-id", b"a"), ("app-version", b"3")]


def signed(
    topic: str = "t.staged", key: bytes | None = b"uuid", value: bytes = b"value", headers: object = None
) -> bytes:
    return signed_bytes(topic, key=key, value=value, headers=HEADERS if headers is None else headers)  # type: ignore[arg-type]


def test_the_signed_bytes_are_those_of_the_page() -> None:
    def part(content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + content

    made = part(b"committerd.signature.v1") + part(b"t.staged") + part(hashlib.sha256(b"value").digest())
    made += part(b"\1uuid") + part(b"app-id") + part(b"a") + part(b"app-version") + part(b"3")
    made += part(b"producer") + part(b"loader")
    assert signed() == made
    assert signature(KEY, made) == b"v1:" + hmac.new(KEY.encode(), made, hashlib.sha256).hexdigest().encode()
    assert len(signature(KEY, made)) <= HEADER_BYTES_MAX["signature"]


@pytest.mark.parametrize(
    "changed",
    [
        signed(topic="u.staged"),
        signed(key=None),
        signed(key=b""),
        signed(key=b"uuie"),
        signed(value=b"valuf"),
        signed(headers=HEADERS[:2]),
        signed(headers=[*HEADERS, ("app-version", b"4")]),
        signed(headers=[("producer", b"loadera"), ("app-id", b""), ("app-version", b"3")]),
        *(signed(headers=[*HEADERS, (name, b"x")]) for name in HEADER_BYTES_MAX.keys() - {"signature", "traceparent"}),
    ],
)
def test_whatever_the_committer_reads_is_signed(changed: bytes) -> None:
    assert changed != signed()
    assert not is_signed_by([KEY], changed, signature(KEY, signed()))


def test_order_what_is_overridden_and_what_others_add_are_not_signed() -> None:
    for same in (
        HEADERS[::-1],
        [("app-id", b"b"), *HEADERS],
        [*HEADERS, ("traceparent", b"00-1"), ("signature", b"v1:00"), ("x-request", b"5")],
    ):
        assert signed(headers=same) == signed()


def test_any_of_the_keys_may_have_signed() -> None:
    given = signature(OTHER, signed())
    assert is_signed_by([KEY, OTHER], signed(), given)
    assert is_signed_by([OTHER, KEY], signed(), given)
    assert not is_signed_by([KEY], signed(), given)
    assert not is_signed_by([KEY, OTHER], signed(), given[:-1])
    assert not is_signed_by([KEY, OTHER], signed(), "v1:é".encode())


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda vector: vector["name"])
def test_the_vectors_for_other_languages_are_ours(vector: dict[str, Any]) -> None:
    key = None if vector["key"] is None else bytes.fromhex(vector["key"])
    headers = [(name, bytes.fromhex(content)) for name, content in vector["headers"]]
    made = signed_bytes(VECTORS["topic"], key=key, value=bytes.fromhex(vector["value"]), headers=headers)
    assert made.hex() == vector["signed"]
    assert signature(VECTORS["secret"], made).decode() == vector["signature"]


def test_a_short_key_is_refused_and_not_told() -> None:
    assert require_key(KEY) == KEY
    with pytest.raises(ValueError, match="at least 32 characters, and this one has 31") as caught:
        require_key(KEY[1:])
    assert KEY[1:] not in str(caught.value)


def test_records_that_differ_in_their_signature_share_an_envelope() -> None:
    first = decode_envelope([*HEADERS, ("signature", b"v1:00")])
    assert decode_envelope([*HEADERS, ("signature", b"v1:01")]) is first
    assert decode_envelope([*HEADERS, ("signature", b"v1:01")]) == decode_envelope(HEADERS)
    with pytest.raises(InvalidRequest, match="header signature has 129 bytes"):
        decode_envelope([*HEADERS, ("signature", b"v1:01"), ("signature", b"0" * 129)])
