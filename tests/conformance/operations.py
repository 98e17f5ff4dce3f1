"""Operations that pylance performs on a table; each has the same effect wherever it runs.

Runs under any pylance and imports nothing of ours. As a program it runs one operation for each line that it reads,
{"root": ..., "version": ..., "step": {...}}, and prints a line with the result for each.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

ROWS = 5
"""Rows of a fragment."""
WIDTH = 4
"""Dimensions of a vector."""
KEY = "lance-schema:unenforced-primary-key"

SCALAR = {
    "BTREE": ("a", "b", "c", "s.x"),
    "BITMAP": ("a", "b", "s.y"),
    "LABEL_LIST": ("t",),
    "INVERTED": ("b", "s.y"),
    "NGRAM": ("b", "s.y"),
    "ZONEMAP": ("a", "c", "s.x"),
    "BLOOMFILTER": ("a", "s.x"),
}
"""Kinds of index, and the columns that each is made on."""
VECTOR = ("IVF_FLAT", "IVF_PQ")


@dataclass(frozen=True)
class Step:
    """One operation, and its random arguments."""

    name: str
    row: int = 0
    other: int = 0
    value: int = 0
    key: str = "k0"
    column: str = "a"
    kind: str = "BTREE"
    train: bool = True
    seed: int = 0

    def run(self, dataset: Any) -> None:
        OPERATIONS[self.name](dataset, self)

    def rows(self, count: int) -> pa.Table:
        """Rows of a table as `make_table` makes it; no other step has rows with these ids."""
        rng = random.Random(self.seed)
        return rows(rng, count, first=rng.randrange(100, 1_000_000))

    @property
    def data(self) -> pa.Table:
        return self.rows(1 + self.seed % 3)


@dataclass(frozen=True)
class Shape:
    """What a table is made with."""

    seed: int
    stable: bool = False
    keyed: bool = False
    format: Any = "2.0"
    indices: tuple[tuple[str, str, bool], ...] = field(default=())


def rows(rng: random.Random, count: int, *, first: int) -> pa.Table:
    words = [rng.choice(["apple", "pear red", "plum blue", "lemon red blue"]) for _ in range(count)]
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "a": pa.array([rng.randrange(9) for _ in range(count)], pa.int64()),
            "b": pa.array(words, pa.string()),
            "c": pa.array([rng.choice([None, 1, 2]) for _ in range(count)], pa.int64()),
            "t": pa.array([rng.choice([["x"], ["x", "y"], [], ["z"]]) for _ in range(count)], pa.list_(pa.string())),
            "s": pa.array(
                [{"x": rng.randrange(9), "y": rng.choice(["one two", "two three"])} for _ in range(count)],
                pa.struct([("x", pa.int64()), ("y", pa.string())]),
            ),
            "v": pa.FixedSizeListArray.from_arrays(
                pa.array([rng.randrange(9) for _ in range(count * WIDTH)], pa.float32()), WIDTH
            ),
        }
    )


def make_table(root: Path | str, shape: Shape) -> None:
    """Three fragments, perhaps with stable row ids, a primary key and indices."""
    rng = random.Random(shape.seed)
    for number in range(3):
        data = _like_the_key(rows(rng, ROWS, first=number * ROWS), keyed=shape.keyed)
        lance.write_dataset(
            data,
            str(root),
            mode="append" if number else "create",
            data_storage_version=shape.format,
            enable_stable_row_ids=shape.stable and not number,
        )
    for kind, column, train in shape.indices:
        _make_index(lance.dataset(str(root)), kind, column, train=train)


def _like_the_key(data: pa.Table, *, keyed: bool) -> pa.Table:
    identity = pa.field("id", pa.int64(), nullable=False, metadata={KEY: "true"} if keyed else None)
    return data.cast(pa.schema([identity, *list(data.schema)[1:]]))


def _like(dataset: Any, data: pa.Table) -> pa.Table:
    """The rows, with those columns that the table still has, and with as many nulls as it allows."""
    present = [name for name in dataset.schema.names if name in data.schema.names]
    taken = data.select(present)
    fields = []
    for name in present:
        known = dataset.schema.field(name)
        fields.append(taken.schema.field(name).with_nullable(known.nullable))
    return taken.cast(pa.schema(fields))


def append(dataset: Any, step: Step) -> None:
    lance.write_dataset(_like(dataset, step.data), dataset, mode="append")


def append_several(dataset: Any, step: Step) -> None:
    """Append several fragments."""
    lance.write_dataset(_like(dataset, step.rows(5)), dataset, mode="append", max_rows_per_file=2)


def append_columns(dataset: Any, step: Step) -> None:
    """Append rows that leave nullable columns out."""
    lance.write_dataset(_like(dataset, step.data.select(["id", "a", "b"])), dataset, mode="append")


def overwrite(dataset: Any, step: Step) -> None:
    lance.write_dataset(step.data, dataset, mode="overwrite")


def overwrite_with_metadata(dataset: Any, step: Step) -> None:
    """Overwrite with another schema, with metadata of its own."""
    data = step.data.select(["id", "a", "b", "s"]).replace_schema_metadata({step.key: str(step.value)})
    lance.write_dataset(data, dataset, mode="overwrite")


def delete_row(dataset: Any, step: Step) -> None:
    dataset.delete(f"id = {step.row}", conflict_retries=0)


def delete_two(dataset: Any, step: Step) -> None:
    dataset.delete(f"id in ({step.row}, {step.other})", conflict_retries=0)


def delete_none(dataset: Any, step: Step) -> None:
    dataset.delete("id < 0", conflict_retries=0)


def delete_fragment(dataset: Any, step: Step) -> None:
    first = step.row // ROWS * ROWS
    dataset.delete(f"id >= {first} and id < {first + ROWS}", conflict_retries=0)


def delete_all(dataset: Any, step: Step) -> None:
    dataset.delete("true", conflict_retries=0)


def truncate(dataset: Any, step: Step) -> None:
    dataset.truncate_table()


def update_row(dataset: Any, step: Step) -> None:
    dataset.update({"c": str(step.value)}, f"id = {step.row}", conflict_retries=0)


def update_indexed(dataset: Any, step: Step) -> None:
    dataset.update({"a": str(step.value)}, f"id = {step.row}", conflict_retries=0)


def update_many(dataset: Any, step: Step) -> None:
    """Update rows of all fragments."""
    dataset.update({"a": str(step.value), "b": "'melon green'"}, f"a < {step.value % 9}", conflict_retries=0)


def update_none(dataset: Any, step: Step) -> None:
    dataset.update({"a": str(step.value)}, "id < 0", conflict_retries=0)


def upsert(dataset: Any, step: Step) -> None:
    """Change one row, insert others."""
    data = _like(dataset, step.data)
    changed = data.slice(0, 1).set_column(0, data.schema.field("id"), pa.array([step.row], pa.int64()))
    builder = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder.conflict_retries(0).execute(pa.concat_tables([changed, data.slice(1)]))


def upsert_columns(dataset: Any, step: Step) -> None:
    """Change some columns of two rows, and nothing else of them."""
    changed = sorted({step.row, step.other})
    data = _like(dataset, step.rows(len(changed)).select(["id", step.column]))
    data = data.set_column(0, data.schema.field("id"), pa.array(changed, pa.int64()))
    dataset.merge_insert("id").when_matched_update_all().conflict_retries(0).execute(data)


def upsert_and_leave_out(dataset: Any, step: Step) -> None:
    """Change some columns of several rows, and insert rows without the others."""
    changed = sorted({step.row, step.other, step.row + 500, step.other + 600})
    data = _like(dataset, step.rows(len(changed)).select(["id", "a", "c"]))
    data = data.set_column(0, data.schema.field("id"), pa.array(changed, pa.int64()))
    builder = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder.conflict_retries(0).execute(data)


def delete_nothing_of_a_fragment(dataset: Any, step: Step) -> None:
    """Name a fragment, and delete no row of it."""
    fragment = dataset.get_fragments()[step.row % 3].metadata
    operation = lance.LanceOperation.Delete([fragment], [], "false")
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version, max_retries=0)


def move_rows(dataset: Any, step: Step) -> None:
    """Replace one fragment by several new ones, with ids or without."""
    from lance.fragment import LanceFragment

    gone = dataset.get_fragments()[step.row % 3]
    # Ids that no row had: pylance takes any, and then two fragments have one id.
    chosen = max(one.fragment_id for one in dataset.get_fragments()) + 50 + step.seed % 800
    made = [
        LanceFragment.create(
            dataset.uri,
            _like(dataset, replace(step, seed=step.seed + place).rows(2)),
            fragment_id=number,
            data_storage_version=dataset.data_storage_version,
        )
        for place, number in enumerate(
            ((0, 0), (0, 0, 0), (chosen, 0), (chosen + 9, chosen), (0, chosen, 0))[step.value % 5]
        )
    ]
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=[gone.fragment_id], new_fragments=made, update_mode="rewrite_rows"
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version, max_retries=0)


def insert_missing(dataset: Any, step: Step) -> None:
    """Insert rows with new keys only."""
    builder = dataset.merge_insert("id").when_not_matched_insert_all()
    builder.conflict_retries(0).execute(_like(dataset, step.data))


def replace_by_source(dataset: Any, step: Step) -> None:
    """Delete the rows that the source does not have, as far as a condition says."""
    data = _like(dataset, step.data)
    changed = data.slice(0, 1).set_column(0, data.schema.field("id"), pa.array([step.row], pa.int64()))
    builder = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder = builder.when_not_matched_by_source_delete(f"id = {step.other}")
    builder.conflict_retries(0).execute(pa.concat_tables([changed, data.slice(1)]))


def rewrite_column(dataset: Any, step: Step) -> None:
    """Rewrite a column of one fragment in place, also one with nested fields."""
    fragment = dataset.get_fragments()[step.row % 3]
    changed = sorted({step.row, step.other})
    wanted = _like(dataset, step.rows(len(changed)).select(["id", step.column]))
    wanted = wanted.set_column(0, wanted.schema.field("id"), pa.array(changed, pa.int64()))
    made = fragment.update_columns(wanted, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(
        updated_fragments=[made[0]], fields_modified=made[1], update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version, max_retries=0)


def replace_data(dataset: Any, step: Step) -> None:
    """Replace the file of a column of one fragment."""
    _replace(dataset, step, step.column)


def _replace(dataset: Any, step: Step, column: str) -> None:
    from lance.file import LanceFileWriter

    fragment = dataset.get_fragments()[step.row % 3]
    name = f"r{step.seed:024d}.lance"
    version = dataset.data_storage_version
    data = _like(dataset, step.rows(fragment.physical_rows).select([column]))
    ids = _field_ids(dataset.lance_schema.fields(), column)
    if version != "2.0" and data.schema.field(0).type.num_fields:
        ids = ids[1:]  # later formats write only the leaves
    with LanceFileWriter(f"{dataset.uri}/data/{name}", data.schema, version=version) as writer:
        writer.write_batch(data)
    major, minor = version.split(".")
    file = lance.fragment.DataFile(name, ids, list(range(len(ids))), int(major), int(minor))
    group = lance.LanceOperation.DataReplacementGroup(fragment.fragment_id, file)
    operation = lance.LanceOperation.DataReplacement([group])
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version, max_retries=0)


def _field_ids(fields: list[Any], column: str) -> list[int]:
    """The ids of a column and of its nested fields."""
    ids: list[int] = []
    pending = [one for one in fields if one.name() == column]
    while pending:
        one = pending.pop(0)
        ids.append(one.id())
        pending = [*one.children(), *pending]
    return ids


def create_index(dataset: Any, step: Step) -> None:
    columns = SCALAR.get(step.kind, ("v",))
    _make_index(dataset, step.kind, columns[step.value % len(columns)], train=step.train)


def _make_index(dataset: Any, kind: str, column: str, *, train: bool) -> None:
    name = f"{kind}_{column}".replace(".", "_").lower()
    if kind in SCALAR:
        dataset.create_scalar_index(column, kind, name=name, train=train)
        return
    more = {"num_sub_vectors": 2} if kind == "IVF_PQ" else {}
    dataset.create_index(column, kind, name=name, num_partitions=1, replace=True, train=train, **more)


def drop_index(dataset: Any, step: Step) -> None:
    found = sorted(_index_names(dataset))
    dataset.drop_index(found[step.value % len(found)])


def _index_names(dataset: Any) -> set[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its successor does not know the older versions
        return {index["name"] for index in dataset.list_indices()}


def optimize_indices(dataset: Any, step: Step) -> None:
    dataset.optimize.optimize_indices(num_indices_to_merge=step.value % 3)


def add_column(dataset: Any, step: Step) -> None:
    dataset.add_columns({f"n{step.value}": "a + 1"})


def add_nulls(dataset: Any, step: Step) -> None:
    dataset.add_columns(pa.field(f"z{step.value}", pa.int64()))


def merge_columns(dataset: Any, step: Step) -> None:
    """Join a new column to the rows that it has a value for."""
    joined = pa.table(
        {"id": pa.array([step.row, step.other + 100], pa.int64()), f"m{step.value}": pa.array([1, 2], pa.int64())}
    )
    dataset.merge(joined, "id")


def cast_column(dataset: Any, step: Step) -> None:
    dataset.alter_columns({"path": "a", "data_type": pa.int32()})


def forbid_nulls(dataset: Any, step: Step) -> None:
    dataset.alter_columns({"path": "a", "nullable": False})


def allow_nulls(dataset: Any, step: Step) -> None:
    dataset.alter_columns({"path": "a", "nullable": True})


def drop_column(dataset: Any, step: Step) -> None:
    dataset.drop_columns(["c"])


def drop_indexed(dataset: Any, step: Step) -> None:
    dataset.drop_columns([step.column])


def drop_nested(dataset: Any, step: Step) -> None:
    dataset.drop_columns(["s.x"])


def rename_column(dataset: Any, step: Step) -> None:
    dataset.alter_columns({"path": "b", "name": f"b{step.value}"})


def rename_nested(dataset: Any, step: Step) -> None:
    dataset.alter_columns({"path": "s.x", "name": f"x{step.value}"})


def set_config(dataset: Any, step: Step) -> None:
    dataset.update_config({step.key: str(step.value)})


def drop_config(dataset: Any, step: Step) -> None:
    dataset.update_config({step.key: None})


def table_metadata(dataset: Any, step: Step) -> None:
    dataset.update_metadata({step.key: str(step.value)})


def schema_metadata(dataset: Any, step: Step) -> None:
    dataset.update_schema_metadata({step.key: str(step.value)})


def field_metadata(dataset: Any, step: Step) -> None:
    dataset.update_field_metadata({step.column: {"m": str(step.value)}})


def declare_key(dataset: Any, step: Step) -> None:
    dataset.update_field_metadata({"id": {KEY: "true"}})


def compact(dataset: Any, step: Step) -> None:
    dataset.optimize.compact_files(target_rows_per_fragment=2 * ROWS, num_threads=1)


def compact_all(dataset: Any, step: Step) -> None:
    dataset.optimize.compact_files(materialize_deletions_threshold=0.0, num_threads=1)


def compact_deferred(dataset: Any, step: Step) -> None:
    dataset.optimize.compact_files(target_rows_per_fragment=2 * ROWS, defer_index_remap=True, num_threads=1)


def restore(dataset: Any, step: Step) -> None:
    older: Any = lance.dataset(dataset.uri, version=1 + step.value % dataset.version)
    older.restore()


ROW_OPERATIONS = (
    append,
    append_several,
    append_columns,
    delete_row,
    delete_two,
    delete_none,
    delete_fragment,
    delete_all,
    truncate,
    update_row,
    update_indexed,
    update_many,
    update_none,
    upsert,
    upsert_columns,
    upsert_and_leave_out,
    delete_nothing_of_a_fragment,
    move_rows,
    insert_missing,
    replace_by_source,
    rewrite_column,
    replace_data,
)
INDEX_OPERATIONS = (create_index, drop_index, optimize_indices)
OTHER_OPERATIONS = (
    overwrite,
    overwrite_with_metadata,
    add_column,
    add_nulls,
    merge_columns,
    cast_column,
    forbid_nulls,
    allow_nulls,
    drop_column,
    drop_indexed,
    drop_nested,
    rename_column,
    rename_nested,
    set_config,
    drop_config,
    table_metadata,
    schema_metadata,
    field_metadata,
    declare_key,
    compact,
    compact_all,
    compact_deferred,
    restore,
)

GROUPS = (ROW_OPERATIONS, INDEX_OPERATIONS, OTHER_OPERATIONS)
OPERATIONS: dict[str, Callable[[Any, Step], None]] = {
    operation.__name__: operation for group in GROUPS for operation in group
}


def random_step(rng: random.Random, names: tuple[str, ...] = ()) -> Step:
    """Any operation with random arguments; `names` restricts the choice."""
    groups = [[one.__name__ for one in group if not names or one.__name__ in names] for group in GROUPS]
    weights = [weight if group else 0 for weight, group in zip((5, 2, 4), groups, strict=True)]
    name = rng.choice(rng.choices(groups, weights)[0])
    return Step(
        name=name,
        row=rng.randrange(3 * ROWS),
        other=rng.randrange(3 * ROWS),
        value=rng.randrange(1000),
        key=rng.choice(["k0", "k1", "k2"]),
        column=rng.choice(["a", "b", "c", "s", "t", "v"]),
        kind=rng.choice([*SCALAR, *SCALAR, *VECTOR]),
        train=rng.random() < 0.8,
        seed=rng.randrange(1 << 30),
    )


def random_shape(rng: random.Random, *, old: bool) -> Shape:
    """`old`: without what pylance 4.0.0 can't make, empty vector indices."""
    kinds = [*SCALAR, "IVF_FLAT"] if old else [*SCALAR, *VECTOR]
    indices = [
        (kind, rng.choice(SCALAR.get(kind, ("v",))), old or rng.random() < 0.85)
        for kind in rng.sample(kinds, rng.choice([0, 1, 1, 2, 3]))
    ]
    return Shape(
        seed=rng.randrange(1 << 30),
        stable=rng.random() < 0.5,
        keyed=rng.random() < 0.25,
        format=rng.choice(["2.0", "2.0", "2.1"]),
        indices=tuple(indices),
    )


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Make a table, or run one step on a version of it."""
    try:
        if "shape" in request:
            shape = dict(request["shape"])
            shape["indices"] = tuple(tuple(one) for one in shape["indices"])
            make_table(request["root"], Shape(**shape))
        else:
            Step(**request["step"]).run(lance.dataset(request["root"], version=request.get("version")))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return {"error": said(error)}
    return {}


def main() -> None:
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
