"""Where committerd's knowledge of Lance ends, pylance builds the versions.

pylance is also the reader of what was committed, and the writer that comes next.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import lance
import pytest
from lance.fragment import write_fragments

from committerd.committer.assembling import Assembler
from committerd.committer.deciding import DecideOptions
from committerd.committer.head import Head
from committerd.committer.loading import Loading, load
from committerd.committer.members import FormedVersion
from committerd.daemon import pylance_process
from committerd.daemon.pylance_process import PylanceProcess
from committerd.errors import StoreUnavailable, UnsupportedRequest, UnsupportedTable
from committerd.lance.format.manifest_file import ManifestFile, decode, encode
from committerd.lance.operations.permissions import ALL_OPERATIONS, Permissions
from committerd.lance.versions.adopted import require_kept
from committerd.queue.position import Position
from committerd.stores.port import Created
from committerd.table.knowledge import Knowledge
from committerd.table.needs import BuiltByPylance
from committerd.table.versions import Table
from committerd.table.writing import put, write_files
from committerd_common.messages import DataFile, DataFragment, IndexMetadata, Manifest, Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.committer.bench import Bench, record
from tests.oracle import native
from tests.oracle.feature_tables import (
    FEATURES,
    KNOWN,
    OVERLAYS,
    Feature,
    managed_blobs,
    overlay,
    rows,
    spilled_lineage,
)
from tests.oracle.test_flagged import read_by_4
from tests.table.scene import Scene

pytestmark = pytest.mark.pylance


def command(root: Path) -> list[str]:
    return [sys.executable, "-m", "committerd.commands.build_with_pylance", str(root)]


class PylanceBench(Bench):
    """A committer's parts with `commit.unknown = pylance`, on a table that pylance has made."""

    def __init__(self, root: Path, pylance: PylanceProcess) -> None:
        super().__init__(Scene(root), DecideOptions(allowed=Permissions(operations=ALL_OPERATIONS)))
        self.decider = replace(self.decider, sources=replace(self.decider.sources, knowledge=Knowledge()))
        self.pylance = pylance
        self.assembler = Assembler(
            decider=self.decider, prefetcher=self.prefetcher, telemetry=self.telemetry, pylance=self.pylance
        )
        self.root, self.offset = root, 0
        self.position = Position(cluster_id="c", topic="t", topic_id="i", next_offset=0)

    async def head(self) -> Head:
        table = Table(self.store, deletion_vectors=self.deletion_vectors)
        loaded = await load(table, Loading(monotonic=anyio.current_time, builds_unknown=True))
        return loaded.head(loaded.position or self.position)

    async def commit(self, *staged: Transaction) -> FormedVersion:
        """Stage transactions, and put the version that settles the first of them."""
        head = await self.head()
        await self.assembler.require_buildable(head)
        self.arrive(*(record(self.offset + place, one) for place, one in enumerate(staged)))
        self.offset += len(staged)
        formed = await self.assembler.assemble(head, self.intake)
        assert formed is not None
        await self.put(head, formed)
        return formed

    async def put(self, head: Head, formed: FormedVersion) -> None:
        await write_files(head.table, formed.prepared)
        assert isinstance(await put(head.table, formed.prepared), Created)
        self.intake.settle(formed.after.position)

    def detached(self) -> list[str]:
        return [path.name for path in (self.root / "_versions").iterdir() if path.name.startswith("d")]

    def latest(self) -> ManifestFile:
        key = manifest_key(lance.dataset(str(self.root)).version, NamingScheme.V2)
        return decode((self.root / key).read_bytes())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
async def bench(root: Path) -> AsyncIterator[PylanceBench]:
    async with PylanceProcess(command(root)) as pylance:
        yield PylanceBench(root, pylance)


def staged_by(root: Path, change: Callable[[lance.LanceDataset], object]) -> Transaction:
    """What pylance would commit for a change: the transaction of a detached version, which is deleted again."""
    table = lance.dataset(str(root))
    before = {path.name for path in (root / "_versions").iterdir()}
    change(table)
    (name,) = {path.name for path in (root / "_versions").iterdir()} - before - {"latest_version_hint.json"}
    path = root / "_versions" / name
    file = decode(path.read_bytes())
    path.unlink()
    (root / "_transactions" / file.outline.transaction_file).unlink()
    assert file.transaction is not None
    return file.transaction


