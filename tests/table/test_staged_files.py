"""Files that a transaction brings or names: looked for, measured, copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from committerd.errors import InvalidRequest
from committerd.format.messages import Transaction
from committerd.prepare import Prepared, Rejected, prepare
from committerd.rules.answers import Status
from committerd.writing import write_files
from tests.rules import samples
from tests.rules.operations import create_index, delete, rewrite
from tests.rules.samples import fragment, index, manifest, transaction
from tests.table.scene import ANY, Scene, append, read_at, rejected, world


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "t")


class TestFiles:
    async def test_that_are_missing_are_named(self, scene: Scene) -> None:
        scene.write_versions(1)
        options = replace(ANY, verify_files=True)
        staged = append(1, *(fragment(0, name=f"n{number:02}") for number in range(12)))
        answer = await scene.commit(staged, options)
        assert isinstance(answer, Rejected)
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

    async def test_of_an_index_in_a_base_are_taken_as_described(self, scene: Scene) -> None:
        base = manifest(fragment(0), version=1)
        base.base_paths.add(id=3, path="/nowhere")
        base.reader_feature_flags = base.writer_feature_flags = 16
        scene.write_version(base)
        far = index(2)
        far.base_id = 3
        far.files.add(path="elsewhere")
        staged = read_at(create_index(far), 1)
        assert isinstance(await scene.commit(staged, replace(ANY, verify_files=True)), Prepared)

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
        assert [file.file_size_bytes for file in prepared.manifest.fragments[1].files] == [100, 100, 3]

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
        assert [file.file_size_bytes for file in prepared.manifest.fragments[1].files] == [100, 0]

    async def test_in_a_base_are_taken_as_described(self, scene: Scene) -> None:
        base = manifest(fragment(0), version=1)
        base.base_paths.add(id=3, path="/nowhere")
        base.reader_feature_flags = base.writer_feature_flags = 16
        scene.write_version(base)
        made = fragment(0, name="new", deleted=1)
        made.files[0].base_id = made.deletion_file.base_id = 3
        made.files[0].file_size_bytes = 0
        group = Transaction.DataReplacementGroup(fragment_id=0, new_file=made.files[0])
        options = replace(ANY, verify_files=True)
        for staged in (
            append(1, made),
            transaction(1, data_replacement=Transaction.DataReplacement(replacements=[group])),
        ):
            assert isinstance(await scene.commit(staged, options), Prepared)


class TestRestore:
    async def test_reads_the_version(self, scene: Scene) -> None:
        scene.write_versions(1, 2)
        scene.write_version(manifest(fragment(5), version=3))
        restore = transaction(3, restore=Transaction.Restore(version=2))
        prepared = await scene.commit(restore)
        assert isinstance(prepared, Prepared)
        assert [one.id for one in prepared.manifest.fragments] == [0]

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
        assert [base.path for base in prepared.manifest.base_paths] == [str(source.root)]

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
        prepared = await prepare(table, None, staged, options=options, world=world())
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
        prepared = await prepare(table, None, staged, options=options, world=world())
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
        answer = await prepare(table, None, staged, options=ANY, world=world(open_store=None))
        assert isinstance(answer, Rejected)
        assert (answer.status, answer.reason) == (Status.UNSUPPORTED, "clone_unsupported")
