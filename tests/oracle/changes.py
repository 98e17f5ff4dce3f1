"""Changes that pylance can make to any of these tables, each with random choices."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from tests.oracle.native import Opened
from tests.oracle.tables import COLUMNS, FILE_VERSIONS, IDS, PRIMARY_KEY, rows, some_ids

Change = Callable[[Opened, random.Random], None]
"""Raises pylance's errors, also if the random choice is impossible on this table."""

_KEYS = ("k1", "k2", "k3")
_SCALAR_INDICES = ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER")
_TEXT_INDICES = ("NGRAM", "INVERTED")
_ONCE = timedelta(seconds=5)


def append(table: Opened, rng: random.Random) -> None:
    schema = _with_fewer_columns(table.dataset.schema, rng)
    lance.write_dataset(
        rows(schema, some_ids(rng), rng),
        table.dataset,
        mode="append",
        max_rows_per_file=rng.choice((3, 100)),
        transaction_properties={"job": "7"} if rng.random() < 0.3 else None,
    )


def delete(table: Opened, rng: random.Random) -> None:
    table.dataset.delete(_condition(table, rng), conflict_retries=0)


def update(table: Opened, rng: random.Random) -> None:
    numbers = [field.name for field in table.dataset.schema if pa.types.is_integer(field.type)]
    column = rng.choice(numbers)
    table.dataset.update({column: f"{column} + 1"}, where=_condition(table, rng), conflict_retries=0)


def upsert(table: Opened, rng: random.Random) -> None:
    builder = table.dataset.merge_insert("id")
    if rng.random() < 0.8:
        builder = builder.when_matched_update_all("source.id % 3 > 0" if rng.random() < 0.2 else None)
    builder = builder.when_not_matched_insert_all()
    if rng.random() < 0.2:
        builder = builder.when_not_matched_by_source_delete(f"id < {rng.choice(IDS)}")
    source = rows(table.dataset.schema, some_ids(rng, distinct=True), rng)
    builder.conflict_retries(0).retry_timeout(_ONCE).execute(source)


def update_matched(table: Opened, rng: random.Random) -> None:
    """Update some columns only: their data files change in place."""
    schema = table.dataset.schema
    others = [field for field in schema if field.name != "id"]
    chosen = pa.schema([schema.field("id"), *rng.sample(others, rng.randint(1, len(others)))])
    source = rows(chosen, some_ids(rng, distinct=True), rng)
    builder = table.dataset.merge_insert("id").when_matched_update_all()
    builder.conflict_retries(0).retry_timeout(_ONCE).execute(source)


def delete_matched(table: Opened, rng: random.Random) -> None:
    source = rows(table.dataset.schema, some_ids(rng, distinct=True), rng)
    builder = table.dataset.merge_insert("id").when_matched_delete()
    builder.conflict_retries(0).retry_timeout(_ONCE).execute(source)


def add_columns(table: Opened, rng: random.Random) -> None:
    taken = set(table.dataset.schema.names)
    free = [field for field in COLUMNS if field.name not in taken]
    if free and rng.random() < 0.4:
        table.dataset.add_columns(rng.choice(free))
        return
    table.dataset.add_columns({f"n{rng.randint(0, 3)}": rng.choice(("id + 1", "7", "'seven'"))})


def drop_columns(table: Opened, rng: random.Random) -> None:
    path, _ = rng.choice(_fields(table.dataset.schema))
    table.dataset.drop_columns([path])


def alter_columns(table: Opened, rng: random.Random) -> None:
    path, field = rng.choice(_fields(table.dataset.schema))
    wish: dict[str, Any] = {"path": path}
    match rng.randint(0, 2):
        case 0:
            wish["name"] = f"r{rng.randint(0, 3)}"
        case 1:
            wish["nullable"] = not field.nullable
        case _:
            wish["data_type"] = pa.int64() if pa.types.is_integer(field.type) else pa.large_utf8()
    table.dataset.alter_columns(wish)


def compact(table: Opened, rng: random.Random) -> None:
    table.dataset.optimize.compact_files(
        target_rows_per_fragment=rng.choice((8, 30, 1000)),
        materialize_deletions_threshold=rng.choice((0.0, 0.3)),
        num_threads=1,
        defer_index_remap=rng.random() < 0.15,
    )


