"""Damage to bytes and to protobuf messages, drawn from dice: what a broken or hostile writer may send."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, MutableSequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from pyroaring import BitMap, BitMap64

from committerd_common.index_details import FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX, pack_details
from committerd_common.messages import Any as AnyMessage
from committerd_common.messages import (
    DecodeError,
    Field,
    FragmentReuseIndexDetails,
    IndexMetadata,
    MemWalIndexDetails,
    Message,
    RowIdSequence,
)

_INDEX_NAMES = (FRAGMENT_REUSE_INDEX, FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX, "zones", "__lance_other", "")
_TYPE_URLS = (
    "/lance.table.FragmentReuseIndexDetails",
    "/lance.table.MemWalIndexDetails",
    "/lance.index.pb.ZoneMapIndexDetails",
    "/lance.index.pb.BTreeIndexDetails",
    "type.googleapis.com/google.protobuf.Any",
    "",
)
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


def nested_schema(dice: random.Random) -> list[Field]:
    """Columns within columns, few or very many deep; at times in a circle, below nothing, or below themselves."""
    depth = dice.choice((2, 31, 32, 33, 100, 1_000, 5_000))
    made = [
        Field(id=number, parent_id=number - 1, name=dice.choice(("a", "a.b", "", f"f{number}")), type=Field.PARENT)
        for number in range(depth)
    ]
    for field in made:
        field.logical_type, field.nullable = dice.choice(("struct", "struct", "list", "list.struct")), True
    made[-1].type, made[-1].logical_type = Field.LEAF, "int64"
    match dice.randint(0, 4):
        case 0:
            made[0].parent_id = depth - 1
        case 1:
            dice.choice(made).parent_id = dice.choice((-2, depth, 2**31 - 1))
        case 2:
            chosen = dice.choice(made)
            chosen.parent_id = chosen.id
        case 3:
            dice.shuffle(made)
        case _:
            pass
    return made


def nested_json(dice: random.Random) -> bytes:
    """JSON that nests, repeats a key, or has numbers and text that few readers take."""
    depth = dice.choice((1, 50, 900, 5_000, 100_000))
    makers: tuple[Callable[[], bytes], ...] = (
        lambda: b"[" * depth + b"]" * depth,
        lambda: b'{"a":' * depth + b"1" + b"}" * depth,
        lambda: b'{"enable_stable_row_ids": ' + b"[" * depth + b"]" * depth + b"}",
        lambda: b'{"enable_stable_row_ids": true, "enable_stable_row_ids": false}',
        lambda: b'{"data_storage_version": "' + b"2" * depth + b'"}',
        lambda: b'{"data_storage_version": 1e' + b"9" * min(depth, 5_000) + b"}",
        lambda: rb'{"data_storage_version": "\ud800"}',
        lambda: b"[" * depth,
    )
    return dice.choice(makers)()


def hostile_details(dice: random.Random) -> AnyMessage:
    """Details of indices of Lance's own, and of others: damaged, nested in each other, or of another kind."""
    reuse, wal = FragmentReuseIndexDetails(), MemWalIndexDetails()
    for _ in range(dice.choice((0, 1, 3, 300))):
        group = reuse.inline.versions.add(dataset_version=dice.choice(_EDGES) % 2**64).groups.add()
        group.changed_row_addrs = dice.choice((b"", BitMap64().serialize(), dice.randbytes(30), hostile_bitmap(dice)))
        for some in (group.old_fragments, group.new_fragments):
            for _ in range(dice.randint(0, 3)):
                some.add(id=dice.choice(_EDGES), physical_rows=dice.choice(_EDGES))
    if dice.random() < 0.4:
        external = reuse.external
        external.path, external.offset, external.size = special_path(dice), dice.choice(_EDGES), dice.choice(_EDGES)
    for _ in range(dice.choice((0, 1, 3, 300))):
        merged = wal.merged_generations.add(generation=dice.choice(_EDGES))
        merged.region_id.uuid = dice.randbytes(dice.choice((16, 16, 0, 17)))
    wal.inline_snapshots = dice.randbytes(dice.choice((0, 20)))
    made = pack_details(dice.choice((reuse, wal)))
    match dice.randint(0, 4):
        case 0:
            made.value = damaged_bytes(made.value, dice)
        case 1:
            made.type_url = dice.choice(_TYPE_URLS)
        case 2:
            for _ in range(dice.choice((1, 50, 5_000))):
                made = AnyMessage(type_url=made.type_url, value=b"\x0a" + made.value[:60_000])
        case _:
            pass
    return made


