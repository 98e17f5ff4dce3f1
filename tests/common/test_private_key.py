"""Private keys that need a password."""

from __future__ import annotations

import pytest

from committerd_common.private_key import is_encrypted


@pytest.mark.parametrize(
    ("head", "encrypted"),
    [
        (b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n", True),
        (b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", True),
        (b"-----BEGIN PRIVATE KEY-----\n", False),
        (b"-----BEGIN CERTIFICATE-----\n", False),
        (b"", False),
    ],
)
def test_the_head_of_a_key_says_whether_it_is_encrypted(head: bytes, encrypted: bool) -> None:
    assert (
        is_encrypted(b"-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n" + head + b"MII=\n") is encrypted
    )
