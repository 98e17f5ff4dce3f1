"""A Kafka with an authorizer, by each way to encrypt and to log in: committer, client and commands, with their ACLs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kafka.admin import ACLOperation, ResourceType

from committerd_client import KafkaUnavailable, SyncCommitClient
from committerd_common.messages import Status
from harness.certificates import Authority
from harness.child import Launch
from harness.scene import STAYS, Scene, until
from harness.secured_kafka import SecuredKafka, Way
from tests.commands.running import run
from tests.kafka.acls import allow, forbid, listed, names_missing
from tests.kafka.staging import delete_topic, settings_for

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

WAYS: list[Way] = ["TLS", "mTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
SECRETS = ("sasl_plain_password", "sasl_oauth_client_secret")
IN_ITS_POD = ("`heartbeat`", "`dead list`", "`dead replay`", "`topics transactions`")
"""Rows of the page with what the committer's login needs for every runbook, in addition to its own."""


@pytest.fixture
def scene(secured_kafka: SecuredKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Scene]:
    """A dataset with a table. A committer and a client may do what the page says, and no more."""
    for user, rows in (("committer", ("`committerd run`", "... if it creates")), ("writer", ("a client",))):
        for row in rows:
            allow(secured_kafka.broker, listed(row, dataset), user=user)
    with Scene(kafka=secured_kafka.bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as made:
        made.table.create()
        yield made


def client_of(scene: Scene, kafka: SecuredKafka, way: Way, *, seconds: float = 120) -> SyncCommitClient:
    return SyncCommitClient(
        kafka.servers(way),
        dataset=scene.name,
        dataset_uri=scene.table.uri,
        kafka_options=kafka.options(way, "writer"),
        connect_timeout=seconds,
    )


@pytest.mark.parametrize("way", WAYS)
def test_committer_and_client_come_each_way(way: Way, scene: Scene, secured_kafka: SecuredKafka) -> None:
    daemon = scene.started(**STAYS, **secured_kafka.settings(way))
    with client_of(scene, secured_kafka, way) as client:
        assert client.commit(scene.table.append()).version == scene.table.version == 2
        until(lambda: client.status().kafka_responds)  # on a busy machine, a look may know less
    daemon.stop()
    assert daemon.code == 0


def test_tokens_are_renewed(scene: Scene, secured_kafka: SecuredKafka) -> None:
    """The broker closes a connection whose token has expired."""
    oidc = secured_kafka.oidc
    oidc.lifetime_seconds = 4
    oidc.asked.clear()
    try:
        scene.started(**STAYS, **secured_kafka.settings("OAUTHBEARER"))
        until(lambda: len(oidc.asked) > 2)
        scene.committed()
    finally:
        oidc.lifetime_seconds = 3600


def test_new_certificates_need_no_restart_and_an_expired_one_is_named(
    secured_kafka: SecuredKafka, scene: Scene, tmp_path: Path
) -> None:
    """Whoever connects reads the files anew."""
    broker, foreign = secured_kafka.broker, Authority(tmp_path, "foreign")
    settings = secured_kafka.settings("mTLS")
    files = {name: tmp_path / f"own-{name}.pem" for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile")}
    given = {name: Path(settings[f"KAFKA__{name.upper()}"]).read_bytes() for name in files}
    for name, file in files.items():
        file.write_bytes(given[name])
    daemon = scene.started(**settings | {f"KAFKA__{name.upper()}": str(file) for name, file in files.items()})
    expired = secured_kafka.authority.issue("committer", ends=datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC), file="expired")
    files["ssl_certfile"].write_bytes(expired.chain.read_bytes())
    files["ssl_keyfile"].write_bytes(expired.key.read_bytes())
    broker.kill()
    broker.start()
    said = f"the certificate in {str(files['ssl_certfile'])!r} (kafka.ssl_certfile) expired at 2025-01-02T03:04:05Z"
    until(lambda: said in daemon.ready()[1], seconds=120)
    for name, file in files.items():
        file.write_bytes(given[name])
    daemon.wait_ready(text="active")
    scene.committed()

    files["ssl_cafile"].write_bytes(foreign.file.read_bytes())
    broker.kill()
    broker.start()
    until(lambda: any("certificate verify failed" in str(line) for line in daemon.lines()))
    files["ssl_cafile"].write_bytes(given["ssl_cafile"])
    scene.committed()
    assert len(list(daemon.lines("daemon.start"))) == 1


def test_each_command_comes_with_a_login_over_tls(scene: Scene, secured_kafka: SecuredKafka, tmp_path: Path) -> None:
    """In the committer's Pod, with its login and the rights that the page gives it there."""
    settings = secured_kafka.settings("SCRAM-SHA-512")
    for row in IN_ITS_POD:
        allow(secured_kafka.broker, listed(row, scene.name), user="committer")
    scene.started(**STAYS, **settings)
    (invalid,) = scene.ask(b"no transaction")
    assert invalid.status == Status.INVALID
    scene.ask(scene.table.append(), app_id="query", app_version="1")
    rows = tmp_path / "rows.csv"
    rows.write_text("id\n1000000\n")
    for words in (
        ["topics", "check"],
        ["topics", "transactions"],
        ["status"],
        ["heartbeat"],
        ["append", scene.table.uri, str(rows), "--name", scene.name],
        ["position", "show"],
        ["dead", "list"],
        ["dead", "show", "0"],
        ["app", "list"],
        ["app", "release", "query", "--apply", "--reason", "tested"],
        ["audit"],
        ["maintain", "--once"],
    ):
        done = run(scene, *words, **settings)
        assert done.code == 0, f"{words}\n{done.out}\n{done.err}"
    assert 1_000_000 in scene.table.ids()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("`committerd run`", ["position", "show"]),
        ("`audit`", ["audit"]),
        ("... if it creates", ["topics", "create"]),
        ("`topics transactions`", ["topics", "transactions"]),
    ],
)
def test_a_command_without_one_of_its_rights_names_it(
    row: str, words: Sequence[str], secured_kafka: SecuredKafka, dataset: str, tmp_path: Path
) -> None:
    """A topic that may not be read or written may not be described either."""
    settings = secured_kafka.settings("SCRAM-SHA-512")
    rights = listed(row, dataset)
    with Scene(kafka=secured_kafka.bootstrap_servers, name=dataset, folder=tmp_path) as scene:
        scene.table.create()
        assert run(scene, "topics", "create").code == 0
        for right in rights:
            allow(secured_kafka.broker, [one for one in rights if one != right], user="committer")
            operation, resource, name = right
            if operation is ACLOperation.CREATE:
                delete_topic(name, settings_for(secured_kafka.bootstrap_servers))
            done = run(scene, *words, **settings)
            if resource is ResourceType.TRANSACTIONAL_ID:
                assert done.code == 0  # none is open
                continue
            assert done.code != 0, right
            assert names_missing(right, done.out + done.err), (right, done)
            for one in rights:
                forbid(secured_kafka.broker, one, user="committer")
        allow(secured_kafka.broker, rights, user="committer")
        assert run(scene, *words, **settings).code == 0


