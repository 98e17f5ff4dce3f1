"""What checks find out about a schema is kept for the next file."""

from __future__ import annotations

import pytest

from committerd.lance.format.table_schema import TableSchema
from committerd_common.messages import Field

SCHEMA = [
    Field(id=1, name="id", parent_id=-1, nullable=False),
    Field(id=2, name="struct", parent_id=-1, nullable=False),
    Field(id=5, name="child", parent_id=2, nullable=False),
    Field(id=3, name="may be null", parent_id=-1, nullable=True),
]


class Finder:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, schema: TableSchema, of: tuple[int, ...]) -> int:
        self.calls += 1
        if not of:
            raise ValueError("nothing to look for")
        return len(schema.ids.intersection(of))


def test_the_facts_of_a_schema() -> None:
    schema = TableSchema(SCHEMA)
    assert [schema.by_id[number].name for number in sorted(schema.ids)] == ["id", "struct", "may be null", "child"]
    assert schema.highest_id == 5
    assert schema.parents == {-1, 2}
    assert schema.required == {1: "id"}
    empty = TableSchema()
    assert empty.highest_id == -1
    assert not any((empty.ids, empty.parents, empty.required))


def test_a_finding_is_computed_once_for_the_same_arguments() -> None:
    schema, find, other = TableSchema(SCHEMA), Finder(), Finder()
    assert [schema.once(find, (1, 9)) for _ in range(3)] == [1, 1, 1]
    assert schema.once(find, (1, 2)) == 2
    assert schema.once(other, (1, 9)) == 1
    assert (find.calls, other.calls) == (2, 1)
    assert TableSchema().once(find, (1, 9)) == 0


def test_an_exception_is_not_kept() -> None:
    schema, find = TableSchema(SCHEMA), Finder()
    for calls in (1, 2):
        with pytest.raises(ValueError, match="nothing"):
            schema.once(find, ())
        assert find.calls == calls


def test_few_findings_are_kept_and_none_of_long_lists() -> None:
    schema, find = TableSchema(SCHEMA), Finder()
    for number in range(1000):
        schema.once(find, (number,))
    assert len(schema._findings) <= 16
    kept = len(schema._findings)
    assert schema.once(find, tuple(range(100_001))) == 4
    assert len(schema._findings) == kept
