"""Sequences that a fragment holds for its rows: stable row ids, and versions.

Both have one entry for each physical row, in the order of the rows. A new fragment's million row
ids are one range, and stay one here: what is decoded are the segments, never a list of all values.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from pyroaring import BitMap64

from committerd.format.malformed import MalformedError, blamed
from committerd.format.messages import (
    DecodeError,
    EncodedU64Array,
    RowDatasetVersionSequence,
    RowIdSequence,
    U64Segment,
)

Segment: TypeAlias = "range | BitMap64 | array[int]"
"""Consecutive values; ascending values with gaps; values in any order."""

ROW_ID_MAX = 2**64 - 2
"""All ones marks a row that is gone."""
_ROWS_MAX = 2**32
"""In a fragment: the lower half of a row address is the offset in it."""
# Typecodes of unsigned integers of 16, 32 and 64 bits.
_U16, _U32, _U64 = "H", "I", "Q"
_BITS = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
_NO_FORM = "a segment has no form that we know"

_Sequence = TypeVar("_Sequence", RowIdSequence, RowDatasetVersionSequence)


@dataclass(frozen=True, slots=True)
class RowIds:
    """The stable row ids of a fragment, in the order of its rows."""

    segments: tuple[Segment, ...] = ()

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    def __iter__(self) -> Iterator[int]:
        for segment in self.segments:
            yield from segment

    def offsets(self, wanted: BitMap64) -> Iterator[tuple[int, int]]:
        """(row id, row offset) of those of `wanted` that are here, by offset.

        Costs what is found, and one pass over segments in no order.
        """
        start = 0
        for segment in self.segments:
            if isinstance(segment, range):
                within = wanted & BitMap64(segment)
                yield from ((row_id, start + row_id - segment.start) for row_id in within)
            elif isinstance(segment, BitMap64):
                # rank counts the values up to this one, itself included.
                yield from ((row_id, start + segment.rank(row_id) - 1) for row_id in wanted & segment)
            else:
                yield from ((row_id, start + place) for place, row_id in enumerate(segment) if row_id in wanted)
            start += len(segment)

    def followed_by(self, added: range) -> RowIds:
        """With `added` at the end, as one segment.

        pylance reads any number of segments, but itself makes one when it tops up a fragment whose
        new rows came without ids.
        """
        ascending = BitMap64()
        last = -1
        segments: list[Segment] = [segment for segment in (*self.segments, added) if segment]
        for segment in segments:
            if isinstance(segment, array) or segment[0] <= last:
                return RowIds((array(_U64, (*self, *added)),))
            ascending |= BitMap64(segment)
            last = segment[-1]
        return RowIds((_shortest(ascending),))


class VersionRun(NamedTuple):
    """So many rows, one after another, with one version."""

    rows: int
    version: int


def decode_row_ids(body: bytes, *, fragment: int, staged: bool) -> RowIds:
    """From `DataFragment.inline_row_ids`; `fragment` is its id.

    Raises `InvalidRequest` when staged, else `CorruptTable`, with code `row_ids`.
    """
    with blamed(f"row ids of fragment {fragment}", code="row_ids", staged=staged):
        segments = _parsed(RowIdSequence, body).segments
        return RowIds(tuple(_decode_segment(segment) for segment in segments))


def count_row_ids(body: bytes, *, fragment: int, staged: bool) -> int:
    """`len(decode_row_ids(...))` without decoding the values."""
    with blamed(f"row ids of fragment {fragment}", code="row_ids", staged=staged):
        return sum(_length(segment) for segment in _parsed(RowIdSequence, body).segments)


def encode_row_ids(row_ids: RowIds) -> bytes:
    """For `DataFragment.inline_row_ids`: each segment in the form that Lance would give it."""
    sequence = RowIdSequence(segments=[_encode_segment(segment) for segment in row_ids.segments])
    return sequence.SerializeToString(deterministic=True)


def decode_versions(body: bytes, *, fragment: int, staged: bool) -> list[VersionRun]:
    """From `inline_created_at_versions` or `inline_last_updated_at_versions` of a fragment.

    Raises `InvalidRequest` when staged, else `CorruptTable`, with code `row_versions`.
    """
    with blamed(f"row versions of fragment {fragment}", code="row_versions", staged=staged):
        runs = _parsed(RowDatasetVersionSequence, body).runs
        return [VersionRun(_length(run.span), run.version) for run in runs]


def encode_versions(runs: Iterable[VersionRun]) -> bytes:
    """The reverse. Neighbours with one version are joined; runs without rows are left out."""
    sequence = RowDatasetVersionSequence()
    end = 0
    for rows, version in runs:
        if not rows:
            continue
        if sequence.runs and sequence.runs[-1].version == version:
            sequence.runs[-1].span.range.end += rows
        else:
            run = sequence.runs.add(version=version)
            run.span.range.start, run.span.range.end = end, end + rows
        end += rows
    return sequence.SerializeToString(deterministic=True)


def _parsed(kind: type[_Sequence], body: bytes) -> _Sequence:
    sequence = kind()
    try:
        sequence.ParseFromString(body)
    except DecodeError as error:
        raise MalformedError(f"they can't be decoded: {error}") from error
    return sequence


def _length(segment: U64Segment) -> int:
    match segment.WhichOneof("segment"):
        case "range":
            return len(_range(segment.range))
        case "range_with_holes":
            holes = segment.range_with_holes
            return len(_range(holes)) - len(_decode_array(holes.holes))
        case "range_with_bitmap":
            return int.from_bytes(segment.range_with_bitmap.bitmap, "little").bit_count()
        case "sorted_array":
            return len(_decode_array(segment.sorted_array))
        case "array":
            return len(_decode_array(segment.array))
        case _:
            raise MalformedError(_NO_FORM)


def _decode_segment(segment: U64Segment) -> Segment:
    match segment.WhichOneof("segment"):
        case "range":
            return _range(segment.range)
        case "range_with_holes":
            holes = segment.range_with_holes
            return _without(_range(holes), _decode_array(holes.holes))
        case "range_with_bitmap":
            masked = segment.range_with_bitmap
            return _masked(_range(masked), masked.bitmap)
        case "sorted_array":
            values = _decode_array(segment.sorted_array)
            ascending = BitMap64(values)
            if array(_U64, ascending) != values:
                raise MalformedError("a sorted array is not in ascending order")
            return ascending
        case "array":
            return _decode_array(segment.array)
        case _:
            raise MalformedError(_NO_FORM)


def _encode_segment(segment: Segment) -> U64Segment:
    if isinstance(segment, BitMap64):
        segment = _shortest(segment)
    if isinstance(segment, range):
        return U64Segment(range=U64Segment.Range(start=segment.start, end=segment.stop))
    if isinstance(segment, array):
        return U64Segment(array=_encode_array(segment))
    # Lance: rowids/segment.rs, sizes in bytes that it compares; the first of equals is taken.
    start, end = segment[0], segment[-1] + 1
    holes = end - start - len(segment)
    sizes = {
        "holes": 24 + 4 * holes,
        "bitmap": 24 + (end - start + 7) // 8,
        "array": 24 + 2 * len(segment),
    }
    match min(sizes, key=sizes.__getitem__):
        case "holes":
            missing = array(_U64, BitMap64(range(start, end)) - segment)
            encoded = U64Segment()
            encoded.range_with_holes.start, encoded.range_with_holes.end = start, end
            encoded.range_with_holes.holes.CopyFrom(_encode_array(missing))
            return encoded
        case "bitmap":
            mask = bytearray((end - start + 7) // 8)
            for value in segment:
                mask[(value - start) >> 3] |= 1 << ((value - start) & 7)
            encoded = U64Segment()
            encoded.range_with_bitmap.start, encoded.range_with_bitmap.end = start, end
            encoded.range_with_bitmap.bitmap = bytes(mask)
            return encoded
        case _:
            return U64Segment(sorted_array=_encode_array(array(_U64, segment)))


def _shortest(ascending: BitMap64) -> Segment:
    """As a range where it has no gaps."""
    if not ascending:
        return range(0)
    first, last = ascending[0], ascending[-1]
    return range(first, last + 1) if last - first == len(ascending) - 1 else ascending


def _range(
    bounds: U64Segment.Range | U64Segment.RangeWithHoles | U64Segment.RangeWithBitmap,
) -> range:
    if not 0 <= bounds.end - bounds.start <= _ROWS_MAX:
        raise MalformedError(f"a range goes from {bounds.start} to {bounds.end}")
    return range(bounds.start, bounds.end)


def _without(values: range, holes: array[int]) -> Segment:
    kept = BitMap64(values)
    removed = BitMap64(holes)
    if len(removed) != len(holes) or not removed <= kept:
        raise MalformedError(f"holes of {values.start} to {values.stop} are outside it, or twice there")
    return _shortest(kept - removed)


def _masked(values: range, bitmap: bytes) -> Segment:
    """Those of `values` whose bit is set, least significant bit first."""
    if len(bitmap) != (len(values) + 7) // 8:
        raise MalformedError(f"the bitmap of {len(values)} values has {len(bitmap)} bytes")
    if int.from_bytes(bitmap[-1:]) >> (len(values) - 1) % 8 + 1:
        raise MalformedError(f"the bitmap of {len(values)} values has bits beyond them")
    kept: array[int] = array(_U64)
    for place, byte in enumerate(bitmap):
        first = values.start + 8 * place
        kept.extend([first + bit for bit in _BITS[byte]])
    return _shortest(BitMap64(kept))


def _decode_array(encoded: EncodedU64Array) -> array[int]:
    match encoded.WhichOneof("array"):
        case "u16_array":
            return _integers(_U16, encoded.u16_array.offsets, encoded.u16_array.base)
        case "u32_array":
            return _integers(_U32, encoded.u32_array.offsets, encoded.u32_array.base)
        case "u64_array":
            return _integers(_U64, encoded.u64_array.values, 0)
        case _:
            raise MalformedError("an array has no width that we know")


def _integers(typecode: str, body: bytes, base: int) -> array[int]:
    """Little-endian integers, each added to `base`."""
    size = struct.calcsize(f"<{typecode}")
    if len(body) % size:
        raise MalformedError(f"{len(body)} bytes are no whole integers of {size}")
    integers = struct.unpack(f"<{len(body) // size}{typecode}", body)
    if integers and base + max(integers) > ROW_ID_MAX:
        raise MalformedError(f"{base + max(integers)} is above what a row id can be")
    return array(_U64, (base + integer for integer in integers) if base else integers)


def _encode_array(values: array[int]) -> EncodedU64Array:
    """In the narrowest width that holds the distances from the lowest value."""
    base = min(values, default=0)
    spread = max(values, default=0) - base
    encoded = EncodedU64Array()
    if spread < 2**16:
        encoded.u16_array.base = base
        encoded.u16_array.offsets = _packed(_U16, values, base)
    elif spread < 2**32:
        encoded.u32_array.base = base
        encoded.u32_array.offsets = _packed(_U32, values, base)
    else:
        encoded.u64_array.values = _packed(_U64, values, 0)
    return encoded


def _packed(typecode: str, values: array[int], base: int) -> bytes:
    return struct.pack(f"<{len(values)}{typecode}", *(value - base for value in values))
