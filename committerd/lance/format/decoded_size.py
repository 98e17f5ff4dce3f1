"""Bounds the memory that a transaction takes once it is decoded, before it is decoded.

protobuf allocates up to 120 bytes for each message inside another message, and an empty message takes two bytes on the
wire: a record of 1 MB can take 60 MB. The messages of a writer are longer: a fragment names a file, a field has a name.
So bytes with too many messages for their size are refused, and all others take at most 32 times their size. (Lists of
numbers take up to 16 times their size.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

from google.protobuf.descriptor import Descriptor

from committerd.errors import InvalidRequest
from committerd_common.messages import Transaction

SMALL_BYTES_MAX = 4096
"""A transaction of at most this many bytes is not examined: it takes up to 64 times its size."""
_FACTOR, _SMALL_FACTOR = 32, 64
_SHORT_BYTES = 32
"""A message of fewer bytes is short. Longer messages take at most four times their size."""
_BYTES_PER_MESSAGE, _BYTES_PER_MESSAGE_OF_LARGE = 8, 24
"""Bytes that a transaction needs for each message, up to `_LARGE_BYTES` and beyond.

The entries of a configuration are the shortest messages of a writer, and no table may have many of them. A large
transaction holds fragments with their files: 20 bytes for each message at least, with everything that a fragment may
have, and 8 MiB may have one for each 19 bytes.
"""
_LARGE_BYTES = 1024 * 1024
_VARINT, _EIGHT_BYTES, _COUNTED, _FOUR_BYTES = 0, 1, 2, 5
"""Wire types of protobuf."""


def decoded_bytes_max(size: int) -> int:
    """The most memory, in bytes, that a transaction of `size` bytes takes after `require_few_messages`."""
    return size * (_SMALL_FACTOR if size <= SMALL_BYTES_MAX else _FACTOR)


def require_few_messages(body: bytes) -> None:
    """Return if the decoded transaction takes at most `decoded_bytes_max` of memory.

    Raises `InvalidRequest` with code `budget_exceeded`.
    """
    if len(body) <= SMALL_BYTES_MAX:
        return
    large = max(0, len(body) - _LARGE_BYTES)
    allowed = (len(body) - large) // _BYTES_PER_MESSAGE + large // _BYTES_PER_MESSAGE_OF_LARGE
    if has_more_messages(body, allowed, Transaction.DESCRIPTOR):
        raise InvalidRequest(
            f"the transaction ({len(body)} bytes) holds more than {allowed} messages, most of them very short: "
            "decoded it would take far more memory than others of its size. Stage the transaction as Lance writes it",
            code="budget_exceeded",
        )


def has_more_messages(body: bytes, allowed: int, kind: Descriptor) -> bool:
    """Whether a message of this kind holds so many others, at any depth, that most of them are short.

    `allowed`: the number of short ones that it may hold. Takes 4 ms for 1 MB as a rule, up to 1 s at worst.
    """
    return _short_messages_max(body, _tag_ends(kind)) > allowed and _counts_more(body, allowed, kind)


def _short_messages_max(body: bytes, tag_ends: Collection[int]) -> int:
    """An upper bound of the number of short messages in the body, at any depth. Takes 4 ms for 1 MB.

    Each short message begins with its field's tag and its length. So each has a position of its own at which the last
    byte of such a tag is followed by a small byte. A tag or length of more bytes than it needs ends with a zero after a
    byte above 127.
    """
    import numpy as np  # loaded when it is needed: it takes a tenth of a second and 10 MiB

    is_tag_end = np.zeros(256, np.bool_)
    is_tag_end[list(tag_ends)] = True
    some = np.frombuffer(body, dtype=np.uint8)
    first, second = some[:-1], some[1:]
    short = is_tag_end[first] & (second < _SHORT_BYTES)
    too_long = (first > 127) & (second == 0)
    return int(np.count_nonzero(short | too_long))


def _counts_more(body: bytes, allowed: int, kind: Descriptor) -> bool:
    """Whether the body holds more than `allowed` messages, at any depth. What can't be decoded is not counted.

    Takes up to 1 s for 1 MB, in bytecode.
    """
    count, parts = 0, [(0, len(body), kind)]
    while parts:
        position, end, kind = parts.pop()
        for number, wire, start, stop in fields_on_the_wire(body, position, end):
            field = kind.fields_by_number.get(number) if wire == _COUNTED else None
            if field is not None and field.message_type is not None:
                count += 1
                if count > allowed:
                    return True
                parts.append((start, min(stop, end), field.message_type))
    return False


def fields_on_the_wire(body: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, and the start and end of the value, of each field in this range; ends at a wrong one."""
    while position < end:
        tag, start = _varint(body, position, end)
        match tag & 7:
            case _ if start > end:
                return
            case wire if wire == _VARINT:
                _, position = _varint(body, start, end)
            case wire if wire == _EIGHT_BYTES:
                position = start + 8
            case wire if wire == _FOUR_BYTES:
                position = start + 4
            case wire if wire == _COUNTED:
                length, start = _varint(body, start, end)
                position = start + length
            case _:
                return
        yield tag >> 3, tag & 7, start, position


def _varint(body: bytes, position: int, end: int) -> tuple[int, int]:
    """The number at this position, and the position behind it; a position beyond `end` if there is no number."""
    number = shift = 0
    while position < end:
        byte = body[position]
        number |= (byte & 127) << shift
        shift += 7
        position += 1
        if byte < 128:
            return number, position
    return 0, end + 1


@cache
def _tag_ends(kind: Descriptor) -> frozenset[int]:
    """The last byte of the tag of each field that holds messages, in messages of this kind and in the messages inside
    them.
    """
    return frozenset(_tag_ends_inside(kind, set()))


def _tag_ends_inside(kind: Descriptor, seen: set[str]) -> set[int]:
    ends: set[int] = set()
    for field in kind.fields:
        if field.message_type is None:
            continue
        tag = field.number << 3 | _COUNTED
        ends.add(tag if tag < 128 else tag >> 7)
        if field.message_type.full_name not in seen:
            seen.add(field.message_type.full_name)
            ends |= _tag_ends_inside(field.message_type, seen)
    return ends