def create_index(table: Opened, rng: random.Random) -> None:
    column, replace = rng.choice(list(table.dataset.schema)), rng.random() < 0.7
    if pa.types.is_fixed_size_list(column.type):
        table.dataset.create_index(column.name, "IVF_FLAT", name="iv", num_partitions=1, replace=replace)
        return
    kinds = _SCALAR_INDICES + (_TEXT_INDICES if pa.types.is_string(column.type) else ())
    name = rng.choice((None, "one", "two"))
    table.dataset.create_scalar_index(column.name, rng.choice(kinds), name=name, replace=replace)


def drop_index(table: Opened, rng: random.Random) -> None:
    names = [index.name for index in table.dataset.describe_indices()]
    table.dataset.drop_index(rng.choice(names))


def optimize_indices(table: Opened, rng: random.Random) -> None:
    table.dataset.optimize.optimize_indices(num_indices_to_merge=rng.choice((0, 1, 2)))


def overwrite(table: Opened, rng: random.Random) -> None:
    schema = table.dataset.schema if rng.random() < 0.5 else pa.schema(_replaced(rng))
    # pylance passes the metadata of a new schema in memory and leaves it out of the transaction.
    made = rows(schema.remove_metadata(), some_ids(rng), rng)
    lance.write_dataset(made, table.dataset, mode="overwrite", max_rows_per_file=rng.choice((3, 100)))


def restore(table: Opened, rng: random.Random) -> None:
    version = rng.randint(1, table.dataset.version)
    dataset: Any = lance.dataset(table.uri, version=version, commit_lock=table.lock)
    dataset.restore()


def update_config(table: Opened, rng: random.Random) -> None:
    table.dataset.update_config(_entries(rng), replace=rng.random() < 0.2)


def update_metadata(table: Opened, rng: random.Random) -> None:
    table.dataset.update_metadata(_entries(rng), replace=rng.random() < 0.2)


def update_schema_metadata(table: Opened, rng: random.Random) -> None:
    table.dataset.update_schema_metadata(_entries(rng), replace=rng.random() < 0.3)


def update_field_metadata(table: Opened, rng: random.Random) -> None:
    name = rng.choice(table.dataset.schema.names)
    entries = PRIMARY_KEY if rng.random() < 0.1 else _entries(rng)
    table.dataset.update_field_metadata({name: entries}, replace=rng.random() < 0.3)


def replace_data(table: Opened, rng: random.Random) -> None:
    """Replace one column's files, in some of the fragments."""
    fields = [field for field in table.dataset.lance_schema.fields() if not field.children()]
    column = rng.choice(fields)
    replaced = []
    fragments = table.dataset.get_fragments()
    for fragment in rng.sample(fragments, rng.randint(1, len(fragments))):
        schema = pa.schema([table.dataset.schema.field(column.name())])
        made = rows(schema, [rng.choice(IDS) for _ in range(fragment.metadata.physical_rows)], rng)
        version = table.dataset.data_storage_version
        aside = Path(table.uri).with_name(f"replacement-{rng.getrandbits(64)}")
        file = write_fragments(made, aside, data_storage_version=version)[0].files[0]
        (aside / "data" / file.path).rename(Path(table.uri, "data", file.path))
        file.fields[:] = [column.id()]
        replaced.append(lance.LanceOperation.DataReplacementGroup(fragment.fragment_id, file))
    lance.LanceDataset.commit(
        table.uri,
        lance.LanceOperation.DataReplacement(replaced),
        read_version=table.dataset.version,
        commit_lock=table.lock,
    )


def append_other_files(table: Opened, rng: random.Random) -> None:
    """Append files of perhaps another version than the table's."""
    made = rows(table.dataset.schema, some_ids(rng), rng)
    lance.write_dataset(made, table.dataset, mode="append", data_storage_version=rng.choice(FILE_VERSIONS))  # type: ignore[arg-type]  # one of its literals


