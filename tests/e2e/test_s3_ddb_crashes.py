"""A committer that is killed between any two steps of a commit through DynamoDB: the next start repairs it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from committerd_common.messages import Status
from harness.child import Launch
from harness.dynamodb import DynamoDBEndpoint
from harness.fault_proxy import FaultProxy, Hold
from harness.kafka import KafkaBroker, RunningKafka
from harness.lance_table import LanceTable
from harness.places import ddb_place
from harness.s3 import S3Endpoint
from harness.scene import Scene

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.s3,
    pytest.mark.dynamodb,
    pytest.mark.pylance,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

_SETTINGS = {"KAFKA__SESSION_TIMEOUT_MS": "1500", "KAFKA__HEARTBEAT_INTERVAL_MS": "300"}
STEPS = ("stage the manifest", "put the entry", "copy to its place", "replace the entry", "delete the staged one")
_COMMITTED_WITH = 1
"""The step that makes it a version."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A table on both stores, with a proxy before each."""

    scene: Scene
    s3_proxy: FaultProxy
    ddb_proxy: FaultProxy
    dynamodb: DynamoDBEndpoint
    entries_in: str
    """DynamoDB's table."""

    def hold(self, step: int) -> Hold:
        """Hold the next request of a step before it is applied."""
        match step:
            case 0:
                return self.s3_proxy.hold(method="PUT", path=r"/_versions/[^/?]*\.manifest-")
            case 1:
                return self.ddb_proxy.hold(target="PutItem", body="attribute_not_exists")
            case 2:
                return self.s3_proxy.hold(method="PUT", path=r"/_versions/[^/?]*\.manifest($|\?)")
            case 3:
                return self.ddb_proxy.hold(target="PutItem", body=r"\battribute_exists")
            case _:
                return self.s3_proxy.hold(method="DELETE", path=r"/_versions/[^/?]*\.manifest-")

    def unfinished(self) -> list[str]:
        """Staged manifests that entries name."""
        paths = (item["path"] for item in self.dynamodb.items(self.entries_in))
        return [path for path in paths if not path.endswith(".manifest")]


@pytest.fixture
def stage(
    s3: S3Endpoint,
    dynamodb: DynamoDBEndpoint,
    kafka: KafkaBroker | RunningKafka,
    dataset: str,
    tmp_path: Path,
    launch: Launch,
) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        s3_proxy = stack.enter_context(FaultProxy(s3.url))
        ddb_proxy = stack.enter_context(FaultProxy(dynamodb.url))
        place = ddb_place(s3, dynamodb, proxy=s3_proxy.url, ddb_proxy=ddb_proxy.url)
        scene = stack.enter_context(
            Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch)
        )
        yield Stage(scene, s3_proxy, ddb_proxy, dynamodb, place.uri.partition("ddbTableName=")[2])


class Reader(threading.Thread):
    """pylance, which opens the table again and again."""

    def __init__(self, table: LanceTable) -> None:
        super().__init__()
        self.seen: list[int] = []
        """The number of rows that each reading found."""
        self.error: Exception | None = None
        self._table = table
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.02):
            try:
                self.seen.append(len(self._table.ids()))
            except Exception as error:  # noqa: BLE001  # told in the test's thread
                self.error = error
                return

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def test_readers_finish_what_a_killed_committer_left(stage: Stage) -> None:
    scene, table = stage.scene, stage.scene.table
    ids = table.create()
    daemon = scene.started(**_SETTINGS)
    with Reader(table) as reader:
        for step in range(len(STEPS)):
            transaction = table.append()
            held = stage.hold(step)
            offsets = scene.stage(transaction)
            held.wait()
            daemon.kill()
            new = table.brought[transaction.uuid]
            assert sorted(table.ids()) == ids + (new if step > _COMMITTED_WITH else []), STEPS[step]
            assert stage.unfinished() == []
            held.release(drop=True)
            daemon.start()
            assert [answer.status for answer in scene.topics.wait_answers(offsets, timeout=120)] == [
                Status.COMMITTED
            ], STEPS[step]
            ids += new
    assert reader.error is None
    assert len(reader.seen) > len(STEPS)
    assert reader.seen == sorted(reader.seen)
    scene.audit(ids)


def test_the_next_start_finishes_what_a_killed_committer_left(stage: Stage) -> None:
    """Its last request has no effect when it arrives after that."""
    scene, table = stage.scene, stage.scene.table
    ids = table.create()
    daemon = scene.started(**_SETTINGS)
    for step in range(len(STEPS)):
        transaction = table.append()
        held = stage.hold(step)
        offsets = scene.stage(transaction)
        held.wait()
        daemon.kill()
        assert bool(stage.unfinished()) is (_COMMITTED_WITH < step <= 3), STEPS[step]
        daemon.start()
        assert [answer.status for answer in scene.topics.wait_answers(offsets, timeout=120)] == [Status.COMMITTED], (
            STEPS[step]
        )
        assert stage.unfinished() == []
        ids += table.brought[transaction.uuid]
        held.release()
        held.wait_passed()
        assert stage.unfinished() == []
        assert sorted(table.ids()) == ids, STEPS[step]
        ids += scene.committed()
    scene.audit(ids)
