"""A table that was put back from a backup: the operator follows docs/operating.md, command by command.

What came after the backup is committed again, as far as it can be told what it means. The rest is named.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd_client import RetryableConflict, Staged, SyncCommitClient, WriteResult, staging
from committerd_common.messages import Status, Transaction
from harness.daemon import Daemon
from harness.lance_table import run_in_4
from harness.scene import STAYS, Scene, until
from tests.commands.running import Ran, answered, run

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

PAGE = Path(__file__).parents[2].joinpath("docs/operating.md").read_text("utf-8")
_READ_IN_4 = """
import json, sys, lance
print(json.dumps(lance.dataset(sys.argv[1]).to_table().to_pylist()))
"""


def _lines() -> list[list[str]]:
    """The commands of the section, in its order, without `committerd`."""
    (section,) = re.findall(r"^## Restore the table from a backup$(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


class Backup:
    """A copy of `_versions`."""

    def __init__(self, scene: Scene) -> None:
        self._versions = Path(scene.table.uri, "_versions")
        self._copy = scene.folder / "backup"
        shutil.copytree(self._versions, self._copy)

    def restore(self) -> None:
        """Put it back. All other files stay."""
        shutil.rmtree(self._versions)
        shutil.copytree(self._copy, self._versions)


def _client(scene: Scene, **options: Any) -> SyncCommitClient:
    return SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri, **options)


def _rows(scene: Scene) -> list[dict[str, Any]]:
    """The rows, as both pylances read them."""
    rows: list[dict[str, Any]] = lance.dataset(scene.table.uri).to_table().to_pylist()
    assert run_in_4(_READ_IN_4, scene.table.uri) == rows
    return rows


def _follow(scene: Scene, daemon: Daemon, *, found: bool) -> list[Ran]:
    """Run the page's commands. `found`: whether the last audit finds something."""
    daemon.wait_refused("position_went_back")
    done, is_refused = list[Ran](), True
    for words in _lines():
        if words == ["status"]:
            daemon.wait_ready(text="active")
            until(lambda: scene.topics.group_offset() == len(scene.topics.read_staged()))
        done.append(run(scene, *words))
        expected = words == ["audit"] and (is_refused or found)
        assert done[-1].code == int(expected), f"{words}\n{done[-1].out}\n{done[-1].err}"
        is_refused = is_refused and "--apply" not in words
    assert not is_refused
    return done


def _uuid(result: WriteResult) -> str:
    assert result.commit is not None
    return result.commit.uuid


def _append(scene: Scene, number: int, **given: Any) -> Transaction:
    rows = pa.table({"id": [number], "x": [number]})
    made: Transaction = staging.append(lance.fragment.write_fragments(rows, scene.table.uri, mode="append"), **given)
    return made


def _write(scene: Scene, number: int) -> None:
    """Append a row without the queue."""
    lance.write_dataset(pa.table({"id": [number], "x": [number]}), scene.table.uri, mode="append")


def _overwritten(scene: Scene) -> Staged:
    """An Overwrite of the present version, which uses the field ids again for other types."""
    rows = pa.table({"id": pa.array([[1, 2]], pa.list_(pa.float32(), 2)), "x": [1]})
    fragments = lance.fragment.write_fragments(rows, scene.table.uri, mode="overwrite")
    return staging.overwrite(fragments, rows.schema, dataset=scene.table.open())


def test_a_backup_that_was_taken_in_a_pause_is_put_back_and_goes_on(scene: Scene) -> None:
    daemon = scene.started(**STAYS)
    with _client(scene) as client:
        client.append([{"id": 0}], create=True)
        client.append([{"id": 1}])
        scene.command("pause", "--reason", "a backup")
        backup = Backup(scene)
        scene.command("resume", "--reason", "the backup is done")
        client.append([{"id": 2}])
        until(lambda: scene.topics.group_offset() == 3)
        backup.restore()
        *_, resumed, _, _ = _follow(scene, daemon, found=False)
        assert "It was paused since" in resumed.out
        client.append([{"id": 3}])
    assert [row["id"] for row in _rows(scene)] == [0, 1, 2, 3]


