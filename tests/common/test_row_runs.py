"""Arithmetic on row ids, compared with a row-by-row computation."""

from __future__ import annotations

import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from committerd_common import row_runs
from committerd_common.row_ids import (
    RowIds,
    VersionRun,
    decode_versions,
    encode_joined,
    encode_versions,
    numbers_in,
    versions_in,
)
from committerd_common.row_runs import (
    Known,
    Search,
    Segment,
    Versions,
    bitmap_of,
    bits_set,
    counts_below,
    decoded_runs,
    encoded_runs,
    found_in,
    ids_at,
    joined,
    mask_of,
    runs_of,
    runs_of_all,
    versions_of,
    with_changed,
)

UNHURRIED = settings(deadline=None)
"""No deadline, because the machine may be busy."""

FORMS: tuple[Callable[[list[int]], Segment], ...] = (
    lambda ids: array("Q", ids),
    BitMap64,
    lambda ids: range(min(ids, default=0), min(ids, default=0) + len(ids)),
)
few_ids = st.lists(st.integers(0, 60) | st.integers(2**64 - 9, 2**64 - 2), unique=True, max_size=20)
segments = st.builds(lambda form, ids: form(ids), st.sampled_from(FORMS), few_ids).filter(
    lambda one: not isinstance(one, range) or one.stop < 2**64
)
runs_of_versions = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=8)


def versions(runs: Iterable[tuple[int, int]]) -> Versions:
    each = list(runs)
    return Versions(np.array([n for n, _ in each], np.uint64), np.array([v for _, v in each], np.uint64))


def row_by_row(runs: Versions) -> list[int]:
    return [int(version) for rows, version in zip(*runs, strict=True) for _ in range(int(rows))]


def listed(segment: Segment) -> list[int]:
    return [int(one) for one in numbers_in(segment)]


@UNHURRIED
@given(segments)
@example(array("Q"))
@example(array("Q", [3, 2, 1]))
def test_runs_are_the_values_in_their_order(segment: Segment) -> None:
    firsts, stops = runs_of(segment)
    assert [one for first, stop in zip(firsts, stops, strict=True) for one in range(int(first), int(stop))] == listed(
        segment
    )


@UNHURRIED
@given(st.lists(segments, max_size=4))
def test_runs_of_several_are_joined(several: list[Segment]) -> None:
    firsts, stops = runs_of_all(tuple(several))
    spelt = [one for first, stop in zip(firsts, stops, strict=True) for one in range(int(first), int(stop))]
    assert spelt == [one for segment in several for one in listed(segment)]
    assert not (firsts[1:] == stops[:-1]).any()


