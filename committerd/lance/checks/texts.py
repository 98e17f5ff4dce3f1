"""Checks of names and values that a table stores, or that a reader looks up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from committerd.errors import InvalidRequest
from committerd.lance.format.own_keys import KEY_PREFIX
from committerd.lance.format.wording import quoted
from committerd_common.messages import Transaction

NAME_BYTES_MAX = 1024
"""The largest size of a name: of a field, a key, a tag, an index or a base."""
_VALUE_BYTES_MAX = 2**20
"""The largest size of an entry's value in config or metadata, which every later version carries."""


class Entries(NamedTuple):
    """Keys and values that a transaction sets."""

    where: str
    """The field that holds them."""
    items: Collection[tuple[str, str | bytes]]
    may_be_reserved: bool = False
    """Whether keys may begin with `committerd.`: in this field they mean nothing to committerd."""


def require_entries(where: str, entries: Iterable[tuple[str, str | bytes]]) -> None:
    """Check that the table may carry these entries. Raises `InvalidRequest` (`text_invalid`)."""
    for key, value in entries:
        require_name(where, key)
        if len(value) > _VALUE_BYTES_MAX:
            raise InvalidRequest(
                f"{where}: the value of {key!r} has a length of {len(value)}; at most {_VALUE_BYTES_MAX} is allowed, "
                "since every later version of the table carries it. Put it into a file, and its name here",
                code="text_invalid",
            )


def require_name(where: str, name: str) -> None:
    """Check that the table may carry this name. Raises `InvalidRequest` (`text_invalid`)."""
    if "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidRequest(
            f"{where}: {quoted(name)} can't be a name: it may have {NAME_BYTES_MAX} bytes and no zero byte",
            code="text_invalid",
        )


def require_unreserved(where: str, keys: Iterable[str]) -> None:
    """Check that none of the keys is reserved for committerd. Raises `InvalidRequest` (`reserved_key`)."""
    for key in keys:
        if key.startswith(KEY_PREFIX):
            raise InvalidRequest(
                f"{where} sets {key!r}, but keys that begin with {KEY_PREFIX!r} are committerd's own; choose another "
                "name",
                code="reserved_key",
            )


def require_property(transaction: Transaction, key: str, allowed: Collection[str]) -> None:
    """Check that a property of committerd's own is not set, or has one of the allowed values.

    Raises `InvalidRequest` (`reserved_key`).
    """
    value = transaction.transaction_properties.get(key)
    if value is not None and value not in allowed:
        raise InvalidRequest(
            f"transaction_properties sets {key!r} to {quoted(value)}; set it to {' or '.join(sorted(allowed))}, or "
            "leave it out",
            code="reserved_key",
        )


def require_schema_metadata(entries: Mapping[str, bytes]) -> None:
    """Check that the table may carry this schema metadata, which comes from a data file.

    Raises `InvalidRequest` (`text_invalid`).
    """
    require_entries("the schema of its data file", entries.items())
    total = sum(len(value) for value in entries.values())
    if total > _VALUE_BYTES_MAX:
        raise InvalidRequest(
            f"the schema of its data file has {total} bytes of metadata; at most {_VALUE_BYTES_MAX} are allowed, since "
            "every later version of the table carries them. Write the files with less, or keep it elsewhere",
            code="text_invalid",
        )
