"""When the certificates expire that the settings name, for a metric and /readyz.

Python's `ssl` does not tell the end of a client's certificate, so this module reads it from the DER: RFC 5280, section
4.1: Certificate -> tbsCertificate -> validity -> notAfter.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from committerd.settings.kafka import KafkaSettings
from committerd.settings.load import SharedSettings

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17


def ends_of(settings: SharedSettings) -> Mapping[str, Callable[[], float]]:
    """For each configured certificate, by the metric's label, a function that reads when it ends.

    The function returns Unix time, and 0 for a file that can't be read. Of the file of a client or server the first
    certificate counts, which is its own. Of authorities the last to end counts: a file may still hold authorities that
    have been replaced.
    """
    found = {
        "kafka_authorities": (settings.kafka.ssl_cafile, _last_end),
        "kafka_client": (settings.kafka.ssl_certfile, _first_end),
        "azure_authorities": (settings.azure.ca_bundle, _last_end),
        "gcs_authorities": (settings.gcs.ca_bundle, _last_end),
        "s3_authorities": (settings.s3.ca_bundle, _last_end),
        "http_server": (settings.http.tls_certfile, _first_end),
        "oauth_authorities": (settings.kafka.sasl_oauth_cafile, _last_end),
    }
    return {label: partial(end, path) for label, (path, end) in found.items() if path is not None}


def expired_certificates(kafka: KafkaSettings, wall_clock: Callable[[], datetime]) -> str:
    """Which certificates of Kafka's settings have expired, and what to do; empty if none has."""
    files = {"kafka.ssl_certfile": (kafka.ssl_certfile, _first_end), "kafka.ssl_cafile": (kafka.ssl_cafile, _last_end)}
    now = wall_clock()
    ends = {
        (name, path): datetime.fromtimestamp(at, UTC)
        for name, (path, end) in files.items()
        if path is not None and (at := end(path))
    }
    return "; ".join(
        f"the certificate in {path!r} ({name}) expired at {end:%Y-%m-%dT%H:%M:%SZ}: replace the file"
        for (name, path), end in ends.items()
        if end <= now
    )


def _last_end(path: str) -> float:
    return max(_ends(path), default=0.0)


def _first_end(path: str) -> float:
    return next(iter(_ends(path)), 0.0)


def _ends(path: str) -> list[float]:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        return [not_after(ssl.PEM_cert_to_DER_cert(one)) for one in _CERTIFICATE.findall(text)]
    except (OSError, ValueError, IndexError):
        return []


def not_after(der: bytes) -> float:
    """The Unix time at which a certificate ends. Raises `ValueError` or `IndexError` if it is none."""
    whole = _content(der, 0, _SEQUENCE)
    at = _content(der, whole[0], _SEQUENCE)[0]
    if der[at] == _VERSION:
        at = _content(der, at)[1]
    for _ in ("serialNumber", "signature", "issuer"):
        at = _content(der, at)[1]
    at = _content(der, _content(der, at, _SEQUENCE)[0])[1]  # behind notBefore
    start, end = _content(der, at)
    form = "%y%m%d%H%M%SZ" if der[at] == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(der[start:end].decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _content(der: bytes, at: int, tag: int | None = None) -> tuple[int, int]:
    """Where the content of the element at `at` begins and ends."""
    if tag is not None and der[at] != tag:
        raise ValueError(f"tag {der[at]:#x} at {at}, not {tag:#x}")
    length, start = der[at + 1], at + 2
    if length >= 0x80:
        start, length = start + (length & 0x7F), int.from_bytes(der[start : start + (length & 0x7F)])
    return start, start + length
