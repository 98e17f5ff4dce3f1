"""Damage to bytes and to protobuf messages, drawn from dice: what a broken or hostile writer may send."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, MutableSequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from pyroaring import BitMap

from committerd.format.messages import DecodeError, Message, RowIdSequence

_EDGES = (0, 1, 2, 7, 100, 2**15, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: 32,
    FieldDescriptor.CPPTYPE_UINT32: 32,
    FieldDescriptor.CPPTYPE_ENUM: 32,
    FieldDescriptor.CPPTYPE_INT64: 64,
    FieldDescriptor.CPPTYPE_UINT64: 64,
}
_SIGNED = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_ENUM)
_TEXTS = (
    "",
    "../up.lance",
    "/absolute.lance",
    "s3://other/place",
    "a\0b",
    "ä" * 300,
    "x" * 70_000,
    "id",
    "one",
    "__lance_frag_reuse",
    "__lance_mem_wal",
    "/lance.table.FragmentReuseIndexDetails",
    "/lance.index.pb.VectorIndexDetails",
    "/lance.table.MemWalIndexDetails",
    "lance-schema:unenforced-primary-key",
    "committerd.position",
    "int64",
    "struct",
    "no such type",
    "00000000-0000-4000-8000-000000000000",
)


class _Slot(NamedTuple):
    """A field of a message somewhere in the tree, set or not."""

    message: Any
    field: Any


def damaged_bytes(body: bytes, dice: random.Random) -> bytes:
    """The same with a few bytes changed, lost, doubled or put in."""
    damaged = bytearray(body)
    for _ in range(dice.randint(1, 4)):
        place, length = dice.randint(0, len(damaged)), dice.choice((1, 2, 8, 60))
        match dice.randint(0, 5):
            case 0:
                del damaged[place : place + length]
            case 1:
                damaged[place:place] = dice.randbytes(length)
            case 2:
                damaged[place:place] = damaged[place : place + length]
            case 3:
                damaged[place : place + length] = b"\xff" * length
            case 4 if place < len(damaged):
                damaged[place] ^= 1 << dice.randint(0, 7)
            case _:
                # A field that nobody knows: number, then a varint or bytes.
                unknown = dice.choice((b"\xf8\x7f\x01", b"\xfa\x7f\x02\xff\xfe", b"\xba\x06\x00", b"\xc2\x0c\x00"))
                damaged[place:place] = unknown
    return bytes(damaged)


def damage(message: Message, dice: random.Random, donors: tuple[Message, ...] = ()) -> None:
    """Change a few fields, in place; messages of the same type in `donors` may be put in."""
    for _ in range(dice.choice((1, 1, 1, 2, 3, 5))):
        slots = list(_slots(message))
        # Half of the time what is there, else anything that could be.
        present = [slot for slot in slots if slot.field.name in {field.name for field, _ in slot.message.ListFields()}]
        slot = dice.choice(present if present and dice.random() < 0.6 else slots)
        _change(slot, dice, donors)


def hostile_bitmap(dice: random.Random) -> bytes:
    """Few bytes that stand for many numbers, or for none, or for nothing."""
    most = dice.choice((2**16, 2**24, 2**27))
    full = BitMap(range(most))
    full.run_optimize()
    whole = bytes(full.serialize())
    return dice.choice((whole, whole[: len(whole) // 2], b"\0", b"\xff" * 20, bytes(BitMap().serialize())))


def hostile_sequence(dice: random.Random) -> bytes:
    """Row ids, or versions, of very many rows."""
    sequence = RowIdSequence()
    for _ in range(dice.randint(1, 3)):
        span = sequence.segments.add()
        start = dice.choice((0, 5, 2**63, 2**64 - 2**32))
        end = min(start + dice.choice((0, 10, 2**20, 2**32, 2**33)), 2**64 - 1)
        match dice.randint(0, 3):
            case 0:
                span.range.start, span.range.end = start, end
            case 1:
                span.range_with_holes.start, span.range_with_holes.end = start, end
                span.range_with_holes.holes.u16_array.offsets = dice.randbytes(4)
            case 2:
                span.range_with_bitmap.start, span.range_with_bitmap.end = start, end
                span.range_with_bitmap.bitmap = dice.randbytes(2)
            case _:
                span.array.u64_array.values = dice.randbytes(16)
    return sequence.SerializeToString()


def _slots(message: Any) -> Iterator[_Slot]:
    for field in message.DESCRIPTOR.fields:
        yield _Slot(message, field)
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for inner in value.values():
                    yield from _slots(inner)
        else:
            for inner in value if field.is_repeated else [value]:
                yield from _slots(inner)


def _change(slot: _Slot, dice: random.Random, donors: tuple[Message, ...]) -> None:
    message, field = slot
    if dice.random() < 0.15:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(slot, dice)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, dice, donors)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        donor = _donor(field.message_type, dice, donors)
        if donor is not None and dice.random() < 0.3:
            inner.CopyFrom(donor)
        elif dice.random() < 0.3:
            inner.Clear()
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), dice))


def _change_map(slot: _Slot, dice: random.Random) -> None:
    entries = getattr(slot.message, slot.field.name)
    key_field, value_field = (slot.field.message_type.fields_by_name[name] for name in ("key", "value"))
    keys = list(entries)
    key = dice.choice(keys) if keys and dice.random() < 0.5 else _scalar(key_field, None, dice)
    if value_field.message_type is not None:
        entries[key].SetInParent()
    else:
        entries[key] = _scalar(value_field, None, dice)


def _change_list(values: MutableSequence[Any], field: Any, dice: random.Random, donors: tuple[Message, ...]) -> None:
    place = dice.randrange(len(values)) if values else 0
    match dice.randint(0, 3):
        case 0 if values:
            del values[place]
        case 1 if values:
            values.append(values[place])
        case 2 if values and field.message_type is None:
            values[place] = _scalar(field, values[place], dice)
        case _ if field.message_type is None:
            values.append(_scalar(field, None, dice))
        case _:
            donor = _donor(field.message_type, dice, donors)
            values.append(donor if donor is not None else field.message_type._concrete_class())


def _donor(kind: Any, dice: random.Random, donors: tuple[Message, ...]) -> Message | None:
    fitting = [donor for donor in donors if donor.DESCRIPTOR is kind]
    return dice.choice(fitting) if fitting else None


def _scalar(field: Any, before: Any, dice: random.Random) -> Any:
    kind = field.cpp_type
    if kind in _BITS:
        return _number(kind, before, dice)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return dice.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return dice.choice((0.0, -1.0, float("nan"), float("inf"), 1e300))
    if field.type == FieldDescriptor.TYPE_BYTES:
        makers: tuple[Callable[[], bytes], ...] = (
            lambda: b"",
            lambda: dice.randbytes(16),
            lambda: b"\xff\xfe not UTF-8",
            lambda: hostile_bitmap(dice),
            lambda: hostile_sequence(dice),
            lambda: damaged_bytes(before or b"", dice),
        )
        return dice.choice(makers)()
    return dice.choice((*_TEXTS, (before or "") + "x"))


def _number(kind: int, before: Any, dice: random.Random) -> int:
    bits = _BITS[kind]
    number = dice.choice(_EDGES) if dice.random() < 0.7 else (before or 0) + dice.choice((-1, 1, 2))
    number %= 1 << bits
    if kind in _SIGNED and number >> (bits - 1):
        number -= 1 << bits
    return number


def parts(message: Message) -> Iterator[Message]:
    """The message and all in it, to be used as donors."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                yield from parts(inner)


def redecoded(message: Message) -> Message | None:
    """The message as it arrives; None when it can't be decoded."""
    try:
        return type(message).FromString(message.SerializeToString())
    except DecodeError:
        return None
