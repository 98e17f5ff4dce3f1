"""What the metadata of an index says: type URLs and bitmaps are read and written here only."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from pyroaring import AbstractBitMap, BitMap, BitMap64

from committerd_common.errors import UnsupportedTable
from committerd_common.malformed import MalformedError, blamed
from committerd_common.messages import Any, DecodeError, IndexMetadata, Message
from committerd_common.unknown_fields import unknown_fields

FRAGMENT_ID_MAX = 2**32 - 2
"""Ids are the upper half of 64-bit row addresses; all ones marks a row that is gone."""
_UPPER_HALF_BYTES = 12
FRAGMENT_REUSE_INDEX = "__lance_frag_reuse"
MEM_WAL_INDEX = "__lance_mem_wal"
SYSTEM_INDICES = frozenset({FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX})

Details = TypeVar("Details", bound=Message)


def pack_details(details: Message) -> Any:
    """Wrap as Lance does: the type URL has no host, and names the message as Lance calls it.

    Raises `UnsupportedTable` with code `index_details_fields` for details with unknown fields,
    which would say something that is no longer true.
    """
    unknown = unknown_fields(details)
    if unknown:
        raise UnsupportedTable(
            f"index details can't be changed, as {', '.join(unknown)} are unknown to us",
            code="index_details_fields",
        )
    name = details.DESCRIPTOR.full_name.removeprefix("committerd.")
    return Any(type_url=f"/{name}", value=details.SerializeToString(deterministic=True))


def unpack_details(index: IndexMetadata, kind: type[Details], *, staged: bool = False) -> Details:
    """Decode an index's details as `kind`. They may have unknown fields.

    Only the last segment of the type's name is compared, as Lance does: writers disagree on the
    package. Raises `InvalidRequest` when staged, else `CorruptTable`, with code `index_details`,
    when it is of another type or can't be decoded.
    """
    wanted = kind.DESCRIPTOR.name
    with blamed(f"index {index.name!r}", code="index_details", staged=staged):
        if type_name(index) != wanted:
            raise MalformedError(f"its details have type {index.index_details.type_url!r}; {wanted} is needed")
        details = kind()
        try:
            details.ParseFromString(index.index_details.value)
        except DecodeError as error:
            raise MalformedError(f"its {wanted} can't be decoded: {error}") from error
        return details


def type_name(index: IndexMetadata) -> str:
    """Name of the details' message without its package, such as `BTreeIndexDetails`.

    Empty when there are no details.
    """
    return index.index_details.type_url.rpartition("/")[2].rpartition(".")[2]


def is_vector_index(index: IndexMetadata) -> bool:
    # Lance: it looks at the end of the type URL, and at nothing else.
    return index.index_details.type_url.endswith("VectorIndexDetails")


def is_system_index(index: IndexMetadata) -> bool:
    """Whether Lance keeps it for itself: it indexes no column."""
    return index.name in SYSTEM_INDICES


def covered_fragments(index: IndexMetadata, *, staged: bool) -> BitMap | None:
    """Ids of the fragments that the index covers, gone ones included; None = unknown.

    Raises `InvalidRequest` when staged, else `CorruptTable`, with code `index_bitmap`.
    """
    if not index.fragment_bitmap:
        return None
    with blamed(f"index {index.name!r}", code="index_bitmap", staged=staged):
        try:
            return BitMap.deserialize(index.fragment_bitmap)
        except ValueError as error:
            raise MalformedError(f"its fragment bitmap is no portable 32-bit Roaring bitmap: {error}") from error


def covers_any(covered: AbstractBitMap | None, fragments: Collection[int]) -> bool:
    """Whether one of these fragments is covered; not where it is unknown. Takes as long as there are fragments given,
    however many are covered.
    """
    return covered is not None and any(one in covered for one in fragments if one <= FRAGMENT_ID_MAX)


def narrow(ids: BitMap64) -> BitMap:
    """The same in the form that the fragments of an index have; ids fit it. Nothing is listed.

    What has 64 bits is a count (u64) and, for each upper half (u32), what has 32.
    """
    return BitMap.deserialize(ids.serialize()[_UPPER_HALF_BYTES:]) if ids else BitMap()


def encode_fragments(fragments: BitMap) -> bytes:
    """For `IndexMetadata.fragment_bitmap`. Never empty bytes, which would mean unknown."""
    return bytes(fragments.serialize())
