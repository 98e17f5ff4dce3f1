"""The descriptor of a data file of format 2, and what it says. It is at the end of the file; the values are not read.

    ... | table of global buffers: position and size of each | ... | footer of 40 bytes

The first global buffer is a `FileDescriptor`. Lance: lance-file, reader.rs, decode_footer.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from committerd.lance.format.bounds import FIELDS_MAX
from committerd.lance.format.byte_range import ByteRange
from committerd.lance.format.decoded_size import fields_on_the_wire, has_more_messages
from committerd_common.messages import DecodeError, FileDescriptor, PackedFileDescriptor

_FOOTER = struct.Struct("<QQQIIHH4s")
_BUFFER = struct.Struct("<QQ")
_MAGIC = b"LANC"

FOOTER_BYTES = _FOOTER.size

TAIL_BYTES = 64 * 1024
"""Bytes of the file's end to read first: they hold the descriptor of all but very wide files."""
DESCRIPTOR_BYTES_MAX = 8 * 1024 * 1024
MESSAGES_MAX = 200_000
"""The most short messages in a schema that is decoded: fields, and entries of their metadata.

They take up to 24 MB. The four million that a descriptor has room for would take 400 MB.
"""


class FileFacts(NamedTuple):
    """What a data file says of itself."""

    rows: int
    columns: int
    """The number of its columns."""
    fields: bytes
    """A serialized `FileDescriptor` with only the fields of its schema; empty if there are more than `FIELDS_MAX`.

    The fields are not checked: they may not decode, and equal fields may differ in their bytes (`normalised`).
    """


def buffer_table(tail: bytes, size: int) -> ByteRange | None:
    """The range of the first global buffer's entry, in a file of `size` bytes that ends with `tail`.

    None if the file is not a data file of format 2.
    """
    if len(tail) < _FOOTER.size:
        return None
    _, _, table, buffers, _, major, minor, magic = _FOOTER.unpack(tail[-_FOOTER.size :])
    # Files of format 2.0 have version 0.3 here; files of older formats have no global buffers.
    if magic != _MAGIC or (major, minor) < (0, 3) or not buffers or table + _BUFFER.size > size - _FOOTER.size:
        return None
    return ByteRange(table, table + _BUFFER.size)


def first_buffer(entry: bytes, size: int) -> ByteRange | None:
    """The range of the descriptor, from its entry; None if the entry can't be right."""
    if len(entry) != _BUFFER.size:
        return None
    start, length = _BUFFER.unpack(entry)
    if length > DESCRIPTOR_BYTES_MAX or start + length > size:
        return None
    return ByteRange(start, start + length)


def facts(tail: bytes, descriptor: PackedFileDescriptor) -> FileFacts:
    """The facts of a file that ends with `tail` and has this descriptor."""
    *_, columns, _, _, _ = _FOOTER.unpack(tail[-_FOOTER.size :])
    only_fields = PackedFileDescriptor()
    if len(descriptor.schema.fields) <= FIELDS_MAX:
        only_fields.schema.fields.extend(descriptor.schema.fields)
    return FileFacts(rows=descriptor.length, columns=columns, fields=only_fields.SerializeToString())


def normalised(fields: bytes) -> bytes:
    """These fields (`FileFacts.fields`) in the one form that all files with the same fields share.

    Lance writes the metadata of a field in any order. Fields that do not decode are returned as they are.
    """
    try:
        return FileDescriptor.FromString(fields).SerializeToString(deterministic=True)
    except DecodeError:
        return fields


def packed_descriptor(body: bytes) -> PackedFileDescriptor | None:
    """Decode a descriptor, but not its fields; as `decode_descriptor`."""
    try:
        return PackedFileDescriptor.FromString(_of_few_messages(body))
    except DecodeError:
        return None


def decode_descriptor(body: bytes) -> FileDescriptor | None:
    """Decode a descriptor; None if the bytes are not one. It lacks a schema of more than `MESSAGES_MAX` messages."""
    try:
        return FileDescriptor.FromString(_of_few_messages(body))
    except DecodeError:
        return None


def _of_few_messages(body: bytes) -> bytes:
    """A descriptor, without its schema if that has more than `MESSAGES_MAX` messages."""
    if len(body) > MESSAGES_MAX and has_more_messages(body, MESSAGES_MAX, FileDescriptor.DESCRIPTOR):
        return _without_schema(body)
    return body


def _without_schema(body: bytes) -> bytes:
    rest, begin = bytearray(), 0
    for number, _, _, end in fields_on_the_wire(body, 0, len(body)):
        if number != FileDescriptor.SCHEMA_FIELD_NUMBER:
            rest += body[begin:end]
        begin = end
    return bytes(rest)
