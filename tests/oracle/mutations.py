"""Random damage to bytes and to protobuf messages, as a broken or hostile writer may send."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, MutableSequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from pyroaring import BitMap, BitMap64

from committerd_common.index_details import FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX, pack_details
from committerd_common.messages import Any as AnyMessage
from committerd_common.messages import (
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
    """A field of a message anywhere in the tree, set or not."""

    message: Any
    field: Any


def damaged_bytes(body: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them changed, lost, doubled or inserted."""
    damaged = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        place, length = rng.randint(0, len(damaged)), rng.choice((1, 2, 8, 60))
        match rng.randint(0, 5):
            case 0:
                del damaged[place : place + length]
            case 1:
                damaged[place:place] = rng.randbytes(length)
            case 2:
                damaged[place:place] = damaged[place : place + length]
            case 3:
                damaged[place : place + length] = b"\xff" * length
            case 4 if place < len(damaged):
                damaged[place] ^= 1 << rng.randint(0, 7)
            case _:
                # An unknown field: number, then a varint or bytes.
                unknown = rng.choice((b"\xf8\x7f\x01", b"\xfa\x7f\x02\xff\xfe", b"\xba\x06\x00", b"\xc2\x0c\x00"))
                damaged[place:place] = unknown
    return bytes(damaged)


def damage(message: Message, rng: random.Random, donors: tuple[Message, ...] = ()) -> None:
    """Change a few fields, in place; may insert messages of the same type from `donors`."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        slots = list(_slots(message))
        # Half of the time a field that is set, else any field.
        present = [slot for slot in slots if slot.field.name in {field.name for field, _ in slot.message.ListFields()}]
        slot = rng.choice(present if present and rng.random() < 0.6 else slots)
        _change(slot, rng, donors)


def nested_schema(rng: random.Random) -> list[Field]:
    """Columns within columns, few or very many levels deep; some in a circle, without a parent, or below themselves."""
    depth = rng.choice((2, 31, 32, 33, 100, 1_000, 5_000))
    made = [
        Field(id=number, parent_id=number - 1, name=rng.choice(("a", "a.b", "", f"f{number}")), type=Field.PARENT)
        for number in range(depth)
    ]
    for field in made:
        field.logical_type, field.nullable = rng.choice(("struct", "struct", "list", "list.struct")), True
    made[-1].type, made[-1].logical_type = Field.LEAF, "int64"
    match rng.randint(0, 4):
        case 0:
            made[0].parent_id = depth - 1
        case 1:
            rng.choice(made).parent_id = rng.choice((-2, depth, 2**31 - 1))
        case 2:
            chosen = rng.choice(made)
            chosen.parent_id = chosen.id
        case 3:
            rng.shuffle(made)
        case _:
            pass
    return made


def nested_json(rng: random.Random) -> bytes:
    """JSON that nests, repeats a key, or has numbers and text that few readers accept."""
    depth = rng.choice((1, 50, 900, 5_000, 100_000))
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
    return rng.choice(makers)()


def hostile_details(rng: random.Random) -> AnyMessage:
    """Details of Lance's own indices, and of others: damaged, nested in each other, or of another kind."""
    reuse, wal = FragmentReuseIndexDetails(), MemWalIndexDetails()
    for _ in range(rng.choice((0, 1, 3, 300))):
        group = reuse.inline.versions.add(dataset_version=rng.choice(_EDGES) % 2**64).groups.add()
        group.changed_row_addrs = rng.choice((b"", BitMap64().serialize(), rng.randbytes(30), hostile_bitmap(rng)))
        for some in (group.old_fragments, group.new_fragments):
            for _ in range(rng.randint(0, 3)):
                some.add(id=rng.choice(_EDGES), physical_rows=rng.choice(_EDGES))
    if rng.random() < 0.4:
        external = reuse.external
        external.path, external.offset, external.size = special_path(rng), rng.choice(_EDGES), rng.choice(_EDGES)
    for _ in range(rng.choice((0, 1, 3, 300))):
        merged = wal.merged_generations.add(generation=rng.choice(_EDGES))
        merged.region_id.uuid = rng.randbytes(rng.choice((16, 16, 0, 17)))
    wal.inline_snapshots = rng.randbytes(rng.choice((0, 20)))
    made = pack_details(rng.choice((reuse, wal)))
    match rng.randint(0, 4):
        case 0:
            made.value = damaged_bytes(made.value, rng)
        case 1:
            made.type_url = rng.choice(_TYPE_URLS)
        case 2:
            for _ in range(rng.choice((1, 50, 5_000))):
                made = AnyMessage(type_url=made.type_url, value=b"\x0a" + made.value[:60_000])
        case _:
            pass
    return made


def hostile_index(rng: random.Random) -> IndexMetadata:
    """An index of Lance's own, or a zone map, with fields, fragments and files that it must not have."""
    made = IndexMetadata(name=rng.choice(_INDEX_NAMES), dataset_version=1)
    made.uuid.uuid = rng.randbytes(16)
    made.index_details.CopyFrom(hostile_details(rng))
    if rng.random() < 0.4:
        made.index_details.type_url, made.index_details.value = rng.choice(_TYPE_URLS), rng.randbytes(4)
    made.fields.extend(rng.choice(((), (0,), (0, 0), (1_000_000,), (0, 1, 2), (-1,))))
    if rng.random() < 0.7:
        made.fragment_bitmap = rng.choice((bytes(BitMap([0]).serialize()), hostile_bitmap(rng)))
    if rng.random() < 0.3:
        made.files.add(path=special_path(rng), size_bytes=rng.choice(_EDGES))
    return made


