"""Reads what data files say of themselves, for many files at once."""

from __future__ import annotations

from contextlib import suppress

from committerd.concurrency import for_each
from committerd.errors import InvalidRequest, ObjectUnreadable
from committerd.lance.format.byte_range import ByteRange
from committerd.lance.format.data_file import (
    FOOTER_BYTES,
    FileFacts,
    buffer_table,
    decode_descriptor,
    facts,
    first_buffer,
)
from committerd.stores.port import ObjectStore, Tail
from committerd.table.reading import decoded_descriptor
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
        start = tail.size - len(tail.body)
        if place is not None and place.start < start:
            self._beyond[key] = place, Tail(body=tail.body[-FOOTER_BYTES:], size=tail.size)
        else:
            body = b"" if place is None else tail.body[place.start - start : place.end - start]
            self._note(key, tail, decode_descriptor(body) if body else None)

    async def finish(self) -> None:
        """Read the descriptors that are not in the ends."""

        async def read(key: str) -> None:
            place, footer = self._beyond[key]
            with suppress(ObjectUnreadable, InvalidRequest):
                body = await self._store.get_range(key, place.start, place.end) or b""
                self._note(key, footer, await decoded_descriptor(body))

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


def _descriptor_place(tail: Tail) -> ByteRange | None:
    table = buffer_table(tail.body, tail.size)
    start = tail.size - len(tail.body)
    if table is None or table.start < start:
        return None
    return first_buffer(tail.body[table.start - start : table.end - start], tail.size)
