"""`committerd dead`: dead letters are listed, shown, staged again where that helps, and deleted from the front."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from committerd_common.messages import Status, Transaction
from harness.scene import STAYS, Scene, until
from tests.commands.running import answered, printed, run
from tests.commands.story import Story
from tests.test_memory import command

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def test_letters_are_listed_and_chosen(story: Story) -> None:
    scene = story.scene
    listed = answered(scene, "dead", "list")
    assert listed["matching"] == 2
    assert [(one["offset"], one["reason"], one["staged_at"]) for one in listed["letters"]] == [
        (0, "record_undecodable", f"{scene.name}.staged:{story.garbage}"),
        (1, "wrong_dataset", f"{scene.name}.staged:{story.elsewhere_offset}"),
    ]
    assert (listed["letters"][1]["uuid"], listed["letters"][1]["operation"]) == (story.elsewhere.uuid, "append")

    def offsets(*words: str) -> tuple[int, list[int]]:
        found = answered(scene, "dead", "list", *words)
        return found["matching"], [one["offset"] for one in found["letters"]]

    assert offsets("--reason", "wrong_dataset") == (1, [1])
    assert offsets("--reason", "wrong_dataset", "--reason", "record_undecodable") == (2, [0, 1])
    assert offsets("--limit", "1") == (2, [1])
    assert offsets("--since", "1h") == (2, [0, 1])
    assert offsets("--since", "2100-01-01") == (0, [])
    text = printed(scene, "dead", "list", "--limit", "1")
    assert text.splitlines()[0].split() == ["offset", "when", "uuid", "operation", "reason", "message"]
    assert "The newest 1 of 2" in text
    assert "no such letter" in printed(scene, "dead", "list", "--reason", "schema")
    assert "--since is 'soon'" in run(scene, "dead", "list", "--since", "soon").err


def test_a_letter_is_shown_with_its_transaction(story: Story) -> None:
    scene = story.scene
    shown = answered(scene, "dead", "show", "1")
    assert Transaction.FromString(base64.b64decode(shown["value_base64"])) == story.elsewhere
    assert dict(shown["headers"]) == {"dataset": "/nowhere.lance", "producer": "lost"}
    assert f'uuid: "{story.elsewhere.uuid}"' in shown["transaction"]
    text = printed(scene, "dead", "show", "1")
    assert "INVALID wrong_dataset" in text
    assert f"staged:           offset {story.elsewhere_offset} of {scene.name}.staged" in text
    assert '    path: "' in text
    # Garbage can't control the terminal.
    assert "can't be decoded" in printed(scene, "dead", "show", "0")
    assert "\x1b" not in printed(scene, "dead", "show", "0")
    missing = run(scene, "dead", "show", "7")
    assert (missing.code, "holds 0 to 2 (exclusive)" in missing.err) == (2, True)


def test_what_would_die_again_is_not_staged_again(story: Story) -> None:
    scene = story.scene
    refused = answered(scene, "dead", "replay", "0", "1", "--apply", code=1)["letters"]
    assert ["as record_undecodable" in refused[0]["refused"], "as wrong_dataset" in refused[1]["refused"]] == [True] * 2
    assert [one["staged_offset"] for one in refused] == [None, None]
    # Under the name that its producer gave the table it could be committed.
    (good,) = answered(scene, "dead", "replay", "1", DATASET__ALIASES="/nowhere.lance")["letters"]
    assert (good["refused"], good["staged_offset"]) == ("", None)
    assert answered(scene, "dead", "replay", "--reason", "schema")["letters"] == []
    assert run(scene, "dead", "replay").code == 2
    assert len(scene.topics.read_staged()) == 9


def test_a_replay_is_judged_anew_and_only_once(scene: Scene) -> None:
    scene.table.create()
    daemon = scene.started(**STAYS)  # a new start would write letters again
    early, done = scene.table.append(read_version=4), scene.table.append(read_version=4)
    headers = {"producer": "p", "app-id": "a", "app-version": "1", "attempt": "2"}
    offsets = [*scene.stage(early, headers=headers), *scene.stage(done)]
    assert {answer.reason for answer in scene.topics.wait_answers(offsets)} == {"future_read_version"}
    scene.table.write()
    scene.table.write()
    # One of them was committed by hand meanwhile.
    file = scene.folder / "done.pb"
    file.write_bytes(done.SerializeToString())
    printed(scene, "commit", scene.table.uri, str(file))
    by_hand = scene.table.version

    dry = answered(scene, "dead", "replay", "--reason", "future_read_version", code=1)
    assert [one["refused"] != "" for one in dry["letters"]] == [False, True]
    assert f"is in the table at version {by_hand}" in dry["letters"][1]["refused"]
    assert "Nothing was staged" in printed(scene, "dead", "replay", "0", "1", code=1)
    assert len(scene.topics.read_staged()) == 2

    daemon.stop()
    (replayed,) = answered(scene, "dead", "replay", "0", "--apply")["letters"]
    assert replayed["staged_offset"] == 2
    again = answered(scene, "dead", "replay", "0", "--apply", code=1)["letters"][0]
    assert "staged again already, at offset 2" in again["refused"]
    staged = scene.topics.read_staged()[-1]
    assert (staged.key, staged.value) == (None, early.SerializeToString())
    assert dict(staged.headers) == {
        "producer": b"p",
        "app-id": b"a",
        "app-version": b"1",
        "replay-of": f"{scene.topics.staged}:0".encode(),
    }
    daemon.start()
    (answer,) = scene.topics.wait_answers([2])
    assert (answer.status, answer.uuid) == (Status.COMMITTED, early.uuid)
    committed = answered(scene, "dead", "replay", "0", "--apply", code=1)["letters"][0]
    assert f"is in the table at version {answer.version}" in committed["refused"]

    dropped = answered(scene, "dead", "drop", "--below", "1")
    assert (dropped["applied"], dropped["letters"], dropped["reasons"]) == (False, 1, {"future_read_version": 1})
    assert "Deleted; the topic starts at 1" in printed(scene, "dead", "drop", "--below", "1", "--apply")
    assert [one["offset"] for one in answered(scene, "dead", "list")["letters"]] == [1]
    assert run(scene, "dead", "drop", "--below", "3", "--apply").code == 2
    until(lambda: scene.topics.group_offset() == 3, seconds=120)
    assert answered(scene, "audit")["good"]


def test_many_large_letters_are_replayed_in_bounded_memory(scene: Scene) -> None:
    """Kept and decoded, 80 MB of letters would take 160 MB more than the client's buffers."""
    scene.table.create()
    daemon = scene.started(**STAYS)  # a new start would write letters again
    staged = [scene.table.append() for _ in range(2)] * 40
    values = [one.SerializeToString() + b"\xfa\x7f\xc0\x84\x3d" + bytes(1_000_000) for one in staged]
    offsets = scene.topics.stage(*values, headers={"dataset": "/nowhere.lance"})
    assert {answer.reason for answer in scene.topics.wait_answers(offsets)} == {"wrong_dataset"}
    daemon.stop()
    ended = command(
        Path(scene.table.uri),
        ["dead", "replay", "--reason", "wrong_dataset", "--json"],
        scene.topics.servers,
        COMMITTERD_DATASET__NAME=scene.name,
        COMMITTERD_DATASET__ALIASES="/nowhere.lance",
    )
    letters = json.loads(ended.out)["letters"]
    assert [bool(one["refused"]) for one in letters] == [False, False, *[True] * 78]
    assert ended.resident_mib < 200