def test_a_client_without_one_of_its_rights_names_it(scene: Scene, secured_kafka: SecuredKafka) -> None:
    scene.started(**STAYS)
    for right in listed("a client", scene.name):
        forbid(secured_kafka.broker, right, user="writer")
        operation, _, name = right
        told = ""
        for seconds in (8, 30, 90):  # on a busy machine, a short time-out knows less
            with (
                pytest.raises(KafkaUnavailable) as raised,
                client_of(scene, secured_kafka, "SCRAM-SHA-512", seconds=seconds),
            ):
                pass
            told = str(raised.value)
            if "has no ACL" in told:
                break
        assert re.search(f"topic '{name}' .* has no ACL {operation.name.title()} on it", told)
        allow(secured_kafka.broker, [right], user="writer")


@pytest.mark.parametrize(
    ("way", "without", "said"),
    [
        ("mTLS", ("ssl_certfile", "ssl_keyfile"), "_CERTIFICATE"),
        ("TLS", ("ssl_cafile",), "unable to get local issuer certificate"),
        ("PLAIN", ("sasl_plain_password",), "Invalid username or password"),
        ("SCRAM-SHA-512", ("sasl_plain_password",), "due to invalid credentials"),
        ("OAUTHBEARER", ("sasl_oauth_client_secret",), "invalid_client"),
        ("OAUTHBEARER", ("sasl_oauth_cafile",), "Name the file of its authority in sasl_oauth_cafile"),
    ],
)
def test_who_is_not_let_in_is_told_why(
    way: Way, without: Sequence[str], said: str, scene: Scene, secured_kafka: SecuredKafka
) -> None:
    """Instead of none, a wrong password or secret is given."""
    options = secured_kafka.options(way, "writer")
    given = {name: "gue55ed" if name in without and name in SECRETS else text for name, text in options.items()}
    given = {name: text for name, text in given.items() if name not in without or text == "gue55ed"}
    servers = secured_kafka.servers(way)
    settings = {f"KAFKA__{name.upper()}": text for name, text in given.items()} | {"KAFKA__BOOTSTRAP_SERVERS": servers}
    told = list[str]()
    for seconds in (2, 20, 60):  # on a busy machine, a short time-out knows less
        limits = {"KAFKA__REQUEST_TIMEOUT_MS": f"{seconds}000"}
        ran = run(scene, "status", **settings, **limits)
        assert ran.code == 1
        # In a process of its own, because commands repair kafka-python for the whole process.
        connect = f"SyncCommitClient({servers!r}, dataset='t', kafka_options={given!r}, connect_timeout={seconds})"
        program = f"from committerd_client import SyncCommitClient\nwith {connect}:\n    pass"
        client = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
        )
        told = [ran.out, client.stderr[client.stderr.rindex("KafkaUnavailable") :]]
        if all(said in text for text in told):
            break
    assert all(said in text and servers in text and "gue55ed" not in text for text in told), told
