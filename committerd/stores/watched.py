"""A wrapper that says whom a command waits for, if a store does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

from committerd.stores.port import ObjectEntry, ObjectStore, TailOrError
from committerd.waiting import waiting_for

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WatchedStore:
    """The methods of an `ObjectStore`; each call is a request to `whom` (`committerd.waiting`)."""

    def __init__(self, store: ObjectStore, whom: str) -> None:
        self._store = store
        self._whom = whom
        self.uri, self.lists_whole_folders = store.uri, store.lists_whole_folders
        self.get = self._watched(store.get)
        self.get_range = self._watched(store.get_range)
        self.get_tail = self._watched(store.get_tail)
        self.head = self._watched(store.head)
        self.list = self._watched(store.list)
        self.put = self._watched(store.put)
        self.put_if_absent = self._watched(store.put_if_absent)
        self.copy = self._watched(store.copy)
        self.delete = self._watched(store.delete)

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

    def _watched(self, request: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, Coroutine[Any, Any, _T]]:
        async def watched(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with waiting_for(self._whom):
                return await request(*args, **kwargs)

        return watched
