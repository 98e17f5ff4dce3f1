"""Versions decided by an external manifest store: every step may be the last, every response may be lost."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from committerd.errors import PutUnknown, StoreUnavailable
from committerd.stores.external_manifests import ExternalManifests
from committerd.stores.port import Created, Exists, ManifestEntry
from tests.contracts.entries import Trouble, troubled_objects
from tests.simulation.store import FakeStore
from tests.stores.manifests import FINAL, LOOKS, OTHERS, SECOND, WRITE_STEPS, CrashError, Scene


@pytest.fixture(autouse=True)
def _no_entry_without_its_manifest(scene: Scene) -> Iterator[None]:
    """Whatever happened: the manifests that entries name exist, unless the test removed them."""
    yield
    missing = {entry.key for entry in scene.shelf.entries.values()} - scene.bucket.objects.keys()
    assert missing <= scene.taken


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_commit_takes_the_five_steps_in_their_order(scene: Scene) -> None:
    trouble = Trouble()
    assert await scene.process(trouble).put_if_absent(FINAL, b"one") == Created()
    assert sorted(trouble.calls[:2]) == ["objects.head", "objects.put"]
    assert trouble.calls[2:] == WRITE_STEPS[1:]
    scene.require_finished(b"one")
    assert scene.events == []


async def test_the_entry_names_the_staged_manifest_until_it_is_in_place(scene: Scene) -> None:
    with pytest.raises(CrashError):
        await scene.process(Trouble(before={"objects.copy": CrashError()})).put_if_absent(FINAL, b"one")
    entry = scene.shelf.entries[1]
    assert [entry.key] == scene.staged
    assert entry.key.startswith(f"{FINAL}-")
    assert entry.size == 3
    assert FINAL not in scene.bucket.objects


@pytest.mark.parametrize("step", WRITE_STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("look", ["list", "get", "get_tail", "get_range", "head", "put_if_absent"])
async def test_what_a_crash_leaves_is_finished_by_the_next_who_looks(
    scene: Scene, step: str, when: str, look: str
) -> None:
    # Where requests are sent together it is an exception group of one.
    with pytest.raises((CrashError, BaseExceptionGroup)):
        await scene.process(Trouble().add(when, step, CrashError())).put_if_absent(FINAL, b"one")
    committed = WRITE_STEPS.index(step) + (when == "after") > 1

    next_one = scene.process()
    seen = await LOOKS[look](next_one)
    assert seen is committed
    if look == "put_if_absent" and not committed:
        assert scene.bucket.objects[FINAL] == b"two"
    if committed:
        assert await next_one.get(FINAL) == b"one"
        assert await next_one.list("_versions/", limit=1) == [FINAL]
        assert scene.bucket.objects[FINAL] == b"one"
        # A staged manifest without an entry may stay; an entry never names one that is gone.
        assert scene.shelf.entries[1].key == FINAL
    assert scene.shelf.entries.keys() <= {1}


@pytest.mark.parametrize("step", ["objects.copy", "entries.replace", "objects.delete"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_holds_whatever_fails_behind_it(scene: Scene, step: str, when: str) -> None:
    trouble = Trouble().add(when, step, StoreUnavailable("away"))
    store = scene.process(trouble)
    assert await store.put_if_absent(FINAL, b"one") == Created()
    assert scene.events == ([] if step == "objects.delete" else ["deferred"])

    # Nothing may be missing below the next version: Lance looks for conflicts among the manifests in place.
    at_entry: list[bool] = []

    async def note() -> None:
        at_entry.append(scene.bucket.objects.get(FINAL) == b"one" and scene.shelf.entries[1].key == FINAL)

    trouble.meanwhile["entries.put_if_absent"] = note
    assert await store.put_if_absent(SECOND, b"second") == Created()
    assert at_entry == [True]
    assert scene.bucket.objects[SECOND] == b"second"


async def test_no_version_follows_one_that_can_not_be_finished(scene: Scene) -> None:
    store = scene.process(Trouble(before={"objects.copy": StoreUnavailable("away")}, once=False))
    assert await store.put_if_absent(FINAL, b"one") == Created()
    with pytest.raises(StoreUnavailable):
        await store.put_if_absent(SECOND, b"second")
    assert scene.shelf.entries.keys() == {1}


async def test_a_commit_that_was_deferred_and_finished_by_others_is_not_in_the_way(scene: Scene) -> None:
    store = scene.process(Trouble(before={"objects.copy": StoreUnavailable("away")}))
    assert await store.put_if_absent(FINAL, b"one") == Created()
    assert await scene.process().get(FINAL) == b"one"
    scene.take_away(FINAL)  # cleaned up since
    assert await store.put_if_absent(SECOND, b"second") == Created()
    assert FINAL not in scene.bucket.objects


class TestLostAnswer:
    """Of the put of the entry: the commit itself."""

    async def test_when_it_was_applied_is_found_by_reading_back(self, scene: Scene) -> None:
        store = scene.process(Trouble(after={"entries.put_if_absent": PutUnknown("lost")}))
        assert await store.put_if_absent(FINAL, b"one") == Created()
        scene.require_finished(b"one")

    async def test_when_it_was_not_applied_stays_unknown_and_keeps_the_staged_manifest(self, scene: Scene) -> None:
        store = scene.process(Trouble(before={"entries.put_if_absent": PutUnknown("lost")}))
        with pytest.raises(PutUnknown):
            await store.put_if_absent(FINAL, b"one")
        assert len(scene.staged) == 1
        # The request may still be in flight, and arrive now.
        late = ManifestEntry(version=1, key=scene.staged[0], size=3)
        scene.shelf.entries[1] = late
        assert await scene.process().get(FINAL) == b"one"
        scene.require_finished(b"one")

    async def test_when_nothing_can_be_read_back_stays_unknown(self, scene: Scene) -> None:
        trouble = Trouble(
            after={"entries.put_if_absent": PutUnknown("lost")}, before={"entries.get": StoreUnavailable("away")}
        )
        store = scene.process(trouble)
        with pytest.raises(PutUnknown):
            await store.put_if_absent(FINAL, b"one")
        assert len(scene.staged) == 1
        assert await store.put_if_absent(FINAL, b"one") == Created()
        scene.require_finished(b"one")

    async def test_and_the_same_bytes_again_are_staged_under_the_same_name(self, scene: Scene) -> None:
        store = scene.process(Trouble(before={"entries.put_if_absent": PutUnknown("lost")}))
        with pytest.raises(PutUnknown):
            await store.put_if_absent(FINAL, b"one")
        first = scene.staged
        with pytest.raises(CrashError):
            await self._again(scene, store)
        assert scene.staged == first
        assert [scene.shelf.entries[1].key] == first

    @staticmethod
    async def _again(scene: Scene, store: ExternalManifests) -> None:
        trouble = Trouble(before={"objects.copy": CrashError()})
        object.__setattr__(store, "_objects", troubled_objects(FakeStore(scene.bucket), trouble))
        await store.put_if_absent(FINAL, b"one")

    async def test_when_another_was_faster_is_a_loss(self, scene: Scene) -> None:
        trouble = Trouble(before={"entries.put_if_absent": PutUnknown("lost")})

        async def other() -> None:
            await scene.process().put_if_absent(FINAL, b"other")

        trouble.meanwhile["entries.get"] = other
        assert await scene.process(trouble).put_if_absent(FINAL, b"one") == Exists()
        scene.require_finished(b"other")

    async def test_when_a_reader_finished_it_meanwhile_is_for_the_caller_to_read_back(self, scene: Scene) -> None:
        trouble = Trouble(after={"entries.put_if_absent": PutUnknown("lost")})

        async def reader() -> None:
            await scene.process().list("_versions/")

        trouble.meanwhile["entries.get"] = reader
        assert await scene.process(trouble).put_if_absent(FINAL, b"one") == Exists()
        scene.require_finished(b"one")


async def test_a_lost_race_leaves_nothing(scene: Scene) -> None:
    trouble = Trouble()

    async def other() -> None:
        await scene.process().put_if_absent(FINAL, b"other")

    trouble.meanwhile["entries.put_if_absent"] = other
    assert await scene.process(trouble).put_if_absent(FINAL, b"one") == Exists()
    scene.require_finished(b"other")


async def test_a_lost_race_whose_winner_can_not_be_asked_for_keeps_the_staged_manifest(scene: Scene) -> None:
    scene.shelf.entries[1] = ManifestEntry(version=1, key=OTHERS, size=5)
    scene.bucket.put(OTHERS, b"other")
    store = scene.process(Trouble(before={"entries.get": StoreUnavailable("away")}))
    assert await store.put_if_absent(FINAL, b"one") == Exists()
    assert len(scene.staged) == 2


async def test_an_entry_that_vanished_again_keeps_the_staged_manifest(scene: Scene) -> None:
    scene.shelf.entries[1] = ManifestEntry(version=1, key=OTHERS)

    async def dropped() -> None:
        scene.shelf.entries.clear()

    store = scene.process(Trouble(meanwhile={"entries.get": dropped}))
    assert await store.put_if_absent(FINAL, b"one") == Exists()
    assert len(scene.staged) == 1


async def test_the_same_bytes_of_two_processes_win_once(scene: Scene) -> None:
    assert await scene.process().put_if_absent(FINAL, b"same") == Created()
    assert await scene.process().put_if_absent(FINAL, b"same") == Exists()
    scene.require_finished(b"same")


async def test_of_many_at_once_one_wins_while_readers_repair(scene: Scene) -> None:
    won: list[bytes] = []

    async def write(body: bytes) -> None:
        if await scene.process().put_if_absent(FINAL, body) == Created():
            won.append(body)

    async def read() -> None:
        await scene.process().list("_versions/")

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(write, f"manifest {number}".encode())
            tasks.start_soon(read)
    assert len(won) == 1
    scene.require_finished(won[0])
