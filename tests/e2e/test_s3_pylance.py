"""pylance on the same table in a bucket or container: it reads what committerd commits, and commits in between."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from committerd_common.messages import Status
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.lance_table import run_in_4
from harness.places import StorePlace, place_named
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.s3, pytest.mark.pylance, pytest.mark.slow, pytest.mark.timeout(600)]

CLOUDS = [pytest.param("azure", marks=pytest.mark.azure), pytest.param("gcs", marks=pytest.mark.gcs)]
_QUEUED = 60
_APPEND_IN_4 = """
import json, sys
import lance, pyarrow
uri, options, new = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
there = lance.dataset(uri, storage_options=options).to_table()["id"].to_pylist()
rows = pyarrow.table({"id": pyarrow.array(new, pyarrow.int64())})
lance.write_dataset(rows, uri, mode="append", storage_options=options)
print(json.dumps([lance.__version__, sorted(there)]))
"""


@pytest.fixture(
    params=[
        "s3",
        pytest.param("minio", marks=pytest.mark.long),
        pytest.param("s3-express", marks=pytest.mark.long),
        pytest.param("s3+ddb", marks=pytest.mark.dynamodb),
        *CLOUDS,
    ]
)
def place(request: pytest.FixtureRequest) -> StorePlace:
    return place_named(request.param, request.getfixturevalue)


def test_pylance_creates_reads_and_commits_in_between(
    place: StorePlace, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch
) -> None:
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as scene:
        table = scene.table
        ids = set(table.create(5))
        daemon = scene.started(**STAYS, COMMIT__GROUP_RECORDS_MAX="5")  # a new start counts no foreign versions
        transactions = table.appends(_QUEUED)
        stop = threading.Event()
        foreign: set[int] = set()

        def write_and_delete() -> None:
            while not stop.is_set():
                written = table.write(2)
                table.open().delete(f"id = {written[0]}")
                foreign.add(written[1])

        other = threading.Thread(target=write_and_delete)
        other.start()
        try:
            offsets: list[int] = []
            for start in range(0, _QUEUED, 10):
                before = len(foreign)
                offsets += scene.stage(*transactions[start : start + 10])
                scene.topics.wait_answers(offsets, timeout=180)
                until(lambda before=before: len(foreign) > before, seconds=60)  # type: ignore[misc]
        finally:
            stop.set()
            other.join()
        assert {answer.status for answer in scene.topics.wait_answers(offsets, timeout=180)} == {Status.COMMITTED}
        queued = {i for transaction in transactions for i in table.brought[transaction.uuid]}
        evidence = scene.audit(ids | foreign | queued)
        # They really took turns.
        assert sum(one.ours is not other.ours for one, other in pairwise(evidence.versions)) > 4
        assert [version.number for version in evidence.versions] == list(range(1, 1 + len(evidence.versions)))
        seen = sum(not version.ours for version in evidence.versions[1:])
        until(lambda: daemon.metric("committerd_foreign_commits_total") == seen, seconds=60)


def test_the_first_version_comes_through_the_queue(
    place: StorePlace, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch
) -> None:
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as scene:
        created = scene.table.staged_create(3)
        scene.daemon()
        offset = scene.stage_create(created)
        assert [answer.version for answer in scene.topics.wait_answers([offset], timeout=180)] == [1]
        ids = scene.table.brought[created.transaction.uuid] + scene.committed(3) + scene.table.write()
        ids += scene.committed()
        scene.audit(ids)
        # Operators' commands find the table too.
        assert scene.shown_position()["position"]["next_offset"] == 5


@pytest.mark.parametrize("place", ["s3", *CLOUDS], indirect=True)
def test_both_pylances_and_the_queue_take_turns(
    place: StorePlace, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch
) -> None:
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as scene:
        ids = scene.table.create(2)
        scene.started()
        for _ in range(2):
            ids += scene.committed(2)
            new = scene.table.new_ids(2)
            read = run_in_4(_APPEND_IN_4, place.uri, json.dumps(place.storage_options), json.dumps(new))
            assert read == ["4.0.0", ids]
            ids += new + scene.committed() + scene.table.write()
        scene.audit(ids)
