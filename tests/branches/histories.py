"""Random histories of a table and a branch of it, by pylance, beside the serial execution of both.

Each operation is done twice: by pylance on its side, and on rows in memory. When a promotion is not refused, the rows
of main are those of main's operations followed by those of the branch; when it is refused, main has no new version.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import lance
import pyarrow as pa

from committerd.branches.promoting import Promoted, Promoting
from committerd.branches.refusal import PromotionRefused
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.open import Stores
from committerd.table.backoff import Backoff
from committerd.table.case import Sources

Row = dict[str, Any]


def promote(uri: str, name: str, *, dry: bool = False, trusts_rewrites: bool = False) -> Promoted:
    """Promote a branch, in this process. Raises as `Promoting.run`."""

    async def main() -> Promoted:
        rng = random.Random()
        async with Stores(S3Settings(), DynamoDBSettings(), durable=False) as stores:
            return await Promoting(
                uri=uri,
                name=name,
                open_store=stores.open,
                sources=Sources(wall_clock=lambda: datetime.now(UTC), random=rng, new_uuid=uuid4),
                backoff=Backoff(rng),
                trusts_rewrites=trusts_rewrites,
            ).run(dry=dry)

    return anyio.run(main)


@dataclass
class Side:
    """One side of a history: a handle of pylance, and what was done on the rows, to do it again elsewhere."""

    handle: lance.LanceDataset
    first: int
    """Keys of its new rows begin here."""
    rows: dict[int, Row]
    config: dict[str, str] = field(default_factory=dict)
    done: list[Callable[[dict[int, Row]], object]] = field(default_factory=list)
    settings: list[tuple[str, str | None]] = field(default_factory=list)
    columns: list[str] = field(default_factory=lambda: ["id", "v"])
    log: list[str] = field(default_factory=list)

    def do(self, text: str, change: Callable[[dict[int, Row]], object]) -> None:
        change(self.rows)
        self.done.append(change)
        self.log.append(f"{self.handle.version} {text}")


@dataclass
class History:
    """A random history of both sides."""

    seed: int
    folder: Path
    schema_changes: bool = True
    hot: bool = False
    """Whether both sides may change the same rows."""
    rng: random.Random = field(init=False)
    main: Side = field(init=False)
    branch: Side = field(init=False)
    stable: bool = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.stable = self.rng.random() < 0.5
        uri = str(self.folder / f"history-{self.seed}")
        count = self.rng.randint(5, 60)
        rows = {number: {"id": number, "v": number} for number in range(count)}
        main = lance.write_dataset(
            _table(rows.values(), ["id", "v"]),
            uri,
            enable_stable_row_ids=self.stable,
            max_rows_per_file=self.rng.choice([4, 10, 100]),
            data_storage_version="2.0",
        )
        self.main = Side(main, 1000, rows)
        for _ in range(self.rng.randint(0, 3)):
            self.step(self.main)
        if self.rng.random() < 0.4:
            self.index(self.main)
        self.main.done.clear()
        self.main.settings.clear()
        self.main.log.append("branch")
        handle = self.main.handle.create_branch("feature/x")
        copies = {key: dict(row) for key, row in self.main.rows.items()}
        self.branch = Side(handle, 1_000_000, copies, columns=list(self.main.columns))
        self.hot = self.rng.random() < 0.3

    @property
    def uri(self) -> str:
        return str(self.folder / f"history-{self.seed}")

    def keys(self, side: Side, count: int) -> list[int]:
        """Keys of rows that this side may change: all, or those that the other side does not change."""
        keys = sorted(side.rows)
        if hasattr(self, "branch") and not self.hot:
            mine = 0 if side is self.main else 1
            keys = [key for key in keys if key >= 1000 or key % 2 == mine]
        return self.rng.sample(keys, min(count, len(keys)))

    def step(self, side: Side) -> None:
        """One random operation."""
        usual = [self.append] * 4 + [self.delete] * 3 + [self.update] * 3 + [self.upsert] * 3
        rare = [self.compact] * 2 + [self.index, self.configure, self.optimize]
        if self.schema_changes and self.rng.random() < 0.3:
            rare += [self.add_column, self.drop_column]
        self.rng.choice(usual + rare)(side)

    def append(self, side: Side) -> None:
        count = self.rng.randint(1, 12)
        keys = range(side.first, side.first + count)
        side.first += count
        new = [{name: key if name == "id" else self.rng.randint(0, 99) for name in side.columns} for key in keys]
        side.handle.insert(_table(new, side.columns), max_rows_per_file=self.rng.choice([5, 100]))
        side.do(f"append {list(keys)}", lambda rows: rows.update({row["id"]: dict(row) for row in new}))

    def delete(self, side: Side) -> None:
        keys = self.keys(side, self.rng.randint(1, 4))
        if keys:
            side.handle.delete(f"id in ({', '.join(map(str, keys))})")
            side.do(f"delete {keys}", lambda rows: [rows.pop(key, None) for key in keys])

    def update(self, side: Side) -> None:
        keys = self.keys(side, self.rng.randint(1, 5))
        if not keys or "v" not in side.columns:
            return
        side.handle.update({"v": "v + 1000"}, where=f"id in ({', '.join(map(str, keys))})")

        def change(rows: dict[int, Row]) -> None:
            for key in keys:
                if key in rows:
                    rows[key]["v"] += 1000

        side.do(f"update {keys}", change)

    def upsert(self, side: Side) -> None:
        old, count = self.keys(side, self.rng.randint(0, 4)), self.rng.randint(0, 4)
        new = range(side.first, side.first + count)
        side.first += count
        if not old and not new:
            return
        rows = [
            {name: key if name == "id" else self.rng.randint(100, 199) for name in side.columns} for key in (*old, *new)
        ]
        side.handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
            _table(rows, side.columns)
        )
        side.do(f"upsert {old} {list(new)}", lambda known: known.update({row["id"]: dict(row) for row in rows}))

    def compact(self, side: Side) -> None:
        defers = not self.stable and self.rng.random() < 0.3
        rows = self.rng.choice([20, 1000])
        side.handle.optimize.compact_files(target_rows_per_fragment=rows, defer_index_remap=defers)
        side.do("compact", lambda rows: None)

    def index(self, side: Side) -> None:
        column = self.rng.choice(side.columns)
        side.handle.create_scalar_index(column, self.rng.choice(["BTREE", "BITMAP"]), replace=True)
        side.do(f"index {column}", lambda rows: None)

    def optimize(self, side: Side) -> None:
        side.handle.optimize.optimize_indices()
        side.do("optimize indices", lambda rows: None)

    def configure(self, side: Side) -> None:
        shared = self.hot and hasattr(self, "branch")
        key = f"key{self.rng.randint(0, 3)}" if shared else f"{side.first // 1_000_000}-{self.rng.randint(0, 3)}"
        if key in side.config and self.rng.random() < 0.3:
            side.handle.delete_config_keys([key])
            side.settings.append((key, None))
            del side.config[key]
        else:
            value = str(self.rng.random())
            side.handle.update_config({key: value})
            side.settings.append((key, value))
            side.config[key] = value
        side.log.append(f"{side.handle.version} config {key}")

    def add_column(self, side: Side) -> None:
        name = f"c{side.first}_{len(side.log)}"
        side.handle.add_columns({name: "id + 7"})
        side.columns.append(name)
        side.do(f"add {name}", lambda rows: [row.update({name: row["id"] + 7}) for row in rows.values()])

    def drop_column(self, side: Side) -> None:
        names = [name for name in side.columns if name.startswith("c")]
        if not names:
            return
        name = self.rng.choice(names)
        side.handle.drop_columns([name])
        side.columns.remove(name)
        side.do(f"drop {name}", lambda rows: [row.pop(name, None) for row in rows.values()])

    def both(self, count: int) -> None:
        """Random operations on both sides, in a random order."""
        moves = self.rng.choice([0, 0.05, 0.5])
        for _ in range(count):
            self.step(self.main if self.rng.random() < moves else self.branch)

    def branch_is_sound(self) -> bool:
        """Whether the branch, which only pylance has written, has the rows that it should have."""
        found = self.branch.handle.to_table(columns=["id"])["id"].to_pylist()
        return sorted(found) == sorted(self.branch.rows)

    def promote(self) -> bool:
        """Promote the branch and compare main with the serial execution; returns whether it was not refused."""
        before = lance.dataset(self.uri)
        ids_before = _row_ids(before) if self.stable else {}
        trusts = self.rng.random() < 0.5
        expected, refused = _tried(self.uri, dry=True, trusts_rewrites=trusts)
        if expected is None:
            again = _tried(self.uri, dry=False, trusts_rewrites=trusts)
            assert again == (None, refused)
            assert lance.dataset(self.uri).version == before.version
            self.main.log.append(f"refused: {refused}")
            return False
        assert lance.dataset(self.uri).version == before.version
        done = promote(self.uri, "feature/x", trusts_rewrites=trusts)
        assert (done.first, done.last, done.version) == (expected.first, expected.last, expected.version)
        for change in self.branch.done:
            change(self.main.rows)
        for key, value in self.branch.settings:
            if value is None:
                self.main.config.pop(key, None)
            else:
                self.main.config[key] = value
        moved_schema = [name for name in self.branch.columns if name not in self.main.columns]
        self.main.columns = [
            *(name for name in self.main.columns if name in self.branch.columns or name not in self._shared()),
            *moved_schema,
        ]
        self.branch.done.clear()
        self.branch.settings.clear()
        self.main.handle = lance.dataset(self.uri)
        self.main.log.append(f"promoted {done.first}-{done.last} as {done.version}")
        self.check()
        if self.stable:
            after = _row_ids(self.main.handle)
            moved = {key for key in ids_before.keys() & after.keys() if ids_before[key] != after[key]}
            assert not moved, f"rows {moved} have other row ids"
            assert len(set(after.values())) == len(after)
        return True

    def _shared(self) -> set[str]:
        return {name for name in self.main.columns if not name.startswith("c")} | set(self._dropped())

    def _dropped(self) -> list[str]:
        return [entry.split()[2] for entry in self.branch.log if entry.split()[1] == "drop"]

    def check(self) -> None:
        """Compare the rows, the configuration and the answers of indices with the serial execution."""
        main = lance.dataset(self.uri)
        main.validate()  # type: ignore[no-untyped-call]
        found = {row["id"]: row for row in main.to_table().to_pylist()}
        assert main.count_rows() == len(found), "some row is there twice"
        names = [field.name for field in main.schema]
        expected = {key: {name: row.get(name) for name in names} for key, row in self.main.rows.items()}
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        assert found == expected, [(found[key], expected[key]) for key in found if found[key] != expected[key]][:5]
        assert {key: value for key, value in main.config().items() if not key.startswith("lance.")} == self.main.config
        for column in names:
            values = sorted({row[column] for row in found.values() if row[column] is not None})
            for value in self.rng.sample(values, min(4, len(values))):
                wheres = [f"{column} = {value}", f"{column} >= {value}"]
                for where in wheres:
                    with_index = main.to_table(filter=where, columns=["id"])["id"].to_pylist()
                    without = main.to_table(filter=where, columns=["id"], use_scalar_index=False)["id"].to_pylist()
                    assert sorted(with_index) == sorted(without), (where, sorted(with_index), sorted(without))

    def afterwards(self) -> None:
        """pylance goes on with main."""
        for name in ("append", "delete", "update", "upsert", "compact", "optimize"):
            getattr(self, name)(self.main)
            self.check()


def run(seed: int, folder: Path, *, steps: int = 50) -> tuple[int, int, History]:
    """One history with several promotions; returns how many landed, and how many were refused."""
    history = History(seed, folder)
    landed = 0
    left = steps
    try:
        while left > 0:
            some = history.rng.randint(1, left)
            left -= some
            try:
                history.both(some)
            except OSError as error:
                # pylance 14.0.2: a compaction of a branch writes the indices that the branch has from main to the
                # branch's folder, and names them in main's.
                if "_indices/" not in str(error):
                    raise
                history.main.log.append("pylance failed")
                return landed, 0, history
            if not history.branch_is_sound():
                # pylance 14.0.2: a merge by an index that is to be remapped later inserts rows that are there.
                history.main.log.append("pylance failed")
                return landed, 0, history
            if not history.promote():
                return landed, 1, history
            landed += 1
        history.afterwards()
    except BaseException as error:
        error.add_note(
            f"seed {seed}, stable row ids: {history.stable}\nmain: {history.main.log}\nbranch: {history.branch.log}"
        )
        raise
    return landed, 0, history


def _tried(uri: str, *, dry: bool, trusts_rewrites: bool) -> tuple[Promoted | None, str]:
    try:
        return promote(uri, "feature/x", dry=dry, trusts_rewrites=trusts_rewrites), ""
    except PromotionRefused as error:
        return None, str(error)


def _row_ids(dataset: lance.LanceDataset) -> dict[int, int]:
    table = dataset.to_table(columns=["id"], with_row_id=True)
    return dict(zip(table["id"].to_pylist(), table["_rowid"].to_pylist(), strict=True))


def _table(rows: Any, columns: list[str]) -> pa.Table:
    rows = list(rows)
    return pa.table({name: pa.array([row[name] for row in rows], pa.int64()) for name in columns})
