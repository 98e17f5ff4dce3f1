"""The keys of a merge-insert, by which two of them notice that they insert the same one.

pylance tracks them itself where it commits (a Bloom filter over the table's unenforced primary key), and loses them in
`execute_uncommitted`. Ours is exact: one 64-bit hash for each key of the source, whatever columns the merge is on.
Lance takes an exact set and a Bloom filter as contradicting each other, so mixing the two is safe.

**The hash of a key** is BLAKE2b with a digest of 8 bytes, read as a little-endian integer, of its columns one after
the other in the order of their field ids. Each column is cast to the type that it has in the table, and then is

* null: the byte 0;
* else: the byte 1, the length of the value in bytes (32 bits, little-endian), and the value:
  strings as UTF-8, binary as it is, booleans as one byte, all else as its little-endian value in memory (integers,
  dates, times, timestamps, durations, decimals as two's complement, floats as IEEE 754 with one zero and one NaN).

A key with a null is one like others here. Lance joins it with nothing, so two merges that insert the same contradict
each other needlessly, and one is executed again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from committerd_client.staging.errors import StagingError
from committerd_common.messages import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

KEYS_MAX = 100_000
"""Keys that one filter names, unless told otherwise: about 1 MB in every version that a merge makes."""

# Lance: inserted_rows.rs. Filters of other sizes can't be compared with what pylance writes.
_BLOOM_ITEMS, _BLOOM_PROBABILITY, _BLOOM_BYTES = 8192, 0.00057, 32768
_FLOAT_TYPES = {"halffloat": "<e", "float": "<f", "double": "<d"}


class KeyHashes:
    """Collects the keys of batches while pylance reads them."""

    def __init__(self, columns: Sequence[tuple[int, pa.Field]], *, most: int) -> None:
        """`columns`: id and Arrow field of each key column, as in the table. `most`: hashes to keep."""
        self._columns = sorted(columns, key=lambda column: column[0])
        self._most = most
        self._hashes: set[int] = set()
        self.too_many = False
        """Whether there were more than that."""
        self.nulls = False
        """Whether a key with a null was among them."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in its rows. Raises `StagingError` for a column that can't be cast to the table's type."""
        self.nulls = self.nulls or any(batch.column(field.name).null_count for _, field in self._columns)
        if self.too_many:
            return
        self._hashes.update(self._of(batch))
        if len(self._hashes) > self._most:
            self.too_many = True
            self._hashes.clear()

    def add_all(self, source: pa.Table | pa.RecordBatch) -> None:
        """As `add`, all at once."""
        import pyarrow as pa

        for batch in [source] if isinstance(source, pa.RecordBatch) else source.to_batches():
            self.add(batch)

    def has_one_of(self, batch: pa.RecordBatch) -> bool:
        """Whether one of the batch's rows may have a key that was added; True for sure if one has."""
        return self.too_many or not self._hashes.isdisjoint(self._of(batch))

    def _of(self, batch: pa.RecordBatch) -> Iterator[int]:
        """The hash of each row's key."""
        columns = [_encoded(batch, field) for _, field in self._columns]
        for parts in zip(*columns, strict=True):
            yield int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little")

    def filter(self) -> Transaction.KeyExistenceFilter:
        """Over all keys that were added; of too many one that shares a key with every other filter."""
        made = Transaction.KeyExistenceFilter(field_ids=[id for id, _ in self._columns])
        if self.too_many:
            made.bloom.bitmap = b"\xff" * _BLOOM_BYTES
            made.bloom.num_bits = _BLOOM_BYTES * 8
            made.bloom.number_of_items = _BLOOM_ITEMS
            made.bloom.probability = _BLOOM_PROBABILITY
        else:
            made.exact.key_hashes.extend(sorted(self._hashes))
            made.exact.SetInParent()
        return made


def _encoded(batch: pa.RecordBatch, field: pa.Field) -> Iterator[bytes]:
    """Each value of a key column as it is hashed."""
    import pyarrow as pa

    column, wanted = batch.column(field.name), field.type
    for plain in (column.type, wanted):
        if pa.types.is_nested(plain):
            raise StagingError(f"key column {field.name!r} is a {plain}, which can't be compared", code="key_type")
    try:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        column = column.cast(_storage(wanted))
    except pa.ArrowException as error:
        raise StagingError(
            f"key column {field.name!r}: the rows have {batch.column(field.name).type}, the table {wanted}: {error}",
            code="key_type",
        ) from error
    return _values(column)


def _storage(kind: pa.DataType) -> pa.DataType:
    """What holds the values of a type."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _values(column: pa.Array) -> Iterator[bytes]:
    import pyarrow as pa

    kind = column.type
    if (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"
    ):  # pyarrow 14 has no views
        return (_prefixed(None if one is None else one.encode()) for one in column.to_pylist())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or str(kind) == "binary_view":
        return (_prefixed(one) for one in column.to_pylist())
    if pa.types.is_boolean(kind):
        return (_prefixed(None if one is None else bytes([one])) for one in column.to_pylist())
    if str(kind) in _FLOAT_TYPES:
        shape = _FLOAT_TYPES[str(kind)]
        return (_prefixed(None if one is None else _float(one, shape)) for one in column.to_pylist())
    return _fixed(column, kind.bit_width // 8)


def _float(value: float, shape: str) -> bytes:
    if value != value:
        value = float("nan")  # one of the many
    return struct.pack(shape, value + 0.0)  # -0.0 + 0.0 is 0.0


def _fixed(column: pa.Array, width: int) -> Iterator[bytes]:
    """Values that have one width, from the memory that holds them."""
    buffers: list[Any] = column.buffers()
    start = column.offset * width
    memory = memoryview(buffers[1])[start : start + len(column) * width] if len(column) else memoryview(b"")
    valid = column.is_valid().to_pylist()
    for place, present in enumerate(valid):
        yield _prefixed(bytes(memory[place * width : (place + 1) * width]) if present else None)


def _prefixed(value: bytes | None) -> bytes:
    return b"\x00" if value is None else b"\x01" + struct.pack("<I", len(value)) + value
