"""The same change staged by us on one copy of a table, and committed by pylance itself on another.

Runs under any pylance: imported by the tests, and as a script in an environment that has an old one.

    python staging_changes.py REPOSITORY SITE_PACKAGES FOLDER    # prints a JSON object: case -> what `run` returns
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # no package around us, and this environment lacks protobuf and kafka-python
    sys.path[0:1] = [sys.argv[1], f"{sys.argv[1]}/producers"]
    sys.path.append(sys.argv[2])

import lance
import pyarrow as pa
from google.protobuf import text_format
from lance.fragment import write_fragments

from committerd_client import Staged, staging
from committerd_common.messages import (
    DataFile,
    DataFragment,
    DeletionFile,
    Field,
    IndexMetadata,
    Manifest,
    Message,
    Transaction,
)
from committerd_common.row_ids import decode_row_ids
from tests.producers.staging_tables import make_table, rows

Made = Transaction | Staged | list[Staged] | None
Change = tuple[Callable[[lance.LanceDataset], Made], Callable[[lance.LanceDataset], Any]]
"""Ours, which is staged; theirs, which commits."""


def overwrite() -> Change:
    new = pa.table({"a": [1, 2], "b": ["x", None]})

    def ours(dataset: lance.LanceDataset) -> Made:
        return staging.overwrite(write_fragments(new, dataset, mode="overwrite"), new.schema, dataset=dataset)

    return ours, lambda dataset: lance.write_dataset(new, dataset, mode="overwrite")


def delete(predicate: str) -> Change:
    return lambda dataset: staging.delete(dataset, predicate), lambda dataset: dataset.delete(predicate)


def update(updates: dict[str, str], where: str | None) -> Change:
    return lambda dataset: staging.update(dataset, updates, where), lambda dataset: dataset.update(updates, where)


def merge(source: pa.Table, clauses: dict[str, Any], on: list[str]) -> Change:
    def theirs(dataset: lance.LanceDataset) -> None:
        builder: Any = dataset.merge_insert(on)
        for name, wish in {"when_matched_update_all": True, "when_not_matched_insert_all": True, **clauses}.items():
            if wish:
                getattr(builder, name)(*([wish] if isinstance(wish, str) else []))
        builder.execute(source)

    return lambda dataset: staging.merge_insert(dataset, source, on=on, **clauses), theirs


def add_columns(transforms: Any, **more: Any) -> Change:
    def given(dataset: lance.LanceDataset) -> Any:
        return dict(transforms) if isinstance(transforms, dict) else transforms

    return (
        lambda dataset: staging.add_columns(dataset, given(dataset), **more),
        lambda dataset: dataset.add_columns(given(dataset), **more),
    )


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pa.array([one * 2 for one in batch["id"].to_pylist()])})


def drop_columns(*paths: str) -> Change:
    return lambda dataset: staging.drop_columns(dataset, paths), lambda dataset: dataset.drop_columns([*paths])


def alter_columns(*alterations: Any) -> Change:
    return (
        lambda dataset: staging.alter_columns(dataset, *alterations),
        lambda dataset: dataset.alter_columns(*alterations),
    )


def compact() -> Change:
    def ours(dataset: lance.LanceDataset) -> Made:
        done = staging.compact_files(dataset, target_rows_per_fragment=1000)
        reserved = max(one.fragment_id for one in dataset.get_fragments()) + 1
        return [staging.reserve_fragments(dataset, done.ids_needed), done.rewrite(range(reserved, 1000))]

    return ours, lambda dataset: dataset.optimize.compact_files(target_rows_per_fragment=1000)


def restore() -> Change:
    return lambda dataset: staging.restore(dataset, 1), lambda dataset: dataset.checkout_version(1).restore()


def index(column: str, kind: str, **parameters: Any) -> Change:
    def theirs(dataset: lance.LanceDataset) -> None:
        build: Any = dataset.create_index if kind.startswith("IVF") else dataset.create_scalar_index
        build(column, kind, **{"replace": False, **parameters})

    return lambda dataset: staging.create_index(dataset, column, kind, **parameters), theirs


def with_index(change: Change) -> Change:
    """A change on a table that has an index, and rows that are not in it."""

    def prepare(dataset: lance.LanceDataset) -> lance.LanceDataset:
        dataset.create_scalar_index("number", "BTREE")
        lance.write_dataset(rows(1000, 50), dataset.uri, mode="append")
        return lance.dataset(dataset.uri)

    ours, theirs = change
    return lambda dataset: ours(prepare(dataset)), lambda dataset: theirs(prepare(dataset))


def config() -> Change:
    def theirs(dataset: lance.LanceDataset) -> None:
        dataset.update_config({"a": "1", "gone": None})

    return lambda dataset: staging.update_config(dataset, config={"a": "1", "gone": None}), theirs


def metadata(kind: str) -> Change:
    def ours(dataset: lance.LanceDataset) -> Made:
        given: Any = {f"{kind}_metadata": staging.Replace({"k": "v"})}
        return staging.update_config(dataset, **given)

    def theirs(dataset: lance.LanceDataset) -> None:
        change = {"schema": dataset.update_schema_metadata, "table": dataset.update_metadata}[kind]
        change({"k": "v"}, replace=True)

    return ours, theirs


def field_metadata() -> Change:
    def theirs(dataset: lance.LanceDataset) -> None:
        dataset.update_field_metadata({"nested.x": {"k": "v"}})

    return lambda dataset: staging.update_config(dataset, field_metadata={"nested.x": {"k": "v"}}), theirs


def data_replacement() -> Change:
    """Column `number` of fragment 1 gets other values: a file that pylance has written for another table."""

    def file(dataset: lance.LanceDataset) -> Any:
        column = pa.table({"number": pa.array(range(100), pa.int64())})
        (made,) = write_fragments(column, f"{dataset.uri}-column", data_storage_version=dataset.data_storage_version)
        (one,) = made.files
        shutil.copy(Path(f"{dataset.uri}-column", "data", one.path), Path(dataset.uri, "data", one.path))
        (number,) = (field.id() for field in dataset.lance_schema.fields() if field.name() == "number")
        one.fields = [number]
        return one

    def theirs(dataset: lance.LanceDataset) -> None:
        group = lance.LanceOperation.DataReplacementGroup(1, file(dataset))
        operation = lance.LanceOperation.DataReplacement([group])
        lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)

    return lambda dataset: staging.data_replacement(dataset, {1: file(dataset)}), theirs


def alone(change: Change) -> Change:
    """A change on a table whose column `number` is in files of its own, as a replacement needs."""

    def prepare(dataset: lance.LanceDataset) -> lance.LanceDataset:
        dataset.drop_columns(["number"])
        dataset.add_columns({"number": "id + 1"})
        return lance.dataset(dataset.uri)

    ours, theirs = change
    return lambda dataset: ours(prepare(dataset)), lambda dataset: theirs(prepare(dataset))


def of_many_fragments(change: Change) -> Change:
    """A change on a table with 20 more fragments, of a row each."""

    def prepare(dataset: lance.LanceDataset) -> lance.LanceDataset:
        made = lance.write_dataset(rows(300, 20), dataset.uri, mode="append", max_rows_per_file=1)
        made.delete("id = 305")
        return lance.dataset(dataset.uri)

    ours, theirs = change
    return lambda dataset: ours(prepare(dataset)), lambda dataset: theirs(prepare(dataset))


NEW = rows(290, 20, mark="new")
KEYED = rows(290, 20, key=True, mark="new")
_NO_INSERT = {"when_not_matched_insert_all": False}
_DELETE = {"when_matched_update_all": False, "when_matched_delete": True, **_NO_INSERT}

CASES: dict[str, tuple[str, Change]] = {
    "overwrite": ("plain", overwrite()),
    "delete": ("plain", delete("id % 4 = 0 or id < 100")),
    "delete of stable rows": ("stable", delete("id % 4 = 0 or id < 100")),
    "delete of nothing": ("plain", delete("id = -1")),
    "update": ("plain", update({"text": "concat(text, '!')", "number": "id * 2"}, "id > 190 and id < 260")),
    "update of whole fragments": ("plain", update({"price": "price + 1"}, "id >= 100")),
    "update of stable rows": ("stable", update({"number": "1.0"}, "id % 3 = 0")),
    "update of all": ("stable", update({"text": "'same'"}, None)),
    "update of nothing": ("plain", update({"text": "'same'"}, "id = -1")),
    "upsert": ("plain", merge(NEW, {}, ["id"])),
    "upsert by primary key": ("keyed", merge(KEYED, {}, ["id"])),
    "upsert of stable rows": ("stable", merge(NEW, {}, ["id"])),
    "upsert by two columns": ("plain", merge(NEW, {}, ["text", "id"])),
    "upsert on a condition": ("plain", merge(NEW, {"when_matched_update_all": "source.id > 295"}, ["id"])),
    "insert": ("plain", merge(NEW, {"when_matched_update_all": False}, ["id"])),
    "update of matches": ("plain", merge(NEW, _NO_INSERT, ["id"])),
    "update of some columns": ("plain", merge(NEW.select(["id", "number"]), _NO_INSERT, ["id"])),
    "delete by keys": ("plain", merge(NEW.select(["id"]), _DELETE, ["id"])),
    "delete what is not in the source": (
        "plain",
        merge(NEW, {"when_not_matched_by_source_delete": "id < 150"}, ["id"]),
    ),
    "add columns by SQL": ("plain", add_columns({"more": "id + 1", "text2": "upper(text)"})),
    "add columns to many fragments": (
        "plain",
        of_many_fragments(add_columns({"more": "id + 1", "a b": "upper(text)"})),
    ),
    "add columns by function": ("stable", add_columns(doubled, read_columns=["id"])),
    "add null columns": (
        "plain",
        add_columns(pa.schema([pa.field("n", pa.int32()), pa.field("s", pa.struct([("z", pa.utf8())]))])),
    ),
    "drop columns": ("plain", drop_columns("price", "nested.y")),
    "rename": ("plain", alter_columns({"path": "text", "name": "words"}, {"path": "nested.x", "name": "xx"})),
    "may be null": ("plain", alter_columns({"path": "id", "nullable": True})),
    "may not be null": ("plain", alter_columns({"path": "text", "nullable": False})),
    "another type": ("plain", alter_columns({"path": "number", "data_type": pa.int32(), "name": "small"})),
    "another type of stable rows": ("stable", alter_columns({"path": "id", "data_type": pa.int32()})),
    "another type of many fragments": (
        "stable",
        of_many_fragments(alter_columns({"path": "number", "data_type": pa.int32(), "name": "small"})),
    ),
    "delete from many fragments": ("plain", of_many_fragments(delete("id % 2 = 1"))),
    "compact": ("plain", compact()),
    "compact stable rows": ("stable", compact()),
    "restore": ("plain", restore()),
    "config": ("plain", config()),
    "table metadata": ("plain", metadata("table")),
    "schema metadata": ("plain", metadata("schema")),
    "field metadata": ("plain", field_metadata()),
    "data replacement": ("plain", alone(data_replacement())),
    "btree": ("plain", index("id", "BTREE")),
    "bitmap": ("plain", index("number", "BITMAP", name="numbers")),
    "inverted": ("plain", index("text", "INVERTED")),
    "vector index": ("plain", index("vector", "IVF_FLAT", num_partitions=2)),
    "replace an index": ("plain", with_index(index("number", "BTREE", replace=True))),
    "optimize indices": (
        "plain",
        with_index((staging.optimize_indices, lambda dataset: dataset.optimize.optimize_indices())),
    ),
    "drop an index": (
        "plain",
        with_index(
            (
                lambda dataset: staging.drop_index(dataset, "number_idx"),
                lambda dataset: dataset.drop_index("number_idx"),
            )
        ),
    ),
}


def transactions(made: Made) -> list[Transaction]:
    """The staged transactions; the last one is the change."""
    given = made if isinstance(made, list) else [made]
    return [one.transaction if isinstance(one, Staged) else one for one in given if one is not None]


def committed(uri: str, version: int) -> Transaction:
    """The transaction that pylance wrote for a version."""
    manifest = Manifest.FromString(bytes(lance.dataset(uri, version=version)._ds.serialized_manifest()))
    return Transaction.FromString(Path(uri, "_transactions", manifest.transaction_file).read_bytes())


def run(name: str, folder: str) -> dict[str, Any]:
    """Both transactions as text, the staged ones (base64), and the places of the two tables."""
    kind, (ours, theirs) = CASES[name]
    base = Path(folder, "base")
    make_table(str(base), kind)
    uris = {who: str(Path(folder, who)) for who in ("ours", "theirs")}
    for uri in uris.values():
        shutil.copytree(base, uri)
    staged = transactions(ours(lance.dataset(uris["ours"])))
    before = lance.dataset(uris["ours"]).version
    theirs(lance.dataset(uris["theirs"]))
    after = lance.dataset(uris["theirs"]).version
    told = [staged[-1], committed(uris["theirs"], after)] if after > before else staged
    keys = [one.update.inserted_rows.field_ids[:] for one in told]
    return {
        "texts": [text(one) for one in told],
        "keys": keys,
        "exact": len(staged[-1].update.inserted_rows.exact.key_hashes),
        "staged": [base64.b64encode(one.SerializeToString()).decode() for one in staged],
        **uris,
    }


def text(given: Transaction) -> str:
    """The transaction without random parts (uuids, names, ids of deletion files), order, and facts about the commit
    itself.
    """
    one = Transaction()
    one.CopyFrom(given)
    one.uuid = ""
    for key in [key for key in one.transaction_properties if key.startswith("committerd.")]:  # for the committer alone
        del one.transaction_properties[key]
    in_no_order(one)
    names: dict[str, str] = {}
    for message in walk(one):
        if isinstance(message, DataFile):
            message.path = names.setdefault(message.path, f"file {len(names)}")
            message.file_size_bytes = 0
        elif isinstance(message, DeletionFile):
            message.id = 0
            message.file_type = DeletionFile.BITMAP  # of a few rows pylance writes an array, and the helpers a bitmap
        elif isinstance(message, DataFragment) and message.HasField("inline_row_ids"):
            ids = decode_row_ids(message.inline_row_ids, fragment=message.id, staged=True)
            message.inline_row_ids = ",".join(map(str, ids)).encode()  # whatever its segments are
        elif isinstance(message, IndexMetadata):
            message.index_details.value = bytes(sorted(message.index_details.value))  # some hold maps
            message.uuid.uuid = names.setdefault(message.uuid.uuid.hex(), f"index {len(names)}").encode()
            message.ClearField("created_at")
            message.files.sort(key=lambda file: file.path)
            for file in message.files:
                file.size_bytes = 0
        elif isinstance(message, Transaction.UpdateMap):
            message.update_entries.sort(key=lambda entry: entry.key)
        elif isinstance(message, Field):
            message.ClearField("dictionary")  # where its values lie in a manifest of the legacy format
    return text_format.MessageToString(one)


def in_no_order(one: Transaction) -> None:
    """Sort what pylance writes in arbitrary order."""
    match one.WhichOneof("operation"):
        case "delete":
            one.delete.updated_fragments.sort(key=lambda fragment: fragment.id)
            one.delete.deleted_fragment_ids.sort()
        case "update":
            one.update.ClearField("inserted_rows")
            one.update.updated_fragments.sort(key=lambda fragment: fragment.id)
            one.update.removed_fragment_ids.sort()
            one.update.fields_modified.sort()
            one.update.fields_for_preserving_frag_bitmap.sort()
        case "create_index":
            for index in one.create_index.removed_indices:  # their uuids say which they are
                index.ClearField("files")
                index.index_details.ClearField("value")
        case "merge" | "project" as name if not _tells_nullability():
            getattr(one, name).ClearField("preserves_nullability")
        case _:
            pass


def walk(message: Message) -> Iterator[Message]:
    """All messages in one that are set."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for inner in value if field.is_repeated else [value]:
            yield from walk(inner)


def _tells_nullability() -> bool:
    return "preserves_nullability" in lance.LanceOperation.Project.__dataclass_fields__


def main() -> None:
    results: dict[str, Any] = {"pylance": lance.__version__}
    for number, name in enumerate(CASES):
        folder = Path(sys.argv[3], str(number))
        folder.mkdir(parents=True)
        results[name] = run(name, str(folder))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
