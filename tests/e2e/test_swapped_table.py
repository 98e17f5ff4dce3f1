"""The table is deleted and recreated under the queue: nothing is built on the old one, and the new one stays whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.config
import botocore.session
import lance
import pyarrow as pa
import pytest

from committerd.committer.pipeline import _CONFIRMED_SECONDS
from committerd_common.messages import Status
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace, s3_place
from harness.s3 import S3Endpoint
from harness.scene import Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_SELDOM = {"STORE__RECHECK_SECONDS": "60"}
"""The committer lists no versions by itself in these tests."""
_VERSIONS = pytest.mark.parametrize("versions", [2, 6, 9], ids=["lower", "same", "higher"])


class Place:
    """The location of the table, and how to put another one there."""

    def __init__(self, uri: str, options: dict[str, str], s3: S3Endpoint | None = None) -> None:
        self.uri = uri
        self._options = options
        self._s3 = s3

    @property
    def is_bucket(self) -> bool:
        return self._s3 is not None

    def make_again(self, versions: int) -> None:
        """Delete the table and make another one with this many versions."""
        for _ in range(20):
            self.delete()
            # A committer may have written meanwhile, and what was made may have been built on its version.
            with contextlib.suppress(OSError):
                self._make(versions)
                if self.version == versions:
                    return
        raise AssertionError("the table can't be recreated")

    def _make(self, versions: int) -> None:
        row = pa.table({"id": pa.array([-1], pa.int64())})
        for number in range(versions):
            lance.write_dataset(
                row,
                self.uri,
                mode="append" if number else "create",
                data_storage_version="2.0",
                storage_options=self._options or None,
            )

    def delete(self) -> None:
        if self._s3 is None:
            # In one step: else a committer meets a table whose data is gone and whose versions still exist.
            gone = f"{self.uri}.deleted-{uuid.uuid4()}"
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.uri, gone)
            shutil.rmtree(gone, ignore_errors=True)
            return
        bucket, _, prefix = self.uri.partition("://")[2].partition("/")
        client = self._client()
        while found := client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents"):
            client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": one["Key"]} for one in found]})

    def rows(self) -> list[int]:
        table = lance.dataset(self.uri, storage_options=self._options or None).to_table()
        return list(table["id"].to_pylist())

    @property
    def version(self) -> int:
        return int(lance.dataset(self.uri, storage_options=self._options or None).version)

    def _client(self) -> Any:
        assert self._s3 is not None
        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self._s3.url,
            aws_access_key_id=self._s3.access_key,
            aws_secret_access_key=self._s3.secret_key,
            region_name=self._s3.region,
            config=botocore.config.Config(s3={"addressing_style": "path"}),
        )


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def placed(
    request: pytest.FixtureRequest, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch
) -> Iterator[tuple[Scene, Place]]:
    if request.param == "local":
        where, place = StorePlace(str(tmp_path / "table.lance")), Place(str(tmp_path / "table.lance"), {})
    else:
        s3: S3Endpoint = request.getfixturevalue("s3")
        where = s3_place(s3)
        place = Place(where.uri, dict(where.storage_options), s3)
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=where, launch=launch) as scene:
        yield scene, place


@_VERSIONS
def test_a_table_that_was_made_again_is_not_built_on(placed: tuple[Scene, Place], versions: int) -> None:
    scene, place = placed
    scene.table.create()
    daemon = scene.started(**_SELDOM)
    for _ in range(5):
        scene.committed()
    assert place.version == 6
    until(lambda: scene.topics.group_offset() == 5)
    time.sleep(2 * _CONFIRMED_SECONDS)  # for so long after a commit, the committer need not look at its version again
    place.make_again(versions)
    offsets = scene.append(3)
    daemon.wait_refused("keys_missing")
    scene.topics.listen(seconds=0.5)
    topic_id = scene.topics.topic_id()
    assert not [o for o in offsets if (topic_id, o) in scene.topics.answers]
    assert (place.version, place.rows()) == (versions, [-1] * versions)

    scene.adopt(daemon, "--offset", str(offsets[0]))
    answers = scene.topics.wait_answers(offsets)
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    assert len(place.rows()) == versions + 3


@_VERSIONS
def test_a_table_that_was_made_again_under_load_is_left_whole(placed: tuple[Scene, Place], versions: int) -> None:
    scene, place = placed
    scene.table.create()
    daemon = scene.started(**_SELDOM, COMMIT__GROUP_RECORDS_MAX="1")
    transactions = scene.table.appends(400)
    offsets = scene.stage(*transactions)
    until(lambda: place.version > 6)
    place.make_again(versions)
    offsets += scene.append(3)
    if "was built on a table that was deleted or replaced" in daemon.wait_refused("keys_missing"):
        place.make_again(versions)  # as the refusal asks: a put was under way at that moment
    time.sleep(0.5)
    assert (place.version, place.rows()) == (versions, [-1] * versions)
    scene.topics.listen(seconds=0.5)
    topic_id = scene.topics.topic_id()
    answered = [scene.topics.answers[topic_id, o] for o in offsets if (topic_id, o) in scene.topics.answers]
    # One version for each, without a gap: all of them were of the deleted table. In a bucket the objects go one after
    # the other: a committer that starts meanwhile finds the newest versions and not those below, and can't tell whether
    # those committed a record that has no outcome yet. And versions of `make_again` may follow a version that the
    # committer put while the objects went, until all of them are deleted once more.
    undecided = {n for n, answer in enumerate(answered) if answer.status == Status.UNDECIDED}
    assert not undecided or place.is_bucket
    committed = {n: answer.version for n, answer in enumerate(answered) if n not in undecided}
    assert {answered[n].status for n in committed} <= {Status.COMMITTED}
    in_order = sorted(set(committed.values()))
    assert list(committed.values()) == in_order if place.is_bucket else committed == {n: n + 2 for n in committed}
    assert len(answered) < len(offsets)
