"""A table in a folder, written by pylance, with a staged topic in memory and a clock that tests set."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from committerd.lance.format.manifest_file import decode, encode
from committerd.maintenance import report
from committerd.maintenance.cleaning import Cleanup, CleanupPlan, CleanupResult, Policy
from committerd.maintenance.waiting import CommitterProgress
from committerd.queue.dead_letter import Letter
from committerd.queue.outcomes import encode_settled
from committerd.queue.port import Acknowledged, Record, TopicIdentity, record_sha256
from committerd.queue.position import encode_metadata, start_of
from committerd.stores.local import LocalStore
from committerd.stores.port import ObjectEntry
from committerd.table.versions import Table
from committerd_client import Staged, staging
from committerd_common.branches import branch_uri
from committerd_common.messages import Member, Refusal, Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.queue.letters import LETTER

HOUR_MS = 3_600_000


class StagedRecords:
    """`maintenance.waiting.StagedTopic` in memory."""

    def __init__(self) -> None:
        self.topic_id, self.cluster_id = "id", "cluster"
        self.begins = 0
        """The first offset that the log still has, or will have."""
        self.staged: list[Record] = []
        self.acknowledged_to: int | None = None
        self.reads = 0
        self.dead: list[Letter] = []

    def add(self, transaction: Transaction | Staged | bytes, headers: dict[str, str] | None = None) -> None:
        given = transaction.transaction if isinstance(transaction, Staged) else transaction
        value = given if isinstance(given, bytes) else given.SerializeToString()
        encoded = [(name, text.encode()) for name, text in (headers or {}).items()]
        self.staged.append(Record(offset=self.begins + len(self.staged), value=value, headers=encoded))

    async def published(self) -> CommitterProgress:
        to = self.acknowledged_to
        return CommitterProgress(group=None if to is None else Acknowledged(offset=to, metadata='{"era":0}'))

    async def identity(self) -> TopicIdentity:
        return TopicIdentity(cluster_id=self.cluster_id, topic="topic", topic_id=self.topic_id)

    async def bounds(self) -> tuple[int, int]:
        return self.begins, self.begins + len(self.staged)

    async def records(self, start: int, end: int) -> AsyncIterator[Sequence[Record]]:
        self.reads += 1
        yield [one for one in self.staged if start <= one.offset < end]

    async def letters(self, since_ms: int) -> AsyncIterator[Sequence[Letter]]:
        yield [one for one in self.dead if one.timestamp_ms >= since_ms]


class ShiftedStore(LocalStore):
    """A folder whose clock is ahead of the machine's for what maintenance writes."""

    hours = 0.0

    async def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        async for batch in super().walk(prefix):
            ahead = int(self.hours * HOUR_MS) if prefix == report.FOLDER else 0
            yield [replace(one, modified_ms=one.modified_ms + ahead) for one in batch]


