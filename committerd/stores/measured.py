"""Decorators that count and time the requests of an object store or an external manifest store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio

from committerd.errors import InvalidRequest, PutUnknown, Unavailable
from committerd.stores.port import (
    Created,
    Exists,
    ManifestEntry,
    ManifestStore,
    ObjectEntry,
    ObjectStore,
    Tail,
    TailOrError,
    tails_of_each,
)

if TYPE_CHECKING:
    # Commands without metrics do without prometheus_client, which takes 4 MiB.
    from committerd.telemetry import LabelledCounter, LabelledHistogram, Telemetry

_T = TypeVar("_T")


class MeasuredStore:
    """`ObjectStore` that forwards every call to another one and reports it to `telemetry`."""

    def __init__(self, store: ObjectStore, telemetry: Telemetry) -> None:
        self._store = store
        self._measured = _Measured(telemetry.store_requests, telemetry.store_request_duration)
        self.uri = store.uri

    async def get(self, key: str) -> bytes | None:
        return await self._measured("get", self._store.get(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return await self._measured("get_range", self._store.get_range(key, start, end))

    async def get_tail(self, key: str, size: int) -> Tail | None:
        return await self._measured("get_tail", self._store.get_tail(key, size))

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        return await tails_of_each(self.get_tail, keys, size)

    async def head(self, key: str) -> int | None:
        return await self._measured("head", self._store.head(key))

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        return await self._measured("list", self._store.list(prefix, start_after=start_after, limit=limit))

    def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        return self._store.walk(prefix)

    async def put(self, key: str, body: bytes) -> None:
        await self._measured("put", self._store.put(key, body), nothing="ok")

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        return await self._measured("put_if_absent", self._store.put_if_absent(key, body))

    async def copy(self, source: str, target: str) -> bool:
        return await self._measured("copy", self._store.copy(source, target))

    async def delete(self, key: str) -> None:
        await self._measured("delete", self._store.delete(key), nothing="ok")


class MeasuredLocalStore(MeasuredStore):
    """`MeasuredStore` for a store that reads many objects in one call."""

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        """Each object counts as one request, with an equal share of the call's time."""
        return await self._measured.each("get_tail", self._store.get_tails(keys, size=size))


class MeasuredManifests:
    """`ManifestStore` that forwards every call to another one and reports it to `telemetry`."""

    def __init__(self, entries: ManifestStore, telemetry: Telemetry) -> None:
        self._entries = entries
        self._measured = _Measured(telemetry.manifest_store_requests, telemetry.manifest_store_request_duration)

    async def get(self, version: int) -> ManifestEntry | None:
        return await self._measured("get", self._entries.get(version))

    async def latest(self) -> ManifestEntry | None:
        return await self._measured("latest", self._entries.latest())

    async def put_if_absent(self, entry: ManifestEntry) -> Created | Exists:
        return await self._measured("put_if_absent", self._entries.put_if_absent(entry))

    async def replace(self, entry: ManifestEntry) -> bool:
        return await self._measured("replace", self._entries.replace(entry))

    async def delete(self, version: int, *, key: str) -> None:
        await self._measured("delete", self._entries.delete(version, key=key), nothing="ok")


class _Measured:
    """Counts and times requests, by operation and status.

    The status of a request that raises is `unavailable`, `unknown`, `cancelled` or `failed`.
    """

    def __init__(self, requests: LabelledCounter, durations: LabelledHistogram) -> None:
        self._requests = requests
        self._durations = durations

    async def __call__(self, operation: str, request: Awaitable[_T], *, nothing: str = "absent") -> _T:
        """Await a request and return its result. `nothing`: the status of None and False."""
        with self._noted(operation) as statuses:
            result = await request
            statuses.append(_status(result, nothing))
            return result

    async def each(self, operation: str, request: Awaitable[Sequence[_T]]) -> Sequence[_T]:
        """As `__call__`, for a call that returns the result of each of several requests."""
        with self._noted(operation) as statuses:
            results = await request
            statuses.extend(_status(result, "absent") for result in results)
            return results

    @contextmanager
    def _noted(self, operation: str) -> Iterator[list[str]]:
        statuses: list[str] = []
        start = anyio.current_time()
        try:
            yield statuses
        except BaseException as error:
            statuses.append(_status_of(error))
            raise
        finally:
            seconds = (anyio.current_time() - start) / max(len(statuses), 1)
            for status in statuses:
                self._requests.add(operation=operation, status=status)
                self._durations.observe(seconds, operation=operation, status=status)


def _status(result: object, nothing: str) -> str:
    if result is None or result is False:
        return nothing
    if isinstance(result, Exception):
        return _status_of(result)
    return "exists" if isinstance(result, Exists) else "ok"


def _status_of(error: BaseException) -> str:
    if isinstance(error, Unavailable | InvalidRequest):
        return "unavailable"
    if isinstance(error, PutUnknown):
        return "unknown"
    return "cancelled" if isinstance(error, anyio.get_cancelled_exc_class()) else "failed"
