"""Judging a Delete whose rows ten compactions have moved since it was staged, by a committer that has written these.

In process, on a local table without data. Each compaction rewrites the 1,000 fragments of the one before it into 1,000
others. The Delete names the first 1,000, and deletes one row of each of five. Only `judge` is timed, which follows the
rows and rebases the Delete. The first time it reads the deletion file that the Delete brings for each of the five
fragments, and none besides: these reads are counted. Later it has their rows in memory, and this is timed.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import anyio
from pyroaring import BitMap

from bench.bench import Bench
from bench.committerd_side import OneTable
from bench.pool import Pool
from bench.scenarios.judging import CountingStore
from committerd.lance.operations.rebase import FollowedRows
from committerd.table.judge import Judged
from committerd_common.deletion_file import encode_bitmap
from committerd_common.messages import DataFragment, DeletionFile, Transaction
from committerd_common.own_properties import IN_ORDER, ROWS
from committerd_common.paths import deletion_key

NAME = "following"
CASE = "a delete over 10 compactions"
REWRITES = 10
DELETED = 5
"""Fragments of which the Delete deletes a row."""
_ROWS = 3


def run(bench: Bench) -> None:
    """Commit the compactions, then judge the Delete again and again."""
    anyio.run(_run, bench, bench.new_table())


async def _run(bench: Bench, uri: str) -> None:
    plan, store = bench.plan, CountingStore(Path(uri), durable=False)
    one = OneTable(store)
    await one.open()
    first = [_fragment(bench.pool, id) for id in range(1, plan.followed_fragments + 1)]
    await one.commit(_transaction(1, append=Transaction.Append(fragments=first)))
    assert one.latest is not None
    read = one.latest.version
    old = list(one.latest.fragments.of(range(1, 2 * plan.followed_fragments)))[-plan.followed_fragments :]
    staged = await _delete(store, read, old[:DELETED])
    moved: list[int] = []
    for _ in range(REWRITES):
        base = one.latest.outline.max_fragment_id
        new = [_fragment(bench.pool, base + 1 + place) for place in range(len(old))]
        await one.commit(_transaction(one.latest.version, reserve_fragments={"num_fragments": len(new)}))
        groups = [
            Transaction.Rewrite.RewriteGroup(old_fragments=[was], new_fragments=[now])
            for was, now in zip(old, new, strict=True)
        ]
        rewrite = _transaction(one.latest.version, rewrite=Transaction.Rewrite(groups=groups))
        rewrite.transaction_properties[ROWS] = IN_ORDER
        await one.commit(rewrite)
        moved.append(one.latest.version)
        old = new
    store.reads = 0
    verdict = await one.judged(staged)
    bench.results.note(NAME, CASE, "committerd", reads=(float(store.reads), "reads"))
    for _ in range(plan.judged_times):
        staged.uuid = str(uuid.uuid4())
        began = time.perf_counter()
        verdict = await one.judged(staged)
        bench.results.note(NAME, CASE, "committerd", seconds=(time.perf_counter() - began, "s"))
    assert isinstance(verdict, Judged), f"refused: {verdict}"
    assert verdict.followed == FollowedRows(rows=DELETED, versions=tuple(moved))
    told = [bench.results.value(NAME, CASE, "committerd", name) or 0 for name in ("seconds", "reads")]
    bench.tell(f"{NAME}: {CASE} is judged in {told[0] * 1000:.2f} ms; the first time reads {told[1]:.0f} files")


def _fragment(pool: Pool, id: int) -> DataFragment:
    made = DataFragment()
    made.ParseFromString(pool.message(0))
    made.id, made.physical_rows = id, _ROWS
    made.files[0].path = f"{id}.lance"
    return made


def _transaction(read_version: int, **operation: object) -> Transaction:
    return Transaction(read_version=read_version, uuid=str(uuid.uuid4()), **operation)  # type: ignore[arg-type]


async def _delete(store: CountingStore, read_version: int, fragments: list[DataFragment]) -> Transaction:
    staged = _transaction(read_version, delete=Transaction.Delete(predicate="true"))
    for number, fragment in enumerate(fragments, start=1):
        changed = staged.delete.updated_fragments.add()
        changed.CopyFrom(fragment)
        file = DeletionFile(file_type=DeletionFile.BITMAP, read_version=read_version, id=number, num_deleted_rows=1)
        changed.deletion_file.CopyFrom(file)
        await store.put(deletion_key(fragment.id, file, staged=True), encode_bitmap(BitMap([1])))
    return staged
