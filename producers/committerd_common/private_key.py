"""Whether a private key needs a password."""

from __future__ import annotations

import re

_ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.MULTILINE)
"""In the forms of PKCS #8 and of OpenSSL before 1.0."""


def is_encrypted(pem: bytes) -> bool:
    """Whether the file, in PEM form, has a private key for which OpenSSL would ask a password on the terminal."""
    return _ENCRYPTED.search(pem) is not None
