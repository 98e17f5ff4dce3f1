"""The stable row ids and the row versions of a fragment.

Both have one value for each physical row, in the order of the rows. A million row ids of a new fragment are one range,
and stay one here: decoding yields segments, never a list of all values.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyroaring import BitMap64

from committerd_common.malformed import MalformedError, blamed
from committerd_common.messages import (
    DecodeError,
    EncodedU64Array,
    RowDatasetVersionSequence,
    RowIdSequence,
    U64Segment,
)

if TYPE_CHECKING:
    from committerd_common.row_runs import Numbers, Runs, Segment, Versions

# `row_runs` is imported where it is needed: numpy takes memory and time, and few commands come here.

ROW_ID_MAX = 2**64 - 2
"""The highest row id; all ones marks a deleted row."""
_ROWS_MAX = 2**32
"""The largest number of rows in a fragment: the lower half of a row address is the row's offset in it."""
# Bytes of unsigned integers.
_U16, _U32, _U64 = 2, 4, 8
_JOINED_MAX = 2**20
"""The largest number of rows for which two segments are joined into one, because that lists their ids."""
_LISTED_BYTES_MAX = 4096
"""Runs of versions of up to this many bytes are faster to decode one by one."""
_DECODED_BYTES_MAX = 2**24
"""Runs of versions of up to this many bytes are decoded all at once, which takes 50 times as much memory."""
_RUNS_LISTED_MAX = 256
"""Up to this many runs are faster to encode one by one."""
_NO_FORM = "a segment has no form that we know"
_NO_WIDTH = "an array has no width that we know"

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

    def bitmap(self) -> BitMap64:
        """The ids without their order."""
        from committerd_common.row_runs import bitmap_of

        ids = BitMap64()
        for segment in self.segments:
            ids |= bitmap_of(segment)
        return ids

    def runs(self) -> Runs:
        """Consecutive ids, in the order of the rows."""
        from committerd_common.row_runs import runs_of_all

        return runs_of_all(self.segments)

    def followed_by(self, added: range) -> RowIds:
        """These ids with `added` at the end, as one segment.

        pylance reads any number of segments, but writes one when it completes a fragment whose new rows came without
        ids. If one segment would have to list very many ids, the segments stay separate.
        """
        from committerd_common.row_runs import array_of, bitmap_of, joined_numbers, runs_of_all

        segments: list[Segment] = [segment for segment in (*self.segments, added) if segment]
        ends = [-1, *(max(segment) if isinstance(segment, array) else segment[-1] for segment in segments)]
        in_order = all(
            not isinstance(segment, array) and segment[0] > end for segment, end in zip(segments, ends, strict=False)
        )
        runs = runs_of_all(tuple(segments))
        if len(runs.firsts) <= 1:
            return RowIds(tuple(range(int(first), int(stop)) for first, stop in zip(*runs, strict=True)) or (range(0),))
        if len(added) > _JOINED_MAX:
            return RowIds(tuple(segments))
        if in_order:
            ascending = BitMap64()
            for segment in segments:
                ascending |= bitmap_of(segment)
            return RowIds((ascending,))
        return RowIds((array_of(joined_numbers(numbers_in(segment) for segment in segments)),))


class VersionRun(NamedTuple):
    """A number of consecutive rows that have the same version."""

    rows: int
    version: int


def decode_row_ids(body: bytes, *, fragment: int, staged: bool) -> RowIds:
    """Decode `DataFragment.inline_row_ids`; `fragment` is the fragment's id.

    Raises `InvalidRequest` (if `staged`) or else `CorruptTable`, with code `row_ids`.
    """
    with blamed(f"row ids of fragment {fragment}", code="row_ids", staged=staged):
        segments = _parsed(RowIdSequence, body).segments
        return RowIds(tuple(_decode_segment(segment) for segment in segments))


def count_row_ids(body: bytes, *, fragment: int, staged: bool) -> int:
    """`len(decode_row_ids(...))` without decoding the values."""
    with blamed(f"row ids of fragment {fragment}", code="row_ids", staged=staged):
        return sum(_length(segment) for segment in _parsed(RowIdSequence, body).segments)


def encode_row_ids(row_ids: RowIds) -> bytes:
    """Encode for `DataFragment.inline_row_ids`, each segment in the form that Lance would choose."""
    sequence = RowIdSequence(segments=[_encode_segment(segment) for segment in row_ids.segments])
    return sequence.SerializeToString(deterministic=True)


def decode_versions(body: bytes, *, fragment: int, staged: bool) -> list[VersionRun]:
    """Decode `inline_created_at_versions` or `inline_last_updated_at_versions` of a fragment.

    Raises `InvalidRequest` (if `staged`) or else `CorruptTable`, with code `row_versions`.
    """
    with blamed(f"row versions of fragment {fragment}", code="row_versions", staged=staged):
        runs = _parsed(RowDatasetVersionSequence, body).runs
        return [VersionRun(_length(run.span), run.version) for run in runs]


def versions_in(body: bytes, *, fragment: int, staged: bool) -> Versions:
    """Decode like `decode_versions`, but into arrays for arithmetic. Raises the same errors."""
    from committerd_common.row_runs import decoded_runs, versions_of_pairs

    if _LISTED_BYTES_MAX < len(body) <= _DECODED_BYTES_MAX:
        known = decoded_runs(body, rows_max=_ROWS_MAX)
        if known is not None:
            return known
    runs = decode_versions(body, fragment=fragment, staged=staged)
    return versions_of_pairs(runs)


