"""The client for programs without an event loop: the same commits, from any thread.

    with SyncCommitClient("broker:9092", dataset="events") as client:
        result = client.commit(transaction)

A background thread runs the event loop of a `CommitClient`. After a fork the child's first call starts its own client;
submissions of the parent stay with the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from committerd_client.arguments import plain_function
from committerd_client.claim_check import WriteClaim
from committerd_client.client import CommitClient, _until
from committerd_client.errors import ClientClosed, ClientError
from committerd_client.handle import CommitHandle
from committerd_client.headers import Asking, Staged, asked_for
from committerd_client.options import CLIENTS_TIMEOUT, MIB, CommitOptions, Timeout
from committerd_client.queue_status import QueueStatus
from committerd_client.reexecution import ATTEMPTS_MAX, Attempts, Reexecute, Work, ask_here
from committerd_client.results import CommitResult
from committerd_client.resuming import Bookmark
from committerd_common.backports import Self, Unpack, add_note
from committerd_common.messages import Transaction

T = TypeVar("T")

_EXIT_SECONDS = 5.0
"""If the process ends without closing the client, it waits this long for Kafka to acknowledge submitted records."""
_NOTE_SECONDS = 1.0
"""After Ctrl-C it waits this long to learn what was submitted already."""


class SyncCommitHandle:
    """A transaction that Kafka has acknowledged. Dropping the handle does not withdraw the transaction."""

    __slots__ = ("_handle", "_owner", "_running")

    def __init__(self, owner: SyncCommitClient, running: _Running, handle: CommitHandle) -> None:
        self._owner = owner  # keeps the client from being closed as unused while a caller waits
        self._running = running
        self._handle = handle

    @property
    def uuid(self) -> str:
        """The transaction's uuid."""
        return self._handle.uuid

    @property
    def offset(self) -> int | None:
        """The record's offset in the staged topic; None in the rare case that Kafka doesn't return it."""
        return self._handle.offset

    @property
    def bookmark(self) -> Bookmark:
        """For `resume`: the outcome is at this place or after it."""
        return self._handle.bookmark

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._handle.done()

    def outcome(self, timeout: Timeout = CLIENTS_TIMEOUT) -> CommitResult:
        """Wait for the outcome. Raises the errors of `SyncCommitClient.commit`.

        May be called several times, from any thread.
        """
        if not self.done() and self._running.pid != os.getpid():
            raise RuntimeError(
                f"transaction {self.uuid} was submitted before this process was forked, and its outcome goes to the "
                f"parent: ask there, or here with resume({self.uuid!r}, since=handle.bookmark)"
            )
        result = self._handle._submission.result
        if isinstance(result, ClientError):
            raise result
        if result is not None:
            return result
        return self._running.call(lambda _: self._handle.outcome(timeout=timeout))

    def __repr__(self) -> str:
        return f"<Sync{repr(self._handle)[1:]}"


P = ParamSpec("P")


