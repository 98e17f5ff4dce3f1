"""The history that Start leaves unread, and that is read while the committer commits."""

from __future__ import annotations

import random
from dataclasses import replace

import anyio
import pytest

from committerd.committer.current_head import CurrentHead
from committerd.committer.ledgers import Ledgers, lone_part
from committerd.committer.loading import Loaded, Loading, load
from committerd.concurrency import beside
from committerd.errors import StoreUnavailable
from committerd.queue.position import Position
from committerd.stores.port import Tail
from committerd.table.backoff import Backoff
from committerd.table.versions import Table
from committerd_common.paths import NamingScheme, manifest_key
from tests.committer.bench import earlier
from tests.committer.test_loading import AHEAD, LITTLE, put, settled_ahead_and_79_more
from tests.simulation.store import Bucket, FakeStore


class Unsteady(FakeStore):
    """A store that reads nothing while it is `down`, and counts what it reads."""

    down = False
    reads = 0

    async def get_tail(self, key: str, size: int) -> Tail | None:
        await anyio.lowlevel.checkpoint()
        if self.down:
            raise StoreUnavailable("down")
        self.reads += 1
        return await super().get_tail(key, size)


def history_of(versions: int) -> Bucket:
    """Version n + 1 settles the record at offset n."""
    bucket = Bucket()
    for offset in range(versions):
        put(bucket, offset + 1, answers=offset, next_offset=offset + 1, settled=[])
    return bucket


def nothing_is_owed(position: Position) -> int:
    return position.next_offset


HOW = Loading(monotonic=lambda: 0.0, owed_from=nothing_is_owed, later=True)


def current_of(loaded: Loaded) -> CurrentHead:
    assert loaded.position is not None
    return CurrentHead(loaded.head(loaded.position), lambda: 0.0, loaded.older, 1)


def no_wait() -> Backoff:
    return Backoff(random.Random(0))


async def test_start_reads_no_more_than_it_needs() -> None:
    store = Unsteady(history_of(500))
    loaded = await load(Table(store), HOW)
    assert store.reads == 1
    assert loaded.position is not None
    assert loaded.position.next_offset == 500
    assert (loaded.newest_ours, loaded.ledger.unread_below, loaded.older.unread_versions) == (500, 500, 499)
    assert not any(loaded.ledger.covers(read_version) for read_version in (0, 498, 499, 500))


async def test_a_record_waits_for_the_newest_versions_whatever_its_read_version() -> None:
    """The likely restart is that of both sides: the producer opens the table again, and stages the same uuid."""
    loaded = await load(Table(FakeStore(history_of(1500))), HOW)
    current, older = current_of(loaded), loaded.older
    while not current.head.ledger.covers(1500):
        assert (await earlier(current.head, "u501", 1500)).found == "new"
        await older.read(100)
        current.learn_history()
    assert current.head.ledger.unread_below <= 501
    assert (await earlier(current.head, "u501", 1500)).committed == 502
    assert not current.head.ledger.covers(300)


async def test_a_head_learns_what_was_read_since() -> None:
    loaded = await load(Table(FakeStore(history_of(500))), HOW)
    current, older = current_of(loaded), loaded.older
    formed_ahead = current.head
    await older.read(100)
    current.learn_history()
    assert (current.head.ledger.unread_below, current.older.unread_versions) == (400, 399)
    assert (await earlier(current.head, "u450", 399)).committed == 451
    assert (await earlier(current.head, "u450", 500)).committed == 451
    assert (await earlier(current.head, "u100", 399)).found == "new"
    assert (await earlier(current.head, "u100", 0)).unknown_at == 399
    while not older.is_read:
        await older.read(100)
    for head in (current.head, formed_ahead):
        current.head = head
        current.learn_history()
        assert (current.head.ledger.unread_below, current.older.unread_versions) == (0, 0)
        assert (await earlier(current.head, "u100", 0)).committed == 101
        assert (await earlier(current.head, "new", 0)).found == "new"
    learnt = current.head
    current.learn_history()
    assert current.head is learnt


async def test_all_of_it_is_what_start_would_have_read_itself() -> None:
    bucket = history_of(300)
    later, whole = [await load(Table(FakeStore(bucket)), replace(HOW, later=later)) for later in (True, False)]
    await later.older.read_beside(backoff=no_wait, progressed=lambda: None)
    assert (later.ledger.unread_below, whole.ledger.unread_below) == (300, 0)
    for loaded in (later, whole):
        current = current_of(loaded)
        current.learn_history()
        assert [(await earlier(current.head, f"u{n}", 0)).committed for n in range(300)] == [*range(1, 301)]
        assert [*loaded.older.outcome_versions.between(0, 1000)] == [*range(300, 0, -1)]


