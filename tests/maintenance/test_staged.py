"""What maintenance reads of a staged record is bounded as it is in the committer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from committerd.maintenance.staged import StagedReader
from committerd.queue.port import Record
from committerd.stores.local import LocalStore
from committerd_common.messages import Transaction
from tests.hostile.records import nearly_empty
from tests.lance.samples import fragment

BYTES_MAX = 64 * 1024
NAME = "8e7c1f2a-1111-4222-8333-444455556666-0011223344556677.txn"
APPEND = Transaction(uuid="8e7c1f2a-1111-4222-8333-444455556666", read_version=1)
APPEND.append.fragments.append(fragment(0, name="a" * 32))


class CountingStore(LocalStore):
    """Notes how many bytes it was asked for."""

    asked = 0

    async def get(self, key: str) -> bytes | None:
        raise AssertionError("a whole object is read, however large it is")

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self.asked += end - start
        return await super().get_range(key, start, end)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[CountingStore]:
    made = CountingStore(tmp_path, durable=False)
    yield made
    assert made.asked <= BYTES_MAX + 1


async def read(store: LocalStore, value: bytes | None, *, claimed: bytes | None = None) -> Transaction | None:
    headers = []
    if claimed is not None:
        await store.put(f"_transactions/{NAME}", claimed)
    if value is None:
        headers = [("transaction-file", NAME.encode()), ("transaction-sha256", b"0" * 64)]
    record = Record(offset=0, value=value or b"", headers=headers)
    found, key = await StagedReader(store=store, bytes_max=BYTES_MAX).transaction(record)
    assert key == (None if value is not None else f"_transactions/{NAME}")
    return found


async def test_a_transaction_is_read_from_the_value_or_from_the_file(store: CountingStore) -> None:
    body = APPEND.SerializeToString()
    assert await read(store, body) == APPEND
    assert await read(store, None, claimed=body) == APPEND


async def test_what_the_committer_refuses_is_not_decoded(store: CountingStore) -> None:
    large = APPEND.SerializeToString() + b"\xba\x3e\xff\xff\x03" + b"x" * 65_535
    assert len(large) > BYTES_MAX
    assert await read(store, large) is None
    assert await read(store, None, claimed=large * 20) is None
    assert await read(store, b"garbage") is None
    fragments = (
        Transaction.DESCRIPTOR.fields_by_name["update"],
        Transaction.Update.DESCRIPTOR.fields_by_name["new_fragments"],
    )
    assert await read(store, nearly_empty(fragments, 20_000)) is None, "decoded, it would take far more memory"


async def test_a_file_that_is_gone_is_no_transaction(store: CountingStore) -> None:
    assert await read(store, None) is None
