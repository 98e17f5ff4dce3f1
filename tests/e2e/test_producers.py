"""Producers with keys, on a real Kafka: each stages what it may, and nobody stages in the name of another."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from committerd.queue.port import Publication
from committerd.queue.producers import Producer, Signing
from committerd_client import InvalidTransaction, Staged, SyncCommitClient, UnsupportedTransaction, staging
from committerd_common.messages import Outcome, Status, Transaction
from harness.scene import STAYS, Scene, until
from harness.topics import Header
from tests.commands.running import answered, printed, run

LOADER, EDITOR, OPERATOR, ROTATED = ("loader-key-" * 3, "editor-key-" * 3, "operator-key-" * 3, "rotated-key-" * 3)
SECRETS = (LOADER, EDITOR, OPERATOR, ROTATED)


class Producers:
    """The file of the operator."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write(loader=[LOADER])

    def write(self, *, loader: Sequence[str]) -> None:
        """Replace the file, as Kubernetes does it."""
        tables: dict[str, dict[str, Sequence[str]]] = {
            "loader": {"keys": loader, "operations": ["append"], "app_ids": ["loader-*"]},
            "editor": {"keys": [EDITOR]},
            "committerd-replay": {"keys": [OPERATOR]},
            "committerd-heartbeat": {"keys": [OPERATOR], "operations": ["update_config"]},
            "committerd-maintain": {"keys": [OPERATOR], "operations": ["rewrite", "create_index", "reserve_fragments"]},
        }
        lines = [
            line
            for name, table in tables.items()
            for line in (f"[{name}]", *(f"{entry} = {json.dumps(value)}" for entry, value in table.items()))
        ]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines))
        os.replace(new, self.path)


@pytest.fixture
def producers(tmp_path: Path) -> Producers:
    return Producers(tmp_path / "producers.toml")


def settings(producers: Producers) -> dict[str, Any]:
    return {"COMMIT__PRODUCERS_FILE": str(producers.path)}


def client(scene: Scene, producer: str, key: str) -> SyncCommitClient:
    return SyncCommitClient(
        scene.topics.servers,
        dataset=scene.name,
        dataset_uri=scene.table.uri,
        producer=producer,
        producer_key=lambda: key,
        timeout=200,
    )


def signed(
    scene: Scene, transaction: Transaction, *, name: str = "loader", key: str = LOADER, **headers: str
) -> tuple[bytes, list[Header]]:
    """Value and headers of a record with this signature. The key is none: `Topics.stage` sends none."""
    signing = Signing(topic=f"{scene.name}.staged", producer=Producer(name=name, keys=(key,)))
    given = [(header.replace("_", "-"), text.encode()) for header, text in headers.items()]
    sent = signing.signed(Publication(key=None, value=transaction.SerializeToString(), headers=given))
    return sent.value, list(sent.headers)


def answer(scene: Scene, value: bytes, headers: Sequence[Header]) -> Outcome:
    return scene.topics.wait_answers(scene.stage(value, headers=headers))[0]


def test_each_producer_stages_what_it_may(scene: Scene, producers: Producers) -> None:
    ids = scene.table.create(3)
    daemon = scene.started(**STAYS, **settings(producers))
    with client(scene, "loader", LOADER) as loader, client(scene, "editor", EDITOR) as editor:
        appended = scene.table.appends(2)
        loader.commit(appended[0])
        opened = scene.table.open
        refused: dict[str, Transaction | Staged] = {
            "delete": staging.delete(opened(), f"id = {ids[0]}"),
            "overwrite": Transaction(uuid=str(uuid.uuid4()), overwrite=Transaction.Overwrite()),
            "merge": staging.add_columns(opened(), pa.schema([pa.field("note", pa.string())])),
            "update_config": staging.update_config(opened(), table_metadata={"owner": "loader"}),
        }
        for operation, work in refused.items():
            with pytest.raises(
                UnsupportedTransaction, match=f"operation {operation} is not allowed to producer 'loader'"
            ) as caught:
                loader.commit(work)
            assert caught.value.code == "operation_not_allowed"
        with pytest.raises(InvalidTransaction, match="may not stage units of application 'billing'"):
            loader.commit(scene.table.append(), app=("billing", 2**50))
        loader.commit(appended[1], app=("loader-1", 1))
        editor.commit(staging.delete(opened(), f"id = {ids[0]}"))
        editor.commit(staging.update_config(opened(), table_metadata={"owner": "editor"}))
    assert scene.table.metadata()["owner"] == "editor"
    assert ids[0] not in scene.table.ids()
    members = [member.producer for version in scene.table.versions() for member in version.members]
    assert members == ["loader", "loader", "editor", "editor"]
    assert daemon.metric("committerd_dead_letters_total", reason="operation_not_allowed") == 4
    scene.audit({*ids[1:], *(row for one in appended for row in scene.table.brought[one.uuid])})


def test_forged_records_are_refused_and_stop_nobody(scene: Scene, producers: Producers) -> None:
    scene.table.create(1)
    scene.started(**STAYS, **settings(producers))
    value, headers = signed(scene, scene.table.append())
    other = scene.table.append().SerializeToString()
    wrong: list[tuple[str, bytes, Sequence[Header]]] = [
        ("signature_missing", value, [one for one in headers if one[0] != "signature"]),
        ("signature_invalid", value, [*headers, ("signature", b"v1:" + b"0" * 64)]),
        ("signature_invalid", other, headers),
        ("signature_invalid", value, [*headers, ("deadline-ms", b"1")]),
        ("signature_invalid", value, [*headers, ("producer", b"editor")]),
        ("producer_unknown", value, [*headers, ("producer", b"nobody")]),
        ("signature_invalid", *signed(scene, scene.table.append(), key=EDITOR)),
        ("header_invalid", value, [*headers, ("signature", b"v1:" + b"0" * 200)]),
    ]
    for reason, forged, with_headers in wrong:
        outcome = answer(scene, forged, with_headers)
        assert (outcome.status, outcome.reason) == (Status.INVALID, reason)
    assert answer(scene, value, headers).status == Status.COMMITTED
    again = answer(scene, value, headers)
    assert (again.status, again.reason) == (Status.DUPLICATE, "uuid_seen")
    written = Path(scene.folder / "committerd-1.log").read_text() + "".join(
        letter.message for letter in scene.topics.read_outcomes()
    )
    assert not [secret for secret in SECRETS if secret in written]


