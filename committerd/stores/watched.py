"""Wrappers that say whom a command waits for, if a store does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

from committerd.stores.port import ManifestStore, ObjectEntry, ObjectStore, TailOrError
from committerd.waiting import waiting_for

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WatchedStore:
    """The methods of an `ObjectStore`; each call is a request to `whom` (`committerd.waiting`)."""

    def __init__(self, store: ObjectStore, whom: str) -> None:
        self._store = store
        self._whom = whom
        self.uri, self.lists_whole_folders = store.uri, store.lists_whole_folders
        watched = _Watched(whom)
        self.get = watched(store.get)
        self.get_range = watched(store.get_range)
        self.get_tail = watched(store.get_tail)
        self.head = watched(store.head)
        self.list = watched(store.list)
        self.put = watched(store.put)
        self.put_if_absent = watched(store.put_if_absent)
        self.copy = watched(store.copy)
        self.delete = watched(store.delete)

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        with waiting_for(self._whom):
            return await self._store.get_tails(keys, size=size)

    async def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        entries = aiter(self._store.walk(prefix))
        while True:
            with waiting_for(self._whom):
                page = await anext(entries, None)
            if page is None:
                return
            yield page


class WatchedManifests:
    """The methods of a `ManifestStore`; each call is a request to `whom` (`committerd.waiting`)."""

    def __init__(self, entries: ManifestStore, whom: str) -> None:
        watched = _Watched(whom)
        self.get = watched(entries.get)
        self.latest = watched(entries.latest)
        self.put_if_absent = watched(entries.put_if_absent)
        self.replace = watched(entries.replace)
        self.delete = watched(entries.delete)


class _Watched:
    """Makes each call of a method a request to `whom`."""

    def __init__(self, whom: str) -> None:
        self._whom = whom

    def __call__(self, request: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, Coroutine[Any, Any, _T]]:
        async def watched(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with waiting_for(self._whom):
                return await request(*args, **kwargs)

        return watched
