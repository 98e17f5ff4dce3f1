"""The queue changes under the table: recreated, truncated, put back, its group forgotten.

The committer continues if nothing is at stake, and refuses to run if a record could be lost, doubled or get two
outcomes. Each refusal names a command that resolves it.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from committerd_client import SyncCommitClient
from committerd_common.messages import Status
from harness.kafka import KafkaBroker
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_a_topic_that_was_made_again_is_refused_until_it_is_adopted(scene: Scene, running: bool) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(5)
    if not running:
        daemon.stop()
    scene.topics.recreate_staged()
    if not running:
        daemon.start()
    new = [scene.table.append() for _ in range(3)]
    offsets = scene.stage(*new)
    assert offsets == [0, 1, 2]  # offsets that the old topic had too
    version = scene.table.version
    said = daemon.wait_refused("topic_id")
    assert "deleted and recreated" in said
    assert "committerd position adopt" in said
    until(lambda: daemon.metric("committerd_refused_to_run", cause="topic_id") == 1)  # 0 at each new attempt to run
    assert daemon.metric("committerd_active") == 0
    if running:
        # Neither a look nor a dry run changes anything, and a change needs a reason.
        assert "refuses: topic_id" in scene.command("position", "show")
        assert "Nothing was written" in scene.command("position", "adopt")
        assert "--reason" in scene.command("position", "adopt", "--apply", good=False)
    assert scene.table.version == version

    scene.adopt(daemon)
    assert {answer.status for answer in scene.topics.wait_answers(offsets)} == {Status.COMMITTED}
    ids += [i for t in new for i in scene.table.brought[t.uuid]]
    ids += scene.committed()
    scene.audit(ids)
    assert scene.position()["topic_id"] == scene.topics.topic_id()


def test_a_topic_made_again_under_load_mixes_nothing_up(scene: Scene) -> None:
    """Records of the old topic that were fetched and not committed are dropped; the new one's have the same offsets."""
    first = scene.table.create()
    daemon = scene.started(COMMIT__COALESCE="none")
    old = scene.table.appends(100)
    new = scene.table.appends(100)
    scene.stage(*old)
    old_topic = scene.topics.topic_id()
    until(lambda: scene.table.version > 10)
    scene.topics.recreate_staged()
    offsets = scene.stage(*new)
    daemon.wait_refused("topic_id")
    scene.adopt(daemon)
    assert {answer.status for answer in scene.topics.wait_answers(offsets)} == {Status.COMMITTED}
    answered = {outcome.offset for outcome in scene.topics.read_outcomes() if outcome.topic_id == old_topic}
    assert answered == set(range(len(answered)))
    ids = [i for t in (*old[: len(answered)], *new) for i in scene.table.brought[t.uuid]]
    scene.audit([*first, *ids], unanswered=[(old_topic, o) for o in range(len(answered), len(old))])


