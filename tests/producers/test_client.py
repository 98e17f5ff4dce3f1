"""The client against a real Kafka; the tests play the committer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from kafka import KafkaProducer

from committerd_client import (
    ClientError,
    CommitClient,
    CommitResult,
    CommitStatus,
    CommitTimeout,
    Expired,
    IncompatibleConflict,
    InvalidTransaction,
    RetryableConflict,
    Staged,
    Undecided,
    UnsupportedTransaction,
)
from committerd_client.table_location import checked_uri
from committerd_common.messages import (
    DUPLICATE,
    EXPIRED,
    INCOMPATIBLE,
    INVALID,
    RETRYABLE,
    UNDECIDED,
    UNSUPPORTED,
    Outcome,
    Transaction,
)
from committerd_common.request import AppUnit, decode_envelope
from tests.producers.answering import (
    answering,
    append,
    committed,
    never,
)

pytestmark = pytest.mark.kafka

UUID = "5e1dcf7e-1f0c-4b6e-9f57-0d2f1b3a7c11"


async def in_thread(call: Any, *args: Any) -> Any:
    return await asyncio.to_thread(call, *args)


# What goes out, what comes back


async def test_a_commit_returns_what_the_committer_says(servers: str, dataset: str) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        return [committed(record, version=12, transactions=3, queued_ms=4, commit_ms=5)]

    transaction = append()
    with answering(servers, dataset, answer):
        async with CommitClient(servers, dataset=dataset) as client:
            result = await client.commit(transaction)
    assert result == CommitResult(
        uuid=transaction.uuid,
        status=CommitStatus.COMMITTED,
        version=12,
        offset=0,
        operation="append",
        transactions=3,
        queued_ms=4,
        commit_ms=5,
    )
    assert not result.duplicate


async def test_the_record_is_the_transaction_and_says_who_asks(servers: str, dataset: str) -> None:
    transaction = append()
    with answering(servers, dataset) as committer:
        async with CommitClient(servers, dataset=dataset, dataset_uri="s3://b/t", producer="me") as client:
            await client.commit(transaction)
            await client.commit(transaction.SerializeToString())
    first, second = committer.records
    assert Transaction.FromString(first.value) == transaction
    assert first.value == second.value
    assert first.key == transaction.uuid.encode()
    headers = committer.headers(0)
    assert headers.pop("outcome-partition") in "01234567"
    assert headers == {"producer": "me", "dataset": "s3://b/t"}


async def test_wishes_travel_in_headers_that_the_committer_reads(servers: str, dataset: str) -> None:
    deadline = datetime.now(UTC) + timedelta(hours=1)
    with answering(servers, dataset) as committer:
        async with CommitClient(servers, dataset=dataset) as client:
            await client.commit(
                append(),
                app=("spark.1", 7, "query-2", 5),
                create_only=True,
                create_options={"enable_stable_row_ids": True},
                read_uuid=UUID,
                deadline=deadline,
                attempt=2,
                retry_of=UUID,
                traceparent="00-1-2-03",
            )
            await client.commit(Staged(transaction=append(), create_only=True, create_options={"a": 1}, read_uuid=UUID))
    full, staged = (decode_envelope(record.headers) for record in committer.records)
    assert full.app == AppUnit(app_id="spark.1", version=7, run="query-2", after=5)
    assert full.create_only
    assert full.create_options == {"enable_stable_row_ids": True}
    assert (full.read_uuid, full.retry_of, full.attempt) == (UUID, UUID, 2)
    assert full.deadline_ms == int(deadline.timestamp() * 1000)
    assert full.traceparent == "00-1-2-03"
    assert (staged.create_only, staged.create_options, staged.read_uuid) == (True, {"a": 1}, UUID)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (RETRYABLE, RetryableConflict),
        (INCOMPATIBLE, IncompatibleConflict),
        (INVALID, InvalidTransaction),
        (UNSUPPORTED, UnsupportedTransaction),
        (EXPIRED, Expired),
        (UNDECIDED, Undecided),
    ],
)
async def test_what_is_not_committed_raises(
    servers: str, dataset: str, status: int, expected: type[ClientError]
) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        return [committed(record, status=status, reason="why", message="in words")]

    with answering(servers, dataset, answer):
        async with CommitClient(servers, dataset=dataset) as client:
            with pytest.raises(expected, match="in words") as raised:
                await client.commit(append(UUID))
            handle = await client.submit(append(UUID))
            with pytest.raises(expected):
                await handle.outcome()
    assert (raised.value.uuid, raised.value.code, raised.value.offset) == (UUID, "why", 0)


async def test_a_duplicate_is_a_success(servers: str, dataset: str) -> None:
    with answering(servers, dataset, lambda record: [committed(record, status=DUPLICATE, reason="uuid_seen")]):
        async with CommitClient(servers, dataset=dataset) as client:
            result = await client.commit(append())
    assert result.duplicate
    assert result.reason == "uuid_seen"


async def test_the_first_answer_counts(servers: str, dataset: str) -> None:
    with answering(servers, dataset, lambda record: [committed(record, version=v) for v in (5, 6)]):
        async with CommitClient(servers, dataset=dataset) as client:
            handle = await client.submit(append())
            assert (await handle.outcome()).version == 5
            await client.commit(append())
            assert (await handle.outcome()).version == 5


async def test_an_answer_without_uuid_finds_its_record_by_offset(servers: str, dataset: str) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        if record.offset != 1:
            return [committed(record)]
        return [Outcome(status=INVALID, reason="record_too_large", offset=1, topic=record.topic)]

    with answering(servers, dataset, answer):
        async with CommitClient(servers, dataset=dataset) as client:
            transactions = [append() for _ in range(3)]
            results = await client.commit_many(transactions, return_exceptions=True)
    wrong = results[1]
    assert isinstance(wrong, InvalidTransaction)
    assert (wrong.uuid, wrong.code) == (transactions[1].uuid, "record_too_large")
    assert [type(result) for result in results] == [CommitResult, InvalidTransaction, CommitResult]


async def test_what_is_no_outcome_is_passed_over(servers: str, dataset: str) -> None:
    garbage = KafkaProducer(bootstrap_servers=servers)

    def answer(record: Any) -> Iterable[Outcome]:
        partition = int(dict(record.headers)["outcome-partition"])
        for value in (b"\xff\xff", b""):
            garbage.send(f"{dataset}.outcomes", value=value, partition=partition).get(60)
        return [committed(record)]

    with answering(servers, dataset, answer):
        async with CommitClient(servers, dataset=dataset) as client:
            assert (await client.commit(append())).version == 1
    garbage.close()


# Many at once


async def test_answers_may_come_in_any_order(servers: str, dataset: str) -> None:
    with answering(servers, dataset, never) as committer:
        async with CommitClient(servers, dataset=dataset) as client:
            handles = [await client.submit(append()) for _ in range(50)]
            assert [handle.offset for handle in handles] == list(range(50))
            await in_thread(committer.wait_for, 50)
            assert not any(handle.done() for handle in handles)
            for record in reversed(committer.records):
                committer.publish(record, [committed(record)])
            results = await asyncio.gather(*(handle.outcome() for handle in handles))
    assert [result.version for result in results] == list(range(1, 51))
    assert [result.uuid for result in results] == [handle.uuid for handle in handles]


async def test_two_thousand_commits_at_once(servers: str, dataset: str) -> None:
    transactions = [append() for _ in range(2_000)]
    with answering(servers, dataset):
        async with CommitClient(servers, dataset=dataset) as client:
            results = await asyncio.gather(*(client.commit(transaction) for transaction in transactions))
    assert [result.uuid for result in results] == [transaction.uuid for transaction in transactions]
    assert {result.version for result in results} == set(range(1, 2_001))


async def test_clients_get_their_own_answers_only(servers: str, dataset: str) -> None:
    async def commit_some(client: CommitClient) -> None:
        transactions = [append() for _ in range(100)]
        results = await client.commit_many(transactions)
        assert [result.uuid for result in results] == [transaction.uuid for transaction in transactions]

    with answering(servers, dataset) as committer:
        clients = [CommitClient(servers, dataset=dataset, producer=str(i)) for i in range(6)]
        await asyncio.gather(*(client.start() for client in clients))
        await asyncio.gather(*(commit_some(client) for client in clients))
        await asyncio.gather(*(client.aclose() for client in clients))
    partitions: dict[str, set[str]] = {}
    for index in range(600):
        headers = committer.headers(index)
        partitions.setdefault(headers["producer"], set()).add(headers["outcome-partition"])
    assert all(len(of_one) == 1 for of_one in partitions.values()), "a client reads one partition"
    assert len(set.union(*partitions.values())) > 1, "clients are spread over the partitions"


async def test_commit_many_keeps_the_order_and_raises_all_errors_at_the_end(servers: str, dataset: str) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        return [committed(record, **({"status": RETRYABLE} if record.offset % 2 else {}))]

    transactions = [append() for _ in range(6)]
    with answering(servers, dataset, answer):
        async with CommitClient(servers, dataset=dataset) as client:
            with pytest.RaisesGroup(RetryableConflict, RetryableConflict, RetryableConflict, match="3 of 6") as raised:
                await client.commit_many(transactions)
            mixed = await client.commit_many([append(), b"nonsense", append()], return_exceptions=True)
    refused = [error.uuid for error in raised.value.exceptions if isinstance(error, RetryableConflict)]
    assert refused == [transactions[i].uuid for i in (1, 3, 5)]
    for one, kind in zip(mixed, (CommitResult, InvalidTransaction, RetryableConflict), strict=True):
        assert isinstance(one, kind), one


async def test_commit_many_stages_no_more_than_a_few_without_an_outcome(
    servers: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("committerd_client.client._WITHOUT_OUTCOME_MAX", 3)
    answered: list[int] = []

    def answer(record: Any) -> Iterable[Outcome]:
        answered.append(record.offset)
        return [committed(record)]

    def transactions() -> Iterator[Transaction]:
        for number in range(20):
            assert len(answered) >= number - 3, "the next is asked for when all but the last three have outcomes"
            yield append()

    with answering(servers, dataset, answer):
        async with CommitClient(servers, dataset=dataset) as client:
            results = await client.commit_many(transactions())
    assert [result.version for result in results] == list(range(1, 21))


async def test_commit_many_stages_all_when_its_time_is_up(
    servers: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("committerd_client.client._WITHOUT_OUTCOME_MAX", 3)
    with answering(servers, dataset, never):
        async with CommitClient(servers, dataset=dataset) as client:
            ends = await client.commit_many(
                [append(), b"nonsense", *(append() for _ in range(5))], timeout=0.5, return_exceptions=True
            )
    assert isinstance(ends[1], InvalidTransaction)
    assert all(isinstance(end, CommitTimeout) for number, end in enumerate(ends) if number != 1)


async def test_it_works_in_anyio_task_groups_and_scopes(servers: str, dataset: str) -> None:
    versions: list[int | None] = []
    with answering(servers, dataset, lambda record: [committed(record)] if record.offset < 10 else []):
        async with CommitClient(servers, dataset=dataset) as client:

            async def commit() -> None:
                versions.append((await client.commit(append())).version)

            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(commit)
            with pytest.raises(TimeoutError), anyio.fail_after(0.3):
                await client.commit(append())
    assert sorted(version or 0 for version in versions) == list(range(1, 11))


def test_pylance_gets_the_name_of_s3_that_it_knows() -> None:
    assert (checked_uri("s3a://b/t"), checked_uri("/lake/t.lance")) == ("s3://b/t", "/lake/t.lance")
