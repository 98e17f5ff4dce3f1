"""Where the stores of the contract tests keep their objects. A place is a string, so a child process can open the same
one.

As a program it races for keys: `python -m tests.contracts.places PLACE TAG KEY...` prints "ready", waits for a line on
stdin, puts `TAG KEY` under each key, and prints the keys that it won as JSON.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from prometheus_client import CollectorRegistry

from committerd.settings.clouds import AzureSettings, GcsSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.aws import AwsClient
from committerd.stores.azure import AZURE
from committerd.stores.clouds import CloudPlace
from committerd.stores.directory_bucket import DirectoryBucketStore
from committerd.stores.dynamodb import DynamoStore, dynamodb_client
from committerd.stores.external_manifests import ExternalManifests
from committerd.stores.gcs import GCS
from committerd.stores.local import LocalStore
from committerd.stores.measured import MeasuredLocalStore
from committerd.stores.obstore_store import ObstoreClient, ObstoreStore
from committerd.stores.port import ObjectStore
from committerd.stores.s3 import S3Place, S3Store, s3_client
from committerd.telemetry import Metrics
from committerd.testing.object_stores import race
from tests.contracts.entries import FakeManifests, Shelf
from tests.simulation.store import Bucket, FakeStore

_BUCKETS: defaultdict[str, Bucket] = defaultdict(Bucket)
_SHELVES: defaultdict[str, Shelf] = defaultdict(Shelf)
"""Entries in memory exist in this process only."""


@asynccontextmanager
async def opened(place: str) -> AsyncIterator[ObjectStore]:
    """A new store at a place, inside the block."""
    store = open_store(place)
    yield store
    await close(store)


def open_store(place: str) -> ObjectStore:
    """A new store at `KIND:WHERE`."""
    kind, _, where = place.partition(":")
    match kind:
        case "local":
            return LocalStore(Path(where))
        case "local-not-durable":
            return LocalStore(Path(where), durable=False)
        case "memory":
            return FakeStore(_BUCKETS[where])
        case "s3" | "minio":
            return s3_store(where)
        case "s3-express":
            return s3_store(where, kind=DirectoryBucketStore)
        case "azure":
            return azure_store(where)
        case "gcs":
            return gcs_store(where)
        case "local+entries":
            return ExternalManifests(LocalStore(Path(where)), FakeManifests(_SHELVES[where]))
        case "s3+ddb":
            objects, _, entries = where.partition("||")
            return ExternalManifests(s3_store(objects), dynamo_store(entries))
        case "measured-local":
            return MeasuredLocalStore(LocalStore(Path(where)), Metrics(CollectorRegistry()).of("events"))
        case _:
            raise ValueError(f"no such kind of store: {kind}")


async def close(store: object) -> None:
    """Close the clients that were made for a store."""
    if isinstance(store, ExternalManifests):
        await close(store._objects)
        await close(store._entries)
    elif isinstance(store, S3Store | DynamoStore):
        await store._client.aclose()


def s3_store(where: str, kind: Callable[[AwsClient, S3Place], ObjectStore] = S3Store) -> ObjectStore:
    """The store at `URL|BUCKET|PREFIX`; the keys are in the usual AWS variables, or in those of this process."""
    url, bucket, prefix = where.split("|")
    settings = S3Settings(endpoint_url=url, region="us-east-1", addressing_style="path")
    client = s3_client(settings)
    return kind(client, S3Place(bucket, prefix))


def azure_store(where: str) -> ObstoreStore:
    """The store at `URL|ACCOUNT|CONTAINER|PREFIX`; the key is in AZURE_STORAGE_ACCOUNT_KEY."""
    url, account, container, prefix = where.split("|")
    client = ObstoreClient(AZURE, f"az://{container}", AzureSettings(endpoint_url=url, account_name=account))
    return ObstoreStore(client, CloudPlace(AZURE, f"az://{container}", prefix))


def gcs_store(where: str) -> ObstoreStore:
    """The store at `URL|BUCKET|PREFIX`; the key of a service account is in GOOGLE_SERVICE_ACCOUNT_KEY."""
    url, bucket, prefix = where.split("|")
    client = ObstoreClient(GCS, f"gs://{bucket}", GcsSettings(endpoint_url=url))
    return ObstoreStore(client, CloudPlace(GCS, f"gs://{bucket}", prefix))


def dynamo_store(where: str, **settings: Any) -> DynamoStore:
    """The manifest store at `URL|TABLE|BASE_URI`; keys as for S3."""
    url, table, base_uri = where.split("|")
    client = dynamodb_client(S3Settings(region="us-east-1", **settings), endpoint_url=url)
    return DynamoStore(client, table=table, base_uri=base_uri)


async def _main(place: str, tag: str, keys: list[str]) -> None:
    async with opened(place) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(await race(store, tag, keys)))


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], sys.argv[2], sys.argv[3:])
