"""The columns in which data files hold the fields of a schema.

From format 2.1 on a file has a column for each field without children, and a column for each blob or packed struct,
which holds its children too. A file of format 2.0 has a column for each field, whether it has children or not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from committerd.errors import InvalidRequest
from committerd.lance.format.data_file import FileFacts
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.format.wording import CHARS_MAX, quoted
from committerd.lance.versions.fragments import file_version
from committerd_common.messages import DataFile, DataFragment, DecodeError, Field, FileDescriptor

NO_COLUMN = -1
"""The column index of a field whose children have the columns. Lance 4.0.0 lists such fields, 14.0.2 leaves them out.
"""

_BLOB, _BLOB_TYPE = "lance-encoding:blob", "lance.blob.v2"
BLOB_V2_FORMATS = frozenset({"2.2", "2.3"})
"""The formats of files that have blobs of the second kind, and no others."""
_PACKED = ("packed", "lance-encoding:packed")
_TRUE = frozenset({b"1", b"true", b"on", b"yes", b"y"})


def is_one_column(field: Field) -> bool:
    """Whether a file has one column for the field and its children: a blob or a packed struct.

    Lance 14: field.rs, is_blob and is_packed_struct.
    """
    metadata = field.metadata
    if not metadata:
        return False
    return _BLOB in metadata or _is_blob_v2(field) or any(metadata.get(key, b"").lower() in _TRUE for key in _PACKED)


def old_blobs(schema: Iterable[Field]) -> frozenset[int]:
    """The fields that are blobs of the first kind. Lance 14: field.rs, is_blob and not is_blob_v2."""
    return frozenset(field.id for field in schema if _BLOB in field.metadata and not _is_blob_v2(field))


def _is_blob_v2(field: Field) -> bool:
    return field.metadata.get("ARROW:extension:name") == _BLOB_TYPE.encode()


@dataclass(frozen=True, slots=True)
class FileColumns:
    """What a transaction says of the columns of a data file."""

    version: str | None
    """The file's format; None if it is unknown."""
    fields: tuple[int, ...]
    columns: tuple[int, ...]
    """The index of each field's column in the file."""

    def __len__(self) -> int:
        """How many numbers it has."""
        return len(self.fields) + len(self.columns)

    @staticmethod
    def of(file: DataFile) -> FileColumns:
        """Those of this file."""
        return FileColumns(file_version(file), tuple(file.fields), tuple(file.column_indices))


def require_columns(files: Iterable[DataFile], schema: TableSchema) -> None:
    """Check that each data file names a column for each field that it has, as its format demands, and none twice.

    With any other file readers can't scan the field, or can't even open the table. Fields that the schema lacks are not
    checked, because nobody reads them. Lance 14: versions/mod.rs, validate_file_column_indices; 4.0.0 checks nothing.

    Raises `InvalidRequest` (`column_indices`).
    """
    for file in files:
        if fault := schema.once(_fault, FileColumns.of(file)):
            raise InvalidRequest(f"data file {file.path!r} can't be read: {fault}", code="column_indices")


def fields_with_columns(schema: Sequence[Field]) -> frozenset[int]:
    """The fields that files of every format have columns for: those without children, blobs and packed structs.

    What lies in a blob or a packed struct is left out.
    """
    parents = {field.parent_id for field in schema}
    inside: set[int] = set()
    found: set[int] = set()
    for field in schema:  # parents come before their children
        whole = is_one_column(field)
        if field.parent_id in inside or whole:
            inside.add(field.id)
        if field.parent_id not in inside and (whole or field.id not in parents):
            found.add(field.id)
    return frozenset(found)


def _fault(schema: TableSchema, said: FileColumns) -> str:
    """The fault of a file's columns, as text; empty if it has none."""
    known = [pair for pair in zip(said.fields, said.columns, strict=True) if pair[0] in schema.by_id]
    held, version = frozenset(said.fields), said.version
    for number, column in known:
        field = schema.by_id[number]
        wants_column = version == "2.0" or number not in schema.parents or is_one_column(field)
        if wants_column and column == NO_COLUMN:
            return f"it has {_named(field)}, and names no column for it (column index -1)"
        if column != NO_COLUMN and not wants_column:
            return (
                f"it names column {column} for {_named(field)}, whose children have the columns from format 2.1 on "
                "(the column index must be -1)"
            )
        above = schema.by_id.get(field.parent_id)
        if version == "2.0" and above is not None and above.id not in held:
            return f"it has {_named(field)} and lacks {_named(above)}, in which that field lies"
    used = Counter(column for _, column in set(known) if column != NO_COLUMN)
    twice = sorted(column for column, times in used.items() if times > 1)
    return f"it names columns {twice} for more than one field each" if twice else ""


class DescribedFile(NamedTuple):
    """A data file that a transaction adds, what the transaction says of it, and what the file itself says."""

    file: DataFile
    rows: int | None
    """The number of rows of its fragment; None = unknown."""
    facts: FileFacts


def require_as_described(described: Iterable[DescribedFile], schema: TableSchema) -> None:
    """Check that data files have the rows, columns and types that the transaction says; `schema` is the table's.

    pylance believes what the transaction says, and then readers fail, or leave rows out.

    Raises `InvalidRequest` (`physical_rows_too_many`, `physical_rows_too_few`, `column_indices`, `column_type`).
    """
    for file, rows, facts in described:
        if rows is not None and rows != facts.rows:
            raise InvalidRequest(
                f"data file {file.path!r} has {facts.rows} rows, and its fragment {rows} (physical_rows). Stage the "
                "number of rows that pylance gives for it",
                code="physical_rows_too_many" if rows > facts.rows else "physical_rows_too_few",
            )
        if lie := schema.once(_lie, FileColumns.of(file), facts.fields, facts.columns):
            raise InvalidRequest(f"data file {file.path!r} {lie.text}", code=lie.code)


