"""A version's fragments as bytes, shared between versions.

A table of 100,000 fragments has 10 MB of them, and an Append adds 100 bytes. So they are kept as chunks in the form in
which a serialized `Manifest` holds them: put one after the other, chunks are its field 2. The next version shares all
chunks but the last few, and nothing is decoded, copied or serialized again for what did not change.

What rules need to know of all fragments (`Facts`) is found out once for each chunk. Where they look at single ones,
only the chunks with these are decoded.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from typing import NamedTuple, TypeVar

from pyroaring import BitMap64

from committerd_common.messages import (
    DataFragment,
    FragmentShape,
    Manifest,
    PackedManifest,
    ShapedManifest,
    SizedManifest,
)

_SAMPLES_KEPT_MAX = 16
_SKIMMED_AT_ONCE = 4096
_CUT_AT_ONCE = 1000
_SCHEMA_TAG, _FRAGMENT_TAG = 0x0A, 0x12
"""Of `Manifest.fields` (1) and `Manifest.fragments` (2), both with a length."""
_MORE = 0x80
"""From here on a byte of a length is followed by another."""

T = TypeVar("T")

CHUNK_BYTES_MAX = 256 * 1024
"""About the most of a chunk with more than one fragment. Joining 100 MB of them is still little more than copying, and
decoding one of them for a single fragment takes less than a millisecond."""


class Facts(NamedTuple):
    """What can be said of fragments without having them at hand."""

    ids: BitMap64 = BitMap64()
    ascending: bool = True
    """Strictly: so no id is there twice."""
    has_deletions: bool = False
    """Some fragment has a deletion file."""
    has_unknown_fields: bool = False


class Chunk:
    """Some fragments, in the wire form of `Manifest.fragments`. Never changed, and shared between versions."""

    __slots__ = ("_facts", "_samples", "body", "count")

    def __init__(self, body: bytes, count: int, facts: Facts | None = None) -> None:
        """`count` is above 0, and `body` as protobuf serializes so many fragments."""
        self.body = body
        self.count = count
        self._facts = facts
        self._samples: Sequence[DataFragment] | None = None

    @property
    def facts(self) -> Facts:
        """Found out once; costs a look at each fragment."""
        if self._facts is None:
            decoded = self.decoded()
            ids = [fragment.id for fragment in decoded.fragments]
            has_deletions = any(fragment.HasField("deletion_file") for fragment in self.samples())
            decoded.DiscardUnknownFields()
            self._facts = Facts(
                ids=BitMap64(ids),
                ascending=all(one < next_one for one, next_one in pairwise(ids)),
                has_deletions=has_deletions,
                has_unknown_fields=decoded.ByteSize() != len(self.body),
            )
        return self._facts

    def decoded(self) -> Manifest:
        """A manifest with these fragments, and nothing else."""
        return Manifest.FromString(self.body)

    def samples(self) -> Sequence[DataFragment]:
        """One fragment of each kind. Others differ from it in their id, in what is said of files beside fields and
        base, and, where it has no deletions, row ids or row versions, in how many rows they have: some or none are two
        kinds.
        """
        if self._samples is not None:
            return self._samples
        shaped = ShapedManifest.FromString(self.body)
        shaped.DiscardUnknownFields()
        shapes = PackedManifest.FromString(shaped.SerializeToString()).fragments
        places = {_kind(shape): place for shape, place in dict(zip(shapes, range(self.count), strict=True)).items()}
        fragments = self.decoded().fragments
        samples = [fragments[place] for place in places.values()]
        if len(samples) > _SAMPLES_KEPT_MAX:
            return samples
        # Copies: a part of a decoded message keeps all of it in memory.
        self._samples = [DataFragment.FromString(one.SerializeToString()) for one in samples]
        return self._samples

    def followed_by(self, other: Chunk) -> Chunk:
        """Both in one."""
        return Chunk(self.body + other.body, self.count + other.count, _together(self.facts, other.facts))


class Taken(NamedTuple):
    """A list in two parts; see `FragmentList.without`."""

    rest: FragmentList
    chunks: Sequence[Chunk]


class FragmentList:
    """Fragments in the order in which a manifest lists them. Nobody changes it; `NO_FRAGMENTS` is the empty one."""

    __slots__ = ("_count", "_facts", "chunks", "size")

    def __init__(self, chunks: Iterable[Chunk] = (), *, facts: Facts | None = None) -> None:
        """`facts`: what is known of all of them; None = to be found out when it is asked for."""
        self.chunks = tuple(chunks)
        self.size = sum(len(chunk.body) for chunk in self.chunks)
        """Bytes of all chunks."""
        self._count = sum(chunk.count for chunk in self.chunks)
        self._facts = facts

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[DataFragment]:
        """All of them, decoded a chunk at a time."""
        for chunk in self.chunks:
            yield from chunk.decoded().fragments

    def newest_first(self) -> Iterator[DataFragment]:
        """All of them, by descending id; where the list ascends, decoded a chunk at a time."""
        if not self.facts.ascending:
            yield from sorted(self, key=lambda one: one.id, reverse=True)
            return
        for chunk in reversed(self.chunks):
            yield from reversed(chunk.decoded().fragments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FragmentList) and b"".join(self.bodies()) == b"".join(other.bodies())

    def __hash__(self) -> int:
        return hash((self._count, self.size))

    @property
    def facts(self) -> Facts:
        """Of all fragments; found out once."""
        if self._facts is None:
            self._facts = reduce(_together, (chunk.facts for chunk in self.chunks), Facts())
        return self._facts

    @property
    def last_id(self) -> int:
        """The highest id; -1 where there is no fragment."""
        return int(self.facts.ids.max()) if self.chunks else -1

    def bodies(self) -> Iterator[bytes]:
        """Joined, they are field 2 of the manifest."""
        return (chunk.body for chunk in self.chunks)

    def found(self, look: Callable[[DataFragment], Iterable[T]]) -> Iterator[T]:
        """What `look` finds in each fragment. It yields that, raises nothing, and must not depend on what
        `Chunk.samples` leaves aside.

        All are looked at only where it finds something in the samples.
        """
        if any(True for chunk in self.chunks for fragment in chunk.samples() for _ in look(fragment)):
            for fragment in self:
                yield from look(fragment)

    def of(self, ids: Iterable[int]) -> list[DataFragment]:
        """The fragments with these ids, as far as they are there. Decodes only the chunks that have them.

        They are shared: nobody changes them.
        """
        wanted = BitMap64(ids)
        found: list[DataFragment] = []
        for chunk in self.chunks:
            here = wanted & chunk.facts.ids
            if here:
                found += _picked(chunk, here)
        return found

    def without(self, ids: Iterable[int]) -> Taken:
        """Take out the chunks among whose ids these lie, whether or not they are there.

        None of these then lies between two ids of one chunk of the rest. The ids of the list must ascend.
        """
        lasts = [int(chunk.facts.ids.max()) for chunk in self.chunks]
        hit = set()
        for one in ids:
            place = bisect_left(lasts, one)
            if place < len(lasts) and self.chunks[place].facts.ids.min() <= one:
                hit.add(place)
        if not hit:
            return Taken(self, ())
        return Taken(
            FragmentList(chunk for place, chunk in enumerate(self.chunks) if place not in hit),
            [self.chunks[place] for place in sorted(hit)],
        )

    def with_added(self, other: FragmentList) -> FragmentList:
        """These and those, in the order of ids: both must ascend strictly, have no id in common, and none of the others
        may lie among the ids of one chunk of these.

        Behind these, they cost copying the last chunks, little on average: a chunk is copied again when as much was
        added as it has.
        """
        if not self.chunks or not other.chunks:
            return self if self.chunks else other
        if self.last_id > other.facts.ids.min():
            return self._interleaved(other)
        chunks = list(self.chunks)
        for chunk in other.chunks:
            _push(chunks, chunk)
        return FragmentList(chunks, facts=_together(self.facts, other.facts))

    def _interleaved(self, other: FragmentList) -> FragmentList:
        fragments, ids = list(other), list(other.facts.ids)
        chunks: list[Chunk] = []
        start = 0
        for chunk in self.chunks:
            end = bisect_left(ids, chunk.facts.ids.min(), start)
            _push_all(chunks, fragments[start:end])
            _push(chunks, chunk)
            start = end
        _push_all(chunks, fragments[start:])
        return FragmentList(chunks)


NO_FRAGMENTS = FragmentList()


def unpack(body: bytes) -> tuple[Manifest, FragmentList]:
    """A serialized manifest as its outline, which is all but the fragments, and these.

    The fragments are decoded once, to know that they can be. Raises `DecodeError`.
    """
    return _parted(body, _checked)


class Skimmed(NamedTuple):
    """A manifest whose fragments were only counted."""

    outline: Manifest
    """All but the fragments."""
    fragments: int
    data_bytes: int
    """Of their data files, as far as the manifest says."""


def skim(body: bytes) -> Skimmed:
    """A serialized manifest without keeping its fragments, of which some thousand are decoded at a time.

    Raises `DecodeError`.
    """
    packed = PackedManifest.FromString(body)
    fragments = packed.fragments
    count, data_bytes = len(fragments), 0
    for start in range(0, count, _SKIMMED_AT_ONCE):
        part = PackedManifest(fragments=fragments[start : start + _SKIMMED_AT_ONCE]).SerializeToString()
        sized = SizedManifest.FromString(part)
        data_bytes += sum([file.file_size_bytes for fragment in sized.fragments for file in fragment.files])
    packed.ClearField("fragments")
    return Skimmed(Manifest.FromString(packed.SerializeToString()), count, data_bytes)


def fragments_range(
    body: bytes, known: bytes = b"", *, within: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """Where in a serialized manifest its fragments lie, a half-open range of bytes; None where they lie apart.

    `known`: fragments of another manifest, passed over in one step where this one begins with them. `within`: where in
    the bytes the manifest lies; None = it is all of them. Raises `DecodeError`.
    """
    first, size = within or (0, len(body))
    start = _behind(body, first, _SCHEMA_TAG, size=size)
    end = start + len(known) if body.startswith(known, start) else start
    end = _behind(body, end, _FRAGMENT_TAG, size=size)
    return None if PackedManifest.FromString(body[end:size]).fragments else (start, end)


def cut(body: bytes) -> Iterator[bytes]:
    """Serialized fragments in parts of a thousand."""
    start = 0
    while start < len(body):
        end = _behind(body, start, _FRAGMENT_TAG, size=len(body), most=_CUT_AT_ONCE)
        yield body[start:end]
        start = end


def _behind(body: bytes, start: int, tag: int, *, size: int, most: int = sys.maxsize) -> int:
    """The first byte behind the fields with this tag that begin at `start`, of so many at most; each has a length."""
    while start < size and body[start] == tag and most:
        most -= 1
        start += 1
        length = shift = 0
        while start < size and body[start] >= _MORE:
            length |= (body[start] - _MORE) << shift
            shift += 7
            start += 1
        length |= (body[start] if start < size else 0) << shift
        start += 1 + length
    return start


def pack(manifest: Manifest) -> tuple[Manifest, FragmentList]:
    """A manifest as its outline and its fragments, in their order."""
    return _parted(manifest.SerializeToString(deterministic=True), Chunk)


def pack_fragments(fragments: Iterable[DataFragment]) -> FragmentList:
    """Fragments as a list, in their order."""
    _, packed = pack(Manifest(fragments=fragments))
    return packed


def _push_all(chunks: list[Chunk], fragments: Iterable[DataFragment]) -> None:
    for chunk in pack_fragments(fragments).chunks:
        _push(chunks, chunk)


def _push(chunks: list[Chunk], chunk: Chunk) -> None:
    """Add a chunk at the end, merged with what is there and not much larger.

    Sizes then halve, or are near the maximum: there are few chunks, and what is small is copied again seldom.
    """
    while chunks:
        size = len(chunks[-1].body)
        if size > 2 * len(chunk.body) or size + len(chunk.body) > CHUNK_BYTES_MAX:
            break
        chunk = chunks.pop().followed_by(chunk)
    chunks.append(chunk)


def _parted(body: bytes, chunk_of: Callable[[bytes, int], Chunk]) -> tuple[Manifest, FragmentList]:
    packed = PackedManifest.FromString(body)
    fragments, packed_size = packed.fragments, len(body)
    each = max(1, len(fragments) * CHUNK_BYTES_MAX // max(packed_size, 1))
    chunks = [
        chunk_of(PackedManifest(fragments=part).SerializeToString(), len(part))
        for part in (fragments[start : start + each] for start in range(0, len(fragments), each))
    ]
    packed.ClearField("fragments")
    return Manifest.FromString(packed.SerializeToString()), FragmentList(chunks)


def _checked(body: bytes, count: int) -> Chunk:
    """A chunk of another writer: as protobuf would write it here, whatever its writer's ways."""
    canonical = Manifest.FromString(body).SerializeToString(deterministic=True)
    return Chunk(canonical, count)


