"""From what pylance has written but not committed to transactions.

Nothing is lost on the way: what a helper doesn't know how to carry is an error, never left out. Works with pylance
4.0.0 to 14.x (extra `lance`).
"""

from __future__ import annotations

import dataclasses
import json
import uuid as uuids
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from committerd.format.messages import DataFile, DataFragment, DeletionFile, ExternalFile, Field, Transaction
from committerd_client.headers import Staged

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from lance.schema import LanceSchema

_RESERVED_PREFIX = "committerd."

_FRAGMENT_FIELDS = frozenset(
    {
        "id",
        "files",
        "physical_rows",
        "deletion_file",
        "row_id_meta",
        "created_at_version_meta",
        "last_updated_at_version_meta",
    }
)
_FILE_FIELDS = frozenset(
    {
        "_path",
        "fields",
        "column_indices",
        "file_major_version",
        "file_minor_version",
        "file_size_bytes",
        "base_id",
    }
)
_DELETION_FIELDS = frozenset({"read_version", "id", "file_type", "num_deleted_rows", "base_id"})
_DELETION_TYPES = {"array": DeletionFile.ARROW_ARRAY, "bitmap": DeletionFile.BITMAP}


def new_uuid() -> str:
    """For a transaction: lower case with hyphens."""
    return str(uuids.uuid4())