async def test_what_was_settled_ahead_is_owed_too() -> None:
    loaded = await load(Table(FakeStore(settled_ahead_and_79_more())), HOW)
    assert 1 in loaded.older.outcome_versions.between(AHEAD, AHEAD)


async def test_start_reads_down_to_all_that_it_owes() -> None:
    loaded = await load(Table(FakeStore(history_of(500))), replace(HOW, owed_from=lambda position: 300))
    assert [*loaded.older.outcome_versions.between(300, 302)] == [303, 302, 301]
    assert 1 < loaded.ledger.unread_below <= 301


async def test_it_ends_at_a_gap_and_skips_what_is_damaged() -> None:
    bucket = history_of(100)
    bucket.delete(manifest_key(20, NamingScheme.V2))
    bucket.spoil(manifest_key(50, NamingScheme.V2), b"damaged")
    loaded = await load(Table(FakeStore(bucket)), HOW)
    current = current_of(loaded)
    await loaded.older.read_beside(backoff=no_wait, progressed=lambda: None)
    current.learn_history()
    known = [n + 1 for n in range(100) if not current.head.ledger.rules_out(f"u{n}", 0)]
    assert known == [n for n in range(21, 101) if n != 50]


async def test_it_ends_when_the_ledger_is_full() -> None:
    loaded = await load(Table(FakeStore(history_of(500))), replace(HOW, part=lone_part(LITTLE)))
    current, older = current_of(loaded), loaded.older
    await older.read_beside(backoff=no_wait, progressed=lambda: None)
    current.learn_history()
    assert 450 <= current.head.ledger.floor < 500
    assert (await earlier(current.head, "u100", 0)).unknown_at == current.head.ledger.floor


async def test_nothing_is_left_unread_when_the_ledger_is_full_at_start() -> None:
    owed = replace(HOW, part=lone_part(LITTLE), owed_from=lambda position: 300)
    loaded = await load(Table(FakeStore(history_of(500))), owed)
    assert loaded.older.is_read
    assert (loaded.ledger.unread_below, loaded.ledger.floor > 300) == (0, True)


async def test_it_is_read_on_after_an_outage() -> None:
    store = Unsteady(history_of(500))
    loaded = await load(Table(store), HOW)
    shown = list[int]()
    current, older = current_of(loaded), loaded.older

    def progressed() -> None:
        shown.append(older.unread_versions)
        store.down = len(shown) == 2

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: older.read_beside(backoff=no_wait, progressed=progressed))
        while not store.down:
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.2)
        assert len(shown) == 2
        store.down = False
    current.learn_history()
    assert shown == sorted(shown, reverse=True)
    assert (shown[-1], current.head.ledger.covers(0)) == (0, True)


class Broken(Exception):
    pass


async def test_an_error_beside_a_block_ends_it_and_is_raised_as_it_is() -> None:
    async def breaks() -> None:
        await anyio.lowlevel.checkpoint()
        raise Broken

    with pytest.raises(Broken):
        async with beside(breaks):
            await anyio.sleep_forever()


async def test_what_runs_beside_a_block_ends_with_it() -> None:
    ended = anyio.Event()

    async def endless() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with beside(endless):
        await anyio.lowlevel.checkpoint()
    assert ended.is_set()
    with pytest.raises(Broken):
        async with beside(endless):
            raise Broken


_ROOM = 6_000
"""Bytes: more than 500 versions of a record take."""


async def test_the_ledger_gives_back_what_other_tables_need_and_says_so_of_each_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("committerd.committer.ledgers._PART_BYTES_MIN", 0)
    ledgers = Ledgers(_ROOM)
    part, other = ledgers.part(_ROOM), ledgers.part(_ROOM)
    loaded = await load(Table(FakeStore(history_of(500))), replace(HOW, part=part, later=False))
    current = current_of(loaded)
    current.keep_within(part)
    assert current.head.ledger.floor == 0
    before = current.head.ledger.bytes
    assert current.older.bytes == before > _ROOM // 2
    other.bound(_ROOM // 2)
    current.keep_within(part)
    assert max(current.head.ledger.bytes, current.older.bytes) <= _ROOM // 2
    assert 0 < current.head.ledger.floor < 500
    floor = current.head.ledger.floor
    for version in range(1, 501):
        settled = await loaded.table.settled(version)
        assert settled is not None
        (uuid,) = (member.uuid for member in settled.members)
        assert not current.head.ledger.rules_out(uuid, version - 1)
        if version > floor:
            assert list(current.head.ledger.known(uuid).maybe) == [version]
    assert current.head.ledger.rules_out("new", floor)
    assert not current.head.ledger.rules_out("new", floor - 1)
