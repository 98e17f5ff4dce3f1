"""A transaction is compared with the versions since its read version: with many of them at once where that is possible.

The versions are in memory, so they have no manifests.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import anyio.to_thread
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from committerd.lance.conflicts.footprint import AN_APPEND, Footprint, size_of
from committerd.lance.conflicts.key_filter import key_filter
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.transactions.transaction import footprint, operation_of, staged_files
from committerd.table import versions as table_versions
from committerd.table.budget import Budgets
from committerd.table.case import Case
from committerd.table.fetching import Fetcher, run
from committerd.table.needs import NOTHING_KNOWN, InThread, Need, Versions
from committerd.table.since import Since, since_read
from committerd.table.versions import FOOTPRINT_BYTES_MAX, UNITED_VERSIONS, Committed, History, Table, budgets_of
from committerd_common.messages import Transaction
from committerd_common.own_properties import BLAKE2B_8, BY_KEY, KEY_HASH, MERGE
from tests.lance import samples
from tests.lance.operations import delete, moved, replacement, update
from tests.lance.samples import fragment
from tests.table.scene import ANY, Scene, sources

T = TypeVar("T")

READ = 1


def upsert(*keys: int) -> Transaction:
    """An Update that depends on no rows but those with these keys."""
    rows = Transaction.KeyExistenceFilter(field_ids=[0])
    rows.exact.key_hashes.extend(keys)
    return samples.transaction(
        READ,
        update=Transaction.Update(inserted_rows=rows),
        transaction_properties={KEY_HASH: BLAKE2B_8, MERGE: BY_KEY},
    )


def upserted(*keys: int) -> Footprint:
    return replace(footprint(update(), staged=False), key_filter=key_filter(upsert(*keys).update.inserted_rows))


def deleted(one: int, rows: int = 1) -> Footprint:
    return footprint(delete(fragment(one, deleted=rows)), staged=False)


def committed(version: int, one: Footprint) -> Committed:
    return Committed(version=version, uuid="", footprint=one, bytes=400 + size_of(one))


class Versioned:
    """A table of one version, and versions after it that are known only by their footprints."""

    def __init__(
        self,
        folder: Path,
        theirs: Sequence[Footprint],
        *,
        bytes_max: int = FOOTPRINT_BYTES_MAX,
        budgets: Budgets | None = None,
    ) -> None:
        scene = Scene(folder)
        scene.write_version(samples.manifest(fragment(0), fragment(1), fragment(2), version=READ))
        self.table = Table(scene.store, footprint_bytes_max=bytes_max, budgets=budgets)
        self.learn(theirs)
        self.latest = samples.table(samples.manifest(fragment(0), version=READ + len(theirs)))
        self.needed = Counter[type[Need]]()

    def learn(self, theirs: Sequence[Footprint]) -> None:
        for version, one in enumerate(theirs, READ + 1):
            self.table.learn(committed(version, one))

    async def compared(
        self, ours: Transaction, *, lists_checked: bool = False, formed: Sequence[Footprint] = ()
    ) -> Since:
        """Compare a transaction with all versions. The last ones are formed ahead, in place of those of the table."""
        history = History(self.table)
        for version, one in enumerate(formed, self.latest.version - len(formed) + 1):
            history = history.then(committed(version, one), {})
        ours.read_version = READ
        case = Case(
            history=history,
            latest=self.latest,
            transaction=ours,
            files=staged_files(ours),
            operation=operation_of(ours),
            facts=NOTHING_KNOWN,
            options=replace(ANY, lists_checked=lists_checked, trusts_rewrites=True),
            sources=sources(),
            size=0,
            schema=TableSchema(),
        )
        fetcher = Fetcher(self.table)

        async def fetch(need: Need) -> object:
            self.needed[type(need)] += 1
            return await fetcher(need)

        async def in_thread(call: Callable[[], T], *, size: int) -> T:
            self.needed[InThread] += 1
            return await anyio.to_thread.run_sync(call)

        self.needed.clear()
        since = await run(since_read(case), fetch, work=in_thread)
        assert isinstance(since, Since)
        return since


CHANGED = footprint(update(fragment(9, name="other"), fields_modified=[1]), staged=False)
"""An Update that rewrites a column in place, in the fragment to which rows have moved."""
NO_CONFLICT = deleted(5)
THEIRS = st.sampled_from(
    [
        AN_APPEND,
        *(deleted(one, rows) for one in range(4) for rows in (1, 2)),
        *(upserted(one) for one in range(4)),
        *(footprint(replacement(one, 1), staged=False) for one in (0, 9)),
        CHANGED,
        moved(0, 9),
        moved(9, 8),
    ]
)
OURS = st.sampled_from([upsert(0), upsert(1, 2), *(delete(fragment(one, deleted=1)) for one in range(3))])


@settings(max_examples=300)
@example(delete(fragment(0, deleted=1)), [(moved(0, 9), 1), (CHANGED, 2)], 0)
@given(OURS, st.lists(st.tuples(THEIRS, st.integers(1, 4)), min_size=1, max_size=8), st.integers(0, 2))
async def test_at_once_as_one_by_one(ours: Transaction, theirs: list[tuple[Footprint, int]], ahead: int) -> None:
    """The same conflicts are found, and the same is kept for a rebase."""
    several = [one for footprint, times in theirs for one in [footprint] * times]
    created, formed = several[: len(several) - ahead], several[len(several) - ahead :]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_versions, "UNITED_VERSIONS", 2)
        patch.setattr("committerd.table.since.UNITED_VERSIONS", 2)
        patch.setattr(table_versions, "_UNION_PAYS", 1)
        table = Versioned(Path(folder), several)
        listed = await table.compared(ours, lists_checked=True)
        other = Versioned(Path(folder), [*created, *[NO_CONFLICT] * len(formed)])
        other.table.learn(committed(other.latest.version + 1, NO_CONFLICT))  # it is no part of the history
        found = await other.compared(ours, formed=formed)
    assert [one.version for one in listed.found.checked] == [*range(READ + 1, table.latest.version + 1)]
    assert found.found == replace(listed.found, checked=(), deciding=found.found.deciding)
    assert found.refuses == listed.refuses
    assert found.kept.parts == listed.kept.parts
    assert (found.follows, found.unfollowed) == (listed.follows, listed.unfollowed)


async def often(table: Versioned, *, times: int = 40) -> None:
    """As many transactions are compared as it takes until unions are made."""
    for number in range(times):
        since = await table.compared(upsert(10**6 + number))
        assert since.found.through == table.latest.version


async def test_many_transactions_that_are_planned_on_one_version_take_no_longer_with_many_versions(
    tmp_path: Path,
) -> None:
    """A thousand versions of a hundred upserts each: all but the first and the last few are compared at once."""
    table = Versioned(tmp_path, [upserted(*range(one * 100, one * 100 + 100)) for one in range(1000)])
    await table.compared(upsert(10**6))
    assert table.needed[Versions] >= 1000 // UNITED_VERSIONS
    await often(table)
    await table.compared(upsert(10**6))
    assert table.needed[Versions] <= 6
    assert (await table.compared(delete(fragment(0, deleted=1)))).refuses is None
    assert table.needed[Versions] <= 6
    refused = await table.compared(upsert(50_050))
    assert refused.refuses is not None
    assert refused.refuses.version == READ + 1 + 500
    assert table.needed[Versions] <= 8


async def test_unions_count_as_memory_and_go_with_their_versions(tmp_path: Path) -> None:
    theirs = [upserted(*range(one * 100, one * 100 + 100)) for one in range(200)]
    table = Versioned(tmp_path, theirs)
    before = table.table.footprint_bytes
    await often(table)
    keys = 100 * 8 * UNITED_VERSIONS
    whole = table.latest.version // UNITED_VERSIONS - 1  # without the one that begins before the read version
    assert keys * whole < table.table.footprint_bytes - before < 1.5 * keys * whole
    for version in (65, 96):
        table.table._committed.put(committed(version, upserted(10**6 + version)))
        refused = await table.compared(upsert(10**6 + version))
        assert refused.refuses is not None
        assert refused.refuses.version == version
        await often(table)
    table.table.forget()
    table.learn([upserted(10**6 - 1)] * len(theirs))
    assert table.table.footprint_bytes == sum(committed(1, upserted(0)).bytes for _ in theirs)
    refused = await table.compared(upsert(10**6 - 1))
    assert refused.refuses is not None
    assert refused.refuses.version == READ + 1


async def test_a_union_needs_all_its_versions(tmp_path: Path) -> None:
    theirs = [upserted(one) for one in range(100)]
    table = Versioned(tmp_path, theirs)
    table.table._committed._drop(40)
    for _ in range(100):
        assert table.table.union_after(UNITED_VERSIONS) is None
    table.learn(theirs)
    assert any(table.table.union_after(UNITED_VERSIONS) for _ in range(100))


async def test_unions_take_no_room_from_footprints(tmp_path: Path) -> None:
    theirs = [upserted(*range(one * 100, one * 100 + 100)) for one in range(200)]
    all_bytes = sum(committed(1, one).bytes for one in theirs)
    one_union = 150 * 8 * UNITED_VERSIONS
    budgets = budgets_of(footprint_bytes=10 * all_bytes)
    table = Versioned(tmp_path, theirs, bytes_max=all_bytes + one_union, budgets=budgets)
    await often(table)
    assert all_bytes < table.table.footprint_bytes <= all_bytes + one_union
    assert table.table.union_after(UNITED_VERSIONS) is not None, "others that were made later do not fit"
    more = committed(table.latest.version + 1, upserted(*range(10**6, 10**6 + 100)))
    table.table.learn(replace(more, bytes=one_union))
    assert table.table.footprint_bytes == all_bytes + one_union
    assert all(table.table.known(version) for version in range(READ + 1, more.version + 1))


async def test_unions_take_no_room_from_other_tables(tmp_path: Path) -> None:
    theirs = [upserted(*range(one * 100, one * 100 + 100)) for one in range(200)]
    all_bytes = sum(committed(1, one).bytes for one in theirs)
    one_union = 150 * 8 * UNITED_VERSIONS
    budgets = budgets_of(footprint_bytes=2 * all_bytes + one_union)
    other = Versioned(tmp_path / "other", theirs, bytes_max=10 * all_bytes, budgets=budgets)
    table = Versioned(tmp_path / "table", theirs, bytes_max=10 * all_bytes, budgets=budgets)
    await often(table)
    assert table.table.footprint_bytes > all_bytes
    assert other.table.footprint_bytes == all_bytes
    assert budgets.footprints.bytes == table.table.footprint_bytes + other.table.footprint_bytes


async def test_many_keys_are_compared_in_a_thread_and_the_caches_are_used_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two parts with the versions up to the first union, and once with each of the two unions."""
    table = Versioned(tmp_path, [upserted(one) for one in range(3 * UNITED_VERSIONS - 1)])
    await often(table)
    made, threads = table.table.union_after, set[int]()

    def union_after(after: int) -> object:
        threads.add(threading.get_ident())
        return made(after)

    monkeypatch.setattr(table.table, "union_after", union_after)
    await table.compared(upsert(*range(10**6, 10**6 + 60_000)))
    assert threads == {threading.get_ident()}
    assert table.needed[Versions] == table.needed[InThread] - 2 == 2
