"""Random histories of changes that meet in the same rows while compactions move these.

pylance stages each transaction on a random recent version. They are committed in random order, one by one, or in
rounds, as the committer does with records that wait together. After each version the table must be what the same
changes make when they are executed one after the other: rows, values, stable row ids, row versions. In the end both
versions of pylance read it, through each index and without, and change it further.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments
from pyroaring import BitMap

from committerd.committer import direct
from committerd.committer.direct import DirectOutcome
from committerd.lance.operations.permissions import ANYTHING
from committerd.queue.outcomes import Status, status_of
from committerd.stores.local import LocalStore
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions
from committerd.table.versions import Table
from committerd_client import Staged, staging
from committerd_common.messages import DeletionFile, Transaction
from committerd_common.paths import deletion_key
from tests.conformance.histories import Pylances
from tests.conformance.rounds import committed_by_round
from tests.table.scene import open_store, sources

SCALAR_KINDS = ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER")
_MISREAD = ("ZONEMAP", "BLOOMFILTER", "IVF_FLAT")
_FILE_VERSIONS = ("2.0", "2.1", "2.2")
_ROWS = 60
_NEW = range(_ROWS, _ROWS + 12)
"""Ids that Appends and upserts share."""
_VERSIONS = ["_row_created_at_version", "_row_last_updated_at_version"]


@dataclass(slots=True)
class Row:
    """One row of the table that serial execution makes."""

    value: int
    row_id: int = -1
    created: int = 0
    updated: int = 0


@dataclass(slots=True)
class Waiting:
    """A staged transaction, and what it does if it is committed."""

    name: str
    staged: Staged
    read: int
    """The version that it was planned on."""
    removed: frozenset[int] = frozenset()
    """By id, the rows that it deletes."""
    written: dict[int, int] = field(default_factory=dict)
    """By id, the values of the rows that it inserts or updates."""
    updates: frozenset[int] = frozenset()
    """Those of `written` that it found in the table."""
    fragments: frozenset[int] = frozenset()
    """The fragments that it moves."""
    renamed: dict[int, int] = field(default_factory=dict)
    """By new id, the row that gets it."""
    is_wrong: bool = False
    """Whether it says what is not true, so that it must not be committed."""

    @property
    def touched(self) -> frozenset[int]:
        return self.removed | self.written.keys()

    @property
    def must_know(self) -> frozenset[int]:
        """The ids of the rows that nobody may have changed since it was planned.

        A row with an id that an Append or a rename brings may have come and gone meanwhile. An upsert must know of it.
        """
        return self.touched if self.name == "upsert" else self.removed | self.updates


@dataclass(slots=True)
class Told:
    """What became of the transactions, as (name, outcome), and the number of rows that were followed."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    followed: int = 0
    together: int = 0
    """Versions in which rows of several members were followed."""


