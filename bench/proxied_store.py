"""A store's server on this machine behind a proxy that adds the latency of a distant one.

toxiproxy delays each piece of a response by the given time, for any number of connections: it does not throttle
connections.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from bench.pool import Pool
from committerd.stores.open import Stores
from harness.places import StorePlace
from harness.toxiproxy import NetworkProxy, Toxiproxy


class ProxiedStore(ABC):
    """Server and proxy, inside a `with` block."""

    files_max: int | None = None
    """So many files of a pool are in the bucket of a new table; None = all."""
    _proxy: NetworkProxy

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            server = self._start(stack)
            self._proxy = stack.enter_context(Toxiproxy()).proxy(server)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def _start(self, stack: ExitStack) -> str:
        """Start the server, which ends with the stack; return its URL."""

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

    @abstractmethod
    def new_table(self, pool: Pool | None) -> StorePlace:
        """Make a table in a new bucket, without the proxy; return how both sides reach it through the proxy."""

    @abstractmethod
    def new_folder(self) -> str:
        """Return the URI of a folder in a new bucket."""

    @abstractmethod
    def stores(self) -> Stores:
        """committerd's stores, which reach the server through the proxy."""
