"""The client for programs without an event loop: the same commits, from any thread.

    with SyncCommitClient("broker:9092", dataset="events") as client:
        result = client.commit(transaction)

A background thread runs the event loop of a `CommitClient`. After a fork the child's first call starts its own client;
submissions of the parent stay with the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from functools import partial, wraps
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from committerd_client.arguments import plain_function
from committerd_client.client import CommitClient
from committerd_client.errors import ClientClosed, ClientError
from committerd_client.handle import CommitHandle, Handle
from committerd_client.headers import Staged
from committerd_client.options import CLIENTS_TIMEOUT, CommitOptions, Timeout
from committerd_client.panics import panics_raised
from committerd_client.queue_status import QueueStatus
from committerd_client.reexecution import ATTEMPTS_MAX, Reexecute, TransactionLike
from committerd_client.results import CommitResult
from committerd_client.resuming import Bookmark
from committerd_common.backports import Self, Unpack, add_note
from committerd_common.messages import Transaction

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")

_EXIT_SECONDS = 5.0
"""If the process ends without closing the client, it waits this long for Kafka to acknowledge submitted records."""
_NOTE_SECONDS = 1.0
"""After Ctrl-C it waits this long to learn what was submitted already."""


class SyncCommitHandle(Handle):
    """A transaction that Kafka has acknowledged. Dropping the handle does not withdraw the transaction."""

    __slots__ = ("_handle", "_owner", "_running")

    def __init__(self, owner: SyncCommitClient, running: _ClientThread, handle: CommitHandle) -> None:
        super().__init__(handle._submission, handle.bookmark)
        self._owner = owner  # keeps the client from being closed as unused while a caller waits
        self._running, self._handle = running, handle

    def outcome(self, timeout: Timeout = CLIENTS_TIMEOUT) -> CommitResult:
        """Wait for the outcome. Raises the errors of `SyncCommitClient.commit`.

        May be called several times, from any thread.
        """
        if not self.done() and self._running.pid != os.getpid():
            raise RuntimeError(
                f"transaction {self.uuid} was submitted before this process was forked, and its outcome goes to the "
                f"parent: ask there, or here with resume({self.uuid!r}, since=handle.bookmark)"
            )
        result = self._submission.result
        if isinstance(result, ClientError):
            raise result
        return result or self._running.call(lambda _: self._handle.outcome(timeout=timeout))


def _like(
    method: Callable[Concatenate[CommitClient, P], Any],
) -> Callable[[Callable[Concatenate[SyncCommitClient, P], T]], Callable[Concatenate[SyncCommitClient, P], T]]:
    """Gives a method the arguments and the documentation of one of `CommitClient`."""

    def decorated(own: Callable[Concatenate[SyncCommitClient, P], T]) -> Callable[Concatenate[SyncCommitClient, P], T]:
        wraps(method)(own).__doc__ = (
            (method.__doc__ or "")
            .replace("await ", "")
            .replace("it connects in `start`", "it connects at the first call, or in `start`")
        )
        return own

    return decorated


def _blocking(
    method: Callable[Concatenate[CommitClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncCommitClient, P], T]:
    """The method of `CommitClient`, with the same arguments, as one that waits for its result."""

    @_like(method)
    def call(self: SyncCommitClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        given: Any = kwargs
        running, given["timeout"] = self._started(given.get("timeout", CLIENTS_TIMEOUT))
        return running.call(lambda client: method(client, *args, **kwargs))

    return call


class SyncCommitClient:
    """Stages transactions for one dataset and awaits their outcomes. Safe to use from any number of threads."""

    @_like(CommitClient.__init__)
    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._make = partial(CommitClient, *arguments, **named)
        self._unstarted = self._make()  # raises for invalid arguments here, not at the first call
        self._lock = threading.Lock()
        self._running: _ClientThread | None = None
        self._closed = False
        _clients.add(self)

    def __repr__(self) -> str:
        running = self._running
        return f"<Sync{repr(self._unstarted if running is None else running.client)[1:]}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Connect, unless connected. Raises `KafkaUnavailable`, after which it may be called again."""
        self._started(None)

    def close(self) -> None:
        """Send everything that was submitted, wait for Kafka's acknowledgements (at most `close_timeout` s), and stop.

        Callers that still wait for an outcome get `ClientClosed`. Staged records stay staged. May be called twice.
        """
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            running.close()

    def bookmark(self) -> Bookmark:
        """As `CommitClient.bookmark`: save it before you submit a transaction, for `resume`."""
        return self._started(None)[0].client.bookmark()

    def commit(
        self,
        transaction: TransactionLike,
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        reexecute: Reexecute | None = None,
        attempts: int = ATTEMPTS_MAX,
        **asked: Unpack[CommitOptions],
    ) -> CommitResult:
        """As `CommitClient.commit`, but `reexecute` is a plain function and runs in the calling thread."""
        plain_function(reexecute, coroutines=False)
        running, timeout = self._started(timeout)
        waiter = _Waiter[CommitResult]()
        again = None if reexecute is None else partial(waiter.execute, reexecute)
        return running.call(
            lambda client: client.commit(transaction, timeout=timeout, reexecute=again, attempts=attempts, **asked),
            waiter,
        )

    def submit(
        self, transaction: TransactionLike, *, timeout: Timeout = CLIENTS_TIMEOUT, **asked: Unpack[CommitOptions]
    ) -> SyncCommitHandle:
        """As `CommitClient.submit`: returns when Kafka has acknowledged the record."""
        running, timeout = self._started(timeout)
        handle = running.call(lambda client: client.submit(transaction, timeout=timeout, **asked))
        return SyncCommitHandle(self, running, handle)

    @overload
    def commit_many(
        self,
        transactions: Iterable[TransactionLike],
        *,
        timeout: Timeout = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[CommitResult]: ...

    @overload
    def commit_many(
        self, transactions: Iterable[TransactionLike], *, timeout: Timeout = ..., return_exceptions: Literal[True]
    ) -> list[CommitResult | ClientError]: ...

    def commit_many(
        self,
        transactions: Iterable[TransactionLike],
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        return_exceptions: bool = False,
    ) -> list[CommitResult] | list[CommitResult | ClientError]:
        """As `CommitClient.commit_many`, but reads `transactions` to its end first."""
        every: Any = transactions
        if not isinstance(transactions, Staged | Transaction | bytes | str):  # `CommitClient` refuses these
            every = list(transactions)
        running, left = self._started(timeout)
        if return_exceptions:
            return running.call(lambda client: client.commit_many(every, timeout=left, return_exceptions=True))
        return running.call(lambda client: client.commit_many(every, timeout=left))

    def status(self) -> QueueStatus:
        """As `CommitClient.status`. Does not connect the client, so it can say why the client can't connect."""
        return self._unstarted._diagnosis.status()

    resume = _blocking(CommitClient.resume)
    append = _blocking(CommitClient.append)
    upsert = _blocking(CommitClient.upsert)
    merge_insert = _blocking(CommitClient.merge_insert)
    delete = _blocking(CommitClient.delete)
    update = _blocking(CommitClient.update)
    overwrite = _blocking(CommitClient.overwrite)
    create = _blocking(CommitClient.create)
    restore = _blocking(CommitClient.restore)
    add_columns = _blocking(CommitClient.add_columns)
    drop_columns = _blocking(CommitClient.drop_columns)
    alter_columns = _blocking(CommitClient.alter_columns)
    create_index = _blocking(CommitClient.create_index)
    optimize_indices = _blocking(CommitClient.optimize_indices)
    compact = _blocking(CommitClient.compact)

    def _call(self, make: Callable[[CommitClient], Coroutine[Any, Any, T]]) -> T:
        return self._started(None)[0].call(make)

    def _started(self, timeout: Timeout) -> tuple[_ClientThread, Timeout]:
        """The client, which is connected now, and what is left of a call's `timeout`. Raises `KafkaUnavailable`."""
        seconds, began = self._unstarted._seconds(timeout), time.monotonic()
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed: make another client")
            if self._running is not None:
                return self._running, timeout
            running = _ClientThread(self._make())
            running.start(seconds or None)
            weakref.finalize(self, running.close, wait=False).atexit = False
            self._running = running
        return running, timeout if not seconds else max(seconds - (time.monotonic() - began), 0.0)

    def _after_fork(self) -> None:
        """Reset the state in a forked child: it has no background thread, and a missing thread may hold the lock."""
        self._lock = threading.Lock()
        self._running = None


class _Waiter(Generic[T]):
    """The thread that waits for a call. Meanwhile it executes what the event loop asks it to."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def execute(self, function: Callable[[A], R], argument: A) -> R:
        """In the event loop: the function's result, which the waiting thread computes. Its errors go to the caller."""
        result = Future[R]()

        def work() -> None:
            if result.set_running_or_notify_cancel():
                with panics_raised():
                    result.set_result(function(argument))

        self._work.put(work)
        return await asyncio.wrap_future(result)

    def wait(self, call: Future[T]) -> T:
        """In the waiting thread: the result of the call."""
        call.add_done_callback(lambda _: self._work.put(None))
        for work in iter(self._work.get, None):
            work()
        return call.result()


class _ClientThread:
    """A `CommitClient` and the thread that runs its event loop."""

    def __init__(self, client: CommitClient) -> None:
        self.client = client
        self.pid = os.getpid()
        self._gate = threading.Lock()
        self._closing = False
        self._loop = Future[asyncio.AbstractEventLoop]()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="committerd-client-loop", daemon=True)

    def start(self, seconds: float | None) -> None:
        """Start the thread and the client; returns when it is connected. Raises the errors of its `start`."""
        self._thread.start()
        self._loop.result()
        try:
            self.call(lambda client: client.start(within=seconds))
        except BaseException:
            self.close()
            raise

    def call(self, make: Callable[[CommitClient], Coroutine[Any, Any, T]], waiter: _Waiter[T] | None = None) -> T:
        """Run the coroutine in the loop, and wait for its result."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a synchronous client can't be used in its own event loop")
        with self._gate:
            # A coroutine that is scheduled before the end is done or cancelled, never lost.
            if self._closing:
                raise ClientClosed("the client is closed: make another client")
            ended, notes = threading.Event(), list[str]()
            future = asyncio.run_coroutine_threadsafe(_noted(make(self.client), notes, ended), self._loop.result())
        try:
            return (waiter or _Waiter()).wait(future)
        except CancelledError:
            raise ClientClosed("the client was closed meanwhile: unknown, not failed") from None
        except BaseException as error:
            # After Ctrl-C, or an error of `reexecute`, the call goes on until it is cancelled.
            if future.cancel():
                ended.wait(_NOTE_SECONDS)
            for note in notes:
                add_note(error, note)
            raise

    def close(self, seconds: float | None = None, *, wait: bool = True) -> None:
        """Close the client, within `seconds` if given, and end the thread. May be called twice.

        Without `wait` it never blocks: the garbage collector calls it so, in any thread.
        """
        if self.pid != os.getpid():
            return
        with self._gate:
            if self._closing:
                return
            self._closing = True
            ending = asyncio.run_coroutine_threadsafe(self._aclose(seconds), self._loop.result())
        if wait:
            ending.result()
            self._thread.join()

    async def _aclose(self, seconds: float | None) -> None:
        try:
            await self.client.aclose(within=seconds)
        finally:
            self._end.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._loop.done():
                raise
            self._loop.set_exception(error)

    async def _serve(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        await self._end.wait()


async def _noted(work: Coroutine[Any, Any, T], notes: list[str], ended: threading.Event) -> T:
    """The result of the coroutine. If it is cancelled, `notes` gets what that error says about submitted records."""
    try:
        return await work
    except asyncio.CancelledError as error:
        notes += getattr(error, "__notes__", ())
        raise
    finally:
        ended.set()


_clients: weakref.WeakSet[SyncCommitClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._after_fork()


def _at_exit() -> None:
    for client in list(_clients):
        if client._running is not None:
            client._running.close(_EXIT_SECONDS)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
