"""Wrong records between good ones: they get a reason, are kept as dead letters, and stop no other record."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd_client import staging
from committerd_common.messages import Status, Transaction
from harness.scene import STAYS, Scene
from harness.topics import Header

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_BYTES_MAX = 4096

Wrong = tuple[str, str, bytes | None, Sequence[Header]]
"""Status, reason, value, headers."""


def _changed(transaction: Transaction, change: Callable[[Transaction], object]) -> bytes:
    """A transaction with one thing wrong."""
    copy = Transaction()
    copy.CopyFrom(transaction)
    copy.uuid = str(uuid.uuid4())
    change(copy)
    return bytes(copy.SerializeToString())


def _wrong_values(scene: Scene) -> list[Wrong]:
    """Values that are no transaction, or one that can never be committed."""
    good = scene.table.append()
    whole = bytes(good.SerializeToString())
    elsewhere = Transaction(uuid=str(uuid.uuid4()))
    elsewhere.clone.ref_path = "/elsewhere"

    def invalid(reason: str, change: Callable[[Transaction], object]) -> Wrong:
        return "INVALID", reason, _changed(good, change), ()

    return [
        ("INVALID", "record_undecodable", b"\xff\xfegarbage that is no protobuf message\x00", ()),
        ("INVALID", "record_undecodable", whole[:-3], ()),
        ("INVALID", "record_empty", b"", ()),
        ("INVALID", "record_empty", None, ()),
        invalid("record_too_large", lambda t: t.transaction_properties.update(x="y" * _BYTES_MAX)),
        invalid("uuid_invalid", lambda t: t.MergeFrom(Transaction(uuid=t.uuid.upper()))),
        invalid("uuid_invalid", lambda t: t.ClearField("uuid")),
        invalid("no_operation", lambda t: t.ClearField("append")),
        invalid("future_read_version", lambda t: t.MergeFrom(Transaction(read_version=10**6))),
        invalid("detached_read_version", lambda t: t.MergeFrom(Transaction(read_version=2**63 + 5))),
        invalid("reserved_key", lambda t: t.transaction_properties.update({"committerd.members": "x"})),
        invalid("path_outside", lambda t: _set_path(t, "../../other.lance/data/x.lance")),
        invalid("path_outside", lambda t: _set_path(t, "/etc/passwd")),
        invalid("duplicate_file", lambda t: t.append.fragments.append(t.append.fragments[0])),
        invalid("fragment_without_files", lambda t: t.append.fragments[0].ClearField("files")),
        ("UNSUPPORTED", "operation_not_allowed", elsewhere.SerializeToString(), ()),
        ("UNSUPPORTED", "unknown_operation", _unknown_operation(), ()),
    ]


def _wrong_headers(scene: Scene) -> list[Wrong]:
    """Good transactions whose headers are impossible."""

    def with_headers(status: str, reason: str, **headers: str) -> Wrong:
        named = [(name.replace("_", "-"), text.encode()) for name, text in headers.items()]
        return status, reason, bytes(scene.table.append().SerializeToString()), named

    claimed = with_headers("INVALID", "claim_missing", transaction_file="no.txn", transaction_sha256="0" * 64)
    value = bytes(scene.table.append().SerializeToString())
    return [
        with_headers("INVALID", "wrong_dataset", dataset="s3://bucket/another.lance"),
        with_headers("INVALID", "header_invalid", app_id="a b", app_version="1"),
        with_headers("INVALID", "header_invalid", app_id="a", app_version="one"),
        with_headers("INVALID", "header_invalid", app_id="a", app_version=str(2**53)),
        with_headers("INVALID", "header_invalid", app_run="r"),
        with_headers("INVALID", "header_invalid", create_only="perhaps"),
        with_headers("INVALID", "header_invalid", create_options="{"),
        with_headers("INVALID", "create_options", create_options='{"stable": true}'),
        with_headers("INVALID", "header_invalid", deadline_ms="soon"),
        with_headers("EXPIRED", "deadline_passed", deadline_ms=str(int(time.time() * 1000) - 1)),
        ("INVALID", "header_invalid", value, [("dataset", b"\xff\xfe")]),
        # Of a header that occurs twice the last one counts.
        ("INVALID", "wrong_dataset", value, [("dataset", scene.table.uri.encode()), ("dataset", b"/else.lance")]),
        (claimed[0], claimed[1], b"", claimed[3]),
        with_headers("INVALID", "header_invalid", transaction_file="../x.txn", transaction_sha256="0" * 64),
    ]


def _set_path(transaction: Transaction, path: str) -> None:
    transaction.append.fragments[0].files[0].path = path


def _unknown_operation() -> bytes:
    """Field 150, as an operation of a future Lance."""
    return bytes(Transaction(uuid=str(uuid.uuid4())).SerializeToString()) + b"\xb2\x09\x00"


def test_bad_records_between_good_ones_become_dead_letters_and_the_good_ones_commit(scene: Scene) -> None:
    ids = set(scene.table.create())
    scene.started(**STAYS, COMMIT__TRANSACTION_BYTES_MAX=str(_BYTES_MAX))  # a new start would write letters again
    wrong = [*_wrong_values(scene), *_wrong_headers(scene)]
    offsets, good = [], []
    for number, (_, _, value, headers) in enumerate(wrong):
        transaction = scene.table.append()
        ids |= set(scene.table.brought[transaction.uuid])
        good += scene.stage(transaction, headers={"dataset": scene.table.uri, "producer": "p"})
        key = f"key {number}".encode() if number % 2 else None
        offsets += scene.topics.stage(value, key=key, headers=[("producer", b"bad one"), *headers])
    answers = scene.topics.wait_answers(offsets)
    assert [(Status.Name(a.status), a.reason) for a in answers] == [(status, reason) for status, reason, *_ in wrong]
    assert {a.status for a in scene.topics.wait_answers(good)} == {Status.COMMITTED}
    assert all(a.producer == "bad one" and a.message for a in answers)
    evidence = scene.audit(ids)
    # A letter each, with its place; a record without a uuid has topic and offset only.
    dead = [offset for offset, (status, *_) in zip(offsets, wrong, strict=True) if status != "EXPIRED"]
    assert [int(letter.header("committerd-offset")) for letter in evidence.letters] == dead
    assert all(letter.header("committerd-topic") == scene.topics.staged for letter in evidence.letters)
    assert {a.uuid for a, (_, reason, *_) in zip(answers, wrong, strict=True) if reason.startswith("record_")} == {""}


def test_only_bad_records_are_answered_too(scene: Scene) -> None:
    """Without a commit to ride along with, refusals get versions of their own, which hold nothing but the position."""
    ids = scene.table.create()
    scene.started()
    offsets = [offset for _ in range(3) for offset in scene.stage(b"garbage")]
    answers = scene.topics.wait_answers(offsets)
    assert {(a.status, a.reason) for a in answers} == {(Status.INVALID, "record_undecodable")}
    scene.audit(ids)
    assert scene.position()["next"] == 3


def test_files_of_another_version_wait_for_the_operator_to_allow_them(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started()
    new = pa.table({"id": scene.table.new_ids(1)}, schema=scene.table.open().schema)
    (fragment,) = write_fragments(new, scene.table.uri, mode="append", data_storage_version="2.1")
    (answer,) = scene.topics.wait_answers(scene.stage(staging.append([fragment])))
    assert (answer.status, answer.reason) == (Status.INVALID, "file_version")
    assert scene.table.ids() == scene.table.ids_in_4() == ids
    daemon.stop()
    scene.started(COMMIT__MIXED_FILE_VERSIONS="allow")
    (answer,) = scene.topics.wait_answers(scene.stage(staging.append([fragment])))
    assert answer.status == Status.COMMITTED
    scene.audit([*ids, *new["id"].to_pylist()])


def test_a_transaction_may_lie_beside_the_table(scene: Scene) -> None:
    ids = scene.table.create()
    scene.started()
    claimed, changed = scene.table.append(), scene.table.append()
    body = bytes(claimed.SerializeToString())
    folder = Path(scene.table.uri, "_transactions")
    folder.mkdir(exist_ok=True)
    (folder / "claimed.txn").write_bytes(body)
    (folder / "changed.txn").write_bytes(bytes(changed.SerializeToString()))
    digest = hashlib.sha256(body).hexdigest()
    (good,) = scene.ask(b"", transaction_file="claimed.txn", transaction_sha256=digest)
    assert (good.status, good.uuid) == (Status.COMMITTED, claimed.uuid)
    (bad,) = scene.ask(b"", transaction_file="changed.txn", transaction_sha256=digest)
    assert (bad.status, bad.reason) == (Status.INVALID, "claim_mismatch")
    both = scene.ask(changed, transaction_file="claimed.txn", transaction_sha256=digest)[0]
    assert (both.status, both.reason) == (Status.INVALID, "header_invalid")
    assert sorted(scene.table.ids()) == sorted([*ids, *scene.table.brought[claimed.uuid]])


def test_another_table_under_the_same_name_is_noticed_by_the_read_versions_uuid(scene: Scene) -> None:
    ids = scene.table.create()
    scene.started()
    made = scene.table.open().read_transaction(1).uuid
    right, wrong = (scene.table.append(read_version=1) for _ in range(2))
    (good,) = scene.ask(right, read_uuid=made)
    (bad,) = scene.ask(wrong, read_uuid=str(uuid.uuid4()))
    assert good.status == Status.COMMITTED
    assert (bad.status, bad.reason) == (Status.INVALID, "table_recreated")
    scene.audit([*ids, *scene.table.brought[right.uuid]])