def detached(operation: lance.LanceOperation.BaseOperation) -> Callable[[lance.LanceDataset], object]:
    def commit(table: lance.LanceDataset) -> object:
        return lance.LanceDataset.commit(table, operation, read_version=table.version, detached=True)

    return commit


def append(root: Path, start: int = 1000) -> Transaction:
    table = lance.dataset(str(root))
    fragments = write_fragments(rows(start, 3).cast(table.schema), str(root))
    return staged_by(root, detached(lance.LanceOperation.Append(fragments)))


def ids(root: Path) -> list[int]:
    return sorted(lance.dataset(str(root)).to_table(columns=["id"])["id"].to_pylist())


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: str(feature.flag))
async def test_a_table_with_a_flag_of_a_later_lance(
    feature: Feature, root: Path, bench: PylanceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """committerd commits by itself if it knows the flag, otherwise pylance builds the versions."""
    if feature.flag == 64:
        monkeypatch.setenv(OVERLAYS, "1")
    feature.make(root)
    of_pylance = native.link_tree(root, root.with_name("of_pylance"))
    before, texts = ids(root), lance.dataset(str(root)).to_table()["t"].to_pylist()
    assert bench.latest().outline.reader_feature_flags & feature.flag
    version = bench.latest().version
    staged = append(root)
    formed = await bench.commit(staged)
    assert [(one.uuid, one.offset) for one in formed.own.settled.members] == [(staged.uuid, 0)]
    assert (formed.prepared.judged.by_pylance is None) == (feature in KNOWN)
    table = lance.dataset(str(root))
    assert table.version == version + 1
    assert ids(root) == [*before, 1000, 1001, 1002]
    assert table.to_table()["t"].to_pylist()[: len(texts)] == texts
    latest = bench.latest()
    assert latest.outline.reader_feature_flags & latest.outline.writer_feature_flags & feature.flag
    assert latest.transaction is not None
    assert latest.transaction.uuid == staged.uuid
    assert not bench.detached()
    # pylance is the writer that comes next, and after it the queue goes on, from where it was.
    lance.write_dataset(rows(2000, 2).cast(table.schema), str(root), mode="append")
    lance.dataset(str(root)).delete("id = 2001")
    head = await bench.head()
    assert (head.position.next_offset, head.lacks_keys()) == (1, False)
    await bench.commit(append(root, 3000))
    assert ids(root) == [*before, 1000, 1001, 1002, 2000, 3000, 3001, 3002]
    assert lance.dataset(str(root)).version == version + 4
    # 4.0.0 reads, or refuses to read, our versions as it does pylance's.
    theirs, ours = read_by_4(of_pylance), read_by_4(root)
    assert ours == str(len(ids(root))) if theirs.isdecimal() else said_by_4(ours) == said_by_4(theirs)


def said_by_4(error: str) -> str:
    """The error of pylance 4.0.0 without flags and places in its source."""
    return re.split(r" Flags: |, /", error.splitlines()[-1])[0]


def work(root: Path) -> None:
    """Versions of all operations that pylance commits."""

    def table() -> lance.LanceDataset:
        return lance.dataset(str(root))

    lance.write_dataset(rows(100), str(root), mode="append")
    table().create_scalar_index("id", "BTREE")
    table().update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "0"})
    table().delete("id % 3 = 0")
    table().update({"t": "'u'"}, where="id % 7 = 1")
    table().merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(190, 20))
    table().add_columns({"b": "id * 2"})
    table().alter_columns({"path": "b", "name": "c"})  # type: ignore[dict-item]  # as its documentation says
    table().optimize.compact_files(target_rows_per_fragment=10_000)
    table().optimize.optimize_indices()
    table().drop_columns(["c"])
    lance.dataset(str(root), version=3).restore()  # type: ignore[no-untyped-call]
    lance.write_dataset(rows(0), str(root), mode="overwrite")


