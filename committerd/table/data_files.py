"""Reads what data files say of themselves: row counts and schemas."""

from __future__ import annotations

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
    fields_of,
    first_buffer,
    packed_descriptor,
)
from committerd.stores.port import ObjectStore, Tail
from committerd.table.heavy_work import LIGHT_BYTES_MAX
from committerd.table.reading import read_named
from committerd_common.messages import FileDescriptor, PackedFileDescriptor

END_BYTES, END_BYTES_MAX = 16 * 1024, 256 * 1024
"""Bytes of a data file's end to read first, at least and at most. Each column of a file takes about 190 bytes there, or
more if it has many pages.
"""
_SCHEMA_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of the different schemas of the data files that are read together. The types of others aren't known."""
_DESCRIPTORS_AT_ONCE, _DESCRIPTORS_AT_ONCE_MAX = 4, 64
"""Descriptors to read at the same time where they are not in the ends: of up to 8 MiB each, or of few bytes."""
_DESCRIPTOR_BYTES_AT_ONCE = 1024 * 1024
"""More descriptors than `_DESCRIPTORS_AT_ONCE` are read at the same time if they have at most so many bytes together.
"""


class EndBytes:
    """How many bytes of a data file's end to read first: as many as the last files of the table have needed.

    Then one request for each file is enough, whether the table has few columns or many.
    """

    def __init__(self) -> None:
        self.bytes = END_BYTES

    def note(self, needed: int) -> None:
        """Note how many bytes of their ends the last files have needed, at most."""
        with_room = needed + needed // 4
        self.bytes = max(with_room, END_BYTES) if with_room <= END_BYTES_MAX else END_BYTES


class DataFileFacts:
    """What data files of one store say of themselves, from their ends. No end is kept: there may be 100,000 files."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._beyond: dict[str, tuple[ByteRange, Tail]] = {}
        """By key: the place of a descriptor that is not in the file's end, and the footer."""
        self._fields: dict[bytes, bytes | None] = {}
        """By schema, each once, because most files of a table have the same: as `fields_of` returns it."""
        self._schema_bytes = 0
        self.needed = 0
        """How many bytes of an end would have held the descriptor of each file, as far as the ends say."""
        self.found: dict[str, FileFacts | None] = {}
        """By key; None = the file says nothing that is understood."""

    def take(self, key: str, tail: Tail) -> None:
        """Take what the end of a file says."""
        place = _descriptor_place(tail)
        if place is None:
            self.found[key] = None
            return
        self.needed = max(self.needed, tail.size - place.start)
        body = _part(tail, place)
        if body is None or len(body) > LIGHT_BYTES_MAX:
            self._beyond[key] = place, Tail(body=tail.body[-FOOTER_BYTES:], size=tail.size)
        else:
            packed = _packed(body)
            self._note(key, tail, packed, None if packed is None else self._fields_of(packed.schema))

    async def finish(self) -> None:
        """Read the descriptors that are not in the ends of the files that were taken."""
        beyond, self._beyond = self._beyond, {}

        async def read(key: str) -> None:
            place, footer = beyond[key]
            with suppress(ObjectUnreadable, InvalidRequest):
                packed = _packed(await self._store.get_range(key, place.start, place.end))
                if packed is None:
                    fields = None
                elif len(packed.schema) > LIGHT_BYTES_MAX and packed.schema not in self._fields:
                    # It takes up to 3 s.
                    fields = self._kept(packed.schema, await to_thread.run_sync(fields_of, packed.schema))
                else:
                    fields = self._fields_of(packed.schema)
                self._note(key, footer, packed, fields)

        largest = max((place.end - place.start for place, _ in beyond.values()), default=1)
        at_once = min(max(_DESCRIPTOR_BYTES_AT_ONCE // max(largest, 1), _DESCRIPTORS_AT_ONCE), _DESCRIPTORS_AT_ONCE_MAX)
        await for_each(beyond, read, at_once=at_once)

    def _note(self, key: str, tail: Tail, packed: PackedFileDescriptor | None, fields: bytes | None) -> None:
        self.found[key] = None if packed is None or fields is None else facts(tail.body, packed, fields)

    def _fields_of(self, schema: bytes) -> bytes | None:
        if schema in self._fields:
            return self._fields[schema]
        return self._kept(schema, fields_of(schema))

    def _kept(self, schema: bytes, fields: bytes | None) -> bytes | None:
        """Keep the fields of a schema, and return them; empty if the schemas would take too much memory."""
        size = len(schema) + len(fields or b"")
        if self._schema_bytes + size > _SCHEMA_BYTES_MAX:
            return None if fields is None else b""
        self._schema_bytes += size
        self._fields[schema] = fields
        return fields


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


def _packed(body: bytes | None) -> PackedFileDescriptor | None:
    return packed_descriptor(body) if body else None


def _descriptor_place(tail: Tail) -> ByteRange | None:
    table = buffer_table(tail.body, tail.size)
    entry = _part(tail, table) if table is not None else None
    return first_buffer(entry, tail.size) if entry is not None else None


def _part(tail: Tail, extent: ByteRange) -> bytes | None:
    """These bytes of an object; None if its end does not have them."""
    start = tail.size - len(tail.body)
    return tail.body[extent.start - start : extent.end - start] if extent.start >= start else None
