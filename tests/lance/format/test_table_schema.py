"""What checks find out about a schema is kept for the next file."""

from __future__ import annotations

import tracemalloc

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


def test_findings_take_little_memory_and_the_oldest_are_dropped() -> None:
    schema, find = TableSchema(SCHEMA), Finder()
    tracemalloc.start()
    try:
        for number in range(60):
            assert schema.once(find, tuple(range(1_000_000 * number, 1_000_000 * number + 20_000))) <= 4
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * 1024 * 1024
    assert 1 < len(schema._findings) <= 10
    newest = tuple(range(59_000_000, 59_020_000))
    schema.once(find, newest)
    schema.once(find, tuple(range(20_000)))
    assert find.calls == 61


def test_a_finding_of_a_very_long_list_is_not_kept_and_drops_no_other() -> None:
    schema, find = TableSchema(SCHEMA), Finder()
    schema.once(find, (1,))
    assert schema.once(find, tuple(range(300_000))) == 4
    assert schema.once(find, (1,)) == 1
    assert find.calls == 2


def test_bytes_and_numbers_count_as_memory_too() -> None:
    schema, calls = TableSchema(SCHEMA), list[int]()

    def find(schema: TableSchema, body: bytes, number: int) -> int:
        calls.append(number)
        return number

    for number in (1, 2, 1):
        schema.once(find, bytes(5 * 1024 * 1024), number)
    assert calls == [1, 2, 1]
