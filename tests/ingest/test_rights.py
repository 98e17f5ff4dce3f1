"""`committerd ingest` works with exactly the ACLs that docs/operating.md lists, and names one that is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from kafka.admin import ACLOperation, ResourceType

from committerd.commands.ingest import parts
from committerd_client import CommitClient
from harness.child import Launch
from harness.daemon import Daemon
from harness.fleet import COMMAND, Fleet
from harness.kafka import KafkaBroker
from harness.scene import STAYS
from tests.commands.running import Ran, run
from tests.ingest.running import SCHEMA, FilesFlow, Flow, Topic, bad_records, flow_of, stopping, wait
from tests.kafka.acls import Right, allow, allow_only, forbid, listed, login, names_missing

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.timeout(900)]

DEAD_LETTERS = {"INGEST__ON_ERROR": "dead-letter"}


@contextlib.contextmanager
def flow_with_bad_records(
    broker: KafkaBroker, folder: Path, launch: Launch, *, schema: pa.Schema | None, kind: type[Flow] = Flow
) -> Iterator[Flow]:
    """A flow with a topic for bad records, whose committer may do anything."""
    servers = broker.bootstrap_servers
    with (
        flow_of(servers, folder, launch, partitions=1, schema=schema, kind=kind) as made,
        contextlib.closing(Topic(servers, partitions=1, name=f"{made.scene.name}.bad")),
    ):
        yield made


def wait_named(right: Right, ingest: Daemon) -> None:
    """Wait until /readyz names the right that is missing."""
    wait(lambda: names_missing(right, ingest.ready()[1]), what=lambda: f"{right}: {ingest.ready()}")


def test_a_process_names_a_right_that_is_missing_and_goes_on_when_it_is_there(
    strict_kafka: KafkaBroker, tmp_path: Path, launch: Launch
) -> None:
    """From the creation of its table on."""
    columns = tmp_path / "columns"
    columns.write_bytes(SCHEMA.serialize())
    with flow_with_bad_records(strict_kafka, tmp_path, launch, schema=None) as flow:
        rights = listed("`ingest`", flow.scene.name, topic=flow.topic.name)
        staged, outcomes, topic, bad, group = rights
        allow_only(strict_kafka, [one for one in rights if one != group])
        ingest = flow.ingest(**login(strict_kafka), **DEAD_LETTERS, INGEST__CREATE_FROM=str(columns))
        sent = 0

        def send() -> None:
            nonlocal sent
            flow.topic.send(1)
            flow.topic.send_value(b"{%d" % sent)
            flow.topic.flush()
            sent += 1

        with stopping([ingest]):
            ingest.start()
            wait_named(group, ingest)
            assert not ingest.ready()[0]
            allow(strict_kafka, [group])
            send()
            wait(flow.exists)
            flow.wait_rows(sent)
            for right in (topic, staged, bad, outcomes):
                forbid(strict_kafka, right)
                send()
                if right == outcomes:  # the client reads them, whatever the pipeline does
                    wait(lambda: any(names_missing(outcomes, str(one["event"])) for one in ingest.lines()))
                else:
                    wait_named(right, ingest)
                allow(strict_kafka, [right])
                flow.wait_rows(sent)
            wait(lambda: ingest.ready() == (True, "1 partitions"), what=lambda: f"{ingest.ready()}")
        flow.check(sent)
        published = {one.value for one in bad_records(strict_kafka.bootstrap_servers, f"{flow.scene.name}.bad")}
        assert published == {b"{%d" % number for number in range(sent)}


def test_a_topic_that_may_not_be_read_is_named_and_the_others_are_read(
    strict_kafka: KafkaBroker, tmp_path: Path, launch: Launch
) -> None:
    servers = strict_kafka.bootstrap_servers
    with (
        flow_of(servers, tmp_path, launch, partitions=1) as flow,
        contextlib.closing(Topic(servers, partitions=1)) as other,
    ):
        rights = listed("`ingest`", flow.scene.name, topic=flow.topic.name)
        first = next(one for one in rights if one[2] == flow.topic.name)
        second: Right = (*first[:2], other.name)
        allow_only(strict_kafka, [one for one in rights if one != first])
        flow.topic.send(1)
        other.send(1)
        ingest = flow.ingest(**login(strict_kafka), INGEST__TOPICS=f"{flow.topic.name},{other.name}")
        with stopping([ingest]):
            ingest.start()
            wait_named(min(first, second, key=lambda one: one[2]), ingest)
            assert not ingest.ready()[0]
            allow(strict_kafka, [first])
            flow.wait_rows(1)
            wait_named(second, ingest)
            assert ingest.ready()[0]
            assert any(names_missing(second, one["error"]) for one in ingest.lines("ingest.not_allowed"))
            allow(strict_kafka, [second])
            flow.wait_rows(2)
            wait(lambda: ingest.ready() == (True, "2 partitions"), what=lambda: f"{ingest.ready()}")


def test_a_route_begins_when_its_right_is_there_and_a_process_with_one_pipeline_ends(
    strict_kafka: KafkaBroker, tmp_path: Path, launch: Launch
) -> None:
    names = [f"{one}-{uuid4().hex[:8]}" for one in ("unstaged", "unheard", "well")]
    unstaged, unheard, well = names
    servers = strict_kafka.bootstrap_servers
    with (
        contextlib.closing(Topic(servers, partitions=1)) as topic,
        Fleet(kafka=servers, folder=tmp_path, names=names, launch=launch) as fleet,
    ):
        for scene in fleet.scenes.values():
            lance.write_dataset(SCHEMA.empty_table(), scene.table.uri)
        fleet.member(**STAYS).wait_ready(text="3 active")
        rights = {one: listed("`ingest`", one, topic=topic.name) for one in names}
        staged, outcomes = rights[unstaged][0], rights[unheard][1]
        allow_only(strict_kafka, [one for each in rights.values() for one in each if one not in (staged, outcomes)])
        topic.send(1)
        settings = {**login(strict_kafka), "INGEST__TOPICS": topic.name, "INGEST__RETRY_SECONDS": "1"}
        text = fleet.tables() + "".join(f"[ingest.routes.{name}]\n" for name in names)
        ingest = fleet.member(text, command=(*COMMAND, "ingest"), **settings)
        only = fleet.member(fleet.tables(unstaged), command=(*COMMAND, "ingest"), **settings)

        def rows(name: str) -> int:
            return int(fleet.scenes[name].table.open().count_rows())

        wait(lambda: rows(well) == 1)
        wait_named(staged, ingest)
        wait_named(outcomes, ingest)
        wait(lambda: not only.running())
        assert only.code == 1
        assert names_missing(staged, only.log.read_text())
        allow(strict_kafka, [staged, outcomes])
        wait(lambda: [rows(one) for one in names] == [1, 1, 1], what=lambda: f"{list(map(rows, names))}")


def test_a_command_names_a_right_that_is_missing_and_writes_nothing(
    strict_kafka: KafkaBroker, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flow_with_bad_records(strict_kafka, tmp_path, launch, schema=SCHEMA) as flow:
        flow.topic.send(1)
        flow.topic.send_value(b'{"id": 1, "note": "n"}')
        flow.topic.flush()
        ingest = flow.ingest(**DEAD_LETTERS)
        with stopping([ingest]):
            ingest.start()
            wait(lambda: ingest.metric("committerd_ingest_bad_records_total") == 1)
            ingest.stop()
        lance.dataset(flow.scene.table.uri).add_columns({"note": "cast(null as string)"})
        moving = ("ingest", "move", flow.topic.name, "0", "--offset", "earliest")
        for row, words in {
            "`ingest --dry-run`": ("ingest", "--dry-run"),
            "`ingest replay`": ("ingest", "replay"),
            "`ingest replay --apply`": ("ingest", "replay", "--apply"),
            "`ingest move`": moving,
            "`ingest move --apply`": (*moving, "--apply", "--reason", "tested"),
        }.items():
            rights = listed(row, flow.scene.name, topic=flow.topic.name)
            fails_without_each(flow, strict_kafka, monkeypatch, rights, *words)
        # Who may describe a topic sees it, and is refused when it is read.
        for name, word in ((flow.topic.name, "--dry-run"), (f"{flow.scene.name}.bad", "replay")):
            allow_only(strict_kafka, [(ACLOperation.DESCRIBE, ResourceType.TOPIC, name)])
            done = _run(flow, strict_kafka, "ingest", word)
            assert done.code != 0
            assert f"no ACL Read on Topic {name}" in done.err
        assert sorted(row["id"] for row in flow.rows()) == [0, 1]


def test_a_folder_is_read_and_settled_with_the_rights_of_their_rows(
    strict_kafka: KafkaBroker, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flow_with_bad_records(strict_kafka, tmp_path, launch, schema=SCHEMA, kind=FilesFlow) as flow:
        assert isinstance(flow, FilesFlow)
        allow_only(strict_kafka, listed("`ingest.source`", flow.scene.name))
        flow.put("1.jsonl", 0)
        (flow.folder / "2.jsonl").write_text("{\n")
        ingest = flow.ingest(**login(strict_kafka), **DEAD_LETTERS)
        with stopping([ingest]):
            ingest.start()
            flow.wait_rows(1)
            wait(lambda: ingest.metric("committerd_ingest_bad_records_total") == 1)
            ingest.stop()
        (mark,) = (name for name in flow.scene.table.metadata() if name.startswith("committerd.app."))
        flow.command("app", "release", mark.removeprefix("committerd.app."), "--apply", "--reason", "tested")
        settling = ("ingest", "settle", "files", "--rows", "there")
        rights = listed("`ingest settle --apply`", flow.scene.name)
        allow_only(strict_kafka, [])
        assert "Nothing was written" in _run(flow, strict_kafka, *settling).out
        fails_without_each(flow, strict_kafka, monkeypatch, rights, *settling, "--apply", "--reason", "tested")


def fails_without_each(
    flow: Flow, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, rights: list[Right], *words: str
) -> None:
    """Fail unless a command names each of these rights where it is missing, and succeeds when all are there."""
    allow_only(broker, rights)
    before = flow.scene.table.version
    for right in rights:
        forbid(broker, right)
        told = ""
        for seconds in (4.0, 30.0, 90.0):  # on a busy machine, a short time-out knows less
            monkeypatch.setattr(parts, "CommitClient", partial(CommitClient, connect_timeout=seconds))
            done = _run(flow, broker, *words)
            assert done.code != 0, (words, right)
            told = done.out + done.err
            if names_missing(right, told):
                break
        assert names_missing(right, told), (words, right, told)
        allow(broker, [right])
    assert flow.scene.table.version == before
    monkeypatch.setattr(parts, "CommitClient", CommitClient)
    done = _run(flow, broker, *words)
    assert done.code == 0, f"{words}\n{done.out}\n{done.err}"


def _run(flow: Flow, broker: KafkaBroker, *words: str) -> Ran:
    return run(flow.scene, *words, **flow.settings(), **login(broker))
