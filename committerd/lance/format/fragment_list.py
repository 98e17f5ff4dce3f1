"""A version's fragments as bytes, shared between versions.

100,000 fragments take 10 MB, and an Append adds 100 bytes. So fragments are stored as chunks, in the form in which a
serialized `Manifest` has them: joined, the chunks are its field 2. The next version shares all chunks but the last few,
and unchanged fragments are not decoded, copied or serialized again.

The facts that rules need of all fragments (`FragmentFacts`) are computed once for each chunk. If a rule looks at single
fragments, only their chunks are decoded.
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
"""The most samples that a chunk keeps. As a rule its fragments are of few kinds; those of a hostile table differ."""
_DECODED_AT_ONCE = 1000
"""The number of fragments that are decoded at once where only facts about them are kept."""
_SCHEMA_TAG, _FRAGMENT_TAG = 0x0A, 0x12
"""The tags of `Manifest.fields` (1) and `Manifest.fragments` (2), both length-delimited."""
_MORE = 0x80
"""A byte of a length that has this bit is followed by another byte."""

T = TypeVar("T")

CHUNK_BYTES_MAX = 256 * 1024
"""The approximate maximum size of a chunk with more than one fragment, in bytes. Joining 100 MB of chunks takes little
longer than copying them, and decoding a chunk for a single fragment takes less than a millisecond."""


class FragmentFacts(NamedTuple):
    """Facts about fragments that need no decoded fragments."""

    ids: BitMap64 = BitMap64()
    ascending: bool = True
    """Whether ids ascend strictly; if so, no id occurs twice."""
    has_deletions: bool = False
    """Some fragment has a deletion file."""
    has_unknown_fields: bool = False


class Chunk:
    """Consecutive fragments, encoded as in `Manifest.fragments`. Immutable, and shared between versions."""

    __slots__ = ("_facts", "_samples", "body", "count")

    def __init__(self, body: bytes, count: int, facts: FragmentFacts | None = None) -> None:
        """`body` is as protobuf serializes `count` fragments; `count` is above 0."""
        self.body = body
        self.count = count
        self._facts = facts
        self._samples: Sequence[DataFragment] | None = None

    @property
    def facts(self) -> FragmentFacts:
        """The facts about these fragments. Computed once, from each fragment."""
        if self._facts is None:
            decoded = self.decoded()
            ids = [fragment.id for fragment in decoded.fragments]
            has_deletions = any(fragment.HasField("deletion_file") for fragment in self.samples())
            decoded.DiscardUnknownFields()
            self._facts = FragmentFacts(
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
        """One fragment of each kind.

        The fragments of a kind may differ in their ids, and in all attributes of their files but fields and base. If
        they have no deletions, row ids or row versions, they may differ in their number of rows too; fragments without
        rows are a kind of their own.
        """
        if self._samples is not None:
            return self._samples
        shaped = ShapedManifest.FromString(self.body)
        shaped.DiscardUnknownFields()
        shapes = PackedManifest.FromString(shaped.SerializeToString()).fragments
        positions = {
            _kind(shape): position for shape, position in dict(zip(shapes, range(self.count), strict=True)).items()
        }
        fragments = self.decoded().fragments
        samples = [fragments[position] for position in positions.values()]
        if len(samples) > _SAMPLES_KEPT_MAX:
            return samples
        # Copies, because a part of a decoded message keeps the whole message in memory.
        self._samples = [DataFragment.FromString(one.SerializeToString()) for one in samples]
        return self._samples

    def followed_by(self, other: Chunk) -> Chunk:
        """One chunk with the fragments of both."""
        return Chunk(self.body + other.body, self.count + other.count, _together(self.facts, other.facts))


class SplitList(NamedTuple):
    """A list in two parts; see `FragmentList.without`."""

    rest: FragmentList
    chunks: Sequence[Chunk]


class FragmentList:
    """Fragments in the order in which a manifest lists them. Immutable; `NO_FRAGMENTS` is the empty list."""

    __slots__ = ("_count", "_facts", "chunks", "size")

    def __init__(self, chunks: Iterable[Chunk] = (), *, facts: FragmentFacts | None = None) -> None:
        """`facts` are those of all fragments; None = computed when they are first needed."""
        self.chunks = tuple(chunks)
        self.size = sum(len(chunk.body) for chunk in self.chunks)
        """The size of all chunks in bytes."""
        self._count = sum(chunk.count for chunk in self.chunks)
        self._facts = facts

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[DataFragment]:
        """All fragments, decoded one chunk at a time."""
        for chunk in self.chunks:
            yield from chunk.decoded().fragments

    def newest_first(self) -> Iterator[DataFragment]:
        """All fragments by descending id; decoded one chunk at a time if the ids of the list ascend."""
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
    def facts(self) -> FragmentFacts:
        """The facts about all fragments. Computed once."""
        if self._facts is None:
            self._facts = reduce(_together, (chunk.facts for chunk in self.chunks), FragmentFacts())
        return self._facts

    @property
    def last_id(self) -> int:
        """The highest fragment id; -1 if there are no fragments."""
        return int(self.facts.ids.max()) if self.chunks else -1

    def bodies(self) -> Iterator[bytes]:
        """The bytes of each chunk; joined, they are field 2 of the manifest."""
        return (chunk.body for chunk in self.chunks)

    def found(self, look: Callable[[DataFragment], Iterable[T]]) -> Iterator[T]:
        """The results of `look` for all fragments.

        All fragments are decoded only if `look` finds something in the samples. So it must not depend on the
        differences that `Chunk.samples` ignores, and it must not raise.
        """
        if any(True for chunk in self.chunks for fragment in chunk.samples() for _ in look(fragment)):
            for fragment in self:
                yield from look(fragment)

    def of(self, ids: Iterable[int]) -> list[DataFragment]:
        """The fragments with these ids, as far as they exist. Decodes only the chunks that hold them.

        The messages are shared, so the caller must not change them.
        """
        wanted = BitMap64(ids)
        found: list[DataFragment] = []
        for chunk in self.chunks:
            here = wanted & chunk.facts.ids
            if here:
                found += _picked(chunk, here)
        return found

    def without(self, ids: Iterable[int]) -> SplitList:
        """Take out every chunk whose range of ids includes one of these ids, whether or not a fragment has it.

        Then none of these ids lies between two ids of a chunk that is left. The ids of the list must ascend.
        """
        lasts = [int(chunk.facts.ids.max()) for chunk in self.chunks]
        hit = set()
        for one in ids:
            position = bisect_left(lasts, one)
            if position < len(lasts) and self.chunks[position].facts.ids.min() <= one:
                hit.add(position)
        if not hit:
            return SplitList(self, ())
        return SplitList(
            FragmentList(chunk for position, chunk in enumerate(self.chunks) if position not in hit),
            [self.chunks[position] for position in sorted(hit)],
        )

    def with_added(self, other: FragmentList) -> FragmentList:
        """The fragments of both lists, in ascending order of ids.

        Both lists must ascend strictly and have no id in common, and no id of `other` may lie between two ids of a
        chunk of this list. Adding fragments at the end copies the last chunks. On average that is cheap, because a
        chunk is copied again only after as many bytes were added as it holds.
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
    """Split a serialized manifest into its outline, which is all but the fragments, and the fragments.

    It decodes the fragments once, to check them. Raises `DecodeError`.
    """
    return _parted(body, _checked)


