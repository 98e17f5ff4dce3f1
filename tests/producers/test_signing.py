"""A client signs its records, and reads its key again when the file changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from committerd_client import CommitClient, SubmitFailed
from committerd_client.headers import StagedRecord
from committerd_client.signing import Signer, signer
from committerd_common.signature import is_signed_by, signed_bytes
from committerd_login.watched_file import WatchedFile
from committerd_spark.options import Options

KEY, OTHER = "k" * 32, "o" * 32
RECORD = StagedRecord(uuid="u", value=b"value", headers=[("producer", b"loader")])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def signature_of(record: StagedRecord) -> bytes:
    return dict(record.headers)["signature"]


def test_a_record_is_signed_with_the_key_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    made = signer("t.staged", producer="loader", key_file=file, key=None)
    assert made is not None
    assert KEY not in repr(made)
    record = made.signed(RECORD)
    signed = signed_bytes("t.staged", key=b"u", value=b"value", headers=RECORD.headers)
    assert is_signed_by([KEY], signed, signature_of(record))
    assert record.size <= RECORD.size + made.extra_bytes + 20


def test_the_client_is_told_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "key"
    given = {"dataset": "events", "producer": "loader", "producer_key_file": file}
    with pytest.raises(ValueError, match=r"producer_key_file: .* can't be read"):
        CommitClient("b:1", **given)  # type: ignore[arg-type]
    file.write_text("short")
    with pytest.raises(ValueError, match=r"producer_key_file: .*at least 32 characters"):
        CommitClient("b:1", **given)  # type: ignore[arg-type]
    file.write_text(KEY)
    assert KEY not in repr(vars(CommitClient("b:1", **given)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="need producer"):
        CommitClient("b:1", dataset="events", producer_key_file=file)
    with pytest.raises(ValueError, match="exclude each other"):
        CommitClient("b:1", **given, producer_key=lambda: KEY)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="producer_key takes a function"):
        CommitClient("b:1", dataset="events", producer="loader", producer_key=KEY)  # type: ignore[arg-type]


def test_without_a_key_nothing_is_sent() -> None:
    def fails() -> str:
        raise OSError("the vault is closed")

    for key, why in ((fails, "the vault is closed"), (lambda: "short", "at least 32 characters")):
        with pytest.raises(SubmitFailed, match=f"could not be signed: .*{why}.*Nothing was sent") as caught:
            Signer(topic="t", key=key).signed(RECORD)
        assert caught.value.code == "not_signed"


def test_a_job_of_spark_gives_producer_and_key(tmp_path: Path) -> None:
    given = {"bootstrap_servers": "b:1", "uri": "/t.lance"}
    queue = Options.of({**given, "producer": "loader", "producerKeyFile": "/run/key"}).queue
    assert (queue.producer, queue.producer_key_file) == ("loader", "/run/key")
    with pytest.raises(ValueError, match="producer_key_file needs producer"):
        _ = Options.of({**given, "producer_key_file": "/run/key"}).queue


def test_a_file_is_read_again_when_it_changes_and_kept_while_it_is_wrong(tmp_path: Path) -> None:
    file, clock, failed = tmp_path / "key", Clock(), list[ValueError]()
    file.write_text(KEY)

    def parse(text: str) -> str:
        if len(text) < 32:
            raise ValueError("is short")
        return text

    watched = WatchedFile(file, "the.option", parse=parse, failed=failed.append, monotonic=clock)
    file.write_text(OTHER)
    assert watched.current() == KEY  # nobody looks twice in a second
    clock.now = 1.0
    assert watched.current() == OTHER
    for number, wrong in enumerate((None, b"short", b"\xff")):
        file.unlink(missing_ok=True)
        if wrong is not None:
            file.write_bytes(wrong)
        for _ in range(2):
            clock.now += 1
            assert watched.current() == OTHER
        assert len(failed) == number + 1
    assert [str(one).partition(": ")[0] for one in failed] == ["the.option"] * 3
    # It is right again without a change of time, size or inode, as after a `chmod`.
    stamp = file.stat()
    file.write_bytes(b"\xff" * 32)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    clock.now += 1
    assert watched.current() == OTHER
    file.write_text("n" * 32)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    clock.now += 1
    assert watched.current() == "n" * 32
    assert len(failed) == 4
    # As Kubernetes does it: another folder takes the place of the one behind a link.
    new = tmp_path / "new"
    new.write_text(KEY)
    os.replace(new, file)
    clock.now += 1
    assert watched.current() == KEY
