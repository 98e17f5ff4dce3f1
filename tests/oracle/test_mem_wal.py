"""Tables with a MemWAL, as pylance 14.0.2 makes them: what is merged, and how far indices have caught up with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

from committerd_common.index_details import MEM_WAL_INDEX, unpack_details
from committerd_common.messages import MemWalIndexDetails, Transaction
from tests.conformance.facts import latest_facts, manifests
from tests.oracle import native
from tests.oracle.native import Opened
from tests.oracle.scenario import commit_staged
from tests.oracle.test_bearable import latest, made_by

pytestmark = pytest.mark.pylance

SHARD = str(UUID(int=7))
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("a", pa.int32()),
    ]
)


def rows(first: int, count: int) -> pa.Table:
    return pa.table([range(first, first + count), range(first, first + count)], schema=SCHEMA)


def merge(table: Any, *, generation: int | None = None) -> None:
    builder = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().conflict_retries(0)
    if generation is not None:
        builder = builder.mark_sstables_as_compacted([CompactedSsTable(SHARD, generation)])
    builder.execute(rows(0, 4))


def append(table: Any) -> None:
    lance.write_dataset(rows(50, 3), table, mode="append")


def make(root: Path, *, sharded: bool = False) -> None:
    lance.write_dataset(rows(0, 8), str(root))
    table = lance.dataset(str(root))
    table.create_scalar_index("id", "BTREE")
    kind: Any = {"bucket_column": "id", "num_buckets": 4, "durable_write": True} if sharded else {"unsharded": True}
    table.initialize_mem_wal(**kind)


CHANGES: tuple[Callable[[Any], object], ...] = (
    lambda table: merge(table, generation=3),
    lambda table: table.optimize.optimize_indices(),
    lambda table: table.create_scalar_index("a", "BTREE"),
    append,
    lambda table: table.update({"a": "a + 1"}, where="id = 5", conflict_retries=0),
    lambda table: merge(table, generation=5),
    lambda table: table.delete("id = 6"),
    lambda table: table.optimize.optimize_indices(),
    lambda table: table.update_config({"a": "b"}),
    lambda table: table.optimize.compact_files(num_threads=1),
    merge,
    lambda table: table.drop_index("a_idx"),
    lambda table: lance.write_dataset(rows(0, 4), table, mode="overwrite"),
)


@pytest.mark.parametrize("sharded", [False, True])
async def test_every_change_does_as_pylance_does(sharded: bool, tmp_path: Path) -> None:
    table = tmp_path / "t"
    make(table, sharded=sharded)
    caught_up = set()
    for number, change in enumerate(CHANGES):
        theirs, ours = tmp_path / f"pylance{number:02}", tmp_path / f"queued.{number:02}"
        native.link_tree(table, theirs)

        def apply(opened: Opened, change: Callable[[Any], object] = change) -> None:
            change(opened.dataset)

        made = native.change(theirs, max(manifests(theirs)), ours, apply)
        outcomes = [await commit_staged(ours, staged) for staged in made.staged]
        assert [outcome.verdict for outcome in outcomes] == made.verdicts
        assert facts(ours) == facts(theirs), number
        caught_up.add(str(details(ours).index_catchup))
        table = ours
    assert len(caught_up) >= 3


def details(root: Path) -> MemWalIndexDetails:
    found = [index for index in latest(root).indices if index.name == MEM_WAL_INDEX]
    return unpack_details(found[0], MemWalIndexDetails) if found else MemWalIndexDetails()


def facts(root: Path) -> dict[str, Any]:
    """The version, without the random uuid of the MemWAL index, but with all that it says."""
    found = latest_facts(root)
    for index in found["indices"]:
        if index["name"] == MEM_WAL_INDEX:
            index.update(uuid="", details=str(details(root)))
    return found


async def test_a_generation_is_merged_once_and_only_where_there_is_a_mem_wal(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    (first,) = made_by(root, lambda table: merge(table, generation=3))
    assert (await commit_staged(root, first.SerializeToString())).verdict == "committed"
    with pytest.raises(OSError, match="Stale SSTable compaction"):
        merge(lance.dataset(str(root)), generation=3)
    (again,) = made_by(root, lambda table: merge(table, generation=4))
    again.update.merged_generations[0].generation = 3
    assert (await commit_staged(root, again.SerializeToString())).reason == "index_details"
    lance.dataset(str(root)).drop_index(MEM_WAL_INDEX)
    with pytest.raises(OSError, match="does not exist on this table"):
        merge(lance.dataset(str(root)), generation=5)
    (plain,) = made_by(root, merge)
    staged = Transaction.FromString(plain.SerializeToString())
    staged.update.merged_generations.extend(first.update.merged_generations)
    assert (await commit_staged(root, staged.SerializeToString())).reason == "index_details"
