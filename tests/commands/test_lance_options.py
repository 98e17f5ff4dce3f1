"""Whatever settings, environment and AWS profile say of S3, pylance in `maintain` and `append` does as the committer.

Each case lets pylance write a table, and committerd's own store read it, in a bucket of its own: pylance keeps a client
for each bucket and options.
"""

from __future__ import annotations

import dataclasses
import os
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio
import lance
import pyarrow as pa
import pytest
import trustme

from committerd.commands.lance_options import client_access
from committerd.commands.system import stores_of
from committerd.errors import SettingsError
from committerd.settings.load import Settings, load_settings
from harness.s3 import KMS_KEY, S3Endpoint, Versitygw

pytestmark = [pytest.mark.pylance, pytest.mark.s3]

_REGION = "eu-test-7"
_ROWS = pa.table({"id": [1, 2, 3]})
_SETTING = "COMMITTERD_S3__"


class _Encrypted(Versitygw):
    """versitygw with TLS and a region of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        authority = trustme.CA()
        self.authorities = folder / "authorities.pem"
        self._certificate, self._key = folder / "server.pem", folder / "server.key"
        issued = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(str(self.authorities))
        issued.cert_chain_pems[0].write_to_path(str(self._certificate))
        issued.private_key_pem.write_to_path(str(self._key))

    def command(self, port: int) -> Sequence[str | Path]:
        encrypted: list[str | Path] = ["--cert", self._certificate, "--key", self._key]
        program, *rest = super().command(port)
        return [program, *encrypted, "--region", _REGION, *rest]

    @property
    def url(self) -> str:
        return super().url.replace("http://127.0.0.1", "https://localhost")

    def answers(self) -> bool:
        try:
            with anyio.from_thread.start_blocking_portal() as portal:
                portal.call(_handshake, self.url, str(self.authorities))
        except OSError:
            return False
        return True


async def _handshake(url: str, authorities: str) -> None:
    host, _, port = url.removeprefix("https://").rpartition(":")
    context = ssl.create_default_context(cafile=authorities)
    stream = await anyio.connect_tcp(host, int(port), tls=True, ssl_context=context, tls_standard_compatible=False)
    await stream.aclose()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Encrypted]:
    with _Encrypted(tmp_path_factory.mktemp("tls")) as running:
        yield running


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    """Where each fact stands. `{url}`, `{pem}`, `{key}` and `{secret}` are the server's."""

    environment: Mapping[str, str]
    profile: str = ""
    """The text of AWS' configuration file."""


_ALL = {
    f"{_SETTING}ENDPOINT_URL": "{url}",
    f"{_SETTING}REGION": _REGION,
    f"{_SETTING}CA_BUNDLE": "{pem}",
    f"{_SETTING}ACCESS_KEY_ID": "{key}",
    f"{_SETTING}SECRET_ACCESS_KEY": "{secret}",
}
_OURS = "aws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
_WRONG = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "wrong", "AWS_SESSION_TOKEN": "wrong"}


def _without(*names: str, **more: str) -> dict[str, str]:
    return {name: value for name, value in _ALL.items() if name.removeprefix(_SETTING) not in names} | more


