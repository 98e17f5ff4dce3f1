"""A manifest object: the one file that makes a version of a table.

Integers are little endian; positions are bytes from the start, and those of length words:

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
from committerd.lance.format.fragment_list import NO_FRAGMENTS, FragmentList, Skimmed, fragments_range, skim, unpack
from committerd_common.messages import (
    DecodeError,
    IndexMetadata,
    IndexSection,
    Manifest,
    Transaction,
)

SECTION_HEAD_BYTES = 4
"""Of the length word before each section."""
TAIL_BYTES = 64 * 1024
"""How much of the end to read first; Lance reads as much from object stores."""

T = TypeVar("T")

_LENGTH = struct.Struct("<I")
_FOOTER = struct.Struct("<qhh4s")
_MAGIC = b"LANC"
# Lance writes the file format's version here, 0.2, and never looks at it in a manifest.
_MAJOR, _MINOR = 0, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One decoded manifest object. The messages are shared and cached: nobody changes them."""

    outline: Manifest
    """The manifest without its fragments."""
    fragments: FragmentList
    index_section: IndexSection
    """Empty when the version has no indices."""
    transaction: Transaction | None
    """The inline transaction. None when there is none that can be used: then the file that
    `Manifest.transaction_file` names has it. Its operation may be one that we don't know."""
    transaction_bytes: bytes | None
    """As stored, for a transaction file that is missing."""

    @property
    def version(self) -> int:
        return self.outline.version

    @property
    def indices(self) -> Sequence[IndexMetadata]:
        return self.index_section.indices

    @property
    def manifest(self) -> Manifest:
        """The whole manifest: a message of the caller's own, made anew each time.

        Of 100,000 fragments that takes 10 ms and 50 MB; `outline`, `fragments` and `part` say most of it for less.
        """
        whole = Manifest()
        whole.CopyFrom(self.outline)
        for body in self.fragments.bodies():
            whole.MergeFromString(body)
        return whole

    def part(self, ids: Collection[int]) -> Manifest:
        """The manifest with these fragments only, as far as they are there."""
        if not ids:
            return self.outline
        chosen = Manifest(fragments=self.fragments.of(ids))
        chosen.MergeFrom(self.outline)
        return chosen


class Body:
    """The bytes of an object, in parts: those of a large manifest are shared with other versions, and joined only where
    they have to be.
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
        """The last `size` bytes, or all where there are fewer."""
        taken: list[bytes] = []
        for part in reversed(self.parts):
            if size <= 0:
                break
            taken.append(part[-size:])
            size -= len(part)
        return b"".join(reversed(taken))


class Missing(NamedTuple):
    """The half-open range of bytes that must be read and put before the tail."""

    start: int
    end: int


def missing(tail: bytes, size: int) -> Missing | None:
    """What else must be read before `decode`; None when the tail is enough.

    `tail` is the end of an object of `size` bytes. What is missing is one range, and asked for
    once. Raises `CorruptTable` as `decode` does.
    """
    window = size - len(tail)
    position = manifest_position(tail, size)
    if position < window:
        return Missing(0, window)
    outline, _ = _manifest(tail, size, position)
    first = min([position, *_section_positions(outline)])
    return Missing(first, window) if first < window else None


def decode(body: bytes, size: int | None = None) -> ManifestFile:
    """Decode an object of `size` bytes from its end: `body` is all of it, or as much as `missing`
    asks for.

    Does not ask whether we support what is in it: a version in between is read for its transaction
    alone. Raises `CorruptTable`: `manifest_too_short`, `manifest_magic`, `manifest_position`,
    `manifest_length`, `manifest_bytes`, `index_section`.
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
    """Bytes of the section whose length word `head` begins with; the word itself not counted."""
    return int(_LENGTH.unpack_from(head)[0])


def encode(manifest: Manifest, indices: Iterable[IndexMetadata], transaction: Transaction) -> bytes:
    """The object that makes `manifest` a version, with its indices and the transaction that made
    it.

    Positions in `manifest` are ignored and the argument is left alone. The transaction's position
    goes into field 21, which all of 4.0 to 14.x read, and never into 23. The same arguments give
    the same bytes.
    """
    return bytes(assemble(manifest, NO_FRAGMENTS, IndexSection(indices=indices), transaction))


def assemble(manifest: Manifest, fragments: FragmentList, section: IndexSection, transaction: Transaction) -> Body:
    """As `encode`, with these fragments before those that `manifest` has itself.

    The bytes are those that protobuf would write of all fragments in one message.
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
    own = placed.SerializeToString(deterministic=True)
    # Protobuf writes fields by their numbers: the schema is 1, fragments are 2.
    schema = Manifest(fields=placed.fields).ByteSize()
    _append(sections, [own[:schema], *fragments.bodies(), own[schema:]])
    sections.append(_FOOTER.pack(position, _MAJOR, _MINOR, _MAGIC))
    return Body(sections)


def _append(sections: list[bytes], parts: Sequence[bytes]) -> int:
    """Add a section that consists of these; returns its length with the length word."""
    length = sum(map(len, parts))
    sections.append(_LENGTH.pack(length))
    sections += parts
    return _LENGTH.size + length


def manifest_position(tail: bytes, size: int) -> int:
    """Where in the object the manifest's length word lies, checked to be inside it."""
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
            f"manifest object of {size} bytes: its manifest is said to be at byte {position}",
            code="manifest_position",
        )
    return int(position)


def skim_manifest(body: bytes, size: int) -> Skimmed:
    """The manifest of an object of `size` bytes, without keeping its fragments; `body` is its end from the manifest on.

    Raises `CorruptTable` as `decode`.
    """
    return _blamed(skim, _manifest_bytes(body, size, manifest_position(body, size)), size)


class Examined(NamedTuple):
    """An object whose fragments were not looked at."""

    outline: Manifest
    fragments: bytes
    """Field 2 of the manifest, as it lies there."""
    transaction: Transaction | None
    """As in `ManifestFile`."""


def examine(body: bytes, known: bytes = b"") -> Examined:
    """A whole object without its fragments; see `fragments_range`. Raises `CorruptTable` as `decode`."""
    position = manifest_position(body, len(body))
    within = _manifest_range(body, len(body), position)
    outline, fragments = _blamed(lambda whole: _parted(whole, known, within), body, len(body))
    transaction, _ = _inline_transaction(body, outline, 0, position)
    return Examined(outline, fragments, transaction)


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
    """Where in the tail the serialized manifest lies."""
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
    """Where the inline transaction may be, in the order in which that is to be believed."""
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
    """The section whose length word is at `start`; None when it would not end by `end`."""
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

    A 23 that some editor carried along from an older layout leads elsewhere: to nothing that can be
    decoded, or to the index section, which decodes to a transaction without a uuid. Then 21 counts.
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
