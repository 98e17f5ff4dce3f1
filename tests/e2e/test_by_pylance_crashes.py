"""A committer that lets pylance build, killed between any two requests to a real server: nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from committerd_common.messages import Status
from harness.child import Launch
from harness.dynamodb import DynamoDBEndpoint
from harness.fault_proxy import FaultProxy, Hold
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import ddb_place, s3_place
from harness.s3 import S3Endpoint
from harness.scene import Scene
from tests.e2e.test_by_pylance import BY_PYLANCE, brought, created

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.pylance,
    pytest.mark.s3,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.long,
]

_SETTINGS = {"KAFKA__SESSION_TIMEOUT_MS": "1500", "KAFKA__HEARTBEAT_INTERVAL_MS": "300", **BY_PYLANCE}
_DETACHED = r"/_versions/d\d+\.manifest"
_MANIFEST = r"/_versions/\d+\.manifest"
HOLDS: dict[str, Callable[[FaultProxy], Hold]] = {
    "pylance puts": lambda proxy: proxy.hold(method="PUT", path=_DETACHED),
    "pylance has put": lambda proxy: proxy.hold(method="PUT", path=_DETACHED, applied=True),
    "it is deleted": lambda proxy: proxy.hold(method="DELETE", path=_DETACHED),
    "the version is put": lambda proxy: proxy.hold(method="PUT", path=_MANIFEST),
    "it was put": lambda proxy: proxy.hold(method="PUT", path=_MANIFEST, applied=True),
}


@pytest.fixture
def proxy(s3: S3Endpoint) -> Iterator[FaultProxy]:
    with FaultProxy(s3.url) as running:
        yield running


@pytest.fixture(params=["s3", pytest.param("s3+ddb", marks=pytest.mark.dynamodb)])
def scene(
    request: pytest.FixtureRequest,
    s3: S3Endpoint,
    proxy: FaultProxy,
    kafka: KafkaBroker | RunningKafka,
    dataset: str,
    tmp_path: Path,
    launch: Launch,
) -> Iterator[Scene]:
    place = s3_place(s3, proxy=proxy.url)
    if request.param == "s3+ddb":
        dynamodb: DynamoDBEndpoint = request.getfixturevalue("dynamodb")
        place = ddb_place(s3, dynamodb, proxy=proxy.url)
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as made:
        yield made


def test_a_killed_committer_loses_and_doubles_nothing(scene: Scene, proxy: FaultProxy) -> None:
    ids = created(scene)
    daemon = scene.started(**_SETTINGS)
    ids += scene.committed()
    for name, hold in HOLDS.items():
        staged = scene.table.append()
        held = hold(proxy)
        (offset,) = scene.stage(staged)
        held.wait()
        daemon.kill()
        held.release()
        daemon.start()
        (answer,) = scene.topics.wait_answers([offset], timeout=120)
        assert (name, answer.status) == (name, Status.COMMITTED)
        ids += brought(scene, staged)
        (again,) = scene.ask(staged)
        assert (again.status, again.version) == (Status.DUPLICATE, answer.version)
    scene.audit(ids)
