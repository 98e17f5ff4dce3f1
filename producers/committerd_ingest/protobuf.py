"""Protobuf's messages as rows, column by column.

A field that says whether it is there is null where it is not; another one has its default. A message with a field that
its schema does not know is bad, because the value of that field would be lost.
Source: Protocol Buffers, Encoding, and Field Presence.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

from committerd_ingest.wire_format import FIELDS_MAX, UnusableSchema

_KNOWN = {
    one.DESCRIPTOR.name: one.DESCRIPTOR.serialized_pb
    for one in (
        any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2,
        struct_pb2, timestamp_pb2, wrappers_pb2,
    )
}  # fmt: skip
"""The files of Google's that a registry does not hold, each behind those that itself imports."""
_PLAIN = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
_FILE = "value.proto"
_DEPTH_MAX = 100
_SECOND = 1_000_000_000
"""In nanoseconds."""
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_WRAPPED = frozenset(one.full_name for one in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())

_Values: TypeAlias = "Sequence[Any]"
_ToArray: TypeAlias = "Callable[[_Values], pa.Array]"


class ProtobufSchema:
    """A Protobuf schema. It may have several messages, and each value says which of them it is."""

    def __init__(self, file: str, references: Sequence[tuple[str, str]] = ()) -> None:
        """`file`: a FileDescriptorProto in Base64. `references`: names and contents of the files that it imports, each
        behind those that it imports itself. Raises `UnusableSchema`.
        """
        pool = descriptor_pool.DescriptorPool()
        try:
            for known in _KNOWN.values():
                pool.AddSerializedFile(known)
            for name, text in references:
                if name not in _KNOWN:
                    _add(pool, name, text)
            _add(pool, _FILE, file)
            self._file: FileDescriptor = pool.FindFileByName(_FILE)
        except (TypeError, KeyError, DecodeError, ValueError) as error:
            raise UnusableSchema(f"it is no Protobuf schema: {error}") from error
        self._made: dict[tuple[int, ...], ProtobufRows | UnusableSchema] = {}

    def split(self, rest: bytes) -> tuple[ProtobufRows, bytes]:
        """The message that the value is, and its bytes."""
        places, body = _indexes(rest)
        if places not in self._made:
            message = self._message(places)
            try:
                self._made[places] = ProtobufRows(message)
            except UnusableSchema as error:
                self._made[places] = error
        made = self._made[places]
        if isinstance(made, UnusableSchema):
            raise made
        return made, body

    def _message(self, places: tuple[int, ...]) -> Descriptor:
        messages = list(self._file.message_types_by_name.values())
        found = None
        for place in places:
            if not 0 <= place < len(messages):
                raise ValueError(f"the value is message {list(places)}, which its schema does not have")
            found = messages[place]
            messages = list(found.nested_types)
        assert found is not None
        return found


class ProtobufRows:
    """The values of one message."""

    def __init__(self, message: Descriptor) -> None:
        """Raises `UnusableSchema`."""
        try:
            if _fields(message, {}) > FIELDS_MAX:
                raise UnusableSchema(f"message {message.full_name} has more than {FIELDS_MAX} fields")
            self._class = message_factory.GetMessageClass(message)
            self._columns = [(one.name, *_column(one, one.name, (message,))) for one in message.fields]
        except RecursionError as error:
            raise UnusableSchema(f"message {message.full_name} has messages that are nested too deep") from error
        self.columns = pa.schema([(name, kind) for name, kind, _ in self._columns])

    def value(self, body: bytes) -> Message:
        """The message."""
        found = self._class.FromString(body)
        size = found.ByteSize()
        found.DiscardUnknownFields()
        if found.ByteSize() < size:
            raise ValueError(
                f"it has a field, or a number of an enum, that message {self._class.DESCRIPTOR.name} lacks"
            )
        return found

    def rows(self, values: Sequence[Any]) -> pa.Table:
        """A row for each message."""
        return pa.table([made(values) for *_, made in self._columns], names=self.columns.names)


def _fields(message: Descriptor, known: dict[str, int]) -> int:
    """The fields of a message and of those in it, each as often as it stands there. `known`: those that are counted."""
    if message.full_name not in known:
        known[message.full_name] = 0  # inside itself: such a message is refused where that is seen
        below = [_fields(one.message_type, known) for one in message.fields if one.message_type is not None]
        known[message.full_name] = len(message.fields) + sum(below)
    return known[message.full_name]


def _add(pool: descriptor_pool.DescriptorPool, name: str, text: str) -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    file.name = name
    pool.AddSerializedFile(file.SerializeToString())