def _kind(shape: bytes) -> bytes:
    """The same for shapes that differ in nothing but how many rows there are."""
    rest = FragmentShape.FromString(shape)
    rest.ClearField("files")
    rest.ClearField("physical_rows")
    if rest.ByteSize():
        return shape
    plain = FragmentShape.FromString(shape)
    plain.physical_rows = min(plain.physical_rows, 1)
    return plain.SerializeToString()


@lru_cache(maxsize=4)
def _decoded(chunk: Chunk) -> Manifest:
    """Versions share chunks, and a transaction is held against two of them."""
    return chunk.decoded()


def _picked(chunk: Chunk, ids: BitMap64) -> list[DataFragment]:
    fragments = _decoded(chunk).fragments
    if not chunk.facts.ascending:
        return [fragment for fragment in fragments if fragment.id in ids]
    places = (bisect_left(fragments, one, key=lambda fragment: fragment.id) for one in ids)
    return [fragments[place] for place in places]


def _together(first: Facts, second: Facts) -> Facts:
    apart = not first.ids or not second.ids or first.ids.max() < second.ids.min()
    return Facts(
        ids=first.ids | second.ids,
        ascending=first.ascending and second.ascending and apart,
        has_deletions=first.has_deletions or second.has_deletions,
        has_unknown_fields=first.has_unknown_fields or second.has_unknown_fields,
    )
