"""A dataset to which everything happens that its metrics tell of: real Kafka, S3, DynamoDB, two committers.

It lies on S3 with its versions in DynamoDB, behind proxies that fail now and then: no metric stays without series.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from committerd.dev.parts import free_port
from committerd_client import staging
from committerd_common.messages import Outcome, Status, Transaction
from harness.daemon import Daemon
from harness.dynamodb import DynamoDBEndpoint
from harness.fault_proxy import DROP_ANSWER, DROP_REQUEST, FaultProxy, answer
from harness.places import ddb_place
from harness.prometheus import Prometheus, Target
from harness.s3 import S3Endpoint
from harness.scene import STAYS, Scene, until
from tests.ingest.running import Topic

_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The committers of one dataset, and what is between them and their store."""

    scene: Scene
    active: Daemon
    standby: Daemon
    maintainer: Daemon
    """`committerd maintain`, which is not started."""
    maintainer_url: str
    ingest: Daemon
    """`committerd ingest` of `topic`, which passes bad records over; it is not started."""
    ingest_url: str
    topic: Topic
    s3: FaultProxy
    dynamodb: FaultProxy

    def targets(self) -> list[Target]:
        """All, labelled as the chart's ServiceMonitor labels them."""
        labels = {"namespace": "lake", "dataset": self.scene.name}
        return [Target(daemon.url(), labels) for daemon in (self.active, self.standby)] + [
            Target(url, labels) for url in (self.maintainer_url, self.ingest_url)
        ]


@contextmanager
def two_members(kafka: str, name: str, folder: Path, s3: S3Endpoint, dynamodb: DynamoDBEndpoint) -> Iterator[Members]:
    """An active member, which waits for its table, and a standby; each keeps its port over a restart."""
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(s3.url))
        ddb_proxy = stack.enter_context(FaultProxy(dynamodb.url))
        place = ddb_place(s3, dynamodb, proxy=proxy.url, ddb_proxy=ddb_proxy.url)
        scene = stack.enter_context(Scene(kafka=kafka, name=name, folder=folder, place=place))
        # One attempt: what fails is not hidden by the store's own retries.
        told = {**STAYS, "KAFKA__CHANGE_EVENTS": "true", "S3__ATTEMPTS": "1"}
        active = scene.daemon(**told, HTTP__PORT=str(free_port()))
        active.wait_ready(text="waits for the table")
        standby = scene.daemon(**told, HTTP__PORT=str(free_port()))
        standby.wait_ready(text="standby")
        topic = stack.enter_context(contextlib.closing(Topic(kafka, partitions=1)))
        port, ingest_port = free_port(), free_port()
        direct = {"S3__ENDPOINT_URL": s3.url, "DYNAMODB__ENDPOINT_URL": dynamodb.url, "HTTP__PORT": str(port)}
        maintainer = Daemon(
            name=name,
            uri=place.uri,
            kafka=kafka,
            settings={
                **place.settings,
                **direct,
                "MAINTAIN__INTERVAL_SECONDS": "0.2",
                "MAINTAIN__CLEANUP_SECONDS": "1",
            },
            log=folder / "maintain.log",
            command=(sys.executable, "-m", "committerd", "maintain"),
        )
        ingest = Daemon(
            name=name,
            uri=place.uri,
            kafka=kafka,
            settings={
                **place.settings,
                **direct,
                "HTTP__PORT": str(ingest_port),
                "INGEST__TOPICS": topic.name,
                "INGEST__ON_ERROR": "skip",
                "INGEST__FLUSH_SECONDS": "0.1",
            },
            log=folder / "ingest.log",
            command=(sys.executable, "-m", "committerd", "ingest"),
        )
        members = Members(
            scene=scene,
            active=active,
            standby=standby,
            maintainer=maintainer,
            maintainer_url=f"http://127.0.0.1:{port}",
            ingest=ingest,
            ingest_url=f"http://127.0.0.1:{ingest_port}",
            topic=topic,
            s3=proxy,
            dynamodb=ddb_proxy,
        )
        try:
            yield members
        finally:
            maintainer.stop()
            ingest.stop()


def let_everything_happen(members: Members, prometheus: Prometheus) -> None:
    """About half a minute of work, of which Prometheus sees every kind."""
    scene = members.scene
    scene.stage(b"it waits for a table")
    _seen(prometheus, "committerd_waiting_for_table == 1")
    _seen(prometheus, "committerd_oldest_pending_age_seconds > 0")
    scene.table.create(100)
    members.active.wait_ready(text="active: version")
    _faults(members)
    for number in range(_ROUNDS):
        scene.committed(5)
        _refusals(scene)
        _duplicates(scene, number)
        _rebases(scene, number)
        _reserved_rows(scene, number)
        _conflicts(scene)
        scene.table.write()
        scene.committed(5)
    _backlog(members, prometheus)
    until(lambda: members.active.metric("committerd_queue_lag_records") == 0, seconds=120)
    members.maintainer.start()
    rewritten = 'committerd_maintenance_rewritten_fragments_total{files="after"}'
    _seen(prometheus, f"{rewritten} >= 0")
    scene.committed(10)
    _seen(prometheus, f"increase({rewritten}[1m]) > 0")
    _seen(prometheus, "min_over_time(committerd_maintenance_fragments_wanted[5m:20s])")  # an alert looks each 20 s
    _seen(prometheus, "committerd_maintenance_stored_bytes > 0")
    _ingest(members, prometheus)