@pytest.mark.parametrize("running", [True, pytest.param(False, marks=pytest.mark.long)], ids=["running", "stopped"])
def test_what_was_appended_since_the_backup_goes_in_again_in_order(scene: Scene, running: bool) -> None:
    daemon = scene.started(**STAYS)
    with _client(scene) as client:
        client.append([{"id": 0}], create=True)
        client.append([{"id": 1}])
        backup = Backup(scene)
        for number in range(2, 8):
            client.append([{"id": number}])
        until(lambda: scene.topics.group_offset() == 8)
        if not running:
            daemon.stop()
        begun, ahead = scene.table.open(4), scene.table.open()
        assert (begun.version, ahead.version) == (4, 8)
        backup.restore()
        if not running:
            daemon.start()
        shown, audited, dry, *_ = _follow(scene, daemon, found=False)
        assert "next offset 2" in shown.out
        assert "position rewind --offset 2" in shown.out
        assert audited.out.count("the table's position has not passed that record") == 6
        assert "Nothing was written" in dry.out

        assert [row["id"] for row in _rows(scene)] == list(range(8))
        assert answered(scene, "dead", "list")["matching"] == 0
        # The same bytes again are duplicates, whatever version they were read at.
        offsets = [scene.topics.stage(one.value, headers=one.headers)[0] for one in scene.topics.read_staged()[2:8]]
        assert {(a.status, a.reason) for a in scene.topics.wait_answers(offsets)} == {(Status.DUPLICATE, "uuid_seen")}
        # Who opened the table before and stages now is told to do the work again, and does.
        for number, opened in ((9, begun), (10, ahead)):
            rows = pa.table({"id": [number]})
            fragments = lance.fragment.write_fragments(rows, scene.table.uri, mode="append")
            with pytest.raises(RetryableConflict, match="put back to an older state") as raised:
                client.commit(staging.append(fragments, dataset=opened))
            assert raised.value.code == "read_version_lost"
        assert answered(scene, "dead", "list")["matching"] == 0
        client.append([{"id": 8}])
        client.upsert([{"id": 8}], on="id")
    assert sorted(row["id"] for row in _rows(scene)) == list(range(9))
    assert answered(scene, "audit")["good"]
    # Rewound once more, and by a committer that knows only what the table says: nothing is there twice.
    daemon.stop()
    scene.command("position", "rewind", "--offset", "2", "--apply", "--reason", "once more")
    daemon.start()
    daemon.wait_ready(text="active")
    until(lambda: scene.position()["next"] == len(scene.topics.read_staged()))
    assert sorted(row["id"] for row in _rows(scene)) == list(range(9))
    assert answered(scene, "audit")["good"]


def test_what_can_not_come_back_is_named_and_a_letter_whose_file_is_back_is_committed(scene: Scene) -> None:
    daemon = scene.started(**STAYS)
    with _client(scene) as client:
        # The table's own position is 2 here too, as on the page.
        client.append([{"id": number, "x": number} for number in range(4)], create=True)
        client.append([{"id": 4, "x": 4}])
        _write(scene, 5)
        backup = Backup(scene)
        client.delete("id = 0")  # read at the other writer's version, which the backup has
        client.append([{"id": 10, "x": 10}])
        lost = {_uuid(client.upsert([{"id": 1, "x": 100}], on="id")): "read_version_lost"}
        lost[_uuid(client.delete("id = 2"))] = "read_version_lost"
        scene.ask(_append(scene, 11, read_version=scene.table.version))
        gone = _append(scene, 12, read_version=scene.table.version)
        scene.ask(gone)
        scene.ask(_append(scene, 13, read_version=scene.table.version), app_id="query", app_version="3")
        client.compact()
        waiting = _append(scene, 14, read_version=scene.table.version)
        lost[client.commit(_overwritten(scene)).uuid] = "read_version_lost"
        lost[_uuid(client.append([{"id": [3, 4], "x": 2}]))] = "schema_differs"
    until(lambda: scene.topics.group_offset() == len(scene.topics.read_staged()))
    backup.restore()
    daemon.wait_refused("position_went_back")
    _write(scene, 6)  # takes the number of a version that records were read at
    aside = scene.table.data_file(gone).rename(scene.folder / "aside")
    (last,) = scene.stage(waiting)

    *_, audited = _follow(scene, daemon, found=True)
    assert scene.topics.wait_answers([last])[0].status == Status.COMMITTED
    left = {(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (10, 10), (11, 11), (13, 13), (14, 14)}
    assert {(row["id"], row["x"]) for row in _rows(scene)} == left
    assert _named(audited) == lost | {gone.uuid: "missing_file"}

    aside.rename(scene.table.data_file(gone))
    (letter,) = answered(scene, "dead", "list")["letters"]
    assert (letter["uuid"], letter["reason"]) == (gone.uuid, "missing_file")
    (replayed,) = answered(scene, "dead", "replay", str(letter["offset"]), "--apply")["letters"]
    assert scene.topics.wait_answers([replayed["staged_offset"]])[0].status == Status.COMMITTED
    assert {(row["id"], row["x"]) for row in _rows(scene)} == left | {(12, 12)}
    assert _named(run(scene, "audit")) == lost

    scene.adopt(daemon, "--offset", str(scene.position()["next"]))
    assert answered(scene, "audit")["good"]


def _named(audited: Ran) -> dict[str, str]:
    """The transactions that an audit calls lost, each with its reason."""
    pattern = r"^not_committed_again .*? transaction (\S+) is not in the table: \S+ (\S+) in version"
    assert set(re.findall(r"^(\w+_\w+) ", audited.out, re.MULTILINE)) == {"not_committed_again"}
    return dict(re.findall(pattern, audited.out, re.MULTILINE))