@pytest.mark.parametrize("stable", [False, True])
async def test_what_pylance_builds_is_what_it_commits(stable: bool, root: Path, bench: PylanceBench) -> None:
    """Nothing but the version's number depends on the number: all else is as if pylance had committed it."""
    lance.write_dataset(rows(0), str(root), enable_stable_row_ids=stable)
    work(root)
    refused = []
    for version in range(2, lance.dataset(str(root)).version + 1):
        committed = decode((root / manifest_key(version, NamingScheme.V2)).read_bytes())
        asked = Transaction()
        assert committed.transaction is not None
        asked.CopyFrom(committed.transaction)
        asked.uuid, asked.read_version = str(uuid.uuid4()), version - 1
        try:
            built = await bench.pylance(bench.store, BuiltByPylance(version - 1, asked))
        except UnsupportedRequest:
            refused.append(asked.WhichOneof("operation"))
            continue
        made = decode(built.body)
        require_kept(committed, made)
        for word in ("reader_feature_flags", "writer_feature_flags"):
            assert getattr(made.outline, word) == getattr(committed.outline, word)
        assert made.transaction == asked
        assert built.next is not None
    assert refused == ["reserve_fragments", "rewrite"]  # what pylance's Python can't express; the index was rewritten


async def test_refusals_alone_and_keys_that_a_writer_has_dropped_are_versions_too(
    root: Path, bench: PylanceBench
) -> None:
    managed_blobs(root)
    stale = append(root)
    await bench.commit(append(root, 2000))
    formed = await bench.commit(stale)
    (refusal,) = formed.own.settled.refusals
    assert (refusal.reason, refusal.uuid, refusal.conflicting_version) == ("conflict", stale.uuid, 2)
    assert "Read version 2" in refusal.message
    head = await bench.head()
    assert head.position.next_offset == 2
    formed = await bench.assembler.assemble_keys(head)
    await bench.put(head, formed)
    assert lance.dataset(str(root)).version == 4
    assert (await bench.head()).position.next_offset == 2


async def test_each_is_a_version_of_its_own(root: Path, bench: PylanceBench) -> None:
    managed_blobs(root)
    formed = await bench.commit(append(root), append(root, 2000))
    assert [one.offset for one in formed.own.settled.members] == [0]
    assert formed.own.settled.refusals == []


async def test_a_uuid_that_is_staged_again_is_found(root: Path, bench: PylanceBench) -> None:
    spilled_lineage(root)
    staged = append(root)
    await bench.commit(staged)
    staged.read_version += 1
    formed = await bench.commit(staged)
    assert [one.reason for one in formed.own.settled.refusals] == ["uuid_seen"]


async def test_a_compaction_that_spills_is_committed(root: Path, bench: PylanceBench) -> None:
    """Its fragments have fields that committerd does not know."""
    spilled_lineage(root)
    from lance.optimize import Compaction

    table, before = lance.dataset(str(root)), ids(root)
    plan = Compaction.plan(table, {"target_rows_per_fragment": 10_000})
    done = [task.execute(table) for task in plan.tasks]
    groups = [
        lance.LanceOperation.RewriteGroup(old_fragments=one.original_fragments, new_fragments=one.new_fragments)  # type: ignore[attr-defined]  # the stub has another name
        for one in done
    ]
    staged = staged_by(root, detached(lance.LanceOperation.Rewrite(groups, [])))
    formed = await bench.commit(staged)
    assert formed.own.settled.refusals == []
    assert ids(root) == before
    assert len(lance.dataset(str(root)).get_fragments()) == 1


async def test_an_operation_that_committerd_does_not_know(
    root: Path, bench: PylanceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERLAYS, "1")
    lance.write_dataset(rows(0), str(root))
    staged = staged_by(root, detached(overlay(root)))
    assert staged.WhichOneof("operation") is None
    formed = await bench.commit(staged)
    assert [one.uuid for one in formed.own.settled.members] == [staged.uuid]
    assert lance.dataset(str(root)).to_table()["t"].to_pylist()[:5] == ["t0", "x", "t2", "y", "t4"]
    lance.write_dataset(rows(100, 2), str(root), mode="append")
    assert ids(root) == list(range(102))


