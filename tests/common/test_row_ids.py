from __future__ import annotations

import time
from array import array
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from committerd.errors import CorruptTable, InvalidRequest
from committerd_common.deletion_file import decode_deletions
from committerd_common.messages import (
    EncodedU64Array,
    RowDatasetVersionSequence,
    RowIdSequence,
    U64Segment,
)
from committerd_common.row_ids import (
    RowIds,
    VersionRun,
    count_row_ids,
    decode_row_ids,
    decode_versions,
    encode_row_ids,
    encode_versions,
)
from tests.lance.format.golden_tables import WRITERS, deletion_bytes, facts, manifest_file

# Written by pylance 4.0.0.
TEN_FROM_100 = bytes.fromhex("0a060a040864106e")
TEN_FROM_110 = bytes.fromhex("0a060a04086e1078")
TEN_ROWS_OF_VERSION_2 = bytes.fromhex("0a080a040a02100a1002")
TEN_ROWS_OF_VERSION_3 = bytes.fromhex("0a080a040a02100a1003")
COMPACTED = bytes.fromhex("0a0d1a0b10321a075707f0ffffff03")
LEFT_AFTER_COMPACTION = [row for row in range(50) if row not in {3, 5, 7, *range(11, 20)}]

LAST = 2**64 - 2
values = st.lists(st.integers(0, LAST), unique=True, max_size=40)
# Where ids lie close together, so that holes, bitmaps and arrays all get their turn.
near = st.builds(
    lambda start, offsets: [start + offset for offset in offsets],
    st.integers(0, 2**40),
    st.lists(st.integers(0, 300), unique=True, max_size=300),
)


def decoded(body: bytes) -> RowIds:
    found = decode_row_ids(body, fragment=4, staged=False)
    assert count_row_ids(body, fragment=4, staged=False) == len(found)
    return found


def sequence(*segments: U64Segment) -> bytes:
    return RowIdSequence(segments=segments).SerializeToString()


def in_order(row_ids: Iterable[int]) -> RowIds:
    return RowIds((array("Q", row_ids),))


def form(row_ids: RowIds) -> str | None:
    (segment,) = RowIdSequence.FromString(encode_row_ids(row_ids)).segments
    return segment.WhichOneof("segment")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (TEN_FROM_100, range(100, 110)),
        (TEN_FROM_110, range(110, 120)),
        (COMPACTED, LEFT_AFTER_COMPACTION),
    ],
)
def test_bytes_of_pylance_are_read_and_written_again(body: bytes, expected: list[int]) -> None:
    row_ids = decoded(body)
    assert list(row_ids) == list(expected)
    assert encode_row_ids(row_ids) == body


def test_versions_of_pylance_are_read_and_written_again() -> None:
    for body, version in ((TEN_ROWS_OF_VERSION_2, 2), (TEN_ROWS_OF_VERSION_3, 3)):
        assert decode_versions(body, fragment=0, staged=False) == [(10, version)]
        assert encode_versions([VersionRun(10, version)]) == body


@pytest.mark.parametrize("writer", WRITERS)
def test_golden_tables_have_the_row_ids_and_versions_that_pylance_reads(writer: str) -> None:
    for version, expected in facts(writer)["stable_row_ids"].items():
        for fragment in manifest_file(writer, "stable_row_ids", int(version)).manifest.fragments:
            read = expected["fragments"][str(fragment.id)]
            deleted = BitMap()
            if fragment.HasField("deletion_file"):
                body = deletion_bytes(writer, "stable_row_ids", fragment)
                deleted = decode_deletions(body, fragment, staged=False)
            row_ids = decoded(fragment.inline_row_ids)
            assert len(row_ids) == fragment.physical_rows
            left = [row for place, row in enumerate(row_ids) if place not in deleted]
            assert left == [row for start, end in read["row_ids"] for row in range(start, end)]
            assert encode_row_ids(row_ids) == fragment.inline_row_ids
            for sequence_bytes, runs in (
                (fragment.inline_created_at_versions, read["created"]),
                (fragment.inline_last_updated_at_versions, read["updated"]),
            ):
                found = decode_versions(sequence_bytes, fragment=fragment.id, staged=False)
                of_rows = [run.version for run in found for _ in range(run.rows)]
                live = [each for place, each in enumerate(of_rows) if place not in deleted]
                assert live == [each for count, each in runs for _ in range(count)]
                # Not the same bytes: pylance repeats the row ids' segment as a span.
                again = encode_versions(found)
                assert decode_versions(again, fragment=fragment.id, staged=False) == found


@given(st.lists(values | near, max_size=4))
def test_values_in_any_order_are_read_as_they_were_written(lists: list[list[int]]) -> None:
    row_ids = RowIds(tuple(array("Q", each) for each in lists))
    again = decoded(encode_row_ids(row_ids))
    assert list(again) == list(row_ids) == [row for each in lists for row in each]


