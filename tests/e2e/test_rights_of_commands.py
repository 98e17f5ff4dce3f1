"""Each command does its work with exactly the ACLs that docs/operating.md lists for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.admin import ResourceType

from committerd_client import SyncCommitClient
from harness.child import Launch
from harness.kafka import KafkaBroker
from harness.scene import STAYS, Scene, until
from tests.commands.running import Ran, run, tailing
from tests.kafka.acls import allow, allow_only, forbid, listed, login, names_missing

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

SETTLED = "6a1d0c55-9d47-4c57-8f4f-0d5b9f2f4a11"
"""The uuid of a transaction that was committed."""
REFUSED = "0e7f8c6b-54b6-4b0c-9d8c-6a0ffb1f7d52"
"""The uuid of a transaction that was refused, and that is a dead letter."""
APPEND = ["append", "{uri}", "{folder}/rows.csv", "--name", "{name}"]

ROWS = {
    "`committerd run`": [
        ["status"],
        ["position", "show"],
        ["recreate"],
        ["position", "rewind", "--offset", "0", "--apply", "--reason", "tested"],
        ["app", "release", "query", "--apply", "--reason", "tested"],
    ],
    "`topics check`": [["topics", "check"]],
    "`audit`": [["audit"]],
    "`heartbeat`": [["heartbeat"], APPEND],
    "`explain`": [["explain", SETTLED]],
    "`datasets`": [["datasets"]],
    "`dead list`": [["dead", "list"], ["dead", "show", "0"]],
    "`dead replay`": [["dead", "replay", "0", "--apply"]],
    "`dead drop`": [["dead", "drop", "--below", "1", "--apply"]],
    "`topics transactions`": [["topics", "transactions"]],
}
"""Commands by how their row of the page begins."""


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, strict_kafka: KafkaBroker, dataset: str, tmp_path: Path, launch: Launch
) -> Iterator[Scene]:
    """A dataset with a committer that may do anything, and a dead letter whose cause is gone.

    With parameter `stopped` the committer has stopped, and a record waits.
    """
    with Scene(kafka=strict_kafka.bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as made:
        made.table.create()
        daemon = made.started(**STAYS)
        (tmp_path / "rows.csv").write_text("id\n1000000\n")
        lacking = made.table.append(uuid=REFUSED)
        aside = made.table.data_file(lacking).rename(tmp_path / "aside")
        assert made.ask(lacking)[0].reason == "missing_file"
        aside.rename(made.table.data_file(lacking))
        made.ask(made.table.append(uuid=SETTLED), app_id="query", app_version="1")
        until(lambda: made.topics.group_offset() == 2)
        if getattr(request, "param", "") == "stopped":
            daemon.stop()
            made.append()
        yield made


def _run(scene: Scene, broker: KafkaBroker, *words: str) -> Ran:
    given = {"uri": scene.table.uri, "folder": scene.folder, "name": scene.name}
    return run(scene, *(word.format(**given) for word in words), **login(broker))


@pytest.mark.parametrize("row", ROWS)
def test_with_the_rights_of_its_row_a_command_does_its_work(row: str, scene: Scene, strict_kafka: KafkaBroker) -> None:
    allow_only(strict_kafka, listed(row, scene.name))
    for words in ROWS[row]:
        done = _run(scene, strict_kafka, *words)
        assert done.code == 0, f"{words}\n{done.out}\n{done.err}"
        assert "no ACL" not in done.out + done.err


@pytest.mark.parametrize(
    ("row", "words", "scene"),
    [
        ("`committerd run`", ["status"], ""),
        ("`topics check`", ["topics", "check"], ""),
        ("`heartbeat`", ["heartbeat"], ""),
        ("`heartbeat`", APPEND, ""),
        ("`explain`", ["explain", REFUSED], ""),
        ("`tail`", ["tail", "--since", "1h"], ""),
        ("`dead list`", ["dead", "list"], ""),
        ("`dead replay`", ["dead", "replay", "0", "--apply"], "stopped"),
        ("`dead drop`", ["dead", "drop", "--below", "1", "--apply"], ""),
    ],
    indirect=["scene"],
)
def test_without_one_of_them_it_fails_and_names_what_is_missing(
    row: str, words: Sequence[str], scene: Scene, strict_kafka: KafkaBroker
) -> None:
    rights = listed(row, scene.name)
    allow_only(strict_kafka, rights)
    waits = row == "`heartbeat`"  # until its topics are there
    for right in rights:
        forbid(strict_kafka, right)
        told = ""
        for seconds in ("8", "30", "90") if waits else ("",):  # on a busy machine, a short time-out knows less
            done = _run(scene, strict_kafka, *words, *(["--timeout", seconds] if waits else []))
            assert done.code != 0, right
            told = done.out + done.err
            if names_missing(right, told):
                break
        assert names_missing(right, told), (right, told)
        allow(strict_kafka, [right])


def test_topics_are_created_by_a_login_that_does_nothing_else(
    strict_kafka: KafkaBroker, dataset: str, tmp_path: Path
) -> None:
    with Scene(kafka=strict_kafka.bootstrap_servers, name=dataset, folder=tmp_path) as scene:
        allow(strict_kafka, listed("`topics create`", dataset))
        for created in (True, False):
            done = _run(scene, strict_kafka, "topics", "create")
            assert done.code == 0, f"{done.out}\n{done.err}"
            assert done.out.count("created ") == 3 * created
        # It is no committer.
        assert "no ACL Read" in _run(scene, strict_kafka, "topics", "check").out


def test_an_open_transaction_is_ended_with_the_rights_for_that(scene: Scene, strict_kafka: KafkaBroker) -> None:
    rights = listed("... with `--abort`", scene.name)
    allow(strict_kafka, rights)
    producer = KafkaProducer(bootstrap_servers=strict_kafka.bootstrap_servers, transactional_id=f"{scene.name}.writer")
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(scene.topics.staged, value=b"never read", partition=0).get(30)
        (one,) = json.loads(_run(scene, strict_kafka, "topics", "transactions", "--json").out)["open"]
        words = ("topics", "transactions", "--abort", str(one["producer_id"]), "--apply")
        done = _run(scene, strict_kafka, *words)
        assert done.code == 0, f"{done.out}\n{done.err}"
        assert "No Kafka transaction is open" in _run(scene, strict_kafka, "topics", "transactions").out
    finally:
        producer.close()
        for right in rights:
            if right[1] is not ResourceType.TOPIC:  # those for this dataset concern no other test
                forbid(strict_kafka, right)


def test_a_client_writes_with_the_rights_of_its_row(scene: Scene, strict_kafka: KafkaBroker) -> None:
    allow(strict_kafka, listed("a client", scene.name))
    options = {name.removeprefix("KAFKA__").lower(): text for name, text in login(strict_kafka).items()}
    servers = options.pop("bootstrap_servers")
    with SyncCommitClient(servers, dataset=scene.name, kafka_options=options) as client:
        assert client.commit(scene.table.append()).version == scene.table.version


def test_datasets_says_which_right_is_missing(scene: Scene, strict_kafka: KafkaBroker) -> None:
    on_topic, on_group = listed("`datasets`", scene.name)
    allow(strict_kafka, [on_group])
    (one,) = _run(scene, strict_kafka, "datasets", "--json").json()["datasets"]
    assert one["committer"]
    assert one["unacknowledged"] is None
    assert f"topic {scene.topics.staged} does not exist, or the user has no ACL" in one["problem"]
    allow(strict_kafka, [on_topic])
    forbid(strict_kafka, on_group)
    assert f"no ACL Describe on Group committerd.{scene.name}" in _run(scene, strict_kafka, "datasets").err


def test_datasets_are_found_with_the_right_to_see_their_topics(scene: Scene, strict_kafka: KafkaBroker) -> None:
    words = ("datasets", "find", scene.name, "--uri", "/lake/{name}.lance")
    settings = {"DAEMON__DATASETS_FILE": str(scene.folder / "datasets.json"), **login(strict_kafka)}
    assert "no topic NAME.staged" in run(scene, *words, **settings).err
    allow(strict_kafka, listed("`datasets find`", scene.name))
    assert run(scene, *words, **settings).out.splitlines()[0] == f"added: {scene.name}"


def test_outcomes_are_followed_with_the_rights_of_the_row(scene: Scene, strict_kafka: KafkaBroker) -> None:
    allow(strict_kafka, listed("`tail`", scene.name))
    with tailing(scene, "--since", "1h", **login(strict_kafka)) as process:
        assert process.stdout is not None
        assert SETTLED in process.stdout.readline() + process.stdout.readline()