def check_versions(body: bytes, *, fragment: int, staged: bool) -> None:
    """Check that the bytes can be decoded. Raises the same errors as `decode_versions`."""
    read = decode_versions if len(body) <= _LISTED_BYTES_MAX else versions_in
    read(body, fragment=fragment, staged=staged)


def encode_joined(versions: Versions) -> bytes:
    """Encode like `encode_versions`, for versions that `row_runs.joined` has joined."""
    from committerd_common.row_runs import encoded_runs

    if len(versions.rows) > _RUNS_LISTED_MAX:
        return encoded_runs(versions)
    return encode_versions(VersionRun(int(rows), int(version)) for rows, version in zip(*versions, strict=True))


def encode_versions(runs: Iterable[VersionRun]) -> bytes:
    """The reverse of `decode_versions`. Joins neighbouring runs of one version, and leaves out runs without rows."""
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
            return len(_range(holes)) - _array_length(holes.holes)
        case "range_with_bitmap":
            return int.from_bytes(segment.range_with_bitmap.bitmap, "little").bit_count()
        case "sorted_array":
            return _array_length(segment.sorted_array)
        case "array":
            return _array_length(segment.array)
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
            from committerd_common.row_runs import ascends

            if not ascends(values):
                raise MalformedError("a sorted array is not in ascending order")
            return BitMap64(values)
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
    # Lance compares these sizes in bytes (rowids/segment.rs); of equal sizes it takes the first.
    start, end = segment[0], segment[-1] + 1
    holes = end - start - len(segment)
    sizes = {
        "holes": 24 + 4 * holes,
        "bitmap": 24 + (end - start + 7) // 8,
        "array": 24 + 2 * len(segment),
    }
    match min(sizes, key=sizes.__getitem__):
        case "holes":
            missing = (BitMap64(range(start, end)) - segment).to_array()
            encoded = U64Segment()
            encoded.range_with_holes.start, encoded.range_with_holes.end = start, end
            encoded.range_with_holes.holes.CopyFrom(_encode_array(missing))
            return encoded
        case "bitmap":
            from committerd_common.row_runs import mask_of

            encoded = U64Segment()
            encoded.range_with_bitmap.start, encoded.range_with_bitmap.end = start, end
            encoded.range_with_bitmap.bitmap = mask_of(segment)
            return encoded
        case _:
            return U64Segment(sorted_array=_encode_array(segment.to_array()))


def numbers_in(segment: Segment) -> Numbers:
    """The values of a segment, listed."""
    from committerd_common.row_runs import numbers_between, numbers_of

    if isinstance(segment, range):
        return numbers_between(segment.start, segment.stop)
    return numbers_of(segment if isinstance(segment, array) else segment.to_array())


def _shortest(ascending: BitMap64) -> Segment:
    """The values as a range if they have no gaps, else unchanged."""
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
    """The values whose bits are set, least significant bit first."""
    from committerd_common.row_runs import bits_set

    if len(bitmap) != (len(values) + 7) // 8:
        raise MalformedError(f"the bitmap of {len(values)} values has {len(bitmap)} bytes")
    if int.from_bytes(bitmap[-1:]) >> (len(values) - 1) % 8 + 1:
        raise MalformedError(f"the bitmap of {len(values)} values has bits beyond them")
    return _shortest(bits_set(bitmap, values.start))


def _array_length(encoded: EncodedU64Array) -> int:
    match encoded.WhichOneof("array"):
        case "u16_array":
            return _whole(encoded.u16_array.offsets, _U16)
        case "u32_array":
            return _whole(encoded.u32_array.offsets, _U32)
        case "u64_array":
            return _whole(encoded.u64_array.values, _U64)
        case _:
            raise MalformedError(_NO_WIDTH)


def _decode_array(encoded: EncodedU64Array) -> array[int]:
    match encoded.WhichOneof("array"):
        case "u16_array":
            return _integers(_U16, encoded.u16_array.offsets, encoded.u16_array.base)
        case "u32_array":
            return _integers(_U32, encoded.u32_array.offsets, encoded.u32_array.base)
        case "u64_array":
            return _integers(_U64, encoded.u64_array.values, 0)
        case _:
            raise MalformedError(_NO_WIDTH)


def _integers(width: int, body: bytes, base: int) -> array[int]:
    """Decode little-endian integers of `width` bytes, and add `base` to each."""
    from committerd_common.row_runs import array_of, unpacked

    _whole(body, width)
    integers = unpacked(body, width)
    most = base + int(integers.max()) if len(integers) else 0
    if most > ROW_ID_MAX:
        raise MalformedError(f"{most} is above what a row id can be")
    integers += integers.dtype.type(base)
    return array_of(integers)


def _whole(body: bytes, width: int) -> int:
    """The number of integers of `width` bytes in `body`. Raises `MalformedError` if bytes are left over."""
    if len(body) % width:
        raise MalformedError(f"{len(body)} bytes are not a whole number of integers of {width} bytes")
    return len(body) // width


def _encode_array(values: array[int]) -> EncodedU64Array:
    """Encode in the narrowest width that holds the differences from the lowest value."""
    from committerd_common.row_runs import numbers_of, packed

    numbers = numbers_of(values)
    base = int(numbers.min()) if len(numbers) else 0
    spread = int(numbers.max()) - base if len(numbers) else 0
    encoded = EncodedU64Array()
    if spread < 2**16:
        encoded.u16_array.base = base
        encoded.u16_array.offsets = packed(numbers, base, _U16)
    elif spread < 2**32:
        encoded.u32_array.base = base
        encoded.u32_array.offsets = packed(numbers, base, _U32)
    else:
        encoded.u64_array.values = packed(numbers, 0, _U64)
    return encoded
