"""Files that a transaction brings or names: checked, measured, copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from pyroaring import BitMap

from committerd.errors import InvalidRequest, SettingsError, StoreUnavailable
from committerd.lance.operations.permissions import ANYTHING, Permissions
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.stores.local import LocalStore
from committerd.stores.port import ObjectStore, TailOrError
from committerd.table.fetching import Fetcher
from committerd.table.needs import FoundFile, StagedFacts
from committerd.table.prepare import Prepared, prepare
from committerd.table.staged_files import FileLimits, needed_ahead
from committerd.table.versions import Table
from committerd.table.writing import write_files
from committerd_common.deletion_file import encode_bitmap
from committerd_common.messages import Transaction
from tests.lance import samples
from tests.lance.operations import create_index, delete, rewrite, update
from tests.lance.samples import fragment, index, manifest, transaction
from tests.table.scene import ANY, Scene, append, open_store, read_at, rejected, sources

VERIFYING = replace(ANY, verify_files=True)
T = TypeVar("T")


class Counting(LocalStore):
    """Records which objects were requested."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, durable=False)
        self.asked: list[str] = []

    async def head(self, key: str) -> int | None:
        self.asked.append(key)
        return await super().head(key)

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        self.asked += keys
        return await super().get_tails(keys, size=size)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self.asked.append(key)
        return await super().get_range(key, start, end)


class Refusing(LocalStore):
    """An unreadable store."""

    async def head(self, key: str) -> int | None:
        raise StoreUnavailable("403")

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        raise StoreUnavailable("403")


def with_base(scene: Scene, path: str) -> None:
    """A table with a base that has the id 3."""
    base = manifest(fragment(0), fragment(1), version=1)
    base.base_paths.add(id=3, path=path)
    base.reader_feature_flags = base.writer_feature_flags = 16
    scene.write_version(base)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "t")


