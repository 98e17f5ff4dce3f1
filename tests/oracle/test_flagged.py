"""Tables with a feature that pylance 4.0.0 does not know: every operation, by pylance 14.0.2 and by us in turn.

Both must make the same version, with the same feature flags; pylance finds our version valid, and writes the next one.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from lance.dataset import Index
from lance.fragment import write_fragments

from committerd.lance.format.feature_flags import CARRIED, FeatureFlag
from committerd.lance.format.manifest_file import decode
from committerd.lance.operations.permissions import Permissions
from tests.conformance.facts import latest_facts, manifests
from tests.oracle import changes, differences, native, scenario
from tests.oracle.native import Opened
from tests.oracle.scenario import Report, commit_staged
from tests.oracle.tables import COLUMNS, rows
from tests.producers.old_pylance import old_pylance

pytestmark = pytest.mark.pylance

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), *COLUMNS])


class Feature(NamedTuple):
    flag: FeatureFlag
    make: Callable[[Path, bool], None]
    """Makes the table with pylance; the second argument says whether its rows have stable ids."""
    stable: bool = False


def some_rows(first: int, count: int = 8) -> Any:
    return rows(SCHEMA, list(range(first, first + count)), random.Random(first))


def plain(root: Path, stable: bool, version: Any = "2.0") -> None:
    for first in (0, 8, 16):
        lance.write_dataset(
            some_rows(first), str(root), mode="append" if first else "create", data_storage_version=version,
            enable_stable_row_ids=stable,
        )  # fmt: skip


def mixed_by_append(root: Path, stable: bool) -> None:
    plain(root, stable)
    lance.write_dataset(some_rows(24), str(root), mode="append", data_storage_version="2.2")


def mixed_by_columns(root: Path, stable: bool) -> None:
    """Fragments with files of two versions each."""
    plain(root, stable)
    source = some_rows(4).select(["id", "a", "v"])
    lance.dataset(str(root)).merge_insert("id").when_matched_update_all().data_storage_version("2.1").execute(source)


def covering(root: Path, stable: bool) -> None:
    """An index that says it holds the values of another column too."""
    plain(root, stable, "2.1")
    dataset: Any = lance.dataset(str(root))
    dataset.create_scalar_index("a", "BTREE", name="covering")
    (made,) = decode(manifests(root)[dataset.version].read_bytes()).indices
    covered: Any = {0, 1, 2}
    described = Index(
        uuid=str(UUID(bytes=made.uuid.uuid)), name=made.name, fields=[*made.fields, 2], covering_fields=[2],
        dataset_version=made.dataset_version, fragment_ids=covered, index_version=made.index_version,
        index_details=(made.index_details.type_url, made.index_details.value),
    )  # fmt: skip
    operation = lance.LanceOperation.CreateIndex(new_indices=[described], removed_indices=[])
    lance.LanceDataset.commit(str(root), operation, read_version=dataset.version)


FEATURES = {
    "mixed by append": Feature(FeatureFlag.MIXED_FILE_VERSIONS, mixed_by_append),
    "mixed by columns": Feature(FeatureFlag.MIXED_FILE_VERSIONS, mixed_by_columns, stable=True),
    "covering": Feature(FeatureFlag.COVERED_INDICES, covering),
    "covering, stable": Feature(FeatureFlag.COVERED_INDICES, covering, stable=True),
}
OPERATIONS: tuple[changes.Change, ...] = (
    changes.create_index,
    changes.append,
    changes.append_other_files,
    changes.delete,
    changes.update,
    changes.upsert,
    changes.upsert_other_files,
    changes.update_matched,
    changes.replace_data,
    changes.delete_matched,
    changes.add_columns,
    changes.alter_columns,
    changes.drop_columns,
    changes.create_index,
    changes.compact,
    changes.optimize_indices,
    changes.compact_to_other_files,
    changes.drop_index,
    changes.add_bases,
    changes.append_several,
    changes.update_config,
    changes.update_metadata,
    changes.update_schema_metadata,
    changes.update_field_metadata,
    changes.restore,
    changes.delete,
    changes.overwrite,
    changes.append,
    changes.restore,
)
COMMITTED = frozenset({
    "append", "create_index", "data_replacement", "delete", "merge", "overwrite", "project", "reserve_fragments",
    "restore", "rewrite", "update", "update_bases", "update_config",
})  # fmt: skip
"""The operations that each run must commit."""


_EACH_KIND = {"mixed by columns", "covering"}
"""The features that `make test` tries: one for each flag."""
assert FEATURES.keys() >= _EACH_KIND


@pytest.mark.parametrize(
    "feature",
    [
        pytest.param(one, id=name, marks=() if name in _EACH_KIND else pytest.mark.long)
        for name, one in FEATURES.items()
    ],
)
async def test_every_operation_does_as_pylance_does(feature: Feature, tmp_path: Path) -> None:
    table = tmp_path / "t"
    feature.make(table, feature.stable)
    facts = latest_facts(table)
    assert facts["reader_feature_flags"] & facts["writer_feature_flags"] & feature.flag
    report, rng = Report(0), random.Random(1)
    committed: set[str] = set()
    for number, change in enumerate(OPERATIONS):
        place = tmp_path / str(number)
        place.mkdir()
        theirs, ours = native.link_tree(table, place / "pylance"), place / "queued.."
        draw = rng.getrandbits(64)

        def apply(opened: Opened, change: changes.Change = change, draw: int = draw) -> None:
            change(opened, random.Random(draw))

        made = native.change(theirs, max(manifests(table)), ours, apply)
        if not made.staged:  # impossible with these columns
            continue
        case = await scenario.by_queue(made, theirs=theirs, ours=ours)
        outcomes = case.outcomes
        report.lines.append(f"{change.__name__}: {[(one.operation, one.verdict, one.message) for one in outcomes]}")
        if scenario.compare(case, report) & {differences.UNREADABLE}:
            continue
        committed |= {one.operation for one in outcomes if one.verdict == "committed"}
        opened: Any = lance.dataset(str(ours))
        opened.validate()
        table = ours
    assert committed >= COMMITTED, sorted(COMMITTED - committed)
    if feature.flag & CARRIED:
        facts = latest_facts(table)
        assert facts["reader_feature_flags"] & facts["writer_feature_flags"] & feature.flag


def append_other(opened: Opened) -> None:
    lance.write_dataset(some_rows(24), opened.dataset, mode="append", data_storage_version="2.2")


def update_columns(opened: Opened) -> None:
    builder = opened.dataset.merge_insert("id").when_matched_update_all().data_storage_version("2.1")
    builder.conflict_retries(0).execute(some_rows(4).select(["id", "a", "v"]))


def compact(opened: Opened) -> None:
    opened.dataset.optimize.compact_files(num_threads=1, data_storage_version="2.2")


def overwrite(opened: Opened) -> None:
    fragments = [
        fragment
        for version in ("2.1", "2.0")
        for fragment in write_fragments(some_rows(0), opened.dataset, mode="append", data_storage_version=version)
    ]
    operation = lance.LanceOperation.Overwrite(SCHEMA, fragments)
    lance.LanceDataset.commit(opened.uri, operation, read_version=opened.dataset.version, commit_lock=opened.lock)


@pytest.mark.parametrize("apply", [append_other, update_columns, compact, overwrite])
async def test_a_table_gets_its_first_files_of_another_version_if_the_operator_allows_it(
    apply: Callable[[Opened], None], tmp_path: Path
) -> None:
    root, ours = tmp_path / "pylance", tmp_path / "queued."
    plain(root, False)
    made = native.change(root, max(manifests(root)), ours, apply)
    refusing = native.link_tree(ours, tmp_path / "refused")
    *before, mixing = made.staged
    for staged in before:  # a compaction reserves fragment ids first
        assert (await commit_staged(refusing, staged, Permissions())).verdict == "committed"
    refused = await commit_staged(refusing, mixing, Permissions())
    assert (refused.reason, "commit.mixed_file_versions" in refused.message) == ("file_version", True)
    assert read_by_4(refusing, "lance.write_dataset(d.take([0]), sys.argv[1], mode='append')") == "25"
    assert not latest_facts(refusing)["reader_feature_flags"]
    case = await scenario.by_queue(made, theirs=root, ours=ours)
    assert scenario.compare(case, Report(0)) == set()
    assert latest_facts(ours)["reader_feature_flags"] & FeatureFlag.MIXED_FILE_VERSIONS
    for next_written in (root, ours):
        lance.dataset(str(next_written)).delete("id = 1")
    assert lance.dataset(str(ours)).to_table() == lance.dataset(str(root)).to_table()


async def test_pylance_4_reads_a_table_whose_files_are_all_of_a_new_version(tmp_path: Path) -> None:
    root = tmp_path / "t"
    plain(root, False)

    def apply(opened: Opened) -> None:
        lance.write_dataset(some_rows(0), opened.dataset, mode="overwrite", data_storage_version="2.1")

    made = native.change(root, max(manifests(root)), tmp_path / "ours", apply)
    assert (await commit_staged(tmp_path / "ours", made.staged[0])).verdict == "committed"
    assert latest_facts(tmp_path / "ours")["data_format"] == latest_facts(root)["data_format"]
    assert read_by_4(tmp_path / "ours") == "8"


async def test_pylance_4_refuses_our_version_as_it_refuses_pylances_own(tmp_path: Path) -> None:
    root = tmp_path / "t"
    mixed_by_append(root, False)
    told = [read_by_4(root)]
    made = native.change(root, max(manifests(root)), tmp_path / "ours", lambda opened: opened.dataset.delete("id = 1"))
    assert (await commit_staged(tmp_path / "ours", made.staged[0], Permissions())).verdict == "committed"
    told.append(read_by_4(tmp_path / "ours"))
    assert all("cannot be read by this version of Lance" in one for one in told), told


async def test_pylance_4_reads_a_table_again_without_its_covering_fields(tmp_path: Path) -> None:
    root = tmp_path / "t"
    covering(root, False)
    assert "cannot be read by this version of Lance" in read_by_4(root)
    made = native.change(
        root, max(manifests(root)), tmp_path / "ours", lambda opened: opened.dataset.drop_index("covering")
    )
    assert (await commit_staged(tmp_path / "ours", made.staged[0], Permissions())).verdict == "committed"
    assert read_by_4(tmp_path / "ours") == "24"


def read_by_4(root: Path, then: str = "d") -> str:
    """The number of rows that pylance 4.0.0 reads after it has done something with the dataset `d`; or its error."""
    count = "print(lance.dataset(sys.argv[1]).to_table().num_rows)"
    program = f"import sys, lance; d = lance.dataset(sys.argv[1]); {then}; {count}"
    ran = subprocess.run(
        [old_pylance(), "-c", program, str(root)], capture_output=True, text=True, timeout=120, check=False
    )
    return (ran.stdout or ran.stderr).strip()
