"""The same changes staged by us and committed by pylance itself, side by side.

Runs under any pylance: imported by the tests, and as a script in an environment that has an old one.

    python staging_oracle.py REPOSITORY SITE_PACKAGES     # prints a JSON object: case -> [ours, theirs]
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # no package around us, and this environment lacks protobuf and kafka-python
    sys.path[0:1] = [sys.argv[1], f"{sys.argv[1]}/producers"]
    sys.path.append(sys.argv[2])

import lance
import pyarrow as pa
from google.protobuf import text_format
from lance.fragment import RowIdMeta, write_fragments

from committerd_client import staging
from committerd_common.file_pb2 import Dictionary
from committerd_common.messages import Transaction

NESTED = pa.struct([pa.field("x", pa.utf8()), pa.field("y", pa.list_(pa.field("e", pa.float32(), nullable=False)))])
SCHEMAS = {
    "numbers": pa.schema([pa.field(str(kind), kind) for kind in (pa.int8(), pa.uint64(), pa.float16(), pa.bool_())]),
    "required": pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.utf8())]),
    "nested": pa.schema([("a", NESTED), ("b", pa.list_(NESTED)), ("c", pa.large_list(pa.int16()))]),
    "vector": pa.schema([("v", pa.list_(pa.float32(), 4)), ("w", pa.list_(pa.float16(), 8))]),
    "binary": pa.schema([("a", pa.binary()), ("b", pa.large_binary()), ("c", pa.binary(5)), ("d", pa.large_utf8())]),
    "times": pa.schema(
        [
            ("a", pa.timestamp("us", "UTC")),
            ("b", pa.timestamp("ns")),
            ("c", pa.date32()),
            ("d", pa.date64()),
            ("e", pa.time64("us")),
            ("f", pa.duration("ms")),
            ("g", pa.timestamp("us", "Europe/Berlin")),
        ]
    ),
    "decimal": pa.schema([("a", pa.decimal128(38, 10)), ("b", pa.decimal256(50, 3))]),
    "dictionary": pa.schema([("a", pa.dictionary(pa.int8(), pa.utf8())), ("b", pa.dictionary(pa.int32(), pa.utf8()))]),
    "metadata": pa.schema(
        [pa.field("a", pa.int32(), metadata={"k": "v", "lance-encoding:compression": "zstd"})],
        metadata={"m": "n", "ü": "€"},
    ),
    "primary key": pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
            pa.field("b", pa.int32()),
        ]
    ),
    "blob": pa.schema([pa.field("a", pa.large_binary(), metadata={"lance-encoding:blob": "true"})]),
    "extension": pa.schema(
        [
            pa.field("a", pa.utf8(), metadata={"ARROW:extension:name": "my.type", "ARROW:extension:metadata": "{}"}),
            pa.field("b", pa.json_()),
        ]
    ),
}  # fmt: skip


def rows(schema: pa.Schema) -> pa.Table:
    """Three rows: nulls where they are allowed, else numbers."""
    columns = [pa.array([1, 2, 3] if not field.nullable else [None] * 3, field.type) for field in schema]
    return pa.table(columns, schema=schema)


def committed(uri: str, version: int) -> Transaction:
    """The content of a version's transaction file, as pylance wrote it."""
    read = version - 1
    (path,) = Path(uri, "_transactions").glob(f"{read}-*.txn")
    return Transaction.FromString(path.read_bytes())


def side_by_side(ours: Transaction, theirs: Transaction) -> list[str]:
    """Both transactions as text, without the uuid."""
    ours.uuid = theirs.uuid
    assert ours.SerializeToString(deterministic=True)
    return [text_format.MessageToString(one) for one in (ours, theirs)]


def create(folder: str, name: str) -> list[str]:
    """`create` against a commit of what pylance itself has staged for the same files."""
    schema = SCHEMAS[name]
    given: Any = write_fragments(rows(schema), folder, mode="create", return_transaction=True)
    lance.LanceDataset.commit(folder, given)
    ours, theirs = staging.create(given.operation.fragments, schema).transaction, committed(folder, 1)
    # pylance passes it to its own manifest in memory and leaves it out of the message.
    assert not theirs.overwrite.schema_metadata
    for key, value in (lance.dataset(folder).schema.metadata or {}).items():
        theirs.overwrite.schema_metadata[key.decode()] = value
    # The place of a dictionary's values in a manifest of the legacy format: nowhere, as these files are newer.
    for field in theirs.overwrite.schema:
        assert field.dictionary == Dictionary()
        field.ClearField("dictionary")
    return side_by_side(ours, theirs)


def create_of_fragments(folder: str) -> list[str]:
    """`create` against a commit of the same fragments."""
    schema = SCHEMAS["nested"]
    fragments = write_fragments(rows(schema), folder, mode="create", max_rows_per_file=1)
    lance.LanceDataset.commit(folder, lance.LanceOperation.Overwrite(schema, fragments))
    return side_by_side(staging.create(fragments, schema).transaction, committed(folder, 1))


