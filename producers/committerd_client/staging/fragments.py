"""Converts fragments, data files and schemas of pylance to the messages of a transaction."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from committerd_client.arguments import kind_of
from committerd_client.staging.errors import StagingError
from committerd_common.messages import DataFile, DataFragment, DeletionFile, ExternalFile, Field
from committerd_common.uris import local_folder

if TYPE_CHECKING:
    import lance.fragment
    import pyarrow as pa
    from lance.fragment import FragmentMetadata, LanceFragment
    from lance.schema import LanceSchema

AT_ONCE_LOCAL, _AT_ONCE_REMOTE = 4, 16
_FEW_FRAGMENTS = 100
"""Up to this number pylance is asked for each fragment by id, and does not have to wrap all of them for Python."""
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
        "path",
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


def at_once(dataset: lance.LanceDataset) -> int:
    """How many fragments to write at once: on a local disk the interpreter is the bound, elsewhere the latency."""
    return _AT_ONCE_REMOTE if local_folder(dataset.uri) is None else AT_ONCE_LOCAL


def quoted(name: str) -> str:
    """A column name, quoted for Lance's SQL."""
    return f"`{name}`"


def opened_fragments(dataset: lance.LanceDataset, ids: Collection[int]) -> list[LanceFragment]:
    """The fragments of the dataset with these ids, ascending. Raises no error for an id that it does not have."""
    if len(ids) > _FEW_FRAGMENTS:
        return sorted(
            (one for one in dataset.get_fragments() if one.fragment_id in ids), key=lambda one: one.fragment_id
        )
    opened = (dataset.get_fragment(id) for id in sorted(ids))
    return [one for one in opened if one is not None]


def fragment(metadata: FragmentMetadata) -> DataFragment:
    """The message of a fragment. Raises `StagingError` for fields or values that this client does not know."""
    given = {field.name: getattr(metadata, field.name) for field in dataclasses.fields(metadata)}
    given["files"] = [_of_file(file) for file in metadata.files]
    if metadata.deletion_file is not None:
        given["deletion_file"] = metadata.deletion_file.asdict()
    for name in ("row_id_meta", "created_at_version_meta", "last_updated_at_version_meta"):
        if given[name] is not None:
            given[name] = json.loads(given[name].json())  # pylance 4.0.0 has no asdict() for them
    return fragment_of_json(given, called=type(metadata).__name__)


def fragment_of_json(given: Mapping[str, Any], *, called: str = "FragmentMetadata") -> DataFragment:
    """The message of a fragment, from the JSON in which pylance sends fragments to other processes.

    `called`: the name of the JSON object in error messages. Raises `StagingError` as `fragment` does.
    """
    _only(given, _FRAGMENT_FIELDS, called)
    made = DataFragment(id=given["id"], physical_rows=given.get("physical_rows") or 0)
    made.files.extend(_file_of_json(file) for file in given["files"])
    if given.get("deletion_file") is not None:
        made.deletion_file.CopyFrom(_deletion_file(given["deletion_file"]))
    _sequence(made, given.get("row_id_meta"), "row_ids")
    _sequence(made, given.get("created_at_version_meta"), "created_at_versions")
    _sequence(made, given.get("last_updated_at_version_meta"), "last_updated_at_versions")
    return made


def data_file(given: lance.fragment.DataFile) -> DataFile:
    """The message of a data file. Raises `StagingError` as `fragment` does."""
    return _file_of_json(_of_file(given))


