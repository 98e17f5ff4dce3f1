"""What no reader can bear is refused, and what every reader bears is committed.

Each case stages a transaction for a real table. Both versions of pylance then look at the table. If the transaction was
refused, they look at a table into which its version was put all the same, and one of them must fail on it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from committerd.lance.format.manifest_file import ManifestFile, decode, encode
from committerd.lance.transactions.build import build
from committerd.lance.transactions.transaction import normalised
from committerd.lance.versions.draft import BuildInput
from committerd_common.messages import DataFile, Field, IndexMetadata, Manifest, Transaction
from committerd_common.paths import NamingScheme, index_prefix, manifest_key
from tests.conformance.facts import manifests
from tests.oracle import looking, native
from tests.oracle.differences import Outcome
from tests.oracle.scenario import commit_staged
from tests.producers.old_pylance import old_pylance

pytestmark = pytest.mark.pylance

_STRUCT = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.utf8())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a", pa.int32()),
        pa.field("t", pa.utf8()),
        pa.field("p", _STRUCT),
        pa.field("l", pa.list_(pa.utf8())),
    ]
)
ID, A, T, P, X, Y, L, ITEM = range(8)
"""The field ids of the schema."""


def rows(ids: Sequence[int]) -> pa.Table:
    listed = [
        {"id": one, "a": one * 2, "t": f"t{one}", "p": {"x": one, "y": f"y{one}"}, "l": [f"l{one % 3}", f"m{one}"]}
        for one in ids
    ]
    return pa.Table.from_pylist(listed, schema=SCHEMA)


def make(root: Path, version: Any = "2.1", *, stable: bool = False, indices: bool = True) -> None:
    """A table of two fragments."""
    lance.write_dataset(rows(range(8)), str(root), data_storage_version=version, enable_stable_row_ids=stable)
    lance.write_dataset(rows(range(8, 16)), str(root), mode="append")
    if indices:
        kinds: dict[str, Any] = {"a": "BTREE", "l": "LABEL_LIST", "t": "BITMAP"}
        for column, kind in kinds.items():
            lance.dataset(str(root)).create_scalar_index(column, kind)


TABLES: dict[str, dict[str, Any]] = {
    "2.0": {"version": "2.0"},
    "2.1": {},
    "2.2": {"version": "2.2"},
    "stable": {"stable": True},
    "bare": {"indices": False},
}


def latest(root: Path) -> ManifestFile:
    found = manifests(root)
    return decode(found[max(found)].read_bytes())


def made_by(root: Path, change: Callable[[Any], object]) -> list[Transaction]:
    """The transactions that pylance commits for a change, and their files, which the table gets."""
    before = max(manifests(root))
    copy = native.link_tree(root, root.with_name(f"{root.name}-native"))
    change(lance.dataset(str(copy)))
    staged = []
    for version, path in sorted(manifests(copy).items()):
        if version > before:
            made = Transaction()
            made.CopyFrom(decode(path.read_bytes()).transaction or Transaction())
            made.uuid = str(uuid.uuid4())
            staged.append(made)
    for path in copy.rglob("*"):
        to = root / path.relative_to(copy)
        if path.is_file() and not to.exists() and path.parent.name not in ("_versions", "_transactions"):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
    shutil.rmtree(copy)
    return staged


def appended(root: Path, ids: Sequence[int] = range(100, 105)) -> Transaction:
    (staged,) = made_by(root, lambda table: lance.write_dataset(rows(ids), table, mode="append"))
    return staged


def staged_at(root: Path, **operation: Any) -> Transaction:
    return Transaction(read_version=max(manifests(root)), uuid=str(uuid.uuid4()), **operation)


# Appends


def file_of(staged: Transaction) -> DataFile:
    return staged.append.fragments[0].files[0]


def place(file: DataFile, field: int) -> int:
    return list(file.fields).index(field)


def with_column(field: int, column: int) -> Callable[[Path], Transaction]:
    """An Append whose file has the field in this column."""

    def stage(root: Path) -> Transaction:
        staged = appended(root)
        file = file_of(staged)
        file.column_indices[place(file, field)] = column
        return staged

    return stage


def with_swapped_columns(root: Path) -> Transaction:
    staged = appended(root)
    file = file_of(staged)
    first, second, columns = place(file, A), place(file, T), file.column_indices
    columns[first], columns[second] = columns[second], columns[first]
    return staged


def with_rows(rows: int) -> Callable[[Path], Transaction]:
    def stage(root: Path) -> Transaction:
        staged = appended(root)
        staged.append.fragments[0].physical_rows = rows
        return staged

    return stage


def without(*fields: int) -> Callable[[Path], Transaction]:
    """An Append whose file lacks these fields."""

    def stage(root: Path) -> Transaction:
        staged = appended(root)
        _leave_out(file_of(staged), fields)
        return staged

    return stage


def _leave_out(file: DataFile, fields: Sequence[int]) -> None:
    kept = [pair for pair in zip(file.fields, file.column_indices, strict=True) if pair[0] not in fields]
    file.fields[:] = [field for field, _ in kept]
    file.column_indices[:] = [column for _, column in kept]


def with_column_for_struct(root: Path) -> Transaction:
    staged = appended(root)
    file_of(staged).fields.append(P)
    file_of(staged).column_indices.append(9)
    return staged


# Schemas


def projecting(change: Callable[[dict[int, Field]], object]) -> Callable[[Path], Transaction]:
    def stage(root: Path) -> Transaction:
        staged = staged_at(root)
        staged.project.schema.extend(latest(root).manifest.fields)
        change({field.id: field for field in staged.project.schema})
        return staged

    return stage


def with_new_column(*, nullable: bool) -> Callable[[Path], Transaction]:
    def stage(root: Path) -> Transaction:
        staged = projecting(lambda _: None)(root)
        staged.project.schema.add(id=88, name="n", parent_id=-1, logical_type="int32", nullable=nullable)
        return staged

    return stage


def merging(change: Callable[[dict[int, Field]], object], *, nullable: bool = True) -> Callable[[Path], Transaction]:
    """A Merge that adds a column without data."""

    def stage(root: Path) -> Transaction:
        staged, manifest = staged_at(root), latest(root).manifest
        staged.merge.schema.extend(manifest.fields)
        staged.merge.fragments.extend(manifest.fragments)
        change({field.id: field for field in staged.merge.schema})
        staged.merge.schema.add(id=88, name="n", parent_id=-1, logical_type="int32", nullable=nullable)
        return staged

    return stage


def overwriting(*fields: int) -> Callable[[Path], Transaction]:
    """An Overwrite whose file lacks these fields."""

    def stage(root: Path) -> Transaction:
        (staged,) = made_by(root, lambda table: lance.write_dataset(rows(range(5)), table, mode="overwrite"))
        _leave_out(staged.overwrite.fragments[0].files[0], fields)
        return staged

    return stage


def marking(field: int, **metadata: str) -> Callable[[Path], Transaction]:
    def stage(root: Path) -> Transaction:
        staged = staged_at(root)
        for key, value in metadata.items():
            entries = staged.update_config.field_metadata_updates[field].update_entries
            entries.add(key=key.replace("__", ":").replace("_", "-"), value=value)
        return staged

    return stage


# Changes in place


def deleting_with(change: Callable[[Path, Transaction], object]) -> Callable[[Path], Transaction]:
    def stage(root: Path) -> Transaction:
        (staged,) = made_by(root, lambda table: table.delete("id = 1"))
        change(root, staged)
        return staged

    return stage


def other_file(root: Path, staged: Transaction) -> None:
    staged.delete.updated_fragments[0].files[0].CopyFrom(file_of(appended(root)))


def fewer_fields(root: Path, staged: Transaction) -> None:
    _leave_out(staged.delete.updated_fragments[0].files[0], [ID])


def updating(column: str, value: Any, *, names: bool = True) -> Callable[[Path], Transaction]:
    """An Update that rewrites a column of the first fragment in place; `names`: it says which fields it modifies."""

    def change(table: Any) -> None:
        source = pa.Table.from_pylist(
            [{"id": 1, column: value}], schema=pa.schema([SCHEMA.field("id"), SCHEMA.field(column)])
        )
        updated, modified = table.get_fragment(0).update_columns(source, left_on="id", right_on="id")
        operation = lance.LanceOperation.Update(updated_fragments=[updated], fields_modified=modified if names else [])
        lance.LanceDataset.commit(table.uri, operation, read_version=table.version)

    def stage(root: Path) -> Transaction:
        (staged,) = made_by(root, change)
        return staged

    return stage


def replacing(field: int, *, column: int | None = None, rows: int = 8) -> Callable[[Path], Transaction]:
    """A DataReplacement of the field in the first fragment, of 8 rows; `column`: that of its file, if not the right
    one.
    """

    def stage(root: Path) -> Transaction:
        file = file_of(appended(root, range(rows)))
        right = file.column_indices[place(file, field)]
        staged = staged_at(root)
        new = staged.data_replacement.replacements.add(fragment_id=0).new_file
        new.CopyFrom(file)
        new.fields[:], new.column_indices[:] = [field], [right if column is None else column]
        return staged

    return stage


# Indices


def indexing(change: Callable[[IndexMetadata], object]) -> Callable[[Path], Transaction]:
    """A CreateIndex on column `id`."""

    def stage(root: Path) -> Transaction:
        (staged,) = made_by(root, lambda table: table.create_scalar_index("id", "BTREE"))
        change(staged.create_index.new_indices[0])
        return staged

    return stage


def before(stage: Callable[[Path], Transaction]) -> Callable[[Path], Transaction]:
    """Staged as if read one version before."""

    def staged_before(root: Path) -> Transaction:
        staged = stage(root)
        staged.read_version -= 1
        return staged

    return staged_before


def on(*fields: int) -> Callable[[IndexMetadata], None]:
    def change(index: IndexMetadata) -> None:
        index.fields[:] = fields

    return change


def covering(*fragments: int) -> Callable[[IndexMetadata], None]:
    def change(index: IndexMetadata) -> None:
        index.fragment_bitmap = bytes(BitMap(fragments).serialize())

    return change


def without_files(*, there: bool) -> Callable[[Path], Transaction]:
    def stage(root: Path) -> Transaction:
        staged = indexing(lambda index: index.ClearField("files"))(root)
        if not there:
            shutil.rmtree(root / index_prefix(staged.create_index.new_indices[0].uuid.uuid))
        return staged

    return stage


def rewriting(change: Callable[[Path, Transaction.Rewrite], object]) -> Callable[[Path], Transaction]:
    """A compaction of both fragments."""

    def stage(root: Path) -> Transaction:
        *reserved, staged = made_by(root, lambda table: table.optimize.compact_files(target_rows_per_fragment=1000))
        for one in reserved:
            put(root, one)
        change(root, staged.rewrite)
        return staged

    return stage


def forget_index_files(root: Path, rewrite: Transaction.Rewrite) -> None:
    for one in rewrite.rewritten_indices:
        one.ClearField("new_index_files")


def remove_index_files(root: Path, rewrite: Transaction.Rewrite) -> None:
    forget_index_files(root, rewrite)
    for one in rewrite.rewritten_indices:
        shutil.rmtree(root / index_prefix(one.new_id.uuid))


class Case(NamedTuple):
    table: str
    stage: Callable[[Path], Transaction]
    refused: str = ""
    """The reason of the refusal; empty = it is committed."""
    works: bool = False
    """Whether pylance also appends, optimizes the indices and compacts the table."""


def at_work(stage: Callable[[Path], Transaction], refused: str = "", *, table: str = "bare") -> Case:
    return Case(table, stage, refused, works=True)


def nothing(*_: object) -> None:
    return


CASES: dict[str, Case] = {
    **{
        f"{name} of format {version}": Case(version, stage, refused)
        for version in ("2.0", "2.1", "2.2")
        for name, stage, refused in (
            ("an append", appended, ""),
            ("no column for a leaf", with_column(A, -1), "column_indices"),
            ("a column twice", with_column(A, 0), "column_indices"),
            ("a column that is not there", with_column(A, 99), "column_indices"),
            ("columns of other types", with_swapped_columns, "column_type"),
            ("more rows than the file has", with_rows(7), "physical_rows_too_many"),
            ("no data of a nullable column", without(A), ""),
            ("no data of a required column", without(ID), "required_field"),
            ("no data of a required field of a struct", without(X), "required_field"),
        )
    },
    "a column for a struct": Case("2.1", with_column_for_struct, "column_indices"),
    "no column for a struct of format 2.0": Case("2.0", without(L), "column_indices"),
    "a required column without data in a table with row ids": Case("stable", without(ID), "required_field"),
    "an overwrite": Case("2.1", overwriting()),
    "an overwrite without data of a required column": Case("2.1", overwriting(ID), "required_field"),
    "a project": Case("2.1", projecting(lambda fields: setattr(fields[A], "name", "b"))),
    "a project to another type": Case(
        "2.1", projecting(lambda fields: setattr(fields[A], "logical_type", "int64")), "field_type"
    ),
    "a project to another type of elements": Case(
        "2.1", projecting(lambda fields: setattr(fields[ITEM], "logical_type", "large_string")), "field_type"
    ),
    "a project to a blob": Case(
        "2.1", projecting(lambda fields: fields[A].metadata.update({"lance-encoding:blob": b"true"})), "field_type"
    ),
    "metadata that make a blob": Case("2.1", marking(A, lance_encoding__blob="true"), "field_type"),
    "metadata that make a packed struct": Case("2.1", marking(P, lance_encoding__packed="true"), "field_type"),
    "metadata of a field": Case("2.1", marking(A, lance_encoding__compression="zstd")),
    "a project with a new nullable column": Case("2.1", with_new_column(nullable=True)),
    "a project with a new required column": Case("2.1", with_new_column(nullable=False), "required_field"),
    "a project to a required column": Case("2.1", projecting(lambda fields: setattr(fields[A], "nullable", False))),
    "a merge with a new nullable column": Case("2.1", merging(nothing)),
    "a merge with a new required column": Case("2.1", merging(nothing, nullable=False), "required_field"),
    "a merge to another type": Case(
        "2.1", merging(lambda fields: setattr(fields[T], "logical_type", "large_string")), "field_type"
    ),
    "a delete": Case("2.1", deleting_with(nothing)),
    "a delete with other files": Case("2.1", deleting_with(other_file)),
    "a delete with fewer fields": Case("2.1", deleting_with(fewer_fields)),
    **{
        f"an update of {column} in place, {'named' if names else 'not named'}, {table}": Case(
            table, updating(column, value, names=names)
        )
        for table in ("2.0", "2.1", "stable")
        for column, value in (("a", 77), ("l", ["zz"]))
        for names in (True, False)
    },
    "a replacement": Case("2.1", replacing(A)),
    "a replacement of elements": Case("2.1", replacing(ITEM)),
    "a replacement without a column": Case("2.1", replacing(A, column=-1), "column_indices"),
    "a replacement of another type": Case("2.1", replacing(A, column=2), "column_type"),
    "a replacement of fewer rows": Case("2.1", replacing(A, rows=5), "physical_rows_too_many"),
    "an index": at_work(indexing(nothing)),
    "an index on a field that was never there": Case("2.1", before(indexing(on(55))), "unknown_field"),
    "an index without a field": at_work(indexing(on()), "index_fields"),
    "an index on two fields": at_work(indexing(on(ID, A)), "index_fields"),
    "an index on a field twice": at_work(indexing(on(ID, ID)), "index_fields"),
    "an index without a list of fragments": at_work(
        indexing(lambda index: index.ClearField("fragment_bitmap")), "index_bitmap"
    ),
    "an index that covers nothing": at_work(indexing(covering())),
    "an index that covers fragments to come": at_work(indexing(covering(0, 1, 2, 3)), "index_bitmap"),
    "an index that does not name its files": at_work(without_files(there=True)),
    "an index without files": at_work(without_files(there=False), "missing_file"),
    "a compaction": at_work(rewriting(nothing), table="2.1"),
    "a compaction that does not name the files of indices": at_work(rewriting(forget_index_files), table="2.1"),
    "a compaction without the files of indices": Case("2.1", rewriting(remove_index_files), "missing_file"),
}


def put(root: Path, staged: Transaction) -> None:
    """Put the version that the transaction makes, whatever it is."""
    before = latest(root)
    given = BuildInput(now=datetime.now(UTC), transaction_file="", index_uuid=uuid.uuid4().bytes)
    built = build(before, normalised(staged), given)
    outline, own = built.packed
    made = Manifest()
    made.CopyFrom(outline)
    made.fragments.extend(built.kept.with_added(own))
    (root / manifest_key(made.version, NamingScheme.V2)).write_bytes(encode(made, built.indices, staged))


class Seen(NamedTuple):
    outcome: Outcome
    faults: list[str]
    """Those that either pylance finds in the version, whether it was committed or put."""


async def commit_all(folder: Path) -> dict[str, tuple[Outcome, Path]]:
    tables = {name: folder / name for name in TABLES}
    for name, root in tables.items():
        make(root, **TABLES[name])
    found: dict[str, tuple[Outcome, Path]] = {}
    for number, (name, case) in enumerate(CASES.items()):
        root = native.link_tree(tables[case.table], folder / f"case-{number}")
        staged = case.stage(root)
        outcome = await commit_staged(root, staged.SerializeToString())
        if outcome.verdict != "committed":
            put(root, staged)
        found[name] = outcome, root
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    made = anyio.run(commit_all, tmp_path_factory.mktemp("bearable"))
    faults: dict[str, list[str]] = {name: [] for name in made}
    for number, python in enumerate((sys.executable, old_pylance())):
        for works in (False, True):
            names = [name for name, case in CASES.items() if case.works is works]
            roots = [made[name][1] for name in names]
            copies = [native.link_tree(root, root.with_name(f"{root.name}-{number}")) for root in roots]
            for name, found in zip(names, look(python, copies, works=works), strict=True):
                faults[name] += found
    return {name: Seen(outcome, faults[name]) for name, (outcome, _) in made.items()}


def look(python: str, roots: Sequence[Path], *, works: bool) -> Iterator[list[str]]:
    command = [python, looking.__file__, *(["--work"] if works else []), *map(str, roots)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    return map(json.loads, told.splitlines())


@pytest.mark.parametrize("name", CASES)
def test_what_readers_can_not_bear_is_refused(name: str, seen: dict[str, Seen]) -> None:
    case, (outcome, faults) = CASES[name], seen[name]
    assert (outcome.verdict, outcome.reason) == (("error", case.refused) if case.refused else ("committed", "")), faults
    assert bool(faults) == bool(case.refused), faults
