"""The schemas that a Merge may bring: every field keeps its id, its place, and what its data was written for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from committerd.errors import InvalidRequest
from committerd.lance.versions.merged_schema import require_merged_schema
from committerd_common.messages import DataFragment, Field, Manifest
from tests.lance import samples
from tests.lance.samples import column, data_file, fragment

A, B, STRUCT, X, NEW = column(0), column(1), column(2), column(3, parent=2), column(4)
STRUCT.logical_type = "struct"


def refused(
    schema: Sequence[Field], fragments: Sequence[DataFragment] | None = None, latest: Manifest | None = None
) -> str:
    """The refusal, as "code: what is wrong"; empty if the schema may come with these fragments."""
    latest = table() if latest is None else latest
    made = list(latest.fragments) if fragments is None else fragments
    existing = {one.id: one for one in made if one.id < 2}
    try:
        require_merged_schema(schema, existing, made, latest)
    except InvalidRequest as error:
        return f"{error.code}: {error}"
    return ""


def with_files(number: int, *files: tuple[str, Sequence[int]]) -> DataFragment:
    made = fragment(number)
    del made.files[:]
    made.files.extend(data_file(name, fields) for name, fields in files)
    return made


def table() -> Manifest:
    made = samples.manifest(with_files(0, ("f0", [0, 1, 3])), with_files(1, ("f1", [0, 1, 3])))
    del made.fields[:]
    made.fields.extend([A, B, STRUCT, X])
    return made


def changed(field: Field, **values: object) -> Field:
    made = Field()
    made.CopyFrom(field)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_new_fields_are_added_and_others_are_renamed_or_left_out() -> None:
    assert refused([A, B, STRUCT, X, NEW]) == ""
    assert refused([A, changed(B, name="other"), STRUCT, X]) == ""
    assert refused([A, STRUCT, X]) == ""
    assert refused([A, B, STRUCT, X, NEW], [], Manifest()) == ""


def test_a_field_stays_where_it_is() -> None:
    assert "lies in field -1, and lay in field 2" in refused([A, B, STRUCT, changed(X, parent_id=-1)])
    assert "the column of that name has id 1" in refused([changed(A, name="c1"), changed(B, name="c0"), STRUCT, X])


@pytest.mark.parametrize("change", [{"nullable": False}, {"encoding": 3}])
def test_a_field_is_read_as_it_was_written(change: dict[str, object]) -> None:
    schema = [A, changed(B, **change), STRUCT, X]
    assert refused(schema).startswith("schema: ")
    apart = [with_files(number, (f"f{number}", [0, -2, 3]), (f"new{number}", [1])) for number in (0, 1)]
    assert refused(schema, apart) == ""
    assert refused(schema, [apart[0], table().fragments[1]]).startswith("schema: ")
    without = with_files(1, ("f1", [0, -2, 3]))
    assert refused(schema, [apart[0], without]).startswith("schema: ")


def test_a_type_changes_with_all_the_data_of_the_field() -> None:
    schema = [A, changed(B, logical_type="int32"), STRUCT, X]
    apart = [with_files(number, (f"f{number}", [0, -2, 3]), (f"new{number}", [1])) for number in (0, 1)]
    assert refused(schema, apart) == ""
    assert refused(schema, [apart[0], table().fragments[1]]).startswith("field_type: ")
    assert refused(schema, [apart[0], with_files(1, ("f1", [0, -2, 3]))]).startswith("field_type: ")


def test_a_new_field_has_an_id_that_no_field_had() -> None:
    latest = table()
    latest.fragments[1].files.add(path="old.lance", fields=[7])
    schema = [A, B, STRUCT, X, NEW]
    assert "a new field needs an id above 7" in refused(schema, latest=latest)
    assert refused([A, B, STRUCT, X, column(8)], latest=latest) == ""


def test_a_column_with_another_id_is_written_anew() -> None:
    again = changed(B, id=9)
    schema = [A, again, STRUCT, X]
    assert "fragment 0 has no data of this one" in refused(schema)
    files = [with_files(number, (f"f{number}", [0, 1, 3]), (f"new{number}", [9])) for number in (0, 1)]
    assert refused(schema, files) == ""
    assert "fragment 5 has no data of this one" in refused(schema, [*files, with_files(5, ("f5", [0, 1, 3]))])
    # A struct is written anew with any of its fields.
    nested = [A, B, changed(STRUCT, id=9), changed(X, id=10, parent_id=9)]
    assert "field 9" in refused(nested)
    inner = [with_files(number, (f"f{number}", [0, 1, 3]), (f"new{number}", [10])) for number in (0, 1)]
    assert refused(nested, inner) == ""
