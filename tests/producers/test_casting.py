"""What is cast to the types of a table arrives unchanged, or is an error that names the place of the value."""

from __future__ import annotations

import math
from typing import Any

import lance.arrow
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from committerd_client import StagingError, values
from committerd_client.casting import cast, narrowed, nulls, require_not_null
from committerd_client.values import array
from tests.producers.value_cases import BFLOAT16, CASES, F16, F32, F64, I8, I64, TENSOR, TEXT, Case, struct

pytestmark = pytest.mark.pylance


def plain(made: pa.Array) -> list[Any]:
    """The values of an array; those that an extension type stores."""
    made.validate(full=True)
    read: list[Any] = (made.storage if isinstance(made, pa.ExtensionArray) else made).to_pylist()
    return read


FORMS = ("Arrow", "Python")
TAKEN = [(case, form) for case in CASES for form in FORMS if form == "Python" or case.source is not None]


@pytest.mark.parametrize(("case", "form"), [one for one in TAKEN if not one[0].refused], ids=str)
def test_what_fits_arrives_unchanged(case: Case, form: str) -> None:
    wanted = pa.field("c", case.target)
    if form == "Python":
        made = array([case.value, None], wanted)
        assert made.type == case.target
        assert plain(made) == [case.stored, None]
        return
    given = case.given()
    for part in (given, given.slice(0, 1), given.slice(1), given.slice(0, 0)):
        made = cast(part, wanted)
        assert made.type == case.target
        assert plain(made) == [case.stored, None][part.offset : part.offset + len(part)]


@pytest.mark.parametrize(("case", "form"), [one for one in TAKEN if one[0].refused], ids=str)
def test_what_does_not_fit_is_refused_by_name(case: Case, form: str) -> None:
    wanted = pa.field("c", case.target)
    with pytest.raises(StagingError) as refused:
        cast(case.given(), wanted) if form == "Arrow" else array([case.value, None], wanted)
    assert str(refused.value).startswith(f"column 'c{case.at}' is ")
    assert refused.value.code == "schema_differs"


def test_lists_without_values_are_cast_too() -> None:
    inner = struct(a=BFLOAT16, n=I64)
    given = pa.concat_arrays([array([[{"a": 1}], None, []], pa.field("c", pa.large_list(inner)))])
    wanted = pa.field("c", pa.list_(struct(n=I8, a=BFLOAT16)))
    assert cast(given.slice(1), wanted).to_pylist() == [None, []]


def test_the_sign_of_zero_is_kept() -> None:
    for kind in (F16, F32, F64):
        for made in (cast(pa.array([-0.0]), pa.field("c", kind)), array([-0.0], pa.field("c", kind))):
            assert math.copysign(1, made[0].as_py()) == -1


@pytest.mark.parametrize("kind", {str(case.target): case.target for case in CASES}.values(), ids=str)
def test_a_column_of_nulls_has_any_type(kind: pa.DataType) -> None:
    for made in (nulls(2, kind), cast(pa.nulls(2), pa.field("c", kind)), array([None, None], pa.field("c", kind))):
        assert made.type == kind
        assert plain(made) == [None, None]


def test_a_null_where_none_is_allowed_is_named() -> None:
    def field(kind: pa.DataType) -> pa.Field:
        return pa.field("c", kind, nullable=False)

    id_field = pa.field("id", I8, nullable=False)
    inner = pa.struct([id_field])
    for given, wanted, path in (
        ([None], field(I8), "c"),
        ([{"id": None}], pa.field("c", inner), "c.id"),
        ([[{"id": 1}, {"id": None}]], pa.field("c", pa.list_(inner)), "c[].id"),
        ([[("a", {"id": None})]], pa.field("c", pa.map_(TEXT, inner)), "c.value.id"),
        ([[1, None]], pa.field("c", pa.list_(pa.field("item", I8, nullable=False), 2)), "c[]"),
    ):
        with pytest.raises(StagingError, match="may not be null in the table") as refused:
            require_not_null(array(given, wanted), wanted)
        assert repr(path) in str(refused.value)
    for kind in (inner, pa.list_(inner, 1), pa.map_(TEXT, inner)):
        require_not_null(array([None], pa.field("c", kind)), pa.field("c", kind))  # nothing is inside a null


