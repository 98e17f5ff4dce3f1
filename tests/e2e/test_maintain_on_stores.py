"""Maintenance of tables on S3, with and without their versions in DynamoDB, and on two clouds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from committerd.commands.maintain.topic import OperatorsTopic
from committerd.errors import StoreUnavailable
from committerd.kafka.operator import open_operator
from committerd.maintenance import report
from committerd.maintenance.cleaning import Cleanup, Policy
from committerd.maintenance.files import RemovalReason
from committerd.settings.clouds import AzureSettings, GcsSettings
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.kafka import KafkaSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.azure import AZURE
from committerd.stores.gcs import GCS
from committerd.stores.open import Stores
from committerd.stores.port import ObjectEntry
from committerd.table.versions import Table
from committerd_client import staging
from committerd_common.branches import branch_uri
from harness.azure import AzureEndpoint
from harness.child import Launch
from harness.dynamodb import DynamoDBEndpoint
from harness.gcs import GcsEndpoint
from harness.kafka import KafkaBroker, RunningKafka
from harness.lance_table import run_in_4
from harness.places import StorePlace, place_named
from harness.s3 import S3Endpoint
from harness.scene import Scene
from tests.commands.running import printed
from tests.kafka.staging import settings_for
from tests.maintenance.scene import HOUR_MS

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.s3, pytest.mark.long]

_READ_IN_4 = """
import json, sys, lance
table = lance.dataset(sys.argv[1], storage_options=json.loads(sys.argv[2]))
versions = [one["version"] for one in table.versions()]
print(json.dumps({one: lance.dataset(sys.argv[1], version=one, storage_options=json.loads(sys.argv[2])).to_table()
    .num_rows for one in versions}))