def special_path(rng: random.Random) -> str:
    """A file name that leads to another place, that no store accepts, or that two readers understand differently."""
    encoded = rng.choice(("%2e", "%2E", ".", "%252e", "%25252525252e"))
    separator = rng.choice(("/", "%2f", "%2F", "%5c", "\\", "%252f"))
    return rng.choice(
        (
            separator.join((encoded * 2, encoded * 2, "x.lance")),
            f"a{separator}b.lance",
            encoded,
            encoded * 2,
            rng.choice(("a\0b", "a%00b", "a\nb", "a\x7fb", "a%0ab")),
            rng.choice(("x", "ä", "%41")) * rng.choice((255, 256, 1024, 5_000)),
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


def hostile_bitmap(rng: random.Random) -> bytes:
    """Few bytes that stand for many numbers, or for none, or are invalid."""
    most = rng.choice((2**16, 2**24, 2**27))
    full = BitMap(range(most))
    full.run_optimize()
    whole = bytes(full.serialize())
    return rng.choice((whole, whole[: len(whole) // 2], b"\0", b"\xff" * 20, bytes(BitMap().serialize())))


def hostile_sequence(rng: random.Random) -> bytes:
    """Row ids, or versions, of very many rows: some segments that touch, overlap or descend, or very many segments."""
    sequence = RowIdSequence()
    for _ in range(rng.choice((1, 2, 3, 3, 2_000))):
        span = sequence.segments.add()
        start = rng.choice((0, 5, 9, 2**20, 2**63, 2**64 - 2**32))
        end = min(start + rng.choice((0, 10, 2**20, 2**32, 2**33)), 2**64 - 1)
        match rng.randint(0, 5):
            case 0:
                span.range.start, span.range.end = start, end
            case 4:
                span.range.start, span.range.end = end, start
            case 5:
                offsets = rng.choice(((3, 1, 2), (1, 1), (0, 2**32 - 1)))
                span.sorted_array.u32_array.base = start
                span.sorted_array.u32_array.offsets = b"".join(one.to_bytes(4, "little") for one in offsets)
            case 1:
                span.range_with_holes.start, span.range_with_holes.end = start, end
                span.range_with_holes.holes.u16_array.offsets = rng.randbytes(4)
            case 2:
                span.range_with_bitmap.start, span.range_with_bitmap.end = start, end
                span.range_with_bitmap.bitmap = rng.randbytes(2)
            case _:
                span.array.u64_array.values = rng.randbytes(16)
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


def _change(slot: _Slot, rng: random.Random, donors: tuple[Message, ...]) -> None:
    message, field = slot
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(slot, rng)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, rng, donors)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        donor = _donor(field.message_type, rng, donors)
        if donor is not None and rng.random() < 0.3:
            inner.CopyFrom(donor)
        elif rng.random() < 0.3:
            inner.Clear()
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), rng))


def _change_map(slot: _Slot, rng: random.Random) -> None:
    entries = getattr(slot.message, slot.field.name)
    key_field, value_field = (slot.field.message_type.fields_by_name[name] for name in ("key", "value"))
    keys = list(entries)
    key = rng.choice(keys) if keys and rng.random() < 0.5 else _scalar(key_field, None, rng)
    if value_field.message_type is not None:
        entries[key].SetInParent()
    else:
        entries[key] = _scalar(value_field, None, rng)


def _change_list(values: MutableSequence[Any], field: Any, rng: random.Random, donors: tuple[Message, ...]) -> None:
    place = rng.randrange(len(values)) if values else 0
    match rng.randint(0, 3):
        case 0 if values:
            del values[place]
        case 1 if values:
            values.append(values[place])
        case 2 if values and field.message_type is None:
            values[place] = _scalar(field, values[place], rng)
        case _ if field.message_type is None:
            values.append(_scalar(field, None, rng))
        case _:
            donor = _donor(field.message_type, rng, donors)
            values.append(donor if donor is not None else field.message_type._concrete_class())


def _donor(kind: Any, rng: random.Random, donors: tuple[Message, ...]) -> Message | None:
    fitting = [donor for donor in donors if donor.DESCRIPTOR is kind]
    return rng.choice(fitting) if fitting else None


def _scalar(field: Any, before: Any, rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind in _BITS:
        return _number(kind, before, rng)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e300))
    if field.type == FieldDescriptor.TYPE_BYTES:
        makers: tuple[Callable[[], bytes], ...] = (
            lambda: b"",
            lambda: rng.randbytes(16),
            lambda: b"\xff\xfe not UTF-8",
            lambda: hostile_bitmap(rng),
            lambda: hostile_sequence(rng),
            lambda: damaged_bytes(before or b"", rng),
        )
        return rng.choice(makers)()
    return rng.choice((*_TEXTS, (before or "") + "x"))


def _number(kind: int, before: Any, rng: random.Random) -> int:
    bits = _BITS[kind]
    number = rng.choice(_EDGES) if rng.random() < 0.7 else (before or 0) + rng.choice((-1, 1, 2))
    number %= 1 << bits
    if kind in _SIGNED and number >> (bits - 1):
        number -= 1 << bits
    return number


def parts(message: Message) -> Iterator[Message]:
    """The message and all messages in it, to be used as donors."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                yield from parts(inner)