def _indexes(rest: bytes) -> tuple[tuple[int, ...], bytes]:
    """The places of the message and of those around it, and what stands behind. Raises `ValueError`."""
    count, at = _zigzag(rest, 0)
    if count == 0:  # the short form of the first message
        return (0,), rest[at:]
    if not 0 < count <= _DEPTH_MAX:
        raise ValueError(f"the value says that its message is inside {count} others")
    places = []
    for _ in range(count):
        place, at = _zigzag(rest, at)
        places.append(place)
    return tuple(places), rest[at:]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise ValueError("the value ends before it says which message it is")
        found |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise ValueError("the value does not say which message it is: a number there has no end")


def _column(field: FieldDescriptor, path: str, around: tuple[Descriptor, ...]) -> tuple[pa.DataType, _ToArray]:
    """The type of a field's column, and how the column is made of messages."""
    name, message, get = field.name, field.message_type, attrgetter(field.name)
    if message is not None and message.GetOptions().map_entry:
        keys, items = message.fields
        key_type, to_keys = _values(keys, f"{path}.key", around)
        item_type, to_items = _values(items, f"{path}.value", around)

        def maps(messages: _Values) -> pa.Array:
            found = [get(one) for one in messages]
            given = [each[key] for each in found for key in each]
            return pa.MapArray.from_arrays(_offsets(found), to_keys(list(chain(*found))), to_items(given))

        return pa.map_(key_type, item_type), maps
    kind, to_array = _values(field, f"{path}[]" if field.is_repeated else path, around)
    if field.is_repeated:

        def lists(messages: _Values) -> pa.Array:
            found = [get(one) for one in messages]
            return pa.ListArray.from_arrays(_offsets(found), to_array(list(chain(*found))))

        return pa.list_(kind), lists
    if field.has_presence:
        return kind, lambda messages: to_array([get(one) if one.HasField(name) else None for one in messages])
    return kind, lambda messages: to_array([get(one) for one in messages])


def _offsets(found: Sequence[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, found), initial=0), pa.int32())


def _values(field: FieldDescriptor, path: str, around: tuple[Descriptor, ...]) -> tuple[pa.DataType, _ToArray]:
    """The type of a field's values, and how an array is made of them; None is a null."""
    message = field.message_type
    if message is not None:
        return _messages(message, path, around)
    if field.enum_type is not None:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return pa.string(), lambda values: pa.array([_named(names, one, path) for one in values], pa.string())
    kind = pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else _PLAIN[field.cpp_type]
    return kind, lambda values: pa.array(values, kind)


def _named(names: Mapping[int, str], number: int | None, path: str) -> str | None:
    if number is not None and number not in names:
        raise ValueError(f"field {path!r} has {number}, for which its enum has no name")
    return None if number is None else names[number]


def _messages(message: Descriptor, path: str, around: tuple[Descriptor, ...]) -> tuple[pa.DataType, _ToArray]:
    if message.full_name in (_TIMESTAMP, _DURATION):
        return _times(message, path)
    if message.full_name in _WRAPPED:
        kind, to_array = _values(message.fields[0], path, around)
        return kind, lambda values: to_array([None if one is None else one.value for one in values])
    if message in around:
        raise UnusableSchema(f"{path} is a {message.full_name} inside another one: no column has a type without end")
    if not message.fields:
        raise UnusableSchema(f"{path} is a {message.full_name}, which has no fields: no column has such a type")
    parts = [(one.name, *_column(one, f"{path}.{one.name}", (*around, message))) for one in message.fields]
    names, empty = [name for name, *_ in parts], message_factory.GetMessageClass(message)()

    def structs(values: _Values) -> pa.Array:
        mask = pa.array([one is None for one in values], pa.bool_())
        there = [empty if one is None else one for one in values]
        return pa.StructArray.from_arrays([made(there) for *_, made in parts], names, mask=mask)

    return pa.struct([(name, kind) for name, kind, _ in parts]), structs


def _times(message: Descriptor, path: str) -> tuple[pa.DataType, _ToArray]:
    """Seconds and nanoseconds: microseconds, which reach from year 1 to year 9999, unless nanoseconds are needed."""

    def kind(unit: str) -> pa.DataType:
        return pa.timestamp(unit, "UTC") if message.full_name == _TIMESTAMP else pa.duration(unit)

    def times(values: _Values) -> pa.Array:
        for one in values:
            if one is not None and not -_SECOND < one.nanos < _SECOND:
                raise ValueError(f"field {path!r} has {one.nanos} nanoseconds besides its seconds")
        found = [None if one is None else one.seconds * _SECOND + one.nanos for one in values]
        if any(one is not None and one % 1000 for one in found):
            return pa.array(found, kind("ns"))
        return pa.array([None if one is None else one // 1000 for one in found], kind("us"))

    return kind("us"), times