_KEYS = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
CASES = {
    "all by settings": _Case(_ALL),
    "settings win over the environment": _Case(
        _ALL | _WRONG | {"AWS_REGION": "elsewhere", "AWS_ENDPOINT_URL": "https://127.0.0.1:1", "SSL_CERT_FILE": "/none"}
    ),
    "endpoint of the service": _Case(_without("ENDPOINT_URL", AWS_ENDPOINT_URL_S3="{url}")),
    "endpoint of all services": _Case(_without("ENDPOINT_URL", AWS_ENDPOINT_URL="{url}")),
    "endpoint of the profile": _Case(_without("ENDPOINT_URL"), "[default]\nendpoint_url = {url}\n"),
    "endpoint of the profile's services": _Case(
        _without("ENDPOINT_URL"), "[default]\nservices = here\n[services here]\ns3 =\n  endpoint_url = {url}\n"
    ),
    "region: AWS_REGION": _Case(_without("REGION", AWS_REGION=_REGION, AWS_DEFAULT_REGION="elsewhere")),
    "region: AWS_DEFAULT_REGION": _Case(_without("REGION", AWS_DEFAULT_REGION=_REGION)),
    "region of the profile": _Case(_without("REGION"), f"[default]\nregion = {_REGION}\n"),
    "authorities: AWS_CA_BUNDLE": _Case(_without("CA_BUNDLE", AWS_CA_BUNDLE="{pem}")),
    "authorities of the profile": _Case(_without("CA_BUNDLE"), "[default]\nca_bundle = {pem}\n"),
    "unchecked": _Case(_without("CA_BUNDLE", **{f"{_SETTING}TLS_VERIFY": "false"})),
    "keys of the environment": _Case(_without(*_KEYS, AWS_ACCESS_KEY_ID="{key}", AWS_SECRET_ACCESS_KEY="{secret}")),
    "keys of the default profile": _Case(_without(*_KEYS), f"[default]\n{_OURS}"),
    "keys of AWS_PROFILE": _Case(_without(*_KEYS, AWS_PROFILE="lake"), f"[profile lake]\n{_OURS}"),
    "keys of s3.profile": _Case(
        _without(*_KEYS, **_WRONG, **{f"{_SETTING}PROFILE": "lake"}),
        f"[default]\naws_access_key_id = nobody\naws_secret_access_key = wrong\n[profile lake]\n{_OURS}",
    ),
    "bucket in the path": _Case(_ALL | {f"{_SETTING}ADDRESSING_STYLE": "path"}),
}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without any variable of AWS, of committerd and of certificates; all are restored afterwards."""
    for name in [*os.environ, "SSL_CERT_FILE", "AWS_PROFILE", *_WRONG]:
        if name.startswith(("AWS_", "COMMITTERD_", "SSL_")):
            # Set first, so that what the code under test sets is taken back.
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("COMMITTERD_DATASET__NAME", "t")
    monkeypatch.setenv("COMMITTERD_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")
    return monkeypatch


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_pylance_reaches_the_table_as_the_committer_does(
    server: _Encrypted, case: _Case, alone: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = {
        "url": server.url,
        "pem": str(server.authorities),
        "key": server.access_key,
        "secret": server.secret_key,
    }
    bucket = f"case-{time.time_ns()}"
    (server.data / bucket).mkdir()
    (tmp_path / "config").write_text(_filled(case.profile, facts))
    for name, value in case.environment.items():
        alone.setenv(name, _filled(value, facts))
    alone.setenv("COMMITTERD_DATASET__URI", f"s3://{bucket}/t.lance")
    settings = load_settings()

    access = client_access(settings)
    lance.write_dataset(_ROWS, settings.dataset.uri, storage_options=access.storage_options)

    assert len(anyio.run(_versions, settings)) == 1
    assert lance.dataset(settings.dataset.uri, storage_options=access.storage_options).to_table() == _ROWS


def test_each_setting_of_s3_is_translated_or_is_the_committers_own(alone: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A new setting must be thought of here."""
    bundle = tmp_path / "authorities.pem"
    bundle.touch()
    alone.setenv("COMMITTERD_DATASET__URI", "s3://lake/t.lance")
    every = {
        "endpoint_url": "https://s3.test",
        "region": "r",
        "addressing_style": "path",
        "access_key_id": "k",
        "secret_access_key": "s",
        "session_token": "t",
        "profile": None,  # excludes keys; has a case above
        "tls_verify": None,  # excludes ca_bundle; has a case above
        "ca_bundle": str(bundle),
        "server_side_encryption": "aws:kms",
        "sse_kms_key_id": "id",
        "checksum_algorithm": "SHA256",
        "connect_timeout_seconds": "1.5",
        "read_timeout_seconds": "2",
        "attempts": "4",
        "connections_max": None,  # the committer's own
    }
    assert set(every) == set(type(load_settings().s3).model_fields)
    for name, value in every.items():
        if value is not None:
            alone.setenv(f"{_SETTING}{name}".upper(), value)
    assert client_access(load_settings()).storage_options == {
        "aws_endpoint": "https://s3.test",
        "aws_region": "r",
        "aws_virtual_hosted_style_request": "false",
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_session_token": "t",
        "aws_server_side_encryption": "aws:kms",
        "aws_sse_kms_key_id": "id",
        "aws_checksum_algorithm": "sha256",
        "connect_timeout": "1500ms",
        "read_timeout": "2000ms",
        "client_max_retries": "3",
    }
    assert os.environ["SSL_CERT_FILE"] == str(bundle)


