"""A network and stores with many faults: every outcome is true, no row is there twice, no version is missing."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from committerd_common.messages import Status
from harness.azure import AzureEndpoint
from harness.dynamodb import DynamoDBEndpoint
from harness.fault_proxy import DROP_ANSWER, DROP_REQUEST, HALF_BODY, Fault, FaultProxy, Rule, answer
from harness.gcs import GcsEndpoint
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace, cloud_place, ddb_place, s3_place
from harness.s3 import S3Endpoint
from harness.scene import Scene

COMMITS = int(os.environ.get("COMMITTERD_FAULT_COMMITS", "100"))
"""`make faults` has 1,000."""
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.s3,
    pytest.mark.pylance,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 2 * COMMITS),
]

_FOREIGN_EVERY = 20
_CHANCE = 0.01
_SETTINGS = {
    "COMMIT__COALESCE": "none",  # a version each
    "S3__READ_TIMEOUT_SECONDS": "5",
    "AZURE__READ_TIMEOUT_SECONDS": "5",
    "GCS__READ_TIMEOUT_SECONDS": "5",
}
_EVERYWHERE = (
    DROP_ANSWER,
    DROP_REQUEST,
    answer(429),
    answer(500),
    answer(500, applied=True),
    answer(503),
)
_CONDITIONAL = (
    answer(409),
    answer(409, applied=True),
    answer(412),
    answer(412, applied=True),
)
_DYNAMODB = (
    DROP_ANSWER,
    DROP_REQUEST,
    HALF_BODY,
    answer(400),  # throughput exceeded
    answer(500),
    answer(500, applied=True),
    answer(503, applied=True),
)
_MANIFEST = r"/_versions/[^/?]*\.manifest"


def bad_days(
    proxy: FaultProxy,
    faults: Iterable[Fault],
    *,
    method: str | None = None,
    path: str | None = None,
    target: str | None = None,
    body: str | None = None,
) -> list[Rule]:
    """Inject each fault once, at consecutive requests, and each of them now and then; returns the former."""
    some = functools.partial(proxy.fault, method=method, path=path, target=target, body=body)
    chosen = list(faults)
    certain = [some(fault, first=5 + number) for number, fault in enumerate(chosen)]
    for fault in chosen:
        some(fault, first=40, times=None, chance=_CHANCE)
    return certain


def work(scene: Scene) -> None:
    """Commit through the queue, and some directly with pylance; then check everything."""
    table = scene.table
    ids = table.create()
    scene.started(**_SETTINGS)
    transactions = table.appends(COMMITS)
    offsets: list[int] = []
    for start in range(0, COMMITS, _FOREIGN_EVERY):
        offsets += scene.stage(*transactions[start : start + _FOREIGN_EVERY])
        scene.topics.wait_answers(offsets[-5:], timeout=300)
        ids += table.write()
    answers = scene.topics.wait_answers(offsets, timeout=300)
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    evidence = scene.audit([*ids, *(i for t in transactions for i in table.brought[t.uuid])])
    numbers = [version.number for version in evidence.versions]
    # Each transaction is a version, each number is there once, and a second request for an outcome gets the same one.
    assert numbers == list(range(1, 1 + len(numbers)))
    assert sum(len(version.members) for version in evidence.versions) == COMMITS
    assert {o.uuid: o.version for o in evidence.outcomes} == {a.uuid: a.version for a in answers}


def run(kafka: KafkaBroker | RunningKafka, dataset: str, folder: Path, place: StorePlace) -> None:
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=folder, place=place) as scene:
        work(scene)


def test_s3_with_every_fault(s3: S3Endpoint, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path) -> None:
    with FaultProxy(s3.url, seed=1) as proxy:
        certain = [
            *bad_days(proxy, _CONDITIONAL, method="PUT", path=_MANIFEST),
            *bad_days(proxy, (DROP_ANSWER, DROP_REQUEST, answer(500, applied=True)), method="PUT", path=_MANIFEST),
            *bad_days(proxy, (HALF_BODY, DROP_ANSWER), method="GET"),
            *bad_days(proxy, _EVERYWHERE),
            proxy.fault(answer(503, retry_after=1), first=50),
        ]
        run(kafka, dataset, tmp_path, s3_place(s3, proxy=proxy.url))
        assert [rule.fault for rule in certain if not rule.hits] == []


@pytest.mark.long
@pytest.mark.parametrize(
    "cloud", [pytest.param("azure", marks=pytest.mark.azure), pytest.param("gcs", marks=pytest.mark.gcs)]
)
def test_a_cloud_with_every_fault(
    cloud: str, request: pytest.FixtureRequest, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path
) -> None:
    endpoint: AzureEndpoint | GcsEndpoint = request.getfixturevalue(cloud)
    with FaultProxy(endpoint.server, seed=4) as proxy:
        certain = [
            *bad_days(proxy, _CONDITIONAL, method="PUT", path=_MANIFEST),
            *bad_days(proxy, (DROP_ANSWER, DROP_REQUEST, answer(500, applied=True)), method="PUT", path=_MANIFEST),
            *bad_days(proxy, (HALF_BODY, DROP_ANSWER), method="GET"),
            *bad_days(proxy, _EVERYWHERE),
        ]
        run(kafka, dataset, tmp_path, cloud_place(endpoint, proxy=proxy.url))
        assert [rule.fault for rule in certain if not rule.hits] == []


@pytest.mark.long
@pytest.mark.dynamodb
def test_dynamodb_with_every_fault(
    s3: S3Endpoint, dynamodb: DynamoDBEndpoint, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path
) -> None:
    with FaultProxy(s3.url, seed=2) as proxy, FaultProxy(dynamodb.url, seed=3) as ddb_proxy:
        certain = [
            *bad_days(proxy, (DROP_ANSWER, DROP_REQUEST, answer(500, applied=True)), method="PUT", path=_MANIFEST),
            *bad_days(proxy, _EVERYWHERE),
            *bad_days(ddb_proxy, _DYNAMODB, target="PutItem", body="attribute_not_exists"),
            *bad_days(ddb_proxy, _DYNAMODB, target="PutItem", body="attribute_exists"),
            *bad_days(ddb_proxy, _DYNAMODB),
        ]
        place = ddb_place(s3, dynamodb, proxy=proxy.url, ddb_proxy=ddb_proxy.url)
        run(kafka, dataset, tmp_path, place)
        assert [rule.fault for rule in certain if not rule.hits] == []
        # Each put was also finished: every entry names a manifest in its place.
        name = place.uri.partition("ddbTableName=")[2]
        assert [item["path"] for item in dynamodb.items(name) if not item["path"].endswith(".manifest")] == []
