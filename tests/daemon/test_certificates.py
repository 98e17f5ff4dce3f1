"""The metrics of this process' limits: the ends of its certificates, and its memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client import CollectorRegistry

from committerd import memory
from committerd.daemon.certificates import ends_of, expired_certificates, not_after
from committerd.daemon.process import track_process
from committerd.settings.load import Settings
from committerd.telemetry import Metrics

_LATER, _LATEST = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2055, 1, 1, tzinfo=UTC)
"""X.509 has another form for the years from 2050 on."""


def _settings(folder: Path, **kafka: Any) -> Settings:
    given = {"bootstrap_servers": "b:1", "security_protocol": "SSL", **kafka}
    return Settings(
        dataset={"name": "t", "uri": "s3://lake/t"},  # type: ignore[arg-type]  # pydantic makes the groups
        kafka=given,  # type: ignore[arg-type]
        s3={"ca_bundle": str(folder / "s3.pem")},  # type: ignore[arg-type]
    )


def _issued(end: datetime) -> bytes:
    issued = trustme.CA().issue_cert("client.test", not_after=end)
    return issued.cert_chain_pems[0].bytes()


@pytest.mark.parametrize("end", [_LATER, _LATEST])
def test_a_client_certificate_ends_when_its_own_does(end: datetime, tmp_path: Path) -> None:
    file = tmp_path / "client.pem"
    file.write_bytes(_issued(end) + _issued(end + timedelta(days=1)))
    assert ends_of(_settings(tmp_path, ssl_certfile=str(file)))["kafka_client"]() == end.timestamp()


def test_authorities_end_with_the_last_of_them(tmp_path: Path) -> None:
    file = tmp_path / "authorities.pem"
    file.write_bytes(_issued(_LATER) + _issued(_LATEST) + _issued(_LATER))
    assert ends_of(_settings(tmp_path, ssl_cafile=str(file)))["kafka_authorities"]() == _LATEST.timestamp()


def test_a_certificate_that_has_expired_is_named(tmp_path: Path) -> None:
    file, other = tmp_path / "client.pem", tmp_path / "ca.pem"
    file.write_bytes(_issued(_LATER))
    kafka = _settings(tmp_path, ssl_certfile=str(file), ssl_cafile=str(other)).kafka
    assert expired_certificates(kafka, lambda: _LATER - timedelta(seconds=1)) == ""
    said = f"the certificate in {str(file)!r} (kafka.ssl_certfile) expired at 2031-02-03T04:05:06Z: replace the file"
    assert expired_certificates(kafka, lambda: _LATER) == said
    other.write_bytes(_issued(_LATER))
    assert expired_certificates(kafka, lambda: _LATEST) == f"{said}; {said.replace('client.pem', 'ca.pem')}".replace(
        "ca.pem' (kafka.ssl_certfile)", "ca.pem' (kafka.ssl_cafile)"
    )


def test_a_file_that_is_none_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "s3.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    ends = ends_of(_settings(tmp_path))
    assert {label: end() for label, end in ends.items()} == {"s3_authorities": 0}
    (tmp_path / "s3.pem").unlink()
    ends = ends_of(_settings(tmp_path))
    assert {label: end() for label, end in ends.items()} == {"s3_authorities": 0}


def test_authorities_of_clouds_and_oauth_and_the_servers_certificate_have_an_end_too(tmp_path: Path) -> None:
    file = tmp_path / "authorities.pem"
    file.write_bytes(_issued(_LATER))
    settings = _settings(tmp_path, sasl_oauth_cafile=str(file))
    settings = settings.model_copy(update={"http": settings.http.model_copy(update={"tls_certfile": str(file)})})
    for label in ("oauth_authorities", "http_server"):
        assert ends_of(settings)[label]() == _LATER.timestamp()
    clouds = {name: getattr(settings, name).model_copy(update={"ca_bundle": str(file)}) for name in ("azure", "gcs")}
    ends = ends_of(settings.model_copy(update=clouds))
    assert {name: ends[f"{name}_authorities"]() for name in clouds} == dict.fromkeys(clouds, _LATER.timestamp())


@pytest.mark.parametrize("der", [b"", b"\x30", b"\x30\x80", b"\x02\x01\x00", b"\x30\x03\x30\x01\xa0", b"\x30\x84\xff"])
def test_what_is_no_certificate_is_refused(der: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        not_after(der)


def test_a_certificate_that_is_replaced_is_seen_at_the_next_scrape(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    track_process(_settings(tmp_path), Metrics(registry).process)
    for end in (_LATER, _LATEST):
        (tmp_path / "s3.pem").write_bytes(_issued(end))
        shown = registry.get_sample_value(
            "committerd_certificate_expiry_timestamp_seconds", {"certificate": "s3_authorities"}
        )
        assert shown == end.timestamp()


def test_the_memory_limit_is_that_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"]
    monkeypatch.setattr(memory, "_LIMITS", tuple(map(str, files)))
    assert memory.limit_bytes() == 0
    for file, text, limit in (
        (files[1], "9223372036854771712\n", 0),
        (files[1], "536870912\n", 536870912),
        (files[0], "max\n", 0),
        (files[0], "1073741824\n", 1073741824),
    ):
        file.write_text(text)
        assert memory.limit_bytes() == limit
