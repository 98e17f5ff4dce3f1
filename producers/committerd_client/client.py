"""Commit to a Lance table through its queue.

    async with CommitClient("broker:9092", dataset="events") as client:
        result = await client.commit(transaction)

A client has two threads: one sends records, one reads outcomes. Any number of tasks may share a client, in the event
loop in which it was started; concurrent commits go to Kafka in common batches. A client works with asyncio, and with
anyio on asyncio.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from committerd_client import claim_check, history
from committerd_client.arguments import kind_of, plain_function, seconds, server_list, text, texts
from committerd_client.channel import Channel
from committerd_client.claim_check import WriteClaim
from committerd_client.connection import Connection, recent_warnings
from committerd_client.diagnosis import Diagnosis
from committerd_client.errors import ClientClosed, ClientError, CommitManyFailed, CommitTimeout, KafkaUnavailable
from committerd_client.handle import CommitHandle
from committerd_client.headers import (
    RecordOptions,
    Staged,
    StagedRecord,
    constant_headers,
    make_record,
    record_options,
    too_large,
)
from committerd_client.in_flight import Arrivals, InFlightLimit, Submission, Submissions, closed, timed_out, withdrawn
from committerd_client.kafka_log import filter_kafka_log
from committerd_client.options import CLIENTS_TIMEOUT, MIB, ClientTimeout, CommitOptions, Timeout
from committerd_client.outcomes import interpret
from committerd_client.queue_status import QueueStatus
from committerd_client.reexecution import ATTEMPTS_MAX, AsyncReexecute, Attempts, TransactionLike, ask
from committerd_client.results import CommitResult
from committerd_client.resuming import Bookmark, OutcomeSearch, check_time, find_outcome
from committerd_client.signing import ProducerKey, signer
from committerd_client.table_calls import TableCalls
from committerd_client.table_location import (
    TableLocation,
    checked_uri,
    require_same_branch,
    require_same_table,
    table_location,
)
from committerd_client.tracing import SendSpan, send_span
from committerd_common.backports import UTC, Self, Unpack, add_note
from committerd_common.branches import branch_queue, branch_uri, checked_branch
from committerd_common.messages import Transaction
from committerd_common.uris import queue_name

if TYPE_CHECKING:
    from committerd_client.staging import KeyCache

_log = logging.getLogger(__name__)
_WITHOUT_OUTCOME_MAX = 2_000
"""At most so many transactions of a `commit_many` have no outcome: two full versions, so the committer has work."""

CONNECT_SECONDS = 30.0
"""How long a client may take to connect, unless it is told."""
_CONNECT_GRACE_SECONDS = 1.0
"""kafka-python may take longer than it is told; its own error says more than that of a time-out."""


class CommitClient(TableCalls):
    """Stages transactions for one dataset and awaits their outcomes."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        dataset: str | None = None,
        topic_prefix: str = "",
        dataset_uri: str | os.PathLike[str] | None = None,
        branch: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        producer: str | None = None,
        producer_key_file: str | os.PathLike[str] | None = None,
        producer_key: ProducerKey | None = None,
        timeout: float | None = 60.0,
        connect_timeout: float | None = None,
        close_timeout: float = 30.0,
        max_in_flight: int = 10_000,
        max_in_flight_bytes: int = 64 * MIB,
        key_cache_bytes: int = 32 * MIB,
        max_record_bytes: int = MIB - 1024,
        claim_check_above: int | None = None,
        write_claim: WriteClaim | None = None,
        client_id: str | None = None,
        group_prefix: str = "committerd.",
        group: str | None = None,
        kafka_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Configure a client; it connects in `start`. Times are in seconds.

        `dataset` and `topic_prefix`: as in the committer's settings; they name the topics `{prefix}{dataset}.staged`
        and `.outcomes`. `dataset_uri`: the URI or absolute path of the table; a committer that serves another table
        refuses the records. The default of `dataset` is the last part of `dataset_uri` without `.lance`.
        `branch`: the branch of that table to commit to, whose queue has a name of its own; default the main branch.
        `storage_options`: pylance, if it is installed, reads and writes that table with them, for `resume` and for
        large transactions. `producer`: the name of this producer in the committer's log; with a name that stays the
        same over restarts the client reads the same outcomes partition again (`resume`). `producer_key_file`: a file
        with this producer's key, which signs each record; a committer with `commit.producers_file` takes no others. It
        is read again when it changes. `producer_key`: a function that returns the key, in place of the file; it is
        called for each record. `timeout`: the default for
        commits that set none; None waits forever. `connect_timeout`: for `start`; default 30, or `timeout` if that is
        shorter. `close_timeout`: for `aclose`, to send what was submitted. `max_in_flight` records and
        `max_in_flight_bytes` may wait for Kafka's acknowledgement; the callers of further commits wait.
        `key_cache_bytes`: the memory for keys of small
        fragments, which `upsert`, `delete` and `update` use; 0 = none. `max_record_bytes` must be at least 1 KiB below
        the staged topic's max.message.bytes. `claim_check_above`: transactions that make a larger record are written
        beside the table, and the record only names the file; default `max_record_bytes`. `write_claim`: writes these
        files; by default pylance writes them, to `dataset_uri`. `client_id`: the client's name in Kafka's logs;
        default `producer`, or else `committerd-client`. Quotas for what it sends are set for this name with `-staged`
        behind it. `group_prefix`, `group`: as in the committer's settings; with them a timeout error can say whether
        a committer runs. `kafka_options`: more arguments of kafka-python's clients, such as `security_protocol`,
        `ssl_cafile`, `sasl_mechanism`.

        Raises `ValueError` for invalid arguments.
        """
        servers = server_list(bootstrap_servers)
        if seconds(close_timeout, "close_timeout") is None:
            raise ValueError("close_timeout needs a number of seconds")
        limit = seconds(timeout, "timeout")
        connect_limit = seconds(connect_timeout, "connect_timeout")
        if connect_limit is None:
            connect_limit = min(CONNECT_SECONDS, limit or CONNECT_SECONDS)
        uri = None if dataset_uri is None else checked_uri(dataset_uri)
        if dataset is None and uri is None:
            raise ValueError("the client needs the name of the dataset (dataset=), or the table's URI (dataset_uri=)")
        self._branch = checked_branch(text(branch, "branch") if branch else "")
        dataset = branch_queue(queue_name(uri or "") if dataset is None else text(dataset, "dataset"), self._branch)
        uri = None if uri is None else branch_uri(uri, self._branch)
        if producer is not None:
            text(producer, "producer")
        if kafka_options is not None and not isinstance(kafka_options, Mapping):
            raise TypeError(f"kafka_options takes a dict of kafka-python's arguments, not {kind_of(kafka_options)}")
        self._signer = signer(
            f"{topic_prefix}{dataset}.staged", producer=producer, key_file=producer_key_file, key=producer_key
        )
        storage_options = None if storage_options is None else texts(storage_options, "storage_options")
        client_id = client_id or producer or "committerd-client"
        instance = secrets.token_hex(8)
        self._connection = Connection(
            bootstrap_servers=servers,
            dataset=dataset,
            topic_prefix=topic_prefix,
            client_id=client_id,
            partition_key=instance if producer is None else producer,
            connect_timeout=connect_limit,
            max_record_bytes=max_record_bytes,
            options=dict(kafka_options or {}),
        )
        if claim_check_above is not None and claim_check_above > max_record_bytes:
            raise ValueError(
                f"claim_check_above ({claim_check_above}) is more than max_record_bytes ({max_record_bytes})"
            )
        if write_claim is None and uri is not None:
            write_claim = claim_check.table_writer(uri, storage_options)
        self._dataset_uri, self._storage_options = uri, storage_options
        if key_cache_bytes < 0:
            raise ValueError(f"key_cache_bytes is {key_cache_bytes}, and must not be negative")
        self._keys: KeyCache | None = None
        self._key_cache_bytes = key_cache_bytes
        self._write_claim = write_claim
        self._diagnosis = Diagnosis(
            self._connection,
            group=group or f"{group_prefix}{dataset}",
            uri=uri,
            branch=self._branch,
            storage_options=storage_options,
        )
        self._claim_check_above = max_record_bytes if claim_check_above is None else claim_check_above
        self._named = producer is not None
        self._partition = 0
        self._started_at: datetime | None = None
        self._producer = f"{client_id}-{instance}" if producer is None else producer
        self._timeout, self._close_timeout = limit, close_timeout
        self._room = InFlightLimit(records_max=max_in_flight, bytes_max=max_in_flight_bytes)
        self._submissions = Submissions()
        self._headers: list[tuple[str, bytes]] = []
        self._channel: Channel | None = None
        self._open = self._closed = False

    def __repr__(self) -> str:
        state = "open" if self._open else "closed" if self._closed else "not started"
        connection = self._connection
        return f"<CommitClient of {connection.dataset} at {', '.join(connection.bootstrap_servers)}, {state}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def start(self, *, within: float | None = None) -> None:
        """Connect, in `connect_timeout` or `within` seconds, whichever is less.

        Raises `KafkaUnavailable` if no broker responds or the dataset's topics don't exist in time.
        """
        if self._channel is not None:
            raise RuntimeError("a client is started once: make another client")
        servers = ", ".join(self._connection.bootstrap_servers)
        filter_kafka_log(self._connection.client_id, servers)
        limit = self._connection.connect_timeout
        limit = limit if within is None else min(limit, within)
        connection = replace(self._connection, connect_timeout=limit)
        channel = self._channel = Channel(connection, Arrivals(self._room, self._submissions))
        with recent_warnings() as heard:
            try:
                partition = await asyncio.wait_for(channel.open(), limit + _CONNECT_GRACE_SECONDS)
            except BaseException as error:
                self._closed = True
                channel.abandon()
                if isinstance(error, asyncio.TimeoutError):
                    raise KafkaUnavailable(
                        f"Kafka at {servers} has not responded within {limit:g} s (connect_timeout, timeout){heard}"
                    ) from error
                if not isinstance(error, Exception) or isinstance(error, ClientError):
                    raise
                raise KafkaUnavailable(f"Kafka at {servers} can't be used: {error!r}{heard}") from error
        self._partition, self._started_at = partition, datetime.now(UTC)
        self._headers = constant_headers(
            dataset_uri=self._dataset_uri, producer=self._producer, outcome_partition=partition
        )
        self._open = True

    async def aclose(self, *, within: float | None = None) -> None:
        """Send everything that was submitted, wait for Kafka's acknowledgements (`close_timeout` or `within` s), stop.

        Callers that still wait for an outcome get `ClientClosed`. Staged records stay staged. May be called twice.
        """
        self._closed = True
        channel, was_open, self._open = self._channel, self._open, False
        if channel is None or not was_open:
            return
        try:
            await channel.close(self._close_timeout if within is None else within)
        finally:
            channel.abandon()
            self._room.close()
            for submission in self._submissions:
                submission.fail(closed(submission))

    def bookmark(self) -> Bookmark:
        """The earliest place at which the outcome of a record can be that is submitted from now on. Does no I/O.

        Save it with the transaction's uuid before you submit the transaction: `resume` searches from this place on.
        """
        return Bookmark(self._partition, self._open_channel().next_offset)

    async def commit(
        self,
        transaction: TransactionLike,
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        reexecute: AsyncReexecute | None = None,
        attempts: int = ATTEMPTS_MAX,
        **asked: Unpack[CommitOptions],
    ) -> CommitResult:
        """Stage the transaction and wait until it is in the table. DUPLICATE counts as success.

        `timeout`: seconds for the whole call. `asked`: see `CommitOptions`.

        `reexecute`: called after each `RetryableConflict` with the refused work. It does the work again on the latest
        version and returns a new transaction, or None to give up. A coroutine function runs in the event loop, a plain
        one in a worker thread; the caller gets its exceptions. The client sends at most `attempts` tries, within
        `timeout`. If the first re-execution took over 0.3 s (over 1 s if the work conflicts with a Delete or an
        Update, because the committer reserves its rows) and its work can be brought up to date
        (`Staged.can_catch_up`), the client calls `reexecute` with that work again before it sends it, for as long as
        each call halves the time. A re-execution keeps the app unit, the deadline and the trace context;
        `create_only`, `create_options` and `read_uuid` belong to one transaction (the next `Staged` has its own).

        Raises a `NotCommitted` (not in the table), `Undecided`, `CommitTimeout` or `ClientClosed` (unknown), or
        `SubmitFailed`; the error's `attempts` is the number of tries. Cancelling the caller does not withdraw the
        transaction: it may still be committed.
        """
        limit = self._seconds(timeout)
        until = _until(limit)
        plain_function(reexecute, coroutines=True)
        tries = Attempts(transaction, record_options(asked), most=attempts, reexecutes=reexecute is not None)
        while True:
            try:
                return tries.counted(await self._commit(tries.work, tries.asking, limit, until))
            except ClientError as error:
                error.work = tries.work
                if reexecute is None:
                    raise
                wanted = tries.after(error, seconds_left=_left(until))
            tries.take(await ask(reexecute, wanted, partial(_left, until)), wanted, seconds_left=_left(until))

    async def submit(
        self, transaction: TransactionLike, *, timeout: Timeout = CLIENTS_TIMEOUT, **asked: Unpack[CommitOptions]
    ) -> CommitHandle:
        """Stage the transaction; returns when Kafka has acknowledged it. The handle waits for the outcome.

        `timeout` covers the staging alone. Cancelling the caller does not withdraw the transaction.
        """
        limit = self._seconds(timeout)
        until = _until(limit)
        bookmark = self.bookmark()
        submission = await self._submit(transaction, record_options(asked), until)
        try:
            staged = await self._waited(submission, submission.wait_staged, _left(until))
        except BaseException:
            submission.wanted = False
            raise
        if not staged:
            submission.wanted = False
            raise self._timed_out(submission, limit)
        if not submission.acknowledged and isinstance(submission.result, ClientError) and submission.offset is None:
            raise submission.result
        return CommitHandle(submission, bookmark, self._outcome)

    async def status(self) -> QueueStatus:
        """What the client can see of the queue: committers, waiting records, the table, and what is wrong.

        Asks Kafka, and looks for the table; takes a few seconds at most, and never raises. `print(await
        client.status())` says it in a sentence.
        """
        return await asyncio.to_thread(self._diagnosis.status)

    async def resume(
        self, uuid: str, *, since: Bookmark | datetime, timeout: Timeout = CLIENTS_TIMEOUT
    ) -> CommitResult:
        """Find the outcome of a transaction that this or another process submitted earlier.

        `since`: a bookmark from before it was submitted, or a time with a time zone. From a time on, the client
        searches its own partition; that is the submitting client's partition if both have the same `producer`.
        The client first reads the outcomes that are already there, then the table's latest 1,000 versions if pylance
        can read them, and then waits for the outcome until `timeout`. With `timeout=0` it does not wait, but still
        reads what is there.

        Raises the errors of `commit`, and `OutcomeNotFound` if the outcome is nowhere. Never guesses, and submits
        nothing.
        """
        self._usable()
        text(uuid, "resume")
        if isinstance(since, datetime):
            check_time(since, earliest=None if self._named else self._started_at)
        elif not isinstance(since, Bookmark):
            raise TypeError(f"since takes a Bookmark, as in Bookmark(*kept), or a datetime, not {since!r}")
        limit = self._seconds(timeout)
        best = await find_outcome(
            OutcomeSearch(self._connection, uuid),
            since=since,
            partition=self._partition,
            history=partial(history.find, self._dataset_uri, self._storage_options, uuid),
            until=None if limit is None else time.monotonic() + limit,
        )
        result = interpret(best)
        if isinstance(result, ClientError):
            raise result
        return result

    @overload
    async def commit_many(
        self,
        transactions: Iterable[TransactionLike],
        *,
        timeout: Timeout = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[CommitResult]: ...

    @overload
    async def commit_many(
        self,
        transactions: Iterable[TransactionLike],
        *,
        timeout: Timeout = ...,
        return_exceptions: Literal[True],
    ) -> list[CommitResult | ClientError]: ...

    async def commit_many(
        self,
        transactions: Iterable[TransactionLike],
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        return_exceptions: bool = False,
    ) -> list[CommitResult] | list[CommitResult | ClientError]:
        """Commit independent transactions; stages them in their order and returns the results in the same order.

        They are not one unit: some may be committed and others refused. When all have their outcomes and some were not
        committed, raises `CommitManyFailed`, a group of their errors that also has all results. With
        `return_exceptions` the errors stand among the results. `timeout`: seconds for all of them; transactions without
        an outcome by then are a `CommitTimeout` each. Any other error, including one that `transactions` raises, is
        raised at once; the transactions before it are staged by then.

        At most 2,000 of them wait for their outcomes before `timeout` is up: the committer then holds them all, and
        other producers of the table wait less.
        """
        if isinstance(transactions, Staged | Transaction | bytes | str):
            raise TypeError(f"commit_many takes a list of transactions, not {kind_of(transactions)}: call commit")
        limit = self._seconds(timeout)
        until = _until(limit)
        waiting: list[Submission | ClientError] = []
        try:
            for transaction in transactions:
                if len(waiting) >= _WITHOUT_OUTCOME_MAX:
                    first = waiting[-_WITHOUT_OUTCOME_MAX]
                    if isinstance(first, Submission):
                        await self._result(first, limit, until)
                try:
                    waiting.append(await self._submit(transaction, RecordOptions(), until))
                except ClientError as error:
                    waiting.append(error)
            results = [
                one if isinstance(one, ClientError) else await self._result(one, limit, until) for one in waiting
            ]
        finally:
            for one in waiting:
                if isinstance(one, Submission):
                    one.wanted = False
        if not return_exceptions and any(isinstance(result, ClientError) for result in results):
            raise CommitManyFailed.of(results)
        return results

    async def _commit(
        self, transaction: TransactionLike, asking: RecordOptions, seconds: float | None, until: float | None
    ) -> CommitResult:
        submission = await self._submit(transaction, asking, until)
        try:
            result = await self._result(submission, seconds, until)
        finally:
            submission.wanted = False
        if isinstance(result, ClientError):
            raise result
        return result

    async def _submit(self, transaction: TransactionLike, asking: RecordOptions, until: float | None) -> Submission:
        """Wait for room, and hand the transaction to the sender; below a span, if the application has a trace."""
        self._usable()
        span = None
        if asking.traceparent is None:
            span = send_span(
                self._connection.staged_topic, client_id=self._connection.client_id, producer=self._producer
            )
        if span is None:
            return await self._hand_over(transaction, asking, until)
        try:
            return await self._hand_over(transaction, replace(asking, traceparent=span.traceparent), until, span)
        except BaseException as error:
            span.failed(error)
            raise

    async def _hand_over(
        self, transaction: TransactionLike, asking: RecordOptions, until: float | None, span: SendSpan | None = None
    ) -> Submission:
        record = make_record(transaction, asking, self._headers)
        if span is not None:
            span.made(record)
        uri = self._dataset_uri
        if isinstance(transaction, Staged):
            require_same_branch(transaction, uri, self._branch)
            if uri is not None and transaction.uri != uri:
                require_same_table(transaction, uri)
        size = record.size + (self._signer.extra_bytes if self._signer is not None else 0)
        if size > self._claim_check_above:
            record = await self._claim(record)
        if self._signer is not None:
            record = self._signer.signed(record)
        size = record.size
        await self._room.take(size, _left(until))
        submission = Submission(record, size, span)
        try:
            self._usable().send(submission)
        except BaseException:
            self._room.give_back(size)
            raise
        self._submissions.add(submission)
        return submission

    async def _claim(self, record: StagedRecord) -> StagedRecord:
        """Write the transaction's bytes beside the table, and return a record that names the file."""
        if self._write_claim is None:
            raise too_large(record, self._claim_check_above)
        return await claim_check.check(record, self._write_claim)

    async def _outcome(self, submission: Submission, timeout: Timeout) -> CommitResult:
        limit = self._seconds(timeout)
        result = await self._result(submission, limit, _until(limit))
        if isinstance(result, ClientError):
            raise result
        return result

    async def _result(
        self, submission: Submission, seconds: float | None, until: float | None
    ) -> CommitResult | ClientError:
        await self._waited(submission, submission.wait_result, _left(until))
        return submission.result or self._timed_out(submission, seconds)

    async def _waited(
        self, submission: Submission, wait: Callable[[float | None], Awaitable[bool]], seconds: float | None
    ) -> bool:
        """Call `wait` for `seconds`; if it takes long, log why. Returns its result."""
        began = time.monotonic()

        def tell() -> None:
            found = self._diagnosis.finding(submission.offset)
            if found is not None and submission.result is None:
                text = "transaction %s has no outcome after %.0f s: %s"
                _log.warning(text, submission.uuid, time.monotonic() - began, found.text)

        try:
            return await self._diagnosis.waited(wait, seconds, tell=tell)
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled or interrupted
                add_note(error, withdrawn(submission, self._connection.staged_topic))
            raise

    def _table(self) -> TableLocation:
        return table_location(self._dataset_uri, self._storage_options, branch=self._branch)

    def _key_cache(self) -> KeyCache | None:
        if self._keys is None and self._key_cache_bytes:
            from committerd_client.staging import KeyCache  # needs pylance

            self._keys = KeyCache(max_bytes=self._key_cache_bytes)
        return self._keys

    def _usable(self) -> Channel:
        channel = self._open_channel()
        if asyncio.get_running_loop() is not channel.loop:
            raise RuntimeError("the client was started in another event loop: make a client in each event loop")
        return channel

    def _open_channel(self) -> Channel:
        channel = self._channel
        if self._closed:
            raise ClientClosed("the client is closed: make another client")
        if channel is None or not self._open:
            raise RuntimeError(
                "the client is not started: use `async with CommitClient(...)`, or `await client.start()`"
            )
        if os.getpid() != channel.pid:
            raise RuntimeError("the client was started before this process was forked: make a client in each process")
        return channel

    def _seconds(self, timeout: Timeout) -> float | None:
        return self._timeout if isinstance(timeout, ClientTimeout) else seconds(timeout, "timeout")

    def _timed_out(self, submission: Submission, seconds: float | None) -> CommitTimeout:
        trouble = self._channel.trouble if self._channel is not None else ""
        return timed_out(
            submission,
            seconds=seconds,
            topic=self._connection.staged_topic,
            trouble=trouble,
            found=self._diagnosis.finding(submission.offset),
        )


def _until(seconds: float | None) -> float | None:
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - asyncio.get_running_loop().time(), 0.0)
