"""What transactions, clients and claim checks leave behind: it goes when nobody can need it any more, and not before.

An hour of the settings lasts a second (`harness.short_hours`).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaProducer

from committerd_client import staging
from committerd_common.messages import Status, Transaction
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene
from tests.commands.running import printed

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

RECLAIM_HOURS = 2


def files_of(transaction: Transaction) -> set[str]:
    """The data files that a transaction adds."""
    parts = transaction.append.fragments or transaction.update.new_fragments
    return {f"data/{file.path}" for fragment in parts for file in fragment.files}


def claim(scene: Scene, transaction: Transaction) -> tuple[str, dict[str, str]]:
    """Put the transaction into the table's folder; its key, and the headers that name it."""
    body = transaction.SerializeToString()
    digest = hashlib.sha256(body).hexdigest()
    key = f"_transactions/{transaction.uuid}-{digest[:16]}.txn"
    Path(scene.table.uri, key).write_bytes(body)
    return key, {"transaction-file": key.rpartition("/")[2], "transaction-sha256": digest}


class Maintenance:
    """`committerd maintain` for the table of a scene, in short hours."""

    def __init__(
        self, scene: Scene, kafka: str, *, reclaim_hours: float = RECLAIM_HOURS, keep_hours: float = 1
    ) -> None:
        settings = {"MAINTAIN__KEEP_HOURS": str(keep_hours), "MAINTAIN__KEEP_VERSIONS": "1"}
        settings["MAINTAIN__RECLAIM_HOURS"] = str(reclaim_hours)
        self._environment = Daemon(
            name=scene.name, uri=scene.table.uri, kafka=kafka, settings=settings, log=scene.folder / "maintain.log"
        ).environment

    def run(self, *words: str, hour_seconds: float = 1.0, code: int = 0) -> dict[str, Any]:
        """The last event of a run."""
        command = [sys.executable, "-m", "harness.short_hours", str(hour_seconds), "--json"]
        done = subprocess.run(
            [*command, *words], env=self._environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == code, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def test_what_is_left_behind_goes_and_what_waits_stays(scene: Scene, kafka: KafkaBroker | RunningKafka) -> None:
    scene.table.create(rows=10)
    daemon = scene.started()
    maintenance = Maintenance(scene, kafka.bootstrap_servers)

    def there(keys: set[str]) -> set[str]:
        return {key for key in keys if Path(scene.table.uri, key).exists()}

    # Left behind: by a refused upsert, by a client that never staged, and by a claim check that was committed.
    table, new = scene.table.open(), pa.table({"id": [1000]})
    upserts = [staging.merge_insert(table, new, on="id").transaction for _ in range(2)]
    first, second = scene.ask(*upserts)
    assert (first.status, second.status) == (Status.COMMITTED, Status.RETRYABLE)
    refused, abandoned = files_of(upserts[1]), files_of(scene.table.append())
    claimed = scene.table.append()
    key, headers = claim(scene, claimed)
    (offset,) = scene.stage(b"", headers=headers)
    assert scene.topics.wait_answers([offset])[0].status == Status.COMMITTED
    left = refused | abandoned | {key}
    # Its files are staged again below.
    late = scene.table.append()
    (expired,) = scene.ask(late, deadline_ms="1")
    assert expired.status == Status.EXPIRED

    assert maintenance.run("--once", hour_seconds=3600)["files"] == 0
    assert there(left) == left

    # While the committer is away, records wait: those files again, another claim check, a delete at an old version.
    old = scene.table.version
    delete = staging.delete(scene.table.open(), "id = 3")
    scene.table.write()
    scene.table.write()
    daemon.stop()
    again = Transaction()
    again.CopyFrom(late)
    again.uuid = str(uuid.uuid4())
    waiting = scene.table.append()
    waiting_key, waiting_headers = claim(scene, waiting)
    offsets = [*scene.stage(again, delete), *scene.stage(b"", headers=waiting_headers)]
    needed = files_of(late) | files_of(waiting) | {waiting_key}
    time.sleep(RECLAIM_HOURS + 1)
    cleaned = maintenance.run("--once")
    assert (cleaned["event"], cleaned["versions"]) == ("cleaned", old - 1)
    assert there(left) == set()
    assert there(needed) == needed
    assert [one["version"] for one in scene.table.open().versions()] == [old, old + 1, old + 2]
    assert json.loads(printed(scene, "status", "--json", code=1))["queue"]["oldest_read_version"] == old

    daemon.start()
    assert {one.status for one in scene.topics.wait_answers(offsets)} == {Status.COMMITTED}
    ids = {*range(10), 1000, *(id_ for one in (claimed, late, waiting) for id_ in scene.table.brought[one.uuid])}
    assert set(scene.table.ids()) > ids - {3}
    assert len(scene.table.ids()) == len(ids - {3}) + 2
    time.sleep(RECLAIM_HOURS + 1)
    # It rewrites the fragments too; the versions before are young, however long that takes.
    Maintenance(scene, kafka.bootstrap_servers, keep_hours=600).run("--once")
    assert there(needed) == needed - {waiting_key}
    time.sleep(RECLAIM_HOURS + 1)
    maintenance.run("--once")
    cleanup = maintenance.run("--dry-run")
    assert (cleanup["kept"], cleanup["bytes"]) == ({"count": 1}, 0)
    named = {f"data/{file.path}" for one in scene.table.open().get_fragments() for file in one.data_files()}
    assert {f"data/{path.name}" for path in Path(scene.table.uri, "data").iterdir()} == named
    assert sorted(scene.table.ids_in_4()) == sorted(scene.table.ids())


def test_a_dead_letter_can_be_replayed_after_its_outcome_is_cleaned_up(
    scene: Scene, kafka: KafkaBroker | RunningKafka
) -> None:
    """The files that it names are a day old, and no version says any more that they were refused."""
    scene.table.create(rows=10)
    daemon = scene.started(COMMIT__ALLOWED_OPERATIONS="delete,reserve_fragments,rewrite")
    append = scene.table.append()
    append.read_version = 0
    (file,) = files_of(append)
    day_ago = time.time() - 86_400
    os.utime(Path(scene.table.uri, file), (day_ago, day_ago))
    (refused,) = scene.ask(append)
    assert (refused.status, refused.reason) == (Status.UNSUPPORTED, "operation_not_allowed")
    for row in (3, 4):
        (answer,) = scene.ask(staging.delete(scene.table.open(), f"id = {row}"))
        assert answer.status == Status.COMMITTED
    time.sleep(2)
    (letter,) = json.loads(printed(scene, "dead", "list", "--json"))["letters"]
    cleaned = Maintenance(scene, kafka.bootstrap_servers, reclaim_hours=3600).run("--once")
    assert cleaned["versions"] >= 3
    assert Path(scene.table.uri, file).exists()

    daemon.stop()
    scene.started()
    (replay,) = json.loads(printed(scene, "dead", "replay", str(letter["offset"]), "--apply", "--json"))["letters"]
    (outcome,) = scene.topics.wait_answers([replay["staged_offset"]])
    assert outcome.status == Status.COMMITTED


def test_nothing_goes_while_a_committer_would_refuse_to_run(scene: Scene, kafka: KafkaBroker | RunningKafka) -> None:
    """The staged topic was deleted and recreated: what is staged in it is not settled, at whatever offset it is."""
    scene.table.create(rows=10)
    daemon = scene.started()
    scene.committed(4)
    daemon.stop()
    scene.topics.recreate_staged()
    append = scene.table.append()
    scene.stage(append, staging.delete(scene.table.open(), "id = 3"))
    files, versions = files_of(append), [one["version"] for one in scene.table.open().versions()]
    maintenance = Maintenance(scene, kafka.bootstrap_servers)
    time.sleep(RECLAIM_HOURS + 1)
    failed = maintenance.run("--once", code=1)
    assert (failed["step"], failed["code"]) == ("cleanup", "topic_id")
    assert [one["version"] for one in scene.table.open().versions()] == versions
    assert {key for key in files if Path(scene.table.uri, key).exists()} == files

    printed(scene, "position", "adopt", "--reason", "the topic was recreated", "--apply")
    time.sleep(RECLAIM_HOURS + 1)
    maintenance.run("--once")
    assert {key for key in files if Path(scene.table.uri, key).exists()} == files
    assert scene.table.open().versions()[0]["version"] == versions[-1]


def test_what_an_open_kafka_transaction_holds_back_waits_too(scene: Scene, kafka: KafkaBroker | RunningKafka) -> None:
    """Nobody can read these records until the transaction ends, and it may stay open for days."""
    scene.table.create(rows=10)
    scene.started()
    producer = KafkaProducer(
        bootstrap_servers=scene.topics.servers, transactional_id=f"{scene.name}.writer", transaction_timeout_ms=600_000
    )
    producer.init_transactions()
    producer.begin_transaction()
    first, append, version = scene.table.append(), scene.table.append(), scene.table.version
    producer.send(scene.topics.staged, value=first.SerializeToString(), partition=0)
    producer.flush()
    offsets = scene.stage(append, staging.delete(scene.table.open(), "id = 3"))
    for _ in range(3):
        scene.table.write()
    time.sleep(RECLAIM_HOURS + 1)
    maintenance = Maintenance(scene, kafka.bootstrap_servers)
    cleaned = maintenance.run("--once")
    assert cleaned["event"] == "cleaned"
    needed = files_of(first) | files_of(append)
    assert {key for key in needed if Path(scene.table.uri, key).exists()} == needed
    assert scene.table.open().versions()[0]["version"] == version
    found = maintenance.run("--dry-run")
    assert (found["waiting_records"], found["oldest_read_version"]) == (3, version)

    producer.commit_transaction()
    producer.close()
    offsets.append(offsets[0] - 1)
    assert {one.status for one in scene.topics.wait_answers(offsets)} == {Status.COMMITTED}
    assert len(scene.table.ids()) == 10 + 3 + 2 - 1
