"""Decorators that count and time the requests of an object store or an external manifest store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

import anyio

from committerd.errors import PutUnknown, Unavailable
from committerd.stores.port import Created, Exists, ManifestEntry, ManifestStore, ObjectStore, Tail, TailOrError

if TYPE_CHECKING:
    # Commands without metrics do without prometheus_client, which takes 4 MiB.
    from committerd.telemetry import LabelledCounter, LabelledHistogram, Telemetry


class MeasuredStore:
    """`ObjectStore` that forwards every call to another one and reports it to `telemetry`."""

    def __init__(self, store: ObjectStore, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self.uri = store.uri

    async def get(self, key: str) -> bytes | None:
        with self._measured("get") as note:
            body = await self._store.get(key)
            note("absent" if body is None else "ok")
            return body

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        with self._measured("get_range") as note:
            body = await self._store.get_range(key, start, end)
            note("absent" if body is None else "ok")
            return body

    async def get_tail(self, key: str, size: int) -> Tail | None:
        with self._measured("get_tail") as note:
            tail = await self._store.get_tail(key, size)
            note("absent" if tail is None else "ok")
            return tail

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        """Each object counts as one request, with an equal share of the call's time."""
        with self._measured("get_tail") as note:
            tails = await self._store.get_tails(keys, size=size)
            words = {Tail: "ok", type(None): "absent"}
            note(*(words.get(type(tail), "unavailable") for tail in tails))
            return tails

    async def head(self, key: str) -> int | None:
        with self._measured("head") as note:
            size = await self._store.head(key)
            note("absent" if size is None else "ok")
            return size

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        with self._measured("list") as note:
            keys = await self._store.list(prefix, start_after=start_after, limit=limit)
            note("ok")
            return keys

    async def put(self, key: str, body: bytes) -> None:
        with self._measured("put") as note:
            await self._store.put(key, body)
            note("ok")

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        with self._measured("put_if_absent") as note:
            result = await self._store.put_if_absent(key, body)
            note("exists" if isinstance(result, Exists) else "ok")
            return result

    async def copy(self, source: str, target: str) -> bool:
        with self._measured("copy") as note:
            copied = await self._store.copy(source, target)
            note("ok" if copied else "absent")
            return copied

    async def delete(self, key: str) -> None:
        with self._measured("delete") as note:
            await self._store.delete(key)
            note("ok")

    async def aclose(self) -> None:
        await self._store.aclose()

    def _measured(self, operation: str) -> AbstractContextManager[_Note]:
        return _measured(self._telemetry.store_requests, self._telemetry.store_request_duration, operation)


class MeasuredManifests:
    """`ManifestStore` that forwards every call to another one and reports it to `telemetry`."""

    def __init__(self, entries: ManifestStore, telemetry: Telemetry) -> None:
        self._entries = entries
        self._telemetry = telemetry

    async def get(self, version: int) -> ManifestEntry | None:
        with self._measured("get") as note:
            entry = await self._entries.get(version)
            note("absent" if entry is None else "ok")
            return entry

    async def latest(self) -> ManifestEntry | None:
        with self._measured("latest") as note:
            entry = await self._entries.latest()
            note("absent" if entry is None else "ok")
            return entry

    async def put_if_absent(self, entry: ManifestEntry) -> Created | Exists:
        with self._measured("put_if_absent") as note:
            result = await self._entries.put_if_absent(entry)
            note("exists" if isinstance(result, Exists) else "ok")
            return result

    async def replace(self, entry: ManifestEntry) -> bool:
        with self._measured("replace") as note:
            replaced = await self._entries.replace(entry)
            note("ok" if replaced else "absent")
            return replaced

    async def delete(self, version: int, *, key: str) -> None:
        with self._measured("delete") as note:
            await self._entries.delete(version, key=key)
            note("ok")

    async def aclose(self) -> None:
        await self._entries.aclose()

    def _measured(self, operation: str) -> AbstractContextManager[_Note]:
        requests, durations = self._telemetry.manifest_store_requests, self._telemetry.manifest_store_request_duration
        return _measured(requests, durations, operation)


@contextmanager
def _measured(requests: LabelledCounter, durations: LabelledHistogram, operation: str) -> Iterator[_Note]:
    """Measure the requests of a block. Yields a function that takes the status of each request.

    An exception that leaves the block adds one more status: `unavailable`, `unknown`, `cancelled` or `failed`.
    """
    statuses: list[str] = []
    start = anyio.current_time()

    def note(*some: str) -> None:
        statuses.extend(some)

    try:
        yield note
    except Unavailable:
        statuses.append("unavailable")
        raise
    except PutUnknown:
        statuses.append("unknown")
        raise
    except anyio.get_cancelled_exc_class():
        statuses.append("cancelled")
        raise
    except BaseException:
        statuses.append("failed")
        raise
    finally:
        seconds = (anyio.current_time() - start) / max(len(statuses), 1)
        for status in statuses:
            requests.add(operation=operation, status=status)
            durations.observe(seconds, operation=operation, status=status)


class _Note(Protocol):
    def __call__(self, *statuses: str) -> None: ...