@given(values | near)
@example([])
@example([5])
@example([0, LAST])
@example([LAST])
def test_ascending_values_are_read_as_they_were_written(numbers: list[int]) -> None:
    again = decoded(encode_row_ids(RowIds((BitMap64(numbers),))))
    assert list(again) == sorted(numbers)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], "range"),
        (range(5, 900), "range"),
        ([*range(100), *range(101, 900)], "range_with_holes"),
        (range(0, 900, 2), "range_with_bitmap"),
        (range(0, 900_000, 20), "sorted_array"),
        ([0, LAST], "sorted_array"),
    ],
)
def test_ascending_values_take_the_form_that_is_smallest(numbers: Iterable[int], expected: str) -> None:
    row_ids = RowIds((BitMap64(numbers),))
    assert form(row_ids) == expected
    assert list(decoded(encode_row_ids(row_ids))) == list(numbers)


def test_values_in_no_order_stay_so() -> None:
    assert form(in_order([3, 1, 2])) == "array"
    assert list(decoded(encode_row_ids(in_order([3, 1, 2, 2])))) == [3, 1, 2, 2]


@pytest.mark.parametrize(
    ("numbers", "width"),
    [
        ([], "u16_array"),
        ([2**40 + 2**16 - 1, 2**40], "u16_array"),
        ([2**40 + 2**16, 2**40], "u32_array"),
        ([2**40 + 2**32 - 1, 2**40], "u32_array"),
        ([2**40 + 2**32, 2**40], "u64_array"),
        ([LAST, 0], "u64_array"),
    ],
)
def test_an_array_is_as_wide_as_its_values_are_far_apart(numbers: list[int], width: str) -> None:
    body = encode_row_ids(in_order(numbers))
    (segment,) = RowIdSequence.FromString(body).segments
    assert segment.array.WhichOneof("array") == width
    assert list(decoded(body)) == numbers


def test_a_million_rows_are_neither_listed_nor_slow() -> None:
    body = sequence(U64Segment(range=U64Segment.Range(start=7, end=2**32)))
    before = time.process_time()
    row_ids = decoded(body)
    assert len(row_ids) == 2**32 - 7
    assert [(int(first), int(stop)) for first, stop in zip(*row_ids.runs(), strict=True)] == [(7, 2**32)]
    assert encode_row_ids(row_ids) == body
    assert time.process_time() - before < 10, "each of 4 billion rows takes minutes"


@pytest.mark.parametrize(
    ("before", "added", "expected"),
    [
        (RowIds((range(30),)), range(100, 120), "range_with_bitmap"),
        (RowIds((range(500, 520),)), range(520, 525), "range"),
        (RowIds((range(500, 520),)), range(1030, 1035), "sorted_array"),
        (RowIds((range(500, 520), range(530, 540))), range(540, 550), "range_with_bitmap"),
        (RowIds((range(500, 520), range(530, 540))), range(535, 550), "array"),
        (RowIds((array("Q", [1, 2, 3]),)), range(9, 11), "array"),
        (RowIds((BitMap64([1, 5]),)), range(5, 7), "array"),
        (RowIds((range(0), range(9, 9))), range(9, 11), "range"),
        (RowIds(), range(9, 11), "range"),
        (RowIds(), range(9, 9), "range"),
    ],
)
def test_row_ids_go_on_in_one_segment(before: RowIds, added: range, expected: str) -> None:
    after = before.followed_by(added)
    assert list(after) == [*before, *added]
    assert form(after) == expected
    assert list(decoded(encode_row_ids(after))) == [*before, *added]


@given(st.lists(st.builds(VersionRun, st.integers(0, 9), st.integers(0, 3)), max_size=9))
def test_versions_are_read_as_they_were_written(runs: list[VersionRun]) -> None:
    body = encode_versions(runs)
    again = decode_versions(body, fragment=0, staged=True)
    assert [version for rows, version in again for _ in range(rows)] == [
        version for rows, version in runs for _ in range(rows)
    ]
    assert all(run.rows for run in again)
    assert all(left.version != right.version for left, right in pairwise(again))
    spans = [run.span.range for run in RowDatasetVersionSequence.FromString(body).runs]
    ends = [0, *(span.end for span in spans)]
    assert [span.start for span in spans] == ends[:-1]


