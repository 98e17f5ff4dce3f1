"""The page on connecting: its programs with TLS, passwords and a bucket, and its default time-outs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import lance
import pyarrow as pa
import pytest

from committerd.commands.append import append
from committerd_batch.committing import QueueOptions
from committerd_client import SyncCommitClient
from committerd_client.client import CONNECT_SECONDS
from committerd_client.connection import Connection
from harness.child import Launch
from harness.daemon import Daemon
from harness.s3 import S3Endpoint
from harness.secured_kafka import PASSWORDS, SecuredKafka
from tests.kafka.acls import allow, listed

PAGE = (Path(__file__).parents[2] / "docs" / "connecting.md").read_text(encoding="utf-8")
PASSWORD, CERTIFICATE, TOKEN, BUCKET = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False, timeout=90)


def meant(text: str, values: dict[str, str]) -> str:
    for printed, real in values.items():
        assert printed in PAGE
        text = text.replace(printed, real)
    return text


@pytest.mark.parametrize("program", [PASSWORD, CERTIFICATE, TOKEN], ids=["password", "certificate", "token"])
def test_a_secured_kafka_is_used_as_printed(
    program: str,
    secured_kafka: SecuredKafka,
    dataset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launch: Launch,
) -> None:
    allow(secured_kafka.broker, listed("a client", dataset), user="writer")
    uri = str(tmp_path / f"{dataset}.lance")
    lance.write_dataset(pa.table({"id": [0], "name": ["Zoe"]}), uri)
    for name in ("KAFKA_PASSWORD", "OAUTH_SECRET"):
        monkeypatch.setenv(name, PASSWORDS["writer"])
    values = {
        "localhost:9093": secured_kafka.servers("mTLS"),
        "localhost:9094": secured_kafka.servers("SCRAM-SHA-512"),
        "https://idp.example.com/oauth2/token": secured_kafka.oidc.token_url,
        "/tmp/events.lance": uri,
        "/etc/kafka": str(secured_kafka.folder),
    }
    with Daemon(
        name=dataset, uri=uri, kafka=secured_kafka.bootstrap_servers, log=tmp_path / "daemon.log", launch=launch
    ):
        done = run(meant(program, values))
        assert re.fullmatch(r"WriteResult\(version=2, num_inserted_rows=1, .*\)\n", done.stdout), done.stderr
    asked = {PASSWORD: "sasl_plain_password", CERTIFICATE: "ssl_certfile", TOKEN: "sasl_oauth_client_secret"}
    for option in ("ssl_cafile", asked[program]):
        without = re.sub(rf'"{option}": .*', "", meant(program, values))
        refused = run(without.replace("kafka_options=security", "kafka_options=security, timeout=1"))
        assert refused.returncode == 1, f"Kafka asks for {option}"


@pytest.mark.s3
def test_a_table_in_a_bucket_is_used_as_printed(
    secured_kafka: SecuredKafka,
    s3: S3Endpoint,
    dataset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launch: Launch,
) -> None:
    uri = f"s3://{s3.make_bucket()}/{dataset}.lance"
    monkeypatch.setenv("S3_KEY", s3.access_key)
    monkeypatch.setenv("S3_SECRET", s3.secret_key)
    values = {
        "localhost:9092": secured_kafka.bootstrap_servers,
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
        kafka=secured_kafka.bootstrap_servers,
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