def test_the_client_reads_its_key_from_a_file_and_signs_the_name_of_a_large_transaction(
    scene: Scene, producers: Producers, tmp_path: Path
) -> None:
    scene.table.create(1)
    scene.started(**STAYS, **settings(producers))
    file = tmp_path / "loader.key"
    file.write_text(LOADER + "\n")
    with SyncCommitClient(
        scene.topics.servers,
        dataset=scene.name,
        dataset_uri=scene.table.uri,
        producer="loader",
        producer_key_file=file,
        claim_check_above=0,
        timeout=200,
    ) as loader:
        assert loader.commit(scene.table.append()).version == 2
        (record,) = scene.topics.read_staged()
        named = dict(record.headers)
        assert not record.value
        other = {**named, "transaction-sha256": b"0" * 64}
        assert answer(scene, b"", list(other.items())).reason == "signature_invalid"
        producers.write(loader=[ROTATED])
        file.write_text(ROTATED)

        def committed() -> bool:
            with contextlib.suppress(InvalidTransaction):  # the committer or the client has not looked yet
                return bool(loader.commit(scene.table.append()).version)
            return False

        until(committed)


def test_a_key_is_replaced_without_a_restart(scene: Scene, producers: Producers) -> None:
    scene.table.create(1)
    scene.started(**STAYS, **settings(producers))

    def status(key: str) -> str:
        outcome = answer(scene, *signed(scene, scene.table.append(), key=key))
        return outcome.reason or Status.Name(outcome.status)

    assert status(LOADER) == "COMMITTED"
    assert status(ROTATED) == "signature_invalid"
    producers.write(loader=[ROTATED, LOADER])
    until(lambda: status(ROTATED) == "COMMITTED")
    assert status(LOADER) == "COMMITTED"
    producers.write(loader=[ROTATED])
    until(lambda: status(LOADER) == "signature_invalid")
    assert status(ROTATED) == "COMMITTED"
    producers.path.write_text("[loader")  # a mistake: what was known stays
    log = scene.folder / "committerd-1.log"
    until(lambda: status(ROTATED) == "COMMITTED" and "producers.unreadable" in log.read_text())
    producers.write(loader=[LOADER])
    until(lambda: status(LOADER) == "COMMITTED")


def test_commands_stage_as_producers_of_their_own(scene: Scene, producers: Producers) -> None:
    scene.table.create(3)
    scene.started(**STAYS, **settings(producers))
    delete = staging.delete(scene.table.open(), "id = 0").transaction
    outcome = answer(scene, *signed(scene, delete))
    assert (outcome.status, outcome.reason) == (Status.UNSUPPORTED, "operation_not_allowed")
    (letter,) = answered(scene, "dead", "replay", "0", "--apply", **settings(producers))["letters"]
    assert not letter["refused"], letter
    assert scene.topics.wait_answers([letter["staged_offset"]])[0].status == Status.COMMITTED
    (member,) = [member for version in scene.table.versions() for member in version.members]
    assert (member.uuid, member.producer) == (delete.uuid, "committerd-replay")
    assert answered(scene, "heartbeat", **settings(producers))["version"] == scene.table.version
    printed(scene, "maintain", "--once", **settings(producers))
    without = Path(scene.folder / "few.toml")
    without.write_text(f'[loader]\nkeys = ["{LOADER}"]\n')
    for command in (("heartbeat",), ("maintain", "--once"), ("dead", "replay", "0")):
        said = printed_error(scene, *command, COMMIT__PRODUCERS_FILE=str(without))
        assert "has no producer 'committerd-" in said


def printed_error(scene: Scene, *words: str, **given: str) -> str:
    """The error of a command whose settings are wrong."""
    ran = run(scene, *words, **given)
    assert ran.code == 2, f"exit code {ran.code}\n{ran.out}\n{ran.err}"
    return ran.err


def test_a_wrong_file_is_told_at_the_start(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "producers.toml"
    file.write_text('[loader]\nkeys = ["too-short-a-secret"]\n')
    said = printed_error(scene, "run", COMMIT__PRODUCERS_FILE=str(file))
    assert "commit.producers_file" in said
    assert "producer 'loader': a key of a producer has at least 32 characters" in said
    assert "too-short-a-secret" not in said


def test_before_there_is_a_table_a_forged_create_is_answered(scene: Scene, producers: Producers) -> None:
    scene.daemon(**STAYS, **settings(producers)).wait_ready(text="waits for the table")
    staged = scene.table.staged_create()
    value = staged.transaction.SerializeToString()
    headers = [("create-only", b"true"), ("create-options", json.dumps(dict(staged.create_options)).encode())]
    assert answer(scene, value, headers).reason == "signature_missing"
    with client(scene, "editor", EDITOR) as editor:
        assert editor.commit(staged).version == 1


def test_unsigned_queues_take_signed_records(scene: Scene) -> None:
    scene.table.create(1)
    scene.started(**STAYS)
    assert answer(scene, *signed(scene, scene.table.append(), key=str(uuid.uuid4()))).status == Status.COMMITTED