class Scene:
    """The table, the topic and the clock."""

    def __init__(self, folder: Path) -> None:
        self.root = self.uri = str(folder / "table.lance")
        """The table's root, and the folder of what is cleaned up: the table itself, or the branch `branch`."""
        self.branch = ""
        self.topic = StagedRecords()
        self.hours = 0.0
        """How far the clocks of maintenance and of the store are ahead of the machine's."""
        self.store_hours: float | None = None
        """How far that of the store is, if it differs."""
        self.deleted: list[dict[str, Any]] = []

    def cleaning(self, *, keep_versions: int = 1, republish_max: int = 10, **given: Any) -> Cleanup:
        store = ShiftedStore(Path(self.uri), durable=False)
        store.hours = self.hours if self.store_hours is None else self.store_hours
        return Cleanup(
            Table(store),
            self.topic,
            Policy(
                keep_ms=HOUR_MS,
                keep_versions=keep_versions,
                reclaim_ms=24 * HOUR_MS,
                republish_max=republish_max,
                transaction_bytes_max=8 << 20,
            ),
            wall_clock=lambda: datetime.now(UTC) + timedelta(hours=self.hours),
            open_branch=lambda branch: LocalStore(Path(branch_uri(self.root, branch)), durable=False),
            branch=self.branch,
            note=lambda line: self.deleted.append(dict(line)),
            **given,
        )

    async def clean(self, *, keep_versions: int = 1) -> tuple[CleanupPlan, CleanupResult]:
        cleaning = self.cleaning(keep_versions=keep_versions)
        found = await cleaning.look()
        return found, await cleaning.clean(found)

    def write(self, first: int, count: int = 10, **options: Any) -> lance.LanceDataset:
        return lance.write_dataset(pa.table({"id": range(first, first + count)}), self.uri, **options)

    def staged_append(self, first: int) -> Transaction:
        """Write a file of rows, and return the Append of it, which is not committed."""
        table = pa.table({"id": range(first, first + 10)})
        return staging.append(write_fragments(table, self.uri, mode="append"), read_version=0)

    def files(self, folder: str) -> set[str]:
        place = Path(self.uri, folder)
        return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}

    def put(self, key: str, body: bytes = b"?") -> None:
        """Write a file of the table."""
        path = Path(self.uri, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def age(self, key: str, *, hours: float) -> None:
        """Let a file of the table have been written so long ago."""
        moment = time.time() - hours * 3600
        os.utime(Path(self.uri, key), (moment, moment))

    def get(self, key: str) -> bytes:
        """Read a file of the table."""
        return Path(self.uri, key).read_bytes()

    def remove(self, key: str) -> None:
        """Delete a file of the table."""
        Path(self.uri, key).unlink()

    def write_letter(
        self, value: Transaction | bytes, *, hours_ago: float, headers: dict[str, str] | None = None, **given: Any
    ) -> None:
        """Write a dead letter, so many hours ago by the clock of maintenance."""
        now = datetime.now(UTC) + timedelta(hours=self.hours - hours_ago)
        letter = replace(
            LETTER,
            offset=len(self.topic.dead),
            timestamp_ms=int(now.timestamp() * 1000),
            value=value if isinstance(value, bytes) else value.SerializeToString(),
            headers=[(name, text.encode()) for name, text in (headers or {}).items()],
            **given,
        )
        self.topic.dead.append(letter)

    def settle(self, version: int, *, offset: int, refused: Sequence[Refusal] = (), topic_id: str = "id") -> None:
        """Make this version one of the queue, which commits the record at this offset.

        The log begins behind it if it does not have the record.
        """
        key = manifest_key(version, NamingScheme.V2)
        file = decode(self.get(key))
        manifest, transaction = file.manifest, file.transaction
        assert transaction is not None
        identity = TopicIdentity(cluster_id="cluster", topic="topic", topic_id="id")
        position = start_of(identity, offset + 1)
        if self.topic.begins <= offset < self.topic.begins + len(self.topic.staged):
            record = self.topic.staged[offset - self.topic.begins]
            position = replace(position, last_offset=offset, last_sha256=record_sha256(record))
        else:
            self.topic.begins = max(self.topic.begins, offset + 1)
        manifest.table_metadata.update(encode_metadata(position, {}))
        members = [Member(offset=offset, uuid=transaction.uuid)]
        transaction.transaction_properties.update(encode_settled(members, refused, topic_id=topic_id))
        self.put(key, encode(manifest, file.indices, transaction))

    def shift_time(self, version: int, *, hours: float) -> None:
        """Shift the time at which this version says that it was written."""
        key = manifest_key(version, NamingScheme.V2)
        file = decode(self.get(key))
        manifest, transaction = file.manifest, file.transaction
        assert transaction is not None
        manifest.timestamp.seconds += int(hours * 3600)
        self.put(key, encode(manifest, file.indices, transaction))

    def versions(self) -> list[int]:
        return [one["version"] for one in lance.dataset(self.uri).versions()]

    def read_all(self) -> dict[int, int]:
        """The number of rows of each version, all columns read."""
        return {version: lance.dataset(self.uri, version=version).to_table().num_rows for version in self.versions()}
