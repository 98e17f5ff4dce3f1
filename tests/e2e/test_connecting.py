"""The page on connecting: its programs with TLS, passwords and a bucket, and its default time-outs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import lance
import pyarrow as pa
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from committerd.commands.append import append
from committerd.dev.parts import free_ports
from committerd_batch.committing import QueueOptions
from committerd_client import SyncCommitClient
from committerd_client.client import CONNECT_SECONDS
from committerd_client.connection import Connection
from harness.child import Launch
from harness.daemon import Daemon
from harness.kafka import KafkaBroker
from harness.s3 import S3Endpoint

PAGE = (Path(__file__).parents[2] / "docs" / "connecting.md").read_text(encoding="utf-8")
PASSWORD, CERTIFICATE, BUCKET = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def key_of(made: trustme.LeafCert) -> str:
    """The private key as PKCS 8, which Kafka takes."""
    key = load_pem_private_key(made.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, Path, dict[str, str]]]:
    """A Kafka, the folder with certificates, and what stands for the page's addresses."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    broker_cert, writer = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("writer@example.org")
    chain = "".join(one.bytes().decode() for one in broker_cert.cert_chain_pems)
    (folder / "broker.pem").write_text(key_of(broker_cert) + chain)
    (folder / "writer.pem").write_bytes(b"".join(one.bytes() for one in writer.cert_chain_pems))
    (folder / "writer.key").write_text(key_of(writer))
    plain, controller, with_certificate, with_password = free_ports(4)
    protocols = {"PLAINTEXT": plain, "SSL": with_certificate, "SASL_SSL": with_password}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in protocols.items())
    settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in protocols) + ",CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    with KafkaBroker(settings=settings, ports=[plain, controller, with_password]) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("writer", ScramMechanism.SCRAM_SHA_512, "known-to-all")]
        )
        admin.close()
        addresses = {"9093": with_certificate, "9094": with_password}
        yield broker, folder, {f"localhost:{one}": f"127.0.0.1:{port}" for one, port in addresses.items()}


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False, timeout=90)


def meant(text: str, values: dict[str, str]) -> str:
    for printed, real in values.items():
        assert printed in PAGE
        text = text.replace(printed, real)
    return text


@pytest.mark.parametrize("program", [PASSWORD, CERTIFICATE], ids=["password", "certificate"])
def test_a_secured_kafka_is_used_as_printed(
    program: str,
    secured: tuple[KafkaBroker, Path, dict[str, str]],
    dataset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launch: Launch,
) -> None:
    broker, folder, addresses = secured
    uri = str(tmp_path / f"{dataset}.lance")
    lance.write_dataset(pa.table({"id": [0], "name": ["Zoe"]}), uri)
    monkeypatch.setenv("KAFKA_PASSWORD", "known-to-all")
    values = {**addresses, "/tmp/events.lance": uri, "/etc/kafka": str(folder)}
    with Daemon(name=dataset, uri=uri, kafka=broker.bootstrap_servers, log=tmp_path / "daemon.log", launch=launch):
        done = run(meant(program, values))
        assert re.fullmatch(r"WriteResult\(version=2, num_inserted_rows=1, .*\)\n", done.stdout), done.stderr
    asked = "sasl_plain_password" if program is PASSWORD else "ssl_certfile"
    for option in ("ssl_cafile", asked):
        without = re.sub(rf'"{option}": .*', "", meant(program, values))
        refused = run(without.replace("kafka_options=security", "kafka_options=security, timeout=1"))
        assert refused.returncode == 1, f"Kafka asks for {option}"


@pytest.mark.s3
def test_a_table_in_a_bucket_is_used_as_printed(
    secured: tuple[KafkaBroker, Path, dict[str, str]],
    s3: S3Endpoint,
    dataset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launch: Launch,
) -> None:
    broker, _, _ = secured
    uri = f"s3://{s3.make_bucket()}/{dataset}.lance"
    monkeypatch.setenv("S3_KEY", s3.access_key)
    monkeypatch.setenv("S3_SECRET", s3.secret_key)
    values = {
        "localhost:9092": broker.bootstrap_servers,
        "s3://lake/events.lance": uri,
        "http://localhost:9000": s3.url,
        "us-east-1": s3.region,
    }
    settings = {
        "S3__ENDPOINT_URL": s3.url,
        "S3__REGION": s3.region,
        "S3__ACCESS_KEY_ID": s3.access_key,
        "S3__SECRET_ACCESS_KEY": s3.secret_key,
        "S3__ADDRESSING_STYLE": "path",
    }
    with Daemon(
        name=dataset,
        uri=uri,
        kafka=broker.bootstrap_servers,
        settings=settings,
        log=tmp_path / "daemon.log",
        launch=launch,
    ):
        done = run(meant(BUCKET, values))
    assert re.fullmatch(r"WriteResult\(version=1, num_inserted_rows=1, .*\)\n", done.stdout), done.stderr


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    defaults = {name: one.default for name, one in inspect.signature(SyncCommitClient).parameters.items()}
    calls: Callable[..., object] = SyncCommitClient.append
    (waiting,) = (one.default for one in append.params if isinstance(one, click.Option) and one.name == "timeout")
    table = dict(re.findall(r"^\| (.*?) \| (\d+)(?: s)?[ ,|]", PAGE, re.MULTILINE))
    assert {name: int(value) for name, value in table.items()} == {
        "`timeout` of a client": defaults["timeout"],
        "`connect_timeout`": CONNECT_SECONDS,
        "`close_timeout`": defaults["close_timeout"],
        "`attempts` of a call": inspect.signature(calls).parameters["attempts"].default,
        "`timeout` of the Spark, Ray and Daft writers": QueueOptions.__dataclass_fields__["timeout"].default,
        "`--timeout` of `committerd append`": waiting,
    }
    assert SyncCommitClient("b:1", dataset="d", timeout=15)._unstarted._connection.connect_timeout == 15
    made = Connection(bootstrap_servers=["b:1"], dataset="d", client_id="c", partition_key="p", max_record_bytes=1000)
    config = {**made.producer_config(), **made.consumer_config()}
    for name, value in re.findall(r"`(\w+_ms)` (\d+)", PAGE):
        assert config[name] == int(value), name
