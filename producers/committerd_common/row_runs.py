"""Arithmetic on row ids and row versions, a whole array at a time.

Ids are handled as runs of consecutive ids. A range of four billion ids is one run, and a million unordered ids are a
million runs, so time and memory grow with the encoded size of a sequence and not with its number of rows.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

Numbers: TypeAlias = NDArray[np.uint64]
Segment: TypeAlias = "range | BitMap64 | array[int]"
"""Consecutive values; ascending values with gaps; values in any order."""

_CONTAINER_BITS = 2**16
_AT_ONCE = 2**18
"""The most ids, and runs of ids, that are compared at a time."""
_CONTAINER_BYTES = _CONTAINER_BITS // 8
_ARRAY_VALUES_MAX = 4096
"""A container of a Roaring bitmap lists its values up to this number of them, and is a bit mask above it."""
_COOKIE = 12346
"""The first number of a serialized 32-bit Roaring bitmap without run containers."""
_SHIFT_MAX = 2**62
_LAST = np.uint64(2**64 - 1)
_VARINT_BYTES_MAX = 10
_ENCODED_AT_ONCE = 2**16
_NONE = np.empty(0, np.uint64)


class Runs(NamedTuple):
    """Runs of consecutive values: run n goes from `firsts[n]` to below `stops[n]`."""

    firsts: Numbers
    stops: Numbers


class Versions(NamedTuple):
    """Runs of rows with the same version: run n is the next `rows[n]` rows, of version `versions[n]`."""

    rows: Numbers
    versions: Numbers


class Known(NamedTuple):
    """The version of each id of a set: `versions[n]`, where `firsts[n]` is the last one that is not above the id."""

    firsts: Numbers
    """Ascending."""
    versions: Numbers


def numbers_of(values: array[int]) -> Numbers:
    """The values of an array of 64-bit integers, without a copy."""
    return np.frombuffer(values, np.uint64)


def array_of(values: NDArray[np.unsignedinteger]) -> array[int]:
    made: array[int] = array("Q")
    made.frombytes(np.ascontiguousarray(values, np.uint64).view(np.uint8).data)
    return made


def numbers_between(start: int, stop: int) -> Numbers:
    return np.arange(start, stop, dtype=np.uint64)


def joined_numbers(each: Iterable[Numbers]) -> Numbers:
    return np.concatenate(list(each))


def ascends(values: array[int]) -> bool:
    """Whether each value is above the one before it."""
    numbers = numbers_of(values)
    return bool((numbers[1:] > numbers[:-1]).all())


def unpacked(body: bytes, width: int) -> Numbers:
    """Decode little-endian integers of `width` bytes each."""
    return np.frombuffer(body, f"<u{width}").astype(np.uint64)


def packed(numbers: Numbers, base: int, width: int) -> bytes:
    """Encode the differences from `base` as little-endian integers of `width` bytes each."""
    return (numbers - np.uint64(base)).astype(f"<u{width}").tobytes()


def versions_of_pairs(pairs: Sequence[tuple[int, int]]) -> Versions:
    """Make `Versions` from pairs (number of rows, version)."""
    rows = np.fromiter((rows for rows, _ in pairs), np.uint64, len(pairs))
    return Versions(rows, np.fromiter((version for _, version in pairs), np.uint64, len(pairs)))


def equal(one: Runs, other: Runs) -> bool:
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(one, other, strict=True))


def runs_of(segment: Segment) -> Runs:
    """The runs of a segment, in its order."""
    if isinstance(segment, range):
        kept = slice(0, 1 if segment else 0)
        return Runs(np.array([segment.start], np.uint64)[kept], np.array([segment.stop], np.uint64)[kept])
    if isinstance(segment, BitMap64):
        # A value at which a run begins, or just behind its end, is in exactly one of the two bitmaps.
        bounds = numbers_of((segment ^ segment.shift(1)).to_array())
        return Runs(bounds[0::2], bounds[1::2])
    values = numbers_of(segment)
    begins = np.flatnonzero(np.diff(values) != 1) + 1 if len(values) else np.empty(0, np.intp)
    firsts = values[np.concatenate(([0], begins))] if len(values) else _NONE
    lasts = values[np.concatenate((begins - 1, [len(values) - 1]))] if len(values) else _NONE
    return Runs(firsts, lasts + np.uint64(1))


def runs_of_all(segments: tuple[Segment, ...]) -> Runs:
    """The runs of consecutive segments. A run that continues the one before is joined with it."""
    each = [runs_of(segment) for segment in segments]
    if not each:
        return Runs(_NONE, _NONE)
    firsts = np.concatenate([runs.firsts for runs in each])
    stops = np.concatenate([runs.stops for runs in each])
    ends = np.flatnonzero(firsts[1:] != stops[:-1])
    return Runs(
        firsts[np.concatenate(([0], ends + 1))] if len(firsts) else _NONE,
        stops[np.concatenate((ends, [len(stops) - 1]))] if len(stops) else _NONE,
    )


def ids_at(segments: Sequence[Segment], offsets: Numbers) -> Numbers:
    """The ids at these offsets of a fragment with these segments of row ids; the offsets ascend and are below their
    number.
    """
    stops = np.cumsum(np.fromiter(map(len, segments), np.uint64, len(segments)), dtype=np.uint64)
    bounds = np.searchsorted(offsets, stops).tolist()
    found, start = [_NONE], 0
    for segment, stop, low, high in zip(segments, stops.tolist(), [0, *bounds], bounds, strict=False):
        if low < high:
            found.append(_ids_in(segment, offsets[low:high] - np.uint64(start)))
        start = stop
    return joined_numbers(found)


def _ids_in(segment: Segment, offsets: Numbers) -> Numbers:
    """The ids at these offsets of a segment; all are below its length."""
    if isinstance(segment, range):
        return offsets + np.uint64(segment.start)
    if isinstance(segment, array):
        return numbers_of(segment)[offsets.astype(np.intp)]
    runs = runs_of(segment)
    ends = np.cumsum(runs.stops - runs.firsts, dtype=np.uint64)
    run = np.searchsorted(ends, offsets, "right")
    return runs.stops[run] - (ends[run] - offsets)


def found_in(segments: Iterable[Segment], ids: Numbers) -> Iterator[tuple[NDArray[np.intp], Numbers]]:
    """Where a fragment with these segments of row ids has some of the ids, which ascend: pairs (places of ids in `ids`,
    the offset of each of these ids in the fragment).

    The time grows with the runs of the fragment and with the ids that it has, and hardly with the other ids. The memory
    is bounded. If the fragment has an id more than once, at least one is found more than once, but maybe not all.
    """
    begin = 0
    for runs in _in_parts(segments):
        rows = runs.stops - runs.firsts
        ends = np.cumsum(rows, dtype=np.uint64) + np.uint64(begin)
        for low in range(0, len(ids), _AT_ONCE):
            at, run = _inside(runs, ids[low : low + _AT_ONCE])
            if len(at):
                yield at + low, ids[low + at] + (ends - rows - runs.firsts)[run]  # modulo 2^64
        begin = int(ends[-1])


def _in_parts(segments: Iterable[Segment]) -> Iterator[Runs]:
    """The runs of consecutive segments, in their order, some at a time; each time at least one."""
    for are_ranges, some in groupby(segments, lambda segment: isinstance(segment, range)):
        if are_ranges:
            ranges = [segment for segment in some if isinstance(segment, range)]
            firsts = np.fromiter((one.start for one in ranges), np.uint64, len(ranges))
            yield Runs(firsts, np.fromiter((one.stop for one in ranges), np.uint64, len(ranges)))
            continue
        for segment in some:
            if isinstance(segment, array):
                yield from (runs_of(segment[at : at + _AT_ONCE]) for at in range(0, len(segment), _AT_ONCE))
                continue
            runs = runs_of(segment)
            for at in range(0, len(runs.firsts), _AT_ONCE):
                yield Runs(runs.firsts[at : at + _AT_ONCE], runs.stops[at : at + _AT_ONCE])


def _inside(runs: Runs, ids: Numbers) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(places of those of the ids, which ascend, that are in one of the runs; the run that has each of these)"""
    run = np.flatnonzero((runs.firsts <= ids[-1]) & (runs.stops > ids[0]))
    low = np.searchsorted(ids, runs.firsts[run])
    some = ids[low] < runs.stops[run]
    run, low = run[some], low[some]
    count = np.searchsorted(ids, runs.stops[run]) - low
    ends = np.cumsum(count)
    if len(ends) and ends[-1] > len(ids):  # runs overlap: enough of them to find an id twice
        most = int(np.searchsorted(ends, len(ids), "right")) + 1
        run, low, count, ends = run[:most], low[:most], count[:most], ends[:most]
    at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(low - (ends - count), count)
    return at, np.repeat(run, count)


