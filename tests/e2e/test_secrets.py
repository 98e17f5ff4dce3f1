"""No secret is in any output at level debug: of the daemon, a command or a client, whether it works or fails."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import BaseModel, SecretStr

from committerd.settings.load import Settings
from harness.child import Launch
from harness.daemon import Daemon
from harness.scene import STAYS, Scene, until
from harness.secured_kafka import PASSWORDS, SecuredKafka, Way
from tests.commands.running import run
from tests.kafka.acls import allow, listed

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

MARK = "m4rked"
SHORT = {"KAFKA__BOOTSTRAP_TIMEOUT_MS": "2000", "KAFKA__REQUEST_TIMEOUT_MS": "2000", "LOG__LEVEL": "debug"}


def secrets_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The settings that are secret, with their environment names without the prefix."""
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from secrets_of(kind, f"{prefix}{name}__".upper())
        elif SecretStr in (kind, *getattr(kind, "__args__", ())):
            yield f"{prefix}{name}".upper()


SECRETS = {name: f"{MARK}-{name}" for name in secrets_of(Settings)}
OF_STORES = {name: text for name, text in SECRETS.items() if not name.startswith("KAFKA__")}


NO_STORE = {
    **{name: text for name, text in OF_STORES.items() if name.startswith("S3__")},
    "DATASET__URI": "s3://lake/t.lance",
    "S3__ENDPOINT_URL": "http://127.0.0.1:1",
    "S3__REGION": "eu-central-1",
    "S3__ATTEMPTS": "1",
}
_AZURE = {
    "DATASET__URI": "az://lake/t.lance",
    "AZURE__ACCOUNT_NAME": "lake",
    "AZURE__ENDPOINT_URL": "http://127.0.0.1:1",
    "AZURE__ATTEMPTS": "1",
}


def _service_account(private_key: str) -> dict[str, str]:
    """Settings with a service account that has this key. Its server for tokens does not respond."""
    account = {
        "type": "service_account",
        "client_email": "committer@lake.test",
        "private_key_id": MARK,
        "private_key": private_key,
        "token_uri": "http://127.0.0.1:1",
    }
    return {
        "DATASET__URI": "gs://lake/t.lance",
        "GCS__ENDPOINT_URL": "http://127.0.0.1:1",
        "GCS__ATTEMPTS": "1",
        "GCS__SERVICE_ACCOUNT_KEY": json.dumps(account),
    }


STORES = {
    "S3": NO_STORE,
    "a key of Azure": _AZURE | {"AZURE__ACCOUNT_KEY": MARK * 2},
    "a SAS token of Azure": _AZURE | {"AZURE__SAS_TOKEN": f"sv=2024-08-04&sp=rw&sig={MARK}"},
    "a login to Azure": _AZURE
    | {
        "AZURE__CLIENT_ID": "committer",
        "AZURE__TENANT_ID": "lake",
        "AZURE__CLIENT_SECRET": MARK,
        "AZURE__AUTHORITY_HOST": "http://127.0.0.1:1",
    },
    "a key of Google of no form": _service_account(f"-----BEGIN PRIVATE KEY-----\n{MARK}\n-----END PRIVATE KEY-----\n"),
}
"""Settings with marked secrets, whose store does not respond, or whose login is of no form."""
COMMANDS = (
    "status",
    "pause --reason tested",
    "maintain --once",
    "audit",
    "recreate",
    "app list",
    "position show",
    "probe",
)


