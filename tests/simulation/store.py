"""An object store in memory. Several stores can share one bucket, as several processes share a table."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import anyio

from committerd.errors import InvalidRequest, ObjectUnreadable, PutUnknown, StoreUnavailable
from committerd.stores.port import Created, Exists, PutResult, Tail
from committerd_common.paths import VERSIONS
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
        self.life = 0
        """Grows when the folders are deleted, too: folders made later are different ones."""
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

    def delete_all(self, *, with_folders: bool) -> None:
        """Delete the whole table, in one moment."""
        for key in list(self.objects):
            self.delete(key)
        self.life += with_folders
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

    def __init__(self, bucket: Bucket, weather: Weather | None = None, *, uri: str = "memory://table") -> None:
        self.uri = uri
        self._bucket = bucket
        self._weather = weather or Weather()

    async def get(self, key: str) -> bytes | None:
        body: bytes | None = await self._read("get", key, lambda: self._bucket.objects.get(key))
        return body

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        body = await self._read("get_range", key, lambda: self._bucket.objects.get(key))
        return None if body is None else body[start:end]

    async def get_tail(self, key: str, size: int) -> Tail | None:
        body = await self._read("get_tail", key, lambda: self._bucket.objects.get(key))
        return None if body is None else Tail(body=body[max(len(body) - size, 0) :], size=len(body))

    async def head(self, key: str) -> int | None:
        body = await self._read("head", key, lambda: self._bucket.objects.get(key))
        return None if body is None else len(body)

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        keys: list[str] = await self._read("list", prefix, lambda: self._bucket.list(prefix, start_after, limit))
        return keys

    async def put(self, key: str, body: bytes) -> None:
        # If the response to a plain put is lost, repeating it is right whatever happened: no `PutUnknown`.
        await self._read("put", key, lambda: self._bucket.put(key, body))

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        swaps, sent_at, given_up = self._bucket.swaps, anyio.current_time(), False

        def put() -> Created | Exists | StoreUnavailable:
            late = anyio.current_time() - sent_at > _CLEANED_UP_SECONDS
            self._bucket.crossing = given_up or late or swaps != self._bucket.swaps
            try:
                return self._put_if_absent(key, body)
            finally:
                self._bucket.crossing = False

        try:
            result, fate = await self._weather.journey(f"store.put_if_absent {key}", put)
        except Refused as refused:
            raise StoreUnavailable(str(refused)) from refused
        except Lost as lost:
            given_up = True
            raise PutUnknown(str(lost)) from lost
        if isinstance(result, StoreUnavailable):
            raise result
        return Exists() if fate.ends == "doubled" else result

    def _put_if_absent(self, key: str, body: bytes) -> Created | Exists | StoreUnavailable:
        return self._bucket.put_if_absent(key, body)

    async def copy(self, source: str, target: str) -> bool:
        def copied() -> bool:
            body = self._bucket.objects.get(source)
            if body is not None:
                self._bucket.put(target, body)
            return body is not None

        done: bool = await self._read("copy", target, copied)
        return done

    async def delete(self, key: str) -> None:
        await self._read("delete", key, lambda: self._bucket.delete(key))

    async def aclose(self) -> None:
        """There is nothing to release."""

    async def _read(self, call: str, key: str, effect: Callable[[], Any]) -> Any:
        """A call that may be repeated: a lost response counts as none."""
        try:
            result, _ = await self._weather.journey(f"store.{call} {key}", effect)
        except (Refused, Lost) as error:
            raise StoreUnavailable(str(error)) from error
        return result


class SwiftStore(FakeStore):
    """A store that takes several objects at once (`committerd.stores.port.TakesSeveral`).

    It resembles `LocalStore` also in another way: versions are created in the folder that was listed last, or not at
    all.
    """

    def __init__(self, bucket: Bucket, weather: Weather | None = None, *, uri: str = "memory://table") -> None:
        super().__init__(bucket, weather, uri=uri)
        self._held: int | None = None
        """The life of the bucket when its versions were listed last; None = there were none."""

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        def listed() -> list[str]:
            keys = self._bucket.list(prefix, start_after, limit)
            if prefix == VERSIONS:
                self._held = self._bucket.life if keys else None
            return keys

        keys: list[str] = await self._read("list", prefix, listed)
        return keys

    def _put_if_absent(self, key: str, body: bytes) -> Created | Exists | StoreUnavailable:
        if key.startswith(VERSIONS) and self._held not in (None, self._bucket.life):
            return StoreUnavailable("the folder is gone")
        return super()._put_if_absent(key, body)

    async def head_several(self, keys: Sequence[str]) -> Sequence[int | ObjectUnreadable | InvalidRequest | None]:
        def sizes() -> list[int | None]:
            bodies = [self._bucket.objects.get(key) for key in keys]
            return [None if body is None else len(body) for body in bodies]

        found: list[int | None] = await self._read("head_several", f"{len(keys)} keys", sizes)
        return found

    async def get_several(
        self, keys: Sequence[str], *, most: int
    ) -> Sequence[bytes | ObjectUnreadable | InvalidRequest | None]:
        def bodies() -> list[bytes | None]:
            found = [self._bucket.objects.get(key) for key in keys]
            return [None if body is None else body[:most] for body in found]

        found: list[bytes | None] = await self._read("get_several", f"{len(keys)} keys", bodies)
        return found

    async def get_tails(
        self, keys: Sequence[str], *, size: int
    ) -> Sequence[Tail | ObjectUnreadable | InvalidRequest | None]:
        def tails() -> list[Tail | None]:
            bodies = [self._bucket.objects.get(key) for key in keys]
            return [None if body is None else Tail(body=body[-size:], size=len(body)) for body in bodies]

        found: list[Tail | None] = await self._read("get_tails", f"{len(keys)} keys", tails)
        return found

    async def put_several(self, objects: Sequence[tuple[str, bytes]]) -> None:
        for key, body in objects:
            await self.put(key, body)

    async def put_in_turn_if_absent(
        self, objects: Sequence[tuple[str, Sequence[bytes]]], *, as_long_as: Callable[[], bool]
    ) -> Sequence[PutResult]:
        results: list[PutResult] = []
        for key, parts in objects:
            try:
                results.append(await self.put_if_absent(key, b"".join(parts)))
            except (StoreUnavailable, PutUnknown) as error:
                results.append(error)
            if not isinstance(results[-1], Created) or not as_long_as():
                break
        if len(results) > 1 and self._weather.rng.random() < self._weather.rates.lost:
            return [PutUnknown("the names could not be synced")]
        return results


def _folder(key: str) -> str:
    return key[: key.rfind("/") + 1]