class TestFiles:
    async def test_that_are_missing_are_named(self, scene: Scene) -> None:
        scene.write_versions(1)
        options = replace(ANY, verify_files=True)
        staged = append(1, *(fragment(0, name=f"n{number:02}") for number in range(12)))
        answer = await scene.commit(staged, options)
        assert isinstance(answer, Refused)
        assert (answer.status, answer.reason) == (Status.INVALID, "missing_file")
        assert "data/n00.lance" in answer.message
        assert "and 2 more" in answer.message
        scene.write_files(*staged.append.fragments)
        assert isinstance(await scene.commit(staged, options), Prepared)

    async def test_of_all_kinds_are_looked_for(self, scene: Scene) -> None:
        scene.write_versions(1)
        options = replace(ANY, verify_files=True)
        made = index(1)
        made.files.add(path="part", size_bytes=1)
        far = index(2)
        far.base_id = 0
        far.files.add(path="elsewhere")
        changed = rewrite(0, rewritten=(1,))
        changed.rewrite.rewritten_indices[0].new_index_details.SetInParent()
        changed.rewrite.rewritten_indices[0].new_index_files.add(path="part")
        group = Transaction.DataReplacementGroup(fragment_id=0, new_file=samples.data_file("repl", [1]))
        for staged in (
            create_index(made),
            changed,
            transaction(data_replacement=Transaction.DataReplacement(replacements=[group])),
            delete(fragment(0, deleted=2)),
        ):
            assert await rejected(scene, read_at(staged, 1), options) == (Status.INVALID, "missing_file")

    async def test_of_an_index_in_a_base_are_looked_for_there(self, scene: Scene, tmp_path: Path) -> None:
        with_base(scene, str(tmp_path / "base"))
        far = index(2)
        far.base_id = 3
        far.files.add(path="elsewhere", size_bytes=3)
        staged = read_at(create_index(far), 1)
        assert await rejected(scene, staged, VERIFYING) == (Status.INVALID, "missing_file")
        path = tmp_path / "base" / f"{'0' * 8}-0000-0000-0000-{'0' * 11}2" / "elsewhere"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"four")
        assert await rejected(scene, staged, VERIFYING) == (Status.INVALID, "file_size")
        path.write_bytes(b"xyz")
        assert isinstance(await scene.commit(staged, VERIFYING), Prepared)

    async def test_that_the_table_has_already_are_not_looked_for(self, scene: Scene) -> None:
        scene.write_versions(1)
        staged = scene.write_deletions(fragment(0, deleted=2), 0, 1)
        options = replace(ANY, verify_files=True)
        assert isinstance(await scene.commit(read_at(delete(staged), 1), options), Prepared)

    async def test_that_are_merged_are_not_looked_for(self, scene: Scene) -> None:
        scene.write_versions(1)
        theirs = scene.write_deletions(fragment(0, deleted=1), 0)
        scene.write_version(manifest(theirs, version=2), read_at(delete(theirs), 1))
        ours = fragment(0)
        ours.deletion_file.CopyFrom(samples.deletion_file(1, number=77))
        scene.write_deletions(ours, 5)
        options = replace(ANY, verify_files=True)
        assert isinstance(await scene.commit(read_at(delete(ours), 1), options), Prepared)

    async def test_that_are_merged_may_have_so_many_bytes(self, scene: Scene) -> None:
        scene.write_versions(1)
        theirs = scene.write_deletions(fragment(0, deleted=1), 0)
        scene.write_version(manifest(theirs, version=2), read_at(delete(theirs), 1))
        ours = fragment(0)
        ours.deletion_file.CopyFrom(samples.deletion_file(1, number=77))
        scene.write_deletions(ours, 5)
        few = replace(ANY, file_limits=FileLimits(bytes=3))
        assert await rejected(scene, read_at(delete(ours), 1), few) == (Status.INVALID, "named_bytes")

    async def test_whose_rows_are_counted_may_have_so_many_bytes(self, scene: Scene) -> None:
        scene.write_versions(1)
        made = fragment(0, deleted=3)
        scene.write_files(made)
        made.deletion_file.num_deleted_rows = 0
        few = replace(ANY, file_limits=FileLimits(bytes=3))
        assert await rejected(scene, read_at(delete(made), 1), few) == (Status.INVALID, "named_bytes")

    async def test_whose_size_nobody_knew_are_measured(self, scene: Scene) -> None:
        scene.write_versions(1)
        made = fragment(0, name="new")
        made.files[0].file_size_bytes = 0
        assert await rejected(scene, append(1, made)) == (Status.INVALID, "missing_file")
        scene.write_files(made)
        known, measured = samples.data_file("known", [3]), samples.data_file("measured", [4])
        measured.file_size_bytes = 0
        made.files.extend([known, measured])
        scene.path("data/measured.lance").write_bytes(b"xyz")
        prepared = await scene.commit(append(1, made))
        assert isinstance(prepared, Prepared)
        assert [file.file_size_bytes for file in prepared.file.manifest.fragments[1].files] == [100, 100, 3]

    async def test_of_unknown_size_may_stand_beside_one_in_a_base(self, scene: Scene) -> None:
        base = manifest(fragment(0), version=1)
        base.base_paths.add(id=3, path="/nowhere")
        base.reader_feature_flags = base.writer_feature_flags = 16
        scene.write_version(base)
        made = fragment(0, name="new")
        scene.write_files(made)
        far = samples.data_file("far", [3])
        far.base_id = 3
        made.files[0].file_size_bytes = far.file_size_bytes = 0
        made.files.append(far)
        prepared = await scene.commit(append(1, made))
        assert isinstance(prepared, Prepared)
        assert [file.file_size_bytes for file in prepared.file.manifest.fragments[1].files] == [100, 0]

    def in_a_base(self) -> list[Transaction]:
        made, changed = fragment(0, name="new"), fragment(0, deleted=1)
        made.files[0].base_id = changed.deletion_file.base_id = 3
        group = Transaction.DataReplacementGroup(fragment_id=1, new_file=made.files[0])
        return [
            read_at(update(changed, new_fragments=[made]), 1),
            transaction(1, data_replacement=Transaction.DataReplacement(replacements=[group])),
        ]

    async def test_in_a_base_are_looked_for_there(self, scene: Scene, tmp_path: Path) -> None:
        with_base(scene, str(tmp_path / "base"))
        updated, replaced = self.in_a_base()
        for staged in (updated, replaced):
            assert await rejected(scene, staged, VERIFYING) == (Status.INVALID, "missing_file")
        (tmp_path / "base").mkdir()
        (tmp_path / "base" / "new.lance").write_bytes(bytes(100))
        assert await rejected(scene, updated, VERIFYING) == (Status.INVALID, "missing_file")
        (tmp_path / "base" / "0-1-1.bin").write_bytes(encode_bitmap(BitMap([1, 2])))
        assert await rejected(scene, updated, VERIFYING) == (Status.INVALID, "deletion_file")
        (tmp_path / "base" / "0-1-1.bin").write_bytes(encode_bitmap(BitMap([1])))
        for staged in (updated, replaced):
            assert isinstance(await scene.commit(read_at(staged, staged.read_version), VERIFYING), Prepared)

    async def test_in_a_base_that_the_operator_does_not_allow_are_taken_as_described(self, scene: Scene) -> None:
        with_base(scene, "/nowhere")
        options = replace(VERIFYING, allowed=Permissions(operations=ANYTHING.operations, bases=["/else"]))
        for staged in self.in_a_base():
            assert isinstance(await scene.commit(staged, options), Prepared)

    @pytest.mark.parametrize("path", ["oss://nobody/serves", "/unreadable"])
    async def test_in_a_base_that_can_not_be_read_are_taken_as_described(self, scene: Scene, path: str) -> None:
        with_base(scene, path)

        def opening(uri: str) -> ObjectStore:
            if uri.startswith("gs:"):
                raise SettingsError("not served")
            return Refusing(Path(uri))

        table = scene.table()
        for staged in self.in_a_base():
            prepared = await prepare(
                table, await table.latest(), staged, options=VERIFYING, sources=sources(), open_store=opening
            )
            assert isinstance(prepared, Prepared)

    async def test_of_another_size_are_refused(self, scene: Scene) -> None:
        scene.write_versions(1)
        staged = append(1, *(fragment(0, name=f"n{number:02}") for number in range(12)))
        scene.write_files(*staged.append.fragments)
        for number in range(12):
            staged.append.fragments[number].files[0].file_size_bytes = 99
        answer = await scene.commit(staged, VERIFYING)
        assert isinstance(answer, Refused)
        assert (answer.status, answer.reason) == (Status.INVALID, "file_size")
        assert "data/n00.lance has 100 bytes, not 99" in answer.message
        assert "and 2 more" in answer.message

    async def test_whose_names_readers_encode_are_looked_for_as_readers_do(self, scene: Scene) -> None:
        scene.write_versions(1)
        staged = append(1, fragment(0, name="a#\u00e4"))
        scene.path("data/a#\u00e4.lance").write_bytes(bytes(100))
        assert await rejected(scene, staged, VERIFYING) == (Status.INVALID, "missing_file")
        scene.path("data/a%23%C3%A4.lance").write_bytes(bytes(100))
        assert isinstance(await scene.commit(staged, VERIFYING), Prepared)

    async def test_that_are_links_are_refused(self, scene: Scene) -> None:
        scene.write_versions(1)
        scene.path("data/new.lance").symlink_to("/etc/hostname")
        assert await rejected(scene, append(1), VERIFYING) == (Status.INVALID, "file_unreadable")

    async def test_may_be_so_many(self, scene: Scene) -> None:
        scene.write_versions(1)
        staged = append(1, *(fragment(0, name=f"n{number}") for number in range(3)))
        scene.write_files(*staged.append.fragments)
        options = replace(VERIFYING, file_limits=FileLimits(files=2))
        assert await rejected(scene, staged, options) == (Status.INVALID, "too_many_files")
        assert isinstance(await scene.commit(staged, replace(VERIFYING, file_limits=FileLimits(files=3))), Prepared)

    async def test_that_are_read_may_have_so_many_bytes(self, scene: Scene) -> None:
        scene.write_version(manifest(fragment(0), fragment(1), version=1))
        made = [fragment(number, deleted=3) for number in range(2)]
        scene.write_files(*made)
        bytes_of_one = scene.path("_deletions/0-1-3.bin").stat().st_size
        few = replace(VERIFYING, file_limits=FileLimits(bytes=2 * bytes_of_one - 1))
        assert await rejected(scene, read_at(delete(*made), 1), few) == (Status.INVALID, "named_bytes")
        enough = replace(VERIFYING, file_limits=FileLimits(bytes=2 * bytes_of_one))
        assert isinstance(await scene.commit(read_at(delete(*made), 1), enough), Prepared)

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (None, "missing_file"),
            (b"garbage", "deletion_file"),
            (encode_bitmap(BitMap([1])), "deletion_file"),
            (encode_bitmap(BitMap([1, 10])), "deletion_file"),
            (encode_bitmap(BitMap([1, 9])), ""),
        ],
        ids=["missing", "garbage", "another count", "a row that is not there", "good"],
    )
    async def test_of_deletions_must_delete_what_the_fragment_says(
        self, scene: Scene, body: bytes | None, reason: str
    ) -> None:
        scene.write_versions(1)
        staged = read_at(delete(fragment(0, deleted=2)), 1)
        if body is not None:
            scene.path("_deletions/0-1-2.bin").write_bytes(body)
        if reason:
            assert await rejected(scene, staged, VERIFYING) == (Status.INVALID, reason)
        else:
            assert isinstance(await scene.commit(staged, VERIFYING), Prepared)

    async def test_that_the_latest_version_names_are_not_looked_for(self, scene: Scene) -> None:
        held = scene.write_deletions(fragment(0, deleted=1), 0)
        scene.write_version(manifest(held, version=1))
        for path in scene.root.glob("_deletions/*"):
            path.unlink()
        again = fragment(0, deleted=1)
        again.files.append(samples.data_file("column", [7]))
        scene.path("data/column.lance").write_bytes(bytes(100))
        merge = Transaction.Merge(fragments=[again], schema=[*map(samples.column, (0, 1, 2, 7))])
        assert isinstance(await scene.commit(transaction(1, merge=merge), VERIFYING), Prepared)


