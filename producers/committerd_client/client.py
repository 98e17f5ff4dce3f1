"""Commit to a Lance table through its queue.

    async with CommitClient("broker:9092", dataset="events") as client:
        result = await client.commit(transaction)

A client has two threads, one that sends and one that reads answers, and may be shared by any number of tasks of the
event loop in which it was started: concurrent commits travel in common batches. It works under asyncio, and under
anyio on asyncio.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, overload

from committerd.format.messages import Outcome, Transaction
from committerd_client.channel import Channel
from committerd_client.connection import Connection, recent_warnings
from committerd_client.errors import ClientClosed, ClientError, CommitTimeout, KafkaUnavailable
from committerd_client.headers import AppUnit, Asking, Staged, constant_headers, make_record
from committerd_client.in_flight import Room, Submission, Submissions, closed, timed_out
from committerd_client.results import CommitResult

MIB = 1024 * 1024


class ClientTimeout:
    """Stands for the timeout that the client was made with."""

    def __repr__(self) -> str:
        return "<the client's timeout>"


_CLIENTS = ClientTimeout()

Timeout = float | ClientTimeout | None
"""Seconds; None waits for ever."""


class CommitHandle:
    """A transaction that Kafka holds. Dropping the handle does not take it back."""

    __slots__ = ("_client", "_submission")

    def __init__(self, client: CommitClient, submission: Submission) -> None:
        self._client = client
        self._submission = submission

    @property
    def uuid(self) -> str:
        """The transaction's."""
        return self._submission.uuid

    @property
    def offset(self) -> int | None:
        """Of its record in the staged topic; None in the rare case that Kafka doesn't say."""
        return self._submission.offset

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._submission.answer is not None

    async def outcome(self, *, timeout: Timeout = _CLIENTS) -> CommitResult:
        """Wait for the answer; may be called again, from several tasks too. Raises as `CommitClient.commit` does."""
        return await self._client._outcome(self._submission, self._client._seconds(timeout))

    def __repr__(self) -> str:
        return f"<CommitHandle {self.uuid} offset={self.offset} {'done' if self.done() else 'pending'}>"


