"""Finding and reading versions."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from committerd.errors import CorruptTable, UnsupportedTable
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.grid import Unreadable
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import Body
from committerd.queue.outcomes import encode_settled
from committerd.stores.local import LocalStore
from committerd.stores.port import Created, Exists, Tail
from committerd.table import manifests as manifests_module
from committerd.table import versions as table_module
from committerd.table.versions import Gap, Table, VersionState, budgets_of, committed_by
from committerd_common.messages import IndexMetadata, Manifest, Member, Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.lance import samples
from tests.lance.samples import column, transaction
from tests.table.scene import Scene, history


class CountingStore(LocalStore):
    """Counts the objects that are read."""

    reads = 0

    async def get_tail(self, key: str, size: int) -> Tail | None:
        self.reads += 1
        return await super().get_tail(key, size)


@pytest.fixture(params=list(NamingScheme))
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(tmp_path / "t", request.param)


def a_uuid(number: int) -> str:
    return str(uuid.UUID(int=number))


async def test_there_is_no_table(tmp_path: Path) -> None:
    table = Scene(tmp_path).table()
    assert await table.latest() is None
    assert await table.versions() == []
    assert table.scheme is None


async def test_the_latest_is_the_highest(scene: Scene) -> None:
    scene.write_versions(*range(1, 12))
    for name in (
        "d9223372036854775809.manifest",
        "18446744073709551614.manifest#1",
        ".tmp_x",
        "latest_version_hint.json",
    ):
        scene.path(f"_versions/{name}").write_bytes(b"")
    scene.path(f"_versions/18446744073709551604.manifest-{a_uuid(1)}").write_bytes(b"")
    table = scene.table()
    assert await table.latest_version() == 11
    assert await table.versions() == list(range(1, 12))
    assert table.scheme is scene.scheme
    latest = await table.latest()
    assert latest is not None
    assert latest.version == 11
    assert table.uri == str(scene.root)


async def test_the_versions_above_another_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pages of three names, of which some are no versions."""
    monkeypatch.setattr(manifests_module, "_LISTED_MAX", 3)
    assert await scene.table().versions_above(0) == []
    scene.write_versions(*range(1, 10))  # whole pages, and nothing else
    assert await scene.table().versions_above(0) == list(range(1, 10))
    scene.write_versions(10, 11)
    detached = "_versions/d9223372036854775809.manifest"
    for key in (detached, "_versions/latest_version_hint.json", "_versions/18446744073709551604.manifest-x"):
        scene.path(key).write_bytes(b"")
    table = scene.table()
    for known in range(13):
        assert await table.versions_above(known) == list(range(known + 1, 12))
        assert table.scheme is scene.scheme
    assert await table.detached_manifests() == [detached]


async def test_a_folder_has_one_kind_of_names(tmp_path: Path) -> None:
    Scene(tmp_path, NamingScheme.V1).write_versions(1)
    Scene(tmp_path, NamingScheme.V2).write_versions(2)
    with pytest.raises(UnsupportedTable, match="some manifests have V1 names"):
        await Scene(tmp_path).table().latest()


async def test_what_is_far_from_the_end_is_read_too(scene: Scene) -> None:
    made = samples.manifest(*(samples.fragment(number) for number in range(3000)))
    scene.write_version(made)
    latest = await scene.latest()
    assert latest.manifest.fragments == made.fragments
    assert latest.transaction is not None


async def test_an_object_that_vanishes_while_it_is_read_is_none(scene: Scene) -> None:
    scene.write_version(samples.manifest(*(samples.fragment(number) for number in range(3000))))

    class Vanishing(LocalStore):
        async def get_range(self, key: str, start: int, end: int) -> bytes | None:
            return None

    table = Table(Vanishing(scene.root, durable=False))
    assert await table.latest_version() == 5
    assert await table.read(5) is None


async def test_a_version_that_was_cleaned_up_is_none(scene: Scene) -> None:
    scene.write_versions(3)
    table = scene.table()
    await table.latest()
    assert await table.read(2) is None
    assert await table.committed(2) is None