def _ingest(members: Members, prometheus: Prometheus) -> None:
    """A record that makes a row, and one that makes none, each time."""
    members.ingest.start()
    _seen(prometheus, "committerd_ingest_partitions > 0")
    for number in range(1, 4):  # rates begin with the second
        members.topic.send_value(b'{"id": %d}' % (10**9 + number))
        members.topic.send_value(b"null")
        members.topic.flush()
        _seen(prometheus, f"committerd_ingest_rows_total >= {number}")
        _seen(prometheus, f"committerd_ingest_bad_records_total >= {number}")


def _seen(prometheus: Prometheus, expr: str) -> None:
    until(lambda: bool(prometheus.query(expr)), seconds=60)


def _faults(members: Members) -> None:
    """Each kind of bad answer; and one that is lost, of the put that makes a version."""
    for number, fault in enumerate((answer(503), answer(500), DROP_REQUEST, answer(503))):
        members.s3.fault(fault, method="PUT", first=5 * number + 1)
    members.dynamodb.fault(answer(400), target="PutItem")
    members.dynamodb.fault(DROP_ANSWER, target="PutItem", body="attribute_not_exists", first=3)
    # Not applied, which only another try can show.
    members.dynamodb.fault(DROP_REQUEST, target="PutItem", body="attribute_not_exists", first=5)


def _refusals(scene: Scene) -> None:
    """Dead letters, and one that comes too late."""
    assert _ask(scene, b"garbage") == Status.INVALID
    assert _ask(scene, scene.table.append(), dataset="s3://elsewhere/table.lance") == Status.INVALID
    assert _ask(scene, scene.table.append(), deadline_ms=str(int(time.time() * 1000) - 1)) == Status.EXPIRED


def _duplicates(scene: Scene, number: int) -> None:
    """The same transaction twice, and the same unit of an application twice."""
    twice = scene.table.append()
    assert [_ask(scene, twice) for _ in range(2)] == [Status.COMMITTED, Status.DUPLICATE]
    unit = {"app_id": "stream", "app_version": str(number)}
    told = [_ask(scene, scene.table.append(), **unit) for _ in range(2)]
    assert told == [Status.COMMITTED, Status.DUPLICATE]


def _rebases(scene: Scene, number: int) -> None:
    """Two Deletes of the same version and fragment, of different rows."""
    table = scene.table.open()
    deletes = [staging.delete(table, f"id = {row}") for row in (2 * number, 2 * number + 1)]
    # One after the other: together they would share a version, and nothing would be rebased.
    answers = [answer for delete in deletes for answer in scene.ask(delete)]
    assert [one.status for one in answers] == [Status.COMMITTED] * 2


def _conflicts(scene: Scene) -> None:
    """An upsert that an Append gets ahead of, twice: after that the committer waits for its third try, in vain."""
    first = _upsert(scene)
    scene.committed()
    assert _ask(scene, first) == Status.RETRYABLE
    second = _upsert(scene)
    scene.committed()
    assert _ask(scene, second, attempt="2", retry_of=first.uuid) == Status.RETRYABLE


def _reserved_rows(scene: Scene, number: int) -> None:
    """Two Deletes of the same row: the one that is refused reserves it until it is executed again."""
    table = scene.table.open()
    first, second = (staging.delete(table, f"id = {50 + number}").transaction for _ in range(2))
    assert _ask(scene, first) == Status.COMMITTED
    assert _ask(scene, second, will_retry="true") == Status.RETRYABLE
    assert _ask(scene, scene.table.append(), attempt="2", retry_of=second.uuid) == Status.COMMITTED


def _upsert(scene: Scene) -> Transaction:
    ids = scene.table.new_ids(1)
    made: Transaction = staging.merge_insert(scene.table.open(), pa.table({"id": ids}), on="id").transaction
    scene.table.brought[made.uuid] = ids
    return made


def _backlog(members: Members, prometheus: Prometheus) -> None:
    """Staged while the committer can't put: there is a lag to be seen."""
    members.s3.fault(answer(503), method="PUT", times=None)
    members.scene.append(50)
    _seen(prometheus, "committerd_queue_lag_records > 0")
    _seen(prometheus, "committerd_waiting_records > 0")
    members.s3.clear()


def _ask(scene: Scene, transaction: Transaction | bytes, **headers: str) -> int:
    (answered,) = scene.ask(transaction, **headers)
    assert isinstance(answered, Outcome)
    return int(answered.status)