class _Lie(NamedTuple):
    """An untrue statement of a transaction about a file."""

    text: str
    code: str


def _lie(schema: TableSchema, said: FileColumns, fields: bytes, columns: int) -> _Lie | None:
    """The first untrue statement of the transaction about a file; None if all are true.

    `fields`, `columns`: what the file says, as in `FileFacts`.
    """
    held = _types_of_columns(fields, columns, said.version)
    for number, column in zip(said.fields, said.columns, strict=True):
        field = schema.by_id.get(number)
        if column == NO_COLUMN or field is None or is_one_column(field):
            continue
        if column >= columns:
            text = f"has {columns} columns, and field {number} would be in column {column}"
            return _Lie(text, "column_indices")
        if held and _differ(held[column], field.logical_type):
            text = (
                f"has data of type {held[column][:CHARS_MAX]} in column {column}, and field {number}, which would be "
                f"in it, is of type {field.logical_type[:CHARS_MAX]}"
            )
            return _Lie(text, "column_type")
    return None


@lru_cache(maxsize=4)
def _types_of_columns(fields: bytes, columns: int, version: str | None) -> tuple[str, ...]:
    """The logical type of each column of a file; empty if they are not known."""
    try:
        schema = FileDescriptor.FromString(fields).schema.fields
    except DecodeError:
        return ()
    parents = {field.parent_id for field in schema}
    inside: set[int] = set()
    types: list[str] = []
    for field in schema:
        if field.id < 0:  # a part of a blob
            continue
        if field.parent_id in inside:
            inside.add(field.id)
        elif is_one_column(field):
            inside.add(field.id)
            types.append("")
        elif version == "2.0" or field.id not in parents:
            types.append(field.logical_type)
    return tuple(types) if len(types) == columns else ()


_PLAIN = re.compile(r"bool|u?int\d+|halffloat|float|double|(large_)?(string|binary)|date\d+:.*|time\d+:.*|duration:.*")


def _differ(held: str, wanted: str) -> bool:
    """Whether data of the first type can't be read as the second. Types that may be stored as others never differ."""
    return held != wanted and bool(_PLAIN.fullmatch(held)) and bool(_PLAIN.fullmatch(wanted))


class _Required(NamedTuple):
    field: Field
    own: frozenset[int]
    """The field and all fields in it."""
    beside: frozenset[int] | None
    """The parent of the field, and all fields in the parent; None = the field is a column of the table."""


def fields_without_data(schema: Sequence[Field]) -> Callable[[DataFragment], Iterator[Field]]:
    """A function that finds the required fields of which a fragment has no data.

    For these, readers make nulls, and then no scan of the fragment works. A required field of a struct does no harm if
    the fragment has no data of the whole struct.
    """
    wanted = list(_required(schema))

    def look(fragment: DataFragment) -> Iterator[Field]:
        if not wanted:
            return
        held = {one for file in fragment.files for one in file.fields}
        for field, own, beside in wanted:
            if own.isdisjoint(held) and (beside is None or not beside.isdisjoint(held)):
                yield field

    return look


def _required(schema: Sequence[Field]) -> Iterator[_Required]:
    if all(field.nullable for field in schema):
        return
    above: dict[int, tuple[Field, ...]] = {}
    below: dict[int, set[int]] = {}
    by_id = {field.id: field for field in schema}
    for field in schema:  # parents come before their children
        parent = field.parent_id
        above[field.id] = (by_id[parent], *above[parent]) if parent in above else ()
        below[field.id] = {field.id}
        for one in above[field.id]:
            below[one.id].add(field.id)
    for field in schema:
        parents = above[field.id]
        if not field.nullable and not any(map(is_one_column, parents)):
            beside = frozenset(below[parents[0].id]) if parents else None
            yield _Required(field, frozenset(below[field.id]), beside)


def changed_fields(before: Iterable[Field], after: Iterable[Field]) -> list[Field]:
    """The fields of `after` that both schemas have, and whose data could not be read with `after`.

    The type differs, or whether a field is one column with its children.
    """
    known = {field.id: field for field in before}
    return [field for field in after if field.id in known and _layout(known[field.id]) != _layout(field)]


def require_same_types(before: Iterable[Field], after: Iterable[Field]) -> None:
    """Check that a change of the schema changes no field whose data stays. Raises `InvalidRequest` (`field_type`)."""
    known = {field.id: field for field in before}
    for field in changed_fields(known.values(), after):
        raise field_type_changed(known[field.id], field)


def field_type_changed(before: Field, after: Field) -> InvalidRequest:
    """The error for a field whose data can't be read as what it would be."""
    if before.logical_type == after.logical_type:
        what = "it makes it a blob or a packed struct, or ends that"
    else:
        was, becomes = before.logical_type[:CHARS_MAX], after.logical_type[:CHARS_MAX]
        what = f"its data is of type {was}, not {becomes}"
    return InvalidRequest(
        f"it changes {_named(before)}, and readers could not read the data that is there: {what}. Write the data anew, "
        "into a field with a new id",
        code="field_type",
    )


def _layout(field: Field) -> tuple[str, bool]:
    return field.logical_type, is_one_column(field)


def _named(field: Field) -> str:
    return f"field {field.id} ({quoted(field.name)})"
