"""Keeps the list of what maintenance leaves alone, as an object of the table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from importlib.metadata import version

from committerd.maintenance.left_alone import LEFT_ALONE, FailedWork, Failure, read_failed
from committerd.stores.port import ObjectStore
from committerd_client.maintenance.table import TableState


class FailedWorkOfTable:
    """What has failed on one table, read once and written whenever it changes. Methods raise `StoreUnavailable`."""

    def __init__(self, store: ObjectStore, *, wall_clock: Callable[[], datetime]) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._found: FailedWork | None = None

    @property
    def left_alone(self) -> tuple[Failure, ...]:
        """What is left alone now; nothing before it was read."""
        return () if self._found is None else self._found.left_alone(self._now_ms())

    async def among(self, state: TableState) -> tuple[Failure, ...]:
        """What of this table is left alone now."""
        found = await self._read()
        left = found.among(fragments=[one.id for one in state.fragments], indices=[one.name for one in state.indices])
        self._found = left
        return self.left_alone

    async def note(self, *, fragments: Collection[int] = (), index: str = "", why: str, proved: bool) -> None:
        """Note a failure."""
        found = await self._read()
        await self._change(
            found.after_failure(fragments=fragments, index=index, why=why, proved=proved, now_ms=self._now_ms())
        )

    async def succeeded(self, index: str) -> None:
        """Note that the work on an index has succeeded."""
        await self._change((await self._read()).after_success(index=index))

    async def _read(self) -> FailedWork:
        if self._found is None:
            self._found = await read_failed(self._store, pylance=version("pylance"))
        return self._found

    async def _change(self, found: FailedWork) -> None:
        if found != self._found:
            await self._store.put(LEFT_ALONE, found.encode())
            self._found = found

    def _now_ms(self) -> int:
        return int(self._wall_clock().timestamp() * 1000)