def create_of_a_lance_schema(folder: str) -> list[str]:
    """A table whose field ids have a gap, which an Arrow schema can't express."""
    lance.write_dataset(pa.table({"a": [1], "b": [2], "c": [3]}), folder).drop_columns(["b"])
    dataset = lance.dataset(folder)
    fragments = write_fragments(pa.table({"a": [1], "c": [3]}), folder)
    operation = lance.LanceOperation.Overwrite(dataset.lance_schema, fragments)
    lance.LanceDataset.commit(folder, operation, read_version=dataset.version)
    ours = staging.create(fragments, dataset.lance_schema).transaction
    ours.read_version = dataset.version
    return side_by_side(ours, committed(folder, dataset.version + 1))


def append(folder: str) -> list[str]:
    """`append` against a commit of the same fragments."""
    table = rows(SCHEMAS["required"])
    lance.write_dataset(table, folder)
    fragments = write_fragments(table, folder, max_rows_per_file=2)
    lance.LanceDataset.commit(folder, lance.LanceOperation.Append(fragments), read_version=1)
    return side_by_side(staging.append(fragments, read_version=1), committed(folder, 2))


def append_with_message(folder: str) -> list[str]:
    """The properties of a transaction."""
    table = rows(SCHEMAS["required"])
    lance.write_dataset(table, folder)
    fragments = write_fragments(table, folder)
    properties = {"__lance_commit_message": "more rows", "job": "7"}
    given = lance.Transaction(1, lance.LanceOperation.Append(fragments), transaction_properties=dict(properties))
    lance.LanceDataset.commit(folder, given)
    return side_by_side(staging.append(fragments, read_version=1, properties=properties), committed(folder, 2))


def everything_of_a_fragment(folder: str) -> list[str]:
    """Fragments with several files, deletion files of both kinds, stable row ids and row versions."""
    table = pa.table({"a": range(40_000), "b": range(40_000)})
    lance.write_dataset(table, folder, enable_stable_row_ids=True, max_rows_per_file=20_000)
    lance.dataset(folder).delete("a < 20000 and a % 3 = 0 or a = 27000")
    lance.dataset(folder).update({"b": "0"}, where="a > 34500 and a < 34600")
    lance.dataset(folder).add_columns({"c": "a + 1"})
    dataset = lance.dataset(folder)
    fragments = [one.metadata for one in dataset.get_fragments()]
    assert {one.deletion_file.file_type for one in fragments if one.deletion_file is not None} == {"array", "bitmap"}
    assert any(len(one.files) > 1 for one in fragments)
    assert all(one.row_id_meta is not None and one.created_at_version_meta is not None for one in fragments)
    operation = lance.LanceOperation.Delete(fragments, [7], "a = 1")
    lance.LanceDataset.commit(folder, operation, read_version=dataset.version)
    ours = Transaction(read_version=dataset.version)
    ours.delete.updated_fragments.extend(staging.fragment(one) for one in fragments)
    ours.delete.deleted_fragment_ids.append(7)
    ours.delete.predicate = "a = 1"
    return side_by_side(ours, committed(folder, dataset.version + 1))


def external_row_ids(folder: str) -> list[str]:
    """Row ids that are kept in another file."""
    fragments = write_fragments(rows(SCHEMAS["required"]), folder, mode="create")
    row_id_meta: Any = RowIdMeta  # its stub is wrong
    fragments[0].row_id_meta = row_id_meta.from_json('{"External": {"path": "ids.bin", "offset": 7, "size": 9}}')
    operation = lance.LanceOperation.Overwrite(SCHEMAS["required"], fragments)
    with contextlib.suppress(Exception):  # it can't read them, after it has written the transaction
        lance.LanceDataset.commit(folder, operation)
    return side_by_side(staging.create(fragments, SCHEMAS["required"]).transaction, committed(folder, 1))


def other_bases(folder: str) -> list[str]:
    """Files outside the table's folder."""
    fragments = write_fragments(rows(SCHEMAS["required"]), folder, mode="create")
    fragments[0].files[0].base_id = 3
    operation = lance.LanceOperation.Overwrite(SCHEMAS["required"], fragments)
    lance.LanceDataset.commit(folder, operation)
    return side_by_side(staging.create(fragments, SCHEMAS["required"]).transaction, committed(folder, 1))


def cases() -> Iterator[tuple[str, Callable[[str], list[str]]]]:
    """Yield name and comparison."""

    def creating(name: str) -> Callable[[str], list[str]]:
        return lambda folder: create(folder, name)

    for name in SCHEMAS:
        yield f"create {name}", creating(name)
    for compare in (
        create_of_fragments,
        create_of_a_lance_schema,
        append,
        append_with_message,
        everything_of_a_fragment,
        other_bases,
        *((external_row_ids,) if lance.__version__.startswith("4.") else ()),  # later versions don't have it
    ):
        yield compare.__name__.replace("_", " "), compare


def main() -> None:
    results: dict[str, Any] = {"pylance": lance.__version__}
    for name, compare in cases():
        with tempfile.TemporaryDirectory() as folder:
            results[name] = compare(folder)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