def test_fields_of_structs_that_the_rows_lack_may_be_left_out() -> None:
    whole = struct(a=I8, b=I8, s=struct(x=I8, y=I8))
    for kind, wrapped, given in (
        (whole, lambda part: part, {"b": 1, "s": {"x": 1}}),
        (pa.list_(whole), pa.list_, [{"b": 1, "s": {"x": 1}}]),
        (pa.large_list(whole), pa.large_list, [{"b": 1, "s": {"x": 1}}]),
        (pa.list_(whole, 1), lambda part: pa.list_(part, 1), [{"b": 1, "s": {"x": 1}}]),
        (pa.map_(TEXT, whole), lambda part: pa.map_(TEXT, part), {"k": {"b": 1, "s": {"x": 1}}}),
    ):
        wanted, kept = pa.field("c", kind), wrapped(struct(b=I8, s=struct(x=I8)))
        source = wrapped(struct(b=I64, s=struct(x=F64)))
        assert array([given, None], wanted, fill=False).type == kept
        assert narrowed(source, wanted).type == kept
        assert cast(array([given], pa.field("c", source)), narrowed(source, wanted)).type == kept


def test_a_list_is_converted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_VALUES_MAX", 3)
    given = [[1, 2], None, [], [3, 4, 5], [6], [7]]
    assert array(given, pa.field("c", pa.large_list(I8))).to_pylist() == given
    assert array([[1, 2]] * 3, pa.field("c", pa.list_(F32, 2))).to_pylist() == [[1, 2]] * 3


OTHER_FORMS: list[tuple[Any, pa.DataType, Any]] = [
    (np.int16(5), pa.decimal128(5, 2), 5),
    (np.int64(5), I8, 5),
    (np.float32(1.5), pa.decimal128(5, 2), 1.5),
    (np.float32(2), I8, 2),
    (np.bool_(True), pa.bool_(), True),
    (np.str_("a"), TEXT, "a"),
    (bytearray(b"a"), pa.binary(), b"a"),
    (pa.scalar(5), I8, 5),
    (pd.NA, I8, None),
    (pd.NaT, pa.timestamp("us"), None),
    (pd.Timestamp("2026-01-01"), pa.date32(), pd.Timestamp("2026-01-01").date()),
    (np.datetime64("2026-01-01", "D"), pa.date32(), pd.Timestamp("2026-01-01").date()),
    (np.datetime64("2026-01-01T05", "h"), pa.timestamp("s"), pd.Timestamp("2026-01-01T05")),
    (np.timedelta64(2, "D"), pa.duration("s"), pd.Timedelta(days=2)),
    (np.array([2], "m8[25s]")[0], pa.duration("s"), pd.Timedelta(seconds=50)),
    (np.array([1.0, 2.0]), pa.list_(F32, 2), [1.0, 2.0]),
    (np.array([[1.0], [2.0]]), pa.list_(pa.list_(F32)), [[1.0], [2.0]]),
    (np.array(["a", None], dtype=object), pa.list_(TEXT), ["a", None]),
    (np.ma.array([1, 2], mask=[False, True]), pa.list_(I8), [1, None]),
    (pa.array([1, None]), pa.list_(I8), [1, None]),
    ({1}, pa.list_(I8), [1]),
    ((1, 2), pa.list_(I8), [1, 2]),
    ((1, "x"), struct(a=I8, b=TEXT), {"a": 1, "b": "x"}),
    ([("b", "x")], struct(a=I8, b=TEXT), {"a": None, "b": "x"}),
    (np.array([(1, "x")], dtype=[("a", "i4"), ("b", "U1")])[0], struct(a=I8, b=TEXT), {"a": 1, "b": "x"}),
    ({"k": 1}, pa.map_(TEXT, I8), [("k", 1)]),
    ([{"key": "k", "value": 1}], pa.map_(TEXT, I8), [("k", 1)]),
    ({"a": [1, None]}, pa.json_(), '{"a": [1, null]}'),
    ([True, 2.5], pa.json_(), "[true, 2.5]"),
    (b'"a"', pa.json_(), '"a"'),
    (np.array([[1, 2], [3, 4]]), TENSOR, [1, 2, 3, 4]),
    (lance.arrow.BFloat16(1.1), BFLOAT16, b"\x8d\x3f"),
    ([1.1, 256], pa.list_(BFLOAT16, 2), None),
    ({"a": 1.1}, struct(a=BFLOAT16), None),
]