async def test_the_latest_is_known_until_it_changes(scene: Scene) -> None:
    scene.write_versions(1, 2)
    store = CountingStore(scene.root, durable=False)
    table = Table(store)
    first = await table.latest()
    assert await table.latest() is first
    assert store.reads == 2
    scene.write_versions(3)
    later = await table.latest()
    assert later is not None
    assert later.version == 3


async def test_a_table_made_anew_under_the_same_name_is_noticed(scene: Scene) -> None:
    scene.write_versions(1, 2, 3)
    table = scene.table()
    await table.latest()
    await history(table, 0, 3)
    scene.write_versions(3, config={"new": "1"})
    again = await table.latest()
    assert again is not None
    assert dict(again.manifest.config) == {"new": "1"}
    scene.path(manifest_key(3, scene.scheme)).unlink()
    shorter = await table.latest()
    assert shorter is not None
    assert shorter.version == 2


async def test_the_transaction_may_be_in_its_file_only(scene: Scene) -> None:
    scene.write_versions(1)
    table = scene.table()
    file = await table.latest()
    assert file is not None
    bare = replace(file, transaction=None, transaction_bytes=None)
    found = await table.transaction(bare)
    assert found == file.transaction
    path = scene.path(f"_transactions/{file.manifest.transaction_file}")
    path.write_bytes(b"\xff")
    assert await table.transaction(bare) is None
    path.unlink()
    assert await table.transaction(bare) is None
    nameless = Manifest()
    nameless.CopyFrom(file.outline)
    nameless.transaction_file = ""
    assert await table.transaction(replace(bare, outline=nameless)) is None


