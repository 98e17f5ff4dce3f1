"""Locations of tables: how pylance and committerd connect to them, directly or through a proxy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from committerd.settings.clouds import CloudSettings
from committerd.stores.cloud import Cloud
from committerd.stores.clouds import CLOUDS
from harness.azure import AzureEndpoint
from harness.directory_buckets import DirectoryBuckets
from harness.dynamodb import DynamoDBEndpoint
from harness.gcs import GcsEndpoint
from harness.s3 import S3Endpoint


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The location of a table."""

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    """Storage options for pylance."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings for committerd, with their environment names without the prefix."""

    @property
    def bucket(self) -> str:
        """The table's bucket."""
        return self.uri.partition("://")[2].partition("/")[0]


def s3_settings(s3: S3Endpoint) -> dict[str, str]:
    """The settings with which committerd connects to the server."""
    return {
        "S3__ENDPOINT_URL": s3.url,
        "S3__ACCESS_KEY_ID": s3.access_key,
        "S3__SECRET_ACCESS_KEY": s3.secret_key,
        "S3__REGION": s3.region,
        "S3__ADDRESSING_STYLE": "path",
    }


def s3_place(s3: S3Endpoint, *, proxy: str | None = None) -> StorePlace:
    """A table in a new bucket. `proxy`: URL of a proxy for committerd's requests."""
    return StorePlace(
        f"s3://{s3.make_bucket()}/lake/table.lance",
        s3.storage_options(),
        s3_settings(s3.through(proxy or s3.url)),
    )


def express_place(s3: S3Endpoint, buckets: DirectoryBuckets, *, proxy: str | None = None) -> StorePlace:
    """A table in a new directory bucket. `proxy`: URL of the `DirectoryBuckets` for committerd's requests."""
    return StorePlace(
        f"s3://{buckets.make_bucket()}/lake/table.lance",
        buckets.storage_options(),
        s3_settings(s3.through(proxy or buckets.url)),
    )


def cloud_place(cloud: AzureEndpoint | GcsEndpoint, *, proxy: str | None = None) -> StorePlace:
    """A table in a new container or bucket of a cloud. `proxy`: URL of a proxy for committerd's requests."""
    reached = cloud if proxy is None else cloud.through(proxy)
    return StorePlace(
        f"{cloud.scheme}://{cloud.make_bucket()}/lake/table.lance", cloud.storage_options(), reached.settings()
    )


def cloud_group(endpoint: AzureEndpoint | GcsEndpoint, **more: object) -> tuple[Cloud, CloudSettings]:
    """The cloud, and its group of settings with which committerd reaches the server. `more`: further settings."""
    cloud = next(one for one in CLOUDS if endpoint.scheme in one.schemes)
    given = {name.partition("__")[2].lower(): value for name, value in endpoint.settings().items()}
    return cloud, type(cloud.defaults).model_validate({**given, **more})


def ddb_place(
    s3: S3Endpoint, dynamodb: DynamoDBEndpoint, *, proxy: str | None = None, ddb_proxy: str | None = None
) -> StorePlace:
    """A table in a new bucket, with its versions in a new DynamoDB table. `proxy`, `ddb_proxy`: URLs for committerd."""
    return StorePlace(
        f"s3+ddb://{s3.make_bucket()}/lake/table.lance?ddbTableName={dynamodb.make_table()}",
        {**s3.storage_options(), **dynamodb.storage_options()},
        {
            **s3_settings(s3.through(proxy or s3.url)),
            "DYNAMODB__ENDPOINT_URL": ddb_proxy or dynamodb.url,
        },
    )


def place_named(name: str, server: Callable[[str], Any]) -> StorePlace:
    """A table at the store of this name: `s3`, `minio`, `s3-express`, `s3+ddb`, `azure` or `gcs`.

    `server`: gives the fixture of a server by its name, as `request.getfixturevalue` does.
    """
    match name:
        case "azure" | "gcs":
            return cloud_place(server(name))
        case "s3-express":
            return express_place(server("s3"), server("directory_buckets"))
        case "s3+ddb":
            return ddb_place(server("s3"), server("dynamodb"))
        case _:
            return s3_place(server(name))
