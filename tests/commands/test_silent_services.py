"""Every command, while Kafka or the store hangs: it names who does not answer, and ends.

It says so after `committerd.waiting.SILENT_SECONDS` (4 s), which the tests shorten, and with them the time-outs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from committerd import waiting
from committerd_common.messages import Transaction
from harness.kafka import KafkaBroker, RunningKafka
from harness.s3 import S3Endpoint
from harness.scene import Scene
from harness.toxiproxy import Toxiproxy
from tests.commands.running import commands, run

_UUID = "3f0c6b1e-58c3-4f57-9b9e-0a4f0b8f8f3a"
_SHORT = {"KAFKA__REQUEST_TIMEOUT_MS": "3000", "KAFKA__DELIVERY_TIMEOUT_MS": "3000", "KAFKA__FETCH_MAX_WAIT_MS": "100"}
_COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "explain": ("explain", _UUID),
    "tail": ("tail",),
    "audit": ("audit",),
    "dead list": ("dead", "list"),
    "dead show": ("dead", "show", "0"),
    "dead replay": ("dead", "replay", "0"),
    "dead drop": ("dead", "drop", "--below", "0"),
    "topics create": ("topics", "create"),
    "topics check": ("topics", "check"),
    "topics transactions": ("topics", "transactions"),
    "datasets": ("datasets",),
    "datasets find": ("datasets", "find", ".*", "--uri", "/lake/{name}.lance"),
    "probe": ("probe", "URI"),
    "heartbeat": ("heartbeat", "--timeout", "3"),
    "maintain": ("maintain", "--once"),
    "pause": ("pause", "--reason", "tested"),
    "resume": ("resume",),
    "position show": ("position", "show"),
    "position adopt": ("position", "adopt"),
    "position rewind": ("position", "rewind", "--offset", "0"),
    "app list": ("app", "list"),
    "app release": ("app", "release", "query"),
    "recreate": ("recreate",),
    "append": ("append", "URI", "FILE"),
    "commit": ("commit", "URI", "STAGED"),
    "promote": ("promote", "branch", "URI"),
    "ingest move": ("ingest", "move", "topic", "0", "--offset", "0"),
    "ingest replay": ("ingest", "replay"),
    "ingest settle": ("ingest", "settle", "files", "--rows", "there"),
}
_SETTINGS = {
    "datasets find": {"DAEMON__DATASETS_FILE": "FOLDER/datasets.json"},
    "ingest move": {"INGEST__TOPICS": "topic"},
    "ingest replay": {"INGEST__TOPICS": "topic", "INGEST__ON_ERROR": "dead-letter"},
    "ingest settle": {"INGEST__SOURCE": "files", "INGEST__FOLDER": "FOLDER"},
}
"""What a command needs besides table and Kafka."""
_DAEMONS = {"run", "dev", "ingest"}
"""They wait until the service is back, and say so in their logs and on /readyz. `ingest` has tests of its own."""
_WITHOUT_KAFKA = {"probe", "pause", "resume", "app list", "app release", "commit", "promote", "ingest settle"}
_WITHOUT_STORE = {
    *("tail", "dead list", "dead show", "dead drop", "dead replay"),  # replay asks the table about letters that exist
    *("topics create", "topics check", "topics transactions", "datasets", "datasets find"),
    *("ingest move", "ingest replay"),  # they ask the table about topics that exist
}
_ONE_OF_EACH_KIND = {"status", "dead replay", "topics create", "maintain", "append"}
"""The commands that `make test` runs: the others ask in the same ways, and each waits until its requests time out."""


def _each(names: set[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in _ONE_OF_EACH_KIND else pytest.mark.long) for name in sorted(names)]


def test_the_matrix_has_every_command() -> None:
    assert commands() == {*_COMMANDS, *_DAEMONS}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SILENT_SECONDS", 0.5)


@pytest.fixture(scope="module")
def frozen_kafka() -> Iterator[KafkaBroker]:
    """A broker that takes connections and does not answer."""
    with KafkaBroker() as broker:
        broker.freeze()
        yield broker
        broker.thaw()


@pytest.fixture(scope="module")
def hanging_store(s3: S3Endpoint, toxiproxy: Toxiproxy) -> Iterator[str]:
    """The URL of an S3 server that takes connections and requests, and does not answer."""
    proxy = toxiproxy.proxy(s3.url)
    proxy.add("timeout", timeout=0)
    yield proxy.url
    proxy.close()


def _words(name: str, scene: Scene, uri: str) -> list[str]:
    file = scene.folder / "rows.csv"
    file.write_text("id\n1\n")
    staged = scene.folder / "staged"
    staged.write_bytes(Transaction(uuid=_UUID, append=Transaction.Append()).SerializeToString())
    return [{"URI": uri, "FILE": str(file), "STAGED": str(staged)}.get(word, word) for word in _COMMANDS[name]]


def _settings(name: str, folder: Path) -> dict[str, str]:
    return {key: text.replace("FOLDER", str(folder)) for key, text in _SETTINGS.get(name, {}).items()}


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.parametrize("name", _each(_COMMANDS.keys() - _WITHOUT_KAFKA))
def test_kafka_hangs(name: str, frozen_kafka: KafkaBroker, tmp_path: Path) -> None:
    scene = Scene(kafka=frozen_kafka.bootstrap_servers, name=f"t-{uuid.uuid4().hex[:12]}", folder=tmp_path)
    scene.table.create()
    done = run(scene, *_words(name, scene, scene.table.uri), **_SHORT, **_settings(name, tmp_path))
    assert done.code != 0
    said = done.out + done.err
    assert frozen_kafka.bootstrap_servers in said, said
    assert "Traceback" not in said


@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.parametrize("name", _each(_COMMANDS.keys() - _WITHOUT_STORE))
def test_the_store_hangs(
    name: str, hanging_store: str, kafka: KafkaBroker | RunningKafka, tmp_path: Path, dataset: str
) -> None:
    uri = "s3://bucket/table"
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path) as scene:
        hangs = {
            "DATASET__URI": uri,
            "S3__ENDPOINT_URL": hanging_store,
            "S3__REGION": "us-east-1",
            "S3__ACCESS_KEY_ID": "anybody",
            "S3__SECRET_ACCESS_KEY": "anything",
            "S3__ATTEMPTS": "1",
            "S3__READ_TIMEOUT_SECONDS": "2",
        }
        assert run(scene, "topics", "create").code == 0
        done = run(scene, *_words(name, scene, uri), **hangs, **_settings(name, tmp_path))
        assert done.code != 0
        said = done.out + done.err
        assert uri in said or hanging_store in said, said
        assert "Traceback" not in said
