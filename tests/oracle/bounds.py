"""Every number of a transaction at the bounds of its type, in the message itself and in the messages inside its bytes:
index details, row ids, row versions.

Whatever happens to the transaction, the next one can be built on the table, and pylance opens it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from committerd_common.index_details import type_name
from committerd_common.messages import (
    Any as AnyMessage,
)
from committerd_common.messages import (
    DataFragment,
    FragmentReuseIndexDetails,
    IndexMetadata,
    MemWalIndexDetails,
    Message,
    RowDatasetVersionSequence,
    RowIdSequence,
    Transaction,
)

M = TypeVar("M", bound=Message)

_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
_NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2**31 - 1, 2**32 - 2, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
_INSIDE: dict[tuple[str, str], type[Message]] = {
    ("DataFragment", "inline_row_ids"): RowIdSequence,
    ("DataFragment", "inline_created_at_versions"): RowDatasetVersionSequence,
    ("DataFragment", "inline_last_updated_at_versions"): RowDatasetVersionSequence,
}
_DETAILS: dict[str, type[Message]] = {
    kind.DESCRIPTOR.name: kind for kind in (FragmentReuseIndexDetails, MemWalIndexDetails)
}


class Case(NamedTuple):
    """A transaction with one changed number."""

    name: str
    """The place of the number, and its new value."""
    body: bytes


def at_bounds(staged: bytes) -> Iterator[Case]:
    """Yield the transaction with one number at a bound, for each number and each bound."""
    for name, changed in with_a_number_at_a_bound(Transaction.FromString(staged)):
        yield Case(name, changed.SerializeToString())


def with_a_number_at_a_bound(whole: M) -> Iterator[tuple[str, M]]:
    """Yield copies of the message: each has one number at a bound, and is named after the place and the number."""
    for path, change in _numbers(whole, ()):
        for number in _NUMBERS:
            changed = type(whole).FromString(whole.SerializeToString())
            if change(changed, number):
                yield f"{path} = {number}", changed


Change = Callable[[Any, int], bool]
"""Sets the number in this message; returns False if its type can't hold the value."""


def _numbers(message: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Change]]:
    """Yield each number in a message, with a function that sets it in another message of the same shape."""
    for field in message.DESCRIPTOR.fields:
        here = (*path, field.name)
        if field.cpp_type in _BITS:
            yield ".".join(here), _setter(field)
        elif (inside := _inside(message, field)) is not None:
            yield from _within_bytes(message, field, inside, here)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield from _keys(field, here)
        elif field.message_type is not None:
            yield from _below(message, field, here)


def _setter(field: Any) -> Change:
    least, most = _BITS[field.cpp_type]

    def change(message: Any, number: int) -> bool:
        if not least <= number <= most:
            return False
        if field.is_repeated:
            values = getattr(message, field.name)
            if values:
                values[0] = number
            else:
                values.append(number)
        else:
            setattr(message, field.name, number)
        return True

    return change


def _inside(message: Any, field: Any) -> type[Message] | None:
    kind = _INSIDE.get((message.DESCRIPTOR.name, field.name))
    if kind is None and isinstance(message, AnyMessage) and field.name == "value":
        kind = _DETAILS.get(type_name(IndexMetadata(index_details=message)))
    return kind


def _within_bytes(message: Any, field: Any, kind: type[Message], path: tuple[str, ...]) -> Iterator[tuple[str, Change]]:
    for name, change in _numbers(_filled(kind, getattr(message, field.name)), path):

        def apply(outer: Any, number: int, change: Change = change) -> bool:
            inner = _filled(kind, getattr(outer, field.name))
            if not change(inner, number):
                return False
            setattr(outer, field.name, inner.SerializeToString())
            return True

        yield name, apply


def _filled(kind: type[Message], body: bytes) -> Message:
    """The message inside the bytes; if they are empty, one with all parts, so that there are numbers to change."""
    message = kind.FromString(body)
    if body:
        return message
    if isinstance(message, RowIdSequence):
        message.segments.add().range.end = 10
    elif isinstance(message, RowDatasetVersionSequence):
        message.runs.add(version=1).span.range.end = 10
    return message


def _keys(field: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Change]]:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    if key.cpp_type not in _BITS:
        return
    least, most = _BITS[key.cpp_type]

    def change(message: Any, number: int) -> bool:
        if not least <= number <= most:
            return False
        entries = getattr(message, field.name)
        if value.message_type is not None:
            entries[number].SetInParent()
        else:
            entries[number] = b""
        return True

    yield ".".join((*path, "key")), change


def _below(message: Any, field: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Change]]:
    """The message inside a field, or the one that it would hold; of several the first."""
    if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name) not in (None, field.name):
        return
    if len(path) > 12:
        return

    def inner_of(outer: Any) -> Any:
        inner = getattr(outer, field.name)
        if not field.is_repeated:
            return inner
        return inner[0] if inner else inner.add()

    copy = type(message)()
    copy.CopyFrom(message)
    held = inner_of(copy)
    if isinstance(held, DataFragment) and not held.files:
        return
    for name, change in _numbers(held, path):

        def apply(outer: Any, number: int, change: Change = change) -> bool:
            return change(inner_of(outer), number)

        yield name, apply
