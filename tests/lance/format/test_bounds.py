from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from committerd.lance.format.bounds import BOUNDS, OutOfBounds, name_of, numbers_out_of_bounds
from committerd_common.messages import FragmentReuseIndexDetails, MemWalIndexDetails, Message, Transaction

ROOTS = (Transaction, FragmentReuseIndexDetails, MemWalIndexDetails)
# What stands for ids, rows and bytes that need not be: refused whole, or decoded elsewhere.
NUMBERS = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)


def descriptors() -> Iterator[Any]:
    """Descriptors of all messages in a transaction or in the details of a system index."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [root.DESCRIPTOR for root in ROOTS]
    while waiting:
        one = waiting.pop()
        if one.full_name not in found:
            found[one.full_name] = one
            waiting += [field.message_type for field in one.fields if field.message_type is not None]
    return (one for one in found.values() if not one.GetOptions().map_entry)


def found(message: Message) -> list[str]:
    return [str(one) for one in numbers_out_of_bounds(message)]


def is_number(field: Any) -> bool:
    """Whether a field, or the keys of a map, are numbers that have bounds."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return field.message_type.fields_by_name["key"].cpp_type in NUMBERS
    return field.cpp_type in NUMBERS


def test_every_number_of_every_message_has_bounds() -> None:
    numbers = {(name_of(one), field.name) for one in descriptors() for field in one.fields if is_number(field)}
    listed = {(kind, name) for kind, fields in BOUNDS.items() for name in fields}
    assert numbers == listed
    assert len(numbers) > 50


def test_ordinary_numbers_pass() -> None:
    staged = Transaction()
    assert found(staged) == []
    fragment = staged.append.fragments.add(id=2**64 - 1, physical_rows=2**32 - 1)
    fragment.files.add(fields=[-2, 0, 2**30], column_indices=[-1, 5], file_size_bytes=2**63 - 1)
    staged.update_config.field_metadata_updates[-1].SetInParent()
    assert found(staged) == []


def test_a_number_is_named_with_its_place_and_bounds() -> None:
    staged = Transaction()
    staged.update.updated_fragments.add()
    staged.update.updated_fragments.add().files.add(fields=[1, -3, 2**31 - 1])
    staged.update.updated_fragment_offsets[7].values.append(2**32 - 1)
    staged.update.updated_fragment_offset_bitmaps[2**40] = b""
    staged.update.inserted_rows.bloom.number_of_items = 2**63
    assert found(staged) == [
        f"update.updated_fragment_offset_bitmaps is {2**40}; 0 to {2**32 - 2} is allowed",
        f"update.inserted_rows.bloom.number_of_items is {2**63}; 0 to {2**63 - 1} is allowed",
        f"update.updated_fragments[1].files[0].fields is -3; -2 to {2**30} is allowed",
        f"update.updated_fragment_offsets[7].values is {2**32 - 1}; 0 to {2**32 - 2} is allowed",
    ]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Transaction(reserve_fragments=Transaction.ReserveFragments(num_fragments=2**21)), "fragment_ids_exhausted"),
        (MemWalIndexDetails(snapshot_ts_millis=2**63 - 1), "number_out_of_bounds"),
    ],
)
def test_a_number_has_the_code_of_its_field(message: Message, code: str) -> None:
    (wrong,) = numbers_out_of_bounds(message)
    assert isinstance(wrong, OutOfBounds)
    assert wrong.code == code
