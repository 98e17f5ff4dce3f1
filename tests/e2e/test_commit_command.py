"""`committerd commit`: one staged file into a dataset, without Kafka and without queue entries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd_client import staging
from committerd_common.messages import Transaction
from harness.lance_table import LanceTable
from tests.committer.test_by_pylance import append
from tests.oracle.feature_tables import OVERLAYS, UNKNOWN, Feature

pytestmark = pytest.mark.pylance


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    return LanceTable(str(tmp_path / "table.lance"))


def _commit(table: LanceTable, *staged: Transaction | bytes, words: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the output for each file, in order; the exit code says whether each is in the table."""
    files = []
    for number, one in enumerate(staged):
        file = Path(table.uri).parent / f"{number}.pb"
        file.write_bytes(one if isinstance(one, bytes) else one.SerializeToString())
        files.append(str(file))
    done = subprocess.run(
        [sys.executable, "-m", "committerd", "commit", table.uri, *files, "--json", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    said: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode == 0) is all(one["outcome"] in ("committed", "duplicate") for one in said), done.stderr
    return said


def test_rows_are_followed_through_a_compaction_and_the_outcome_says_how_many(tmp_path: Path) -> None:
    table = LanceTable(str(tmp_path / "table.lance"))
    lance.write_dataset(pa.table({"id": range(40)}), table.uri, max_rows_per_file=10)
    staged = [staging.delete(table.open(), where).transaction for where in ("id in (3, 17)", "id = 5")]
    done = staging.compact_files(table.open())
    _commit(table, staging.reserve_fragments(table.open(), done.ids_needed).transaction)
    _commit(table, done.rewrite([4]).transaction)
    (followed,) = _commit(table, staged[0], words=("--explain",))
    assert followed["message"] == "2 rows were followed to where version 3 moved them"
    assert any(line.startswith("version 3 rewrite: moved_rows -> rebasable:") for line in followed["checked"])
    table.open().optimize.compact_files(materialize_deletions_threshold=0.0)
    (refused,) = _commit(table, staged[1])
    assert (refused["outcome"], refused["reason"]) == ("retryable", "conflict")
    assert "its writer does not say that rows keep their order" in refused["message"]
    (trusted,) = _commit(table, staged[1], words=("--trust-rewrites", "all"))
    assert trusted["message"].startswith("1 row was followed through versions 3, ")
    assert sorted(table.ids()) == sorted(table.ids_in_4()) == [one for one in range(40) if one not in (3, 5, 17)]


def _told(said: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(one["outcome"], one["version"], one["reason"]) for one in said]


def test_each_outcome_is_told_as_json(table: LanceTable) -> None:
    ids = table.create(3)
    first, second = table.append(read_version=1), table.append()
    unread = table.append()
    unread.read_version = 99
    clone = Transaction(uuid=table.append().uuid, read_version=1)
    clone.clone.ref_path = str(Path(table.uri).parent / "elsewhere.lance")
    said = _commit(table, first, second, first, b"garbage", unread, clone)
    assert _told(said) == [
        ("committed", 2, ""),
        ("committed", 3, ""),
        ("duplicate", 2, "uuid_seen"),
        ("invalid", 0, "record_undecodable"),
        ("invalid", 0, "future_read_version"),
        ("retryable", 0, "table_exists"),
    ]
    assert all(one["message"] for one in said if one["outcome"] != "committed")
    rows = [*ids, *table.brought[first.uuid], *table.brought[second.uuid]]
    assert sorted(table.ids()) == sorted(table.ids_in_4()) == sorted(rows)
    # No queue entries.
    for version in table.versions():
        said_there = table.open().read_transaction(version.number).transaction_properties
        assert not [key for key in (*said_there, *table.metadata(version.number)) if key.startswith("committerd.")]


def test_a_conflict_names_the_version_that_it_can_not_pass(table: LanceTable) -> None:
    table.create()
    late = table.append(read_version=1)
    table.open(1).restore()
    (said,) = _commit(table, late, words=("--explain",))
    assert (said["outcome"], said["reason"], said["conflicting_version"]) == ("incompatible", "conflict", 2)
    assert said["conflicting_operation"] == "restore"
    assert [line for line in said["checked"] if line.startswith("version 2 restore")]


def test_it_makes_a_table_and_is_told_how(table: LanceTable) -> None:
    create, late = table.staged_create(2), table.staged_create()
    options = json.dumps({"enable_stable_row_ids": True, "enable_v2_manifest_paths": False})
    (said,) = _commit(table, create.transaction, words=("--options", options))
    assert (said["outcome"], said["version"]) == ("committed", 1)
    assert Path(table.uri, "_versions", "1.manifest").exists()
    assert table.open().has_stable_row_ids
    assert sorted(table.ids()) == sorted(table.ids_in_4()) == table.brought[create.transaction.uuid]
    (again,) = _commit(table, late.transaction, words=("--create-only",))
    assert (again["outcome"], again["reason"]) == ("retryable", "table_exists")


def test_a_table_mixes_file_versions_if_it_is_told_so(table: LanceTable) -> None:
    table.create()
    fragments = write_fragments(table.open().to_table(), table.uri, mode="append", data_storage_version="2.1")
    newer = staging.append(fragments)
    (refused,) = _commit(table, newer)
    assert (refused["outcome"], refused["reason"]) == ("invalid", "file_version")
    assert "setting commit.mixed_file_versions" in refused["message"]
    assert table.ids() == table.ids_in_4()
    (said,) = _commit(table, newer, words=("--mixed-file-versions", "allow"))
    assert (said["outcome"], said["version"]) == ("committed", 2)
    # Once versions are mixed, no permission is needed.
    (said,) = _commit(table, staging.append(fragments))
    assert said["outcome"] == "committed"
    assert table.ids() == [0, 0, 0]


def test_a_missing_file_is_noticed_when_asked(table: LanceTable) -> None:
    table.create()
    lacking = table.append()
    table.data_file(lacking).unlink()
    (said,) = _commit(table, lacking, words=("--verify-files",))
    assert (said["outcome"], said["reason"]) == ("invalid", "missing_file")
    assert table.version == 1


def test_a_table_that_it_can_not_write_is_an_error(tmp_path: Path) -> None:
    table = LanceTable(str(tmp_path / "table.lance"))
    table.create()
    staged = table.append()
    (manifest,) = Path(table.uri, "_versions").glob("*.manifest")
    manifest.write_bytes(manifest.read_bytes()[:-3])
    (said,) = _commit(table, staged)
    assert said["outcome"] == "error"
    assert said["message"]


def test_the_tables_queue_keys_are_carried_along(table: LanceTable) -> None:
    ids = table.create()
    keys = {"committerd.format": "1", "committerd.app.query": "{}", "owner": "me"}
    table.open().update_metadata(keys)
    staged = table.append()
    (said,) = _commit(table, staged)
    assert said["outcome"] == "committed"
    assert table.metadata() == keys
    assert sorted(table.ids()) == sorted([*ids, *table.brought[staged.uuid]])


@pytest.mark.parametrize("feature", UNKNOWN, ids=lambda feature: str(feature.flag))
def test_pylance_builds_where_knowledge_ends(
    feature: Feature, table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERLAYS, "1")
    root = Path(table.uri)
    feature.make(root)
    version, before = table.version, sorted(table.ids())
    first, second = append(root), append(root, 2000)
    (refused,) = _commit(table, first)
    assert (refused["outcome"], refused["reason"]) == ("error", "feature_flags")
    assert f"it needs feature flag {feature.flag} " in refused["message"]
    words = ("--unknown", "pylance")
    said = _commit(table, first, second, first, words=words)
    assert _told(said) == [
        ("committed", version + 1, ""),
        ("retryable", 0, "conflict"),
        ("duplicate", version + 1, "uuid_seen"),
    ]
    second.read_version = version + 1
    assert _told(_commit(table, second, words=words)) == [("committed", version + 2, "")]
    assert sorted(table.ids()) == [*before, 1000, 1001, 1002, 2000, 2001, 2002]