@pytest.mark.parametrize(("value", "kind", "stored"), OTHER_FORMS, ids=str)
def test_what_users_have_at_hand_is_taken(value: Any, kind: pa.DataType, stored: Any) -> None:
    made = array([value], pa.field("c", kind))
    assert made.type == kind
    if stored is not None or value is pd.NA or value is pd.NaT:
        assert plain(made) == [stored]


ONE = pa.fixed_shape_tensor(I64, (1,))
TIMES, TEXTS = pa.list_(pa.timestamp("ns")), pa.list_(TEXT)
TOGETHER: list[tuple[list[Any], pa.DataType, list[Any] | None]] = [
    ([np.array([2**53 + 1]), np.array([1.0])], pa.list_(I64), [[2**53 + 1], [1]]),
    ([np.array([2**63 + 1], np.uint64), np.array([1])], pa.list_(pa.uint64()), [[2**63 + 1], [1]]),
    ([np.array([True]), np.array([1])], pa.list_(I64), None),
    ([np.array([2**53 + 1]), np.array([1.0])], ONE, [[2**53 + 1], [1]]),
    ([[2**53 + 1], [0.5]], ONE, None),
    ([[True], [1]], ONE, None),
    ([np.ma.array([1], mask=[True])], ONE, None),
    ([np.array(["a"]), np.array([1])], TEXTS, None),
    ([np.array(["a"]), np.array(["long"])], TEXTS, [["a"], ["long"]]),
    ([np.array(["3000-01-01"], "M8[s]"), np.array(["2000-01-01"], "M8[ns]")], TIMES, None),
    ([np.datetime64("3000-01-01", "D"), None, np.datetime64(1, "ns")], pa.timestamp("ns"), None),
    ([np.datetime64("2000-01-01", "D"), np.datetime64("NaT"), np.datetime64(1, "ns")], pa.timestamp("ns"), []),
]
"""Values of one column, each of which fits or not by itself. numpy makes one type of theirs, and changes them."""


@pytest.mark.parametrize(("given", "kind", "stored"), TOGETHER, ids=str)
def test_arrays_of_numpy_do_not_change_each_other(
    given: list[Any], kind: pa.DataType, stored: list[Any] | None
) -> None:
    if stored is None:
        with pytest.raises(StagingError, match=r"column 'c"):
            array(given, pa.field("c", kind))
        return
    assert plain(array(given, pa.field("c", kind))) == (stored or [pd.Timestamp("2000-01-01"), None, pd.Timestamp(1)])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({1: 5}, struct(**{"1": I8})),
        ([("a", 1), ("a", 2)], struct(a=I8)),
        ([{"key": "k", "value": 1, "more": 2}], pa.map_(TEXT, I8)),
        (np.timedelta64(1_500, "ps"), pa.duration("ns")),
        (np.datetime64(10**15, "Y"), pa.timestamp("s")),
    ],
    ids=str,
)
def test_a_value_of_which_a_part_would_be_lost_is_refused(value: Any, kind: pa.DataType) -> None:
    with pytest.raises(StagingError, match=r"column 'c"):
        array([value], pa.field("c", kind))


def test_a_pyarrow_without_a_type_has_its_name_in_the_metadata() -> None:
    def field(kind: pa.DataType, name: str) -> pa.Field:
        return pa.field("c", kind, metadata={"ARROW:extension:name": name})

    made = array([{"a": 1}, None], field(TEXT, "arrow.json"))
    assert made.to_pylist() == ['{"a": 1}', None]
    made = cast(pa.array(["8e793cab-cc2f-42c5-a083-85b7c30eb5e1"]), field(pa.binary(16), "arrow.uuid"))
    assert made.to_pylist() == [bytes.fromhex("8e793cabcc2f42c5a08385b7c30eb5e1")]
