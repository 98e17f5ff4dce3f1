"""What is repeated, and how often: the only place that decides it, for all stores that are reached over a network.

A client sends a request once. It returns the server's response, or raises what else happened:

    what happened                       a request that is `repeated`     a put that is sent `once`
    `Absent`, `ConditionFailed`         raise: that is an answer         `Exists`
    `RequestFailed`:
      refused                           raise: it would be again         raise
      throttled                         wait, send it again              wait; raise, or `PutUnknown`
      never sent                        wait, send it again              raise
      no response, a broken one, 5xx    wait, send it again              `PutUnknown`: it may have landed

A request that reads, or has the same effect again, is sent at most `s3.attempts` times. `put_if_absent` is sent once.
If its first attempt landed and the response was lost, the second one would find our own object, which would look like
another writer's. The caller reads back what is there before it sends the same bytes again (`committerd.table.landing`).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import anyio

from committerd.errors import ObjectUnreadable, PutUnknown, StoreUnavailable
from committerd.stores.port import Created, Exists

_WAIT_SECONDS_FIRST = 0.2
"""The longest wait before the second attempt; it doubles with each further one."""
_WAIT_SECONDS_MAX = 20.0

_T = TypeVar("_T")


class Fault(StrEnum):
    """How a request failed; also a label value of a metric."""

    THROTTLED = "throttled"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    SERVER_ERROR = "server_error"
    TRUNCATED = "truncated"
    REFUSED = "refused"


class Absent(StoreUnavailable):
    """There is no such object. Where the caller does not expect that, it is like any other `StoreUnavailable`."""


class ConditionFailed(StoreUnavailable):
    """The condition of the request does not hold: the key is taken, there is no such entry, or no such range.

    Where the caller does not expect that, it is like any other `StoreUnavailable`.
    """


@dataclass(eq=False)
class RequestFailed(Exception):
    """One request failed."""

    message: str
    fault: Fault
    may_have_landed: bool
    """Whether the server may have executed the request, or may still execute it."""
    status: int = 0
    """HTTP status; 0 = there was no response."""
    code: str = ""
    """The server's own error code; the HTTP status if the response has no body."""
    retry_after: float = 0.0
    """Seconds that the server asks the client to wait."""

    def __str__(self) -> str:
        return self.message


class Retries:
    """Sends the requests of one store."""

    def __init__(self, attempts: int, failed: Callable[[Fault], None]) -> None:
        """`attempts`: how often a request is sent at most. `failed`: called with the fault of each that failed."""
        self._attempts = attempts
        self._failed = failed

    async def repeated(self, request: Callable[[], Awaitable[_T]], *, of_object: bool = False) -> _T:
        """Send a request that is safe to repeat, until it succeeds. Raises `StoreUnavailable`.

        `of_object`: the request reads or deletes one object. A 4xx may then concern that object alone (its name,
        encryption key, permissions, archive tier), and is an `ObjectUnreadable`.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await request()
            except RequestFailed as failure:
                self._failed(failure.fault)
                refused = failure.fault is Fault.REFUSED
                if refused and of_object and 400 <= failure.status < 500:
                    raise ObjectUnreadable(str(failure)) from failure
                if refused or attempt == self._attempts:
                    raise StoreUnavailable(str(failure)) from failure
                await _wait(failure, attempt)

    async def once(self, put: Awaitable[object], what: str) -> Created | Exists:
        """Send a put that only creates. `what`: the thing that it creates, for messages.

        Raises `PutUnknown` when it may have been created, and `StoreUnavailable` when nothing changed.
        """
        try:
            await put
        except ConditionFailed:
            return Exists()
        except RequestFailed as failure:
            self._failed(failure.fault)
            if failure.fault is Fault.THROTTLED:
                await _wait(failure, attempt=1)
            if failure.may_have_landed:
                raise PutUnknown(f"{what} may have been created: {failure}") from failure
            raise StoreUnavailable(str(failure)) from failure
        return Created()


def fault_of_status(status: int) -> tuple[Fault, bool]:
    """Return the fault of a response with a status of 300 or more, and whether the server may have done the request."""
    if status in (429, 503):
        return Fault.THROTTLED, status >= 500
    if status == 408:
        return Fault.TIMEOUT, True
    if 300 <= status < 500 or status == 501:
        return Fault.REFUSED, status == 409  # another put of the key was under way
    return Fault.SERVER_ERROR, True


def ignored(fault: Fault) -> None:
    """A `failed` of `Retries` that does nothing."""


async def _wait(failure: RequestFailed, attempt: int) -> None:
    """Sleep for full jitter with exponential backoff, on top of the server's Retry-After; at most 20 s."""
    limit = min(_WAIT_SECONDS_FIRST * 2.0 ** (attempt - 1), _WAIT_SECONDS_MAX)
    await anyio.sleep(min(failure.retry_after + random.uniform(0, limit), _WAIT_SECONDS_MAX))