def append(
    fragments: Iterable[FragmentMetadata],
    *,
    read_version: int = 0,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Transaction:
    """Add the rows of what `lance.fragment.write_fragments` returned.

    `read_version`: 0 = the latest version, whatever it is when the committer gets to it; with a version, what
    contradicts an Append since then (an Overwrite, a Restore) refuses it. `uuid`: a fresh one unless given; keep it
    when you stage the same work again. `properties`: kept with the version; `__lance_commit_message` is the commit
    message.
    """
    transaction = _transaction(read_version, uuid, properties)
    transaction.append.SetInParent()
    transaction.append.fragments.extend(fragment(one) for one in fragments)
    return transaction


def create(
    fragments: Iterable[FragmentMetadata],
    schema: pa.Schema | LanceSchema,
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    enable_stable_row_ids: bool | None = None,
    enable_v2_manifest_paths: bool | None = None,
    data_storage_version: str | None = None,
) -> Staged:
    """Make the table, with the rows of what `write_fragments(mode="create")` returned; one that exists is left alone.

    `schema`: that of the written data; its fields get the ids that pylance gave them in the files. `config`: settings
    of the table. The others are as in `lance.write_dataset`; None leaves them to the committer.
    """
    transaction = _transaction(0, uuid, properties)
    overwrite = transaction.overwrite
    overwrite.SetInParent()
    overwrite.fragments.extend(fragment(one) for one in fragments)
    version = data_storage_version or next(map(_storage_version, _files(overwrite.fragments)), None)
    fields, metadata = lance_schema(schema, data_storage_version=version)
    overwrite.schema.extend(fields)
    for key, value in metadata.items():
        overwrite.schema_metadata[key] = value
    overwrite.config_upsert_values.update(config or {})
    options = {
        "enable_stable_row_ids": enable_stable_row_ids,
        "enable_v2_manifest_paths": enable_v2_manifest_paths,
        "data_storage_version": data_storage_version,
    }
    return Staged(
        transaction=transaction,
        create_only=True,
        create_options={name: value for name, value in options.items() if value is not None},
    )


def fragment(metadata: FragmentMetadata) -> DataFragment:
    """One fragment as it stands in a transaction. Raises `ValueError` for what this version does not know."""
    _only(metadata, _FRAGMENT_FIELDS)
    made = DataFragment(id=metadata.id, physical_rows=metadata.physical_rows or 0)
    for file in metadata.files:
        _only(file, _FILE_FIELDS)
        made.files.append(
            DataFile(
                path=str(file.path),
                fields=file.fields,
                column_indices=file.column_indices,
                file_major_version=file.file_major_version,
                file_minor_version=file.file_minor_version,
                file_size_bytes=file.file_size_bytes or 0,
                base_id=file.base_id,
            )
        )
    if metadata.deletion_file is not None:
        made.deletion_file.CopyFrom(_deletion_file(metadata.deletion_file.asdict()))
    _sequence(made, metadata.row_id_meta, "row_ids")
    _sequence(made, metadata.created_at_version_meta, "created_at_versions")
    _sequence(made, metadata.last_updated_at_version_meta, "last_updated_at_versions")
    return made


def lance_schema(
    schema: pa.Schema | LanceSchema, *, data_storage_version: str | None = None
) -> tuple[list[Field], dict[str, bytes]]:
    """(fields in depth-first order, metadata) as pylance stores them.

    What an Arrow type becomes depends on the version of the data files (a blob is one column in 2.1 and three in 2.2),
    so pylance is asked: it writes no rows, into memory. A schema of pylance's own is taken as it is, ids included.
    """
    from lance.fragment import write_fragments  # here, so that the module can be imported without pylance
    from lance.schema import LanceSchema

    if not isinstance(schema, LanceSchema):
        nothing: Any = write_fragments(
            schema.empty_table(),
            "memory://schema",
            mode="create",
            return_transaction=True,
            data_storage_version=data_storage_version,
        )
        schema = nothing.operation.new_schema
    # pylance pickles a schema as the messages that it stores: (metadata as JSON of byte lists, each field's bytes).
    pickled: Any = schema.__reduce__()
    metadata, *fields = pickled[1]
    values = {key: bytes(value) for key, value in json.loads(metadata).items()}
    return [Field.FromString(field) for field in fields], values


def _transaction(read_version: int, uuid: str | None, properties: Mapping[str, str] | None) -> Transaction:
    reserved = [key for key in properties or () if key.startswith(_RESERVED_PREFIX)]
    if reserved:
        raise ValueError(f"property {reserved[0]!r}: names that begin with {_RESERVED_PREFIX!r} are the committer's")
    return Transaction(
        read_version=read_version, uuid=uuid or new_uuid(), transaction_properties=dict(properties or {})
    )


def _files(fragments: Iterable[DataFragment]) -> Iterator[DataFile]:
    for one in fragments:
        yield from one.files


def _storage_version(file: DataFile) -> str:
    """What `data_storage_version` makes such a file."""
    # Lance: file versions 0.0 to 0.2 are the legacy format, 0.3 was the first name of 2.0.
    if file.file_major_version == 0:
        return "2.0" if file.file_minor_version == 3 else "legacy"
    return f"{file.file_major_version}.{file.file_minor_version}"


def _deletion_file(given: Mapping[str, Any]) -> DeletionFile:
    kind = _DELETION_TYPES.get(given["file_type"])
    if kind is None or given.keys() - _DELETION_FIELDS:
        raise ValueError(f"a deletion file of a kind that this version does not know: {dict(given)}")
    return DeletionFile(
        file_type=kind,
        read_version=given["read_version"],
        id=given["id"],
        num_deleted_rows=given["num_deleted_rows"] or 0,
        base_id=given.get("base_id"),
    )


def _sequence(made: DataFragment, given: Any, name: str) -> None:
    """Row ids or row versions: pylance shows them as `{"Inline": [bytes]}` or `{"External": {path, offset, size}}`."""
    if given is None:
        return
    match json.loads(given.json()):  # 4.0.0 has no asdict() for them
        case {"Inline": content} | {"inline": content}:
            setattr(made, f"inline_{name}", bytes(content))
        case {"External": place} | {"external": place}:
            getattr(made, f"external_{name}").CopyFrom(ExternalFile(**place))
        case unknown:  # Lance 14 can keep them in a column of the data file
            raise ValueError(f"fragment {made.id} keeps its {name} in a way that committerd does not know: {unknown}")


def _only(given: Any, known: frozenset[str]) -> None:
    """Refuse what a newer pylance has added and filled in."""
    for field in dataclasses.fields(given):
        if field.name not in known and getattr(given, field.name):
            raise ValueError(
                f"{type(given).__name__}.{field.name} is set, and this version of committerd can't carry it to a table"
            )
