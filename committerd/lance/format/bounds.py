"""The bounds of each number in a staged message: ids, offsets, sizes, counts, versions, times.

A protobuf field holds 32 or 64 bits, but the meaning of a number allows less: a fragment id is the upper half of a row
address, bit 63 of a version marks detached versions, a size is an offset into a file. A number out of bounds breaks the
code that computes with it, in committerd or in a reader, often long after the commit. So this table has the bounds of
every number of every message, and `numbers_out_of_bounds` checks all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from committerd_common.index_details import FRAGMENT_ID_MAX as FRAGMENT_ID_MAX
from committerd_common.messages import (
    FragmentReuseIndexDetails,
    MemWalIndexDetails,
    Message,
    Transaction,
)
from committerd_common.paths import VERSION_MAX

ROWS_MAX = 2**32 - 1
"""The most rows of a fragment: row offsets have 32 bits."""
FRAGMENTS_NAMED_MAX = 1_000_000
"""The most fragments that a transaction may name, or that an index may cover: a bitmap of a few bytes can hold four
billion.
"""
FIELDS_MAX = 2**15
"""The most fields of a schema, at all levels together. Readers take time that grows with the square of their number:
with 20,000 fields, pylance 14.0.2 reads a row in 5 s, and 4.0.0 in 33 s.
"""
FIELD_ID_MAX = 2**30
"""Half of the highest id that readers support, because a new column gets the next higher id."""
BASE_ID_MAX = 2**31 - 1
"""Half of the highest id that readers support, because a new base gets the next higher id."""
RESERVED_MAX = 2**20
"""The most fragment ids that one transaction may reserve: more than any compaction needs at once."""
RESERVABLE_MAX = FRAGMENT_ID_MAX - 2**28
"""The highest fragment id that can be reserved; higher ids are left for fragments that come with rows."""
SIZE_MAX = 2**63 - 1
"""The largest size of a file, and the highest offset in it."""
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, in Unix milliseconds; pylance can't open a table with an index that is dated far later."""


class Bounds(NamedTuple):
    """The lowest and the highest value of a number, both included."""

    least: int
    most: int
    code: str = "number_out_of_bounds"


class OutOfBounds(NamedTuple):
    """A number that is out of its bounds."""

    path: str
    """The path of its field, such as `append.fragments[0].physical_rows`."""
    value: int
    bounds: Bounds

    @property
    def code(self) -> str:
        return self.bounds.code

    def __str__(self) -> str:
        return f"{self.path} is {self.value}; {self.bounds.least} to {self.bounds.most} is allowed"


_U32 = Bounds(0, 2**32 - 1)
_U64 = Bounds(0, 2**64 - 1)
_FRAGMENT = Bounds(0, FRAGMENT_ID_MAX)
_ROWS = Bounds(0, ROWS_MAX, "physical_rows_too_many")
_FIELD = Bounds(0, FIELD_ID_MAX)
_VERSION = Bounds(0, VERSION_MAX)
_SIZE = Bounds(0, SIZE_MAX)
_TIME = Bounds(-TIME_MS_MAX, TIME_MS_MAX)

