"""Transactions that are too large for a record."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from committerd_client import CommitClient, SubmitFailed, TransactionTooLarge, claim_check
from committerd_client.claim_check import WriteClaim
from committerd_common.messages import COMMITTED, Outcome, Transaction
from committerd_common.request import decode_envelope
from tests.producers.answering import answering, append, never

LARGE = 4_000


def a_large_one() -> Transaction:
    return append(size=LARGE)


@pytest.mark.kafka
@pytest.mark.parametrize("is_async", [False, True])
async def test_the_bytes_go_to_the_writer_and_the_record_names_them(servers: str, dataset: str, is_async: bool) -> None:
    written: dict[str, bytes] = {}

    async def write_later(name: str, body: bytes) -> None:
        written[name] = body

    write: WriteClaim = write_later if is_async else written.__setitem__
    transaction = a_large_one()

    with answering(servers, dataset, never) as committer:
        async with CommitClient(servers, dataset=dataset, claim_check_above=2_000, write_claim=write) as client:
            handles = [await client.submit(work) for work in (transaction, transaction, append())]
            await asyncio.to_thread(committer.wait_for, 3)
            assert [handle.uuid for handle in handles[:2]] == [transaction.uuid] * 2
    (name,) = written
    assert name.startswith(transaction.uuid)
    assert written[name] == transaction.SerializeToString()
    for record in committer.records[:2]:
        claim = decode_envelope(record.headers).claim
        assert claim is not None
        assert (claim.name, claim.sha256) == (name, hashlib.sha256(written[name]).hexdigest())
        assert record.value == b""
        assert record.key == transaction.uuid.encode()
    assert decode_envelope(committer.records[2].headers).claim is None
    assert committer.records[2].value


@pytest.mark.kafka
@pytest.mark.pylance
async def test_pylance_writes_it_beside_the_table(servers: str, dataset: str, tmp_path: Path) -> None:
    uri, transaction = str(tmp_path / "t.lance"), a_large_one()
    with answering(servers, dataset, lambda r: [Outcome(uuid=transaction.uuid, topic=r.topic, status=COMMITTED)]):
        async with CommitClient(servers, dataset=dataset, dataset_uri=uri, max_record_bytes=2_000) as client:
            assert (await client.commit(transaction)).uuid == transaction.uuid
    (file,) = (tmp_path / "t.lance" / "_transactions").iterdir()
    assert file.read_bytes() == transaction.SerializeToString()


@pytest.mark.kafka
async def test_without_a_writer_or_when_it_fails_nothing_is_sent(servers: str, dataset: str) -> None:
    def fail(_: str, __: bytes) -> None:
        raise PermissionError("no key to the bucket")

    with answering(servers, dataset) as committer:
        async with CommitClient(servers, dataset=dataset, max_record_bytes=2_000) as client:
            with pytest.raises(TransactionTooLarge, match="write_claim="):
                await client.commit(a_large_one())
        async with CommitClient(servers, dataset=dataset, claim_check_above=2_000, write_claim=fail) as client:
            with pytest.raises(SubmitFailed, match="no key to the bucket") as raised:
                await client.commit(a_large_one())
            assert raised.value.code == "claim_not_written"
            await client.commit(append())
        assert len(committer.records) <= 1


def test_without_pylance_there_is_no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_check, "find_spec", lambda _: None)
    assert claim_check.table_writer("s3://bucket/t") is None
