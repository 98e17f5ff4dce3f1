"""Ids for rows that have none."""

from __future__ import annotations

import pytest

from committerd.errors import InvalidRequest
from committerd.format.row_ids import decode_row_ids
from committerd.rules.lineage import assign_row_ids
from tests.rules.samples import fragment, with_row_ids


def test_rows_without_ids_get_the_next() -> None:
    made = fragment(0, rows=100)
    assert assign_row_ids([made], 0) == 100
    assert list(decode_row_ids(made.inline_row_ids, fragment=0, staged=False)) == list(range(100))


def test_rows_with_ids_keep_them() -> None:
    made = with_row_ids(fragment(0, rows=50), [range(50)])
    before = made.inline_row_ids
    assert assign_row_ids([made], 100) == 100
    assert made.inline_row_ids == before


def test_the_last_rows_are_those_without() -> None:
    made = with_row_ids(fragment(0, rows=50), [range(30)])
    assert assign_row_ids([made], 100) == 120
    found = decode_row_ids(made.inline_row_ids, fragment=0, staged=False)
    assert list(found) == [*range(30), *range(100, 120)]
    assert len(found.segments) == 1


def test_there_can_not_be_more_ids_than_rows() -> None:
    with pytest.raises(InvalidRequest, match="60 row ids and 50 rows"):
        assign_row_ids([with_row_ids(fragment(3, rows=50), [range(60)])], 100)


def test_fragments_are_served_in_order() -> None:
    first, second = fragment(0, rows=30), with_row_ids(fragment(1, rows=25), [range(500, 520)])
    assert assign_row_ids([first, second], 1000) == 1035
    assert list(decode_row_ids(first.inline_row_ids, fragment=0, staged=False)) == list(range(1000, 1030))
    assert list(decode_row_ids(second.inline_row_ids, fragment=1, staged=False)) == [
        *range(500, 520),
        *range(1030, 1035),
    ]
