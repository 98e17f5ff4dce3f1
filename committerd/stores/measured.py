"""Wrappers that count and time the requests of an object store or an external manifest store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import anyio

from committerd.errors import InvalidRequest, PutUnknown, Unavailable
from committerd.stores.port import Exists, ManifestStore, ObjectStore, TailOrError, tails_of_each

if TYPE_CHECKING:
    # Commands without metrics do without prometheus_client, which takes 4 MiB.
    from committerd.telemetry import LabelledCounter, LabelledHistogram, Telemetry

_P = ParamSpec("_P")
_T = TypeVar("_T")


class MeasuredStore:
    """The methods of an `ObjectStore`, with each call reported to `telemetry`."""

    def __init__(self, store: ObjectStore, telemetry: Telemetry) -> None:
        self._store = store
        self._measured = measured = _Measured(telemetry.store_requests, telemetry.store_request_duration)
        self.uri, self.lists_whole_folders = store.uri, store.lists_whole_folders
        self.get = measured(store.get)
        self.get_range = measured(store.get_range)
        self.get_tail = measured(store.get_tail)
        self.head = measured(store.head)
        self.list = measured(store.list)
        self.walk = store.walk
        self.put = measured(store.put, nothing="ok")
        self.put_if_absent = measured(store.put_if_absent)
        self.copy = measured(store.copy)
        self.delete = measured(store.delete, nothing="ok")

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        return await tails_of_each(self.get_tail, keys, size)


class MeasuredLocalStore(MeasuredStore):
    """`MeasuredStore` for a store that reads many objects in one call."""

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        """Each object counts as one request, with an equal share of the call's time."""
        with self._measured.noted("get_tail") as statuses:
            tails = await self._store.get_tails(keys, size=size)
            statuses += [_status(tail, "absent") for tail in tails]
            return tails


class MeasuredManifests:
    """The methods of a `ManifestStore`, with each call reported to `telemetry`."""

    def __init__(self, entries: ManifestStore, telemetry: Telemetry) -> None:
        measured = _Measured(telemetry.manifest_store_requests, telemetry.manifest_store_request_duration)
        self.get = measured(entries.get)
        self.latest = measured(entries.latest)
        self.put_if_absent = measured(entries.put_if_absent)
        self.replace = measured(entries.replace)
        self.delete = measured(entries.delete, nothing="ok")


class _Measured:
    """Counts and times requests, by operation and status."""

    def __init__(self, requests: LabelledCounter, durations: LabelledHistogram) -> None:
        self._requests = requests
        self._durations = durations

    def __call__(
        self, request: Callable[_P, Coroutine[Any, Any, _T]], *, nothing: str = "absent"
    ) -> Callable[_P, Coroutine[Any, Any, _T]]:
        """Wrap a method; its name is the operation. `nothing`: the status of None and False."""
        operation = request.__name__

        async def measured(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with self.noted(operation) as statuses:
                result = await request(*args, **kwargs)
                statuses.append(_status(result, nothing))
                return result

        return measured

    @contextmanager
    def noted(self, operation: str) -> Iterator[list[str]]:
        """Yield a list for the status of each request that the block sends. They share the block's time equally.

        The status of a block that raises is `unavailable`, `unknown`, `cancelled` or `failed`.
        """
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