class History:
    """One table and its history."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.root = folder / "table"
        self.stable = self.rng.random() < 0.5
        self.values = iter(range(1000, 10**9))
        self.ids = iter(range(1000, 10**9))
        """Of rows that are appended; upserts insert few of the others."""
        self.in_rounds = self.rng.random() < 0.4
        """Whether it is committed in rounds."""
        self.rows: dict[int, Row] = {}
        self.changed: dict[int, int] = {}
        """By id, the version that last inserted, updated or deleted the row."""
        self.moved: dict[int, int] = {}
        """By fragment, the version that rewrote it."""
        self.unnamed = 0
        """The last version that brought keys without naming them."""
        self.index_made = 0
        """The version that last made an index."""
        self.misread: set[str] = set()
        """Columns with an index that 4.0.0 misreads in a table with stable row ids, whoever commits: docs/conflicts.md.
        It may use that one for a query that another index answers rightly.
        """
        self.told = Told()
        self._create(folder)

    def _create(self, folder: Path) -> None:
        rng, is_clone = self.rng, self.rng.random() < 0.15
        root = folder / "origin" if is_clone else self.root
        lance.write_dataset(
            self._table({id: next(self.values) for id in range(_ROWS)}),
            str(root),
            max_rows_per_file=rng.choice((7, 12, 20)),
            data_storage_version=rng.choice(_FILE_VERSIONS),  # type: ignore[arg-type]
            enable_stable_row_ids=self.stable,
            enable_v2_manifest_paths=rng.random() < 0.7,
        )
        if rng.random() < 0.7:
            lance.dataset(str(root)).delete(_is_one_of(rng.sample(range(_ROWS), rng.randint(1, 12))))
        if is_clone:
            lance.dataset(str(root)).shallow_clone(str(self.root), lance.dataset(str(root)).version)
        for column in rng.sample(("id", "v", "text", "vector"), rng.randint(0, 2)):
            self._index(lance.dataset(str(self.root)), column)
        self.rows = self._read()
        self.begin = lance.dataset(str(self.root)).version

    def _table(self, values: dict[int, int]) -> pa.Table:
        vectors = [float(one) for id in values for one in (id, id % 3)]
        return pa.table(
            {
                "id": pa.array(values.keys(), pa.int64()),
                "v": pa.array(values.values(), pa.int64()),
                "text": [f"word{value % 5} row{value}" for value in values.values()],
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors, pa.float32()), 2),
            }
        )

    def _index(self, dataset: lance.LanceDataset, column: str) -> Staged | None:
        """Build an index; staged if the history has begun."""
        # With stable row ids, an inverted index finds deleted rows after any compaction (docs/conflicts.md).
        text = "NGRAM" if self.stable else self.rng.choice(("INVERTED", "NGRAM"))
        kind = {"text": text, "vector": "IVF_FLAT"}.get(column)
        kind = kind or self.rng.choice(SCALAR_KINDS)
        parameters: Any = {"num_partitions": 2} if kind == "IVF_FLAT" else {}
        name = f"{column}_{self.rng.randint(0, 1)}"
        if kind in _MISREAD:
            self.misread.add(column)
        if self.rows:
            return staging.create_index(dataset, column, kind, name=name, replace=True, **parameters)
        build: Any = dataset.create_index if kind == "IVF_FLAT" else dataset.create_scalar_index
        build(column, kind, name=name, replace=True, **parameters)
        return None

    def _read(self) -> dict[int, Row]:
        dataset = lance.dataset(str(self.root))
        columns = ["id", "v", "text", "vector", *(_VERSIONS if self.stable else ())]
        found = dataset.to_table(columns=columns, with_row_id=self.stable).to_pylist()
        rows = {
            one["id"]: Row(one["v"], one.get("_rowid", -1), *(one[name] for name in _VERSIONS if self.stable))
            for one in found
        }
        assert len(rows) == len(found) == dataset.count_rows(), "a row is in the table twice"
        assert all(one["text"].endswith(f"row{one['v']}") for one in found)
        assert all(one["vector"] == [float(one["id"]), float(one["id"] % 3)] for one in found)
        return rows

    async def stage(self) -> Waiting:
        """Stage a random change on a recent version."""
        latest = lance.dataset(str(self.root)).version
        read = self.rng.randint(max(self.begin, latest - 4), latest)
        dataset = lance.dataset(str(self.root), version=read)
        there = dataset.to_table(columns=["id"]).column("id").to_pylist()
        kinds: list[Callable[[lance.LanceDataset, list[int]], Awaitable[Waiting | None]]] = [
            self._append, self._delete, self._update, self._rename, self._upsert,
            self._compact, self._compact, self._create_index,
        ]  # fmt: skip
        if self.in_rounds:
            kinds += [self._delete, self._update, self._upsert]
        for kind in self.rng.sample(kinds, len(kinds)):
            waiting = await kind(dataset, there)
            if waiting is not None:
                return waiting
        raise AssertionError("no change is possible")

    def _some(self, there: list[int]) -> list[int]:
        if self.rng.random() < 0.3:  # neighbours, so that fragments lose all their rows
            start = self.rng.randrange(len(there))
            return there[start : start + self.rng.randint(5, 25)]
        return self.rng.sample(there, min(len(there), self.rng.randint(1, 6)))

    async def _append(self, dataset: lance.LanceDataset, there: list[int]) -> Waiting | None:
        ids = [next(self.ids) for _ in range(self.rng.randint(1, 9))]
        ids += [one for one in self.rng.sample(_NEW, self.rng.randint(0, 4)) if one not in there]
        written = {id: next(self.values) for id in ids}
        rows, names_keys = self._table(written), self.rng.random() < 0.7
        keys = staging.keys_of(dataset, "id", rows) if names_keys else None
        staged = staging.append(write_fragments(rows, dataset, mode="append"), dataset=dataset, keys=keys)
        return Waiting("append" if names_keys else "append without keys", staged, dataset.version, written=written)

    async def _delete(self, dataset: lance.LanceDataset, there: list[int]) -> Waiting | None:
        if len(there) < 25:
            return None
        some = self._some(there)
        return Waiting("delete", staging.delete(dataset, _is_one_of(some)), dataset.version, frozenset(some))

    async def _update(self, dataset: lance.LanceDataset, there: list[int]) -> Waiting | None:
        if not there:
            return None
        some = self._some(there)
        value = next(self.values)
        set_to = {"v": str(value), "text": f"'word{value % 5} row{value}'"}
        staged = staging.update(dataset, set_to, where=_is_one_of(some))
        return Waiting("update", staged, dataset.version, written=dict.fromkeys(some, value), updates=frozenset(some))

    async def _rename(self, dataset: lance.LanceDataset, there: list[int]) -> Waiting | None:
        """Give a row another id, which an upsert may insert."""
        free = sorted(set(_NEW).difference(there))
        if not (there and free):
            return None
        old, new = self.rng.choice(there), self.rng.choice(free)
        (value,) = dataset.to_table(columns=["v"], filter=f"id = {old}").column("v").to_pylist()
        vector = pa.scalar([float(new), float(new % 3)], pa.list_(pa.float32(), 2))
        staged = staging.update(dataset, {"id": str(new), "vector": vector}, where=f"id = {old}")
        return Waiting("rename", staged, dataset.version, frozenset({old}), written={new: value}, renamed={new: old})

    async def _upsert(self, dataset: lance.LanceDataset, there: list[int]) -> Waiting | None:
        if not there:
            return None
        known = self._some(there)
        new = {*self.rng.sample(range(_ROWS), self.rng.randint(0, 2)), *self.rng.sample(_NEW, self.rng.randint(0, 5))}
        written = {id: next(self.values) for id in [*known, *sorted(new.difference(there))]}
        staged = staging.merge_insert(dataset, self._table(written), on="id")
        return Waiting("upsert", staged, dataset.version, written=written, updates=frozenset(known))

    async def upsert_while_rows_are_appended(self) -> None:
        """Stage an upsert, and Appends and changed ids that may share a key with it and are committed before it."""
        dataset = lance.dataset(str(self.root))
        there = dataset.to_table(columns=["id"]).column("id").to_pylist()
        upsert = await self._upsert(dataset, there)
        append, rename = self._append, self._rename
        for stage in self.rng.choice(([append], [append, append], [append, rename], [rename])):
            other = await stage(dataset, there)
            await self.commit([other] if other is not None else [])
        await self.commit([upsert] if upsert is not None else [])

    async def index_while_new_rows_are_compacted(self) -> None:
        """Build an index, while rows are appended and compacted together with rows that it covers."""
        dataset = lance.dataset(str(self.root))
        there = dataset.to_table(columns=["id"]).column("id").to_pylist()
        index, rows = await self._create_index(dataset, there), await self._append(dataset, there)
        assert rows is not None
        await self.commit([rows])
        dataset = lance.dataset(str(self.root))
        ids = [one.fragment_id for one in dataset.get_fragments()]
        some = ids if self.rng.random() < 0.4 else ids[-self.rng.randint(2, 3) :]
        compaction = await self._compact(dataset, there, groups=[some])
        await self.commit([one for one in (compaction, index) if one is not None])

    async def _compact(
        self, dataset: lance.LanceDataset, there: list[int], *, groups: list[list[int]] | None = None
    ) -> Waiting | None:
        if groups is None and self.rng.random() < 0.4:
            ids = [one.fragment_id for one in dataset.get_fragments()]
            start = self.rng.randrange(max(len(ids) - 1, 1))
            groups = [ids[start : start + self.rng.randint(2, 3)]]
        done = staging.compact_files(
            dataset,
            groups=groups,
            target_rows_per_fragment=self.rng.choice((25, 40, 1000)),
            max_rows_per_group=self.rng.choice((8, 1024)),
            materialize_deletions_threshold=0.0,
        )
        if not done.groups:
            return None
        reservation = staging.reserve_fragments(lance.dataset(str(self.root)), done.ids_needed)
        reserved = (await self._committed(reservation)).reserved
        new = range(reserved[0], reserved[0] + reserved[1])
        if self.rng.random() < 0.5:
            done = staging.with_remapped_indices(lance.dataset(str(self.root), version=dataset.version), done, new)
        old = frozenset(one.id for group in done.groups for one in group.old)
        staged = done.rewrite(new)
        if self.rng.random() < 0.15 and self._lies(staged.transaction):
            return Waiting("wrong compact", staged, dataset.version, fragments=old, is_wrong=True)
        return Waiting("compact", staged, dataset.version, fragments=old)

    def _lies(self, transaction: Transaction) -> bool:
        """Let a Rewrite say that other rows were deleted when it copied a fragment; returns whether it can."""
        for old in (one for group in transaction.rewrite.groups for one in group.old_fragments):
            count = old.deletion_file.num_deleted_rows
            if 0 < count < old.physical_rows:
                rows = BitMap(self.rng.sample(range(old.physical_rows), count))
                named = DeletionFile(file_type=DeletionFile.BITMAP, id=self.rng.getrandbits(60), num_deleted_rows=count)
                old.deletion_file.CopyFrom(named)
                path = self.root / deletion_key(old.id, named, staged=True)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(rows.serialize())
                return True
        return False

    async def _create_index(self, dataset: lance.LanceDataset, there: list[int]) -> Waiting | None:
        if not there:
            return None
        dataset = lance.dataset(str(self.root))  # pylance refuses to build one on another version
        staged = self._index(dataset, self.rng.choice(("id", "v", "text", "vector")))
        assert staged is not None
        return Waiting("index", staged, dataset.version)

    async def _committed(self, staged: Staged) -> DirectOutcome:
        return await direct.commit(
            Table(LocalStore(self.root, durable=False)),
            staged.transaction,
            options=PrepareOptions(allowed=ANYTHING, verify_files=True),
            sources=sources(random=self.rng),
            open_store=open_store,
            backoff=Backoff(self.rng),
        )

    async def commit(self, batch: Sequence[Waiting]) -> None:
        """Commit these, one by one or in rounds, and check each version."""
        if not self.in_rounds:
            for one in batch:
                if self._keeps_ids_unique(one, ()):
                    done = await self._committed(one.staged)
                    self._settled(one, done.status, done.message)
                    if done.status is Status.COMMITTED:
                        self._made([one], done.version)
            return
        staged = [one for one in batch if self._keeps_ids_unique(one, batch)]
        transactions = [one.staged.transaction for one in staged]
        async for version in committed_by_round(self.root, transactions, rng=self.rng):
            for at, member in version.members.items():
                self._settled(staged[at], Status.COMMITTED, member.note)
            self._made([staged[at] for at in version.members], version.version)
            for at, refusal in version.refusals.items():
                self._settled(staged[at], status_of(refusal), refusal.message)
            self.told.together += sum(" followed" in one.note for one in version.members.values()) > 1

    def _keeps_ids_unique(self, waiting: Waiting, others: Sequence[Waiting]) -> bool:
        """Whether no row has the id of one that it appends or renames: it would be committed all the same."""
        taken = set(self.rows).union(*(one.written for one in others if one is not waiting))
        brings_keys = waiting.name.startswith("append") or bool(waiting.renamed)
        return not brings_keys or taken.isdisjoint(waiting.written)

    def _settled(self, waiting: Waiting, status: Status, message: str) -> None:
        """Check that there is a reason to refuse it, if it is refused."""
        self.told.outcomes[waiting.name, status.value.lower()] += 1
        if status is not Status.COMMITTED:
            if waiting.is_wrong and status is Status.INVALID:
                return
            assert status is Status.RETRYABLE, f"{waiting.name}: {status} {message}"
            assert self._may_be_refused(waiting), f"{waiting.name} was refused without a reason: {message}"
            return
        assert not waiting.is_wrong, f"{waiting.name} was committed"
        if waiting.name != "index" and message:
            self.told.followed += int(message.partition(" row")[0])

    def _made(self, members: Sequence[Waiting], version: int) -> None:
        """Check the version that commits these."""
        for one in members:
            late = [id for id in one.must_know if self.changed.get(id, 0) > one.read]
            assert not late, f"{one.name} has changed rows {late} over a change that it had not read"
            self._execute(one, version)
        found = self._read()
        assert found == self.rows, f"{[one.name for one in members]}: {_difference(found, self.rows)}"
        for one in members:
            if one.name == "index":
                self._covers_something(one)

    def _covers_something(self, waiting: Waiting) -> None:
        """Check that compactions have left something of what an index covers."""
        dataset = lance.dataset(str(self.root))
        (name,) = (one.name for one in waiting.staged.transaction.create_index.new_indices)
        segments = [one for index in dataset.describe_indices() if index.name == name for one in index.segments]
        covered = {id for one in segments for id in one.fragment_ids}
        moved = self.moved.keys() - {one.fragment_id for one in dataset.get_fragments()}
        assert not covered or covered - moved, f"index {name} covers nothing that is there"

    def _may_be_refused(self, waiting: Waiting) -> bool:
        if waiting.name == "index":
            return True  # another index of its name, or nothing is left of what it covers
        since = (*map(self.changed.get, waiting.touched), *map(self.moved.get, waiting.fragments))
        if waiting.fragments and self.index_made > waiting.read:
            return True  # it may cover what is compacted
        if waiting.name == "upsert" and self.unnamed > waiting.read:
            return True
        return any(version is not None and version > waiting.read for version in since)

    def _execute(self, waiting: Waiting, version: int) -> None:
        """Do in `rows` what the transaction does."""
        before = {id: self.rows.get(waiting.renamed.get(id, id)) for id in waiting.written}
        for id in waiting.removed:
            del self.rows[id]
        found = self._read() if self.stable else {}
        for id, value in waiting.written.items():
            self.rows[id], old = Row(value), before[id]
            if self.stable:
                # A merge of pylance inserts updated rows anew; an update keeps their ids.
                row_id = found[id].row_id
                kept = old is not None and old.row_id == row_id
                assert kept or waiting.name not in ("update", "rename")
                self.rows[id] = Row(value, row_id, old.created if old is not None and kept else version, version)
        self.changed |= dict.fromkeys(waiting.touched, version)
        self.moved |= dict.fromkeys(waiting.fragments, version)
        if waiting.name == "index":
            self.index_made = version
        if waiting.name in ("append without keys", "rename"):
            self.unnamed = version


def _difference(found: dict[int, Row], wanted: dict[int, Row]) -> str:
    wrong = sorted(id for id in found.keys() | wanted.keys() if found.get(id) != wanted.get(id))
    return "; ".join(f"row {id} is {found.get(id)}, not {wanted.get(id)}" for id in wrong[:3])


def _is_one_of(ids: list[int]) -> str:
    return f"id in ({', '.join(map(str, ids))})"


def _wrong(answer: dict[str, Any], history: History, *, old: bool) -> list[str]:
    """What a reader finds otherwise than it is, except for what its version finds wrongly in any table."""
    if "error" in answer:
        return [answer["error"]]
    wrong = list(answer["lookups"])
    if old and history.stable:
        wrong = [one for one in wrong if one.partition(":")[0].rpartition("_")[0] not in history.misread]
    return wrong


def check_readers(history: History, versions: Pylances) -> None:
    """Both versions of pylance find the rows, through each index and without."""
    for reader, old in ((versions.new, False), (versions.old, True)):
        if reader is not None:
            answer = reader.read(history.root)
            wrong = _wrong(answer, history, old=old)
            assert not wrong, f"pylance {'4.0.0' if old else '14.0.2'}: {wrong[:3]}"
            assert answer["rows"] == len(history.rows)


def change_further(history: History) -> None:
    """pylance itself goes on with the table: it merges, deletes, compacts, optimizes indices and cleans up."""
    rng, uri = history.rng, str(history.root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        there = sorted(history.rows)
        gone = rng.sample(there, min(3, len(there)))
        lance.dataset(uri).delete(_is_one_of(gone))
        new = {id: next(history.values) for id in (500, *rng.sample(there, min(2, len(there))))}
        builder = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        builder.execute(history._table(new))
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=30, num_threads=1)
        lance.dataset(uri).optimize.optimize_indices()
        lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    for id in gone:
        del history.rows[id]
    history.rows |= {id: Row(value) for id, value in new.items()}
    values = {id: row.value for id, row in history._read().items()}
    assert values == {id: row.value for id, row in history.rows.items()}


async def run(seed: int, folder: Path, versions: Pylances, *, thorough: bool = True) -> Told:
    """Play one history. Raises `AssertionError` where a table or a verdict is wrong.

    `thorough`: let pylance change the table further.
    """
    history = History(seed, folder)
    rng, waiting = history.rng, list[Waiting]()
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.2:
            await history.upsert_while_rows_are_appended()
        if rng.random() < 0.2:
            await history.index_while_new_rows_are_compacted()
        waiting += [await history.stage() for _ in range(rng.randint(2, 6 if history.in_rounds else 4))]
        rng.shuffle(waiting)
        if rng.random() < 0.4:  # more changes meet fragments that have moved
            waiting.sort(key=lambda one: not one.fragments)
        # An index takes long to build.
        go_on = [rng.random() < (0.5 if one.name == "index" else 0.1) for one in waiting]
        await history.commit([one for one, goes_on in zip(waiting, go_on, strict=True) if not goes_on])
        waiting = [one for one, goes_on in zip(waiting, go_on, strict=True) if goes_on]
    await history.commit(waiting)
    check_readers(history, versions)
    if not thorough:
        return history.told
    change_further(history)
    check_readers(history, replace(versions, old=None))  # 4.0.0 can't use all indices that 14.0.2 has optimized
    return history.told
