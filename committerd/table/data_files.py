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
    first_buffer,
)
from committerd.stores.port import ObjectStore, Tail
from committerd.table.heavy_work import LIGHT_BYTES_MAX
from committerd.table.reading import read_named
from committerd_common.messages import FileDescriptor

END_BYTES = 16 * 1024
"""Bytes of a data file's end to read first. They hold the descriptor of all but wide files."""
_SCHEMA_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of the different schemas of the data files that are read together. The types of others aren't known."""
_DESCRIPTORS_AT_ONCE = 4
"""Descriptors of wide files to read at the same time: of up to 8 MiB each."""


class DataFileFacts:
    """What data files of one store say of themselves, from their ends. No end is kept: there may be 100,000 files."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._beyond: dict[str, tuple[ByteRange, Tail]] = {}
        """By key: the place of a descriptor that is not in the file's end, and the footer."""
        self._schemas: dict[bytes, bytes] = {}
        """The schemas so far, each once: most files of a table have the same."""
        self._schema_bytes = 0
        self.found: dict[str, FileFacts | None] = {}
        """By key; None = the file says nothing that is understood."""

    def take(self, key: str, tail: Tail) -> None:
        """Take what the end of a file says."""
        place = _descriptor_place(tail)
        body = _part(tail, place) if place is not None else b""
        if place is not None and body is None:
            self._beyond[key] = place, Tail(body=tail.body[-FOOTER_BYTES:], size=tail.size)
        else:
            self._note(key, tail, decode_descriptor(body) if body else None)

    async def finish(self) -> None:
        """Read the descriptors that are not in the ends."""

        async def read(key: str) -> None:
            place, footer = self._beyond[key]
            with suppress(ObjectUnreadable, InvalidRequest):
                body = await self._store.get_range(key, place.start, place.end) or b""
                self._note(key, footer, await _decoded(body))

        await for_each(self._beyond, read, at_once=_DESCRIPTORS_AT_ONCE)

    def _note(self, key: str, tail: Tail, descriptor: FileDescriptor | None) -> None:
        said = None if descriptor is None else facts(tail.body, descriptor)
        self.found[key] = None if said is None else said._replace(fields=self._once(said.fields))

    def _once(self, schema: bytes) -> bytes:
        """The same schema as before, if there was one; empty if the schemas would take too much memory."""
        known = self._schemas.get(schema)
        if known is None and self._schema_bytes + len(schema) <= _SCHEMA_BYTES_MAX:
            known = self._schemas[schema] = schema
            self._schema_bytes += len(schema)
        return known or b""


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