@UNHURRIED
@given(st.binary(max_size=40), st.sampled_from([0, 7, 2**40, 2**63, 2**64 - 2**10]))
@example(b"\x01" + b"\0" * 9_000 + b"\x80", 3)
def test_a_mask_is_the_values_whose_bits_are_set(mask: bytes, start: int) -> None:
    set_here = [start + 8 * place + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
    values = bits_set(mask, start)
    assert list(values) == set_here
    if values:
        assert bits_set(mask_of(values), values.min()) == values


def test_a_long_mask_is_taken_as_it_is() -> None:
    assert bits_set(b"\xff" * 20_000, 2**63 + 5) == BitMap64(range(2**63 + 5, 2**63 + 5 + 160_000))


@pytest.mark.parametrize("mask", [b"", bytes(20_000)])
def test_a_mask_without_a_bit_has_no_values(mask: bytes) -> None:
    assert bits_set(mask, 5) == BitMap64()


class Existing:
    """Fragments of a table: row ids, and the versions that created the rows."""

    def __init__(self, sequences: list[tuple[list[Segment], list[tuple[int, int]]]]) -> None:
        self.sequences = sequences

    def created(self) -> dict[int, int]:
        """Row by row, the first fragment that has the id counts."""
        found: dict[int, int] = {}
        for several, runs in self.sequences:
            each = row_by_row(versions(runs))
            here: dict[int, int] = {}
            for offset, one in enumerate(one for segment in several for one in listed(segment)):
                here.setdefault(one, each[offset] if offset < len(each) else 9)
            found = here | found
        return found

    def known(self, wanted: BitMap64) -> Known:
        search = Search(wanted)
        for several, runs in self.sequences:
            if search.may_find(several):
                search.look_into(several, versions(runs), 9)
        return search.known(7)


@UNHURRIED
@given(
    st.lists(st.tuples(st.lists(segments, max_size=3), runs_of_versions), max_size=4), st.lists(segments, max_size=3)
)
def test_moved_rows_keep_the_version_that_created_them(
    sequences: list[tuple[list[Segment], list[tuple[int, int]]]], moved: list[Segment]
) -> None:
    table = Existing(sequences)
    wanted = BitMap64()
    for segment in moved:
        wanted |= bitmap_of(segment)
    created, known = table.created(), table.known(wanted)
    found = versions_of(runs_of_all(tuple(moved)), known)
    assert row_by_row(found) == [created.get(one, 7) for segment in moved for one in listed(segment)]
    assert not (found.versions[1:] == found.versions[:-1]).any()


def test_an_id_between_those_of_a_list_is_looked_for_further() -> None:
    table = Existing([([array("Q", [1, 9])], [(2, 3)]), ([range(5, 6)], [(1, 4)])])
    assert row_by_row(versions_of(runs_of_all((range(5, 6),)), table.known(BitMap64([5])))) == [4]


def test_ids_of_other_fragments_between_those_of_a_bitmap_keep_their_versions() -> None:
    table = Existing([([BitMap64([1, 9])], [(1, 2), (1, 3)]), ([range(5, 6)], [(1, 4)])])
    asked = array("Q", [1, 5, 9])
    assert row_by_row(versions_of(runs_of_all((asked,)), table.known(bitmap_of(asked)))) == [2, 4, 3]


@UNHURRIED
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=8), st.data())
def test_rows_that_changed_have_the_new_version(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    before = row_by_row(versions(runs))
    changed = data.draw(st.sets(st.integers(0, len(before) - 1)))
    after = with_changed(versions(runs), BitMap(changed), 8)
    assert row_by_row(after) == [8 if row in changed else version for row, version in enumerate(before)]


@UNHURRIED
@given(st.lists(st.tuples(st.integers(0, 2**40), st.sampled_from([0, 1, 127, 128, 2**40, 2**64 - 1])), max_size=9))
def test_many_runs_have_the_bytes_of_protobuf(runs: list[tuple[int, int]]) -> None:
    one_version = joined(versions(runs))
    expected = encode_versions(VersionRun(rows, version) for rows, version in runs)
    assert encoded_runs(one_version) == expected
    again = decoded_runs(encoded_runs(one_version), rows_max=2**64 - 1)
    if len(one_version.rows) and one_version.versions.all():
        assert again is not None
        assert all((one == other).all() for one, other in zip(again, one_version, strict=True))


@UNHURRIED
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=2, max_size=9), st.data())
def test_bytes_that_were_changed_are_read_as_protobuf_reads_them(
    runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    body = bytearray(encoded_runs(joined(versions(runs))))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    found = decoded_runs(bytes(body), rows_max=2**32)
    if found is not None:
        expected = decode_versions(bytes(body), fragment=0, staged=True)
        assert [(int(rows), int(version)) for rows, version in zip(*found, strict=True)] == expected


@pytest.mark.parametrize(
    "body", [b"", b"\x80", b"\x80" * 11 + b"\0", b"\x0a\x02\x10\x05", b"\x0a\x05\x0a\x00\x10\x05", b"\1" * 12]
)
def test_other_bytes_are_left_to_protobuf(body: bytes) -> None:
    assert decoded_runs(body, rows_max=2**32) is None


def test_a_million_versions_are_decoded_at_once() -> None:
    many = Versions(np.full(MILLION // 2, 2, np.uint64), np.arange(MILLION // 2, dtype=np.uint64) % 7 + 1)
    body = encoded_runs(many)
    started = time.process_time()
    again = versions_in(body, fragment=0, staged=True)
    assert time.process_time() - started < 2  # 0.1 s on a quiet machine
    assert all((one == other).all() for one, other in zip(again, many, strict=True))
    assert encode_joined(many) == body
    otherwise = body + encode_versions([VersionRun(5, 3)])
    assert versions_in(otherwise, fragment=0, staged=True).rows[-1] == 5


MILLION = 2**20


def scattered() -> RowIds:
    """Every third of three million ids, in no order."""
    ids = np.arange(0, 3 * MILLION, 3, dtype=np.uint64)
    np.random.default_rng(0).shuffle(ids)
    return RowIds((array("Q", ids.tobytes()),))


@pytest.mark.parametrize(
    "moved", [RowIds((range(5, 5 + MILLION),)), RowIds((BitMap64(range(0, 3 * MILLION, 3)),)), scattered()]
)
def test_a_million_moved_rows_take_little_time_and_memory(moved: RowIds) -> None:
    sequences = [
        ([range(start, start + MILLION // 8)], [(MILLION // 16, 1), (MILLION // 16, 2)])
        for start in range(0, 3 * MILLION, MILLION // 8)
    ]
    wanted = BitMap64()
    for segment in moved.segments:
        wanted |= bitmap_of(segment)
    started = time.process_time()
    found = versions_of(moved.runs(), Existing(sequences).known(wanted))  # type: ignore[arg-type]  # ranges
    assert time.process_time() - started < 1.5  # 0.1 s on a quiet machine
    assert int(found.rows.sum()) == MILLION
    assert set(found.versions.tolist()) <= {1, 2, 7}
    tracemalloc.start()
    versions_of(moved.runs(), Existing(sequences).known(wanted))  # type: ignore[arg-type]  # ranges
    assert tracemalloc.get_traced_memory()[1] < 200 * MILLION
    tracemalloc.stop()


def test_a_range_of_four_billion_is_one_run() -> None:
    known = Existing([([range(2**32)], [(2**32, 4)])]).known(BitMap64(range(2**32 + 5)))
    found = versions_of(RowIds((range(2**32), range(2**32, 2**32 + 5))).runs(), known)
    assert [(int(rows), int(version)) for rows, version in zip(*found, strict=True)] == [(2**32, 4), (5, 7)]


@pytest.fixture(params=[1, 3, 2**18])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many ids and runs are compared at a time."""
    monkeypatch.setattr(row_runs, "_AT_ONCE", request.param)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(segments, max_size=5), st.sets(st.integers(0, 70) | st.integers(2**64 - 9, 2**64 - 2)))
@pytest.mark.usefixtures("at_once")
def test_ids_are_found_where_they_are_listed(several: list[Segment], asked: set[int]) -> None:
    rows = [id for segment in several for id in listed(segment)]
    wanted = sorted(asked)
    found = [
        (wanted[at], offset)
        for places, offsets in found_in(several, np.array(wanted, np.uint64))
        for at, offset in zip(places.tolist(), offsets.tolist(), strict=True)
    ]
    assert all(rows[offset] == id for id, offset in found)
    if len(set(rows)) == len(rows):
        assert sorted(found) == sorted((id, at) for at, id in enumerate(rows) if id in asked)
    elif asked & set(rows):
        assert found
        assert len(found) <= 2 * len(wanted) * max(1, len(several))


@UNHURRIED
@given(st.lists(segments, max_size=5), st.data())
def test_ids_at_offsets_are_those_of_a_list(several: list[Segment], data: st.DataObject) -> None:
    rows = [id for segment in several for id in listed(segment)]
    some = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1)) if rows else st.just(set[int]())))
    assert ids_at(several, np.array(some, np.uint64)).tolist() == [rows[at] for at in some]


def test_a_fragment_that_repeats_ids_costs_no_more_than_the_ids() -> None:
    times = [at for places, _ in found_in([range(1000)] * 1000, np.arange(1000, dtype=np.uint64)) for at in places]
    assert 1000 < len(times) <= 2000


@UNHURRIED
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 200_000)), max_size=4), st.data())
@example([(2**32 - 70_000, 70_000)], None)
def test_counts_below_are_ranks(runs: list[tuple[int, int]], data: st.DataObject | None) -> None:
    values = BitMap()
    for start, size in runs:
        values.add_range(start, min(start + size, 2**32))
    near = [start + by for start, size in runs for by in (-1, 0, 1, size - 1, size, size + 70_000)]
    asked = {one for one in near if 0 <= one < 2**32} | {0, 2**32 - 1}
    if data is not None:
        asked |= data.draw(st.sets(st.integers(0, 2**32 - 1)))
    numbers = np.array(sorted(asked), np.uint32)
    assert counts_below(values, numbers).tolist() == [values.rank(one) - (one in values) for one in sorted(asked)]
    assert not len(counts_below(values, numbers[:0]))


def test_counting_lists_only_values_near_the_numbers() -> None:
    values = BitMap()
    values.add_range(0, 3_000_000_000)
    tracemalloc.start()
    try:
        assert counts_below(values, np.array([5, 3_000_000_001], np.uint32)).tolist() == [5, 3_000_000_000]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
