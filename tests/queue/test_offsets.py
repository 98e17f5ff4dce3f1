"""Sets of offsets as ranges do what sets of numbers do, and come back from their encoding."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.queue.offsets import Offsets, decode, encode, encoded_size

_SETS = st.sets(st.integers(0, 30))
_ANY = st.integers(-1, 32)


@given(_SETS, _SETS, _ANY, _ANY)
def test_it_is_a_set_of_numbers(one: set[int], other: set[int], start: int, end: int) -> None:
    a, b = Offsets.of(one), Offsets.of(other)
    assert (list(a), len(a), bool(a)) == (sorted(one), len(one), bool(one))
    assert [offset for offset in range(-2, 34) if offset in a] == sorted(one)
    assert list(a.union(b)) == sorted(one | other)
    assert list(a.within(start, end)) == sorted(offset for offset in one if start <= offset < end)
    assert list(a.from_(start)) == sorted(offset for offset in one if offset >= start)
    assert a.first_outside(start) == next(offset for offset in range(start, 34) if offset not in one)
    assert a.first_missing(b) == min(other - one, default=None)
    for made in (a, a.union(b), a.within(start, end), a.from_(start)):
        assert list(made.bounds) == sorted(set(made.bounds)), "no range is empty, and no two touch"
        assert made.range_count == sum(offset - 1 not in made for offset in made)


def test_nothing_else_is_in_it() -> None:
    assert "1" not in Offsets.of([1])
    assert list(Offsets.joined([(5, 9), (1, 3), (2, 4), (6, 7)]).ranges()) == [(1, 4), (5, 9)]


@given(
    st.integers(0, 1 << 62),
    st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(1, 1 << 40)), max_size=20),
    st.booleans(),
)
def test_it_comes_back_from_its_encoding(above: int, gaps: list[tuple[int, int]], touches: bool) -> None:
    ranges, last = list[tuple[int, int]](), above - touches
    for gap, length in gaps:
        ranges.append((last + gap, last + gap + length))
        last += gap + length
    some = Offsets.joined(ranges)
    text = encode(some, above=above)
    assert decode(text, above=above) == some
    assert encoded_size(some, above=above) <= 3 * len(text) // 4


@given(st.binary(max_size=40))
def test_whatever_comes_is_a_set_or_an_error(data: bytes) -> None:
    try:
        some = decode(b64encode(data).decode(), above=7)
    except ValueError:
        return
    assert list(some.bounds) == sorted(set(some.bounds))
    assert all(7 <= bound <= 1 << 63 for bound in some.bounds)


def test_thousands_of_offsets_among_a_million_fit() -> None:
    among = Offsets.of(range(1_000, 1_000_000, 244))
    assert among.range_count == 4095
    assert encoded_size(among, above=0) < 12 * 1024
    assert len(encode(Offsets((100, 1_000_100)), above=0)) == 8


@pytest.mark.parametrize("text", ["?", "gA==", "AgA=", "////////////////////"])
def test_what_no_committer_writes_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(text, above=0)