class TestLookedAtAhead:
    """Files that were looked at ahead are not looked at again when their transaction is judged."""

    @pytest.fixture
    def counting(self, scene: Scene) -> Counting:
        return Counting(scene.root)

    async def facts(self, store: Counting, *staged: Transaction, limits: FileLimits | None = None) -> list[StagedFacts]:
        wanted = [needed_ahead(one, limits or FileLimits(), verifies=True) for one in staged]
        return await Fetcher(Table(store)).staged(wanted)

    async def prepared(self, store: Counting, staged: Transaction, facts: StagedFacts) -> Prepared | Refused:
        table = Table(store)
        latest = await table.latest()
        store.asked.clear()
        return await prepare(
            table, latest, staged, facts=facts, options=VERIFYING, sources=sources(), open_store=open_store
        )

    async def test_files_are_found_once(self, scene: Scene, counting: Counting) -> None:
        scene.write_versions(1)
        made, changed = fragment(0, name="new"), fragment(0, deleted=2)
        scene.write_files(made, changed)
        staged = read_at(update(changed, new_fragments=[made]), 1)
        (facts,) = await self.facts(counting, staged)
        assert sizes(facts) == {"data/new.lance": 100}
        assert sorted(counting.asked) == ["_deletions/0-1-2.bin", "data/new.lance"]
        assert isinstance(await self.prepared(counting, staged, facts), Prepared)
        assert counting.asked == []

    async def test_the_steps_of_a_large_transaction_are_work(self, scene: Scene, counting: Counting) -> None:
        """100,000 files would hold the event loop for a second."""
        scene.write_versions(1)
        many = append(1, *(fragment(0, name=f"n{number}") for number in range(3_000)))
        asked: list[int] = []

        async def work(call: Callable[[], T], *, size: int) -> T:
            asked.append(size)
            return call()

        (facts,) = await self.facts(counting, many)
        latest = await Table(counting).latest()
        refused = await prepare(
            Table(counting), latest, many, facts=facts, options=VERIFYING, sources=sources(), work=work
        )
        assert isinstance(refused, Refused)
        assert refused.reason == "missing_file"
        # Validation; fit, and what its files are.
        assert asked[:2] == [many.ByteSize()] * 2

    async def test_of_very_many_missing_files_a_few_are_looked_for(self, scene: Scene, counting: Counting) -> None:
        """On S3 a look at 25,000 files takes the queue half a minute."""
        scene.write_versions(1)
        there = fragment(0, name="there")
        scene.write_files(there)
        many = append(1, *(fragment(0, name=f"n{number}") for number in range(5_000)))
        few, facts = await self.facts(counting, append(1, there), many)
        assert sizes(few) == {"data/there.lance": 100}
        assert 10 <= sum(found is None for found in facts.files.values()) <= 1000
        assert len(counting.asked) <= 1001
        refused = await self.prepared(counting, many, facts)
        assert isinstance(refused, Refused)
        assert refused.reason == "missing_file"
        assert "data/n0.lance" in refused.message
        assert counting.asked == []

    async def test_what_its_writer_did_not_know_is_known_from_it(self, scene: Scene, counting: Counting) -> None:
        scene.write_versions(1)
        made, changed = fragment(0, name="new"), fragment(0, deleted=2)
        scene.write_files(made, changed)
        made.files[0].file_size_bytes = changed.deletion_file.num_deleted_rows = 0
        staged = read_at(update(changed, new_fragments=[made]), 1)
        (facts,) = await self.facts(counting, staged)
        prepared = await self.prepared(counting, staged, facts)
        assert isinstance(prepared, Prepared)
        assert counting.asked == []
        (there, added) = prepared.file.manifest.fragments
        assert (added.files[0].file_size_bytes, there.deletion_file.num_deleted_rows) == (100, 2)

    async def test_files_of_fragments_that_the_table_has_wait_until_they_are_judged(
        self, scene: Scene, counting: Counting
    ) -> None:
        scene.write_versions(1)
        changed, new = fragment(0, deleted=1), fragment(0, name="new")
        scene.write_files(changed, new)
        merge = transaction(1, merge=Transaction.Merge(fragments=[changed]))
        staged = [read_at(delete(changed), 1), read_at(update(changed, new_fragments=[new]), 1), merge]
        deleted, updated, merged = await self.facts(counting, *staged)
        assert counting.asked.count("data/f0.lance") == 0
        assert (sizes(deleted), deletions(deleted)) == ({}, ["_deletions/0-1-1.bin"])
        assert (sizes(updated), deletions(updated)) == ({"data/new.lance": 100}, ["_deletions/0-1-1.bin"])
        assert (sizes(merged), deletions(merged)) == ({}, [])

    async def test_one_bad_record_spoils_no_others(self, scene: Scene, counting: Counting) -> None:
        scene.write_versions(1)
        good = fragment(0, name="good", deleted=1)
        scene.write_files(good)
        scene.path("data/link.lance").symlink_to("/etc/hostname")
        odd = create_index(index(1))
        odd.create_index.new_indices[0].files.add(path="")
        deleting = delete(fragment(0, deleted=3))
        scene.path("_deletions/0-1-3.bin").write_bytes(b"garbage")
        many = append(1, *(fragment(0, name=f"m{number}") for number in range(4)))
        far = fragment(0, name="far", deleted=1)
        far.files[0].base_id = far.deletion_file.base_id = 3
        staged = [append(1, fragment(0, name="link")), odd, deleting, many, append(1, far), append(1, good)]
        *others, facts = await self.facts(counting, *staged, limits=FileLimits(files=3))
        assert sizes(facts) == {"data/good.lance": 100}
        assert deletions(facts) == ["_deletions/0-1-1.bin"]
        assert not [one for one in others if sizes(one) or deletions(one)]


