"""Statements of docs/limits.md about what is out of scope that no other test checks: namespaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd_client import staging
from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def test_versions_that_a_namespace_tracks_in_the_tables_folder_are_seen_by_all(scene: Scene, tmp_path: Path) -> None:
    # Imported here: it takes a second, and every process of the tests imports this module.
    from lance.namespace import DirectoryNamespace
    from lance_namespace import DescribeTableRequest

    options = {"root": str(tmp_path), "manifest_enabled": "true", "table_version_tracking_enabled": "true"}
    namespace: Any = DirectoryNamespace(**options)  # type: ignore[no-untyped-call]
    where: Any = {"namespace_client": namespace, "table_id": ["events"]}
    lance.write_dataset(pa.table({"id": [1]}), mode="create", **where)
    described = namespace.describe_table(DescribeTableRequest(id=["events"]))
    assert described.managed_versioning is True
    fragments = write_fragments(pa.table({"id": [2]}), described.location, mode="append")
    staged = tmp_path / "staged.pb"
    staged.write_bytes(staging.append(fragments).SerializeToString())
    assert "COMMITTED version 2" in scene.command("commit", described.location, str(staged))
    assert lance.dataset(**where).to_table()["id"].to_pylist() == [1, 2]
    lance.write_dataset(pa.table({"id": [3]}), mode="append", **where)
    assert sorted(lance.dataset(described.location).to_table()["id"].to_pylist()) == [1, 2, 3]