def test_a_topic_that_is_gone_is_waited_for(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(2)
    scene.topics.delete_staged()
    assert "there is no topic" in daemon.wait_refused("topic_gone")
    scene.topics.make_staged()
    daemon.wait_refused("topic_id")
    scene.adopt(daemon)
    scene.topics.disconnect()
    ids += scene.committed()
    scene.audit(ids)


def test_a_log_that_lost_what_was_answered_already_is_none_of_our_business(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(10)
    scene.topics.truncate(5)
    ids += scene.committed()
    daemon.stop()
    scene.topics.truncate(11)
    daemon.start()
    ids += scene.committed()
    scene.audit(ids)


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_a_log_that_lost_unanswered_records_is_refused_until_it_is_adopted(scene: Scene, running: bool) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(3)
    if running:
        daemon.freeze()
        time.sleep(4)  # the broker responds to the fetch in flight, which waits for 0.1 s: nothing new
    else:
        daemon.stop()
    lost = scene.append(4)
    kept = [scene.table.append() for _ in range(2)]
    offsets = scene.stage(*kept)
    scene.topics.truncate(lost[-1] + 1)
    if running:
        daemon.thaw()
    else:
        daemon.start()
    said = daemon.wait_refused("position_below_log_start")
    assert "4 offsets were deleted before they were read" in said
    assert "committerd position adopt" in said

    scene.adopt(daemon)
    assert {answer.status for answer in scene.topics.wait_answers(offsets)} == {Status.COMMITTED}
    ids += [i for t in kept for i in scene.table.brought[t.uuid]]
    topic_id = scene.topics.topic_id()
    scene.audit(ids, unanswered=[(topic_id, offset) for offset in lost])


def test_offsets_without_a_record_are_passed(scene: Scene) -> None:
    """Kafka transactions leave holes: aborted records are never delivered, and each end marker takes an offset."""
    ids = scene.table.create()
    daemon = scene.started()
    aborted, kept, last = scene.table.append(), scene.table.append(), scene.table.append()
    with scene.topics.transactional_producer() as producer:
        for transaction, ends in ((aborted, producer.abort_transaction), (kept, producer.commit_transaction)):
            producer.begin_transaction()
            producer.send(scene.topics.staged, value=transaction.SerializeToString(), partition=0)
            producer.flush()
            ends()
    until(lambda: scene.topics.readable_end() == 4)
    (answer,) = scene.ask(last)
    assert (answer.status, answer.offset) == (Status.COMMITTED, 4)
    ids += [i for t in (kept, last) for i in scene.table.brought[t.uuid]]
    scene.audit(ids)
    assert scene.position()["next"] == 5
    daemon.kill()
    daemon.start()
    ids += scene.committed()
    scene.audit(ids)


def test_answers_are_published_again_when_the_groups_offset_is_gone(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started(**STAYS)  # a new start would publish again
    ids += scene.committed(5)
    scene.ask(b"garbage")
    daemon.stop()
    assert scene.topics.group_offset() == 6
    scene.topics.forget_group_offset()
    daemon.start()
    daemon.wait_ready(text="active")
    until(lambda: scene.topics.group_offset() == 6)
    evidence = scene.audit(ids)
    assert len(evidence.outcomes) == 12
    assert len(evidence.letters) == 2
    assert daemon.metric("committerd_republished_answers_total") == 6
    ids += scene.committed()
    scene.audit(ids)


def test_a_log_put_back_to_an_earlier_state_is_refused_until_it_is_adopted(
    breakable_scene: Scene, breakable_kafka: KafkaBroker
) -> None:
    """Kafka's data is restored from a backup: the table has records that the log has lost, and proves it."""
    scene = breakable_scene
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(3)
    _with_kafka_down(scene, breakable_kafka, lambda data: shutil.copytree(data, scene.folder / "backup"))
    ids += scene.committed(4)
    daemon.stop()

    def put_back(data: Path) -> None:
        shutil.rmtree(data)
        shutil.copytree(scene.folder / "backup", data)

    _with_kafka_down(scene, breakable_kafka, put_back)
    daemon.start()
    said = daemon.wait_refused("position_beyond_end")
    assert "position reaches offset 7" in said
    assert "ends at 3" in said

    # New records take the offsets of the lost ones: the table tells them apart by hashes and leader epochs.
    daemon.stop()
    offsets = scene.append(5)
    assert offsets == [3, 4, 5, 6, 7]
    daemon.start()
    assert "is not the one that the table settled" in daemon.wait_refused("log_rewritten")
    assert "outside the log" in scene.command("position", "adopt", "--offset", "9", good=False)
    assert json.loads(scene.command("position", "adopt", "--json"))["after"]["next_offset"] == 3
    scene.adopt(daemon)
    topic_id = scene.topics.topic_id()
    until(lambda: len([o for o in scene.topics.read_outcomes() if o.era == 1]) >= 5)
    second = {o.offset: o for o in scene.topics.read_outcomes() if o.era == 1}
    assert {second[o].status for o in offsets} == {Status.COMMITTED}
    assert all(second[o].topic_id == topic_id for o in offsets)
    ids += [i for o in offsets for i in scene.table.brought[second[o].uuid]]
    assert sorted(scene.table.ids()) == sorted(ids)


def _with_kafka_down(scene: Scene, kafka: KafkaBroker, change: object) -> None:
    assert callable(change)
    scene.topics.disconnect()
    kafka.stop()
    change(kafka.folder / "data")
    kafka.start()


@pytest.mark.parametrize("more", [pytest.param(0, marks=pytest.mark.long), 20], ids=["to_the_same_end", "beyond"])
def test_a_log_that_lost_its_end_under_a_running_committer_is_refused(
    breakable_scene: Scene, breakable_kafka: KafkaBroker, more: int
) -> None:
    """The broker comes back without some answered records, and others have their offsets before we are back."""
    scene = breakable_scene
    ids = scene.table.create()
    # The member keeps its place in the group, so no Start looks at the log.
    daemon = scene.started(KAFKA__SESSION_TIMEOUT_MS="30000")
    ids += scene.committed(3)
    log = f"{scene.topics.staged}-0"
    _with_kafka_down(
        scene, breakable_kafka, lambda data: shutil.copytree(next(data.rglob(log)), scene.folder / "backup")
    )
    ids += scene.committed(10)
    until(lambda: scene.topics.group_offset() == 13)
    daemon.freeze()

    def put_back(data: Path) -> None:
        folder = next(data.rglob(log))
        shutil.rmtree(folder)
        shutil.copytree(scene.folder / "backup", folder)

    _with_kafka_down(scene, breakable_kafka, put_back)
    offsets = scene.append(10 + more)
    assert offsets[0] == 3
    version = scene.table.version
    daemon.thaw()
    said = daemon.wait_refused("log_rewritten")
    assert "is not the one that the table settled" in said
    client = SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri)
    # Until then it joins the group again.
    until(lambda: "was rewritten: the record at offset 12" in str(client.status()))
    assert scene.table.version == version
    scene.adopt(daemon, "--offset", "3")
    until(lambda: len([o for o in scene.topics.read_outcomes() if o.era == 1]) >= len(offsets))
    second = {o.offset: o for o in scene.topics.read_outcomes() if o.era == 1}
    assert {second[o].status for o in offsets} == {Status.COMMITTED}
    ids += [i for o in offsets for i in scene.table.brought[second[o].uuid]]
    assert sorted(scene.table.ids()) == sorted(ids)
