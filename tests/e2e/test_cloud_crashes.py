"""A committer on a cloud's store: which objects it writes, and that nothing is lost or doubled if it is killed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from committerd_common.messages import Status
from harness.azure import AzureEndpoint
from harness.child import Launch
from harness.fault_proxy import FaultProxy, Hold
from harness.gcs import GcsEndpoint
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import cloud_place
from harness.scene import Scene

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.pylance,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.long,
]

_SETTINGS = {"KAFKA__SESSION_TIMEOUT_MS": "1500", "KAFKA__HEARTBEAT_INTERVAL_MS": "300"}
_MANIFEST = r"/_versions/[^/?]*\.manifest$"


@pytest.fixture(params=[pytest.param("azure", marks=pytest.mark.azure), pytest.param("gcs", marks=pytest.mark.gcs)])
def cloud(request: pytest.FixtureRequest) -> AzureEndpoint | GcsEndpoint:
    found: AzureEndpoint | GcsEndpoint = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(cloud: AzureEndpoint | GcsEndpoint) -> Iterator[FaultProxy]:
    with FaultProxy(cloud.server) as running:
        yield running


@pytest.fixture
def scene(
    cloud: AzureEndpoint | GcsEndpoint,
    proxy: FaultProxy,
    kafka: KafkaBroker | RunningKafka,
    dataset: str,
    tmp_path: Path,
    launch: Launch,
) -> Iterator[Scene]:
    place = cloud_place(cloud, proxy=proxy.url)
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as made:
        yield made


def _look_at_the_file(proxy: FaultProxy) -> Hold:
    return proxy.hold(path=r"/data/")


def _put_the_manifest(proxy: FaultProxy) -> Hold:
    return proxy.hold(method="PUT", path=_MANIFEST)


def _hear_that_it_is_put(proxy: FaultProxy) -> Hold:
    return proxy.hold(method="PUT", path=_MANIFEST, applied=True)


def test_a_killed_committer_loses_and_doubles_nothing(scene: Scene, proxy: FaultProxy) -> None:
    table = scene.table
    ids = table.create()
    daemon = scene.started(**_SETTINGS)
    for hold in (_look_at_the_file, _put_the_manifest, _hear_that_it_is_put):
        for drop in (True, False):  # the request is lost with the killed process, or arrives after its successor's
            transaction = table.append()
            held = hold(proxy)
            offsets = scene.stage(transaction)
            held.wait()
            daemon.kill()
            new = table.brought[transaction.uuid]
            assert sorted(table.ids()) == ids + (new if hold is _hear_that_it_is_put else [])
            if drop:
                held.release(drop=True)
            daemon.start()
            assert [answer.status for answer in scene.topics.wait_answers(offsets, timeout=120)] == [Status.COMMITTED]
            held.release()
            held.wait_passed()
            ids += new
            assert sorted(table.ids()) == ids
            ids += scene.committed()
    scene.audit(ids)


def test_an_object_is_written_once_but_for_the_transaction_file_of_a_lost_race(scene: Scene, proxy: FaultProxy) -> None:
    """Google Cloud Storage takes about one change a second of each object."""
    ids = scene.table.create()
    scene.started(**_SETTINGS)
    for _ in range(10):
        ids += scene.committed()
        ids += scene.table.write()  # the committer loses the race for the next version
    puts = [unquote(one.path) for one in proxy.seen if one.method == "PUT" and one.forwarded in (200, 201)]
    written = Counter(path for path in puts if "~probe" not in path)
    again = [path for path, times in written.items() if times > 1]
    assert sum(re.search(_MANIFEST, path) is not None for path in written) >= 10
    assert [path for path in again if "/_transactions/" not in path] == []
    scene.audit(ids)
