"""Every object store keeps the contract, `committerd.testing.ObjectStoreTests`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest

from committerd.testing import ObjectStoreTests, OpenStore
from committerd.testing.object_stores import check_winners
from harness.azure import AzureEndpoint
from harness.directory_buckets import DirectoryBuckets
from harness.dynamodb import DynamoDBEndpoint
from harness.gcs import GcsEndpoint
from harness.s3 import S3Endpoint
from tests.contracts.places import opened

ROOT = Path(__file__).resolve().parents[2]
RACED_KEYS = [f"_versions/{number}.manifest" for number in range(30)]

ON_DISK = ["local", "local-not-durable", "measured-local"]
_BUCKETS: dict[str, str] = {}
"""One bucket for all tests of a server: making one takes longer than most of them."""
ON_S3 = [
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("minio", marks=pytest.mark.s3),
    pytest.param("s3-express", marks=pytest.mark.s3),
    pytest.param("s3+ddb", marks=[pytest.mark.s3, pytest.mark.dynamodb]),
]


ON_CLOUDS = [
    pytest.param("azure", marks=pytest.mark.azure),
    pytest.param("gcs", marks=pytest.mark.gcs),
]


@pytest.fixture(params=[*ON_DISK, "local+entries", "memory", *ON_S3, *ON_CLOUDS])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    kind, _, entries = request.param.partition("+")
    if kind == "azure":
        azure: AzureEndpoint = request.getfixturevalue("azure")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", azure.key)
        if azure.url not in _BUCKETS:
            _BUCKETS[azure.url] = azure.make_bucket()
        return f"azure:{azure.url}|{azure.account}|{_BUCKETS[azure.url]}|{tmp_path.name}/a table.lance/"
    if kind == "gcs":
        gcs: GcsEndpoint = request.getfixturevalue("gcs")
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", gcs.account_key())
        if gcs.url not in _BUCKETS:
            _BUCKETS[gcs.url] = gcs.make_bucket()
        return f"gcs:{gcs.url}|{_BUCKETS[gcs.url]}|{tmp_path.name}/a table.lance/"
    if kind not in ("s3", "minio", "s3-express"):
        return f"{request.param}:{tmp_path / 'a table.lance'}"
    endpoint: S3Endpoint = request.getfixturevalue("minio" if kind == "minio" else "s3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", endpoint.secret_key)
    if endpoint.url not in _BUCKETS:
        _BUCKETS[endpoint.url] = endpoint.make_bucket()
    url, bucket = endpoint.url, _BUCKETS[endpoint.url]
    if kind == "s3-express":
        proxy: DirectoryBuckets = request.getfixturevalue("directory_buckets")
        url, bucket = proxy.url, proxy.named(bucket)
    objects = f"{request.param}:{url}|{bucket}|{tmp_path.name}/a table.lance/"
    if not entries:
        return objects
    dynamodb: DynamoDBEndpoint = request.getfixturevalue("dynamodb")
    return f"{objects}||{dynamodb.url}|{dynamodb.make_table()}|{tmp_path.name}/a table.lance"


class TestObjectStore(ObjectStoreTests):
    @pytest.fixture
    def open_store(self, place: str) -> OpenStore:
        return partial(opened, place)

    @pytest.fixture
    def raced_keys(self, place: str) -> Sequence[str]:
        return RACED_KEYS[:5] if place.startswith(("s3+ddb", "s3-express")) else RACED_KEYS


@pytest.mark.parametrize("place", [*ON_DISK, *ON_S3[:2], *ON_CLOUDS], indirect=True)
def test_of_4_processes_one_wins_each_key(place: str) -> None:
    command = [sys.executable, "-m", "tests.contracts.places", place]
    with ExitStack() as running:
        children = {
            tag: running.enter_context(
                subprocess.Popen(
                    [*command, tag, *RACED_KEYS],
                    cwd=ROOT,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for tag in ("one", "two", "three", "four")
        }
        for child in children.values():
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children.values():
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        winners = {tag: json.loads(child.communicate()[0]) for tag, child in children.items()}
    anyio.run(check_winners, partial(opened, place), RACED_KEYS, winners)