def sizes(facts: StagedFacts) -> dict[str, int]:
    return {at.key: found.size for at, found in facts.files.items() if isinstance(found, FoundFile)}


def deletions(facts: StagedFacts) -> list[str]:
    return [at.key for at, found in facts.deletions.items() if found.fault is None]


class TestRestore:
    async def test_reads_the_version(self, scene: Scene) -> None:
        scene.write_versions(1, 2)
        scene.write_version(manifest(fragment(5), version=3))
        restore = transaction(3, restore=Transaction.Restore(version=2))
        prepared = await scene.commit(restore)
        assert isinstance(prepared, Prepared)
        assert [one.id for one in prepared.file.manifest.fragments] == [0]

    async def test_of_a_version_that_is_gone(self, scene: Scene) -> None:
        scene.write_versions(3)
        restore = transaction(3, restore=Transaction.Restore(version=2))
        assert await rejected(scene, restore) == (Status.INVALID, "unknown_version")

    async def test_of_a_version_that_we_can_not_write_upon(self, scene: Scene) -> None:
        scene.write_versions(2)
        old = manifest(fragment(0), version=1)
        old.reader_feature_flags = old.writer_feature_flags = 1 << 20
        scene.write_version(old)
        restore = transaction(2, restore=Transaction.Restore(version=1))
        assert await rejected(scene, restore) == (Status.UNSUPPORTED, "feature_flags")


