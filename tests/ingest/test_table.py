"""Tables whose stores do not respond, beside others."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from committerd_ingest.table import Table


class Silent:
    """A place that says nothing until it is told to."""

    def __init__(self) -> None:
        self.told, self._one = threading.Event(), threading.Lock()
        self.now = self.most = 0

    def find(self) -> None:
        with self._one:
            self.now += 1
            self.most = max(self.most, self.now)
        self.told.wait(300)
        with self._one:
            self.now -= 1


def table_at(place: Any) -> Table:
    client: Any = None
    return Table(place, client, timeout=1)


def test_a_table_whose_store_does_not_respond_leaves_threads_to_others() -> None:
    silent, other = Silent(), Silent()
    other.told.set()

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(12))
        table = table_at(silent)
        looks = [asyncio.create_task(table.says(str(number))) for number in range(24)]
        try:
            while silent.now < 4:  # noqa: ASYNC110  # it counts in threads
                await asyncio.sleep(0.01)
            assert await asyncio.wait_for(table_at(other).says("x"), 240) is None
            assert silent.now == 4
        finally:
            silent.told.set()
        assert await asyncio.gather(*looks) == [None] * 24

    asyncio.run(run())
    assert silent.most == 4