BOUNDS: dict[str, dict[str, Bounds]] = {
    "Transaction": {"read_version": _U64},  # validation refuses a detached version
    "Transaction.Delete": {"deleted_fragment_ids": _FRAGMENT},
    "Transaction.Rewrite.RewrittenIndex": {"new_index_version": Bounds(0, 2**31 - 1)},
    "Transaction.Restore": {"version": _U64},  # a version that does not exist is refused
    "Transaction.ReserveFragments": {"num_fragments": Bounds(0, RESERVED_MAX, "fragment_ids_exhausted")},
    "Transaction.Clone": {"ref_version": _U64},  # a version that does not exist is refused
    "Transaction.ExactKeySetFilter": {"key_hashes": _U64},
    "Transaction.BloomFilter": {"num_bits": _U32, "number_of_items": _SIZE},
    "Transaction.KeyExistenceFilter": {"field_ids": _FIELD},
    "Transaction.UInt32List": {"values": Bounds(0, ROWS_MAX - 1, "updated_offsets")},
    "Transaction.Update": {
        "removed_fragment_ids": _FRAGMENT,
        "fields_modified": _FIELD,
        "fields_for_preserving_frag_bitmap": _FIELD,
        "updated_fragment_offsets": _FRAGMENT,
        "updated_fragment_offset_bitmaps": _FRAGMENT,
    },
    "Transaction.UpdateConfig": {
        "field_metadata": Bounds(0, FIELD_ID_MAX, "unknown_field"),
        "field_metadata_updates": Bounds(-(2**31), FIELD_ID_MAX, "unknown_field"),  # an unknown field is refused
    },
    "Transaction.DataReplacementGroup": {"fragment_id": _FRAGMENT},
    "DataFragment": {"id": _U64, "physical_rows": _ROWS},  # an id that matters is looked up
    "DataFile": {
        "fields": Bounds(-2, FIELD_ID_MAX),
        "column_indices": Bounds(-1, 2**31 - 1),
        "file_major_version": _U32,  # an unknown version is refused
        "file_minor_version": _U32,
        "file_size_bytes": _SIZE,
        "base_id": _U32,  # an unknown base is refused
    },
    "DeletionFile": {"read_version": _VERSION, "id": _U64, "num_deleted_rows": _ROWS, "base_id": _U32},
    "ExternalFile": {"offset": _SIZE, "size": _SIZE},
    "BasePath": {"id": Bounds(0, BASE_ID_MAX)},
    "IndexMetadata": {
        "fields": _FIELD,
        "covering_fields": _FIELD,
        "dataset_version": _VERSION,
        "index_version": Bounds(0, 2**31 - 1),
        "created_at": Bounds(0, TIME_MS_MAX, "index_created_at"),
        "base_id": _U32,
    },
    "IndexFile": {"size_bytes": _SIZE},
    "MergedGeneration": {"generation": _SIZE},
    "MemWalIndexDetails": {"snapshot_ts_millis": _TIME, "num_regions": _U32},
    "RegionSpec": {"spec_id": _U32},
    "RegionField": {"source_ids": _FIELD},
    "FragmentReuseIndexDetails.Version": {"dataset_version": _VERSION},
    "FragmentReuseIndexDetails.FragmentDigest": {"id": _FRAGMENT, "physical_rows": _ROWS, "num_deleted_rows": _ROWS},
    "Field": {
        "id": Bounds(0, FIELD_ID_MAX, "schema"),
        "parent_id": Bounds(-1, FIELD_ID_MAX, "schema"),
        "unenforced_primary_key_position": Bounds(0, FIELD_ID_MAX, "schema"),
        "unenforced_clustering_key_position": Bounds(0, FIELD_ID_MAX, "schema"),
    },
    "Dictionary": {"offset": _SIZE, "length": _SIZE},
}
"""The bounds, by the message's name without its package and by field; the bounds of a map are for its keys."""

_WHOLE = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def numbers_out_of_bounds(message: Message) -> list[OutOfBounds]:
    """All numbers of a message, nested messages included, that are out of their bounds.

    The message is a transaction, or the details of a system index.
    """
    found: list[OutOfBounds] = []
    _check(message, _PLANS[message.DESCRIPTOR.full_name], (), found)
    return found


def name_of(descriptor: Descriptor) -> str:
    """The name of a message in `BOUNDS`: without its package."""
    package = descriptor.file.package
    return descriptor.full_name.removeprefix(f"{package}.")


_Number: TypeAlias = tuple[str, int, int, Bounds]


