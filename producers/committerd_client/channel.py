"""The open connection of a client: its sender thread and its reader thread, as the event loop uses them."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from committerd_client.connection import Connection
from committerd_client.errors import ClientError
from committerd_client.in_flight import Submission, wait_for_future
from committerd_client.mailbox import Mailbox
from committerd_client.reader import OutcomesReceived, Reader, ReaderFailed, ReaderStarted, ReadEvent
from committerd_client.sender import RecordAcknowledged, RecordFailed, Sender, SenderFailed, SenderStarted, SendEvent
from committerd_common.messages import Outcome

T = TypeVar("T")

_CONNECT_SECONDS_MIN = 0.1

_GRACE_SECONDS = 2.0
"""Extra time for the threads to end, on top of the seconds that `close` is given."""


class Listener(Protocol):
    """Receives the channel's events, in the event loop."""

    def acknowledged(self, submission: Submission, offset: int | None) -> None: ...

    def failed(self, submission: Submission, error: ClientError) -> None: ...

    def received(self, outcome: Outcome) -> None: ...


class Channel:
    """Create it in the event loop that it serves."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self._listener = listener
        self._connect_timeout = connection.connect_timeout
        self._sender = Sender(connection, Mailbox(self.loop, self._on_send).post)
        self._reader = Reader(connection, Mailbox(self.loop, self._on_read).post)
        self._sender_started: asyncio.Future[None] = self.loop.create_future()
        self._reader_started: asyncio.Future[int] = self.loop.create_future()
        self._sender_stopped: asyncio.Future[None] = self.loop.create_future()
        self._reader_stopped: asyncio.Future[None] = self.loop.create_future()
        _channels.add(self)

    async def open(self) -> int:
        """Connect, and return the partition of the outcomes topic that is read.

        Takes the connection's `connect_timeout`, as far as kafka-python keeps to it. Raises what kafka-python raises.
        """
        until = self.loop.time() + self._connect_timeout
        self._sender.start()
        await self._sender_started
        self._reader.start(max(until - self.loop.time(), _CONNECT_SECONDS_MIN))
        return await self._reader_started

    def send(self, submission: Submission) -> None:
        """Send a record. Never blocks; the listener then gets `acknowledged` or `failed`."""
        self._sender.submit(submission)

    @property
    def next_offset(self) -> int:
        """The next offset to read from the outcomes partition."""
        return self._reader.next_offset

    @property
    def trouble(self) -> str:
        """Why outcomes can't be read at the moment; empty while they can."""
        return self._reader.trouble

    async def close(self, seconds: float) -> None:
        """Send everything that was submitted, wait at most `seconds` for Kafka, and end both threads."""
        self._sender.stop(seconds)
        await wait_for_future(self._sender_stopped, seconds + _GRACE_SECONDS)
        self._reader.stop()
        await wait_for_future(self._reader_stopped, _GRACE_SECONDS)

    def abandon(self) -> None:
        """Ask both threads to end, and return at once."""
        self._sender.stop(0)
        self._reader.stop()
        for started in (self._sender_started, self._reader_started):
            started.cancel()

    def leave_to_parent(self) -> None:
        """In a forked process, leave the sockets to the parent: a fork does not copy the threads that use them."""
        self._sender.leave_to_parent()

    def _on_send(self, events: list[SendEvent]) -> None:
        for event in events:
            match event:
                case RecordAcknowledged(submission, offset):
                    self._listener.acknowledged(submission, offset)
                case RecordFailed(submission, error):
                    self._listener.failed(submission, error)
                case SenderStarted():
                    _resolve(self._sender_started, None)
                case SenderFailed(cause):
                    _reject(self._sender_started, cause)
                    _resolve(self._sender_stopped, None)
                case _:
                    _resolve(self._sender_stopped, None)

    def _on_read(self, events: list[ReadEvent]) -> None:
        for event in events:
            match event:
                case OutcomesReceived(outcomes):
                    for outcome in outcomes:
                        self._listener.received(outcome)
                case ReaderStarted(partition):
                    _resolve(self._reader_started, partition)
                case ReaderFailed(cause):
                    _reject(self._reader_started, cause)
                    _resolve(self._reader_stopped, None)
                case _:
                    _resolve(self._reader_stopped, None)


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


_channels: WeakSet[Channel] = WeakSet()
_left_to_parent: list[Channel] = []
"""The parent's channels. The child process never frees them, because that would close the parent's sockets."""


def _after_fork() -> None:
    for channel in list(_channels):
        channel.leave_to_parent()
        _left_to_parent.append(channel)
    _channels.clear()


os.register_at_fork(after_in_child=_after_fork)
