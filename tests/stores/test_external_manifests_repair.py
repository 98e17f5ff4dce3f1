"""What others left, lost, cleaned up or made without the manifest store, and how it is handled."""

from __future__ import annotations

import logging
from uuid import uuid4

import pytest

from committerd.errors import CorruptTable, PutUnknown, RefusedToRun, StoreUnavailable
from committerd.stores.external_manifests import ExternalManifests
from committerd.stores.port import Created, Exists, ManifestEntry
from committerd.stores.probing import Prover, probe
from committerd_common.paths import NamingScheme, manifest_key, staging_name
from tests.contracts.entries import FakeManifests, Trouble
from tests.simulation.process import EPOCH
from tests.simulation.store import FakeStore
from tests.stores.manifests import FINAL, LOOKS, OTHERS, SECOND, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


class TestRepair:
    """Of what another writer left behind."""

    @pytest.fixture(autouse=True)
    def _left(self, scene: Scene) -> None:
        scene.shelf.entries[1] = ManifestEntry(version=1, key=OTHERS, size=5)
        scene.bucket.put(OTHERS, b"other")

    async def test_is_counted(self, scene: Scene) -> None:
        assert await scene.process().list("_versions/") == [FINAL]
        assert scene.events == ["repaired"]
        scene.require_finished(b"other")

    async def test_by_two_at_once(self, scene: Scene) -> None:
        async def other() -> None:
            await scene.process().list("_versions/")

        for call in ("objects.copy", "entries.replace", "objects.delete"):
            store = scene.process(Trouble(meanwhile={call: other}))
            assert await store.get(FINAL) == b"other"
            scene.require_finished(b"other")

    async def test_takes_the_size_from_the_object_where_the_entry_does_not_tell(self, scene: Scene) -> None:
        scene.shelf.entries[1] = ManifestEntry(version=1, key=OTHERS)
        assert await scene.process().get(FINAL) == b"other"
        scene.require_finished(b"other")

    async def test_that_fails_is_unavailable_and_told(self, scene: Scene) -> None:
        store = scene.process(Trouble(before={"entries.replace": StoreUnavailable("away")}))
        with pytest.raises(StoreUnavailable):
            await store.list("_versions/")
        assert await store.list("_versions/") == [FINAL]

    async def test_leaves_the_staged_manifest_where_it_can_not_be_deleted(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = scene.process(Trouble(before={"objects.delete": StoreUnavailable("away")}))
        with caplog.at_level(logging.INFO):
            assert await store.get(FINAL) == b"other"
        assert "manifest.staging_left" in caplog.messages
        assert await store.list("_versions/", limit=1) == [FINAL]

    @pytest.mark.parametrize("look", LOOKS)
    async def test_of_a_manifest_that_is_gone_says_what_happened(self, scene: Scene, look: str) -> None:
        scene.take_away(OTHERS)
        if look == "put_if_absent":
            assert await LOOKS[look](scene.process())
            return
        with pytest.raises(CorruptTable, match=r"Lance 4\.0\.0 deletes the staged manifest") as raised:
            await LOOKS[look](scene.process())
        assert raised.value.code == "manifest_lost"

    async def test_of_a_table_with_v1_names(self, scene: Scene) -> None:
        key = "_versions/" + staging_name(7, NamingScheme.V1, "11111111-2222-4333-8444-555555555555")
        scene.shelf.entries[7] = ManifestEntry(version=7, key=key, size=5)
        scene.bucket.put(key, b"seven")
        assert await scene.process().list("_versions/") == [OTHERS, "_versions/7.manifest"]
        # Under the other name it does not exist.
        assert await scene.process().get(manifest_key(7, NamingScheme.V2)) is None


class TestEntriesAndObjectsThatDisagree:
    """Cleanups, other writers, copies and accidents."""

    async def test_a_table_without_entries_is_as_it_lies(self, scene: Scene) -> None:
        scene.bucket.put(FINAL, b"old")
        store = scene.process()
        assert await store.list("_versions/") == [FINAL]
        assert await store.get(FINAL) == b"old"
        assert await store.get(SECOND) is None
        assert await store.put_if_absent(FINAL, b"one") == Exists()
        assert scene.bucket.objects == {FINAL: b"old"}
        assert not scene.shelf.entries
        assert await store.put_if_absent(SECOND, b"two") == Created()
        assert await store.list("_versions/") == [SECOND, FINAL]

    async def test_a_version_that_was_cleaned_up_is_not_there(self, scene: Scene) -> None:
        store = scene.process()
        for key in (FINAL, SECOND):
            await store.put_if_absent(key, key.encode())
        scene.take_away(FINAL)
        assert await store.list("_versions/") == [SECOND]
        assert await store.get_tail(FINAL, 16) is None
        assert await store.put_if_absent(FINAL, b"again") == Exists()
        assert FINAL not in scene.bucket.objects
        assert not scene.staged

    async def test_a_version_without_an_entry_gets_one(self, scene: Scene) -> None:
        """If another writer used plain s3://, Lance's readers through s3+ddb:// don't see its version."""
        store = scene.process()
        await store.put_if_absent(FINAL, b"one")
        scene.bucket.put(SECOND, b"plain")
        assert await store.list("_versions/") == [SECOND, FINAL]
        assert scene.shelf.entries[2] == ManifestEntry(version=2, key=SECOND, size=5)
        assert scene.events == ["registered"]

    @pytest.mark.parametrize("error", [StoreUnavailable("away"), PutUnknown("lost")])
    async def test_and_a_listing_does_not_depend_on_it(self, scene: Scene, error: Exception) -> None:
        store = scene.process(Trouble(before={"entries.put_if_absent": error}))
        await scene.process().put_if_absent(FINAL, b"one")
        scene.bucket.put(SECOND, b"plain")
        assert await store.list("_versions/") == [SECOND, FINAL]
        assert scene.shelf.entries.keys() == {1}

    async def test_a_version_that_came_between_the_two_requests_is_no_stranger(self, scene: Scene) -> None:
        await scene.process().put_if_absent(FINAL, b"one")

        async def other() -> None:
            await scene.process().put_if_absent(SECOND, b"second")

        store = scene.process(Trouble(meanwhile={"objects.list": other}))
        assert SECOND in await store.list("_versions/")
        assert scene.events == []
        scene.require_finished(b"second", version=2)

    async def test_a_table_that_was_deleted_without_its_entries_is_told(self, scene: Scene) -> None:
        store = scene.process()
        await store.put_if_absent(FINAL, b"one")
        scene.take_away(FINAL)
        with pytest.raises(CorruptTable, match="deleted without its entries") as raised:
            await store.list("_versions/", limit=16)
        assert raised.value.code == "manifest_lost"

    async def test_a_latest_version_that_is_no_longer_the_latest_may_be_gone(self, scene: Scene) -> None:
        store = scene.process()
        await store.put_if_absent(FINAL, b"one")

        async def replaced() -> None:
            await scene.process().put_if_absent(SECOND, b"second")
            scene.take_away(FINAL)

        scene.take_away(FINAL)
        store = scene.process(Trouble(meanwhile={"objects.head": replaced}))
        assert await store.list("_versions/") == [SECOND]

    async def test_v1_names_hide_the_latest_from_the_first_page(self, scene: Scene) -> None:
        store = scene.process()
        keys = [manifest_key(version, NamingScheme.V1) for version in range(1, 13)]
        for key in keys:
            await store.put_if_absent(key, b"")
        assert await store.list("_versions/", limit=3) == sorted(keys)[:3]
        assert scene.events == []

    @pytest.mark.parametrize("key", ["elsewhere/1.manifest", "_versions/nonsense", SECOND])
    async def test_an_entry_that_names_something_else_is_refused(self, scene: Scene, key: str) -> None:
        scene.shelf.entries[1] = ManifestEntry(version=1, key=key, size=3)
        for look in (scene.process().list("_versions/"), scene.process().get(FINAL)):
            with pytest.raises(CorruptTable) as raised:
                await look
            assert raised.value.code == "manifest_entry"


async def test_other_objects_never_ask_for_entries(scene: Scene) -> None:
    trouble = Trouble()
    store = scene.process(trouble)
    await store.put("_transactions/1.txn", b"t")
    assert await store.put_if_absent("data/a", b"a") == Created()
    assert await store.put_if_absent("_versions/d9223372036854775809.manifest", b"d") == Created()
    assert await store.get("_transactions/none") is None
    assert await store.list("_transactions/") == ["_transactions/1.txn"]
    assert await store.list("_versions/", start_after="_versions/d") == ["_versions/d9223372036854775809.manifest"]
    assert await store.copy("data/a", "data/b")
    await store.delete("data/a")
    assert not [call for call in trouble.calls if call.startswith("entries.")][:-1]


async def test_a_listing_costs_one_request_more_and_a_read_none(scene: Scene) -> None:
    await scene.process().put_if_absent(FINAL, b"one")
    trouble = Trouble()
    store = scene.process(trouble)
    await store.list("_versions/", limit=16)
    assert sorted(trouble.calls) == ["entries.latest", "objects.list"]
    trouble.calls.clear()
    await store.get_tail(FINAL, 16)
    assert trouble.calls == ["objects.get_tail"]


class Forgetful(FakeManifests):
    """A manifest store that ignores conditions."""

    async def put_if_absent(self, entry: ManifestEntry) -> Created | Exists:
        await self.replace(entry)
        return Created()


class TestProbe:
    """The deciding store is probed, and not the objects' store."""

    async def test_of_a_store_that_refuses_a_second_entry_is_good(self, scene: Scene) -> None:
        store = scene.process()
        assert await store.conditions_hold()  # nothing to probe it on
        await store.put_if_absent(FINAL, b"one")
        assert await store.conditions_hold()
        scene.require_finished(b"one")
        checks = await probe(store, now=EPOCH, new_uuid=uuid4)
        assert {check.name: check.good for check in checks}["manifest_store"]
        assert all(check.good for check in checks)
        assert "put_if_absent" not in [check.name for check in checks]

    async def test_of_one_that_does_not_is_a_reason_to_refuse(self, scene: Scene) -> None:
        await scene.process().put_if_absent(FINAL, b"one")
        store = ExternalManifests(FakeStore(scene.bucket), Forgetful(scene.shelf))
        with pytest.raises(
            RefusedToRun, match="manifest_store: a put that must only create replaced an entry"
        ) as raised:
            await Prover(store, wall_clock=lambda: EPOCH, new_uuid=uuid4).prove()
        assert raised.value.code == "store_unsafe"
        scene.require_finished(b"one")

    async def test_leaves_alone_what_is_being_finished(self, scene: Scene) -> None:
        scene.shelf.entries[1] = ManifestEntry(version=1, key=OTHERS, size=5)
        scene.bucket.put(OTHERS, b"other")
        assert await ExternalManifests(FakeStore(scene.bucket), Forgetful(scene.shelf)).conditions_hold()

    async def test_without_an_answer_proves_nothing(self, scene: Scene) -> None:
        await scene.process().put_if_absent(FINAL, b"one")
        with pytest.raises(StoreUnavailable):
            await scene.process(Trouble(before={"entries.put_if_absent": PutUnknown("lost")})).conditions_hold()
