"""What all tables of a process share: a part that fails is begun anew, because its end would be the end of every table.

An error of one table's committer is that table's (`daemon.hosted`). The parts here are threads, tasks and clients that
serve all of them. An error that a part does not expect is logged with its traceback and counted, and the part begins
anew after a moment. The process ends only if that has not helped for minutes: another process may.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Literal, get_args

import anyio

_log = logging.getLogger(__name__)

Part = Literal[
    "admin",
    "consumer",
    "consumer_watch",
    "datasets_file",
    "producer",
    "questions",
    "reader",
    "status",
    "topics",
    "watch",
]
PARTS: tuple[str, ...] = get_args(Part)

_WAIT_SECONDS = (0.5, 4.0)
"""First and longest wait before a part begins anew; it doubles each time. /livez takes 10 s for a stop."""
_LIVED_SECONDS = 30.0
"""A part that has run this long is well again."""
_PATIENCE_SECONDS = 300.0
"""How long a part may begin anew in vain."""


class Parts:
    """The parts of one process."""

    def __init__(self, count: Callable[[str], None] = lambda part: None) -> None:
        """`count`: called with the name of a part at each of its failures, from any thread."""
        self._count = count

    def failed(self, part: Part, error: Exception) -> None:
        """Log and count an error that the part does not expect; whoever calls this replaces what has failed."""
        _log.error("part.failed", extra={"part": part, "error": repr(error)}, exc_info=error)
        self._count(part)

    async def keep(self, part: Part, run: Callable[[], Awaitable[None]]) -> None:
        """Run a part until it returns, and again after each error. Raises the error if that does not help for long."""
        wait, longest = _WAIT_SECONDS
        well_at = anyio.current_time()
        while True:
            began = anyio.current_time()
            try:
                return await run()
            except Exception as error:
                self.failed(part, error)
                now = anyio.current_time()
                if now - began >= _LIVED_SECONDS:
                    wait, well_at = _WAIT_SECONDS[0], now
                if now - well_at >= _PATIENCE_SECONDS:
                    _log.critical("part.given_up", extra={"part": part, "seconds": round(now - well_at)})
                    raise
            await anyio.sleep(wait)
            wait = min(2 * wait, longest)
