"""The columns in which data files hold the fields of a schema."""

from __future__ import annotations

import pytest

from committerd.errors import InvalidRequest
from committerd.lance.format.data_file import FileFacts
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.versions.columns import (
    DescribedFile,
    changed_fields,
    fields_with_columns,
    fields_without_data,
    is_one_column,
    require_as_described,
    require_columns,
    require_same_types,
)
from committerd_common.messages import (
    DataFile,
    DataFragment,
    Field,
    FileDescriptor,
    PackedFileDescriptor,
    PackedSchema,
    Schema,
)


def field(
    number: int, logical_type: str = "int64", parent: int = -1, *, required: bool = False, **metadata: bytes
) -> Field:
    said = {key.replace("_", "-").replace("--", ":"): value for key, value in metadata.items()}
    return Field(
        id=number, name=f"f{number}", parent_id=parent, logical_type=logical_type, nullable=not required, metadata=said
    )


BLOB = field(5, "large_binary", lance_encoding__blob=b"true")
SCHEMA = [field(0), field(1, "struct"), field(2, parent=1), field(3, "list"), field(4, parent=3), BLOB]


def file(columns: dict[int, int], minor: int = 1) -> DataFile:
    return DataFile(
        path="a.lance",
        fields=columns.keys(),
        column_indices=columns.values(),
        file_major_version=2,
        file_minor_version=minor,
    )


def fault(*files: DataFile, schema: list[Field] = SCHEMA) -> str:
    try:
        require_columns(files, TableSchema(schema))
    except InvalidRequest as error:
        return str(error) if error.code == "column_indices" else error.code
    return ""


class TestOfADataFile:
    @pytest.mark.parametrize(
        "columns",
        [
            {0: 0, 2: 1, 4: 2, 5: 3},  # as 14.0.2 writes it
            {0: 0, 1: -1, 2: 1, 3: -1, 4: 2, 5: 3},  # as 4.0.0 does
            {0: 0},
            {0: 0, 99: -1},  # a field that was dropped
            {0: 0, 99: 0},
            {-2: 0, 0: 1},
        ],
    )
    def test_are_right(self, columns: dict[int, int]) -> None:
        assert fault(file(columns), file(columns)) == ""

    @pytest.mark.parametrize(
        ("columns", "said"),
        [
            ({0: -1, 2: 1}, "names no column for it"),
            ({5: -1}, "names no column for it"),
            ({1: 0, 2: 1}, "whose children have the columns"),
            ({0: 0, 2: 0}, "names columns \\[0\\] for more than one field"),
        ],
    )
    def test_are_wrong(self, columns: dict[int, int], said: str) -> None:
        with pytest.raises(InvalidRequest, match=said):
            require_columns([file({0: 0}), file(columns)], TableSchema(SCHEMA))

    @pytest.mark.parametrize(
        ("columns", "said"),
        [
            ({0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5}, ""),
            ({1: 0, 2: 1}, ""),
            ({1: -1, 2: 1}, "names no column for it"),
            ({2: 1}, "lacks field 1 ('f1'), in which that field lies"),
            ({0: 0, 5: 0}, "names columns [0] for more than one field"),
        ],
    )
    def test_of_format_2_0(self, columns: dict[int, int], said: str) -> None:
        found = fault(file(columns, minor=0))
        assert said in found
        assert bool(said) == bool(found)

    def test_of_a_packed_struct_are_one(self) -> None:
        packed = [field(0, "struct", packed=b"TRUE"), field(1, parent=0)]
        assert fault(file({0: 0}), schema=packed) == ""
        assert fault(file({0: -1}), schema=packed)


def facts(*fields: Field, rows: int = 3, columns: int | None = None) -> FileFacts:
    body = FileDescriptor(schema=Schema(fields=fields)).SerializeToString()
    return FileFacts(rows=rows, columns=len(fields) if columns is None else columns, fields=body)


def misdescribed(file: DataFile, said: FileFacts, rows: int | None = 3, schema: list[Field] = SCHEMA) -> str:
    try:
        require_as_described([DescribedFile(file, rows, said)], TableSchema(schema))
    except InvalidRequest as error:
        return error.code
    return ""


