"""A random merge into a random table, by pylance and by us: the same rows afterwards, or both refuse.

Tables have structs, lists of structs, a column that may not be null, nulls in their keys, and indices on these. The
rows lack columns and fields, and have keys twice or null. All clauses of `merge_insert` come in any combination.

Where we refuse and pylance does not: a merge that may insert takes no null in a key, and no key twice; and what pylance
writes of parts of structs and lists so that nobody can read the table afterwards.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from committerd.queue.outcomes import Status
from committerd_client import StagingError, staging
from committerd_client.changes import Upsert
from committerd_client.data import rows_of
from committerd_client.headers import StagedChange
from committerd_client.table_location import TableLocation
from tests.producers.direct_commit import commit

KEYS = {"int64": pa.int64(), "string": pa.string(), "date": pa.date32(), "int16": pa.int16()}
DEEP = pa.struct([("c", pa.int32()), ("d", pa.string())])
PAIR = pa.struct([("a", pa.int64()), ("b", pa.string()), ("deep", DEEP)])
STRICT = pa.struct([pa.field("e", pa.int64()), pa.field("f", pa.string(), nullable=False)])
ITEMS = pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))
REFUSALS = (StagingError, OSError, ValueError, RuntimeError)
"""What pylance and the client raise for a merge that can't be made."""


@dataclass(frozen=True, slots=True)
class Merge:
    """One merge. `source` has any columns of the table."""

    source: pa.Table
    on: tuple[str, ...]
    clauses: dict[str, bool | str]
    use_index: bool
    lacks_required: bool
    """Whether the source has rows, and lacks a column that may not be null."""

    @property
    def inserts(self) -> bool:
        return bool(self.clauses.get("when_not_matched_insert_all"))

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        return list(zip(*(self.source.column(name).to_pylist() for name in self.on), strict=True))

    @property
    def wrong_keys(self) -> set[str]:
        """The codes of the errors that its keys lead to, if it may insert."""
        nulls = any(None in key for key in self.keys)
        twice = len(set(self.keys)) < len(self.keys)
        return {"null_keys"} & {"null_keys" if nulls else ""} | {"duplicate_keys"} & {"duplicate_keys" if twice else ""}


async def run(seed: int, folder: Path) -> str:
    """Make the merge of this seed; returns what came of it. Raises `AssertionError` if we do not as pylance does."""
    rng = random.Random(seed)
    base = str(folder / "base")
    table = _table(rng, base)
    merge = _merge(rng, table)
    come_of: list[str] = []
    # Of dicts only those values say their fields that are there.
    values = str(merge.source.to_pylist())
    for form in ("table", "reader", "client", *(["dicts"] if "None" not in values and "[]" not in values else [])):
        theirs = _theirs(_copy(base, folder / f"theirs-{form}"), merge, form)
        ours = await _ours(_copy(base, folder / f"ours-{form}"), merge, form)
        told = f"{form}: {merge.clauses} on {merge.on}, {table.data_storage_version}\n{table.schema}"
        come_of.append(_compared(merge, form, theirs, ours, f"{told}\n{merge.source.to_pylist()}"))
    return come_of[-1]


class Unreadable(Exception):
    """The merge was committed, and afterwards nobody can read the table."""


Outcome = tuple[list[str], tuple[int, int, int]] | Exception
"""The rows afterwards and the numbers of inserted, updated and deleted ones; or the error."""


def _compared(merge: Merge, form: str, theirs: Outcome, ours: Outcome, told: str) -> str:
    assert not isinstance(ours, Unreadable), f"{told}: the table can't be read any more: {ours}"
    if isinstance(theirs, Unreadable):
        assert isinstance(ours, StagingError), f"{told}: pylance damages the table ({theirs}), we make {ours}"
        return "unreadable"
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception), f"{told}: pylance refuses it ({theirs}), we make {ours}"
        return "refused"
    if merge.inserts and merge.lacks_required and form in ("client", "dicts"):
        assert isinstance(ours, StagingError), f"{told}: rows without a required column could be inserted"
        return "refused"  # pylance refuses it only if there is a row to insert, or if no part of a struct is missing
    if merge.inserts and merge.wrong_keys:
        assert isinstance(ours, StagingError), f"{told}: keys that may not be inserted were, as {ours}"
        assert ours.code in merge.wrong_keys, f"{told}: {ours!r}"
        return "wrong keys"
    assert not isinstance(ours, Exception), f"{told}\npylance makes {theirs}, we refuse it: {ours}"
    assert ours[1] == theirs[1], f"{told}\npylance counts {theirs[1]}, we {ours[1]}"
    odd = [sorted(set(one[0]) - set(other[0])) for one, other in ((theirs, ours), (ours, theirs))]
    assert ours[0] == theirs[0], f"{told}\npylance {odd[0]}\nwe      {odd[1]}"
    return "merged"


