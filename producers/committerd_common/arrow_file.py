"""How much memory the batches of an Arrow file take, found without decompressing anything.

pyarrow makes room for what a file says: 33 KB can take 3 GiB. An Arrow file ends with a footer that says where each
batch lies, the head of a batch says where its buffers lie, and a compressed buffer begins with its decompressed length.
Footer and heads are flatbuffers. Source: Arrow columnar format, IPC file format; File.fbs, Message.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from committerd_common.malformed import MalformedError

_MAGIC = b"ARROW1"
_VERSION_5 = 4
"""`MetadataVersion.V5` of Arrow 1.0 (2020) and newer; older files name their compression elsewhere."""
_DICTIONARIES, _BATCHES = 2, 3
"""Fields of `Footer`."""
_VERSION, _HEADER = 0, 2
"""Fields of `Message`."""
_BUFFERS, _COMPRESSION = 2, 3
"""Fields of `RecordBatch`."""
_BLOCK, _BUFFER = "<qi4xq", "<qq"


def only_values(body: bytes) -> range:
    """The places of the last buffer of the first batch, if they are nothing else: neither another buffer, nor a part of
    what says where buffers lie and how they are to be read. Otherwise an empty range.

    Raises `MalformedError`.
    """
    end = len(body) - len(_MAGIC) - 4
    footer = end - _number("<i", body, end)
    place, head, _ = next(_structs(_BLOCK, body, _root(body, footer), _BATCHES))
    is_compressed, buffers = _buffers(body, place)
    *others, (offset, length) = ((place + head + offset, length) for offset, length in buffers)
    is_apart = place + head <= offset and offset + length <= footer
    is_apart = is_apart and all(start + size <= offset for start, size in others)
    return range(offset + (8 if is_compressed else 0), offset + length) if is_apart else range(0)


def decompressed_bytes(body: bytes) -> int:
    """The size of all buffers of all batches. Raises `MalformedError`."""
    end = len(body) - len(_MAGIC) - 4
    footer = _root(body, end - _number("<i", body, end))
    if next(_structs(_BLOCK, body, footer, _DICTIONARIES), None) is not None:
        raise MalformedError("it has dictionaries")
    return sum(_in_batch(body, place, head) for place, head, _ in _structs(_BLOCK, body, footer, _BATCHES))


def _in_batch(body: bytes, place: int, head: int) -> int:
    """The size of the buffers of the batch at this place, with a head of `head` bytes."""
    is_compressed, buffers = _buffers(body, place)
    size = 0
    for offset, length in buffers:
        known = _number("<q", body, place + head + offset) if is_compressed and length > 0 else -1
        size += length if known < 0 else known
    return size


def _buffers(body: bytes, place: int) -> tuple[bool, Iterator[tuple[int, ...]]]:
    """Whether the buffers of the batch at this place are compressed, and (offset, length) of each."""
    is_new = _number("<i", body, place) == -1
    message = _root(body, place + (8 if is_new else 4))
    version, header = _field(body, message, _VERSION), _field(body, message, _HEADER)
    if version is None or header is None or _number("<h", body, version) != _VERSION_5:
        raise MalformedError("it is of an old version of the Arrow format")
    batch = header + _number("<I", body, header)
    return _field(body, batch, _COMPRESSION) is not None, _structs(_BUFFER, body, batch, _BUFFERS)


def _root(body: bytes, place: int) -> int:
    """The place of the table with which the flatbuffer at this place begins."""
    return place + _number("<I", body, place)


def _field(body: bytes, table: int, number: int) -> int | None:
    """The place of a table's field; None if the table does not have it."""
    layout = table - _number("<i", body, table)
    entry = 4 + 2 * number
    if entry >= _number("<H", body, layout):
        return None
    return table + offset if (offset := _number("<H", body, layout + entry)) else None


def _structs(kind: str, body: bytes, table: int, number: int) -> Iterator[tuple[int, ...]]:
    """The entries of a table's field that is a vector of structs."""
    field = _field(body, table, number)
    if field is not None:
        place = field + _number("<I", body, field)
        for entry in range(_number("<I", body, place)):
            yield _numbers(kind, body, place + 4 + entry * struct.calcsize(kind))


def _number(kind: str, body: bytes, place: int) -> int:
    return _numbers(kind, body, place)[0]


def _numbers(kind: str, body: bytes, place: int) -> tuple[int, ...]:
    if not 0 <= place <= len(body) - struct.calcsize(kind):
        raise MalformedError("it names places outside itself")
    return struct.unpack_from(kind, body, place)
