"""Manifests that we encode, opened by a real pylance, which commits on top of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from committerd.lance.format.manifest_file import ManifestFile, decode, encode
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import (
    NamingScheme,
    manifest_key,
    transaction_key,
    transaction_name,
)

lance = pytest.importorskip("lance")

pytestmark = pytest.mark.pylance

UUID = "0b1c2d3e-4f50-4617-8283-94a5b6c7d8e9"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Version 1 without an index, version 2 with one; written by pylance."""
    root = tmp_path / "table"
    dataset = lance.write_dataset(rows(0, 20), root)
    dataset.create_scalar_index("id", "BTREE")
    return root


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def read(root: Path, version: int) -> ManifestFile:
    return decode((root / manifest_key(version, NamingScheme.V2)).read_bytes())


def commit(root: Path, manifest: Manifest, indices: Any, *, with_transaction_file: bool = True) -> Transaction:
    """Write version 3, made by an UpdateConfig."""
    config = Transaction.UpdateConfig()
    config.config_updates.update_entries.add(key="k", value="v")
    transaction = Transaction(read_version=2, uuid=UUID, update_config=config)
    ours = Manifest()
    ours.CopyFrom(manifest)
    ours.version = 3
    ours.config["k"] = "v"
    ours.writer_feature_flags |= 8
    ours.transaction_file = transaction_name(2, UUID) if with_transaction_file else ""
    if with_transaction_file:
        path = root / transaction_key(ours.transaction_file)
        path.write_bytes(transaction.SerializeToString())
    body = encode(ours, indices, transaction)
    (root / manifest_key(3, NamingScheme.V2)).write_bytes(body)
    return transaction


def test_sections_that_move_are_found_by_pylance(table: Path) -> None:
    # The transaction of version 1 is at byte 0. In ours the index section is there: a position
    # that was copied into field 23 would make pylance read a length from the wrong place.
    first, second = read(table, 1), read(table, 2)
    assert first.manifest.transaction_section_v14 == 0
    assert second.manifest.index_section == 0
    commit(table, first.manifest, second.indices)
    dataset = lance.dataset(table)
    assert dataset.version == 3
    assert dataset.to_table(filter="id >= 15").num_rows == 5
    assert [index.name for index in dataset.describe_indices()] == ["id_idx"]
    assert dataset.config() == {"k": "v"}
    assert dataset.read_transaction(3).uuid == UUID


@pytest.mark.parametrize("with_transaction_file", [True, False])
def test_pylance_checks_its_commits_against_ours(table: Path, with_transaction_file: bool) -> None:
    stale = lance.dataset(table)
    second = read(table, 2)
    commit(table, second.manifest, second.indices, with_transaction_file=with_transaction_file)
    # From version 2: these read our transaction to decide whether they may pass it.
    stale.delete("id = 3")
    lance.write_dataset(rows(20, 5), table, mode="append")
    dataset = lance.dataset(table)
    assert dataset.version == 5
    assert sorted(dataset.to_table()["id"].to_pylist()) == [0, 1, 2, *range(4, 25)]
    conflicting = lance.LanceOperation.UpdateConfig(config_updates=lance.LanceOperation.UpdateMap({"k": "other"}))
    with pytest.raises(OSError, match="incompatible"):
        lance.LanceDataset.commit(table, conflicting, read_version=2)


def test_what_pylance_commits_on_ours_is_read_again(table: Path) -> None:
    second = read(table, 2)
    ours = commit(table, second.manifest, second.indices)
    assert read(table, 3).transaction == ours
    lance.dataset(table).delete("id < 5")
    after = read(table, 4)
    assert after.manifest.config["k"] == "v"
    assert after.manifest.fragments[0].deletion_file.num_deleted_rows == 5
    assert after.transaction is not None
    assert after.transaction.WhichOneof("operation") == "delete"
    assert list(after.indices) == list(second.indices)