def hostile_index(dice: random.Random) -> IndexMetadata:
    """An index of Lance's own, or a zone map, with fields, fragments and files that it may not have."""
    made = IndexMetadata(name=dice.choice(_INDEX_NAMES), dataset_version=1)
    made.uuid.uuid = dice.randbytes(16)
    made.index_details.CopyFrom(hostile_details(dice))
    if dice.random() < 0.4:
        made.index_details.type_url, made.index_details.value = dice.choice(_TYPE_URLS), dice.randbytes(4)
    made.fields.extend(dice.choice(((), (0,), (0, 0), (1_000_000,), (0, 1, 2), (-1,))))
    if dice.random() < 0.7:
        made.fragment_bitmap = dice.choice((bytes(BitMap([0]).serialize()), hostile_bitmap(dice)))
    if dice.random() < 0.3:
        made.files.add(path=special_path(dice), size_bytes=dice.choice(_EDGES))
    return made


def special_path(dice: random.Random) -> str:
    """A name of a file that means another place, that no store takes, or that two readers take for two names."""
    encoded = dice.choice(("%2e", "%2E", ".", "%252e", "%25252525252e"))
    separator = dice.choice(("/", "%2f", "%2F", "%5c", "\\", "%252f"))
    return dice.choice(
        (
            separator.join((encoded * 2, encoded * 2, "x.lance")),
            f"a{separator}b.lance",
            encoded,
            encoded * 2,
            dice.choice(("a\0b", "a%00b", "a\nb", "a\x7fb", "a%0ab")),
            dice.choice(("x", "ä", "%41")) * dice.choice((255, 256, 1024, 5_000)),
            separator + "etc" + separator + "passwd",
            "file:///etc/passwd",
            "link%2Fsecret.lance",
            "%",
            "%zz.lance",
            "a.lance ",
            "a.lance?versionId=1#x",
            "e\u0301.lance",
            "\u202ea.lance",
        )
    )


def hostile_bitmap(dice: random.Random) -> bytes:
    """Few bytes that stand for many numbers, or for none, or for nothing."""
    most = dice.choice((2**16, 2**24, 2**27))
    full = BitMap(range(most))
    full.run_optimize()
    whole = bytes(full.serialize())
    return dice.choice((whole, whole[: len(whole) // 2], b"\0", b"\xff" * 20, bytes(BitMap().serialize())))


def hostile_sequence(dice: random.Random) -> bytes:
    """Row ids, or versions, of very many rows: of several segments that meet, overlap or go down, or of very many."""
    sequence = RowIdSequence()
    for _ in range(dice.choice((1, 2, 3, 3, 2_000))):
        span = sequence.segments.add()
        start = dice.choice((0, 5, 9, 2**20, 2**63, 2**64 - 2**32))
        end = min(start + dice.choice((0, 10, 2**20, 2**32, 2**33)), 2**64 - 1)
        match dice.randint(0, 5):
            case 0:
                span.range.start, span.range.end = start, end
            case 4:
                span.range.start, span.range.end = end, start
            case 5:
                offsets = dice.choice(((3, 1, 2), (1, 1), (0, 2**32 - 1)))
                span.sorted_array.u32_array.base = start
                span.sorted_array.u32_array.offsets = b"".join(one.to_bytes(4, "little") for one in offsets)
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