class TestClone:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Scene:
        source = Scene(tmp_path / "source")
        made = [fragment(0, deleted=1), fragment(1)]
        source.write_files(*made)
        source.path(f"_indices/{'0' * 8}-0000-0000-0000-{'0' * 11}1/part").write_bytes(b"index")
        source.write_version(manifest(*made, version=2), indices=[index(1)])
        return source

    def cloning(self, source: Scene, *, shallow: bool) -> Transaction:
        return transaction(2, clone=Transaction.Clone(is_shallow=shallow, ref_version=2, ref_path=str(source.root)))

    async def test_shallow(self, scene: Scene, source: Scene) -> None:
        prepared = await scene.commit(self.cloning(source, shallow=True))
        assert isinstance(prepared, Prepared)
        assert prepared.version == 2
        assert [base.path for base in prepared.file.manifest.base_paths] == [str(source.root)]

    async def test_deep_copies_every_file(self, scene: Scene, source: Scene) -> None:
        options = replace(ANY, copy_clone=True)
        assert isinstance(await scene.commit(self.cloning(source, shallow=False), options), Prepared)
        for folder in ("data", "_deletions", "_indices"):
            theirs = {path.relative_to(source.root) for path in (source.root / folder).rglob("*") if path.is_file()}
            ours = {path.relative_to(scene.root) for path in (scene.root / folder).rglob("*") if path.is_file()}
            assert ours == theirs

    async def test_deep_by_queue_needs_the_files(self, scene: Scene, source: Scene) -> None:
        staged = self.cloning(source, shallow=False)
        assert await rejected(scene, staged) == (Status.INVALID, "missing_file")
        options = replace(ANY, copy_clone=True)
        table = scene.table()
        prepared = await prepare(table, None, staged, options=options, sources=sources(), open_store=open_store)
        assert isinstance(prepared, Prepared)
        await write_files(table, prepared)
        assert isinstance(await scene.commit(staged), Prepared)

    async def test_deep_of_a_clone_copies_what_lies_in_its_base(
        self, scene: Scene, source: Scene, tmp_path: Path
    ) -> None:
        middle = Scene(tmp_path / "middle")
        assert isinstance(await middle.commit(self.cloning(source, shallow=True)), Prepared)
        options = replace(ANY, copy_clone=True)
        assert isinstance(await scene.commit(self.cloning(middle, shallow=False), options), Prepared)
        assert (scene.root / "data" / "f0.lance").exists()

    async def test_of_files_that_are_gone(self, scene: Scene, source: Scene) -> None:
        (source.root / "data" / "f1.lance").unlink()
        table = scene.table()
        options = replace(ANY, copy_clone=True)
        staged = self.cloning(source, shallow=False)
        prepared = await prepare(table, None, staged, options=options, sources=sources(), open_store=open_store)
        assert isinstance(prepared, Prepared)
        with pytest.raises(InvalidRequest, match=r"f1\.lance"):
            await write_files(table, prepared)
        assert scene.versions() == []

    async def test_of_a_version_that_is_gone(self, scene: Scene, source: Scene) -> None:
        for shallow in (True, False):
            staged = self.cloning(source, shallow=shallow)
            staged.clone.ref_version = 7
            assert await rejected(scene, staged) == (Status.INVALID, "unknown_version")

    async def test_where_other_tables_can_not_be_read(self, scene: Scene, source: Scene) -> None:
        table = scene.table()
        staged = self.cloning(source, shallow=True)
        answer = await prepare(table, None, staged, options=ANY, sources=sources())
        assert isinstance(answer, Refused)
        assert (answer.status, answer.reason) == (Status.UNSUPPORTED, "clone_unsupported")

    @pytest.mark.parametrize("shallow", [True, False])
    async def test_of_a_table_whose_store_is_away(self, scene: Scene, source: Scene, *, shallow: bool) -> None:
        """It is the record's fault as long as the table's own store responds."""

        class Away(LocalStore):
            async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
                raise StoreUnavailable("no such bucket")

        staged = self.cloning(source, shallow=shallow)

        def elsewhere(uri: str) -> ObjectStore:
            return Away(Path(uri))

        answer = await prepare(scene.table(), None, staged, options=ANY, sources=sources(), open_store=elsewhere)
        assert isinstance(answer, Refused)
        assert (answer.status, answer.reason) == (Status.UNSUPPORTED, "clone_unsupported")
        with pytest.raises(StoreUnavailable):
            await prepare(Table(Away(scene.root)), None, staged, options=ANY, sources=sources(), open_store=elsewhere)