def _theirs(uri: str, merge: Merge, form: str) -> Outcome:
    builder: Any = lance.dataset(uri).merge_insert(list(merge.on))
    builder.use_index(merge.use_index)
    for name, wish in merge.clauses.items():
        getattr(builder, name)(*([wish] if isinstance(wish, str) else []))
    try:
        counts = builder.execute(_reader(merge.source) if form == "reader" else merge.source)
    except REFUSALS as error:
        return error
    return _made(uri, (counts["num_inserted_rows"], counts["num_updated_rows"], counts["num_deleted_rows"]))


async def _ours(uri: str, merge: Merge, form: str) -> Outcome:
    clauses: dict[str, Any] = {"when_matched_update_all": False, "when_not_matched_insert_all": False, **merge.clauses}
    clauses["use_index"] = merge.use_index
    try:
        if form in ("client", "dicts"):
            rows = rows_of(merge.source.to_pylist() if form == "dicts" else merge.source)
            staged: StagedChange = Upsert(place=TableLocation(uri=uri), rows=rows, on=merge.on, clauses=clauses)()
        else:
            source = merge.source if form == "table" else _reader(merge.source)
            staged = staging.merge_insert(lance.dataset(uri), source, on=merge.on, **clauses)
    except REFUSALS as error:
        return error
    if staged.changes:
        outcome = await commit(uri, staged)
        assert outcome.status is Status.COMMITTED, outcome
    return _made(uri, (staged.inserted, staged.updated, staged.deleted))


def _made(uri: str, counts: tuple[int, int, int]) -> Outcome:
    try:
        return sorted(map(repr, lance.dataset(uri).to_table().to_pylist())), counts
    except REFUSALS as error:
        return Unreadable(str(error))


def _reader(table: pa.Table) -> pa.RecordBatchReader:
    """Batches of two rows, in memory of their own: pylance 14.0.2 panics for a slice with a struct in a struct."""
    batches = [batch.take(pa.array(range(batch.num_rows))) for batch in table.to_batches(max_chunksize=2)]
    return pa.RecordBatchReader.from_batches(table.schema, batches)


def _rows(uri: str) -> list[str]:
    return sorted(map(repr, lance.dataset(uri).to_table().to_pylist()))


def _copy(base: str, place: Path) -> str:
    shutil.copytree(base, place)
    return str(place)


# The table


def _table(rng: random.Random, uri: str) -> lance.LanceDataset:
    kinds = [rng.choice(list(KEYS.values())) for _ in range(rng.choice([1, 1, 2]))]
    columns = [pa.field(f"k{number}", kind) for number, kind in enumerate(kinds)]
    version = rng.choice(["2.0", "2.1", "2.1", "2.2"])
    columns += [pa.field("v", pa.int64()), pa.field("pair", PAIR)]
    if rng.random() < 0.3:
        columns.append(pa.field("strict", STRICT))
    if rng.random() < 0.3:
        columns.append(pa.field("items", ITEMS))
    if rng.random() < 0.3 and version == "2.2":
        columns.append(pa.field("map", pa.map_(pa.string(), PAIR)))
    if rng.random() < 0.4:
        columns.append(pa.field("must", pa.int64(), nullable=False))
    rng.shuffle(columns)
    schema = pa.schema(columns)
    options: dict[str, Any] = {"enable_stable_row_ids": rng.random() < 0.3, "data_storage_version": version}
    first = _some(rng, schema, range(8), nulls=0.1, structs_null=version != "2.0")
    table: Any = lance.write_dataset(first, uri, max_rows_per_file=3, **options)
    if rng.random() < 0.5:
        table.create_scalar_index("k0", rng.choice(["BTREE", "BITMAP", "ZONEMAP"]))
    if rng.random() < 0.5:
        more = _some(rng, schema, range(8, 12), nulls=0.1, structs_null=version != "2.0")
        table = lance.write_dataset(more, uri, mode="append")
    if rng.random() < 0.3:
        table.delete(f"v % 3 = {rng.randrange(3)}")
    made: lance.LanceDataset = lance.dataset(uri)
    return made


