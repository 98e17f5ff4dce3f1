"""A manifest object: the one file that makes a version of a table.

Integers are little-endian. The position of a section is that of its length word, in bytes from the start:

    u32 length, IndexSection    at Manifest.index_section; only when there are indices
    u32 length, Transaction     at Manifest.transaction_section (21); 14.x has it in field 23
    u32 length, Manifest        the last section: nothing lies between it and the footer
    i64 position of the Manifest, i16 major, i16 minor, "LANC"

Tables in the old 0.1 format may have values of dictionary columns before all that. Nothing is
known about a file before its end is read, so decoding starts from a tail.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from committerd.errors import CorruptTable
from committerd.lance.format.byte_range import ByteRange
from committerd.lance.format.fragment_list import (
    NO_FRAGMENTS,
    FragmentList,
    ManifestSummary,
    fragments_range,
    outline_of,
    skim,
    unpack,
)
from committerd_common.messages import (
    DecodeError,
    IndexMetadata,
    IndexSection,
    Manifest,
    Transaction,
)

SECTION_HEAD_BYTES = 4
"""The size of the length word before each section."""
TAIL_BYTES = 64 * 1024
"""Bytes of the object's end to read first; Lance reads as many from object stores."""

T = TypeVar("T")

_LENGTH = struct.Struct("<I")
_FOOTER = struct.Struct("<qhh4s")
_MAGIC = b"LANC"
# Lance writes the file format's version here, 0.2, and never looks at it in a manifest.
_MAJOR, _MINOR = 0, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One decoded manifest object. Its messages are shared and cached, so callers must not change them."""

    outline: Manifest
    """The manifest without its fragments."""
    fragments: FragmentList
    index_section: IndexSection
    """Empty if the version has no indices."""
    transaction: Transaction | None
    """The inline transaction; its operation may be unknown. None if there is no inline transaction that can be used;
    then it is in the file that `Manifest.transaction_file` names.
    """
    transaction_bytes: bytes | None
    """The inline transaction as stored, from which a missing transaction file is written."""

    @property
    def version(self) -> int:
        return self.outline.version

    @property
    def indices(self) -> Sequence[IndexMetadata]:
        return self.index_section.indices

    @property
    def manifest(self) -> Manifest:
        """The whole manifest: a new message on each call, which belongs to the caller.

        For 100,000 fragments that takes 10 ms and 50 MB; `outline`, `fragments` and `part` are cheaper.
        """
        whole = Manifest()
        whole.CopyFrom(self.outline)
        for body in self.fragments.bodies():
            whole.MergeFromString(body)
        return whole

    def part(self, ids: Collection[int]) -> Manifest:
        """The manifest with only these fragments, as far as they exist."""
        if not ids:
            return self.outline
        chosen = Manifest(fragments=self.fragments.of(ids))
        chosen.MergeFrom(self.outline)
        return chosen


class Body:
    """The bytes of an object, in parts. The parts of a large manifest are shared with other versions, and joined only
    if a store needs them in one piece.
    """

    __slots__ = ("_size", "parts")

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.parts = tuple(parts)
        self._size = sum(map(len, self.parts))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

    def tail(self, size: int) -> bytes:
        """The last `size` bytes, or all if there are fewer."""
        taken: list[bytes] = []
        for part in reversed(self.parts):
            if size <= 0:
                break
            taken.append(part[-size:])
            size -= len(part)
        return b"".join(reversed(taken))


def missing(tail: bytes, size: int) -> ByteRange | None:
    """The range of bytes that must be read before `decode`; None if the tail is enough.

    `tail` is the end of an object of `size` bytes. One such range is always enough. Raises `CorruptTable` as `decode`
    does.
    """
    window = size - len(tail)
    position = manifest_position(tail, size)
    if position < window:
        return ByteRange(0, window)
    outline, _ = _manifest(tail, size, position)
    first = min([position, *_section_positions(outline)])
    return ByteRange(first, window) if first < window else None


def decode(body: bytes, size: int | None = None) -> ManifestFile:
    """Decode an object of `size` bytes. `body` is its end: all of it, or as much as `missing` asks for.

    It does not check that committerd supports the version, because a version in the history is read only for its
    transaction. Raises `CorruptTable`: `manifest_too_short`, `manifest_magic`, `manifest_position`, `manifest_length`,
    `manifest_bytes`, `index_section`.
    """
    if size is None:
        size = len(body)
    window = size - len(body)
    position = manifest_position(body, size)
    outline, fragments = _manifest(body, size, position)
    if min(_section_positions(outline), default=window) < window:
        raise ValueError("a section begins before the bytes given")
    transaction, transaction_bytes = _inline_transaction(body, outline, window, position)
    return ManifestFile(
        outline=outline,
        fragments=fragments,
        index_section=_index_section(body, outline, window, position),
        transaction=transaction,
        transaction_bytes=transaction_bytes,
    )


def section_length(head: bytes) -> int:
    """The size in bytes of the section whose length word is at the start of `head`, without the word itself."""
    return int(_LENGTH.unpack_from(head)[0])


def encode(manifest: Manifest, indices: Iterable[IndexMetadata], transaction: Transaction) -> bytes:
    """The object that makes `manifest` a version, with its indices and the transaction that made
    it.

    Positions in `manifest` are ignored, and the argument is not changed. The transaction's position goes into field 21,
    which all versions from 4.0 to 14.x read, and never into 23. The same arguments give the same bytes.
    """
    return bytes(assemble(manifest, NO_FRAGMENTS, IndexSection(indices=indices), transaction))


def assemble(manifest: Manifest, fragments: FragmentList, section: IndexSection, transaction: Transaction) -> Body:
    """Encode like `encode`, with `fragments` before the fragments in `manifest`.

    The bytes are those that protobuf would write for a manifest with all fragments.
    """
    placed = Manifest()
    placed.CopyFrom(manifest)
    placed.ClearField("index_section")
    # pylance 14.0.2: an old position here makes it read a length word from the wrong place and
    # crash on open.
    placed.ClearField("transaction_section_v14")
    sections: list[bytes] = []
    position = 0
    if section.indices:
        placed.index_section = position
        position += _append(sections, [section.SerializeToString(deterministic=True)])
    placed.transaction_section = position
    position += _append(sections, [transaction.SerializeToString(deterministic=True)])
    _append_manifest(sections, placed, fragments, position)
    return Body(sections)


def assemble_behind(body: bytes, manifest: Manifest, fragments: FragmentList, transaction: Transaction) -> Body:
    """Encode like `assemble`, behind the sections of `body`, an object that `decode` can read.

    They keep their positions, also those that committerd does not know. Only the transaction in `body` counts no more.
    """
    placed = Manifest()
    placed.CopyFrom(manifest)
    placed.ClearField("transaction_section_v14")
    position = manifest_position(body, len(body))
    sections = [body[:position]]
    placed.transaction_section = position
    position += _append(sections, [transaction.SerializeToString(deterministic=True)])
    _append_manifest(sections, placed, fragments, position)
    return Body(sections)


def _append_manifest(sections: list[bytes], manifest: Manifest, fragments: FragmentList, position: int) -> None:
    """Add the last section and the footer; `position` is that of the section."""
    own = manifest.SerializeToString(deterministic=True)
    # Protobuf writes fields by their numbers: the schema is 1, fragments are 2.
    schema = Manifest(fields=manifest.fields).ByteSize()
    _append(sections, [own[:schema], *fragments.bodies(), own[schema:]])
    sections.append(_FOOTER.pack(position, _MAJOR, _MINOR, _MAGIC))


def _append(sections: list[bytes], parts: Sequence[bytes]) -> int:
    """Add a section made of these parts; returns its length in bytes, with the length word."""
    length = sum(map(len, parts))
    sections.append(_LENGTH.pack(length))
    sections += parts
    return _LENGTH.size + length


def manifest_position(tail: bytes, size: int) -> int:
    """The position of the manifest's length word in the object, checked to be inside it."""
    if len(tail) < _FOOTER.size:
        raise CorruptTable(
            f"manifest object of {size} bytes: it is shorter than the footer of {_FOOTER.size}",
            code="manifest_too_short",
        )
    position, _, _, magic = _FOOTER.unpack_from(tail, len(tail) - _FOOTER.size)
    if magic != _MAGIC:
        raise CorruptTable(
            f"manifest object of {size} bytes: it ends in {magic!r}, not in {_MAGIC!r}",
            code="manifest_magic",
        )
    if not 0 <= position <= size - _FOOTER.size - _LENGTH.size:
        raise CorruptTable(
            f"manifest object of {size} bytes: its footer puts the manifest at byte {position}",
            code="manifest_position",
        )
    return int(position)


