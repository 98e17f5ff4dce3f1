"""The keys of a merge-insert; with them Lance detects that two merge-inserts insert the same key.

If pylance commits, it tracks the keys itself (a Bloom filter over the table's unenforced primary key); its
`execute_uncommitted` loses them. Our filter is exact: a 64-bit hash for each key of the source, whatever columns the
merge is on. Lance treats an exact set and a Bloom filter as a conflict, so it is safe to mix the two.

**The hash of a key** is part of the wire contract, which has test vectors for each type, and each transaction names it
(`committerd.key-hash` = `blake2b-8`). It is a BLAKE2b digest of 8 bytes, read as a little-endian integer, over the
key's columns one after the other in the order of their field ids. Each value is cast to the column's type in the table,
and is encoded as

* null: the byte 0;
* any other value: the byte 1, the length of the value in bytes (32 bits, little-endian), and the value: strings as
  UTF-8, binary as it is, booleans as one byte, all others as their little-endian bytes in memory (integers, dates,
  times, timestamps, durations, decimals as two's complement, floats as IEEE 754 with one zero and one NaN).

An Append may name a key with a null, which is hashed like any other. A merge that inserts has none (`unique_keys.py`).
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from committerd_client import arguments
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.errors import StagingError
from committerd_client.staging.transactions import read_table
from committerd_common.messages import Transaction
from committerd_common.own_properties import BLAKE2B_8, KEY_HASH, KEYS

if TYPE_CHECKING:
    import lance
    import numpy as np
    import pyarrow as pa

KEYS_MAX = 100_000
"""Default of the number of keys in a filter: about 1 MB in each version that a merge makes."""

_ROWS_AT_ONCE = 131_072
_FEW_ROWS = 1000
"""Below this number of rows hashing all of them takes no longer than grouping them."""

# Lance: inserted_rows.rs. Lance can compare only filters of the same size as pylance's.
_BLOOM_ITEMS, _BLOOM_PROBABILITY, _BLOOM_BYTES = 8192, 0.00057, 32768
_NULL, _PRESENT = b"\x00", b"\x01"
_FLOAT_TYPES = {"halffloat": "<e", "float": "<f", "double": "<d"}


class KeyHashes:
    """Collects the hashes of the keys of batches while pylance reads these."""

    def __init__(self, columns: Sequence[tuple[int, pa.Field]], *, most: int) -> None:
        """`columns`: field id and Arrow field of each key column, as in the table. `most`: number of hashes to keep."""
        self._columns = sorted(columns, key=lambda column: column[0])
        self._most = most
        self._hashes = _no_hashes()
        """Different hashes, ascending."""
        self._new: list[np.ndarray] = []
        """Hashes that are not among them yet."""
        self.too_many = False
        """Whether there were more than `most` keys."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the keys of the rows. Raises `StagingError` for a column that is missing or can't be cast."""
        missing = [field.name for _, field in self._columns if field.name not in batch.schema.names]
        if missing:
            raise StagingError(
                f"the rows have no column {missing[0]!r}, which is part of the key; they have "
                f"{', '.join(batch.schema.names)}",
                code="keys_missing",
            )
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            if self.too_many:
                break
            keys = self._distinct(batch.slice(start, _ROWS_AT_ONCE))
            self.too_many = keys.num_rows > self._most
            # Too many need no hashes; one of them shows whether keys of this type can be compared.
            self._remember(self._of(keys.slice(0, 1) if self.too_many else keys))
        if self.too_many:
            self._hashes, self._new = _no_hashes(), []

    def _remember(self, hashes: np.ndarray) -> None:
        self._new.append(hashes[~_in_ascending(self._hashes, hashes)])
        if len(self._hashes) + sum(map(len, self._new)) > self._most:  # of the new ones some may be the same
            self.too_many = self.too_many or len(self._all()) > self._most

    def _all(self) -> np.ndarray:
        """The different hashes, ascending."""
        import numpy as np

        if self._new:
            ascending = np.sort(np.concatenate([self._hashes, *self._new]))
            is_first = np.append(True, ascending[1:] != ascending[:-1])[: len(ascending)]
            self._hashes, self._new = ascending[is_first], []
        return self._hashes

    def _distinct(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The key columns of some rows; of many rows without those that repeat a key, where Arrow can group by it."""
        import pyarrow as pa

        names = [field.name for _, field in self._columns]
        keys = pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=names)
        if keys.num_rows < _FEW_ROWS:
            return keys
        try:
            if len(names) == 1:
                return pa.RecordBatch.from_arrays([keys.column(0).unique()], names=names)
            grouped = pa.Table.from_batches([keys]).group_by(names).aggregate([])
        except pa.ArrowException:  # no grouping for the type
            return keys
        return grouped.select(names).combine_chunks().to_batches()[0]

    def adding(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; the keys of each are added when it is taken."""
        for batch in batches:
            self.add(batch)
            yield batch

    def add_all(self, source: pa.Table | pa.RecordBatch) -> None:
        """Add the keys of all rows; as `add` otherwise."""
        import pyarrow as pa

        for batch in [source] if isinstance(source, pa.RecordBatch) else source.to_batches():
            self.add(batch)

    def has_one_of(self, batch: pa.RecordBatch) -> bool:
        """Whether a row of the batch may have an added key; never False if a row has one."""
        return self.too_many or bool(_in_ascending(self._all(), self._of(batch)).any())

    def _of(self, batch: pa.RecordBatch) -> np.ndarray:
        """The hash of each row's key."""
        return hashes_of([key_values(batch, field) for _, field in self._columns])

    def filter(self) -> Transaction.KeyExistenceFilter:
        """The filter over all added keys; if there were too many, a filter that overlaps with every other one."""
        made = Transaction.KeyExistenceFilter(field_ids=[id for id, _ in self._columns])
        if self.too_many:
            made.bloom.bitmap = b"\xff" * _BLOOM_BYTES
            made.bloom.num_bits = _BLOOM_BYTES * 8
            made.bloom.number_of_items = _BLOOM_ITEMS
            made.bloom.probability = _BLOOM_PROBABILITY
        else:
            made.exact.key_hashes.extend(self._all().tolist())
            made.exact.SetInParent()
        return made


@takes_branches
def keys_of(
    dataset: lance.LanceDataset,
    on: str | Sequence[str],
    rows: pa.Table | pa.RecordBatch,
    *,
    keys_max: int = KEYS_MAX,
) -> Transaction.KeyExistenceFilter:
    """The keys of rows that are appended, for `staging.append(..., keys=...)`.

    `on`: the key columns, as merges name them; they must be top-level columns of the table. `rows`: with at least these
    columns. With more than `keys_max` different keys the result stands for any key, and `append` leaves it out.

    Hashing a million rows takes a second of one core. Raises `StagingError` for keys that can't be compared.
    """
    import pyarrow as pa

    if not isinstance(rows, pa.Table | pa.RecordBatch):
        raise TypeError(f"keys_of takes rows as a pyarrow Table or RecordBatch, not {arguments.kind_of(rows)}")
    hashes = KeyHashes(key_columns(dataset, on), most=keys_max)
    hashes.add_all(rows)
    return hashes.filter()


def key_columns(dataset: lance.LanceDataset, on: str | Sequence[str]) -> list[tuple[int, pa.Field]]:
    """(field id, Arrow field) of each key column of a table. Raises `StagingError` for columns that it lacks."""
    table = read_table(dataset)
    names = arguments.names(on, "on")
    return [(table.column(name).id, dataset.schema.field(name)) for name in names]


def joined_keys(each: Iterable[Transaction.KeyExistenceFilter]) -> Transaction.KeyExistenceFilter | None:
    """The keys of several parts of the appended rows together; None if those of a part are not known exactly.

    Raises `ValueError` for parts of different key columns.
    """
    joined: Transaction.KeyExistenceFilter | None = None
    hashes: set[int] = set()
    for one in each:
        if joined is not None and joined.field_ids != one.field_ids:
            raise ValueError("joined_keys got keys of different columns: each part must name the same columns")
        joined = Transaction.KeyExistenceFilter(field_ids=one.field_ids)
        if one.WhichOneof("data") != "exact":
            return None
        hashes.update(one.exact.key_hashes)
    if joined is None or len(hashes) > KEYS_MAX:
        return None
    joined.exact.SetInParent()
    joined.exact.key_hashes.extend(sorted(hashes))
    return joined


def name_keys(transaction: Transaction, keys: Transaction.KeyExistenceFilter | None) -> None:
    """Let an Append say which keys it brings, if they are known exactly and are not too many."""
    if keys is not None and keys.WhichOneof("data") == "exact" and len(keys.exact.key_hashes) <= KEYS_MAX:
        transaction.transaction_properties[KEYS] = b64encode(keys.SerializeToString(deterministic=True)).decode()
        transaction.transaction_properties[KEY_HASH] = BLAKE2B_8


def name_inserted(transaction: Transaction, keys: Transaction.KeyExistenceFilter) -> None:
    """Let an Update say which keys its merge may have inserted, and how these are hashed."""
    transaction.update.inserted_rows.CopyFrom(keys)
    if keys.WhichOneof("data") == "exact":
        transaction.transaction_properties[KEY_HASH] = BLAKE2B_8


def _no_hashes() -> np.ndarray:
    import numpy as np

    return np.empty(0, np.uint64)


def _in_ascending(known: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """A boolean for each value of `asked`: whether `known`, which is sorted, contains it."""
    import numpy as np

    if not len(known):
        return np.zeros(len(asked), np.bool_)
    places = np.searchsorted(known, asked)
    found: np.ndarray = known[np.minimum(places, len(known) - 1)] == asked
    return found


def hashes_of(columns: Sequence[pa.Array]) -> np.ndarray:
    """The hash of each row's key. `columns`: `key_values` of the key columns, in the order of their field ids."""
    import numpy as np

    encoded = [_encoded(column) for column in columns]
    keys = encoded[0] if len(encoded) == 1 else map(b"".join, zip(*encoded, strict=True))
    # A BLAKE2b of many keys at once in numpy takes as long as this, which is nearly all in C.
    digests = b"".join([blake2b(key, digest_size=8).digest() for key in keys])
    return np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)


def key_values(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """The values of a key column, as the storage type of `field`, which is the table's.

    Raises `StagingError` for types that can't be compared or cast.
    """
    import pyarrow as pa

    column, wanted = batch.column(field.name), field.type
    for plain in (column.type, wanted):
        if pa.types.is_nested(plain):
            raise StagingError(f"key column {field.name!r} is a {plain}, which can't be compared", code="key_type")
    if pa.types.is_null(wanted):
        raise StagingError(f"key column {field.name!r} has the type null, so no row has a key", code="key_type")
    try:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return column.cast(_storage(wanted))
    except pa.ArrowException as error:
        raise StagingError(
            f"key column {field.name!r}: the rows have {batch.column(field.name).type}, the table {wanted}: {error}",
            code="key_type",
        ) from error


def _storage(kind: pa.DataType) -> pa.DataType:
    """The storage type of an extension type, the value type of a dictionary; else the type itself."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _encoded(column: pa.Array) -> Iterable[bytes]:
    import pyarrow as pa

    kind = column.type
    if (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"
    ):  # pyarrow 14 has no views
        return _prefixed([None if one is None else one.encode() for one in column.to_pylist()])
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or str(kind) == "binary_view":
        return _prefixed(column.to_pylist())
    if pa.types.is_boolean(kind):
        return _prefixed([None if one is None else bytes([one]) for one in column.to_pylist()])
    if str(kind) in _FLOAT_TYPES:
        shape = _FLOAT_TYPES[str(kind)]
        return _prefixed([None if one is None else _float(one, shape) for one in column.to_pylist()])
    return _fixed(column, kind.bit_width // 8)


def _float(value: float, shape: str) -> bytes:
    if value != value:
        value = float("nan")  # one bit pattern for all NaNs
    return struct.pack(shape, value + 0.0)  # -0.0 + 0.0 is 0.0


def _fixed(column: pa.Array, width: int) -> list[bytes]:
    """Encoded values of a fixed-width type, from the column's buffer. `width`: in bytes."""
    import numpy as np

    if not len(column):
        return []
    buffers: list[Any] = column.buffers()
    start = column.offset * width
    prefix = _PRESENT + struct.pack("<I", width)
    encoded = np.empty((len(column), len(prefix) + width), np.uint8)
    encoded[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    memory = np.frombuffer(buffers[1], np.uint8, len(column) * width, start)
    encoded[:, len(prefix) :] = memory.reshape(len(column), width)
    values: list[bytes] = encoded.view(f"V{encoded.shape[1]}")[:, 0].tolist()
    if not column.null_count:
        return values
    return [one if present else _NULL for one, present in zip(values, column.is_valid().to_pylist(), strict=True)]


def _prefixed(values: Sequence[bytes | None]) -> list[bytes]:
    prefixes = {size: _PRESENT + struct.pack("<I", size) for size in {len(one) for one in values if one is not None}}
    return [_NULL if one is None else prefixes[len(one)] + one for one in values]