def lance_schema(
    schema: pa.Schema | LanceSchema, *, data_storage_version: str | None = None
) -> tuple[list[Field], dict[str, bytes]]:
    """(fields in depth-first order, metadata) as pylance stores them.

    The Lance type of an Arrow type depends on the version of the data files (a blob is one column in 2.1 and three in
    2.2), so pylance converts it: it writes an empty table into memory. A schema of pylance's own keeps its field ids.
    """
    import pyarrow as pa
    from lance.fragment import write_fragments  # imported here, so that the module needs no pylance
    from lance.schema import LanceSchema

    if not isinstance(schema, LanceSchema):
        if not hasattr(schema, "empty_table"):
            raise TypeError(
                "a pyarrow schema is needed, such as pa.schema({'id': pa.int64()}) or rows.schema, not "
                f"{kind_of(schema)}"
            )
        nothing: Any = write_fragments(
            pa.RecordBatchReader.from_batches(schema, []),  # empty_table() can't have all types inside others
            "memory://schema",
            mode="create",
            return_transaction=True,
            data_storage_version=data_storage_version,
        )
        schema = nothing.operation.new_schema
    # pylance pickles a schema as Lance's messages: (metadata as JSON of byte lists, the bytes of each field).
    pickled: Any = schema.__reduce__()
    metadata, *fields = pickled[1]
    values = {key: bytes(value) for key, value in json.loads(metadata).items()}
    return [Field.FromString(field) for field in fields], values


@functools.cache
def default_storage_version() -> str:
    """The `data_storage_version` of tables that the installed pylance makes by default."""
    import lance
    import pyarrow as pa

    made = lance.write_dataset(pa.table({"column": pa.array([], pa.int64())}), "memory://default_storage_version")
    return made.data_storage_version


def storage_version(fragments: Iterable[DataFragment]) -> str | None:
    """The `data_storage_version` of the fragments' files; None if there are no files."""
    for file in _files(fragments):
        # Lance: file versions 0.0 to 0.2 are the legacy format; 0.3 is the first name of 2.0.
        if file.file_major_version == 0:
            return "2.0" if file.file_minor_version == 3 else "legacy"
        return f"{file.file_major_version}.{file.file_minor_version}"
    return None


def _files(fragments: Iterable[DataFragment]) -> Iterator[DataFile]:
    for one in fragments:
        yield from one.files


def _of_file(file: lance.fragment.DataFile) -> dict[str, Any]:
    given = {field.name: getattr(file, field.name) for field in dataclasses.fields(file)}
    given["path"] = str(given.pop("_path"))
    return given


def _file_of_json(given: Mapping[str, Any]) -> DataFile:
    _only(given, _FILE_FIELDS, "DataFile")
    return DataFile(
        path=given["path"],
        fields=given["fields"],
        column_indices=given["column_indices"],
        file_major_version=given["file_major_version"],
        file_minor_version=given["file_minor_version"],
        file_size_bytes=given["file_size_bytes"] or 0,
        base_id=given["base_id"],
    )


def _deletion_file(given: Mapping[str, Any]) -> DeletionFile:
    kind = _DELETION_TYPES.get(given["file_type"])
    if kind is None or given.keys() - _DELETION_FIELDS:
        raise StagingError(
            f"a deletion file of a kind that this version does not know: {dict(given)}", code="unknown_to_committerd"
        )
    return DeletionFile(
        file_type=kind,
        read_version=given["read_version"],
        id=given["id"],
        num_deleted_rows=given["num_deleted_rows"] or 0,
        base_id=given.get("base_id"),
    )


def _sequence(made: DataFragment, given: Any, name: str) -> None:
    """Set row ids or row versions, in pylance's JSON `{"Inline": [bytes]}` or `{"External": {path, offset, size}}`."""
    match given:
        case None:
            return
        case {"Inline": content} | {"inline": content}:
            setattr(made, f"inline_{name}", bytes(content))
        case {"External": place} | {"external": place}:
            getattr(made, f"external_{name}").CopyFrom(ExternalFile(**place))
        case unknown:  # Lance 14 can store them in a column of the data file
            raise StagingError(
                f"fragment {made.id} keeps its {name} in a way that committerd does not know: {unknown}",
                code="unknown_to_committerd",
            )


def _only(given: Mapping[str, Any], known: frozenset[str], called: str) -> None:
    """Raise `StagingError` for fields that this client does not know, if a newer pylance has set them."""
    for name, value in given.items():
        if name not in known and value:
            raise StagingError(
                f"{called}.{name} is set, and this version of committerd can't carry it to a table",
                code="unknown_to_committerd",
            )