def skim_manifest(body: bytes, size: int) -> ManifestSummary:
    """Skim the manifest of an object of `size` bytes (`skim`); `body` is the object's end, from the manifest on.

    Raises `CorruptTable` as `decode` does.
    """
    return _blamed(skim, _manifest_bytes(body, size, manifest_position(body, size)), size)


def skim_outline(body: bytes, size: int, decode_manifest: Callable[[bytes], Manifest] = outline_of) -> Manifest:
    """The manifest of an object without its fragments, as `skim_manifest`; takes a fraction of its time.

    `decode_manifest`: `Outlines.outline_of`, for many versions of a table.
    """
    return _blamed(decode_manifest, _manifest_bytes(body, size, manifest_position(body, size)), size)


class ShallowManifest(NamedTuple):
    """A manifest object whose fragments were not decoded."""

    outline: Manifest
    fragments: bytes
    """Field 2 of the manifest, as stored."""
    transaction: Transaction | None
    """As in `ManifestFile`."""


def examine(body: bytes, known: bytes = b"") -> ShallowManifest:
    """Decode a whole object except its fragments; `known` as in `fragments_range`. Raises `CorruptTable` as `decode`
    does.
    """
    position = manifest_position(body, len(body))
    within = _manifest_range(body, len(body), position)
    outline, fragments = _blamed(lambda whole: _parted(whole, known, within), body, len(body))
    transaction, _ = _inline_transaction(body, outline, 0, position)
    return ShallowManifest(outline, fragments, transaction)


