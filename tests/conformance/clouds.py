"""The cases on a cloud: as on S3, a table goes up, one commit, and what the container holds comes down again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import obstore
from obstore.store import AzureStore, GCSStore

from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.open import Stores
from harness.azure import AzureEndpoint
from harness.gcs import GcsEndpoint
from harness.places import cloud_group
from tests.conformance.stores import StoreRunner, bodies_in


class CloudRunner(StoreRunner):
    """Commits to tables in one container or bucket."""

    def __init__(self, cloud: AzureEndpoint | GcsEndpoint) -> None:
        self._cloud = cloud
        self._container = cloud.make_bucket()
        self._objects = _objects(cloud, self._container)
        self._stack = contextlib.ExitStack()

    def _made(self) -> Stores:
        return Stores(S3Settings(), DynamoDBSettings(), clouds=dict([cloud_group(self._cloud)]))

    @property
    def storage_options(self) -> dict[str, str]:
        return self._cloud.storage_options()

    def uri(self, name: str) -> str:
        return f"{self._cloud.scheme}://{self._container}/{name}/table.lance"

    def _upload(self, folder: Path, prefix: str) -> dict[str, str]:
        """Upload every file; returns the ETag of each by its key."""
        return {
            key: str(obstore.put(self._objects, key, body)["e_tag"]) for key, body in bodies_in(folder, prefix).items()
        }

    def _download(self, folder: Path, prefix: str, sums: Mapping[str, str]) -> None:
        found = {one["path"]: str(one["e_tag"]) for page in obstore.list(self._objects, prefix) for one in page}
        for key, etag in found.items():
            if sums.get(key) != etag:
                target = folder / key.removeprefix(prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(bytes(obstore.get(self._objects, key).bytes()))
        for key in sums.keys() - found.keys():
            (folder / key.removeprefix(prefix)).unlink()


def _objects(cloud: AzureEndpoint | GcsEndpoint, container: str) -> AzureStore | GCSStore:
    if isinstance(cloud, GcsEndpoint):
        return GCSStore(container, service_account_key=cloud.account_key())
    return AzureStore(
        container,
        account_name=cloud.account,
        account_key=cloud.key,
        endpoint=cloud.url,
        client_options={"allow_http": True},
    )
