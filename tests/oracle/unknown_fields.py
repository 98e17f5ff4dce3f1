"""Tables and transactions of a later Lance: each message in them, once, has a field whose number nobody knows yet."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import lance

from committerd.lance.format.fragment_list import NO_FRAGMENTS
from committerd.lance.format.manifest_file import assemble, decode
from committerd_common.messages import IndexSection, Manifest, Message, Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.oracle.feature_tables import rows

UNKNOWN = b"\x82\x7d\x01x"
"""Field 2,000, of one byte."""
OPERATION = b"\x8a\x7d\x00"
"""Field 2,001, an empty message: in a transaction, it may be an operation."""

M = TypeVar("M", bound=Message)


class Place(NamedTuple):
    """A message inside another one: the first of its kind."""

    path: tuple[tuple[str, int | str | None], ...]
    """Field names, each with an index, a key or None."""

    def __str__(self) -> str:
        return ".".join(name for name, _ in self.path) or "itself"

    def of(self, message: Message) -> Message:
        for name, key in self.path:
            value = getattr(message, name)
            message = value if key is None else value[key]
        return message


def places(message: Message) -> list[Place]:
    """A place of each kind of message that is set, the message itself first."""
    first: dict[str, Place] = {}
    for path in _walk(message, ()):
        first.setdefault(str(Place(path)), Place(path))
    return list(first.values())


def _walk(
    message: Message, path: tuple[tuple[str, int | str | None], ...]
) -> Iterator[tuple[tuple[str, int | str | None], ...]]:
    yield path
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        keys: list[int | str | None] = [None]
        if field.message_type.GetOptions().map_entry:
            keys = list(value) if field.message_type.fields_by_name["value"].message_type is not None else []
        elif field.is_repeated:
            keys = list(range(len(value)))
        for key in keys:
            yield from _walk(value if key is None else value[key], (*path, (field.name, key)))


def with_unknown(message: M, place: Place, added: bytes = UNKNOWN) -> M:
    """A copy that has the unknown field there."""
    made = type(message)()
    made.CopyFrom(message)
    place.of(made).MergeFromString(added)
    return made


def make(root: Path) -> None:
    """A table whose latest version has a message of each kind that pylance writes."""
    lance.write_dataset(rows(0), str(root), data_storage_version="2.1")
    lance.write_dataset(rows(100), str(root), mode="append")
    lance.dataset(str(root)).create_scalar_index("id", "BTREE")
    lance.dataset(str(root)).update_config({"a": "b"})
    lance.dataset(str(root)).delete("id % 3 = 0")


def put_next(root: Path, manifest: Manifest, section: IndexSection, operation: bytes = b"") -> Path:
    """Commit this as the next version, as a later Lance does; returns its path.

    `operation`: more bytes of its transaction.
    """
    latest = lance.dataset(str(root)).version
    transaction = Transaction(read_version=latest, uuid=str(uuid.uuid4()))
    transaction.update_config.SetInParent()
    if operation == OPERATION:
        transaction.Clear()
    transaction.MergeFromString(operation)
    made = Manifest()
    made.CopyFrom(manifest)
    made.version, made.transaction_file = latest + 1, ""
    body = assemble(made, NO_FRAGMENTS, section, transaction)
    path = root / manifest_key(made.version, NamingScheme.V2)
    path.write_bytes(bytes(body))
    return path


def transactions(root: Path) -> dict[str, Transaction]:
    """A transaction of each operation in the table's history, the last one of each."""
    found: dict[str, Transaction] = {}
    for version in range(1, lance.dataset(str(root)).version + 1):
        staged = decode((root / manifest_key(version, NamingScheme.V2)).read_bytes()).transaction
        operation = staged.WhichOneof("operation") if staged is not None else None
        if staged is not None and operation is not None:
            found[operation] = staged
    return found