async def test_without_its_variable_pylance_refuses_an_overlay(
    root: Path, bench: PylanceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could read the table."""
    monkeypatch.setenv(OVERLAYS, "1")
    lance.write_dataset(rows(0), str(root))
    staged = staged_by(root, detached(overlay(root)))
    monkeypatch.delenv(OVERLAYS)
    formed = await bench.commit(staged)
    (refusal,) = formed.own.settled.refusals
    assert refusal.reason in ("pylance_refused", "stops_the_table")
    assert not bench.detached()
    assert ids(root) == list(range(100))


def with_field(staged: Transaction, number: int, value: bytes = b"x") -> Transaction:
    tag = bytes([(number << 3 | 2) & 0x7F | 0x80, number >> 4]) if number > 15 else bytes([number << 3 | 2])
    return Transaction.FromString(staged.SerializeToString() + tag + bytes([len(value)]) + value)


async def test_it_waits_for_a_version_that_is_not_put_yet(root: Path, bench: PylanceBench) -> None:
    lance.write_dataset(rows(0), str(root))
    bench.arrive(record(0, append(root)))
    head = await bench.head()
    formed = await bench.assembler.assemble(head, bench.intake)
    assert formed is not None
    reads_nothing = with_field(append(root), 90)
    reads_nothing.read_version = 0
    bench.arrive(record(1, reads_nothing))
    with pytest.raises(StoreUnavailable, match="not put yet"):
        await bench.assembler.assemble(formed.after, bench.intake)


async def test_an_overwrite_that_only_creates_replaces_no_table(root: Path, bench: PylanceBench) -> None:
    managed_blobs(root)
    staged = append(root)
    overwrite = Transaction(uuid=staged.uuid)
    overwrite.overwrite.fragments.extend(staged.append.fragments)
    bench.arrive(record(0, overwrite, create_only="true"))
    formed = await bench.assembler.assemble(await bench.head(), bench.intake)
    assert formed is not None
    assert [one.reason for one in formed.own.settled.refusals] == ["table_exists"]


@pytest.mark.parametrize("what", ["operation", "field"])
async def test_what_pylance_does_not_know_either_is_refused(what: str, root: Path, bench: PylanceBench) -> None:
    lance.write_dataset(rows(0), str(root))
    if what == "field":
        staged = with_field(append(root), 90)
    else:
        staged = with_field(Transaction(read_version=1, uuid=str(uuid.uuid4())), 177, b"")
    formed = await bench.commit(staged)
    (refusal,) = formed.own.settled.refusals
    assert refusal.reason == "pylance_refused"
    assert not bench.detached()
    assert ids(root) == list(range(100))


async def test_a_flag_that_pylance_does_not_know_either_stays_refused(root: Path, bench: PylanceBench) -> None:
    lance.write_dataset(rows(0), str(root))
    file = bench.latest()
    made = Manifest()
    made.CopyFrom(file.manifest)
    made.version = 2
    made.reader_feature_flags = made.writer_feature_flags = 1 << 40
    assert file.transaction is not None
    bench.scene.write_manifest(2, encode(made, file.indices, file.transaction))
    with pytest.raises(UnsupportedTable, match="Neither can pylance") as error:
        await bench.assembler.require_buildable(await bench.head())
    assert error.value.code == "feature_flags"


async def test_v1_names_stay_refused(root: Path, bench: PylanceBench) -> None:
    schema = rows(0).schema.with_metadata({"lance.blob.managed": "true"})
    lance.write_dataset(rows(0).cast(schema), str(root), enable_v2_manifest_paths=False)
    with pytest.raises(UnsupportedTable, match="V1 names"):
        await bench.assembler.require_buildable(await bench.head())


async def test_a_record_on_a_table_with_v1_names_is_refused_and_told_the_way_out(
    root: Path, bench: PylanceBench
) -> None:
    lance.write_dataset(rows(0), str(root), enable_v2_manifest_paths=False)
    staged = Transaction(read_version=1, uuid=str(uuid.uuid4()))
    staged.update_config.SetInParent()
    later = [with_field(staged, 90) for _ in range(2)]
    later[1].uuid = str(uuid.uuid4())
    formed = await bench.commit(later[0])
    (refusal,) = formed.own.settled.refusals
    assert refusal.reason == "pylance_refused"
    assert "V1 names" in refusal.message
    lance.dataset(str(root)).migrate_manifest_paths_v2()  # type: ignore[no-untyped-call]
    # The way out leads to where pylance itself is asked.
    later[1].read_version = lance.dataset(str(root)).version
    (refusal,) = (await bench.commit(later[1])).own.settled.refusals
    assert refusal.reason == "pylance_refused"
    assert "does not understand all of this transaction" in refusal.message


async def test_what_a_killed_process_has_left_is_deleted(root: Path, bench: PylanceBench) -> None:
    managed_blobs(root)
    of_others = append(root)
    table = lance.dataset(str(root))
    ours = lance.Transaction(1, lance.LanceOperation.UpdateConfig(), transaction_properties={"committerd.build": "2"})
    lance.LanceDataset.commit(table, ours, detached=True)
    lance.LanceDataset.commit(table, lance.LanceOperation.UpdateConfig(), read_version=1, detached=True)
    assert len(bench.detached()) == 2
    await bench.commit(of_others)
    assert len(bench.detached()) == 1  # that of another program stays


async def test_a_branch_is_a_table_of_its_own(root: Path) -> None:
    spilled_lineage(root)
    main = lance.dataset(str(root))
    main.create_branch("exp")
    version, before, folder = main.version, ids(root), root / "tree" / "exp"
    async with PylanceProcess(command(folder)) as pylance:
        bench = PylanceBench(folder, pylance)
        for start in (1000, 2000):
            assert not (await bench.commit(append(folder, start))).own.settled.refusals
        assert not bench.detached()
    branch = lance.dataset(str(root)).checkout_version(("exp", None))
    assert sorted(branch.to_table()["id"].to_pylist()) == [*before, 1000, 1001, 1002, 2000, 2001, 2002]
    assert (lance.dataset(str(root)).version, ids(root)) == (version, before)


async def test_files_that_are_missing_are_noticed(root: Path, bench: PylanceBench) -> None:
    managed_blobs(root)
    staged = append(root)
    (root / "data" / staged.append.fragments[0].files[0].path).unlink()
    formed = await bench.commit(staged)
    assert [one.reason for one in formed.own.settled.refusals] == ["missing_file"]


WRONG: dict[str, Callable[[DataFragment], object]] = {
    "field_twice_in_fragment": lambda one: setattr_all(one.files[0], fields=[0, 0]),
    "column_indices": lambda one: setattr_all(one.files[0], column_indices=[7, 9]),
    "path_outside": lambda one: setattr(one.files[0], "path", "../x.lance"),
    "physical_rows_too_many": lambda one: setattr(one, "physical_rows", 1000),
    "file_size": lambda one: setattr(one.files[0], "file_size_bytes", 1000),
}


def setattr_all(file: DataFile, **lists: list[int]) -> None:
    for name, values in lists.items():
        getattr(file, name)[:] = values


async def test_records_with_which_pylance_would_break_the_table(root: Path, bench: PylanceBench) -> None:
    """An Overwrite leaves nothing that committerd does not know, so nothing else would look at the version."""
    spilled_lineage(root)
    before = ids(root)
    good = append(root)
    for reason, change in WRONG.items():
        version = lance.dataset(str(root)).version
        overwrite = Transaction(uuid=str(uuid.uuid4()), read_version=version)
        overwrite.overwrite.fragments.extend(good.append.fragments)
        overwrite.overwrite.schema.extend(bench.latest().manifest.fields)
        change(overwrite.overwrite.fragments[0])
        (refusal,) = (await bench.commit(overwrite)).own.settled.refusals
        assert refusal.reason == reason
        assert ids(root) == before
    # With this schema pylance panics whenever it opens the table.
    unreadable = Transaction(uuid=str(uuid.uuid4()), read_version=lance.dataset(str(root)).version)
    unreadable.overwrite.schema.extend(bench.latest().manifest.fields)
    unreadable.overwrite.schema[1].logical_type = "fixed_size_list:fixed_size_list:int32:x"
    (refusal,) = (await bench.commit(unreadable)).own.settled.refusals
    assert refusal.reason == "schema"
    good.read_version = lance.dataset(str(root)).version
    assert not (await bench.commit(good)).own.settled.refusals
    assert ids(root) == [*before, 1000, 1001, 1002]


async def test_a_deletion_file_that_is_missing_is_noticed(root: Path, bench: PylanceBench) -> None:
    spilled_lineage(root)
    there = set((root / "_deletions").iterdir())
    lance.dataset(str(root)).delete("id = 1")
    made = bench.latest()
    assert made.transaction is not None
    staged = Transaction()
    staged.CopyFrom(made.transaction)
    (root / manifest_key(made.version, NamingScheme.V2)).unlink()
    staged.uuid = str(uuid.uuid4())
    for path in set((root / "_deletions").iterdir()) - there:
        path.unlink()
    (refusal,) = (await bench.commit(staged)).own.settled.refusals
    assert refusal.reason == "missing_file"
    assert len(ids(root)) == 200


class TestTheProcess:
    """What happens to the process of pylance itself harms neither the committer nor the next record."""

    @staticmethod
    def limited(root: Path, megabytes: int) -> list[str]:
        """The command, in so much memory beyond what it takes with pylance loaded."""
        program = (
            "import resource, runpy, lance\n"
            "pages = int(open('/proc/self/statm').read().split()[0])\n"
            f"limit = pages * resource.getpagesize() + {megabytes} * 2**20\n"
            "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
            "runpy.run_module('committerd.commands.build_with_pylance', run_name='__main__')"
        )
        return [sys.executable, "-c", program, str(root)]

    async def test_a_panic_is_an_answer(self, root: Path, bench: PylanceBench) -> None:
        """pylance panics when it carries an index without fields along."""
        managed_blobs(root)
        latest, without_fields = bench.latest(), IndexMetadata(name="x", dataset_version=1)
        without_fields.uuid.uuid = uuid.uuid4().bytes
        assert latest.transaction is not None
        made = Manifest()
        made.CopyFrom(latest.manifest)
        made.version = 2
        bench.scene.write_manifest(2, encode(made, [without_fields], latest.transaction))
        with pytest.raises(UnsupportedTable, match="PanicException"):
            await bench.assembler.require_buildable(await bench.head())
        running = bench.pylance._running
        (root / manifest_key(2, NamingScheme.V2)).unlink()
        assert not (await bench.commit(append(root))).own.settled.refusals
        assert bench.pylance._running is running

    async def test_one_without_memory(self, root: Path, bench: PylanceBench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pylance_process, "_WAIT_SECONDS", 0.0)
        monkeypatch.setenv(OVERLAYS, "1")
        lance.write_dataset(rows(0), str(root))
        staged = [staged_by(root, detached(overlay(root))) for _ in range(2)]
        bench.pylance._command = self.limited(root, 1)
        (refusal,) = (await bench.commit(staged[0])).own.settled.refusals
        assert refusal.reason == "pylance_refused"
        bench.pylance._command = command(root)
        staged[1].read_version = lance.dataset(str(root)).version
        assert not (await bench.commit(staged[1])).own.settled.refusals

    async def test_one_that_hangs(self, root: Path, bench: PylanceBench, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is killed, and the record is committed by the next process."""
        managed_blobs(root)
        await bench.commit(append(root))
        running, start, seconds = bench.pylance._running, pylance_process._start, pylance_process._SECONDS_MAX
        assert running is not None
        staged = append(root, 2000)
        os.kill(running.process.pid, signal.SIGSTOP)

        async def patient(command: Sequence[str]) -> object:
            monkeypatch.setattr(pylance_process, "_SECONDS_MAX", seconds)
            return await start(command)

        monkeypatch.setattr(pylance_process, "_WAIT_SECONDS", 0.0)
        monkeypatch.setattr(pylance_process, "_SECONDS_MAX", 0.1)
        monkeypatch.setattr(pylance_process, "_start", patient)
        assert not (await bench.commit(staged)).own.settled.refusals
        assert running.process.returncode == -signal.SIGKILL
        assert ids(root)[-1] == 2002


async def test_a_process_that_ends_is_no_end_of_the_committer(
    root: Path, bench: PylanceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed_blobs(root)
    staged = append(root)
    bench.pylance._command = [sys.executable, "-c", "import os; os.abort()"]
    monkeypatch.setattr(pylance_process, "_WAIT_SECONDS", 0.0)
    head = await bench.head()
    with pytest.raises(UnsupportedTable, match="exit code -6"):
        await bench.assembler.require_buildable(head)
    bench.pylance._command = command(root)
    await bench.commit(staged)