@pytest.mark.parametrize(
    "span",
    [
        U64Segment(range=U64Segment.Range(start=5, end=9)),
        U64Segment(
            range_with_holes=U64Segment.RangeWithHoles(
                start=5,
                end=11,
                holes=EncodedU64Array(u16_array=EncodedU64Array.U16Array(offsets=b"\x06\0\x07\0")),
            )
        ),
        U64Segment(range_with_bitmap=U64Segment.RangeWithBitmap(start=0, end=10, bitmap=b"\x17\x00")),
        U64Segment(sorted_array=EncodedU64Array(u32_array=EncodedU64Array.U32Array(offsets=bytes(16)))),
        U64Segment(array=EncodedU64Array(u64_array=EncodedU64Array.U64Array(values=bytes(32)))),
    ],
)
def test_of_a_versions_span_only_the_length_counts(span: U64Segment) -> None:
    body = RowDatasetVersionSequence()
    body.runs.add(version=8).span.CopyFrom(span)
    assert decode_versions(body.SerializeToString(), fragment=0, staged=False) == [(4, 8)]


def u16(offsets: bytes, base: int = 0) -> EncodedU64Array:
    return EncodedU64Array(u16_array=EncodedU64Array.U16Array(base=base, offsets=offsets))


def u64(numbers: bytes) -> EncodedU64Array:
    return EncodedU64Array(u64_array=EncodedU64Array.U64Array(values=numbers))


def holes(start: int, end: int, array_of: EncodedU64Array) -> U64Segment:
    return U64Segment(range_with_holes=U64Segment.RangeWithHoles(start=start, end=end, holes=array_of))


def bits(end: int, bitmap: bytes) -> U64Segment:
    return U64Segment(range_with_bitmap=U64Segment.RangeWithBitmap(end=end, bitmap=bitmap))


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (U64Segment(), "a segment has no form that we know"),
        (U64Segment(range=U64Segment.Range(start=2, end=1)), "a range goes from 2 to 1"),
        (U64Segment(range=U64Segment.Range(end=2**32 + 1)), "a range goes from 0 to 4294967297"),
        (holes(0, 2**63, u16(b"")), "a range goes from 0 to"),
        (holes(4, 9, u16(b"\x03\x00")), "holes of 4 to 9 are outside it"),
        (holes(4, 9, u16(b"\x05\x00\x05\x00")), "holes of 4 to 9 are outside it, or twice there"),
        (bits(9, b"\xff"), "the bitmap of 9 values has 1 bytes"),
        (bits(9, b"\xff\x02"), "the bitmap of 9 values has bits beyond them"),
        (bits(8, b"\xff\x00"), "the bitmap of 8 values has 2 bytes"),
        (U64Segment(sorted_array=u16(b"\x05\x00\x04\x00")), "not in ascending order"),
        (U64Segment(sorted_array=u16(b"\x05\x00\x05\x00")), "not in ascending order"),
        (U64Segment(array=u16(b"\x05")), "1 bytes are not a whole number of integers of 2 bytes"),
        (U64Segment(array=u16(b"\x01\x00", base=LAST)), "18446744073709551615 is above"),
        (U64Segment(array=u64(b"\xff" * 8)), "18446744073709551615 is above what a row id can be"),
        (U64Segment(array=EncodedU64Array()), "an array has no width that we know"),
    ],
)
def test_damaged_row_ids_say_what_is_wrong(segment: U64Segment, message: str) -> None:
    body = sequence(segment)
    for staged, error in ((False, CorruptTable), (True, InvalidRequest)):
        with pytest.raises(error, match=f"row ids of fragment 4: .*{message}") as caught:
            decode_row_ids(body, fragment=4, staged=staged)
        assert getattr(caught.value, "code", None) == "row_ids"


def test_a_bitmap_that_fills_its_last_byte_is_whole() -> None:
    assert list(decoded(sequence(bits(8, b"\xff")))) == list(range(8))
    assert list(decoded(sequence(bits(0, b"")))) == []


@pytest.mark.parametrize(("staged", "error"), [(False, CorruptTable), (True, InvalidRequest)])
def test_what_is_no_sequence_is_refused(staged: bool, error: type[Exception]) -> None:
    with pytest.raises(error, match="row ids of fragment 4: they can't be decoded"):
        decode_row_ids(b"\xff", fragment=4, staged=staged)
    with pytest.raises(error, match="row ids of fragment 4: they can't be decoded"):
        count_row_ids(b"\xff", fragment=4, staged=staged)
    with pytest.raises(error, match="row ids of fragment 4: a segment has no form"):
        count_row_ids(sequence(U64Segment()), fragment=4, staged=staged)
    with pytest.raises(error, match="row ids of fragment 4: an array has no width"):
        count_row_ids(sequence(U64Segment(array=EncodedU64Array())), fragment=4, staged=staged)
    with pytest.raises(error, match="row versions of fragment 4: they can't be decoded") as caught:
        decode_versions(b"\xff", fragment=4, staged=staged)
    assert getattr(caught.value, "code", None) == "row_versions"
