"""Deletion files: which rows of a fragment are deleted, as offsets from its first row.

Two formats. `.arrow` is an Arrow file of exactly one batch with exactly one column, `row_id`:
uint32, not nullable, no schema metadata, in any order. `.bin` is a portable 32-bit Roaring bitmap.
We read both, as strictly as pylance does, and write bitmaps.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeAlias

from pyroaring import BitMap

from committerd_common.arrow_file import decompressed_bytes, only_values
from committerd_common.malformed import MalformedError, blamed
from committerd_common.messages import DataFragment, DeletionFile

if TYPE_CHECKING:
    import pyarrow as pa

_ARROW_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of the rows in a `.arrow` file: 1,048,576 rows. pylance writes a bitmap for more than 5,000."""

_FRAMES_MAX, _FRAME_BYTES_MAX = 64, 4096

Frames: TypeAlias = dict[int, tuple[bytes, bytes]]
"""The bytes before and after the rows of Arrow files that were read, by the size of the file. Files of as many rows
differ only in these if they are not compressed, which files of a few rows are not.
"""


def decode_deletions(body: bytes, fragment: DataFragment, *, staged: bool, frames: Frames | None = None) -> BitMap:
    """The deleted rows of `fragment`, from the bytes of its deletion file.

    `frames`: for calls that read many files, at first empty: files that differ in their rows only are read faster.

    They are checked against the fragment: its number of deleted rows (if known), and its number of rows. Raises
    `InvalidRequest` (if `staged`) or else `CorruptTable`, with code `deletion_file`.
    """
    file = fragment.deletion_file
    with blamed(f"deletion file of fragment {fragment.id}", code="deletion_file", staged=staged):
        if file.file_type == DeletionFile.ARROW_ARRAY:
            rows = _decode_arrow(body, {} if frames is None else frames)
        elif file.file_type == DeletionFile.BITMAP:
            rows = _decode_bitmap(body)
        else:
            raise MalformedError(f"it is of type {file.file_type}, which committerd does not know")
        if file.num_deleted_rows and len(rows) != file.num_deleted_rows:
            raise MalformedError(f"it deletes {len(rows)} rows where the fragment says {file.num_deleted_rows}")
        if rows and 0 < fragment.physical_rows <= rows.max():
            raise MalformedError(f"it deletes row {rows.max()} where the fragment has {fragment.physical_rows}")
        return rows


def encode_bitmap(rows: BitMap) -> bytes:
    """Encode a `.bin` file. Never write one without rows, because to Lance a count of 0 means unknown."""
    smallest = BitMap(rows)
    smallest.run_optimize()
    return bytes(smallest.serialize())


def _decode_bitmap(body: bytes) -> BitMap:
    try:
        # This checks the containers too, and raises IndexError for empty bytes.
        return BitMap.deserialize(body)
    except (ValueError, IndexError) as error:
        raise MalformedError(f"it is not a portable 32-bit Roaring bitmap: {error}") from error


def _decode_arrow(body: bytes, frames: Frames) -> BitMap:
    if len(body) in frames:
        before, behind = frames[len(body)]
        if body.startswith(before) and body.endswith(behind):
            return _distinct(body[len(before) : len(body) - len(behind)])
    # The import takes 50 MiB, and these files are rare.
    import pyarrow as pa

    try:
        # Without threads, because handing a file of some bytes to one takes three times as long as reading it.
        whole = pa.py_buffer(body)
        reader = pa.ipc.open_file(whole, options=pa.ipc.IpcReadOptions(use_threads=False))
        if reader.num_record_batches != 1:
            raise MalformedError(f"it has {reader.num_record_batches} batches; one is needed")
        _require_schema(reader.schema)
        if (size := decompressed_bytes(body)) > _ARROW_BYTES_MAX:
            raise MalformedError(
                f"its rows take {size} bytes; an Arrow file may have {_ARROW_BYTES_MAX}, as pylance writes bitmaps "
                "for many rows"
            )
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise MalformedError(f"it is not an Arrow file: {error}") from error
    column = batch.column(0)
    if column.null_count:
        raise MalformedError(f"{column.null_count} of its row offsets are null")
    values = column.buffers()[1]
    # Not `to_numpy`, which imports pandas where it is installed: 0.2 s.
    offsets = memoryview(values)[4 * column.offset : 4 * (column.offset + len(column))] if len(column) else b""
    rows = _distinct(bytes(offsets))
    if rows:
        _remember_frame(frames, body, values.address + 4 * column.offset - whole.address, len(offsets))
    return rows


def _distinct(offsets: bytes) -> BitMap:
    rows = BitMap(array("I", offsets))
    if 4 * len(rows) != len(offsets):
        raise MalformedError(f"{len(offsets) // 4 - len(rows)} of its row offsets occur more than once")
    return rows


def _remember_frame(frames: Frames, body: bytes, place: int, size: int) -> None:
    """Let files that differ from this good one only in their rows be read without Arrow.

    `place`, `size`: of the rows in the file. Nothing is remembered if they are compressed, and so lie elsewhere in
    memory, or if they might be read as anything else too.
    """
    values = only_values(body)
    is_small = len(frames) < _FRAMES_MAX and len(body) - size <= _FRAME_BYTES_MAX
    if is_small and values.start <= place and place + size <= values.stop:
        frames[len(body)] = body[:place], body[place + size :]


def _require_schema(schema: pa.Schema) -> None:
    import pyarrow as pa

    wanted = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    # Lance compares with its own schema, which has no metadata.
    if not schema.equals(wanted, check_metadata=True):
        found = ", ".join(str(field) for field in schema)
        raise MalformedError(
            f"its columns are [{found}] with metadata {schema.metadata}; exactly "
            f"[{wanted.field(0)}] is needed, without metadata"
        )
