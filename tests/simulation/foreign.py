"""A writer that knows nothing of the queue: it commits to the same table as pylance does."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from committerd.committer import direct
from committerd.errors import CommitterError
from committerd.lance.format.manifest_file import encode
from committerd.lance.format.own_keys import KEY_PREFIX
from committerd.queue.offsets import Offsets
from committerd.queue.position import FORMAT_KEY, AppMark, Pause, Position, encode_metadata
from committerd.stores.port import ObjectStore
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions, Sources
from committerd.table.knowledge import Knowledge
from committerd.table.prepare import Prepared, prepare
from committerd.table.versions import Table
from committerd.table.writing import write_transaction
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import NamingScheme, data_key, manifest_key
from committerd_common.request import decode_transaction
from tests.simulation import staging
from tests.simulation.faults import Rates, Weather
from tests.simulation.process import EPOCH
from tests.simulation.pylance import Pylance
from tests.simulation.staging import new_uuid
from tests.simulation.store import FakeStore

if TYPE_CHECKING:
    from tests.simulation.world import World


class ForeignWriter:
    """Appends, restores, and replaces metadata, beside the committers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"{world.seed} foreign")
        weather = Weather(rng=self.rng, rates=Rates(latency=0.02), note=lambda line: world.note(f"foreign {line}"))
        self._store: ObjectStore = FakeStore(world.bucket, weather, uri=staging.URI)
        self._sources = Sources(
            wall_clock=lambda: EPOCH + timedelta(seconds=anyio.current_time()),
            random=self.rng,
            new_uuid=lambda: new_uuid(self.rng),
        )
        self._made = 0
        self._pylance: Pylance | None = None
        if world.scenario.by_pylance:
            self._pylance = Pylance(weather, self.rng)
            self._sources = replace(self._sources, knowledge=Knowledge())

    async def run(self, mean_seconds: float) -> None:
        """Commit now and then until cancelled."""
        while True:
            await anyio.sleep(self.rng.expovariate(1 / mean_seconds))
            if self._pylance is not None:
                await self.append()
                continue
            (commit,) = self.rng.choices(
                (self.append, self.restore, self.replace_metadata, self.make_up, self.by_hand), (10, 3, 2, 1, 1)
            )
            await commit()

    async def create(self) -> None:
        """Make the table, unless it exists."""
        await self._commit(
            staging.overwrite(new_uuid(self.rng), self._paths(1)), options=PrepareOptions(create_only=True)
        )

    def put_table(self, versions: int, *, max_fragment_id: int = 0, feature_flags: int = 0) -> None:
        """Put another table with this many versions, in one moment."""
        below: Manifest | None = None
        for number in range(1, versions + 1):
            transaction = staging.overwrite(new_uuid(self.rng), self._paths(1))
            transaction.read_version = number - 1
            manifest = Manifest()
            manifest.CopyFrom(below or self._first(transaction))
            manifest.version = number
            manifest.max_fragment_id = max_fragment_id
            manifest.reader_feature_flags = manifest.writer_feature_flags = feature_flags
            below = manifest
            key = manifest_key(number, NamingScheme.V2)
            self.world.bucket.put(key, encode(manifest, (), transaction))

    def put_branch(self) -> None:
        """Put the first version of a branch, whose metadata is that of the version of main at which it began."""
        transaction = staging.overwrite(new_uuid(self.rng), self._paths(1))
        manifest = self._first(transaction)
        manifest.version, manifest.branch = 1, "exp"
        main = Position(
            cluster_id="cluster",
            topic="main.staged",
            topic_id="of main",
            next_offset=1000,
            settled=Offsets.of([1003]),
            era=2,
        )
        used_ms = int(EPOCH.timestamp() * 1000)
        mark = AppMark(run="r", version=3, uuid=str(new_uuid(self.rng)), table_version=1, used_ms=used_ms, offset=7)
        manifest.table_metadata.update(
            encode_metadata(main, {"of-main": mark}, Pause(reason="of main", since_ms=used_ms))
        )
        self.world.bucket.put(manifest_key(1, NamingScheme.V2), encode(manifest, (), transaction))

    def _first(self, transaction: Transaction) -> Manifest:
        manifest = Manifest(
            fields=transaction.overwrite.schema, fragments=transaction.overwrite.fragments, max_fragment_id=0
        )
        manifest.writer_version.library, manifest.writer_version.version = "lance", "14.0.2"
        manifest.data_format.file_format, manifest.data_format.version = "lance", "2.0"
        manifest.timestamp.FromDatetime(EPOCH + timedelta(seconds=anyio.current_time()))
        for key in (file.path for fragment in manifest.fragments for file in fragment.files):
            self.world.bucket.put(data_key(key), bytes(100))
        return manifest

    async def append(self) -> None:
        if self.world.auditor.latest:
            await self._commit(staging.append(new_uuid(self.rng), self._paths(1)))

    async def by_hand(self) -> None:
        """Commit the file of a staged record directly, which the queue is going to commit as well."""
        if self.world.auditor.latest and self.world.producers.records:
            staged, _ = self.rng.choice(self.world.producers.records)
            try:
                transaction = decode_transaction(staged.value, bytes_max=len(staged.value))
            except CommitterError:
                return
            if transaction.WhichOneof("operation") == "append":
                await self._commit(transaction)

    async def restore(self) -> None:
        """Restore as pylance does: all metadata is that of the restored version, including the queue's position."""
        table = Table(self._store)
        latest = await table.latest()
        if latest is None:
            return
        version = self.rng.randint(1, latest.version)
        restored = await table.readable(version)
        if restored is not None:
            transaction = staging.restore(new_uuid(self.rng), version, read_version=latest.version)
            await self._put_as_pylance(table, transaction, restored.manifest.table_metadata)

    async def replace_metadata(self) -> None:
        """Replace metadata as pylance does: keys that are not given are gone, including the queue's."""
        table = Table(self._store)
        latest = await table.latest()
        if latest is not None:
            transaction = staging.configure(new_uuid(self.rng), read_version=latest.version, replace=True)
            await self._put_as_pylance(table, transaction, {"owner": transaction.uuid})

    async def make_up(self) -> None:
        """Write made-up values under the queue's keys: a position that no version ever had, a mark, or garbage."""
        table = Table(self._store)
        latest = await table.latest()
        if latest is None:
            return
        metadata = dict(latest.manifest.table_metadata)
        ours = sorted(key for key in metadata if key.startswith(KEY_PREFIX) and key != FORMAT_KEY)
        for key in ours[: self.rng.randint(0, len(ours))]:
            metadata[key] = self.rng.choice(
                (re.sub(r'("next"|"version"):(\d+)', r"\1:\g<2>7", metadata[key]), "rubbish", "{}", "[" * 10_000)
            )
        transaction = staging.configure(new_uuid(self.rng), read_version=latest.version)
        await self._put_as_pylance(table, transaction, metadata)

    async def _commit(self, transaction: Transaction, *, options: PrepareOptions | None = None) -> None:
        await direct.commit(
            Table(self._store),
            transaction,
            options=options or PrepareOptions(),
            sources=self._sources,
            pylance=self._pylance,
            backoff=Backoff(self.rng),
        )

    async def _put_as_pylance(self, table: Table, transaction: Transaction, metadata: Mapping[str, str]) -> None:
        """Commit with this metadata; give up if another writer was faster."""
        prepared = await prepare(
            table, await table.latest(), transaction, options=PrepareOptions(), sources=self._sources
        )
        if not isinstance(prepared, Prepared):
            return
        manifest = Manifest()
        manifest.CopyFrom(prepared.file.manifest)
        manifest.table_metadata.clear()
        manifest.table_metadata.update(metadata)
        await write_transaction(table, prepared)
        await self._store.put_if_absent(prepared.key, encode(manifest, prepared.file.indices, transaction))

    def _paths(self, count: int) -> list[str]:
        self._made += count
        return [f"foreign{number}.lance" for number in range(self._made - count, self._made)]
