"""The producers, driven by seed and table: good records of each kind, repeated ones, and wrong ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import anyio
from pyroaring import BitMap

from committerd.queue.port import Record
from committerd_common.messages import (
    COMMITTED,
    DECODE_ERRORS,
    INVALID,
    RETRYABLE,
    DataFragment,
    DeletionFile,
    Transaction,
)
from committerd_common.own_properties import BY_KEY, CHANGES, MERGE
from committerd_common.paths import data_key, deletion_key
from tests.simulation import staging
from tests.simulation.process import EPOCH
from tests.simulation.staging import Header, Staged, headers, new_uuid

if TYPE_CHECKING:
    from tests.simulation.world import World

_BURSTS = (1, 2, 4, 8)
APPS = ("spark.a", "spark.b")
READER = "ingest.a"
"""A source that several processes read at once."""


class Producers:
    """All writers that use the queue."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"{world.seed} producers")
        self.records: list[tuple[Staged, Record]] = []
        self.plan: list[Staged] = []
        """The operations that are staged first; random ones follow."""
        self.only_rows = False
        """Whether most of the random ones delete rows of fragments."""
        self._retrying = random.Random(f"{world.seed} will-retry")
        self.will_retry: float = self._retrying.choice((0.0, 0.5, 1.0))
        self.upserts = 0.5
        """The share of changes of rows that are upserts; the others are Deletes."""
        self.repeats = 0.0
        """The share of records that name any of the refused ones, also those of others, or that were named before."""
        self.by_key, self.without_keys = 0.7, 0.2
        """The shares of the upserts that depend on rows with their keys alone, and that do not name their keys."""
        """The share of changes of rows whose producers say that they execute them again; some do, and some do not."""
        self._naming = random.Random(f"{world.seed} keys")
        self._reading = random.Random(f"{world.seed} reading")
        self._read = [0]
        """The ends of what was read of `READER`."""
        self._reopening = random.Random(f"{world.seed} reopening")
        self._names = random.Random(f"{world.seed} names")
        self._made = 0
        self._app_versions = dict.fromkeys(APPS, 0)
        self._kinds: dict[Callable[[], Staged], float] = {
            self._append: 50,
            self._again: 10,
            self._insist: 5,
            self._unit: 14,
            self._unit_again: 5,
            self.wrong: 6,
            self._with_flaky_file: 8,
            self.overwrite: 3,
            self._delete: 6,
            self._rows: 30,
            self._unit_of_rows: 6,
            self._restore: 2,
            self._reserve: 3,
            self._configure: 4,
            self.late: 2,
            self._create_only: 2,
            self._retry: 8,
        }

    async def run(self, count: int, seconds: float) -> None:
        """Stage this many records within about this many seconds, concurrently or one by one."""
        while len(self.records) < count:
            for _ in range(min(self.rng.choice(_BURSTS), count - len(self.records))):
                self.stage(self._next())
            await anyio.sleep(self.rng.expovariate(count / seconds / (sum(_BURSTS) / len(_BURSTS))))

    def stage(self, staged: Staged, *, in_transaction: bool = False) -> Record:
        """Write the files, then stage the record; `in_transaction`: in a Kafka transaction, which stays open."""
        for path in staged.files:
            self.world.bucket.put(data_key(path), bytes(100))
        for key, body in staged.deletions.items():
            self.world.bucket.put(key, body)
        partition = self.rng.choice((b"0", b"3", b"7", b"99"))
        headers = [*staged.headers, ("outcome-partition", partition)]
        if self.world.scenario.producers and "producer" not in dict(headers):
            # Most records are of one producer.
            number = max(self._names.randrange(2 * self.world.scenario.producers) - self.world.scenario.producers, 0)
            headers.append(("producer", b"%d" % number))
        record = self.world.stage(staged.value, headers, in_transaction=in_transaction)
        self.records.append((staged, record))
        return record

    def create(self) -> Staged:
        """A create that can be committed."""
        paths = self._paths(1)
        transaction = staging.overwrite(self._uuid(), paths)
        return self._staged(transaction, paths, headers(create_only=True))

    def plain(self) -> Staged:
        """An Append that conflicts with nothing."""
        paths = self._paths(1)
        return self._staged(staging.append(self._uuid(), paths), paths)

    def _next(self) -> Staged:
        if self.plan:
            return self.plan.pop(0)
        if self.repeats and self._retrying.random() < self.repeats:
            made = self._retry()
            other = [("producer", b"other")] if self._retrying.random() < 0.3 else []
            return self._with_headers(made, [*made.headers, *other])
        if self.only_rows:
            kinds = (self._rows, self._unit_of_rows, self._unit, self._append)
            kind = self.rng.choices(kinds, (14, 2, 2, 2))[0]
            return self._retry() if self._retrying.random() < self.will_retry / 4 else kind()
        (kind,) = self.rng.choices(list(self._kinds), list(self._kinds.values()))
        return kind()

    def _append(self) -> Staged:
        paths = self._paths(self.rng.randint(1, 3))
        transaction = staging.append(self._uuid(), paths, read_version=self._read_version(stale=True))
        if self._naming.random() < 0.8:
            staging.name_keys(transaction, self._naming.sample(range(40), self._naming.randint(0, 3)))
        return self._staged(transaction, paths)

    def _again(self) -> Staged:
        """The same transaction as before: a producer that missed the outcome. Some have opened the table again."""
        if not self.records:
            return self._append()
        refused = [(s, r) for s, r in self.records if self._status(r) not in (None, COMMITTED)]
        few = self.rng.choice((self.records[-1:], refused or self.records, self.records))
        staged, record = self.rng.choice(few)
        if self._reopening.random() < 0.5 and not self.world.auditor.may_have_dropped:
            return self._reopened(staged, is_committed=self._status(record) == COMMITTED)
        return Staged(value=staged.value, headers=staged.headers)

    def _reopened(self, staged: Staged, *, is_committed: bool) -> Staged:
        """The same transaction at the latest version. A change of rows is not staged so before it is committed: its
        deletion files are of the version that it was read at.
        """
        try:
            transaction = Transaction.FromString(staged.value)
        except DECODE_ERRORS:
            transaction = Transaction()
        latest = self.world.auditor.latest
        if transaction.read_version < latest and (is_committed or transaction.HasField("append")):
            transaction.read_version = latest
            return Staged(value=transaction.SerializeToString(), headers=staged.headers)
        return Staged(value=staged.value, headers=staged.headers)

    def _insist(self) -> Staged:
        """A record that was refused, the same bytes once more, and this time all its files are there."""
        refused = [s for s, r in self.records if self._status(r) == INVALID and s.files]
        if not refused:
            return self._again()
        staged = self.rng.choice(refused)
        return Staged(value=staged.value, headers=staged.headers, files=self._files_of(staged))

    def _files_of(self, staged: Staged) -> list[str]:
        transaction = Transaction.FromString(staged.value)
        return [file.path for fragment in transaction.append.fragments for file in fragment.files]

    def _status(self, record: Record) -> int | None:
        topic_id = self.world.broker.topic_id
        outcome = self.world.auditor.answers.get((topic_id, record.offset)) if topic_id else None
        return outcome.status if outcome else None

    def _unit(self) -> Staged:
        app_id = self.rng.choice(APPS)
        if self._reading.random() < 0.4:
            return self._read_on()
        self._app_versions[app_id] += 1
        return self.unit(app_id, self._app_versions[app_id])

    def _unit_again(self) -> Staged:
        """A batch that is repeated after a crash of its source, with other bytes; rarely after a lost checkpoint."""
        app_id = self.rng.choice(APPS)
        run = "first" if self.rng.random() < 0.8 else "second"
        return self.unit(app_id, max(self._app_versions[app_id] - self.rng.randint(0, 2), 0), run=run)

    def _read_on(self) -> Staged:
        """What a process has read behind the mark that it knows, or behind what it has staged before.

        Another process may have read the same, as far as this one, less far or farther.
        """
        known = self.world.auditor.unit_of(READER)
        after = self._reading.choice((known, known, self._read[-1], self._reading.choice(self._read)))
        self._read.append(after + self._reading.randint(1, 3))
        paths = self._paths(1)
        given = headers(app_id=READER, app_version=self._read[-1], app_after=after)
        return self._staged(staging.append(self._uuid(), paths), paths, given)

    def unit(self, app_id: str, version: int, *, run: str = "first") -> Staged:
        paths = self._paths(1)
        transaction = staging.append(self._uuid(), paths)
        return self._staged(transaction, paths, headers(app_id=app_id, app_version=version, app_run=run))

    def wrong(self) -> Staged:
        return staging.garbage(self.rng)

    def _with_flaky_file(self) -> Staged:
        """A record whose file exists only now and then."""
        paths = self._paths(2)
        self.world.flaky_files.append(data_key(paths[1]))
        return self._staged(staging.append(self._uuid(), paths), paths[: self.rng.randint(1, 2)])

    def sharing_a_file(self) -> tuple[Staged, Staged]:
        """Two Appends of one file that comes and goes; the first also names a file that never exists."""
        shared, missing = self._paths(2)
        self.world.flaky_files.append(data_key(shared))
        first = self._staged(staging.append(self._uuid(), [shared, missing]), [shared])
        return first, self._staged(staging.append(self._uuid(), [shared]))

    def overwrite(self, read_version: int | None = None) -> Staged:
        paths = self._paths(2)
        version = self._read_version() if read_version is None else read_version
        return self._staged(staging.overwrite(self._uuid(), paths, read_version=version), paths)

    def _delete(self) -> Staged:
        version = self._read_version()
        there = self.world.fragment_ids(version)
        if not there:
            return self._append()
        return self._staged(staging.delete(self._uuid(), self.rng.choice(there), read_version=version))

    def _rows(self) -> Staged:
        """A Delete of some rows, or an upsert; rarely one whose deletion file is not there, or is not what it says."""
        made = self.rows(self._read_version(stale=True) or 1)
        if made is None:
            return self._append()
        fate = self.rng.random()
        if fate < 0.05:
            return Staged(value=made.value, files=made.files)
        if fate < 0.1:
            lies = dict.fromkeys(made.deletions, bytes(BitMap([0, 1, 2, 3, 4, 5, 6, 7]).serialize()))
            return Staged(value=made.value, files=made.files, deletions=lies)
        if self._retrying.random() < self.will_retry:
            return self._with_headers(made, headers(will_retry="true"))
        return made

    def _with_headers(self, made: Staged, given: list[Header]) -> Staged:
        return Staged(value=made.value, headers=given, files=made.files, deletions=made.deletions)

    def _unit_of_rows(self) -> Staged:
        """A unit of work that deletes rows."""
        app_id = self.rng.choice(APPS)
        made = self.rows(self._read_version() or 1)
        if made is None:
            return self._unit()
        self._app_versions[app_id] += 1
        given = headers(app_id=app_id, app_version=self._app_versions[app_id], app_run="first")
        return self._with_headers(made, given)

    def rows(self, version: int, *, upsert: bool | None = None) -> Staged | None:
        """A Delete of some rows of this version, or an upsert; None if it has no fragment with many rows."""
        there = [one for one in self.world.live_fragments(version) if len(one[1]) > 2]
        if not there:
            return None
        fragment, live = self.rng.choice(there)
        gone = BitMap(self.rng.sample(sorted(live), self.rng.randint(1, 2)))
        changed = DataFragment()
        changed.CopyFrom(fragment)
        deleted = BitMap(range(fragment.physical_rows)) - BitMap(live) | gone
        changed.deletion_file.CopyFrom(
            DeletionFile(
                file_type=DeletionFile.BITMAP,
                read_version=version,
                id=self.rng.getrandbits(60),
                num_deleted_rows=len(deleted),
            )
        )
        uuid, paths, keys = self._uuid(), list[str](), list[int]()
        if self.rng.random() < self.upserts if upsert is None else upsert:
            paths, keys = self._paths(1), self.rng.sample(range(40), 2)
            transaction = staging.upsert(uuid, changed, paths, keys, read_version=version)
            fate = self._naming.random()
            if fate < self.by_key:
                transaction.transaction_properties[MERGE] = BY_KEY
            elif (
                fate < self.by_key + self.without_keys
            ):  # an Update that may insert any key, one that inserts no row, or one that changes the keys
                transaction.update.ClearField("inserted_rows")
                if self._naming.random() < 0.7:
                    transaction.transaction_properties[CHANGES] = self._naming.choice(("", "7", "0,7"))
        else:
            transaction = staging.delete_rows(uuid, changed, read_version=version)
        self.world.auditor.rows_of[str(uuid)] = {(fragment.id, row) for row in gone}
        key = deletion_key(fragment.id, changed.deletion_file, staged=True)
        return Staged(value=transaction.SerializeToString(), files=paths, deletions={key: bytes(deleted.serialize())})

    def _restore(self) -> Staged:
        version = self._read_version()
        if not version:
            return self._append()
        return self._staged(staging.restore(self._uuid(), self.rng.randint(1, version), read_version=version))

    def _reserve(self) -> Staged:
        return self._staged(staging.reserve(self._uuid(), 3, read_version=self._read_version()))

    def _configure(self) -> Staged:
        replace = self.rng.random() < 0.3
        return self._staged(staging.configure(self._uuid(), read_version=self._read_version(), replace=replace))

    def late(self, *, seconds: float = 5.0) -> Staged:
        """A record whose deadline is at most so many seconds away, or has just passed."""
        paths = self._paths(1)
        deadline_ms = int((EPOCH.timestamp() + anyio.current_time() + self.rng.uniform(-1, seconds)) * 1000)
        return self._staged(staging.append(self._uuid(), paths), paths, headers(deadline_ms=deadline_ms))

    def in_time(self) -> Staged:
        """An Append whose deadline is in ten minutes, or was an hour ago."""
        paths = self._paths(1)
        now_ms = self.world.broker.now_ms()
        deadline_ms = now_ms + self.rng.choice((10 * 60_000, -60 * 60_000))
        return self._staged(staging.append(self._uuid(), paths), paths, headers(deadline_ms=deadline_ms))

    def _create_only(self) -> Staged:
        return self.create()

    def _retry(self) -> Staged:
        """The work of a refused record, executed again on the latest version."""
        refused = [o.uuid for o in self.world.auditor.answers.values() if o.status == RETRYABLE]
        if not refused:
            return self._append()
        if self._retrying.random() < self.will_retry:
            made = self.rows(self._read_version() or 1)
            if made is not None:
                given = headers(attempt=2, retry_of=self._retrying.choice(refused[-3:]), will_retry="true")
                return self._with_headers(made, given)
        paths = self._paths(1)
        transaction = staging.append(self._uuid(), paths, read_version=self._read_version())
        attempt = self.rng.randint(2, 3)
        return self._staged(transaction, paths, headers(attempt=attempt, retry_of=self.rng.choice(refused)))

    def _staged(
        self, transaction: Transaction, paths: list[str] | None = None, given: list[Header] | None = None
    ) -> Staged:
        return Staged(value=transaction.SerializeToString(), headers=given or (), files=paths or ())

    def _paths(self, count: int) -> list[str]:
        self._made += count
        return [f"f{number}.lance" for number in range(self._made - count, self._made)]

    def _uuid(self) -> UUID:
        return new_uuid(self.rng)

    def _read_version(self, *, stale: bool = False) -> int:
        """The latest version, or one of the last few; 0 for operations that allow it."""
        latest = self.world.auditor.latest
        if stale and self.rng.random() < 0.5:
            return 0
        return max(latest - self.rng.choice((0, 0, 0, 1, 3)), min(latest, 1))
