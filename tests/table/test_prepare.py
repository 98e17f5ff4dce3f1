"""One transaction against a table in a folder: the outcome, and what is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap

from committerd.errors import CorruptTable, InvalidRequest, StoreUnavailable, UnsupportedTable
from committerd.lance.format.manifest_file import decode
from committerd.lance.operations.create_index import REUSE_INLINE_BYTES_MAX
from committerd.lance.versions.draft import CreateOptions
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.stores.local import LocalStore
from committerd.stores.port import Exists
from committerd.table.case import PrepareOptions
from committerd.table.judge import explain
from committerd.table.prepare import Prepared, create_options, prepare
from committerd.table.versions import History, Table
from committerd.table.writing import put
from committerd_common.index_details import pack_details
from committerd_common.messages import DataFragment, FragmentReuseIndexDetails, Transaction
from committerd_common.paths import NamingScheme, deletion_key, manifest_key
from tests.lance import samples
from tests.lance.operations import create_index, delete, rewrite, update
from tests.lance.samples import column, fragment, index, manifest, transaction
from tests.table.scene import ANY, Scene, append, built, create, open_store, read_at, rejected, sources, verdict_on


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "t")


class TestCommit:
    async def test_writes_manifest_and_transaction(self, scene: Scene) -> None:
        scene.write_versions(1)
        prepared = await scene.commit(append())
        assert isinstance(prepared, Prepared)
        assert prepared.version == 2
        body = scene.path(f"_transactions/1-{samples.TRANSACTION_UUID}.txn").read_bytes()
        assert Transaction.FromString(body) == prepared.transaction
        latest = await scene.latest()
        assert latest.transaction == prepared.transaction
        assert latest.indices == prepared.file.indices
        assert [one.id for one in latest.manifest.fragments] == [0, 1]
        assert prepared.file.manifest.fragments == latest.manifest.fragments

    @pytest.mark.parametrize(("v2", "name"), [(True, "18446744073709551614.manifest"), (False, "1.manifest")])
    async def test_makes_a_table(self, scene: Scene, v2: bool, name: str) -> None:
        options = replace(ANY, create=CreateOptions(enable_v2_manifest_paths=v2))
        assert isinstance(await scene.commit(create(), options), Prepared)
        assert scene.versions() == [name]
        assert isinstance(await scene.commit(append(1), options), Prepared)
        assert len(scene.versions()) == 2

    async def test_keeps_the_names_of_the_table(self, tmp_path: Path) -> None:
        old = Scene(tmp_path, NamingScheme.V1)
        old.write_versions(1)
        await old.commit(append())
        assert old.versions() == ["1.manifest", "2.manifest"]

    async def test_a_number_that_is_taken_is_not_written(self, scene: Scene) -> None:
        scene.write_versions(1)
        table = scene.table()
        prepared = await prepare(
            table, await table.latest(), append(), options=ANY, sources=sources(), open_store=open_store
        )
        assert isinstance(prepared, Prepared)
        scene.write_versions(2)
        assert isinstance(await put(table, prepared), Exists)
        body = scene.path(manifest_key(2, NamingScheme.V2)).read_bytes()
        assert decode(body).transaction != prepared.transaction

    async def test_reserved_ids_are_told(self, scene: Scene) -> None:
        scene.write_versions(1)
        staged = transaction(1, reserve_fragments=Transaction.ReserveFragments(num_fragments=3))
        prepared = await scene.commit(staged)
        assert isinstance(prepared, Prepared)
        assert prepared.reserved == (1, 3)

    async def test_a_committer_at_work_reads_nothing_to_judge(self, scene: Scene) -> None:
        scene.write_versions(1)
        table = scene.table()
        for number in range(3):
            staged = append(1, fragment(0, name=f"n{number}"))
            assert isinstance(await scene.commit(staged, table=table), Prepared)
        for path in (scene.root / "_versions").iterdir():
            path.unlink()
        judged = await verdict_on(History(table), await table.read(4), append(1))
        assert not isinstance(judged, Refused)
        assert [one.version for one in judged.found.checked] == [2, 3, 4]

    async def test_entries_of_the_queue_come_with_the_version(self, scene: Scene) -> None:
        scene.write_versions(1, table_metadata={"committerd.position": "old", "mine": "1"})
        table = scene.table()
        latest = await table.latest()
        judged = await verdict_on(History(table), latest, append())
        assert not isinstance(judged, Refused)
        entries = {"committerd.position": "new"}
        prepared = await built(table, latest, judged, table_metadata=entries)
        assert dict(prepared.file.manifest.table_metadata) == {"committerd.position": "new", "mine": "1"}


class TestRefusals:
    async def test_of_what_can_not_be_valid(self, scene: Scene) -> None:
        scene.write_versions(1)
        assert await rejected(scene, append(9)) == (Status.INVALID, "future_read_version")
        clone = transaction(1, clone=Transaction.Clone(ref_path="/x"))
        assert await rejected(scene, clone, PrepareOptions()) == (Status.UNSUPPORTED, "operation_not_allowed")

    async def test_of_what_does_not_fit(self, scene: Scene) -> None:
        scene.write_versions(1)
        newer = DataFragment(physical_rows=1, files=[samples.data_file("n", minor=9)])
        assert await rejected(scene, append(1, newer)) == (Status.INVALID, "file_version")

    async def test_of_what_can_not_be_built(self, scene: Scene) -> None:
        scene.write_versions(1)
        config = Transaction.UpdateConfig(field_metadata_updates={7: samples.updates({"a": "1"})})
        assert await rejected(scene, transaction(1, update_config=config)) == (Status.INVALID, "unknown_field")

    async def test_where_there_is_no_table(self, scene: Scene) -> None:
        assert await rejected(scene, append(0)) == (Status.INVALID, "no_table")

    async def test_where_there_is_one_already(self, scene: Scene) -> None:
        scene.write_versions(1)
        assert await rejected(scene, create(), replace(ANY, create_only=True)) == (Status.RETRYABLE, "table_exists")
        clone = transaction(1, clone=Transaction.Clone(ref_path="/x"))
        assert await rejected(scene, clone) == (Status.RETRYABLE, "table_exists")

    async def test_of_a_conflict_name_the_version_and_the_rule(self, scene: Scene) -> None:
        scene.write_versions(1)
        overwrite = Transaction.Overwrite(schema=[column(0)])
        scene.write_version(manifest(version=2), transaction(1, overwrite=overwrite))
        answer = await scene.commit(append())
        assert isinstance(answer, Refused)
        assert (answer.status, answer.reason, answer.rule) == (Status.INCOMPATIBLE, "conflict", "incompatible")
        assert (answer.conflicting_version, answer.conflicting_operation) == (2, "overwrite")
        assert explain(answer.found.checked) == [
            "version 2 overwrite: incompatible -> incompatible: The two always conflict, and for good: theirs replaced "
            "the table that ours was meant for."
        ]

    async def test_that_may_be_tried_again_name_the_version_to_read(self, scene: Scene) -> None:
        scene.write_versions(1)
        scene.write_version(manifest(fragment(9), version=2), read_at(rewrite(0), 1))
        answer = await scene.commit(read_at(delete(fragment(0, deleted=1)), 1))
        assert isinstance(answer, Refused)
        assert answer.status is Status.RETRYABLE
        assert "Read version 2" in answer.message

    async def test_of_an_unreadable_version(self, scene: Scene) -> None:
        scene.write_versions(1)
        unknown = Transaction.FromString(transaction(1).SerializeToString() + bytes([0x9A, 0x07, 0]))
        scene.write_version(manifest(fragment(0), version=2), unknown)
        answer = await scene.commit(append())
        assert isinstance(answer, Refused)
        assert (answer.status, answer.rule, answer.conflicting_operation) == (
            Status.INCOMPATIBLE,
            "unknown_operation",
            "",
        )
        assert explain(answer.found.checked)[0].startswith("version 2 unreadable: unknown_operation")


class TestGap:
    async def test_can_not_be_decided(self, scene: Scene) -> None:
        scene.write_versions(1, 3, 4)
        answer = await scene.commit(append())
        assert isinstance(answer, Refused)
        assert (answer.status, answer.reason, answer.conflicting_version) == (Status.UNDECIDED, "history_gap", 2)

    async def test_may_be_tried_again_where_a_duplicate_is_ruled_out(self, scene: Scene) -> None:
        scene.write_versions(1, 3)
        options = replace(ANY, rules_out_duplicate=True)
        assert await rejected(scene, append(), options) == (Status.RETRYABLE, "history_gap")

    async def test_does_not_matter_for_the_latest_whatever_it_is(self, scene: Scene) -> None:
        scene.write_versions(1, 3)
        assert isinstance(await scene.commit(append(0)), Prepared)

    async def test_the_read_version_itself_may_be_gone(self, scene: Scene) -> None:
        scene.write_versions(2, 3)
        assert isinstance(await scene.commit(append()), Prepared)


class TestDeletions:
    """Fragment 0 has 10 rows; version 2 of others deleted some."""

    async def theirs(self, scene: Scene, *rows: int) -> None:
        scene.write_versions(1)
        made = scene.write_deletions(fragment(0, deleted=1), *rows)
        scene.write_version(manifest(made, version=2), read_at(delete(made), 1))

    def ours(self, scene: Scene, *rows: int) -> Transaction:
        made = fragment(0)
        made.deletion_file.CopyFrom(samples.deletion_file(1, number=77))
        scene.write_deletions(made, *rows)
        return read_at(delete(made), 1)

    async def test_of_both_are_in_the_version(self, scene: Scene) -> None:
        await self.theirs(scene, 0, 1)
        prepared = await scene.commit(self.ours(scene, 5))
        assert isinstance(prepared, Prepared)
        (made,) = (await scene.latest()).manifest.fragments
        assert (made.deletion_file.num_deleted_rows, made.deletion_file.read_version) == (3, 2)
        body = scene.path(deletion_key(0, made.deletion_file, staged=False)).read_bytes()
        assert BitMap.deserialize(body) == BitMap([0, 1, 5])
        assert prepared.transaction.read_version == 2

    async def test_of_the_same_row_are_refused(self, scene: Scene) -> None:
        await self.theirs(scene, 0, 1)
        answer = await scene.commit(self.ours(scene, 1, 5))
        assert isinstance(answer, Refused)
        assert (answer.status, answer.reason, answer.rule) == (Status.RETRYABLE, "row_conflict", "same_row")
        assert "at addresses 1." in answer.message
        assert (answer.conflicting_version, answer.conflicting_operation) == (2, "delete")

    async def test_without_the_read_version_can_not_be_told_apart(self, scene: Scene) -> None:
        await self.theirs(scene, 0)
        staged = self.ours(scene, 5)
        scene.path(manifest_key(1, NamingScheme.V2)).unlink()
        assert await rejected(scene, staged) == (Status.RETRYABLE, "read_version_gone")

    async def test_may_lie_in_a_base(self, scene: Scene, tmp_path: Path) -> None:
        for is_root, folder in ((True, "_deletions/"), (False, "")):
            here, far = Scene(tmp_path / f"t{is_root}"), Scene(tmp_path / f"far{is_root}")
            old = fragment(0, deleted=1)
            old.deletion_file.base_id = 3
            name = deletion_key(0, old.deletion_file, staged=False).removeprefix("_deletions/")
            far.path(folder + name).write_bytes(BitMap([9]).serialize())
            base = manifest(old, version=1)
            base.base_paths.add(id=3, path=str(far.root), is_dataset_root=is_root)
            base.reader_feature_flags = base.writer_feature_flags = 17
            here.write_version(base)
            theirs = here.write_deletions(fragment(0, deleted=1), 0, 9)
            latest = manifest(theirs, version=2)
            latest.base_paths.extend(base.base_paths)
            latest.reader_feature_flags = latest.writer_feature_flags = 17
            here.write_version(latest, read_at(delete(theirs), 1))
            prepared = await here.commit(self.ours(here, 5, 9))
            assert isinstance(prepared, Prepared)
            assert prepared.file.manifest.fragments[0].deletion_file.num_deleted_rows == 3

    async def test_in_a_base_that_can_not_be_read(self, scene: Scene) -> None:
        await self.theirs(scene, 0)
        staged = self.ours(scene, 5)
        old = manifest(fragment(0, deleted=1), version=1)
        old.fragments[0].deletion_file.base_id = 3
        scene.write_version(old)
        assert await rejected(scene, staged) == (Status.INVALID, "base_unreadable")

    async def test_whose_file_is_gone(self, scene: Scene) -> None:
        await self.theirs(scene, 0)
        staged = self.ours(scene, 5)
        scene.path(deletion_key(0, staged.delete.updated_fragments[0].deletion_file, staged=True)).unlink()
        assert await rejected(scene, staged) == (Status.INVALID, "missing_file")

    async def test_that_nobody_counted_are_counted(self, scene: Scene) -> None:
        scene.write_versions(1)
        staged = self.ours(scene, 3, 4)
        staged.delete.updated_fragments[0].deletion_file.num_deleted_rows = 0
        prepared = await scene.commit(staged)
        assert isinstance(prepared, Prepared)
        assert prepared.file.manifest.fragments[0].deletion_file.num_deleted_rows == 2

    async def test_of_nothing_are_no_deletions(self, scene: Scene) -> None:
        scene.write_versions(1)
        prepared = await scene.commit(self.ours(scene))
        assert isinstance(prepared, Prepared)
        assert not prepared.file.manifest.fragments[0].HasField("deletion_file")


class TestIndices:
    async def test_do_not_cover_what_was_rewritten_since(self, scene: Scene) -> None:
        scene.write_versions(1, max_fragment_id=5)
        rewritten = update(fragment(0, name="x"), fields_modified=[1], update_mode=Transaction.REWRITE_COLUMNS)
        scene.write_version(manifest(fragment(0, name="x"), version=2), read_at(rewritten, 1))
        prepared = await scene.commit(read_at(create_index(index(1, fields=[1], fragments=[0, 5])), 1))
        assert isinstance(prepared, Prepared)
        assert prepared.file.indices[0].fragment_bitmap == samples.bitmap([5])

    async def test_of_reuse_take_in_what_was_rewritten_since(self, scene: Scene) -> None:
        kept, new = (([8], [9]), ([0], [5]))
        before, after = samples.reuse_index(1, kept), samples.reuse_index(2, kept, new)
        scene.write_version(manifest(fragment(0), version=1), indices=[before])
        scene.write_version(manifest(fragment(5), version=2), read_at(rewrite(0), 1), [after])
        trimmed = read_at(create_index(samples.reuse_index(3), removed=(before,)), 1)
        prepared = await scene.commit(trimmed)
        assert isinstance(prepared, Prepared)
        (made,) = prepared.file.indices
        content = samples.reuse_content(made.index_details.value)
        assert [entry.groups[0].old_fragments[0].id for entry in content.versions] == [0]

    async def test_of_reuse_whose_file_a_cleanup_has_removed_are_made_again(self, scene: Scene) -> None:
        before, after = samples.reuse_index(1, ([8], [9])), samples.reuse_index(2, ([8], [9]), ([0], [5]))
        before.index_details.CopyFrom(samples.external_details("details.binpb", 9))
        scene.write_version(manifest(fragment(0), version=1), indices=[before])
        scene.write_version(manifest(fragment(5), version=2), read_at(rewrite(0), 1), [after])
        trimmed = read_at(create_index(samples.reuse_index(3), removed=(before,)), 1)
        assert await rejected(scene, trimmed) == (Status.RETRYABLE, "read_version_gone")

    async def test_of_reuse_may_have_a_file_of_their_own(self, scene: Scene) -> None:
        old = samples.reuse_index(1, ([0], [5]))
        body = samples.reuse_content(old.index_details.value).SerializeToString()
        old.index_details.CopyFrom(samples.external_details("details.binpb", len(body)))
        scene.write_version(manifest(fragment(5), version=1), indices=[old, index(2, fragments=[0])])
        assert await rejected(scene, append()) == (Status.INVALID, "missing_file")
        scene.path(f"_indices/{'0' * 8}-0000-0000-0000-{'0' * 11}1/details.binpb").write_bytes(body)
        prepared = await scene.commit(append())
        assert isinstance(prepared, Prepared)
        assert prepared.file.indices[1].fragment_bitmap == samples.bitmap([5])

    async def test_of_reuse_that_are_large_after_the_rebase(self, scene: Scene) -> None:
        kept, new = (([8], [9]), ([0], [5]))
        before, after = samples.reuse_index(1, kept), samples.reuse_index(2, kept, new)
        details = FragmentReuseIndexDetails(inline=samples.reuse_content(after.index_details.value))
        details.inline.versions[1].groups[0].changed_row_addrs = bytes(REUSE_INLINE_BYTES_MAX)
        after.index_details.CopyFrom(pack_details(details))
        scene.write_version(manifest(fragment(0), version=1), indices=[before])
        scene.write_version(manifest(fragment(5), version=2), read_at(rewrite(0), 1), [after])
        prepared = await scene.commit(read_at(create_index(samples.reuse_index(3), removed=(before,)), 1))
        assert isinstance(prepared, Prepared), prepared
        assert len(prepared.judged.files) == 1
        assert isinstance(await scene.commit(append(3)), Prepared)

    async def test_of_reuse_in_a_file_are_read_once(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        old, read = samples.reuse_index(1, ([0], [5])), list[str]()
        body = samples.reuse_content(old.index_details.value).SerializeToString()
        old.index_details.CopyFrom(samples.external_details("details.binpb", len(body)))
        scene.write_version(manifest(fragment(5), version=1), indices=[old])
        scene.path(f"_indices/{'0' * 8}-0000-0000-0000-{'0' * 11}1/details.binpb").write_bytes(body)
        get_range = LocalStore.get_range

        async def noted(store: LocalStore, key: str, start: int, end: int) -> bytes | None:
            read.append(key)
            return await get_range(store, key, start, end)

        monkeypatch.setattr(LocalStore, "get_range", noted)
        table = scene.table()
        for number in range(3):
            prepared = await scene.commit(append(0, fragment(0, name=f"new{number}")), table=table)
            assert isinstance(prepared, Prepared)
        assert len([key for key in read if key.startswith("_indices/")]) == 1


class TestTable:
    async def test_that_we_can_not_write_upon_is_no_fault_of_the_record(self, scene: Scene) -> None:
        made = manifest(fragment(0), version=1)
        made.reader_feature_flags = made.writer_feature_flags = 1 << 20
        scene.write_version(made)
        with pytest.raises(UnsupportedTable):
            await scene.commit(append())

    async def test_that_is_not_sound_stops(self, scene: Scene) -> None:
        made = manifest(fragment(0), version=1)
        made.max_fragment_id = 0
        made.fragments.append(fragment(4))
        scene.write_version(made)
        with pytest.raises(CorruptTable):
            await scene.commit(append())

    async def test_that_does_not_answer(self, scene: Scene) -> None:
        scene.write_versions(1, 2)
        table = scene.table()
        latest = await table.latest()
        scene.path(manifest_key(2, NamingScheme.V2)).chmod(0)

        class Broken(type(scene.store)):  # type: ignore[misc]
            async def get_tail(self, key: str, size: int) -> None:
                raise StoreUnavailable("the disk is on fire")

        table = Table(Broken(scene.root, durable=False))
        with pytest.raises(StoreUnavailable):
            await prepare(table, latest, append(), options=ANY, sources=sources())


class TestCreateOptions:
    def test_are_those_of_pylance(self) -> None:
        wish = {"enable_stable_row_ids": True, "enable_v2_manifest_paths": False, "data_storage_version": "2.1"}
        assert create_options(wish) == CreateOptions(**wish)  # type: ignore[arg-type]
        assert create_options({}) == CreateOptions()

    @pytest.mark.parametrize(
        "wish",
        [
            {"unknown": True},
            {"enable_stable_row_ids": "yes"},
            {"data_storage_version": "9.9"},
            {"data_storage_version": 2},
        ],
    )
    def test_that_nobody_knows(self, wish: dict[str, object]) -> None:
        with pytest.raises(InvalidRequest) as error:
            create_options(wish)
        assert error.value.code == "create_options"


class TestAnAppendThatNamesNoVersion:
    async def test_is_to_be_done_again_for_another_schema(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path / "t")
        scene.write_versions(1)
        made = fragment(0, name="new")
        made.files[0].fields[:] = [7, 8, 9]
        assert await rejected(scene, append(0, made)) == (Status.RETRYABLE, "schema_differs")
        made.files[0].fields[:] = [0, 1, 2]
        assert isinstance(await scene.commit(append(0, made)), Prepared)
