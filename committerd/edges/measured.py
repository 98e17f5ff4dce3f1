"""Any object store and any external manifest store, with their requests counted and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import anyio

from committerd.errors import OutcomeUnknown, Unavailable
from committerd.ports import Created, Exists, ManifestEntry, ManifestStore, ObjectStore, Tail, TakesParts
from committerd.telemetry import Count, Spread, Telemetry


class MeasuredStore:
    """`ObjectStore` that passes everything on to another one and reports to `telemetry`."""

    def __init__(self, store: ObjectStore, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self.uri = store.uri

    async def get(self, key: str) -> bytes | None:
        with self._measured("get") as answered:
            body = await self._store.get(key)
            answered("absent" if body is None else "ok")
            return body

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        with self._measured("get_range") as answered:
            body = await self._store.get_range(key, start, end)
            answered("absent" if body is None else "ok")
            return body

    async def get_tail(self, key: str, size: int) -> Tail | None:
        with self._measured("get_tail") as answered:
            tail = await self._store.get_tail(key, size)
            answered("absent" if tail is None else "ok")
            return tail

    async def head(self, key: str) -> int | None:
        with self._measured("head") as answered:
            size = await self._store.head(key)
            answered("absent" if size is None else "ok")
            return size

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        with self._measured("list") as answered:
            keys = await self._store.list(prefix, start_after=start_after, limit=limit)
            answered("ok")
            return keys

    async def put(self, key: str, body: bytes) -> None:
        with self._measured("put") as answered:
            await self._store.put(key, body)
            answered("ok")

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        with self._measured("put_if_absent") as answered:
            outcome = await self._store.put_if_absent(key, body)
            answered("exists" if isinstance(outcome, Exists) else "ok")
            return outcome

    async def put_parts_if_absent(self, key: str, parts: Sequence[bytes]) -> Created | Exists:
        if not isinstance(self._store, TakesParts):
            return await self.put_if_absent(key, b"".join(parts))
        with self._measured("put_if_absent") as answered:
            outcome = await self._store.put_parts_if_absent(key, parts)
            answered("exists" if isinstance(outcome, Exists) else "ok")
            return outcome

    async def copy(self, source: str, target: str) -> bool:
        with self._measured("copy") as answered:
            copied = await self._store.copy(source, target)
            answered("ok" if copied else "absent")
            return copied

    async def delete(self, key: str) -> None:
        with self._measured("delete") as answered:
            await self._store.delete(key)
            answered("ok")

    async def aclose(self) -> None:
        await self._store.aclose()

    def _measured(self, operation: str) -> AbstractContextManager[Callable[[str], None]]:
        return _measured(self._telemetry.store_requests, self._telemetry.store_request_duration, operation)


class MeasuredManifests:
    """`ManifestStore` that passes everything on to another one and reports to `telemetry`."""

    def __init__(self, entries: ManifestStore, telemetry: Telemetry) -> None:
        self._entries = entries
        self._telemetry = telemetry

    async def get(self, version: int) -> ManifestEntry | None:
        with self._measured("get") as answered:
            entry = await self._entries.get(version)
            answered("absent" if entry is None else "ok")
            return entry

    async def latest(self) -> ManifestEntry | None:
        with self._measured("latest") as answered:
            entry = await self._entries.latest()
            answered("absent" if entry is None else "ok")
            return entry

    async def put_if_absent(self, entry: ManifestEntry) -> Created | Exists:
        with self._measured("put_if_absent") as answered:
            outcome = await self._entries.put_if_absent(entry)
            answered("exists" if isinstance(outcome, Exists) else "ok")
            return outcome

    async def replace(self, entry: ManifestEntry) -> bool:
        with self._measured("replace") as answered:
            replaced = await self._entries.replace(entry)
            answered("ok" if replaced else "absent")
            return replaced

    async def aclose(self) -> None:
        await self._entries.aclose()

    def _measured(self, operation: str) -> AbstractContextManager[Callable[[str], None]]:
        requests, durations = self._telemetry.manifest_store_requests, self._telemetry.manifest_store_request_duration
        return _measured(requests, durations, operation)


@contextmanager
def _measured(requests: Count, durations: Spread, operation: str) -> Iterator[Callable[[str], None]]:
    """Yields what takes the answer's status; a block left by an exception gets its own."""
    statuses: list[str] = []
    start = anyio.current_time()
    try:
        yield statuses.append
    except Unavailable:
        statuses.append("unavailable")
        raise
    except OutcomeUnknown:
        statuses.append("unknown")
        raise
    except anyio.get_cancelled_exc_class():
        statuses.append("cancelled")
        raise
    except BaseException:
        statuses.append("failed")
        raise
    finally:
        seconds = anyio.current_time() - start
        labels = {"operation": operation, "status": statuses[-1]}
        requests.add(**labels)
        durations.observe(seconds, **labels)
