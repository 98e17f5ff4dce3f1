"""Fields that we do not know, anywhere in a message.

Protobuf keeps them through copying and serializing, so an edited message carries them on without a
word. In Lance that is dangerous: a position in the file that is no longer true, a feature that the
next version silently breaks. So what has them is refused before anything is written, with the path
of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from committerd_common.messages import Message


def has_unknown_fields(message: Message) -> bool:
    """Whether there is one at any depth. Costs a copy (12 ms for 10,000 fragments), no walk in
    Python.

    What an `Any` wraps is bytes, and not looked into.
    """
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return known.ByteSize() != message.ByteSize()


def unknown_fields(message: Message, *, limit: int = 20) -> list[str]:
    """Paths of the unknown fields, at most `limit`: `Transaction.append.fragments[0]#11` is number
    11 there.

    Empty when there is none. A number that occurs several times in one message is listed once.
    """
    if not has_unknown_fields(message):
        return []
    paths: list[str] = []
    for path in _walk(message, message.DESCRIPTOR.name):
        paths.append(path)
        if len(paths) == limit:
            break
    return paths


def _walk(message: Message, path: str) -> Iterator[str]:
    unknown = UnknownFieldSet(message)
    for number in sorted({unknown[place].field_number for place in range(len(unknown))}):
        yield f"{path}#{number}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for place, inner in _messages(field, value):
            yield from _walk(inner, f"{path}.{field.name}{place}")


def _messages(field: Any, value: Any) -> Iterator[tuple[str, Message]]:
    """The messages that a field holds, each with its place in it."""
    if field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is not None:
            yield from ((f"[{key!r}]", inner) for key, inner in sorted(value.items()))
    elif isinstance(value, Message):
        yield "", value
    else:
        yield from ((f"[{place}]", inner) for place, inner in enumerate(value))