def counts_below(values: BitMap, numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """How many of the values are below each of the numbers, which ascend.

    Lists at most 65,536 values at a time, and only those near the numbers: a bitmap of a few kB may hold billions.
    """
    if len(values) <= _CONTAINER_BITS:
        return np.searchsorted(np.frombuffer(values.to_array(), np.uint32), numbers).astype(np.int64)
    counts = np.empty(len(numbers), np.int64)
    parts = numbers // np.uint32(_CONTAINER_BITS)
    begins = np.flatnonzero(np.append(True, parts[1:] != parts[:-1])[: len(parts)]).tolist()
    known = before = 0
    for begin, end in pairwise([*begins, len(numbers)]):
        start = int(parts[begin]) * _CONTAINER_BITS
        before += values.range_cardinality(known, start) if start > known else 0
        known = start
        near = values & BitMap(range(start, start + _CONTAINER_BITS))
        counts[begin:end] = before + np.searchsorted(np.frombuffer(near.to_array(), np.uint32), numbers[begin:end])
    return counts


def offsets_of(segments: tuple[Segment, ...], ids: Numbers) -> tuple[NDArray[np.bool_], Numbers]:
    """(which of the ids are in a fragment with these segments of row ids, the offset of each of those)"""
    runs = runs_of_all(segments)
    if not len(runs.firsts):
        return np.zeros(len(ids), np.bool_), _NONE
    begins = np.cumsum(runs.stops - runs.firsts, dtype=np.uint64) - (runs.stops - runs.firsts)
    order = np.argsort(runs.firsts, kind="stable")
    firsts, stops, begins = runs.firsts[order], runs.stops[order], begins[order]
    run = np.maximum(np.searchsorted(firsts, ids, "right").astype(np.intp) - 1, 0)
    here = (ids >= firsts[run]) & (ids < stops[run])
    return here, begins[run[here]] + (ids[here] - firsts[run[here]])


def versions_at(versions: Versions, offsets: Numbers, default: int) -> Numbers:
    """The version of the row at each of these offsets; rows behind the last run have version `default`."""
    ends = np.cumsum(versions.rows, dtype=np.uint64)
    return np.append(versions.versions, np.uint64(default))[np.searchsorted(ends, offsets, "right")]


def bitmap_of(segment: Segment) -> BitMap64:
    if isinstance(segment, array):
        # Sorted values are added five times as fast.
        return BitMap64(array_of(np.sort(numbers_of(segment))))
    return segment if isinstance(segment, BitMap64) else BitMap64(segment)


def bits_set(mask: bytes, start: int) -> BitMap64:
    """The values whose bits are set in `mask`. The first bit stands for `start`; in a byte, the least significant bit
    comes first.

    It copies dense parts of the mask unchanged, because a Roaring bitmap stores them in the same form.
    """
    heads, bodies = [], []
    for key in range((len(mask) + _CONTAINER_BYTES - 1) // _CONTAINER_BYTES):
        part = mask[key * _CONTAINER_BYTES : (key + 1) * _CONTAINER_BYTES]
        count = int.from_bytes(part, "little").bit_count()
        if not count:
            continue
        heads.append(struct.pack("<HH", key % _CONTAINER_BITS, count - 1))
        if count > _ARRAY_VALUES_MAX:
            bodies.append(part.ljust(_CONTAINER_BYTES, b"\0"))
        else:
            bits = np.unpackbits(np.frombuffer(part, np.uint8), bitorder="little")
            bodies.append(np.flatnonzero(bits).astype("<u2").tobytes())
    if not heads:
        return BitMap64()
    first = 8 + 8 * len(heads)
    offsets = np.cumsum([first, *map(len, bodies[:-1])]).astype("<u4").tobytes()
    body = struct.pack("<QIII", 1, 0, _COOKIE, len(heads)) + b"".join(heads) + offsets + b"".join(bodies)
    return _shifted(BitMap64.deserialize(body), start)


def mask_of(values: BitMap64) -> bytes:
    """The reverse of `bits_set`: a mask from the lowest value to the highest. `values` is not empty."""
    offsets = numbers_of(values.to_array()) - np.uint64(values.min())
    bits = np.zeros(int(offsets[-1]) + 1, np.uint8)
    bits[offsets.astype(np.intp)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


class Search:
    """Finds the version in which each id of a set was created, by looking into one fragment after another."""

    def __init__(self, wanted: BitMap64) -> None:
        self._wanted = wanted
        self._missing = wanted.copy()
        self._found: list[Known] = []

    @property
    def is_over(self) -> bool:
        """Whether all ids are found."""
        return not self._missing

    def may_find(self, segments: Iterable[Segment]) -> bool:
        """Whether these segments may hold missing ids."""
        return any(self._may_find(segment) for segment in segments)

    def look_into(self, segments: Iterable[Segment], created: Versions, default: int) -> None:
        """Look for the missing ids in a fragment with these segments of row ids, and note their versions.

        `created` are the created-at versions of the fragment's rows; further rows have version `default`.
        """
        ends = np.cumsum(created.rows, dtype=np.uint64)
        versions = Versions(ends, np.append(created.versions, np.uint64(default)))
        start = 0
        for segment in segments:
            if self._may_find(segment):
                here = self._missing & bitmap_of(self._clipped(segment))
                if here:
                    self._missing -= here
                    self._found.append(self._known_in(segment, here, versions, start))
            start += len(segment)

    def take(self, segments: Iterable[Segment]) -> BitMap64:
        """The missing ids in these segments. They then count as found."""
        here = BitMap64()
        for segment in segments:
            if self._may_find(segment):
                here |= self._missing & bitmap_of(self._clipped(segment))
        self._missing -= here
        return here

    def known(self, version: int) -> Known:
        """The versions of all ids of the set; `version` for those that are still missing."""
        rest = runs_of(self._missing).firsts
        each = [*self._found, Known(rest, np.full(len(rest), version, np.uint64))]
        firsts = np.concatenate([one.firsts for one in each])
        order = np.argsort(firsts, kind="stable")
        firsts, versions = firsts[order], np.concatenate([one.versions for one in each])[order]
        changes = np.append(True, versions[1:] != versions[:-1])[: len(firsts)]
        return Known(firsts[changes], versions[changes])

    def _may_find(self, segment: Segment) -> bool:
        if not segment:
            return False
        if isinstance(segment, BitMap64):
            return not self._missing.isdisjoint(segment)
        if isinstance(segment, range):
            return bool(self._missing.range_cardinality(segment.start, segment.stop))
        values = numbers_of(segment)
        return bool(self._missing.range_cardinality(int(values.min()), int(values.max()) + 1))

    def _clipped(self, segment: Segment) -> Segment:
        """A range cut to where missing ids can be, because a bitmap of a long range is large. Others are unchanged."""
        if isinstance(segment, range):
            return range(max(segment.start, self._missing.min()), min(segment.stop, self._missing.max() + 1))
        return segment

    def _known_in(self, segment: Segment, here: BitMap64, ends: Versions, start: int) -> Known:
        """The versions of the ids `here`, which are in a segment whose first row is at offset `start`.

        `ends.rows` has the offset at which each run of rows ends; `ends.versions` has the version of each, and one more
        for the rows behind the last.
        """
        if isinstance(segment, array):
            values = numbers_of(segment)
            wanted = numbers_of(here.to_array())
            place = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
            offsets = np.flatnonzero(wanted[place] == values)
            firsts, only = np.unique(values[offsets], return_index=True)
            at = offsets[only].astype(np.uint64) + np.uint64(start)
            return Known(firsts, ends.versions[np.searchsorted(ends.rows, at, "right")])
        first, last = here.min(), here.max()
        limits = _ids_at(segment, ends.rows, start)
        cuts = limits[(limits > first) & (limits <= last)]
        begins = np.array([first], np.uint64)
        if self._wanted.range_cardinality(first, last + 1) > len(here):
            # Other wanted ids lie between these, so each run of these needs an entry of its own.
            begins, stops = runs_of(here)
            cuts = cuts[cuts < stops[np.searchsorted(begins, cuts, "right") - 1]]
        firsts = np.union1d(begins, cuts)
        return Known(firsts, ends.versions[np.searchsorted(limits, firsts, "right")])


def versions_of(runs: Runs, known: Known) -> Versions:
    """The versions of the rows with these ids, in their order. `known` has all of the ids."""
    begin = np.searchsorted(known.firsts, runs.firsts, "right")
    cells = np.searchsorted(known.firsts, runs.stops, "left") - begin + 1
    run = np.repeat(np.arange(len(begin)), cells)
    cell = np.arange(len(run)) - np.repeat(np.cumsum(cells) - cells, cells) + begin[run]
    lows, highs = np.append(np.uint64(0), known.firsts), np.append(known.firsts, _LAST)
    rows = np.minimum(runs.stops[run], highs[cell]) - np.maximum(runs.firsts[run], lows[cell])
    return joined(Versions(rows, np.append(np.uint64(0), known.versions)[cell]))


def with_changed(before: Versions, offsets: BitMap, version: int) -> Versions:
    """The versions, with `version` at these offsets. There is at least one row, and all offsets are below the end."""
    ends = np.cumsum(before.rows, dtype=np.uint64)
    bounds = np.frombuffer((offsets ^ offsets.shift(1)).to_array(), np.uint32).astype(np.uint64)
    cuts = np.union1d(np.append(np.uint64(0), ends[:-1]), bounds)
    cuts = cuts[cuts < ends[-1]]
    values = before.versions[np.searchsorted(ends, cuts, "right")]
    values = np.where(np.searchsorted(bounds, cuts, "right") % 2 == 1, np.uint64(version), values)
    return joined(Versions(np.append(cuts[1:], ends[-1:]) - cuts, values))


def joined(versions: Versions) -> Versions:
    """The same versions, with neighbouring runs of one version joined and runs without rows left out."""
    some = versions.rows > 0
    rows, values = versions.rows[some], versions.versions[some]
    if not len(rows):
        return Versions(_NONE, _NONE)
    begins = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)
    return Versions(np.add.reduceat(rows, begins), values[begins])


def encoded_runs(versions: Versions) -> bytes:
    """Encode as the runs of a `RowDatasetVersionSequence`, byte for byte as protobuf does, each span a range from 0 on.

    `versions` must be joined (`joined`).
    """
    stops = np.cumsum(versions.rows, dtype=np.uint64)
    starts = stops - versions.rows
    return b"".join(
        _encoded(starts[part], stops[part], versions.versions[part])
        for part in (slice(at, at + _ENCODED_AT_ONCE) for at in range(0, len(stops), _ENCODED_AT_ONCE))
    )


def decoded_runs(body: bytes, *, rows_max: int) -> Versions | None:
    """The reverse of `encoded_runs`; None for bytes of another form, which need the general decoder.

    All bytes of such runs are varints: tags, message lengths, numbers. `rows_max` is the most rows that a run may have.
    """
    octets = np.frombuffer(body, np.uint8)
    last = np.flatnonzero(octets < 0x80)
    if not len(last) or last[-1] != len(octets) - 1:
        return None
    first = np.append(0, last[:-1] + 1)
    width = last - first + 1
    if width.max() > _VARINT_BYTES_MAX:
        return None
    values = (octets[first] & 0x7F).astype(np.uint64)
    for place in range(1, int(width.max())):
        longer = np.flatnonzero(width > place)
        values[longer] |= (octets[first[longer] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    if len(values) % len(_RUN) == len(_RUN) - 2:
        # The first run starts at 0, and protobuf leaves out a 0.
        values, width = np.insert(values, 6, (0x08, 0)), np.insert(width, 6, (0, 0))
    if len(values) % len(_RUN):
        return None
    values, width = values.reshape(-1, len(_RUN)), width.reshape(-1, len(_RUN))
    in_range = width[:, 6:10].sum(axis=1)
    in_run = in_range + 4 + width[:, 10:].sum(axis=1)
    lengths = np.column_stack((in_run, in_range + 2, in_range))
    same = (values[:, _TAGS] == np.array(_RUN)[_TAGS]).all() and (values[:, 1:6:2] == lengths).all()
    starts, stops = values[:, 7], values[:, 9]
    if not same or (stops < starts).any() or (stops - starts > rows_max).any():
        return None
    return Versions(stops - starts, values[:, 11])


_RUN = (0x0A, 0, 0x0A, 0, 0x0A, 0, 0x08, 0, 0x10, 0, 0x10, 0)
"""The varints of one run: the tags of run, span, range, start, end and version; a 0 stands for each length or number
between them.
"""
_TAGS = [place for place, tag in enumerate(_RUN) if tag]


def _encoded(starts: Numbers, stops: Numbers, versions: Numbers) -> bytes:
    """Lay out the fields of each run at their full width, then keep only the bytes that are in use."""
    start, start_there = _field(0x08, starts)
    stop, stop_there = _field(0x10, stops)
    value, value_there = _field(0x10, versions)
    in_range = start_there.sum(axis=1) + stop_there.sum(axis=1)
    in_run = in_range + 4 + value_there.sum(axis=1)
    heads = np.full((len(starts), 6), 0x0A, np.uint8)
    heads[:, 1], heads[:, 3], heads[:, 5] = in_run, in_range + 2, in_range
    there = np.concatenate((np.ones(heads.shape, bool), start_there, stop_there, value_there), axis=1)
    whole: NDArray[np.uint8] = np.concatenate((heads, start, stop, value), axis=1)
    return bytes(whole[there])


def _field(tag: int, values: Numbers) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The bytes of a varint field for each value at full width, and a mask of those in use; a 0 uses none."""
    shifts = np.arange(_VARINT_BYTES_MAX, dtype=np.uint64) * np.uint64(7)
    groups = values[:, None] >> shifts
    there = groups > 0
    more = np.concatenate((there[:, 1:], np.zeros((len(values), 1), bool)), axis=1)
    body = (groups & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
    tags = np.full((len(values), 1), tag, np.uint8)
    return np.concatenate((tags, body), axis=1), np.concatenate((there[:, :1], there), axis=1)


def _shifted(values: BitMap64, by: int) -> BitMap64:
    while by:
        step = min(by, _SHIFT_MAX)
        values, by = values.shift(step), by - step
    return values


def _ids_at(segment: range | BitMap64, offsets: Numbers, start: int) -> Numbers:
    """The id of the row at each offset. An offset before the segment gets its first id, one behind it the highest u64.

    `start` is the offset of the segment's first row.
    """
    firsts, stops = runs_of(segment)
    counts = np.cumsum(stops - firsts, dtype=np.uint64)
    places = np.where(offsets < start, np.uint64(0), offsets - np.uint64(start))
    run = np.searchsorted(counts, places, "right")
    inside = run < len(counts)
    ids = np.full(len(places), _LAST, np.uint64)
    here = run[inside]
    ids[inside] = stops[here] - (counts[here] - places[inside])
    return ids
