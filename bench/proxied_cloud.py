"""Azurite or fake-gcs-server behind the proxy of `bench.proxied_store`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import lance
import obstore

from bench.pool import Pool, rows
from bench.proxied_store import ProxiedStore
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.clouds import cloud_place as place_of
from committerd.stores.obstore_store import ObstoreClient
from committerd.stores.open import Stores
from harness.azure import AzureEndpoint, Azurite
from harness.gcs import GcsEndpoint, gcs_server
from harness.places import StorePlace, cloud_group, cloud_place

_UPLOADS_AT_ONCE = 16


class ProxiedCloud(ProxiedStore):
    """Server and proxy, inside a `with` block."""

    files_max = 4000

    def __init__(self, kind: Literal["azure", "gcs"]) -> None:
        self._kind = kind

    def _start(self, stack: ExitStack) -> str:
        self._direct: AzureEndpoint | GcsEndpoint = (
            stack.enter_context(Azurite()).endpoint if self._kind == "azure" else stack.enter_context(gcs_server())
        )
        return self._direct.server

    @property
    def _through(self) -> AzureEndpoint | GcsEndpoint:
        return self._direct.through(self._proxy.url)

    def new_table(self, pool: Pool | None) -> StorePlace:
        """As in `ProxiedStore`; the first files of the pool are uploaded into its folder `data`."""
        place = cloud_place(self._direct, proxy=self._proxy.url)
        lance.write_dataset(rows([]), place.uri, storage_options=dict(place.storage_options))
        if pool is not None:
            self._upload(pool, place.uri)
        return StorePlace(place.uri, self._through.storage_options(), place.settings)

    def new_folder(self) -> str:
        return f"{self._direct.scheme}://{self._direct.make_bucket()}/raw"

    def stores(self) -> Stores:
        return Stores(S3Settings(), DynamoDBSettings(), clouds=dict([cloud_group(self._through)]))

    def _upload(self, pool: Pool, uri: str) -> None:
        cloud, settings = cloud_group(self._direct)
        place = place_of(uri)
        assert place is not None
        container: Any = ObstoreClient(cloud, place.root, settings).container

        def put(number: int) -> None:
            name = pool.file_name(number)
            obstore.put(container, f"{place.prefix}data/{name}", Path(pool.folder, name).read_bytes())

        with ThreadPoolExecutor(_UPLOADS_AT_ONCE) as threads:
            list(threads.map(put, range(min(pool.count, self.files_max))))
