"""Schemas that a reader can't understand."""

from __future__ import annotations

import pytest

from committerd.errors import InvalidRequest
from committerd.lance.checks.texts import NAME_BYTES_MAX
from committerd.lance.format.bounds import FIELDS_MAX
from committerd.lance.versions.schema import NESTING_MAX, require_readable, with_relatives
from committerd_common.messages import Field


def field(
    number: int, logical_type: str = "int32", *, parent: int = -1, name: str = "", nullable: bool = True
) -> Field:
    return Field(id=number, parent_id=parent, name=name or f"c{number}", logical_type=logical_type, nullable=nullable)


def nested(levels: int, leaf: str = "int32") -> list[Field]:
    """A column of structs in structs; the last level is a leaf."""
    made = [field(number, "struct", parent=number - 1) for number in range(levels - 1)]
    return [*made, field(levels - 1, leaf, parent=levels - 2)]


def refusal(*schema: Field) -> str:
    """The error about a schema; empty if it is readable."""
    try:
        require_readable(schema)
    except InvalidRequest as error:
        return str(error) if error.code in ("schema", "field_id_twice") else error.code
    return ""


@pytest.mark.parametrize(
    "logical_type",
    [
        "null", "bool", "uint8", "int64", "halffloat", "float", "double", "string", "large_string", "binary", "blob",
        "json", "date32:day", "date64:ms", "time32:s", "time64:ns", "duration:us", "timestamp:us:-",
        "timestamp:ns:UTC", "decimal:128:38:-3", "decimal:256:76:100", "fixed_size_binary:0", "fixed_size_list:float:2",
        "fixed_size_list:fixed_size_list:int32:2:3", "fixed_size_list:lance.bfloat16:4",
        "fixed_size_list:decimal:128:5:2:4", "dict:string:int32:false", "struct",
        "timestamp:us:+08:00", "timestamp:ns:-05:30", "timestamp:ms:+0800", "fixed_size_list:timestamp:us:+08:00:4",
    ],
)  # fmt: skip
def test_a_type_of_lance_is_readable(logical_type: str) -> None:
    assert refusal(field(0, logical_type)) == ""


@pytest.mark.parametrize(
    "logical_type",
    [
        "", "text", "int128", "lance.bfloat16", "decimal:128:39:1", "decimal:128:0:1", "decimal:64:5:1",
        "decimal:128:5:128", "decimal:128:5:-129", "decimal:256:77:1", "fixed_size_binary:-1",
        "fixed_size_binary:2147483648", "fixed_size_binary:99999999999", "fixed_size_list:int32:0",
        "fixed_size_list:int32:-1", "fixed_size_list:int32:2147483648", "fixed_size_list:list:3",
        "fixed_size_list:fixed_size_list:struct:2:3", "fixed_size_list:struct:2147483648", "fixed_size_list:int32",
        "dict:struct:int32:false", "dict:string:float:false", "dict:date32:day:int8:false", "timestamp:us",
        "timestamp:us:a:b", "timestamp:us:+08:00:00", "timestamp:us:" + "x" * 250,
        "fixed_size_list:" * 5000 + "int32" + ":2" * 5000,
    ],
)  # fmt: skip
def test_another_type_is_refused(logical_type: str) -> None:
    assert "is not a type of Lance" in refusal(field(0, logical_type))


def test_nesting_has_a_bound() -> None:
    assert refusal(*nested(NESTING_MAX)) == ""
    assert "nested more than 60 levels deep" in refusal(*nested(NESTING_MAX + 1))
    assert "nested more than 60 levels deep" in refusal(*nested(20_000 // 4))
    assert refusal(*nested(NESTING_MAX - 2, "fixed_size_list:fixed_size_list:int32:2:3")) == ""
    assert "nested more than" in refusal(*nested(NESTING_MAX - 1, "fixed_size_list:fixed_size_list:int32:2:3"))


def test_the_number_of_fields_has_a_bound() -> None:
    most = [field(number) for number in range(FIELDS_MAX)]
    assert refusal(*most) == ""
    assert f"has {FIELDS_MAX + 1} fields" in refusal(*most, field(FIELDS_MAX))


def test_an_id_is_there_once_and_below_a_field_before_it() -> None:
    assert "its id is negative" in refusal(field(-1))
    assert "another field has its id" in refusal(field(0), field(0, name="other"))
    assert "does not come before it" in refusal(field(0, parent=1), field(1, "struct"))


def test_a_name_can_be_looked_up() -> None:
    assert refusal(field(0, name="x" * NAME_BYTES_MAX)) == ""
    assert refusal(field(0, "struct"), field(1, parent=0, name="c0"), field(2, parent=0, name="a.b")) == ""
    assert "zero byte" in refusal(field(0, name="a\0"))
    assert "more than 1024 bytes" in refusal(field(0, name="ä" * NAME_BYTES_MAX))
    assert "another field beside it" in refusal(field(0, name="a"), field(1, name="a"))
    assert "has a dot" in refusal(field(0, name="a.b"))
    assert "which scans add" in refusal(field(0, name="_rowid"))
    assert refusal(field(0, "struct"), field(1, parent=0, name="_rowid")) == ""
    empty = field(0)
    empty.name = ""
    assert "is empty" in refusal(empty)


@pytest.mark.parametrize(
    "logical_type", ["list", "large_list", "list.struct", "large_list.struct", "fixed_size_list:struct:3"]
)
def test_a_list_says_of_what(logical_type: str) -> None:
    item = field(1, parent=0)
    assert refusal(field(0, logical_type), item) == ""
    assert "this one has 0" in refusal(field(0, logical_type))
    assert "this one has 2" in refusal(field(0, logical_type), item, field(2, parent=0))


def test_a_map_has_entries_with_a_key() -> None:
    made = [field(0, "map"), field(1, "struct", parent=0), field(2, parent=1, nullable=False), field(3, parent=1)]
    assert refusal(*made) == ""
    assert "has one child" in refusal(made[0])
    assert "struct of two fields" in refusal(*made[:3])
    assert "struct of two fields" in refusal(made[0], field(1, parent=0))
    made[2].nullable = True
    assert "key of a map can't be null" in refusal(*made)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ([0], {0}),
        ([1], {1, 2, 3, 4}),
        ([2], {1, 2, 3}),
        ([3], {1, 2, 3}),
        ([4], {1, 4}),
        ([0, 3, 77], {0, 1, 2, 3, 77}),
        ([], set()),
    ],
)
def test_the_fields_that_change_with_others(fields: list[int], found: set[int]) -> None:
    """Field 1 holds 2, which holds 3, and 4."""
    schema = [field(0), field(1), field(2, parent=1), field(3, parent=2), field(4, parent=1)]
    assert with_relatives(fields, schema) == found