class TestWhatAFileSays:
    def test_of_its_rows(self) -> None:
        said = facts(field(0))
        assert misdescribed(file({0: 0}), said) == ""
        assert misdescribed(file({0: 0}), said, rows=None) == ""
        assert misdescribed(file({0: 0}), said, rows=4) == "physical_rows_too_many"
        assert misdescribed(file({0: 0}), said, rows=2) == "physical_rows_too_few"

    def test_of_its_columns(self) -> None:
        assert misdescribed(file({0: 1}), facts(field(0))) == "column_indices"
        assert misdescribed(file({99: 1, 1: -1}), facts(field(0))) == ""

    def test_of_their_types(self) -> None:
        said = facts(field(7, "string"), field(8))
        assert misdescribed(file({0: 1}), said) == ""
        assert misdescribed(file({0: 0}), said) == "column_type"

    @pytest.mark.parametrize("held", ["dict:string:int32:false", "timestamp:us:UTC", "decimal:128:5:2", "json"])
    def test_of_types_that_may_be_stored_as_others(self, held: str) -> None:
        assert misdescribed(file({0: 0}), facts(field(0, held))) == ""

    def test_of_nested_fields(self) -> None:
        nested = [field(1, "struct"), field(2, "string", parent=1), field(3, "list"), field(4, parent=3)]
        leaves = facts(*nested, columns=2)
        assert misdescribed(file({2: 1, 4: 0}), leaves) == "column_type"
        assert misdescribed(file({4: 1}), leaves) == ""
        assert misdescribed(file({4: 3}, minor=0), facts(*nested)) == ""
        assert misdescribed(file({2: 1}, minor=0), facts(*nested)) == "column_type"

    def test_of_a_blob_and_a_packed_struct(self) -> None:
        packed = field(6, "struct", packed=b"true")
        written = [BLOB, field(-1, "uint8"), packed, field(7, "string", parent=6), field(8, "string")]
        assert misdescribed(file({5: 0, 0: 2}), facts(*written, columns=3)) == "column_type"
        assert misdescribed(file({0: 0}), facts(*written, columns=3)) == ""

    def test_that_can_not_be_decoded_tells_no_types(self) -> None:
        broken = PackedFileDescriptor(schema=PackedSchema(fields=[b"\xff"])).SerializeToString()
        assert misdescribed(file({0: 0}), FileFacts(rows=3, columns=1, fields=broken)) == ""
        assert misdescribed(file({0: 1}), FileFacts(rows=3, columns=1, fields=broken)) == "column_indices"

    def test_of_more_columns_than_fields_tells_no_types(self) -> None:
        assert misdescribed(file({0: 0}), facts(field(0, "string"), columns=2)) == ""


def test_which_fields_have_columns_in_every_format() -> None:
    packed = [field(6, "struct", packed=b"true"), field(7, "struct", parent=6), field(8, parent=7)]
    assert fields_with_columns([*SCHEMA, *packed]) == {0, 2, 4, 5, 6}


def test_what_is_one_column() -> None:
    assert is_one_column(BLOB)
    assert is_one_column(field(0, "struct", ARROW__extension__name=b"lance.blob.v2"))
    assert is_one_column(field(0, "struct", lance_encoding__packed=b"1"))
    assert not is_one_column(field(0, "struct", packed=b"false"))
    assert not is_one_column(field(0))


def without_data(schema: list[Field], *held: int) -> list[int]:
    fragment = DataFragment(files=[DataFile(fields=[one]) for one in held])
    return [one.id for one in fields_without_data(schema)(fragment)]


class TestRequiredFields:
    def test_of_which_a_fragment_has_no_data(self) -> None:
        schema = [field(0, required=True), field(1), field(2, required=True)]
        assert without_data(schema, 0, 2) == []
        assert without_data(schema, 0, 1) == [2]
        assert without_data(schema) == [0, 2]
        assert without_data([field(0), field(1)]) == []

    def test_of_a_struct(self) -> None:
        schema = [field(0, "struct"), field(1, parent=0, required=True), field(2, parent=0), field(3)]
        assert without_data(schema, 1, 2) == []
        assert without_data(schema, 2, 3) == [1]
        assert without_data(schema, 3) == []  # the struct is null in every row

    def test_that_have_fields(self) -> None:
        schema = [field(0, "struct", required=True), field(1, parent=0), field(2, parent=0), field(3)]
        assert without_data(schema, 2) == []
        assert without_data(schema, 3) == [0]

    def test_in_one_column_with_others(self) -> None:
        schema = [field(0, "struct", packed=b"1"), field(1, parent=0, required=True)]
        assert without_data(schema, 0) == []


class TestTypes:
    def test_that_stay(self) -> None:
        renamed = [field(0), field(9, required=True)]
        renamed[0].name, renamed[0].nullable = "other", False
        require_same_types([field(0)], renamed)
        assert changed_fields([field(0)], renamed) == []

    @pytest.mark.parametrize(
        ("after", "said"),
        [
            (field(0, "int32"), "its data is of type int64, not int32"),
            (field(0, lance_encoding__blob=b""), "makes it a blob or a packed struct, or ends that"),
        ],
    )
    def test_that_change(self, after: Field, said: str) -> None:
        with pytest.raises(InvalidRequest, match=said) as refused:
            require_same_types([field(0)], [after])
        assert refused.value.code == "field_type"
