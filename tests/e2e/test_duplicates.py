"""The same work staged again is in the table once, and every record gets its outcome."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from committerd_common.messages import Outcome, Status, Transaction
from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def _told(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(Status.Name(outcome.status), outcome.reason) for outcome in outcomes]


_COMMITTED = ("COMMITTED", "")
_UUID_SEEN = ("DUPLICATE", "uuid_seen")
_VERSION_SEEN = ("DUPLICATE", "app_version_seen")


def test_a_record_staged_again_and_again_is_in_the_table_once(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    twice, often, grouped = (scene.table.append() for _ in range(3))

    assert _told(scene.ask(twice)) == [_COMMITTED]
    assert _told(scene.ask(twice)) == [_UUID_SEEN]

    # Ten in one group: the committer is frozen while they arrive.
    daemon.freeze()
    offsets = scene.stage(*[grouped] * 10)
    daemon.thaw()
    assert _told(scene.topics.wait_answers(offsets)) == [_COMMITTED, *[_UUID_SEEN] * 9]

    # Ten across restarts, of both kinds.
    answers = []
    for number in range(10):
        answers += scene.ask(often)
        if number % 3 == 0:
            daemon.kill()
            daemon.start()
        elif number % 3 == 1:
            daemon.stop()
            daemon.start()
    assert _told(answers) == [_COMMITTED, *[_UUID_SEEN] * 9]
    assert {answer.version for answer in answers} == {answers[0].version}

    brought = [i for t in (twice, often, grouped) for i in scene.table.brought[t.uuid]]
    scene.audit([*ids, *brought])
    assert [m.uuid for v in scene.table.versions() for m in v.members] == [twice.uuid, grouped.uuid, often.uuid]


def test_the_same_work_at_a_newer_version_is_in_the_table_once(scene: Scene) -> None:
    """A producer opens the table again and keeps the uuid; the committer restarts too, or does not."""
    ids = scene.table.create(3)
    daemon = scene.started()
    added, deleted = scene.table.append(), Transaction(uuid=str(uuid4()), read_version=1)
    deleted.delete.deleted_fragment_ids.append(0)
    deleted.delete.predicate = "true"
    assert _told(scene.ask(added, deleted)) == [_COMMITTED, _COMMITTED]
    for restarts in (False, True):
        scene.ask(scene.table.append())
        if restarts:
            daemon.kill()
            daemon.start()
        for one in (added, deleted):
            one.read_version = scene.table.version
        assert _told(scene.ask(added, deleted)) == [_UUID_SEEN, _UUID_SEEN]
        file = scene.folder / "again.pb"
        file.write_bytes(added.SerializeToString())
        assert "DUPLICATE version" in scene.command("commit", scene.table.uri, str(file))
    brought = [i for some in scene.table.brought.values() for i in some]
    scene.audit([i for i in brought if i not in ids])


def test_what_was_committed_by_hand_is_a_duplicate_in_the_queue(scene: Scene) -> None:
    ids = scene.table.create()
    scene.started()
    staged = scene.table.append()
    file = scene.folder / "staged.pb"
    file.write_bytes(staged.SerializeToString())
    assert "COMMITTED version 2" in scene.command("commit", scene.table.uri, str(file))
    (answer,) = scene.ask(staged)
    assert (_told([answer]), answer.version) == ([_UUID_SEEN], 2)
    assert "DUPLICATE version 2" in scene.command("commit", scene.table.uri, str(file))
    scene.audit([*ids, *scene.table.brought[staged.uuid]])


def test_duplicates_stand_beside_new_records_of_their_group(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    old, first, second = (scene.table.append() for _ in range(3))
    scene.ask(old)
    daemon.freeze()
    offsets = scene.stage(first, old, second, first, old)
    daemon.thaw()
    answers = scene.topics.wait_answers(offsets)
    assert _told(answers) == [_COMMITTED, _UUID_SEEN, _COMMITTED, _UUID_SEEN, _UUID_SEEN]
    scene.audit([*ids, *(i for t in (old, first, second) for i in scene.table.brought[t.uuid])])


def test_an_application_version_counts_once_whatever_the_uuid(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    work = [scene.table.append() for _ in range(5)]

    def ask(number: int, version: int, run: str = "r1") -> tuple[str, str]:
        (told,) = _told(scene.ask(work[number], app_id="query", app_version=str(version), app_run=run))
        return told

    assert ask(0, 7) == _COMMITTED
    assert ask(1, 7) == _VERSION_SEEN
    assert ask(2, 3) == _VERSION_SEEN
    daemon.kill()
    daemon.start()
    assert ask(1, 7) == _VERSION_SEEN
    # Another run counts from 0 again: its data must not vanish as duplicates.
    assert ask(3, 0, "r2") == ("INVALID", "app_id_in_use")
    assert "committerd app release query" in scene.topics.read_letters()[-1].header("committerd-message")

    versions = scene.table.version
    scene.command("app", "release", "query")
    assert scene.table.version == versions  # it only printed what it would do
    scene.command("app", "release", "query", "--apply", good=False)
    scene.command("app", "release", "query", "--apply", "--reason", "checkpoint was lost")
    assert scene.table.version == versions + 1
    assert "checkpoint was lost" in scene.table.open().read_transaction(versions + 1).transaction_properties.values()

    assert ask(4, 0, "r2") == _COMMITTED
    assert ask(3, 1, "r2") == ("INVALID", "app_id_in_use")  # its uuid was refused before, and that stays
    assert ask(2, 8, "r1") == ("INVALID", "app_id_in_use")
    scene.audit([*ids, *(i for n in (0, 4) for i in scene.table.brought[work[n].uuid])])


def test_two_units_of_one_application_in_one_group_go_on_from_each_other(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    work = [scene.table.append() for _ in range(4)]
    daemon.freeze()
    offsets = []
    for transaction, version in zip(work, (0, 1, 1, 0), strict=True):
        offsets += scene.stage(transaction, headers={"app-id": "query", "app-version": str(version)})
    daemon.thaw()
    answers = scene.topics.wait_answers(offsets)
    assert _told(answers) == [_COMMITTED, _COMMITTED, _VERSION_SEEN, _VERSION_SEEN]
    scene.audit([*ids, *(i for t in work[:2] for i in scene.table.brought[t.uuid])])


def test_what_was_refused_stays_refused_though_its_cause_is_gone(scene: Scene) -> None:
    """A missing data file appears; a restart, a lost group offset and a second staging must not change the outcome."""
    ids = scene.table.create()
    daemon = scene.started(COMMIT__VERIFY_FILES="always")
    lacking, whole = scene.table.append(), scene.table.append()
    file = scene.table.data_file(lacking)
    aside = Path(shutil.move(file, scene.folder / "aside"))

    first, good = scene.ask(lacking, whole)
    assert _told([first, good]) == [("INVALID", "missing_file"), _COMMITTED]
    assert file.name in first.message
    shutil.move(aside, file)

    daemon.kill()
    daemon.start()
    daemon.wait_ready(text="active")
    daemon.kill()
    scene.topics.forget_group_offset()
    told = len(scene.topics.read_outcomes())
    daemon.start()
    daemon.wait_ready(text="active")
    # The same bytes, staged again: the uuid was refused, and that stays.
    (again,) = scene.ask(lacking)
    assert (again.status, again.reason, again.message) == (first.status, first.reason, first.message)
    # All outcomes were published once more, the same ones.
    assert len(scene.topics.read_outcomes()) >= told + 3
    scene.audit([*ids, *scene.table.brought[whole.uuid]])

    # Only a replay is judged again.
    (replayed,) = scene.ask(lacking, replay_of=f"{scene.topics.staged}:{first.offset}")
    assert _told([replayed]) == [_COMMITTED]
    scene.audit([*ids, *(i for t in (whole, lacking) for i in scene.table.brought[t.uuid])])