@pytest.fixture
def scene(secured_kafka: SecuredKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Scene]:
    for row in ("`committerd run`", "... if it creates"):
        allow(secured_kafka.broker, listed(row, dataset), user="committer")
    with Scene(kafka=secured_kafka.bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as made:
        made.table.create()
        yield made


def shown(daemon: Daemon) -> str:
    """All that a running daemon shows: its log, pages, and command line."""
    pages = []
    for path in ("/metrics", "/livez", "/readyz", "/", "/api/status", "/api/transactions"):
        with urllib.request.urlopen(daemon.url() + path) as response:
            pages.append(response.read().decode())
    assert daemon._process is not None
    process = psutil.Process(daemon._process.pid)
    return "\n".join([daemon.log.read_text(), *pages, *process.cmdline(), process.name()])


def test_each_secret_is_named_here() -> None:
    assert {
        "KAFKA__SSL_PASSWORD",
        "KAFKA__PROXY_URL",
        "KAFKA__SASL_OAUTH_CLIENT_SECRET",
        "S3__SECRET_ACCESS_KEY",
    } <= SECRETS.keys()
    assert len(SECRETS) >= 10


@pytest.mark.parametrize("way", ["SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"])
def test_a_daemon_at_work_shows_no_secret(way: Way, scene: Scene, secured_kafka: SecuredKafka) -> None:
    stores = {name: text for name, text in OF_STORES.items() if name.startswith("S3__")}
    daemon = scene.started(
        **STAYS, LOG__LEVEL="debug", LOG__TRANSACTIONS="all", **stores, **secured_kafka.settings(way)
    )
    scene.committed()
    seen = shown(daemon)
    assert PASSWORDS["committer"] not in seen
    if way == "OAUTHBEARER":
        assert secured_kafka.oidc.given
        assert not [token for token in secured_kafka.oidc.given if token in seen]
        login = f"committer:{quote_plus(PASSWORDS['committer'])}"
        assert base64.b64encode(login.encode()).decode() not in seen
    assert MARK not in seen
    assert '"level": "info"' in seen


def failing(kafka: SecuredKafka, folder: Path) -> Mapping[str, Mapping[str, str]]:
    """Settings with which nothing works, and whose secrets are marked."""
    key = load_pem_private_key((kafka.folder / "committer.key").read_bytes(), None)
    encrypted = folder / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"another password"))
    )
    marked = {name: text for name, text in SECRETS.items() if name.startswith("KAFKA__SASL_PLAIN")}
    scram = kafka.settings("SCRAM-SHA-512") | marked
    return {
        "wrong password": scram,
        "wrong password for PLAIN": kafka.settings("PLAIN") | marked,
        "no TLS there": scram | {"KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers},
        "TLS that is not trusted": {name: text for name, text in scram.items() if name != "KAFKA__SSL_CAFILE"},
        "wrong secret of OAuth": kafka.settings("OAUTHBEARER")
        | {"KAFKA__SASL_OAUTH_CLIENT_SECRET": SECRETS["KAFKA__SASL_OAUTH_CLIENT_SECRET"]},
        "wrong password of the key": kafka.settings("mTLS")
        | {"KAFKA__SSL_KEYFILE": str(encrypted), "KAFKA__SSL_PASSWORD": SECRETS["KAFKA__SSL_PASSWORD"]},
        "settings that contradict": scram | {"KAFKA__SECURITY_PROTOCOL": "PLAINTEXT"},
        "settings of no form": scram | {"KAFKA__SASL_MECHANISM": "NONE", **OF_STORES},
        "a proxy with a login": scram | {"KAFKA__PROXY_URL": f"socks5://me:{MARK}@127.0.0.1:1"},
        "a proxy of no form": scram | {"KAFKA__PROXY_URL": f"me:{MARK}@127.0.0.1:1"},
        "no store there": NO_STORE,
    }


CASES = (
    "wrong password", "wrong password for PLAIN", "no TLS there", "TLS that is not trusted", "wrong secret of OAuth",
    "wrong password of the key", "settings that contradict", "settings of no form", "a proxy with a login",
    "a proxy of no form", "no store there",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_command_that_fails_prints_no_secret(
    case: str, scene: Scene, secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    settings = failing(secured_kafka, tmp_path)[case]
    assert any(MARK in text for text in settings.values())
    done = run(scene, "status", **{**SHORT, **settings})
    assert done.code != 0
    assert MARK not in done.out + done.err
    assert MARK not in run(scene, "run", "--help", **settings).out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("store", STORES)
def test_a_command_whose_store_fails_prints_no_secret(store: str, command: str, scene: Scene) -> None:
    done = run(scene, *command.split(), **{**SHORT, **STORES[store]})
    assert done.code != 0
    assert STORES[store]["DATASET__URI"].removesuffix("/t.lance") in done.out + done.err
    assert MARK not in done.out + done.err


def test_a_login_to_google_that_fails_prints_no_line_of_its_key(scene: Scene) -> None:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    done = run(scene, "status", **{**SHORT, **_service_account(text)})
    assert done.code != 0
    assert "gs://lake/t.lance" in done.out + done.err
    assert not [line for line in text.splitlines() if line in done.out + done.err]


@pytest.mark.parametrize("command", ["maintain --once", "ingest --dry-run", "heartbeat --timeout 8"])
@pytest.mark.parametrize(
    ("case", "why"), [("wrong password", "credentials"), ("wrong secret of OAuth", "invalid_client")]
)
def test_a_command_without_a_login_to_kafka_prints_no_secret(
    case: str, why: str, command: str, scene: Scene, secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    registry = {
        "INGEST__TOPICS": "orders",
        "INGEST__FORMAT": "avro",
        "INGEST__REGISTRY_URL": "http://127.0.0.1:1",
        "INGEST__REGISTRY_USERNAME": "reader",
        "INGEST__REGISTRY_PASSWORD": MARK,
    }
    done = run(scene, *command.split(), **{**SHORT, **registry, **failing(secured_kafka, tmp_path)[case]})
    assert done.code != 0
    assert why in done.out + done.err
    assert MARK not in done.out + done.err


@pytest.mark.parametrize(
    "case",
    ["wrong password", "wrong secret of OAuth", "no TLS there", "wrong password of the key", "a proxy with a login"],
)
def test_a_daemon_that_fails_logs_no_secret(
    case: str, scene: Scene, secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    daemon = scene.daemon(**{**SHORT, **failing(secured_kafka, tmp_path)[case]})
    until(lambda: not daemon.running(), seconds=120)
    assert daemon.code != 0
    said = daemon.log.read_text()
    assert said
    assert MARK not in said


@pytest.mark.parametrize(
    ("way", "option"), [("PLAIN", "sasl_plain_password"), ("OAUTHBEARER", "sasl_oauth_client_secret")]
)
@pytest.mark.parametrize("secret", [PASSWORDS["writer"], MARK], ids=["right", "wrong"])
def test_a_client_at_level_debug_logs_no_secret(
    way: Way, option: str, secret: str, secured_kafka: SecuredKafka
) -> None:
    options = secured_kafka.options(way, "writer") | {option: secret}
    program = f"""
import logging
logging.basicConfig(level=logging.DEBUG)
from committerd_client import SyncCommitClient
servers, options = {secured_kafka.servers(way)!r}, {options!r}
with SyncCommitClient(servers, dataset="none", connect_timeout=2, kafka_options=options):
    pass
"""
    ran = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False, timeout=90)
    assert "KafkaUnavailable" in ran.stderr
    assert secret not in ran.stderr + ran.stdout