def _some(
    rng: random.Random, schema: pa.Schema, numbers: Sequence[int], *, nulls: float, structs_null: bool
) -> pa.Table:
    """A row for each number, from which its key is made."""

    def value(kind: pa.DataType, number: int, *, nullable: bool = True) -> Any:
        if pa.types.is_struct(kind):
            if structs_null and rng.random() < 0.15:
                return None
            return {one.name: value(one.type, rng.randrange(9), nullable=one.nullable) for one in kind}
        if pa.types.is_map(kind):
            return [(letter, value(kind.item_type, rng.randrange(9))) for letter in rng.sample("xyz", rng.randrange(3))]
        if pa.types.is_list(kind):
            return [value(kind.value_type, rng.randrange(9)) for _ in range(rng.choice([1, 1, 1, 2]))]
        if nullable and rng.random() < nulls:
            return None
        return f"n{number}" if pa.types.is_string(kind) else number

    def column(field: pa.Field) -> pa.Array:
        if field.name == "must":
            return pa.array([rng.randrange(9) for _ in numbers], field.type)
        is_key = field.name.startswith("k")
        made = [value(field.type, one if is_key else rng.randrange(9)) for one in numbers]
        return (
            pa.array(made, pa.int32()).cast(field.type) if pa.types.is_date(field.type) else pa.array(made, field.type)
        )

    return pa.table([column(field) for field in schema], schema=schema)


# The merge


def _merge(rng: random.Random, table: lance.LanceDataset) -> Merge:
    on = tuple(name for name in sorted(table.schema.names) if name.startswith("k"))
    if len(on) > 1 and rng.random() < 0.3:
        on = on[:1]
    clauses = _clauses(rng)
    fields = [
        _narrowed(rng, field)
        for field in table.schema
        if field.name in on or rng.random() < (0.3 if "when_matched_delete" in clauses else 0.8)
    ]
    if rng.random() < 0.4:
        rng.shuffle(fields)
    numbers = rng.sample(range(16), rng.choice([0, 1, 1, 2, 4, 6]))
    if numbers and rng.random() < 0.2:
        numbers.append(numbers[0])
    structs_null = table.data_storage_version != "2.0"
    source = _some(rng, pa.schema(fields), numbers, nulls=rng.choice([0, 0, 0.1]), structs_null=structs_null)
    return Merge(
        source,
        on,
        clauses,
        use_index=rng.random() < 0.8,
        lacks_required=bool(numbers) and "must" in set(table.schema.names) - set(source.schema.names),
    )


def _clauses(rng: random.Random) -> dict[str, bool | str]:
    matched: list[dict[str, bool | str]] = [
        {},
        {"when_matched_update_all": True},
        {"when_matched_update_all": True},
        {"when_matched_update_all": "target.v > 3"},
        {"when_matched_delete": True},
        {"when_matched_fail": True},
    ]
    while True:
        clauses = {**rng.choice(matched)}
        if rng.random() < 0.5:
            clauses["when_not_matched_insert_all"] = True
        if rng.random() < 0.2:
            clauses["when_not_matched_by_source_delete"] = True if rng.random() < 0.5 else "v < 4"
        if clauses:
            return clauses


def _narrowed(rng: random.Random, field: pa.Field) -> pa.Field:
    """The field, perhaps without some of its nested ones."""
    if rng.random() < 0.6:
        return field
    return field.with_type(_narrowed_type(rng, field.type))


def _narrowed_type(rng: random.Random, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        kept = [one for one in kind if rng.random() < 0.6] or [kind.field(0)]
        return pa.struct([one.with_type(_narrowed_type(rng, one.type)) for one in kept])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _narrowed_type(rng, kind.item_type))
    return pa.list_(_narrowed_type(rng, kind.value_type)) if pa.types.is_list(kind) else kind