class ManifestSummary(NamedTuple):
    """A manifest whose fragments were only counted."""

    outline: Manifest
    """All but the fragments."""
    fragments: int
    data_bytes: int
    """The size of all data files, as far as the manifest says."""


def skim(body: bytes) -> ManifestSummary:
    """Count the fragments of a serialized manifest without keeping them; decodes a thousand at a time.

    Raises `DecodeError`.
    """
    packed = PackedManifest.FromString(body)
    count, data_bytes = len(packed.fragments), 0
    for part in _sized(packed):
        data_bytes += sum([file.file_size_bytes for fragment in part.fragments for file in fragment.files])
    return ManifestSummary(_outline(packed), count, data_bytes)


def outline_of(body: bytes) -> Manifest:
    """As `skim`, without the figures; takes a fraction of the time."""
    return _checked_outline(PackedManifest.FromString(body))


class Outlines:
    """Decodes manifests as `outline_of` does, and faster if their fragments begin with those of an earlier one.

    These were checked already, and are skipped. So decode a history from its oldest version on.
    """

    def __init__(self) -> None:
        self._checked = b""

    def outline_of(self, body: bytes) -> Manifest:
        """The manifest without its fragments. Raises `DecodeError`."""
        if len(body) > CHUNK_BYTES_MAX:
            return outline_of(body)  # a copy of its fragments would take several times their memory
        start = _behind(body, 0, _SCHEMA_TAG, size=len(body))
        if self._checked and body.startswith(self._checked, start):
            return outline_of(body[:start] + body[start + len(self._checked) :])
        packed = PackedManifest.FromString(body)
        fragments = PackedManifest(fragments=packed.fragments).SerializeToString()
        outline = _checked_outline(packed)
        self._checked = fragments
        return outline


