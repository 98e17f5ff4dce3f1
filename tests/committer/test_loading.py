"""The known facts about a table whose history has more records than the ledger may hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio
import pytest

from committerd.committer.head import Head, StartAgain
from committerd.committer.ledgers import lone_part
from committerd.committer.loading import Loaded, Loading, load, read_new
from committerd.lance.format.manifest_file import encode
from committerd.queue.ledger import NOT_SEEN
from committerd.queue.offsets import Offsets
from committerd.queue.outcomes import Settled, encode_settled
from committerd.queue.position import Position, encode_metadata
from committerd.stores.port import Tail
from committerd.table.versions import History, Table
from committerd_common.messages import Manifest, Member, Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.committer.bench import earlier
from tests.simulation.staging import column
from tests.simulation.store import Bucket, FakeStore

LITTLE = 400
"""Bytes of a ledger that is full after a few records."""
AHEAD = 200


def nothing_is_owed(position: Position) -> int:
    return position.next_offset


async def loaded_from(bucket: Bucket, owed_from: Callable[[Position], int] = nothing_is_owed) -> Loaded:
    how = Loading(monotonic=lambda: 0.0, part=lone_part(LITTLE), owed_from=owed_from)
    return await load(Table(FakeStore(bucket)), how)


def put(bucket: Bucket, version: int, *, answers: int, next_offset: int, settled: Sequence[int]) -> None:
    """A version of the queue that settles one record."""
    position = Position(
        cluster_id="c", topic="t", topic_id="i", next_offset=next_offset, settled=Offsets.of(settled), last_offset=-1
    )
    manifest = Manifest(version=version, fields=[column()], table_metadata=encode_metadata(position, {}))
    manifest.writer_version.library, manifest.writer_version.version = "lance", "14.0.2"
    manifest.data_format.file_format, manifest.data_format.version = "lance", "2.0"
    transaction = Transaction(uuid=f"u{answers}", read_version=version - 1)
    transaction.append.SetInParent()
    members = [Member(offset=answers, uuid=f"u{answers}")]
    transaction.transaction_properties.update(encode_settled(members, [], topic_id="i"))
    bucket.put(manifest_key(version, NamingScheme.V2), encode(manifest, (), transaction))


def settled_ahead_and_79_more() -> Bucket:
    """Version 1 settles offset 200, ahead of all others; version n + 2 settles offset n."""
    bucket = Bucket()
    put(bucket, 1, answers=AHEAD, next_offset=0, settled=[AHEAD])
    for offset in range(79):
        put(bucket, offset + 2, answers=offset, next_offset=offset + 1, settled=[AHEAD])
    return bucket


async def test_what_was_settled_ahead_is_found_below_versions_of_earlier_offsets() -> None:
    loaded = await loaded_from(settled_ahead_and_79_more(), lambda position: 70)
    outcome_versions = loaded.older.outcome_versions
    assert loaded.ledger.floor > 0
    assert loaded.position is not None
    assert tuple(loaded.position.settled) == (AHEAD,)
    assert 1 in outcome_versions.between(AHEAD, AHEAD)
    assert [*outcome_versions.between(70, 72)] == [74, 73, 72]


async def test_history_below_everything_that_is_owed_is_not_read() -> None:
    bucket = Bucket()
    for offset in range(80):
        put(bucket, offset + 1, answers=offset, next_offset=offset + 1, settled=[])
    how = Loading(monotonic=lambda: 0.0, owed_from=lambda position: 70, later=True)
    outcome_versions = (await load(Table(FakeStore(bucket)), how)).older.outcome_versions
    assert 1 < outcome_versions.oldest <= 70
    assert [*outcome_versions.between(70, 72)] == [73, 72, 71]


async def head_of(bucket: Bucket) -> Head:
    loaded = await loaded_from(bucket)
    assert loaded.position is not None
    return loaded.head(loaded.position)


async def test_a_dropped_version_makes_a_record_unknown_as_long_as_it_can_be_read() -> None:
    bucket = settled_ahead_and_79_more()
    head = await head_of(bucket)
    floor = head.ledger.floor
    assert (await earlier(head, "new", 0)).unknown_at == floor
    assert (await earlier(head, "new", floor)) == NOT_SEEN
    assert head.without_what_is_gone() is head
    for version in range(1, floor + 1):
        bucket.delete(manifest_key(version, NamingScheme.V2))
    assert (await earlier(head, "new", 0)).unknown_at is None
    reopened = replace(head, history=History(Table(FakeStore(bucket))))
    assert (await earlier(reopened, "new", 0)).unknown_at is None
    assert head.without_what_is_gone().ledger.floor == 0
    assert head.without_what_is_gone().ledger.rules_out("new", 0)


async def test_what_is_dropped_later_is_unknown_again() -> None:
    ledger = (await head_of(settled_ahead_and_79_more())).ledger
    assert ledger.floor > 0
    ledger = replace(ledger, floor=0)
    assert ledger.floor == 0
    for number in range(81, 300):
        members = [Member(offset=number, uuid=f"m{number}")]
        ledger = ledger.then(Settled(version=number, uuid="", operation="append", ours=True, members=members))
    assert ledger.floor > 80


class Waits(FakeStore):
    """Responds once all calls that can be made have been made."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.at_once = self._now = 0

    async def get_tail(self, key: str, size: int) -> Tail | None:
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        await anyio.wait_all_tasks_blocked()
        self._now -= 1
        return await super().get_tail(key, size)


async def test_new_versions_are_read_many_at_once() -> None:
    bucket = Bucket()
    for offset in range(20):
        put(bucket, offset + 1, answers=offset, next_offset=offset + 1, settled=[])
    store = Waits(bucket)
    table = Table(store)
    await table.read(1)
    news = await read_new(table, 1, 20)
    assert [one.settled.version for one in news.found] == list(range(2, 21))
    assert news.manifest is not None
    assert news.manifest.version == 20
    assert store.at_once == 16
    bucket.delete(manifest_key(7, NamingScheme.V2))
    with pytest.raises(StartAgain, match="version 7 can't be read, but 20 is there"):
        await read_new(Table(store), 1, 20)
