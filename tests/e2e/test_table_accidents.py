"""The table changes under the queue: restored, metadata replaced, put back, deleted, or of an unknown kind.

What a readable version still carries is put back into the next one. If no version carries it any more, the committer
refuses to run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import uuid
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from committerd.lance.format.manifest_file import decode, encode
from committerd_common.messages import Status, Transaction
from harness.daemon import Daemon
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_BOTH = pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])


def _stop(daemon: Daemon, *, running: bool) -> None:
    if not running:
        daemon.stop()


def _start(daemon: Daemon, *, running: bool) -> None:
    if not running:
        daemon.start()


def _manifest(scene: Scene, version: int) -> Path:
    """Where pylance puts the manifest of a version: V2 names, which count down."""
    return Path(scene.table.uri, "_versions", f"{2**64 - 1 - version}.manifest")


def _put_back(scene: Scene, version: int) -> None:
    """Restore the table as it was at an earlier version, as from a backup; data files stay."""
    for number in range(version + 1, scene.table.version + 1):
        _manifest(scene, number).unlink()
    Path(scene.table.uri, "_versions", "latest_version_hint.json").unlink(missing_ok=True)


def _clean_up(scene: Scene) -> None:
    scene.table.open().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)


@_BOTH
def test_a_restored_table_keeps_its_position_and_its_applications(scene: Scene, running: bool) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    kept = scene.committed(2)
    restored = scene.table.version
    marked, again = scene.table.append(), scene.table.append()
    scene.ask(marked, app_id="query", app_version="1")
    scene.committed(2)
    position = scene.position()
    _stop(daemon, running=running)
    foreign = scene.table.version + 1
    scene.table.open(restored).restore()
    # A committer that runs may have put the keys back by now: that is the version above.
    assert json.loads(scene.table.metadata(foreign)["committerd.position"]) != position
    _start(daemon, running=running)
    until(lambda: scene.table.version > foreign)
    assert scene.position() == position
    daemon.wait_line("keys.put_back")

    # Records that the restore took out of the table were committed all the same, and their outcomes say so.
    (duplicate,) = scene.ask(marked)
    assert (duplicate.status, duplicate.reason) == (Status.DUPLICATE, "uuid_seen")
    (old_unit,) = scene.ask(again, app_id="query", app_version="1")
    assert (old_unit.status, old_unit.reason) == (Status.DUPLICATE, "app_version_seen")
    evidence = scene.audit([*ids, *kept, *scene.committed(2)])
    assert [version.operation for version in evidence.versions].count("Restore") == 1


def test_rows_that_a_restore_took_out_come_back_as_the_page_says(scene: Scene) -> None:
    """The units 1 to 3 of an application, and a record without one; the table is restored to before unit 2."""
    ids = scene.table.create()
    scene.started()
    units = [scene.table.append() for _ in range(3)]

    def stage(transaction: Transaction, version: int | None = None) -> tuple[str, str]:
        unit = {} if version is None else {"app_id": "query", "app_version": str(version), "app_run": "r"}
        (answer,) = scene.ask(transaction, **unit)
        return Status.Name(answer.status), answer.reason

    def again(transaction: Transaction) -> Transaction:
        """The same work, executed again."""
        made = scene.table.append(read_version=scene.table.version)
        scene.table.brought[transaction.uuid] = []
        return made

    new, seen, unit_seen = ("COMMITTED", ""), ("DUPLICATE", "uuid_seen"), ("DUPLICATE", "app_version_seen")
    assert stage(units[0], 1) == new
    before = scene.table.version
    plain = scene.table.append()
    assert [stage(units[1], 2), stage(units[2], 3), stage(plain)] == [new] * 3
    scene.table.open(before).restore()
    assert scene.table.ids() == sorted([*ids, *scene.table.brought[units[0].uuid]])

    plain.read_version = scene.table.version
    assert [stage(plain), stage(units[1], 2), stage(scene.table.append(), 3)] == [seen, seen, unit_seen]
    plain = again(plain)
    assert stage(plain) == new
    scene.command("app", "release", "query", "--apply", "--reason", "units 2 and 3 were restored away")
    lost = [again(unit) for unit in units[1:]]
    assert [stage(unit, number) for number, unit in enumerate(lost, start=2)] == [new, new]
    assert [stage(scene.table.append(), number) for number in (1, 2, 3)] == [unit_seen] * 3
    brought = [units[0], plain, *lost]
    scene.audit([*ids, *(i for one in brought for i in scene.table.brought[one.uuid])])


@_BOTH
def test_replaced_metadata_gets_our_keys_back(scene: Scene, running: bool) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(3)
    work = scene.table.append()
    scene.ask(work, app_id="query", app_version="4", app_run="r")
    ids += scene.table.brought[work.uuid]
    before = {key: value for key, value in scene.table.metadata().items() if key.startswith("committerd.")}
    assert len(before) == 3
    _stop(daemon, running=running)
    foreign = scene.table.version + 1
    scene.table.open().update_metadata({"owner": "me"}, replace=True)
    # A committer that runs may have put the keys back by now: that is the version above.
    assert scene.table.metadata(foreign) == {"owner": "me"}
    _start(daemon, running=running)
    until(lambda: len(scene.table.metadata()) > 1)
    assert scene.table.metadata() == before | {"owner": "me"}
    ids += scene.committed(2)
    scene.audit(ids)
    assert scene.table.metadata()["owner"] == "me"


def test_a_table_that_is_restored_again_and_again_under_load_loses_no_record(scene: Scene) -> None:
    scene.table.create()
    scene.started(COMMIT__GROUP_RECORDS_MAX="3")
    transactions = scene.table.appends(150)
    stop = threading.Event()

    def restore() -> None:
        while not stop.wait(0.1):
            # pylance may lose the race against our own metadata, and gives up.
            with contextlib.suppress(OSError):
                table = scene.table.open()
                scene.table.open(max(table.version - 3, 1)).restore()
                scene.table.open().update_metadata({"owner": "me"}, replace=True)

    other = threading.Thread(target=restore)
    other.start()
    try:
        offsets = []
        for start in range(0, len(transactions), 10):
            before = scene.table.version
            offsets += scene.stage(*transactions[start : start + 10])
            until(lambda before=before: scene.table.version > before + 6)  # type: ignore[misc]  # a default is not inferred
        answers = scene.topics.wait_answers(offsets)
    finally:
        stop.set()
        other.join()
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    evidence = scene.audit(_rows_by_history(scene))
    operations = [version.operation for version in evidence.versions]
    assert operations.count("Restore") > 3
    # The last Restore may have brought back an older position for a moment.
    until(lambda: json.loads(scene.table.metadata().get("committerd.position", "{}")).get("next") == len(transactions))


def _rows_by_history(scene: Scene) -> set[int]:
    """The rows that the latest version has to hold: each version adds its members, a Restore goes back."""
    table, rows = scene.table.open(), {1: {0}}
    for version in scene.table.versions()[1:]:
        before = rows[version.number - 1]
        if version.operation == "Restore":
            before = rows[table.read_transaction(version.number).operation.version]
        rows[version.number] = before | {i for m in version.members for i in scene.table.brought[m.uuid]}
    return rows[max(rows)]


@_BOTH
def test_a_table_that_was_put_back_is_refused_and_rewinding_commits_the_lost_records_again(
    scene: Scene, running: bool
) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(2)
    early = scene.table.version
    lost = [i for _ in range(3) for i in scene.committed()]
    daemon.wait_ready(text="position 5")
    until(lambda: scene.topics.group_offset() == 5)
    _stop(daemon, running=running)
    _put_back(scene, early)
    _start(daemon, running=running)
    said = daemon.wait_refused("position_went_back")
    assert "committerd position rewind" in said
    assert "committerd position adopt" in said
    assert scene.table.version == early
    if running:
        assert "is not below" in scene.command("position", "rewind", "--offset", "5", good=False)
        assert "Nothing was written" in scene.command("position", "rewind", "--offset", "2")
        assert "--reason" in scene.command("position", "rewind", "--offset", "2", "--apply", good=False)
        assert scene.table.version == early

    scene.adopt(daemon, "--offset", "2", command="rewind")
    until(lambda: sorted(scene.table.ids()) == sorted([*ids, *lost]))
    more = scene.committed()
    evidence = scene.audit([*ids, *lost, *more], rewound=True)
    assert {(o.offset, o.era) for o in evidence.outcomes} >= {(2, 0), (2, 1), (4, 0), (4, 1), (5, 1)}


@_BOTH
def test_a_table_that_was_restored_and_cleaned_up_is_refused_and_can_be_adopted(scene: Scene, running: bool) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(2)
    early = scene.table.version
    for _ in range(3):
        scene.committed()
    until(lambda: scene.topics.group_offset() == 5)
    if running:
        daemon.freeze()
    else:
        daemon.stop()
    scene.table.open(early).restore()
    scene.table.write()  # so that the version with the Restore goes too
    _clean_up(scene)
    ids.append(max(scene.table.ids()))
    if running:
        daemon.thaw()
    else:
        daemon.start()
    daemon.wait_refused("position_went_back")
    assert scene.shown_position()["refusal"]["code"] == "position_went_back"

    scene.adopt(daemon)
    ids += scene.committed(2)
    scene.audit(ids, rewound=True, cleaned=True)
    assert (scene.position()["next"], scene.position()["era"]) == (7, 1)


def test_answers_whose_version_was_cleaned_up_are_undecided_unless_a_mark_tells(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started(**STAYS)  # a new start would publish again
    work = scene.table.append()
    ids += scene.committed(2)
    (told,) = scene.ask(work, app_id="query", app_version="1")
    ids += scene.table.brought[work.uuid]
    daemon.stop()
    ids += scene.table.write()
    _clean_up(scene)
    scene.topics.forget_group_offset()
    daemon.start()
    until(lambda: len(scene.topics.read_outcomes()) >= 6)
    again = {o.offset: o for o in scene.topics.read_outcomes()[-3:]}
    assert {Status.Name(again[o].status) for o in (0, 1)} == {"UNDECIDED"}
    assert (again[2].status, again[2].version) == (Status.COMMITTED, told.version)
    assert again[0].uuid
    ids += scene.committed()
    scene.audit(ids, cleaned=True)


def test_keys_that_no_version_has_any_more_are_refused_until_the_topic_is_adopted(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(3)
    daemon.stop()
    scene.table.open().update_metadata({}, replace=True)
    _clean_up(scene)
    assert scene.table.metadata() == {}
    daemon.start()
    assert "committerd position adopt" in daemon.wait_refused("keys_missing")
    scene.adopt(daemon)
    ids += scene.committed()
    scene.audit(ids, rewound=True, cleaned=True)


@_BOTH
def test_a_table_that_is_gone_is_refused_and_not_made_anew_by_a_create(scene: Scene, running: bool) -> None:
    scene.table.create()
    daemon = scene.started()
    scene.committed(3)
    until(lambda: scene.topics.group_offset() == 3)
    _stop(daemon, running=running)
    shutil.rmtree(scene.table.uri)
    _start(daemon, running=running)
    daemon.wait_refused("table_gone")
    assert not list(Path(scene.table.uri).rglob("*.manifest"))
    # The operator makes another one, and confirms it.
    ids = scene.table.create()
    daemon.wait_refused("keys_missing")
    scene.adopt(daemon)
    ids += scene.committed()
    scene.audit(ids, rewound=True, cleaned=True)


@_BOTH
def test_keys_of_a_newer_format_are_refused(scene: Scene, running: bool) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed()
    _stop(daemon, running=running)
    scene.table.open().update_metadata({"committerd.format": "3"})
    version = scene.table.version
    _start(daemon, running=running)
    offsets = scene.append(2)
    said = daemon.wait_refused("format_newer")
    assert "run the newer committerd" in said
    scene.topics.listen(seconds=0.5)
    assert not [o for _, o in scene.topics.answers if o in offsets]
    assert scene.table.version == version


@_BOTH
def test_a_table_with_a_feature_that_we_do_not_know_is_left_alone(scene: Scene, running: bool) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed()
    _stop(daemon, running=running)
    # The next version is written by a future Lance.
    latest = _manifest(scene, scene.table.version).read_bytes()
    found = decode(latest, len(latest))
    made = found.manifest
    made.version += 1
    made.writer_feature_flags |= 1 << 40
    newer = _manifest(scene, made.version)
    made.ClearField("transaction_file")
    theirs = Transaction(uuid=str(uuid.uuid4()), read_version=found.version)
    theirs.update_config.SetInParent()
    newer.write_bytes(encode(made, found.indices, theirs))
    versions = sorted(newer.parent.iterdir())
    _start(daemon, running=running)
    offsets = scene.topics.stage(b"garbage")
    said = daemon.wait_refused("feature_flags")
    assert str(1 << 40) in said or "40" in said
    assert sorted(newer.parent.iterdir()) == versions
    # Its writer takes it back: the committer continues by itself.
    newer.unlink()
    assert scene.topics.wait_answers(offsets)[0].reason == "record_undecodable"
    ids += scene.committed()
    scene.audit(ids)
    assert lance.dataset(scene.table.uri).count_rows() == len(ids)


def _damage(path: Path) -> None:
    """Damage the end of the file, as a disk does."""
    path.write_bytes(path.read_bytes()[:-8] + b"\0" * 8)


@_BOTH
@pytest.mark.parametrize("which", ["ours", "foreign"])
def test_a_damaged_old_version_is_a_gap_and_no_reason_to_refuse(scene: Scene, running: bool, which: str) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed()
    if which == "foreign":
        ids += scene.table.write()
    damaged = scene.table.version
    ids += scene.committed() if which == "ours" else scene.table.write()
    _stop(daemon, running=running)
    _damage(_manifest(scene, damaged))
    if running:
        daemon.kill()
        daemon.start()
    _start(daemon, running=running)
    daemon.wait_ready(text="active")
    ids += scene.committed(2)
    assert sorted(scene.table.ids()) == sorted(ids)


def test_a_damaged_latest_version_is_refused(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started()
    scene.committed(2)
    daemon.stop()
    _damage(_manifest(scene, scene.table.version))
    daemon.start()
    daemon.wait_refused("manifest_magic")


_GARBAGE = [
    {"committerd.position": "rubbish", "committerd.app.a": "[" * 100_000},
    {"committerd.position": '{"next": 5}', "committerd.app.a": "{}"},
    {"committerd.format": "none"},
]


@_BOTH
@pytest.mark.parametrize("garbage", _GARBAGE, ids=["text", "json", "format"])
def test_foreign_garbage_under_our_keys_is_put_right(scene: Scene, running: bool, garbage: dict[str, str]) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(2)
    work = scene.table.append()
    scene.ask(work, app_id="a", app_version="4", app_run="r")
    ids += scene.table.brought[work.uuid]
    before = {key: value for key, value in scene.table.metadata().items() if key.startswith("committerd.")}
    _stop(daemon, running=running)
    scene.table.open().update_metadata(garbage)
    _start(daemon, running=running)
    until(lambda: scene.table.metadata() == before)
    ids += scene.committed(2)
    assert sorted(scene.table.ids()) == sorted(ids)


@_BOTH
def test_foreign_garbage_in_the_properties_of_a_transaction_is_foreign(scene: Scene, running: bool) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(2)
    _stop(daemon, running=running)
    new = scene.table.new_ids(1)
    lance.write_dataset(
        pa.table({"id": pa.array(new, pa.int64())}),
        scene.table.uri,
        mode="append",
        transaction_properties={"committerd.members": "rubbish", "committerd.refused": "too"},
    )
    _start(daemon, running=running)
    ids += new
    ids += scene.committed(2)
    assert sorted(scene.table.ids()) == sorted(ids)


@_BOTH
def test_what_another_writer_makes_up_under_our_keys_is_not_believed(scene: Scene, running: bool) -> None:
    """A position that was never reached, and a mark of a unit that was never staged."""
    ids = scene.table.create()
    daemon = scene.started()
    ids += scene.committed(2)
    work, next_work = scene.table.append(), scene.table.append()
    scene.ask(work, app_id="a", app_version="4", app_run="r")
    before = {key: value for key, value in scene.table.metadata().items() if key.startswith("committerd.")}
    position, mark = json.loads(before["committerd.position"]), json.loads(before["committerd.app.a"])
    _stop(daemon, running=running)
    made_up = {
        "committerd.position": json.dumps(position | {"next": position["next"] + 1000, "era": 7}),
        "committerd.app.a": json.dumps(mark | {"version": 1000}),
    }
    scene.table.open().update_metadata(made_up)
    _start(daemon, running=running)
    until(lambda: scene.table.metadata() == before)
    (answer,) = scene.ask(next_work, app_id="a", app_version="5", app_run="r")
    assert answer.status == Status.COMMITTED
    ids += [i for one in (work, next_work) for i in scene.table.brought[one.uuid]]
    ids += scene.committed(2)
    scene.audit(ids)


def test_no_application_is_forgotten_for_a_new_one(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started(COMMIT__APP_MARKS_MAX="2")

    def unit(app_id: str, version: int = 1) -> tuple[str, str]:
        (answer,) = scene.ask(scene.table.append(), app_id=app_id, app_version=str(version), app_run="r")
        return Status.Name(answer.status), answer.reason

    new, seen, full = ("COMMITTED", ""), ("DUPLICATE", "app_version_seen"), ("INVALID", "app_marks_full")
    assert [unit(app_id) for app_id in ("a", "b", "c")] == [new, new, full]
    until(lambda: daemon.metric("committerd_app_marks") == 2)
    assert daemon.metric("committerd_app_marks_used_ratio") == 1
    assert daemon.metric("committerd_dead_letters_total", reason="app_marks_full") >= 1  # a new start writes it again
    assert [unit("a"), unit("b"), unit("a", 2)] == [seen, seen, new]
    daemon.kill()
    daemon.start()
    assert [unit("a", 2), unit("b"), unit("c")] == [seen, seen, full]
    assert [line.split(":")[0] for line in scene.command("app", "list").splitlines()] == ["a", "b"]
    scene.command("app", "release", "b", "--apply", "--reason", "the job is gone")
    # Of each transaction once: after a kill the committer may publish a dead letter again.
    letters = {
        one["uuid"]: str(one["offset"]) for one in json.loads(scene.command("dead", "list", "--json"))["letters"]
    }
    scene.command("dead", "replay", *letters.values(), "--apply")  # the second transaction repeats the first's work
    scene.topics.wait_answers([scene.topics.read_staged()[-1].offset])
    assert {json.loads(line)["app_id"] for line in scene.command("app", "list", "--json").splitlines()} == {"a", "c"}
    assert [unit("a", 2), unit("c"), unit("c", 2), unit("d")] == [seen, seen, new, full]