def indices_of(body: bytes, outline: Manifest) -> Sequence[IndexMetadata]:
    """The indices of a version, from its whole object. Raises `CorruptTable` (`index_section`)."""
    return _index_section(body, outline, 0, manifest_position(body, len(body))).indices


def _parted(body: bytes, known: bytes, within: tuple[int, int]) -> tuple[Manifest, bytes]:
    first, size = within
    found = fragments_range(body, known, within=within)
    if found is None:
        outline, fragments = unpack(body[first:size])
        return outline, b"".join(fragments.bodies())
    start, end = found
    return Manifest.FromString(body[first:start] + body[end:size]), body[start:end]


def _manifest(tail: bytes, size: int, position: int) -> tuple[Manifest, FragmentList]:
    """Decode outline and fragments; `position` is inside the tail."""
    return _blamed(unpack, _manifest_bytes(tail, size, position), size)


def _manifest_bytes(tail: bytes, size: int, position: int) -> bytes:
    """The serialized manifest; `position` is inside the tail."""
    start, end = _manifest_range(tail, size, position)
    return tail[start:end]


def _manifest_range(tail: bytes, size: int, position: int) -> tuple[int, int]:
    """The range of the serialized manifest in the tail."""
    start = position - (size - len(tail))
    if start < 0:
        raise ValueError("the manifest begins before the bytes given")
    end = len(tail) - _FOOTER.size
    (length,) = _LENGTH.unpack_from(tail, start)
    start += _LENGTH.size
    if length != end - start:
        raise CorruptTable(
            f"manifest object of {size} bytes: the manifest at byte {position} is said to have "
            f"{length} bytes, but {end - start} lie before the footer",
            code="manifest_length",
        )
    return start, end


def _blamed(decode_manifest: Callable[[bytes], T], manifest: bytes, size: int) -> T:
    try:
        return decode_manifest(manifest)
    except DecodeError as error:
        raise CorruptTable(
            f"manifest object of {size} bytes: the manifest can't be decoded: {error}",
            code="manifest_bytes",
        ) from error


def _transaction_positions(manifest: Manifest) -> list[int]:
    """The positions at which the inline transaction may be, the most reliable first."""
    positions = []
    if manifest.HasField("transaction_section_v14"):
        positions.append(manifest.transaction_section_v14)
    if manifest.HasField("transaction_section"):
        positions.append(manifest.transaction_section)
    return positions


def _section_positions(manifest: Manifest) -> list[int]:
    positions = _transaction_positions(manifest)
    if manifest.HasField("index_section"):
        positions.append(manifest.index_section)
    return positions


def _section(body: bytes, start: int, end: int) -> bytes | None:
    """The section whose length word is at `start`; None if it would end behind `end`."""
    if start > end - _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(body, start)
    start += _LENGTH.size
    return body[start : start + length] if start + length <= end else None


def _index_section(body: bytes, manifest: Manifest, window: int, position: int) -> IndexSection:
    if not manifest.HasField("index_section"):
        return IndexSection()
    section = _section(body, manifest.index_section - window, position - window)
    where = f"manifest of version {manifest.version}: its index section"
    if section is None:
        raise CorruptTable(
            f"{where} is said to be at byte {manifest.index_section}, where none fits before the "
            f"manifest at {position}",
            code="index_section",
        )
    try:
        return IndexSection.FromString(section)
    except DecodeError as error:
        raise CorruptTable(f"{where} can't be decoded: {error}", code="index_section") from error


def _inline_transaction(
    body: bytes, manifest: Manifest, window: int, position: int
) -> tuple[Transaction, bytes] | tuple[None, None]:
    """The first of fields 23 and 21 that leads to a transaction.

    A field 23 that another program has copied from an older manifest is a wrong position: of bytes that can't be
    decoded, or of the index section, which decodes to a transaction without a uuid. Then field 21 counts.
    """
    for start in _transaction_positions(manifest):
        section = _section(body, start - window, position - window)
        if section is None:
            continue
        try:
            transaction = Transaction.FromString(section)
        except DecodeError:
            continue
        if transaction.uuid:
            return transaction, section
    return None, None
