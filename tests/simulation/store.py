"""An object store in memory. Several stores can share one bucket, as several processes share a table."""

from __future__ import annotations

import bisect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal

import anyio

from committerd.errors import PutUnknown, StoreUnavailable
from committerd.stores.port import (
    Content,
    Created,
    Exists,
    ObjectEntry,
    Tail,
    TailOrError,
    in_one_piece,
    require_below_root,
    tails_of_each,
)
from tests.simulation.faults import Lost, Refused, Weather

_CLEANED_UP_SECONDS = 3600.0
"""Cleanups keep what is younger than this."""

Change = Literal["created", "replaced", "deleted"]
Watch = Callable[[Change, str, bytes], None]


class Bucket:
    """The stored objects. Every change happens in one moment, in which watchers are notified."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.watchers: list[Watch] = []
        self._folders: dict[str, list[str]] = {}
        self.swaps = 0
        """How often everything was deleted."""
        self.crossing = False
        """Whether the object being created was sent before the last deletion, or so long ago that a cleanup may have
        freed its key, or its sender has given up.
        """

    def put(self, key: str, body: bytes) -> None:
        change: Change = "replaced" if key in self.objects else "created"
        if change == "created":
            bisect.insort(self._folders.setdefault(_folder(key), []), key, key=str.encode)
        self.objects[key] = body
        self._tell(change, key, body)

    def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        if key in self.objects:
            return Exists()
        self.put(key, body)
        return Created()

    def delete(self, key: str) -> None:
        body = self.objects.pop(key, None)
        if body is not None:
            self._folders[_folder(key)].remove(key)
            self._tell("deleted", key, body)

    def delete_all(self) -> None:
        """Delete the whole table, in one moment."""
        for key in list(self.objects):
            self.delete(key)
        self.swaps += 1

    def spoil(self, key: str, body: bytes) -> None:
        """Replace an object's bytes without a writer."""
        self.objects[key] = body

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> list[str]:
        keys = self._folders.get(prefix, [])
        first = bisect.bisect_right(keys, start_after.encode(), key=str.encode)
        return keys[first:] if limit is None else keys[first : first + limit]

    def _tell(self, change: Change, key: str, body: bytes) -> None:
        for watch in self.watchers:
            watch(change, key, body)


class FakeStore:
    """`committerd.stores.port.ObjectStore` as one process sees a bucket."""

    def __init__(
        self,
        bucket: Bucket,
        weather: Weather | None = None,
        *,
        uri: str = "memory://table",
        lists_whole_folders: bool = False,
    ) -> None:
        self.uri = uri
        self.lists_whole_folders = lists_whole_folders
        self._bucket = bucket
        self._weather = weather or Weather()

    async def get(self, key: str) -> bytes | None:
        body: bytes | None = await self._of_object("get", key, lambda: self._bucket.objects.get(key))
        return body

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        body = await self._of_object("get_range", key, lambda: self._bucket.objects.get(key))
        return None if body is None else body[start:end]

    async def get_tail(self, key: str, size: int) -> Tail | None:
        body = await self._of_object("get_tail", key, lambda: self._bucket.objects.get(key))
        return None if body is None else Tail(body=body[max(len(body) - size, 0) :], size=len(body))

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        return await tails_of_each(self.get_tail, keys, size)

    async def head(self, key: str) -> int | None:
        body = await self._of_object("head", key, lambda: self._bucket.objects.get(key))
        return None if body is None else len(body)

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        keys: list[str] = await self._read("list", prefix, lambda: self._bucket.list(prefix, start_after, limit))
        return keys

    async def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        yield [
            ObjectEntry(key=key, size=len(body), modified_ms=int(time.time() * 1000))
            for key, body in self._bucket.objects.items()
            if key.startswith(prefix)
        ]

    async def put(self, key: str, body: bytes) -> None:
        # If the response to a plain put is lost, repeating it is right whatever happened: no `PutUnknown`.
        await self._of_object("put", key, lambda: self._bucket.put(key, body))

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        require_below_root(key)
        whole = in_one_piece(body)
        swaps, sent_at, given_up = self._bucket.swaps, anyio.current_time(), False

        def put() -> Created | Exists:
            late = anyio.current_time() - sent_at > _CLEANED_UP_SECONDS
            self._bucket.crossing = given_up or late or swaps != self._bucket.swaps
            try:
                return self._bucket.put_if_absent(key, whole)
            finally:
                self._bucket.crossing = False

        try:
            result, fate = await self._weather.journey(f"store.put_if_absent {key}", put)
        except Refused as refused:
            raise StoreUnavailable(str(refused)) from refused
        except Lost as lost:
            given_up = True
            raise PutUnknown(str(lost)) from lost
        return Exists() if fate.ends == "doubled" else result

    async def copy(self, source: str, target: str) -> bool:
        def copied() -> bool:
            body = self._bucket.objects.get(source)
            if body is not None:
                self._bucket.put(target, body)
            return body is not None

        done: bool = await self._of_object("copy", target, copied)
        return done

    async def delete(self, key: str) -> None:
        await self._of_object("delete", key, lambda: self._bucket.delete(key))

    async def _of_object(self, call: str, key: str, effect: Callable[[], Any]) -> Any:
        require_below_root(key)
        return await self._read(call, key, effect)

    async def _read(self, call: str, key: str, effect: Callable[[], Any]) -> Any:
        """A call that may be repeated: a lost response counts as none."""
        try:
            result, _ = await self._weather.journey(f"store.{call} {key}", effect)
        except (Refused, Lost) as error:
            raise StoreUnavailable(str(error)) from error
        return result


def _folder(key: str) -> str:
    return key[: key.rfind("/") + 1]
