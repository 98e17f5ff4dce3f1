"""Do the types that a data file says its columns have fit a table? Field ids alone don't show it."""

from __future__ import annotations

from typing import Any

import pytest

from committerd.lance.versions.fragments import differing_types
from committerd_common.messages import DataFile, Field, FileDescriptor


def field(number: int, logical_type: str = "int64", *, parent_id: int = -1, **given: Any) -> Field:
    options = {"nullable": True} | given
    return Field(id=number, name=f"c{number}", parent_id=parent_id, logical_type=logical_type, **options)


def said(*fields: Field) -> FileDescriptor:
    descriptor = FileDescriptor()
    descriptor.schema.fields.extend(fields)
    return descriptor


TABLE = [field(0, nullable=False), field(1, "struct"), field(2, "string", parent_id=1), field(5, "double")]
WHOLE = DataFile(path="f.lance", fields=[0, 2, 5])


@pytest.mark.parametrize(
    ("file", "descriptor"),
    [
        (WHOLE, said(*TABLE)),
        # Columns that the table has dropped since, or that came later; a column that is not read from this file.
        (DataFile(fields=[0, 3, -2]), said(TABLE[0], field(3, "date32:day"))),
        (DataFile(fields=[2]), said(field(1, "struct", nullable=False), TABLE[2])),
    ],
)
def test_files_of_the_tables_types_fit(file: DataFile, descriptor: FileDescriptor) -> None:
    assert differing_types(file, descriptor, TABLE) == ""


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        (None, "file 'f.lance' does not say which type its field 0 has"),
        (said(*TABLE[:3]), "file 'f.lance' does not say which type its field 5 has"),
        (said(field(0, "string", nullable=False), *TABLE[1:]), "field 0 is 'c0' of type 'string' in file 'f.lance'"),
        (said(*TABLE[:2], field(2, "string"), TABLE[3]), "field 2 is 'c2' of type 'string'"),
        (said(TABLE[0], field(1, "list"), *TABLE[2:]), "field 1 is 'c1' of type 'list'"),
        (said(field(0), *TABLE[1:]), "column 'c0' may be null in file 'f.lance', and not in the table"),
    ],
    ids=["says nothing", "leaves one out", "type", "parent", "type of a parent", "nulls"],
)
def test_a_file_of_other_types_is_told(descriptor: FileDescriptor | None, message: str) -> None:
    assert differing_types(WHOLE, descriptor, TABLE).startswith(message)
