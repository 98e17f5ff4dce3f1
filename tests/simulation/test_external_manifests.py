"""Commits through an external manifest store while both stores fail: outcomes are true, and no version is missing."""

from __future__ import annotations

import random
from contextlib import suppress

import anyio
import pytest

from committerd.committer import direct
from committerd.committer.direct import DirectOutcome
from committerd.errors import StoreUnavailable
from committerd.lance.format.manifest_file import decode
from committerd.queue.outcomes import Status
from committerd.stores.external_manifests import ExternalManifests
from committerd.stores.port import ManifestEntry
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions, Sources
from committerd.table.versions import Table
from committerd_common.messages import Transaction
from committerd_common.paths import VERSIONS, NamingScheme, manifest_key
from tests.contracts.entries import FakeManifests, Shelf
from tests.simulation.faults import Rates, Weather
from tests.simulation.loop import run_virtual
from tests.simulation.process import EPOCH
from tests.simulation.staging import append, new_uuid, overwrite
from tests.simulation.store import Bucket, Change, FakeStore

STORM = Rates(refused=0.03, lost=0.1, doubled=0.03, latency=0.01)
WRITERS = 4
EACH = 4


class Stores:
    """The content of both stores."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.shelf = Shelf()

    def table(self, rng: random.Random, rates: Rates) -> Table:
        weather = Weather(rng=rng, rates=rates)
        objects = FakeStore(self.bucket, weather)
        return Table(ExternalManifests(objects, FakeManifests(self.shelf, weather)))


@pytest.mark.parametrize("seed", range(8))
def test_what_several_writers_are_told_is_true_of_the_table(seed: int) -> None:
    scene, told = Stores(), dict[str, DirectOutcome]()
    holes: list[int] = []

    def watch(change: Change, key: str, body: bytes) -> None:
        # When a version is in its place, so are all versions below it: Lance looks for conflicts in listings.
        del change, key, body
        top = max(scene.shelf.entries, default=0)
        places = [manifest_key(version, NamingScheme.V2) for version in range(1, top)]
        holes.extend(top for place in places if place not in scene.bucket.objects)

    scene.bucket.watchers.append(watch)

    async def commit(table: Table, transaction: Transaction, rng: random.Random) -> None:
        sources = Sources(wall_clock=lambda: EPOCH, random=rng, new_uuid=lambda: new_uuid(rng))
        while transaction.uuid not in told:
            with suppress(StoreUnavailable):  # nothing was committed: again
                told[transaction.uuid] = await direct.commit(
                    table, transaction, options=PrepareOptions(), sources=sources, backoff=Backoff(rng)
                )

    async def write(name: int) -> None:
        rng = random.Random(f"{seed} {name}")
        table = scene.table(rng, STORM)
        for number in range(EACH):
            if rng.random() < 0.3:  # another process takes over
                table = scene.table(rng, STORM)
            await commit(table, append(new_uuid(rng), [f"{name}-{number}.lance"]), rng)

    async def main() -> None:
        rng = random.Random(seed)
        await commit(scene.table(rng, STORM), overwrite(new_uuid(rng), ["first.lance"]), rng)
        async with anyio.create_task_group() as tasks:
            for name in range(WRITERS):
                tasks.start_soon(write, name)
        await anyio.sleep(600)  # until all requests in flight have arrived
        await scene.table(rng, Rates()).latest()  # a reader finishes the last one

    run_virtual(main)
    assert not holes
    manifests = [decode(body, len(body)) for body in (scene.bucket.objects[key] for key in manifest_keys(scene))]
    found = {file.transaction.uuid: file.version for file in manifests if file.transaction is not None}
    assert sorted(found.values()) == list(range(1, len(manifests) + 1))
    assert found == {uuid: answer.version for uuid, answer in told.items() if answer.status is Status.COMMITTED}
    assert len(found) == 1 + WRITERS * EACH
    for version, entry in scene.shelf.entries.items():
        key = manifest_key(version, NamingScheme.V2)
        assert entry == ManifestEntry(version=version, key=key, size=len(scene.bucket.objects[key]))


def manifest_keys(scene: Stores) -> list[str]:
    return [key for key in scene.bucket.list(VERSIONS) if key.endswith(".manifest")]