@pytest.mark.parametrize(
    ("environment", "endpoint", "virtual"),
    [
        ({}, None, True),
        ({"ADDRESSING_STYLE": "path"}, None, False),
        ({"ADDRESSING_STYLE": "virtual"}, None, True),
        ({"ENDPOINT_URL": "https://s3.test:9"}, "https://s3.test:9", False),
        # object_store takes the endpoint of virtual-hosted-style requests with the bucket in it.
        ({"ENDPOINT_URL": "https://s3.test:9", "ADDRESSING_STYLE": "virtual"}, "https://lake.s3.test:9", True),
    ],
)
def test_the_bucket_is_where_botocore_puts_it(
    environment: Mapping[str, str], endpoint: str | None, virtual: bool, alone: pytest.MonkeyPatch
) -> None:
    alone.setenv("COMMITTERD_DATASET__URI", "s3+ddb://lake/t.lance?ddbTableName=m")
    for name, value in environment.items():
        alone.setenv(f"{_SETTING}{name}", value)
    options = client_access(load_settings()).storage_options
    assert options.get("aws_endpoint") == endpoint
    assert options["aws_virtual_hosted_style_request"] == str(virtual).lower()


def test_what_is_not_there_is_named(alone: pytest.MonkeyPatch) -> None:
    alone.setenv("COMMITTERD_DATASET__URI", "s3://lake/t.lance")
    alone.setenv(f"{_SETTING}CA_BUNDLE", "/no/such.pem")
    with pytest.raises(SettingsError, match=r"there is no file '/no/such\.pem'"):
        client_access(load_settings())
    alone.delenv(f"{_SETTING}CA_BUNDLE")
    alone.setenv(f"{_SETTING}PROFILE", "nowhere")
    with pytest.raises(SettingsError, match=r"s3\.profile: .*nowhere"):
        client_access(load_settings())


def test_a_table_on_a_file_system_needs_nothing_of_aws(alone: pytest.MonkeyPatch) -> None:
    alone.setenv("COMMITTERD_DATASET__URI", "/tmp/t.lance")
    alone.setenv(f"{_SETTING}PROFILE", "nowhere")
    assert client_access(load_settings()).storage_options == {}


def test_both_write_encrypted_objects_with_checksums(minio: S3Endpoint, alone: pytest.MonkeyPatch) -> None:
    """In a bucket with object lock, where AWS demands the checksum."""
    bucket = f"locked-{time.time_ns()}"
    client = minio.client()
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    retention = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    client.put_object_lock_configuration(
        Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": retention}
    )
    for name, value in _settings_of(minio).items():
        alone.setenv(f"{_SETTING}{name}", value)
    alone.setenv("COMMITTERD_DATASET__URI", f"s3://{bucket}/t.lance")
    settings = load_settings()
    lance.write_dataset(_ROWS, settings.dataset.uri, storage_options=client_access(settings).storage_options)
    anyio.run(_write_and_copy, settings)

    written = client.list_objects_v2(Bucket=bucket)["Contents"]
    assert len(written) == 6
    for found in written:
        head = client.head_object(Bucket=bucket, Key=found["Key"], ChecksumMode="ENABLED")
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"][-6:]) == ("aws:kms", KMS_KEY), found["Key"]
        assert "ChecksumSHA256" in head, found["Key"]


def _settings_of(endpoint: S3Endpoint) -> dict[str, str]:
    return {
        "ENDPOINT_URL": endpoint.url,
        "ACCESS_KEY_ID": endpoint.access_key,
        "SECRET_ACCESS_KEY": endpoint.secret_key,
        "SERVER_SIDE_ENCRYPTION": "aws:kms",
        "SSE_KMS_KEY_ID": KMS_KEY,
        "CHECKSUM_ALGORITHM": "SHA256",
    }


async def _versions(settings: Settings) -> Sequence[str]:
    async with stores_of(settings) as stores:
        return await stores.open(settings.dataset.uri).list("_versions/")


async def _write_and_copy(settings: Settings) -> None:
    async with stores_of(settings) as stores:
        store = stores.open(settings.dataset.uri)
        await store.put("ours/put", b"1")
        await store.put_if_absent("ours/created", b"2")
        await store.copy("ours/put", "ours/copied")


def _filled(text: str, facts: Mapping[str, str]) -> str:
    return text.format(**facts)
