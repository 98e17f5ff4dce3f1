"""versitygw, an S3 server, behind the proxy of `bench.proxied_store`."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import lance
from pydantic import SecretStr

from bench.pool import Pool, rows
from bench.proxied_store import ProxiedStore
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.open import Stores
from harness.places import StorePlace, s3_place
from harness.s3 import S3Endpoint, Versitygw


class ProxiedS3(ProxiedStore):
    """Server and proxy, inside a `with` block."""

    def __init__(self, *, logs_requests: bool = False) -> None:
        """`logs_requests`: whether `requests` can be asked."""
        self._logs_requests = logs_requests

    def _start(self, stack: ExitStack) -> str:
        server = stack.enter_context(Versitygw(logs_requests=self._logs_requests))
        self._direct, self.data, self._requests = server.endpoint, server.data, server.requests
        return self._direct.url

    def requests(self) -> Counter[str]:
        """The requests so far, by S3's name of the operation (`GetObject`)."""
        return Counter(re.findall(r" s3_(\w+) ", self._requests.read_text()))

    @property
    def _through(self) -> S3Endpoint:
        return self._direct.through(self._proxy.url)

    def new_table(self, pool: Pool | None, ids: Iterable[int] = ()) -> StorePlace:
        """As in `ProxiedStore`, with rows of these ids.

        The files of the pool are in its folder `data`, through a symbolic link in the server's own folder. Where files
        are deleted there must be no pool: the server, which removes the folder of the last object, removes the link.
        """
        place = s3_place(self._direct, proxy=self._proxy.url)
        lance.write_dataset(rows(list(ids)), place.uri, storage_options=dict(place.storage_options))
        if pool is not None:
            data = self.data / place.uri.partition("://")[2] / "data"
            if data.exists():
                for file in data.iterdir():
                    shutil.copyfile(file, Path(pool.folder, file.name))
                shutil.rmtree(data)
            data.symlink_to(pool.folder)
        return StorePlace(place.uri, self._through.storage_options(), place.settings)

    def free_place(self) -> tuple[StorePlace, dict[str, str]]:
        """A place without a table in a new bucket, through the proxy, and pylance's options to reach it directly."""
        place = s3_place(self._direct, proxy=self._proxy.url)
        return StorePlace(place.uri, self._through.storage_options(), place.settings), dict(place.storage_options)

    def copy_of(self, folder: Path) -> StorePlace:
        """Make a table in a new bucket with the files of a local one, as links where that is possible."""
        place = s3_place(self._direct, proxy=self._proxy.url)
        self.link(folder, self.data / place.uri.partition("://")[2])
        return StorePlace(place.uri, self._through.storage_options(), place.settings)

    def link(self, folder: Path, copy: Path) -> None:
        """Make a folder in a bucket with the files of another, as links where that is possible."""
        try:
            shutil.copytree(folder, copy, copy_function=os.link)
        except shutil.Error:  # another file system
            shutil.copytree(folder, copy, dirs_exist_ok=True)

    def new_folder(self) -> str:
        return f"s3://{self._through.make_bucket()}/raw"

    def stores(self) -> Stores:
        return Stores(self.settings, DynamoDBSettings())

    @property
    def settings(self) -> S3Settings:
        """The settings with which committerd's store reaches the server through the proxy."""
        return S3Settings(
            endpoint_url=self._through.url,
            access_key_id=SecretStr(self._through.access_key),
            secret_access_key=SecretStr(self._through.secret_key),
            region=self._through.region,
            addressing_style="path",
        )