def upsert_other_files(table: Opened, rng: random.Random) -> None:
    """As `upsert`, of all columns or of some, with files of perhaps another version than the table's."""
    schema = table.dataset.schema
    others = [field for field in schema if field.name != "id"]
    partial = rng.random() < 0.5
    chosen = pa.schema([schema.field("id"), *rng.sample(others, rng.randint(1, len(others)))]) if partial else schema
    builder = table.dataset.merge_insert("id").when_matched_update_all()
    if not partial:
        builder = builder.when_not_matched_insert_all()
    builder = builder.data_storage_version(rng.choice(FILE_VERSIONS))
    builder.conflict_retries(0).retry_timeout(_ONCE).execute(rows(chosen, some_ids(rng, distinct=True), rng))


def compact_to_other_files(table: Opened, rng: random.Random) -> None:
    """As `compact`, into files of perhaps another version than the table's."""
    table.dataset.optimize.compact_files(
        target_rows_per_fragment=rng.choice((8, 1000)),
        num_threads=1,
        data_storage_version=rng.choice(FILE_VERSIONS),
    )


def add_bases(table: Opened, rng: random.Random) -> None:
    name = rng.choice((None, "n1", "n2"))
    folder = Path(table.uri).parents[1] / f"base{rng.randint(1, 2)}"
    folder.mkdir(exist_ok=True)
    table.dataset.add_bases([lance.DatasetBasePath(str(folder), name, rng.random() < 0.5)])


def append_several(table: Opened, rng: random.Random) -> None:
    """Commit several appends as one version, with pylance's own batch commit."""
    version = table.dataset.data_storage_version
    transactions = [
        lance.Transaction(
            table.dataset.version,
            lance.LanceOperation.Append(
                write_fragments(rows(table.dataset.schema, some_ids(rng), rng), table.uri, data_storage_version=version)
            ),
        )
        for _ in range(2)
    ]
    lance.LanceDataset.commit_batch(table.uri, transactions, commit_lock=table.lock)


CHANGES: dict[Change, int] = {
    append: 6,
    delete: 6,
    update: 5,
    upsert: 6,
    update_matched: 4,
    delete_matched: 1,
    add_columns: 3,
    drop_columns: 1,
    alter_columns: 2,
    compact: 5,
    create_index: 5,
    drop_index: 1,
    optimize_indices: 2,
    overwrite: 2,
    restore: 2,
    update_config: 2,
    update_metadata: 2,
    update_schema_metadata: 1,
    update_field_metadata: 2,
    replace_data: 4,
    append_several: 1,
    append_other_files: 1,
    upsert_other_files: 1,
    compact_to_other_files: 1,
    add_bases: 1,
}
"""How often each change is drawn, relative to the others."""


def _entries(rng: random.Random) -> dict[str, str | None]:
    keys = rng.sample(_KEYS, rng.randint(1, 2))
    return {key: None if rng.random() < 0.3 else str(rng.randint(0, 9)) for key in keys}


def _condition(table: Opened, rng: random.Random) -> str:
    if "id" not in table.dataset.schema.names or rng.random() < 0.1:
        return rng.choice(("true", "false"))
    low, step = rng.choice(IDS), rng.randint(2, 9)
    return rng.choice((f"id between {low} and {low + step}", f"id % {step} = 0", f"id = {low}"))


def _with_fewer_columns(schema: Any, rng: random.Random) -> Any:
    """Append rows of which some lack a nullable column."""
    spare = [field.name for field in schema if field.nullable]
    if len(spare) < len(schema.names) and spare and rng.random() < 0.3:
        left_out = rng.choice(spare)
        return pa.schema([field for field in schema if field.name != left_out], metadata=schema.metadata)
    return schema


def _fields(schema: Any) -> list[tuple[str, Any]]:
    """All fields but list items, with their paths."""
    found = []
    for field in schema:
        found.append((field.name, field))
        if pa.types.is_struct(field.type):
            found += [(f"{field.name}.{inner.name}", inner) for inner in field.type]
    return found


def _replaced(rng: random.Random) -> list[Any]:
    return [pa.field("id", pa.int64(), nullable=False), *rng.sample(COLUMNS, 2)]