class TestHistory:
    async def test_is_every_version_since(self, scene: Scene) -> None:
        scene.write_versions(*range(1, 41))
        table = scene.table()
        await table.latest()
        committed, gap = await history(table, 3, 40)
        assert [one.version for one in committed] == list(range(4, 41))
        assert gap is None
        assert all(isinstance(one.footprint, Footprint) for one in committed)

    async def test_is_read_more_at_once_while_it_is_small(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        scene.write_versions(*range(1, 101))
        for small, sizes in ((table_module._SMALL_BYTES_MAX, [16, 32, 32, 20]), (0, [16] * 6 + [4])):
            monkeypatch.setattr(table_module, "_SMALL_BYTES_MAX", small)
            table = scene.table()
            await table.latest()
            after, largest, read = 0, 0, list[int]()
            while after < 100:
                some = await table.some_after(after, 100, largest=largest)
                assert not isinstance(some, Gap)
                read.append(len(some))
                after, largest = some[-1].version, max(one.bytes for one in some)
            assert read == sizes

    async def test_ends_at_a_gap(self, scene: Scene) -> None:
        scene.write_versions(1, 2, 4, 5)
        table = scene.table()
        await table.latest()
        committed, gap = await history(table, 1, 5)
        assert ([one.version for one in committed], gap) == ([2], 3)
        assert await history(table, 2, 5) == ([], 3)

    async def test_ends_at_what_can_not_be_decoded(self, scene: Scene) -> None:
        scene.write_versions(1, 2, 3)
        scene.path(manifest_key(2, scene.scheme)).write_bytes(b"nonsense")
        table = scene.table()
        await table.latest()
        assert (await history(table, 1, 3))[1] == 2
        with pytest.raises(CorruptTable):
            await table.read(2)

    async def test_is_read_once(self, scene: Scene) -> None:
        scene.write_versions(*range(1, 20))
        store = CountingStore(scene.root, durable=False)
        table = Table(store, manifests_max=2)
        await table.latest()
        await history(table, 0, 19)
        before = store.reads
        await history(table, 5, 19)
        assert store.reads == before
        table.forget()
        await history(table, 18, 19)
        assert store.reads == before + 1

    async def test_forgets_the_lowest_first(self, scene: Scene) -> None:
        scene.write_versions(*range(1, 13))
        store = CountingStore(scene.root, durable=False)
        table = Table(store, manifests_max=1, footprint_bytes_max=6_000)
        await table.latest()
        await history(table, 0, 12)
        before = store.reads
        await history(table, 4, 12)
        assert store.reads == before
        await history(table, 0, 12)
        assert store.reads > before
        assert table.footprint_bytes <= 6_000

    async def test_keeps_the_highest_whatever_it_takes(self, scene: Scene) -> None:
        scene.write_versions(*range(1, 4))
        store = CountingStore(scene.root, durable=False)
        table = Table(store, manifests_max=1, footprint_bytes_max=1)
        await table.latest_version()
        await history(table, 0, 3)
        before = store.reads
        assert len((await history(table, 2, 3))[0]) == 1
        assert store.reads == before

    async def test_many_tables_stay_within_one_bound_and_read_again_what_they_gave_back(self, scene: Scene) -> None:
        scene.write_versions(*range(1, 13))
        budgets = budgets_of(footprint_bytes=30_000, manifest_bytes=0)
        tables = [Table(CountingStore(scene.root, durable=False), budgets=budgets) for _ in range(12)]
        first = []
        for table in tables:
            await table.latest()
            first.append(await history(table, 0, 12))
            assert budgets.footprints.bytes <= 30_000
            assert budgets.footprints.bytes == sum(one.footprint_bytes for one in tables)
        assert tables[-1].footprint_bytes > 3 * tables[0].footprint_bytes > 0
        assert [await history(table, 0, 12) for table in tables] == first
        assert budgets.footprints.bytes <= 30_000

    async def test_manifests_are_kept_by_size_too(self, scene: Scene) -> None:
        scene.write_versions(1, 2, 3)
        store = CountingStore(scene.root, durable=False)
        table = Table(store, manifest_bytes_max=1)
        await table.latest()
        await table.read(2)
        await table.read(2)
        assert store.reads == 2
        await table.read(3)
        await table.read(2)
        assert store.reads == 4


class TestFootprints:
    async def of(self, scene: Scene, committed: Transaction, **other: object) -> Footprint | Unreadable:
        scene.write_version(samples.manifest(samples.fragment(0), version=2, **other), committed)  # type: ignore[arg-type]
        table = scene.table()
        await table.latest()
        found = await table.committed(2)
        assert found is not None
        return found.footprint

    async def test_of_a_schema_change_need_the_schema_below(self, scene: Scene) -> None:
        tighter = [column(0), column(1), column(2, nullable=False)]
        change = transaction(1, project=Transaction.Project(schema=tighter, preserves_nullability=True))
        without = await self.of(scene, change, columns=tighter)
        assert isinstance(without, Footprint)
        assert without.preserves_nullability
        scene.write_versions(1)
        known = await self.of(scene, change, columns=tighter)
        assert isinstance(known, Footprint)
        assert not known.preserves_nullability

    async def test_of_an_operation_that_we_do_not_know(self, scene: Scene) -> None:
        unknown = Transaction.FromString(transaction(1).SerializeToString() + bytes([0x9A, 0x07, 0]))
        assert await self.of(scene, unknown) is Unreadable.UNKNOWN_OPERATION

    async def test_of_an_operation_that_says_more(self, scene: Scene) -> None:
        append = Transaction.Append.FromString(b"\xf8\x01\x01")
        assert await self.of(scene, transaction(1, append=append)) is Unreadable.UNKNOWN_FIELDS

    async def test_of_what_can_not_be_decoded(self, scene: Scene) -> None:
        broken = samples.index(1)
        broken.fragment_bitmap = b"nonsense"
        create = Transaction.CreateIndex(new_indices=[broken])
        assert await self.of(scene, transaction(1, create_index=create)) is Unreadable.NO_TRANSACTION

    async def test_of_a_version_without_transaction(self, scene: Scene) -> None:
        scene.write_versions(2)
        path = scene.path(manifest_key(2, scene.scheme))
        made = samples.manifest(samples.fragment(0), version=2)
        body = made.SerializeToString()
        path.write_bytes(len(body).to_bytes(4, "little") + body + bytes(8) + b"\0\0\x02\0LANC")
        table = scene.table()
        await table.latest()
        found = await table.committed(2)
        assert found is not None
        assert found.footprint is Unreadable.NO_TRANSACTION


async def test_a_uuid_is_found_alone_and_among_members(scene: Scene) -> None:
    scene.write_version(samples.manifest(version=1), transaction(0, a_uuid(1), overwrite=Transaction.Overwrite()))
    group = transaction(1, a_uuid(2), append=Transaction.Append())
    group.transaction_properties.update(encode_settled([Member(offset=1, uuid=a_uuid(3))], [], topic_id="t"))
    scene.write_version(samples.manifest(version=2), group)
    table = scene.table()
    await table.latest()
    found = [await table.seen(a_uuid(number), after=0, latest=2) for number in range(1, 5)]
    assert found == [1, 2, 2, None]
    assert await table.seen(a_uuid(1), after=1, latest=2) is None


async def test_what_we_made_need_not_be_read(scene: Scene) -> None:
    scene.write_versions(1)
    made = samples.manifest(version=2, columns=[column(0)])
    other = Scene(scene.root.with_name("other"), scene.scheme)
    other.write_version(made, transaction(1, project=Transaction.Project(schema=[column(0)])))
    body = Body([other.path(manifest_key(2, scene.scheme)).read_bytes()])
    made_there = await other.latest()
    store = CountingStore(scene.root, durable=False)
    table = Table(store)
    first = await table.latest()
    assert first is not None
    assert isinstance(await store.put_if_absent(manifest_key(2, scene.scheme), bytes(body)), Created)
    assert isinstance(await store.put_if_absent(manifest_key(2, scene.scheme), bytes(body)), Exists)
    table.remember(made_there, body, committed_by(made_there.transaction, made_there, before=first.outline))
    before = store.reads
    committed, _ = await history(table, 1, 2)
    assert store.reads == before
    assert isinstance(committed[0].footprint, Footprint)
    assert committed[0].footprint.kind is Kind.PROJECT
    assert await table.latest() is made_there


async def test_a_shorter_table_is_noticed_when_the_latest_is_not_known(scene: Scene) -> None:
    scene.write_versions(1, 2, 3)
    table = Table(scene.store, manifests_max=1)
    await table.latest()
    await history(table, 1, 3)
    known = await table.committed(3)
    assert known is not None
    assert await table.committed(3) is known
    for version in (2, 3):
        scene.path(manifest_key(version, scene.scheme)).unlink()
    assert await table.latest() is not None
    assert await table.committed(3) is None


class TestSkim:
    """A version without its fragments."""

    @pytest.mark.parametrize("fragments", [2, 3000])
    async def test_says_what_there_is(self, scene: Scene, fragments: int) -> None:
        made = samples.manifest(*(samples.fragment(number) for number in range(fragments)), version=2)
        scene.write_version(made)
        table = scene.table()
        await table.latest_version()
        found = await table.skim_settled(2)
        assert found is not None
        (outline, count, data_bytes), size, settled = found
        assert await table.outline(2) == outline
        assert await table.outline_settled(2) == (outline, settled)
        assert (outline.version, len(outline.fragments), count) == (2, 0, fragments)
        assert data_bytes == sum(file.file_size_bytes for one in made.fragments for file in one.files)
        assert size == scene.path(manifest_key(2, scene.scheme)).stat().st_size

    async def test_of_what_has_vanished_is_none(self, scene: Scene) -> None:
        scene.write_version(samples.manifest(*(samples.fragment(number) for number in range(3000))))
        table = scene.table()
        await table.latest_version()
        for read in (table.skim_settled, table.outline, table.outline_settled):
            assert await read(1) is None

        class Vanishing(LocalStore):
            async def get_range(self, key: str, start: int, end: int) -> bytes | None:
                return None

        table = Table(Vanishing(scene.root, durable=False))
        await table.latest_version()
        for read in (table.skim_settled, table.outline, table.outline_settled):
            assert await read(5) is None
        assert await table.outline_settled_of_each([5, 1]) == [None, None]

    async def test_of_many_reads_all_that_can_be_read(self, scene: Scene) -> None:
        for version in range(1, 5):
            fragments = (samples.fragment(number) for number in range(3000 if version % 2 else 2))
            scene.write_version(samples.manifest(*fragments, version=version))
        scene.path(manifest_key(3, scene.scheme)).write_bytes(b"no manifest")
        table = scene.table()
        await table.latest_version()
        *found, damaged = await table.outline_settled_of_each([4, 9, 1, 2, 3])
        assert found == [await table.outline_settled(version) for version in (4, 9, 1, 2)]
        assert isinstance(damaged, CorruptTable)
        with pytest.raises(CorruptTable):
            await table.outline_settled(3)


class TestSettled:
    """The queue entries of a version, without reading all of it."""

    LARGE = 3000

    async def of(self, scene: Scene, made: Manifest, *indices: IndexMetadata) -> str | None:
        scene.write_version(made, transaction(made.version - 1, a_uuid(7), append=Transaction.Append()), indices)
        table = scene.table()
        await table.latest_version()
        settled = await table.settled(made.version)
        assert settled is not None
        assert settled.operation == "append"
        return settled.uuid

    @pytest.mark.parametrize("fragments", [1, LARGE])
    @pytest.mark.parametrize("indices", [0, 2, LARGE])
    async def test_is_found_in_any_layout(self, scene: Scene, fragments: int, indices: int) -> None:
        made = samples.manifest(*(samples.fragment(number) for number in range(fragments)), version=2)
        assert await self.of(scene, made, *(samples.index(number) for number in range(indices))) == a_uuid(7)

    async def test_of_a_version_that_is_gone_is_none(self, scene: Scene) -> None:
        scene.write_versions(1)
        table = scene.table()
        await table.latest_version()
        assert await table.settled(2) is None

    async def test_is_read_once_for_the_newest_that_were_asked_for(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene.write_versions(1, 2, 3)
        store = CountingStore(scene.root, durable=False)
        monkeypatch.setattr("committerd.table.versions.SETTLED_BYTES_MAX", 1300)
        table = Table(store)
        await table.latest_version()
        first = await table.settled(1)
        assert await table.settled(1) is first
        assert store.reads == 1
        assert await table.settled(2, keep=False) is not await table.settled(2)
        assert store.reads == 3
        await table.settled(3)
        await table.settled(1)
        assert store.reads == 5
        table.forget()
        await table.settled(3)
        assert store.reads == 6

    async def test_is_found_when_it_is_large_itself(self, scene: Scene) -> None:
        many = [samples.fragment(number) for number in range(self.LARGE)]
        staged = transaction(1, a_uuid(7), append=Transaction.Append(fragments=many))
        scene.write_version(samples.manifest(*many, version=2), staged)
        table = scene.table()
        await table.latest_version()
        settled = await table.settled(2)
        assert settled is not None
        assert settled.uuid == a_uuid(7)

    @pytest.mark.parametrize("front", [b"", b"\x01\0\0\0\xff"])
    async def test_of_a_transaction_in_its_file_only(self, scene: Scene, front: bytes) -> None:
        made = samples.manifest(*(samples.fragment(number) for number in range(self.LARGE)), version=2)
        made.transaction_file = f"1-{a_uuid(7)}.txn"
        staged = transaction(1, a_uuid(7), append=Transaction.Append())
        scene.path(f"_transactions/{made.transaction_file}").write_bytes(staged.SerializeToString())
        body = made.SerializeToString()
        framed = front + len(body).to_bytes(4, "little") + body + len(front).to_bytes(8, "little")
        scene.path(manifest_key(2, scene.scheme)).write_bytes(framed + b"\0\0\x02\0LANC")
        table = scene.table()
        await table.latest_version()
        settled = await table.settled(2)
        assert settled is not None
        assert settled.uuid == a_uuid(7)


async def test_the_latest_version_is_known_again_however_many_others_were_read_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "_ENDS_MAX", 100)
    scene = Scene(tmp_path / "t")
    scene.write_versions(*range(1, 301))
    table = scene.table()
    assert await table.latest() is not None
    await history(table, 0, 299)
    assert await table.standing(300) is VersionState.SAME
