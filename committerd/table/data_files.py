"""Reads what data files say of themselves: row counts and schemas."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from anyio import to_thread

from committerd.concurrency import for_each
from committerd.errors import InvalidRequest, ObjectUnreadable
from committerd.lance.format.byte_range import ByteRange
from committerd.lance.format.data_file import (
    FOOTER_BYTES,
    TAIL_BYTES,
    FileFacts,
    buffer_table,
    decode_descriptor,
    facts,
    first_buffer,
    normalised,
    packed_descriptor,
)
from committerd.stores.port import ObjectStore, Tail
from committerd.stretches import GiveWay, to_all
from committerd.table.heavy_work import LIGHT_BYTES_MAX
from committerd.table.reading import read_named
from committerd_common.messages import FileDescriptor

_SCHEMA_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of the different schemas of the data files that are read together. The types of others aren't known."""
_DESCRIPTORS_AT_ONCE, _DESCRIPTORS_AT_ONCE_MAX = 4, 64
"""How many descriptors are read at the same time where they are not in the ends of their files: the first number if
they are large, up to 8 MiB each, and the second if they are small.
"""
_DESCRIPTOR_BYTES_AT_ONCE = 1024 * 1024
"""Small descriptors that are read at the same time have at most so many bytes together."""


class DataFileFacts:
    """What data files of one store say of themselves, from their ends. No end is kept: there may be 100,000 files."""

    def __init__(self, store: ObjectStore, *, give_way: GiveWay = to_all) -> None:
        self._store = store
        self._give_way = give_way
        self._later: dict[str, tuple[ByteRange, bytes | None, Tail]] = {}
        """By key: the place of a descriptor that is large, or is not in the file's end; its bytes if they are there,
        and the footer.
        """
        self._schemas: dict[bytes, bytes] = {}
        """The schemas so far, each once: most files of a table have the same."""
        self._schema_bytes = 0
        self.found: dict[str, FileFacts | None] = {}
        """By key; None = the file says nothing that is understood."""

    def take(self, key: str, tail: Tail) -> int:
        """Take what the end of a file says; returns how long an end must be to have the descriptor, 0 = it has none."""
        place = _descriptor_place(tail)
        if place is None:
            self.found[key] = None
            return 0
        body = _part(tail, place)
        if body is None or len(body) > LIGHT_BYTES_MAX:
            self._later[key] = place, body, Tail(body=tail.body[-FOOTER_BYTES:], size=tail.size)
        else:
            self._note(key, _facts(tail, body), self._once)
        return tail.size - place.start

    async def finish(self) -> None:
        """Decode the descriptors of the files taken so far that are large, and read those that are not in the ends."""
        later, self._later = self._later, {}

        async def read(key: str) -> None:
            place, body, footer = later[key]
            with suppress(ObjectUnreadable, InvalidRequest):
                if body is None:
                    body = await self._store.get_range(key, place.start, place.end) or b""
                await self._give_way()
                if len(body) > LIGHT_BYTES_MAX:
                    self._note(key, await to_thread.run_sync(_normalised_facts, footer, body), self._kept)
                else:
                    self._note(key, _facts(footer, body), self._once)

        largest = max((place.end - place.start for place, _, _ in later.values()), default=0)
        small = min(_DESCRIPTOR_BYTES_AT_ONCE // max(largest, 1), _DESCRIPTORS_AT_ONCE_MAX)
        await for_each(later, read, at_once=max(small, _DESCRIPTORS_AT_ONCE))

    def _note(self, key: str, said: FileFacts | None, shared: Callable[[bytes], bytes]) -> None:
        """Note the facts of a file. `shared`: returns the fields as the other files with the same fields have them."""
        self.found[key] = None if said is None else said._replace(fields=shared(said.fields))

    def _once(self, fields: bytes) -> bytes:
        """As `_kept`, for fields that are not normalised."""
        known = self._schemas.get(fields)
        return self._kept(normalised(fields)) if known is None else known

    def _kept(self, schema: bytes) -> bytes:
        """The same schema as before, if there was one; empty if the schemas would take too much memory."""
        known = self._schemas.get(schema)
        if known is None and self._schema_bytes + len(schema) <= _SCHEMA_BYTES_MAX:
            known = self._schemas[schema] = schema
            self._schema_bytes += len(schema)
        return known or b""


def _facts(tail: Tail, body: bytes) -> FileFacts | None:
    """The facts of a file that ends with `tail` and has this descriptor; None if it says nothing."""
    descriptor = packed_descriptor(body) if body else None
    return None if descriptor is None else facts(tail.body, descriptor)


def _normalised_facts(tail: Tail, body: bytes) -> FileFacts | None:
    """As `_facts`, with normalised fields. It takes up to 3 s."""
    said = _facts(tail, body)
    return None if said is None else said._replace(fields=normalised(said.fields))


async def descriptor_of(store: ObjectStore, key: str) -> FileDescriptor | None:
    """Read what a data file says of itself; None when it is missing or says nothing. Raises as `read_named`."""
    tail = await read_named(store, key, lambda: store.get_tail(key, TAIL_BYTES))
    if tail is None:
        return None

    async def read(extent: ByteRange) -> bytes:
        body = _part(tail, extent)
        if body is None:
            body = await read_named(store, key, lambda: store.get_range(key, extent.start, extent.end))
        return body or b""

    table = buffer_table(tail.body, tail.size)
    place = first_buffer(await read(table), tail.size) if table is not None else None
    return await _decoded(await read(place)) if place is not None else None


async def _decoded(body: bytes) -> FileDescriptor | None:
    """As `decode_descriptor`; a large one takes up to 3 s, in a thread."""
    if len(body) > LIGHT_BYTES_MAX:
        return await to_thread.run_sync(decode_descriptor, body)
    return decode_descriptor(body) if body else None


def _descriptor_place(tail: Tail) -> ByteRange | None:
    table = buffer_table(tail.body, tail.size)
    entry = _part(tail, table) if table is not None else None
    return first_buffer(entry, tail.size) if entry is not None else None


def _part(tail: Tail, extent: ByteRange) -> bytes | None:
    """These bytes of an object; None if its end does not have them."""
    start = tail.size - len(tail.body)
    return tail.body[extent.start - start : extent.end - start] if extent.start >= start else None