def _checked_outline(packed: PackedManifest) -> Manifest:
    for _ in _sized(packed):
        pass  # decoding is the check
    return _outline(packed)


def _sized(packed: PackedManifest) -> Iterator[SizedManifest]:
    """Decode the fragments, a thousand at a time, as far as the sizes of their files need it."""
    for start in range(0, len(packed.fragments), _DECODED_AT_ONCE):
        part = PackedManifest(fragments=packed.fragments[start : start + _DECODED_AT_ONCE])
        yield SizedManifest.FromString(part.SerializeToString())


def _outline(packed: PackedManifest) -> Manifest:
    packed.ClearField("fragments")
    return Manifest.FromString(packed.SerializeToString())


def fragments_range(
    body: bytes, known: bytes = b"", *, within: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """The half-open range of bytes of the fragments in a serialized manifest; None if they are not contiguous or whole.

    `known` are the fragments of another manifest, skipped in one step if this one begins with them. `within` is the
    range of the manifest in `body`; None = all of it. Raises `DecodeError`.
    """
    first, size = within or (0, len(body))
    start = _behind(body, first, _SCHEMA_TAG, size=size)
    end = start + len(known) if body.startswith(known, start) else start
    end = _behind(body, end, _FRAGMENT_TAG, size=size)
    if end > size:
        return None  # the last one is cut off: decoding the whole says so
    return None if PackedManifest.FromString(body[end:size]).fragments else (start, end)


def cut(body: bytes) -> Iterator[bytes]:
    """Cut serialized fragments into parts of a thousand fragments."""
    start = 0
    while start < len(body):
        end = _behind(body, start, _FRAGMENT_TAG, size=len(body), most=_DECODED_AT_ONCE)
        yield body[start:end]
        start = end


def _behind(body: bytes, start: int, tag: int, *, size: int, most: int = sys.maxsize) -> int:
    """The position behind the length-delimited fields with this tag that begin at `start`, at most `most` of them."""
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
    """Split a manifest into its outline and its fragments, in their order."""
    return _parted(manifest.SerializeToString(deterministic=True), Chunk)


def pack_fragments(fragments: Iterable[DataFragment]) -> FragmentList:
    """A list of these fragments, in their order."""
    _, packed = pack(Manifest(fragments=fragments))
    return packed


def _push_all(chunks: list[Chunk], fragments: Iterable[DataFragment]) -> None:
    for chunk in pack_fragments(fragments).chunks:
        _push(chunks, chunk)


def _push(chunks: list[Chunk], chunk: Chunk) -> None:
    """Add a chunk at the end, merged with the last chunks if those are not much larger.

    Then chunk sizes halve from one to the next, or are near the maximum: there are few chunks, and copies are rare.
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
    return _outline(packed), FragmentList(chunks)


def _checked(body: bytes, count: int) -> Chunk:
    """A chunk from another writer's bytes, encoded as protobuf encodes it here."""
    canonical = Manifest.FromString(body).SerializeToString(deterministic=True)
    return Chunk(canonical, count)


def _kind(shape: bytes) -> bytes:
    """A key that is equal for shapes that differ only in their number of rows."""
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
    """Decode a chunk. Cached, because versions share chunks and a transaction is compared with two versions."""
    return chunk.decoded()


def _picked(chunk: Chunk, ids: BitMap64) -> list[DataFragment]:
    fragments = _decoded(chunk).fragments
    if not chunk.facts.ascending:
        return [fragment for fragment in fragments if fragment.id in ids]
    positions = (bisect_left(fragments, one, key=lambda fragment: fragment.id) for one in ids)
    return [fragments[position] for position in positions]


def _together(first: FragmentFacts, second: FragmentFacts) -> FragmentFacts:
    apart = not first.ids or not second.ids or first.ids.max() < second.ids.min()
    return FragmentFacts(
        ids=first.ids | second.ids,
        ascending=first.ascending and second.ascending and apart,
        has_deletions=first.has_deletions or second.has_deletions,
        has_unknown_fields=first.has_unknown_fields or second.has_unknown_fields,
    )
