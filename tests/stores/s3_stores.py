"""Stores of ours on the S3 servers of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from committerd.settings.s3 import S3Settings
from committerd.stores.retries import Fault, ignored
from committerd.stores.s3 import S3Place, S3Store, s3_client
from harness.s3 import S3Endpoint


def settings_of(endpoint: S3Endpoint, **more: object) -> S3Settings:
    """Settings for an endpoint."""
    given = {
        "endpoint_url": endpoint.url,
        "region": endpoint.region,
        "addressing_style": "path",
        "access_key_id": endpoint.access_key,
        "secret_access_key": endpoint.secret_key,
    }
    return S3Settings.model_validate(given | more)


@asynccontextmanager
async def opened(
    settings: S3Settings, bucket: str, path: str, *, failed: Callable[[Fault], None] = ignored
) -> AsyncIterator[S3Store]:
    """A store whose client ends with the block."""
    client = s3_client(settings)
    try:
        yield S3Store(client, S3Place(bucket, f"{path}/"), failed=failed)
    finally:
        await client.aclose()
