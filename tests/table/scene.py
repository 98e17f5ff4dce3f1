"""A real folder with versions in it, written by us, and a way to stage into it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroaring import BitMap

from committerd.lance.format.manifest_file import ManifestFile, encode
from committerd.lance.operations.permissions import ANYTHING
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.stores.local import LocalStore
from committerd.stores.port import Created, ObjectStore
from committerd.table.case import PrepareOptions, Sources
from committerd.table.fetching import Fetcher, run
from committerd.table.judge import Judged, judge
from committerd.table.prepare import Prepared, build, prepare
from committerd.table.versions import Committed, Gap, History, Table
from committerd.table.writing import put, write_files
from committerd_common.deletion_file import encode_bitmap
from committerd_common.messages import DataFragment, IndexMetadata, Manifest, Transaction
from committerd_common.paths import NamingScheme, deletion_key, manifest_key, transaction_key, transaction_name
from tests.lance import samples
from tests.lance.samples import column, fragment, transaction

ANY = PrepareOptions(allowed=ANYTHING)


def open_store(uri: str) -> ObjectStore:
    return LocalStore(Path(uri), durable=False)


def sources(**other: object) -> Sources:
    said = {
        "wall_clock": lambda: samples.NOW,
        "random": random.Random(0),
        "new_uuid": uuid.uuid4,
    }
    return Sources(**{**said, **other})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Scene:
    """A table's folder."""

    root: Path
    scheme: NamingScheme = NamingScheme.V2

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.root, durable=False)

    def table(self) -> Table:
        return Table(self.store)

    def path(self, key: str) -> Path:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write_version(
        self, made: Manifest, transaction: Transaction | None = None, indices: Sequence[IndexMetadata] = ()
    ) -> None:
        """Write a version, as any writer leaves it."""
        transaction = transaction or samples.transaction(
            made.version - 1, str(uuid.uuid4()), reserve_fragments=Transaction.ReserveFragments()
        )
        name = transaction_name(transaction.read_version, transaction.uuid)
        made.transaction_file = name
        self.path(transaction_key(name)).write_bytes(transaction.SerializeToString())
        self.write_manifest(made.version, encode(made, indices, transaction))

    def write_manifest(self, version: int, body: bytes) -> None:
        """Write the file of a version."""
        self.path(manifest_key(version, self.scheme)).write_bytes(body)

    def write_versions(self, *versions: int, **other: object) -> None:
        for version in versions:
            self.write_version(samples.manifest(samples.fragment(0), version=version, **other))  # type: ignore[arg-type]

    def write_files(self, *fragments: DataFragment) -> None:
        """Write a fragment's files; its deletion file deletes the first rows."""
        for made in fragments:
            for file in made.files:
                self.path(f"data/{file.path}").write_bytes(b"x" * 100)
            if made.HasField("deletion_file"):
                self.write_deletions(made, *range(made.deletion_file.num_deleted_rows))

    def write_deletions(self, made: DataFragment, *rows: int) -> DataFragment:
        """Write the deletion file of a fragment, which then counts those rows."""
        made.deletion_file.num_deleted_rows = len(rows)
        key = deletion_key(made.id, made.deletion_file, staged=True)
        self.path(key).write_bytes(encode_bitmap(BitMap(rows)))
        return made

    def versions(self) -> list[str]:
        return sorted(path.name for path in (self.root / "_versions").glob("*.manifest"))

    async def commit(
        self, staged: Transaction, options: PrepareOptions = ANY, table: Table | None = None
    ) -> Prepared | Refused:
        """Commit a transaction on the latest version."""
        table = table or self.table()
        prepared = await prepare(
            table, await table.latest(), staged, options=options, sources=sources(), open_store=open_store
        )
        if isinstance(prepared, Prepared):
            await write_files(table, prepared)
            assert isinstance(await put(table, prepared), Created)
        return prepared

    async def latest(self) -> ManifestFile:
        latest = await self.table().latest()
        assert latest is not None
        return latest


async def history(table: Table, after: int, latest: int) -> tuple[list[Committed], int | None]:
    """The table's history of these versions, ascending, and the first unreadable one."""
    found: list[Committed] = []
    while after < latest:
        some = await table.some_after(after, latest)
        if isinstance(some, Gap):
            return found, some.version
        found += some
        after = some[-1].version
    return found, None


async def verdict_on(
    history: History, latest: ManifestFile | None, staged: Transaction, options: PrepareOptions = ANY
) -> Judged | Refused:
    """Judge a transaction."""
    steps = judge(history, latest, staged, options=options, sources=sources())
    return await run(steps, Fetcher(history.table, open_store))


async def built(table: Table, latest: ManifestFile | None, judged: Judged, **other: Any) -> Prepared:
    """Build the version that a judged transaction makes."""
    return await build(table, latest, judged, sources=sources(), **other)


def append(read_version: int = 1, *made: DataFragment) -> Transaction:
    return transaction(read_version, append=Transaction.Append(fragments=made or [fragment(0, name="new")]))


def create() -> Transaction:
    schema = [column(0), column(1), column(2)]
    return transaction(0, overwrite=Transaction.Overwrite(fragments=[fragment(0)], schema=schema))


def read_at(staged: Transaction, version: int) -> Transaction:
    staged.read_version = version
    return staged


async def rejected(scene: Scene, staged: Transaction, options: PrepareOptions = ANY) -> tuple[Status, str]:
    before = scene.versions()
    answer = await scene.commit(staged, options)
    assert isinstance(answer, Refused)
    assert len(answer.message) > 20
    assert scene.versions() == before
    return answer.status, answer.reason