def _blocking(
    method: Callable[Concatenate[CommitClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncCommitClient, P], T]:
    """The method of `CommitClient`, with the same arguments, as one that waits for its result."""

    @wraps(method)
    def call(self: SyncCommitClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        given: Any = kwargs
        running, given["timeout"] = self._started(given.get("timeout", CLIENTS_TIMEOUT))
        return running.call(lambda client: method(client, *args, **kwargs))

    call.__doc__ = (method.__doc__ or "").replace("await ", "")
    return call


class SyncCommitClient:
    """Stages transactions for one dataset and awaits their outcomes. Safe to use from any number of threads."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        dataset: str | None = None,
        topic_prefix: str = "",
        dataset_uri: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        producer: str | None = None,
        timeout: float | None = 60.0,
        connect_timeout: float | None = None,
        close_timeout: float = 30.0,
        max_in_flight: int = 10_000,
        max_in_flight_bytes: int = 64 * MIB,
        key_cache_bytes: int = 32 * MIB,
        max_record_bytes: int = MIB - 1024,
        claim_check_above: int | None = None,
        write_claim: WriteClaim | None = None,
        client_id: str = "committerd-client",
        group_prefix: str = "committerd.",
        kafka_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._make: Callable[[], CommitClient] = lambda: CommitClient(
            bootstrap_servers,
            dataset=dataset,
            topic_prefix=topic_prefix,
            dataset_uri=dataset_uri,
            storage_options=storage_options,
            producer=producer,
            timeout=timeout,
            connect_timeout=connect_timeout,
            close_timeout=close_timeout,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            key_cache_bytes=key_cache_bytes,
            max_record_bytes=max_record_bytes,
            claim_check_above=claim_check_above,
            write_claim=write_claim,
            client_id=client_id,
            group_prefix=group_prefix,
            kafka_options=kafka_options,
        )
        self._unstarted = self._make()  # raises for invalid arguments here, not at the first call
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False
        _clients.add(self)

    __init__.__doc__ = (CommitClient.__init__.__doc__ or "").replace(
        "it connects in `start`", "it connects at the first call, or in `start`"
    )

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
            running.close(None)

    def bookmark(self) -> Bookmark:
        """As `CommitClient.bookmark`: save it before you submit a transaction, for `resume`."""
        running, _ = self._started(None)
        return running.client.bookmark()

    def commit(
        self,
        transaction: Work,
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        reexecute: Reexecute | None = None,
        attempts: int = ATTEMPTS_MAX,
        **asked: Unpack[CommitOptions],
    ) -> CommitResult:
        """As `CommitClient.commit`, but `reexecute` is a plain function and runs in the calling thread."""
        running, timeout = self._started(timeout)
        seconds = running.client._seconds(timeout)
        until = None if seconds is None else time.monotonic() + seconds
        plain_function(reexecute, coroutines=False)
        tries = Attempts(transaction, asked_for(asked), most=attempts, reexecutes=reexecute is not None)
        while True:
            once = partial(_commit_once, tries.work, tries.asking, seconds=seconds, left=_left(until))
            try:
                return tries.counted(running.call(once))
            except ClientError as error:
                error.work = tries.work
                if reexecute is None:
                    raise
                wanted = tries.after(error, seconds_left=_left(until))
            tries.take(ask_here(reexecute, wanted, partial(_left, until)), wanted, seconds_left=_left(until))

    def submit(
        self, transaction: Work, *, timeout: Timeout = CLIENTS_TIMEOUT, **asked: Unpack[CommitOptions]
    ) -> SyncCommitHandle:
        """As `CommitClient.submit`: returns when Kafka has acknowledged the record."""
        running, timeout = self._started(timeout)
        handle = running.call(lambda client: client.submit(transaction, timeout=timeout, **asked))
        return SyncCommitHandle(self, running, handle)

    @overload
    def commit_many(
        self,
        transactions: Iterable[Work],
        *,
        timeout: Timeout = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[CommitResult]: ...

    @overload
    def commit_many(
        self, transactions: Iterable[Work], *, timeout: Timeout = ..., return_exceptions: Literal[True]
    ) -> list[CommitResult | ClientError]: ...

    def commit_many(
        self,
        transactions: Iterable[Work],
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

    def resume(self, uuid: str, *, since: Bookmark | datetime, timeout: Timeout = CLIENTS_TIMEOUT) -> CommitResult:
        """As `CommitClient.resume`: find the outcome of a transaction that any process submitted earlier."""
        running, left = self._started(timeout)
        return running.call(lambda client: client.resume(uuid, since=since, timeout=left))

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
        running, _ = self._started(None)
        return running.call(make)

    def _started(self, timeout: Timeout) -> tuple[_Running, Timeout]:
        """The client, which is connected now, and what is left of a call's `timeout`. Raises `KafkaUnavailable`."""
        seconds, began = self._unstarted._seconds(timeout), time.monotonic()
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed: make another one")
            if self._running is not None:
                return self._running, timeout
            running = _Running(self._make())
            running.start(seconds or None)
            weakref.finalize(self, running.drop).atexit = False
            self._running = running
        return running, timeout if not seconds else max(seconds - (time.monotonic() - began), 0.0)

    def _after_fork(self) -> None:
        """Reset the state in a forked child: it has no background thread, and a missing thread may hold the lock."""
        self._lock = threading.Lock()
        self._running = None


class _Running:
    """A `CommitClient` and the thread that runs its event loop."""

    def __init__(self, client: CommitClient) -> None:
        self.client = client
        self.pid = os.getpid()
        self._gate = threading.Lock()
        self._closing = False
        self._connect_seconds: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="committerd-client-loop", daemon=True)

    def start(self, seconds: float | None) -> None:
        """Start the thread and the client; returns when it is connected. Raises the errors of its `start`."""
        self._connect_seconds = seconds
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            with self._gate:
                self._closing = True
                if self._loop is not None and not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()
            raise

    def call(self, make: Callable[[CommitClient], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine in the loop, and wait for its result."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a synchronous client can't be used in its own event loop")
        with self._gate:
            # A coroutine that is scheduled before the end is done or cancelled, never lost.
            if self._closing or self._loop is None:
                raise ClientClosed("the client is closed: make another one")
            ended, notes = threading.Event(), list[str]()
            future = asyncio.run_coroutine_threadsafe(_noted(make(self.client), notes, ended), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed("the client was closed meanwhile: unknown, not failed") from None
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: submitted records stay submitted
                future.cancel()
                ended.wait(_NOTE_SECONDS)
                for note in notes:
                    add_note(error, note)
            raise

    def close(self, seconds: float | None) -> None:
        """Close the client, within `seconds` if given, and end the thread. May be called twice."""
        ending = self._wind_up(seconds)
        if ending is not None:
            ending.result()
            self._thread.join()

    def drop(self) -> None:
        """Close an unused client. Never blocks: the garbage collector calls it, in any thread."""
        self._wind_up(None)

    def _wind_up(self, seconds: float | None) -> concurrent.futures.Future[None] | None:
        if self.pid != os.getpid():
            return None
        with self._gate:
            if self._closing or self._loop is None:
                return None
            self._closing = True
            return asyncio.run_coroutine_threadsafe(self._aclose(seconds), self._loop)

    async def _aclose(self, seconds: float | None) -> None:
        try:
            await self.client.aclose(within=seconds)
        finally:
            self._end.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # whoever starts the client gets every error
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        with self._gate:
            if self._closing:
                return
            self._loop = asyncio.get_running_loop()
        ending = asyncio.ensure_future(self._end.wait())
        starting = asyncio.ensure_future(self.client.start(within=self._connect_seconds))
        await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # the caller that started it has given up
            starting.cancel()
            await asyncio.wait([starting])
        await starting
        self._ready.set_result(None)
        await ending


async def _noted(work: Coroutine[Any, Any, T], notes: list[str], ended: threading.Event) -> T:
    """The result of the coroutine. If it is cancelled, `notes` gets what that error says about submitted records."""
    try:
        return await work
    except asyncio.CancelledError as error:
        notes += getattr(error, "__notes__", ())
        raise
    finally:
        ended.set()


async def _commit_once(
    transaction: Work, asking: Asking, client: CommitClient, *, seconds: float | None, left: float | None
) -> CommitResult:
    return await client._commit(transaction, asking, seconds, _until(left))


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - time.monotonic(), 0.0)


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
