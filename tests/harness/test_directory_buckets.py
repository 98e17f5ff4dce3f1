"""The proxy that stands for directory buckets refuses what AWS refuses, and lists in no order."""

from __future__ import annotations

from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from harness.directory_buckets import DirectoryBuckets
from harness.s3 import S3Endpoint

pytestmark = pytest.mark.s3

_KEYS = [f"t/_versions/{number:02}" for number in range(20)]


def client_of(s3: S3Endpoint, proxy: DirectoryBuckets, **options: Any) -> Any:
    """The SDK's client, which makes sessions by itself."""
    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=proxy.url,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        region_name=s3.region,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"} | options),
    )


def test_listings_are_whole_each_in_an_order_of_its_own(s3: S3Endpoint, directory_buckets: DirectoryBuckets) -> None:
    client, bucket = client_of(s3, directory_buckets), directory_buckets.make_bucket()
    for key in _KEYS:
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    pages = client.get_paginator("list_objects_v2")
    listings = [
        [one["Key"] for page in pages.paginate(Bucket=bucket, Prefix="t/_versions/") for one in page["Contents"]]
        for _ in range(3)
    ]
    assert [sorted(listing) for listing in listings] == [_KEYS] * 3
    assert len({tuple(listing) for listing in [*listings, _KEYS]}) == 4


@pytest.mark.parametrize(
    "asked", [{"Prefix": "t/", "StartAfter": "t/a"}, {"Prefix": "t/_versions"}, {"Prefix": "t/", "Delimiter": "-"}]
)
def test_only_whole_folders_are_listed(
    s3: S3Endpoint, directory_buckets: DirectoryBuckets, asked: dict[str, str]
) -> None:
    client, bucket = client_of(s3, directory_buckets), directory_buckets.make_bucket()
    with pytest.raises(ClientError, match="InvalidRequest"):
        client.list_objects_v2(Bucket=bucket, **asked)


def test_a_request_without_a_session_is_refused(s3: S3Endpoint, directory_buckets: DirectoryBuckets) -> None:
    client, bucket = client_of(s3, directory_buckets), directory_buckets.make_bucket()
    client.put_object(Bucket=bucket, Key="o", Body=b"body")
    own = client_of(s3, directory_buckets, disable_s3_express_session_auth=True)
    with pytest.raises(ClientError, match="AccessDenied"):
        own.get_object(Bucket=bucket, Key="o")
