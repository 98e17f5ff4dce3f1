"""Which entries of a table's own texts make pylance 14.0.2 use a feature that committerd does not support.

Those are refused; after all others pylance works on the table, and committerd goes on.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import lance
import pyarrow as pa
import pytest

from committerd.errors import UnsupportedTable
from committerd.lance.format.support import require_supported
from committerd_common.messages import Transaction
from tests.oracle.scenario import commit_staged
from tests.oracle.test_bearable import latest, made_by, put, staged_at

pytestmark = pytest.mark.pylance

CONFIG, SCHEMA_METADATA, FIELD_METADATA = "config", "schema metadata", "field metadata"


class Entry(NamedTuple):
    where: str
    key: str
    value: str
    refused: bool = False


ENTRIES = [
    Entry(SCHEMA_METADATA, "lance.blob.managed", "true", refused=True),
    Entry(SCHEMA_METADATA, "lance.blob.managed", "yes", refused=True),
    Entry(SCHEMA_METADATA, "lance.blob.managed", "false"),
    Entry(SCHEMA_METADATA, "lance.seed.id", "1"),
    Entry(CONFIG, "lance.blob.managed", "true"),
    Entry(CONFIG, "lance.row_lineage.spill", "true", refused=True),
    Entry(CONFIG, "lance.row_lineage.spill", "True", refused=True),
    Entry(CONFIG, "lance.row_lineage.spill", "1"),
    Entry(CONFIG, "lance.row_lineage.inline_max_bytes", "0"),
    Entry(CONFIG, "lance.row_ids.range_segments", "true"),
    Entry(CONFIG, "lance.auto_cleanup.interval", "1000"),
    Entry(CONFIG, "lance.compaction.defer_index_remap", "true"),
    Entry(CONFIG, "lance.compaction.index_remap_mode", "compact"),
    Entry(CONFIG, "lance.compaction.compaction_mode", "reencode"),
    Entry(CONFIG, "lance.compaction.data_storage_version", "2.2"),
    Entry(FIELD_METADATA, "lance-schema:unenforced-primary-key", "true"),
    Entry(FIELD_METADATA, "lance-schema:unenforced-clustering-key:position", "1"),
    Entry(FIELD_METADATA, "lance-encoding:compression", "zstd"),
]
"""The keys that Lance 14.0.2 reads, with values that ask for something."""


def make(root: Path, *, stable: bool) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("t", pa.utf8())])
    for start in (0, 100, 200):
        rows = pa.Table.from_pylist([{"id": one, "t": f"t{one}"} for one in range(start, start + 100)], schema=schema)
        lance.write_dataset(
            rows, str(root), mode="append" if start else "create", data_storage_version="2.1",
            enable_stable_row_ids=stable,
        )  # fmt: skip
    lance.dataset(str(root)).create_scalar_index("id", "BTREE")


def setting(root: Path, entry: Entry) -> Transaction:
    staged = staged_at(root)
    changes = staged.update_config
    updates = {
        CONFIG: lambda: changes.config_updates,
        SCHEMA_METADATA: lambda: changes.schema_metadata_updates,
        FIELD_METADATA: lambda: changes.field_metadata_updates[0],
    }[entry.where]()
    updates.update_entries.add(key=entry.key, value=entry.value)
    return staged


def work(root: Path) -> None:
    """All that writers and maintenance do, by pylance."""
    rows = lance.dataset(str(root)).to_table().slice(0, 3)
    steps = (
        lambda table: table.delete("id % 3 = 0"),
        lambda table: table.update({"t": "'u'"}, where="id % 7 = 1"),
        lambda table: table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows),
        lambda table: lance.write_dataset(rows, table, mode="append"),
        lambda table: table.optimize.compact_files(target_rows_per_fragment=10_000),
        lambda table: table.optimize.optimize_indices(),
    )
    if "lance.row_lineage.spill" in lance.dataset(str(root)).config():
        lance.dataset(str(root)).update_config({"lance.row_lineage.inline_max_bytes": "0"})
    for step in steps:
        try:
            step(lance.dataset(str(root)))
        except (OSError, ValueError):  # pylance can't work with such a value
            continue


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.where} {entry.key} = {entry.value}")
async def test_an_entry_that_ends_committerds_work_is_refused(entry: Entry, stable: bool, tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root, stable=stable)
    staged = setting(root, entry)
    outcome = await commit_staged(root, staged.SerializeToString())
    assert (outcome.verdict, outcome.reason) == (("error", "table_feature") if entry.refused else ("committed", ""))
    if entry.refused:
        put(root, staged)
    work(root)
    # A table whose rows have no ids has no lineage, and with another value than these pylance can't commit at all.
    harmless = entry.value == "yes" or (entry.where == CONFIG and not stable)
    with pytest.raises(UnsupportedTable) if entry.refused and not harmless else nullcontext():
        require_supported(latest(root))


async def test_a_table_is_served_again_when_pylance_has_put_row_ids_back_into_the_manifest(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root, stable=True)
    lance.dataset(str(root)).update_config({"lance.row_lineage.spill": "true"})
    work(root)
    with pytest.raises(UnsupportedTable, match="only columns of data files say which ids and versions rows have"):
        require_supported(latest(root))
    lance.dataset(str(root)).delete_config_keys(["lance.row_lineage.spill"])
    lance.dataset(str(root)).delete("id % 5 = 1")
    lance.dataset(str(root)).optimize.compact_files(materialize_deletions_threshold=0.0)
    (staged,) = made_by(root, lambda table: table.delete("id = 2"))
    assert (await commit_staged(root, staged.SerializeToString())).verdict == "committed"


async def test_every_way_to_set_one_is_seen(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root, stable=False)
    manifest = latest(root).manifest
    rows = lance.dataset(str(root)).to_table().replace_schema_metadata({"lance.blob.managed": "true"})
    (by_file,) = made_by(root, lambda table: lance.write_dataset(rows.slice(0, 3), table, mode="overwrite"))
    by_file.overwrite.schema_metadata.clear()
    overwrite = staged_at(root)
    overwrite.overwrite.schema.extend(manifest.fields)
    overwrite.overwrite.config_upsert_values["lance.row_lineage.spill"] = "true"
    merge = staged_at(root)
    merge.merge.schema.extend(manifest.fields)
    merge.merge.fragments.extend(manifest.fragments)
    merge.merge.schema_metadata["lance.blob.managed"] = b"true"
    old = staged_at(root)
    old.update_config.schema_metadata["lance.blob.managed"] = "true"
    older = staged_at(root)
    older.update_config.upsert_values["lance.row_lineage.spill"] = "true"
    for staged in (by_file, overwrite, merge, old, older):
        outcome = await commit_staged(root, staged.SerializeToString())
        assert (outcome.verdict, outcome.reason) == ("error", "table_feature"), staged.WhichOneof("operation")
