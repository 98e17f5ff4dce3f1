"""An S3 server on this machine behind a proxy that adds the latency of a distant one.

versitygw behind toxiproxy, which delays each piece of a response by the given time, for any number of connections: it
does not throttle connections.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import lance
from pydantic import SecretStr

from bench.pool import Pool, rows
from committerd.settings.s3 import S3Settings
from harness.places import StorePlace, s3_place
from harness.s3 import Versitygw
from harness.toxiproxy import Toxiproxy


class ProxiedS3:
    """Server and proxy, inside a `with` block."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            server = stack.enter_context(Versitygw())
            self._direct, self.data = server.endpoint, server.data
            self._proxy = stack.enter_context(Toxiproxy()).proxy(self._direct.url)
            self._through = self._direct.through(self._proxy.url)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def adding(self, milliseconds: int) -> Iterator[None]:
        """Add this latency to every response inside the block."""
        if not milliseconds:
            yield
            return
        toxic = self._proxy.add("latency", latency=milliseconds)
        try:
            yield
        finally:
            self._proxy.remove(toxic)

    def new_table(self, pool: Pool | None, ids: Iterable[int] = ()) -> StorePlace:
        """Make a table in a new bucket, without the proxy; return how both sides reach it through the proxy.

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

    def copy_of(self, folder: Path) -> StorePlace:
        """Make a table in a new bucket with the files of a local one, as links where that is possible."""
        place = s3_place(self._direct, proxy=self._proxy.url)
        copy = self.data / place.uri.partition("://")[2]
        try:
            shutil.copytree(folder, copy, copy_function=os.link)
        except shutil.Error:  # another file system
            shutil.copytree(folder, copy, dirs_exist_ok=True)
        return StorePlace(place.uri, self._through.storage_options(), place.settings)

    def new_folder(self) -> str:
        """Return the URI of a folder in a new bucket."""
        return f"s3://{self._through.make_bucket()}/raw"

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
