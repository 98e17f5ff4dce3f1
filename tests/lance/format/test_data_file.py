"""The end of a data file: the place and content of its descriptor."""

from __future__ import annotations

import struct

import pytest

from committerd.lance.format.bounds import FIELDS_MAX
from committerd.lance.format.byte_range import ByteRange
from committerd.lance.format.data_file import (
    DESCRIPTOR_BYTES_MAX,
    MESSAGES_MAX,
    buffer_table,
    decode_descriptor,
    facts,
    first_buffer,
    normalised,
    packed_descriptor,
)
from committerd_common.messages import Field, FileDescriptor, PackedFileDescriptor, PackedSchema, Schema
from tests.hostile.records import counted


def footer(table: int, *, buffers: int = 1, version: tuple[int, int] = (2, 1), magic: bytes = b"LANC") -> bytes:
    return struct.pack("<QQQIIHH4s", 0, 0, table, buffers, 1, *version, magic)


def test_the_table_of_buffers_is_found_by_the_footer() -> None:
    assert buffer_table(b"x" * 60 + footer(20), 100) == ByteRange(20, 36)
    assert buffer_table(footer(44, version=(0, 3)), 100) == ByteRange(44, 60)


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"LANC",
        footer(20, magic=b"PAR1"),
        footer(20, version=(0, 2)),
        footer(20, buffers=0),
        footer(45),
        footer(2**64 - 1),
    ],
)
def test_another_file_has_no_table(tail: bytes) -> None:
    assert buffer_table(tail, 100) is None


def test_the_first_entry_says_where_the_descriptor_lies() -> None:
    assert first_buffer(struct.pack("<QQ", 10, 30), 100) == ByteRange(10, 40)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        struct.pack("<QQ", 90, 11),
        struct.pack("<QQ", 2**64 - 1, 1),
        struct.pack("<QQ", 0, DESCRIPTOR_BYTES_MAX + 1),
    ],
)
def test_an_entry_that_can_not_be_right(entry: bytes) -> None:
    assert first_buffer(entry, 100) is None


def test_a_file_says_how_many_rows_and_columns_it_has() -> None:
    said = FileDescriptor(schema=Schema(fields=[Field(id=3)], metadata={"k": b"v"}), length=5)
    end = struct.pack("<QQQIIHH4s", 0, 0, 0, 1, 7, 2, 1, b"LANC")
    packed = packed_descriptor(said.SerializeToString())
    assert packed is not None
    found = facts(b"before" + end, packed)
    assert (found.rows, found.columns) == (5, 7)
    assert FileDescriptor.FromString(found.fields) == FileDescriptor(schema=Schema(fields=[Field(id=3)]))
    assert packed_descriptor(b"\xff\xff") is None


@pytest.mark.parametrize(("fields", "are_looked_at"), [(FIELDS_MAX, True), (FIELDS_MAX + 1, False)])
def test_the_types_of_very_many_fields_are_not_looked_at(fields: int, are_looked_at: bool) -> None:
    packed = packed_descriptor(
        FileDescriptor(schema=Schema(fields=[Field(id=1)] * fields), length=5).SerializeToString()
    )
    assert packed is not None
    found = facts(footer(0), packed)
    assert (found.rows, bool(found.fields)) == (5, are_looked_at)


def test_a_descriptor_has_the_metadata_of_the_schema() -> None:
    said = FileDescriptor(schema=Schema(metadata={"k": b"v"}), length=5)
    assert decode_descriptor(said.SerializeToString()) == said
    assert decode_descriptor(b"\xff\xff") is None


def test_a_schema_of_too_many_short_messages_is_not_decoded() -> None:
    said = FileDescriptor(schema=Schema(fields=[Field(id=1)] * (MESSAGES_MAX + 1)), length=5)
    assert decode_descriptor(said.SerializeToString()) == FileDescriptor(length=5)
    packed = packed_descriptor(said.SerializeToString())
    assert packed is not None
    assert (packed.length, list(packed.schema.fields)) == (5, [])
    entries = counted(1, counted(1, b"\x52\x00" * (MESSAGES_MAX + 1)))
    assert decode_descriptor(b"\x10\x07" + entries) == FileDescriptor(length=7)
    assert decode_descriptor(entries + b"\xff") == FileDescriptor()


def test_a_long_descriptor_of_few_messages_is_decoded() -> None:
    text = b"\n\t" * MESSAGES_MAX
    said = FileDescriptor(schema=Schema(metadata={"k": text}), length=5)
    assert decode_descriptor(said.SerializeToString()) == said


def test_the_same_fields_have_one_form_whatever_the_order_of_their_metadata() -> None:
    entries = [b"\x52\x06\n\x01a\x12\x01x", b"\x52\x06\n\x01b\x12\x01y"]
    forms = [
        PackedFileDescriptor(schema=PackedSchema(fields=[b"\x18\x03" + b"".join(order)])).SerializeToString()
        for order in (entries, entries[::-1])
    ]
    assert len(set(forms)) == 2
    (form,) = set(map(normalised, forms))
    (field,) = FileDescriptor.FromString(form).schema.fields
    assert field == Field(id=3, metadata={"a": b"x", "b": b"y"})


def test_fields_that_do_not_decode_stay_as_they_are() -> None:
    broken = PackedFileDescriptor(schema=PackedSchema(fields=[b"\xff"])).SerializeToString()
    assert normalised(broken) == broken