class CommitClient:
    """Stages transactions for one dataset and learns what became of them."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        dataset: str,
        topic_prefix: str = "",
        dataset_uri: str | None = None,
        producer: str | None = None,
        timeout: float | None = 60.0,
        connect_timeout: float = 30.0,
        close_timeout: float = 30.0,
        max_in_flight: int = 10_000,
        max_in_flight_bytes: int = 64 * MIB,
        max_record_bytes: int = MIB - 1024,
        client_id: str = "committerd-client",
        kafka_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing is contacted before `start`. Times are in seconds.

        `dataset` and `topic_prefix`: as in the committer's settings; they name the topics `{prefix}{dataset}.staged`
        and `.outcomes`. `dataset_uri`: the table that is meant; the committer of another one refuses. `producer`: who
        commits, for its log. `timeout`: of each commit that names none; None waits for ever. `max_in_flight` records
        and `max_in_flight_bytes` may wait for Kafka's acknowledgement, further ones wait in their callers.
        `max_record_bytes` must be 1 KiB below the staged topic's max.message.bytes. `kafka_options`: more arguments
        of kafka-python's clients, such as `security_protocol`, `ssl_cafile`, `sasl_mechanism`.

        Raises `ValueError` for what can't be right.
        """
        servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        instance = secrets.token_hex(8)
        self._connection = Connection(
            bootstrap_servers=[server.strip() for server in servers],
            dataset=dataset,
            topic_prefix=topic_prefix,
            client_id=client_id,
            instance=instance,
            connect_timeout=connect_timeout,
            max_record_bytes=max_record_bytes,
            options=dict(kafka_options or {}),
        )
        self._dataset_uri = dataset_uri
        self._producer = f"{client_id}-{instance}" if producer is None else producer
        self._timeout, self._close_timeout = timeout, close_timeout
        self._room = Room(records_max=max_in_flight, bytes_max=max_in_flight_bytes)
        self._submissions = Submissions()
        self._headers: list[tuple[str, bytes]] = []
        self._channel: Channel | None = None
        self._open = self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Connect. Raises `KafkaUnavailable` when no broker answers or the dataset's topics don't exist in time."""
        if self._channel is not None:
            raise RuntimeError("a client is started once: make another one")
        channel = self._channel = Channel(self._connection, self)
        with recent_warnings() as heard:
            try:
                partition = await channel.open()
            except BaseException as error:
                self._closed = True
                channel.abandon()
                if not isinstance(error, Exception) or isinstance(error, ClientError):
                    raise
                servers = ", ".join(self._connection.bootstrap_servers)
                raise KafkaUnavailable(f"Kafka at {servers} can't be used: {error!r}{heard}") from error
        self._headers = constant_headers(
            dataset_uri=self._dataset_uri, producer=self._producer, outcome_partition=partition
        )
        self._open = True

    async def aclose(self) -> None:
        """Send what was submitted, wait for Kafka's acknowledgements (at most `close_timeout`), and stop.

        Whoever still waits for an answer gets `ClientClosed`; what is staged stays staged. May be called twice.
        """
        self._closed = True
        channel, was_open, self._open = self._channel, self._open, False
        if channel is None or not was_open:
            return
        try:
            await channel.close(self._close_timeout)
        finally:
            channel.abandon()
            self._room.close()
            for submission in self._submissions:
                submission.settle(closed(submission))

    async def commit(
        self,
        transaction: Transaction | bytes | Staged,
        *,
        timeout: Timeout = _CLIENTS,
        app: AppUnit | None = None,
        create_only: bool = False,
        create_options: Mapping[str, Any] | None = None,
        read_uuid: str | None = None,
        deadline: datetime | None = None,
        attempt: int | None = None,
        retry_of: str | None = None,
        traceparent: str | None = None,
    ) -> CommitResult:
        """Stage the transaction and wait until it is in the table. DUPLICATE counts as success.

        `timeout`: seconds for all of it. `app`: (app_id, version, run) of a replayable source; a version at or below
        the one that is recorded is DUPLICATE. `create_only`: a table that exists is not overwritten (RETRYABLE
        `table_exists`). `create_options`: how a new table is made. `read_uuid`: of the transaction that made the read
        version. `deadline`: with a time zone; after it the committer must not commit any more. `attempt`, `retry_of`:
        number of a re-execution after `RetryableConflict`, and the uuid that was refused. `traceparent`: W3C trace
        context.

        Raises a `NotCommitted` (not in the table), `Undecided`, `CommitTimeout` or `ClientClosed` (unknown), or
        `SubmitFailed`. Cancelling the caller does not take the transaction back: it may still be committed.
        """
        asking = Asking(
            app=app,
            create_only=create_only,
            create_options=create_options or {},
            read_uuid=read_uuid,
            deadline=deadline,
            attempt=attempt,
            retry_of=retry_of,
            traceparent=traceparent,
        )
        seconds = self._seconds(timeout)
        until = _until(seconds)
        submission = await self._submit(transaction, asking, until)
        try:
            return await self._outcome(submission, seconds, until=until)
        finally:
            submission.wanted = False

    async def submit(
        self,
        transaction: Transaction | bytes | Staged,
        *,
        timeout: Timeout = _CLIENTS,
        app: AppUnit | None = None,
        create_only: bool = False,
        create_options: Mapping[str, Any] | None = None,
        read_uuid: str | None = None,
        deadline: datetime | None = None,
        attempt: int | None = None,
        retry_of: str | None = None,
        traceparent: str | None = None,
    ) -> CommitHandle:
        """Stage the transaction; returns when Kafka holds it for good. The handle waits for the answer.

        Arguments as for `commit`; `timeout` is for the staging alone.
        """
        asking = Asking(
            app=app,
            create_only=create_only,
            create_options=create_options or {},
            read_uuid=read_uuid,
            deadline=deadline,
            attempt=attempt,
            retry_of=retry_of,
            traceparent=traceparent,
        )
        seconds = self._seconds(timeout)
        until = _until(seconds)
        submission = await self._submit(transaction, asking, until)
        try:
            staged = await submission.wait_staged(_left(until))
        except BaseException:
            submission.wanted = False
            raise
        if not staged:
            submission.wanted = False
            raise self._timed_out(submission, seconds)
        if not submission.acknowledged and isinstance(submission.answer, ClientError) and submission.offset is None:
            raise submission.answer
        return CommitHandle(self, submission)

    @overload
    async def commit_many(
        self,
        transactions: Iterable[Transaction | bytes | Staged],
        *,
        timeout: Timeout = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[CommitResult]: ...

    @overload
    async def commit_many(
        self,
        transactions: Iterable[Transaction | bytes | Staged],
        *,
        timeout: Timeout = ...,
        return_exceptions: Literal[True],
    ) -> list[CommitResult | ClientError]: ...

    async def commit_many(
        self,
        transactions: Iterable[Transaction | bytes | Staged],
        *,
        timeout: Timeout = _CLIENTS,
        return_exceptions: bool = False,
    ) -> list[CommitResult] | list[CommitResult | ClientError]:
        """Commit independent transactions, staged in their order; results in the same order.

        They are not one unit: some may be committed and others refused. When all are answered, the errors are raised
        as one `ExceptionGroup`, or stand among the results with `return_exceptions`. `timeout`: for all of them.
        """
        seconds = self._seconds(timeout)
        until = _until(seconds)
        waiting: list[Submission | ClientError] = []
        try:
            for transaction in transactions:
                try:
                    waiting.append(await self._submit(transaction, Asking(), until))
                except ClientError as error:
                    waiting.append(error)
            answers = [
                one if isinstance(one, ClientError) else await self._answer(one, seconds, until) for one in waiting
            ]
        finally:
            for one in waiting:
                if isinstance(one, Submission):
                    one.wanted = False
        errors = [answer for answer in answers if isinstance(answer, ClientError)]
        if errors and not return_exceptions:
            raise ExceptionGroup(f"{len(errors)} of {len(answers)} transactions were not committed", errors)
        return answers

    async def _submit(
        self, transaction: Transaction | bytes | Staged, asking: Asking, until: float | None
    ) -> Submission:
        """Give it to the sender, when there is room."""
        self._usable()
        record = make_record(transaction, asking, self._headers, bytes_max=self._connection.max_record_bytes)
        await self._room.take(record.size, _left(until))
        submission = Submission(record)
        try:
            self._usable().send(submission)
        except BaseException:
            self._room.give_back(record.size)
            raise
        self._submissions.add(submission)
        return submission

    async def _outcome(
        self, submission: Submission, seconds: float | None, *, until: float | None = None
    ) -> CommitResult:
        answer = await self._answer(submission, seconds, until or _until(seconds))
        if isinstance(answer, ClientError):
            raise answer
        return answer

    async def _answer(
        self, submission: Submission, seconds: float | None, until: float | None
    ) -> CommitResult | ClientError:
        await submission.wait_answered(_left(until))
        return submission.answer or self._timed_out(submission, seconds)

    def _usable(self) -> Channel:
        channel = self._channel
        if self._closed:
            raise ClientClosed("the client is closed: make another one")
        if channel is None or not self._open:
            raise RuntimeError(
                "the client is not started: use `async with CommitClient(...)`, or `await client.start()`"
            )
        if os.getpid() != channel.pid:
            raise RuntimeError("the client was started before this process was forked: make one in each process")
        if asyncio.get_running_loop() is not channel.loop:
            raise RuntimeError("the client was started in another event loop: make one in each")
        return channel

    def _seconds(self, timeout: Timeout) -> float | None:
        return self._timeout if isinstance(timeout, ClientTimeout) else timeout

    def _timed_out(self, submission: Submission, seconds: float | None) -> CommitTimeout:
        trouble = self._channel.trouble if self._channel is not None else ""
        return timed_out(submission, seconds=seconds, topic=self._connection.staged_topic, trouble=trouble)

    # What the channel tells.

    def acknowledged(self, submission: Submission, offset: int | None) -> None:
        """Kafka holds the record."""
        self._room.give_back(submission.size)
        self._submissions.staged(submission, offset)

    def failed(self, submission: Submission, error: ClientError) -> None:
        """It is not tried any more."""
        self._room.give_back(submission.size)
        submission.settle(error)

    def answered(self, outcome: Outcome) -> None:
        """An outcome on the partition of this client, for this client or another."""
        self._submissions.answered(outcome)


def _until(seconds: float | None) -> float | None:
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - asyncio.get_running_loop().time(), 0.0)
