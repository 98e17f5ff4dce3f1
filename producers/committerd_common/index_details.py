"""Index metadata: the only module that reads and writes the type URLs and bitmaps of indices."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from pyroaring import AbstractBitMap, BitMap, BitMap64

from committerd_common.errors import UnsupportedTable
from committerd_common.malformed import MalformedError, blamed
from committerd_common.messages import Any, DecodeError, IndexMetadata, Message
from committerd_common.unknown_fields import unknown_fields

FRAGMENT_ID_MAX = 2**32 - 2
"""The highest fragment id. Ids are the upper half of 64-bit row addresses; all ones marks a deleted row."""
_UPPER_HALF_BYTES = 12
FRAGMENT_REUSE_INDEX = "__lance_frag_reuse"
MEM_WAL_INDEX = "__lance_mem_wal"
SYSTEM_INDICES = frozenset({FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX})

Details = TypeVar("Details", bound=Message)


def pack_details(details: Message) -> Any:
    """Pack index details into an `Any` as Lance does: the type URL has no host, and uses Lance's name of the message.

    Raises `UnsupportedTable` with code `index_details_fields` for details with unknown fields: after a change of the
    others, those may no longer be true.
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
    """Decode an index's details as a message of type `kind`. It may have unknown fields.

    Like Lance, it compares only the last part of the type's name, because writers use different packages. Raises
    `InvalidRequest` (if `staged`) or else `CorruptTable`, with code `index_details`, if the details are of another
    type or can't be decoded.
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
    """The name of the details' message without its package, such as `BTreeIndexDetails`; empty if there are none."""
    return index.index_details.type_url.rpartition("/")[2].rpartition(".")[2]


def is_vector_index(index: IndexMetadata) -> bool:
    # Lance decides by the end of the type URL alone.
    return index.index_details.type_url.endswith("VectorIndexDetails")


def is_system_index(index: IndexMetadata) -> bool:
    """Whether this is one of Lance's own indices, which index no column."""
    return index.name in SYSTEM_INDICES


def covered_fragments(index: IndexMetadata, *, staged: bool) -> BitMap | None:
    """The ids of the fragments that the index covers, even if they no longer exist; None = unknown.

    Raises `InvalidRequest` (if `staged`) or else `CorruptTable`, with code `index_bitmap`, for a bitmap that can't be
    decoded.
    """
    if not index.fragment_bitmap:
        return None
    with blamed(f"index {index.name!r}", code="index_bitmap", staged=staged):
        try:
            return BitMap.deserialize(index.fragment_bitmap)
        except ValueError as error:
            raise MalformedError(f"its fragment bitmap is not a portable 32-bit Roaring bitmap: {error}") from error


def covers_any(covered: AbstractBitMap | None, fragments: Collection[int]) -> bool:
    """Whether at least one of these fragments is covered; False if `covered` is None (unknown).

    The time grows with the number of fragments given, not with the number covered.
    """
    return covered is not None and any(one in covered for one in fragments if one <= FRAGMENT_ID_MAX)


def narrow(ids: BitMap64) -> BitMap:
    """The same set as a 32-bit bitmap, as `IndexMetadata.fragment_bitmap` has it; all ids must be below 2^32.

    It cuts the bytes and lists no ids: a serialized 64-bit bitmap is a count (u64) and then, for each upper half (u32),
    a serialized 32-bit bitmap.
    """
    return BitMap.deserialize(ids.serialize()[_UPPER_HALF_BYTES:]) if ids else BitMap()


def encode_fragments(fragments: BitMap) -> bytes:
    """Encode for `IndexMetadata.fragment_bitmap`. The result is never empty, because empty bytes mean unknown."""
    return bytes(fragments.serialize())