"""


@pytest.fixture(
    params=[
        "s3",
        "minio",
        "s3-express",
        pytest.param("s3+ddb", marks=pytest.mark.dynamodb),
        pytest.param("azure", marks=pytest.mark.azure),
        pytest.param("gcs", marks=pytest.mark.gcs),
    ]
)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StorePlace:
    if request.param not in ("azure", "gcs"):
        server: S3Endpoint = request.getfixturevalue("minio" if request.param == "minio" else "s3")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    if request.param == "s3-express":
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")  # for pylance, as in the storage options
    return place_named(request.param, request.getfixturevalue)


@pytest.fixture
def scene(
    kafka: KafkaBroker | RunningKafka, place: StorePlace, dataset: str, tmp_path: Path, launch: Launch
) -> Iterator[Scene]:
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as made:
        yield made


@asynccontextmanager
async def cleaning_of(scene: Scene, place: StorePlace, kafka: KafkaSettings, *, hours: float) -> AsyncIterator[Cleanup]:
    """The cleanup of this table, so many hours from now."""
    s3, azure, gcs = (
        {name.partition("__")[2].lower(): value for name, value in place.settings.items() if name.startswith(group)}
        for group in ("S3", "AZURE", "GCS")
    )
    clouds = {AZURE: AzureSettings.model_validate(azure), GCS: GcsSettings.model_validate(gcs)}
    dynamodb = DynamoDBSettings(endpoint_url=place.settings.get("DYNAMODB__ENDPOINT_URL"))
    async with (
        Stores(S3Settings.model_validate(s3), dynamodb, clouds=clouds) as stores,
        open_operator(kafka, scene.name) as operator,
    ):
        store: Any = stores.open(place.uri)
        walk = store.walk

        async def ahead(prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
            async for batch in walk(prefix):
                later = int(hours * HOUR_MS) if prefix == report.FOLDER else 0
                yield [replace(one, modified_ms=one.modified_ms + later) for one in batch]

        store.walk = ahead
        cleaning = Cleanup(
            Table(store),
            OperatorsTopic(operator),
            Policy(
                keep_ms=HOUR_MS,
                keep_versions=1,
                reclaim_ms=24 * HOUR_MS,
                republish_max=0,
                transaction_bytes_max=8 << 20,
            ),
            wall_clock=lambda: datetime.now(UTC) + timedelta(hours=hours),
            open_branch=lambda branch: stores.open(branch_uri(place.uri, branch)),
        )
        try:
            yield cleaning
        finally:
            cleaning.close()


def entries(place: StorePlace, request: pytest.FixtureRequest) -> list[int] | None:
    """The versions that have an entry in DynamoDB; None for a table that has none there."""
    _, marker, table = place.uri.partition("?ddbTableName=")
    if not marker:
        return None
    dynamodb: DynamoDBEndpoint = request.getfixturevalue("dynamodb")
    return [int(one["version"]) for one in dynamodb.items(table)]


def keys_of(place: StorePlace, request: pytest.FixtureRequest) -> set[str]:
    """All keys in the bucket or container."""
    if not place.uri.startswith("s3"):
        cloud: AzureEndpoint | GcsEndpoint = request.getfixturevalue(request.node.callspec.params["place"])
        return cloud.keys(place.bucket)
    server: S3Endpoint = request.getfixturevalue("minio" if request.node.callspec.params["place"] == "minio" else "s3")
    bucket = place.bucket.partition("--")[0]  # as the server knows a directory bucket
    return {one["Key"] for one in server.client().list_objects_v2(Bucket=bucket)["Contents"]}


async def test_fragments_are_rewritten_and_versions_deleted_with_their_entries(
    scene: Scene, place: StorePlace, kafka: KafkaBroker | RunningKafka, request: pytest.FixtureRequest
) -> None:
    scene.table.create(rows=10)
    daemon = scene.started()
    scene.committed(10)
    scene.ask(staging.create_index(scene.table.open(), "id", "BTREE"))
    (done, *_) = [json.loads(line) for line in scene.command("maintain", "--once", "--json").splitlines()]
    assert (done["event"], done["fragments_before"], done["fragments_after"]) == ("rewritten", 10, 1)
    assert sorted(scene.table.ids()) == [*range(20)]
    assert [scene.table.open().count_rows(f"id = {one}") for one in (7, 15, 19)] == [1, 1, 1]
    (index,) = scene.table.open().describe_indices()
    assert index.num_rows_indexed == 20, "the index was carried along"
    assert {key for key in keys_of(place, request) if not key.startswith("lake/table.lance/")} == set()
    daemon.stop()
    scene.table.open().tags.create("kept", 2)
    old, latest = scene.table.open(1), scene.table.version
    kept = scene.table.open(2).count_rows()

    async with cleaning_of(scene, place, settings_for(kafka.bootstrap_servers), hours=2) as cleaning:
        store: Any = cleaning._table.store
        if entries(place, request) is not None:
            # The process is killed after the first manifest and before its entry.
            delete = store._entries.delete

            async def killed(*_: object, **__: object) -> None:
                raise StoreUnavailable("killed")

            store._entries.delete = killed
            with pytest.raises(StoreUnavailable, match="killed"):
                await cleaning.clean(await cleaning.look())
            store._entries.delete = delete
            assert entries(place, request) == [*range(1, latest + 1)]
            with pytest.raises(ValueError, match=r"(?i)not found"):
                scene.table.open(1)
        cleaned = await cleaning.clean(await cleaning.look())
        again = await cleaning.clean(await cleaning.look())
    assert (cleaned.by_reason[RemovalReason.VERSION] > 0, again.files) == (True, 0)
    assert entries(place, request) in (None, [2, latest])
    assert [one["version"] for one in scene.table.open().versions()] == [2, latest]
    assert scene.table.open(2).to_table().num_rows == kept
    with pytest.raises(ValueError, match=r"(?i)not found"):
        scene.table.open(1)
    assert old.version == 1
    options = json.dumps(dict(place.storage_options))
    assert run_in_4(_READ_IN_4, place.uri, options) == {"2": kept, str(latest): 20}

    # Writers and committers go on.
    scene.started()
    scene.committed(2)
    scene.table.write()
    assert sorted(scene.table.ids()) == [*range(23)]


@pytest.mark.parametrize("place", ["minio"], indirect=True)
def test_other_names_of_s3_are_the_same(scene: Scene, place: StorePlace) -> None:
    scene.table.create(rows=10)
    scene.started()
    scene.committed(10)
    for name in ("s3a:", "s3n:"):
        given: Any = dict(place.settings) | {"DATASET__URI": place.uri.replace("s3:", name)}
        assert "would rewrite" in printed(scene, "maintain", "--dry-run", **given)