class _Plan(NamedTuple):
    """The fields of one message type that hold numbers, or messages with numbers."""

    single: tuple[_Number, ...] = ()
    """Fields with one number: name, lowest, highest value."""
    many: tuple[_Number, ...] = ()
    """Fields with several numbers."""
    keys: tuple[_Number, ...] = ()
    """Maps with numbers as keys."""
    inner: tuple[tuple[str, _Plan], ...] = ()
    """Fields with one message."""
    choices: tuple[tuple[str, dict[str, _Plan]], ...] = ()
    """Oneofs, with the plans of their fields; at most one of the fields is set."""
    inners: tuple[tuple[str, _Plan], ...] = ()
    """Fields with several messages."""
    maps: tuple[tuple[str, _Plan], ...] = ()
    """Maps with messages as values."""


def _check(message: Any, plan: _Plan, path: tuple[Any, ...], found: list[OutOfBounds]) -> None:
    single, many, keys, inner, choices, inners, maps = plan
    for name, least, most, bounds in single:
        value = getattr(message, name)
        if not least <= value <= most:
            found.append(OutOfBounds(_dotted(path, name), value, bounds))
    for name, least, most, bounds in many:
        values = getattr(message, name)[:]  # a list: reading the field itself several times takes longer than the copy
        if values and (min(values) < least or max(values) > most):
            value = next(one for one in values if not least <= one <= most)
            found.append(OutOfBounds(_dotted(path, name), value, bounds))
    for name, least, most, bounds in keys:
        found += [
            OutOfBounds(_dotted(path, name), key, bounds) for key in getattr(message, name) if not least <= key <= most
        ]
    for name, below in inner:
        if message.HasField(name):
            _check(getattr(message, name), below, (*path, name), found)
    for oneof, plans in choices:
        chosen = message.WhichOneof(oneof)
        if chosen in plans:
            _check(getattr(message, chosen), plans[chosen], (*path, chosen), found)
    for name, below in inners:
        for position, value in enumerate(getattr(message, name)):
            _check(value, below, (*path, name, position), found)
    for name, below in maps:
        for key, value in getattr(message, name).items():
            _check(value, below, (*path, name, key), found)


def _dotted(path: tuple[Any, ...], name: str) -> str:
    """A path as text: `append.fragments[0].physical_rows`."""
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*path, name))
    return dotted.removeprefix(".")


def _plan(descriptor: Any) -> _Plan:
    """The plan of a type, from its fields and the fields of the messages in it."""
    bounds = BOUNDS.get(name_of(descriptor), {})
    single: list[_Number] = []
    many: list[_Number] = []
    keys: list[_Number] = []
    inner: list[tuple[str, _Plan]] = []
    inners: list[tuple[str, _Plan]] = []
    maps: list[tuple[str, _Plan]] = []
    choices: dict[str, dict[str, _Plan]] = {}
    for field in descriptor.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        value = field.message_type.fields_by_name["value"] if is_map else field
        number = field.message_type.fields_by_name["key"] if is_map else field
        if field.name in bounds and bounds[field.name][:2] != _WHOLE[number.cpp_type]:
            least, most, _ = bounds[field.name]
            fields = keys if is_map else many if field.is_repeated else single
            fields.append((field.name, least, most, bounds[field.name]))
        below = _plan(value.message_type) if value.message_type is not None else _NOTHING
        if below == _NOTHING or (descriptor.name, value.message_type.name) == _REFUSED:
            continue
        if is_map:
            maps.append((field.name, below))
        elif field.is_repeated:
            inners.append((field.name, below))
        elif field.containing_oneof is not None:
            choices.setdefault(field.containing_oneof.name, {})[field.name] = below
        else:
            inner.append((field.name, below))
    return _Plan(
        tuple(single), tuple(many), tuple(keys), tuple(inner), tuple(choices.items()), tuple(inners), tuple(maps)
    )


_NOTHING = _Plan()
_REFUSED = "DataFragment", "ExternalFile"
"""A field that is refused whatever its numbers are."""
_PLANS = {
    kind.DESCRIPTOR.full_name: _plan(kind.DESCRIPTOR)
    for kind in (Transaction, FragmentReuseIndexDetails, FragmentReuseIndexDetails.InlineContent, MemWalIndexDetails)
}
