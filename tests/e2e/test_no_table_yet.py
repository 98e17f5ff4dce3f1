"""Records that are staged before there is a table wait for it, whoever makes it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from committerd_client import InvalidTransaction, SyncCommitClient
from committerd_common.messages import Status
from harness.daemon import Daemon
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def _ids(scene: Scene, *uuids: str) -> list[int]:
    return [i for uuid in uuids for i in scene.table.brought[uuid]]


def _members(scene: Scene) -> list[tuple[int, str]]:
    return [(version.number, member.uuid) for version in scene.table.versions() for member in version.members]


def test_appends_wait_for_a_create_and_are_committed_behind_it_in_order(scene: Scene) -> None:
    daemon = scene.daemon(**STAYS)
    assert "no table" in daemon.wait_ready(text="waits for the table")
    before = [scene.table.append() for _ in range(5)]
    offsets = scene.stage(*before)
    assert scene.table.uri in daemon.wait_ready(text="5 records wait: there is no table")
    assert daemon.metric("committerd_waiting_for_table") == 1
    said = daemon.wait_line("table.missing")
    assert (said["level"], said["uri"]) == ("warning", scene.table.uri)
    scene.topics.listen(seconds=0.5)
    assert not scene.topics.answers
    assert not list(Path(scene.table.uri, "_versions").glob("*"))

    create = scene.table.staged_create()
    offsets.append(scene.stage_create(create))
    after = [scene.table.append() for _ in range(5)]
    offsets += scene.stage(*after)
    answers = scene.topics.wait_answers(offsets)
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    assert daemon.metric("committerd_waiting_for_table") == 0
    # The create goes first although it was staged sixth; the others follow in the order of their offsets.
    wanted = [create.transaction.uuid, *(t.uuid for t in (*before, *after))]
    assert [uuid for _, uuid in _members(scene)] == wanted
    assert _members(scene)[0][0] == 1
    evidence = scene.audit(_ids(scene, *wanted))
    assert sorted(scene.table.ids_in_4()) == sorted(evidence.ids)
    assert (scene.position()["next"], scene.position()["settled"]) == (11, [])


def test_waiting_for_a_table_costs_one_listing_for_each_recheck(scene: Scene) -> None:
    daemon = scene.daemon(**STAYS, STORE__RECHECK_SECONDS="3")  # a new start lists too
    daemon.wait_ready(text="waits for the table")
    scene.append()
    daemon.wait_ready(text="1 records wait")
    began, before = time.monotonic(), _lists(daemon)
    until(lambda: _lists(daemon) - before >= 4)
    # One more than there is time for: that which was under way at the beginning.
    assert _lists(daemon) - before <= 2 + (time.monotonic() - began) / 3
    scene.table.create()
    daemon.wait_ready(text="active: version")


def _lists(daemon: Daemon) -> float:
    return daemon.metric("committerd_store_requests_total", operation="list")


def test_of_several_creates_the_first_that_can_be_committed_makes_the_table(scene: Scene) -> None:
    daemon = scene.daemon()
    waiting = scene.table.append()
    broken, first, second = (scene.table.staged_create() for _ in range(3))
    broken.transaction.overwrite.fragments[0].files[0].path = "../outside.lance"
    daemon.wait_ready(text="waits")
    offsets = scene.stage(waiting)
    offsets.append(scene.stage_create(broken))
    daemon.wait_ready(text="2 records wait")
    # A restart loses nothing: nothing had been published.
    daemon.kill()
    offsets += [scene.stage_create(first), scene.stage_create(second)]
    daemon.start()
    answers = scene.topics.wait_answers(offsets)
    assert [(Status.Name(a.status), a.reason) for a in answers] == [
        ("COMMITTED", ""),
        ("INVALID", "path_outside"),
        ("COMMITTED", ""),
        ("RETRYABLE", "table_exists"),
    ]
    assert answers[2].version == 1
    scene.audit(_ids(scene, first.transaction.uuid, waiting.uuid))


def test_records_that_wait_go_into_a_table_that_pylance_makes(scene: Scene) -> None:
    daemon = scene.daemon()
    waiting = [scene.table.append() for _ in range(3)]
    late = scene.table.staged_create()
    daemon.wait_ready(text="waits")
    offsets = scene.stage(*waiting)
    daemon.wait_ready(text="3 records wait")
    ids = scene.table.create()
    answers = scene.topics.wait_answers(offsets)
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    (refused,) = scene.topics.wait_answers([scene.stage_create(late)])
    assert (refused.status, refused.reason) == (Status.RETRYABLE, "table_exists")
    daemon.wait_ready(text="active: version")
    scene.audit([*ids, *_ids(scene, *(t.uuid for t in waiting))])


def test_a_create_alone_is_enough(scene: Scene) -> None:
    scene.daemon()
    create = scene.table.staged_create(rows=3)
    until(lambda: scene.topics.staged in scene.topics.admin.list_topics())
    (answer,) = scene.topics.wait_answers([scene.stage_create(create)])
    assert (answer.status, answer.version) == (Status.COMMITTED, 1)
    evidence = scene.audit(_ids(scene, create.transaction.uuid))
    assert sorted(scene.table.ids_in_4()) == sorted(evidence.ids)
    # pylance continues from there.
    more = scene.table.write(2)
    scene.audit([*evidence.ids, *more])


def test_what_no_table_can_change_is_refused_at_once_and_stays_refused(scene: Scene) -> None:
    """A wrong name, a schema that nobody can open, bytes that are none: in vain they would wait for the table.

    The answers hold although the settings change before there is a table, and pylance makes it.
    """
    daemon = scene.daemon(**STAYS)  # a new start would write letters again
    daemon.wait_ready(text="waits for the table")
    deep, elsewhere = scene.table.staged_create(), scene.table.staged_create()
    parent = deep.transaction.overwrite.schema[0]
    for number in range(70):
        parent = deep.transaction.overwrite.schema.add(
            id=number + 1, parent_id=parent.id, name=f"f{number}", logical_type="struct", nullable=True
        )
    (wrong,) = scene.stage(elsewhere, headers={"dataset": "s3://lake/other.lance", "create-only": "true"})
    (nested,) = scene.stage(deep, headers={"create-only": "true"})
    (broken,) = scene.stage(b"\xff\xff")
    refused = [wrong, nested, broken]
    answers = scene.topics.wait_answers(refused)
    assert [one.reason for one in answers] == ["wrong_dataset", "schema", "record_undecodable"]
    assert {one.status for one in answers} == {Status.INVALID}
    assert all(one.before_table for one in answers)
    assert not list(Path(scene.table.uri, "_versions").glob("*"))

    waiting = scene.table.append()
    offsets = scene.stage(waiting)
    daemon.stop()
    # Now the name would be one of this table, and the record could be committed.
    daemon = scene.daemon(**STAYS, DATASET__ALIASES="s3://lake/other.lance")
    daemon.wait_ready(text="records wait")
    ids = scene.table.create()
    (committed,) = scene.topics.wait_answers(offsets)
    assert committed.status == Status.COMMITTED
    found = [one for version in scene.table.versions() for one in version.refusals]
    assert {one.offset: one.reason for one in found} == dict(
        zip(refused, ["wrong_dataset", "schema", "record_undecodable"], strict=True)
    )
    until(lambda: {int(one.header("committerd-offset")) for one in scene.topics.read_letters()} == set(refused))
    scene.audit([*ids, *_ids(scene, waiting.uuid)])
    scene.command("audit")


def test_a_client_that_creates_hears_at_once_that_it_names_another_table(scene: Scene) -> None:
    scene.daemon().wait_ready(text="waits for the table")
    create = scene.table.staged_create()
    with (
        SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri="s3://lake/other.lance") as client,
        pytest.raises(InvalidTransaction, match="the producer meant table"),
    ):
        client.commit(create)  # else it would time out: nobody makes that table
