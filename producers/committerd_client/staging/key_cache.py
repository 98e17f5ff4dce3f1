"""Remembers the keys in the small fragments of a table, so that a change by key opens only those that may have the key.

Opening a fragment takes pylance about a quarter of a millisecond of processor time, however few rows it has, and a
table to which many clients append has hundreds of small fragments. Data files never change. So what a file holds has
to be read only once, and the fragments whose files have none of the keys can be left out of the dataset that pylance
searches.

What is remembered is never the answer: pylance searches the fragments that are left, and decides which of their rows
match. A fragment is left out only if none of its rows, deleted ones included, has one of the keys. Fragments that are
not remembered stay.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from committerd_client.staging.transactions import ReadTable
from committerd_common.messages import DataFragment, PackedManifest
from committerd_common.unknown_fields import has_unknown_fields

if TYPE_CHECKING:
    import lance
    import numpy as np
    import pyarrow as pa

MAX_BYTES = 32 << 20
KEYS_IN_CALL_MAX = 10_000
"""With more keys the dataset is searched as it is."""
_ROWS_MAX = 10_000
"""Larger fragments are not remembered: searching them takes longer than opening them."""
_FRAGMENTS_MIN = 16
"""The cache reads new fragments when at least this many have come, and is used if it rules out at least this many.
Otherwise the whole dataset is searched.
"""
_WAIT_SECONDS = 10.0
"""How long a change waits for another thread that reads the new fragments. Searching them itself would take as long,
and slow the other thread down.
"""
_BYTES_PER_FRAGMENT = 600
"""Memory that the tables below take for a fragment, in addition to its serialized form and its keys."""
_BYTES_PER_ROW = 16
"""The estimated memory of a value and the number of its file, until some were read."""

_File: TypeAlias = "tuple[int | None, str, int]"
"""The base and the path of a data file, and the position of the column in it."""


class KeyCache:
    """What is remembered of one table. Threads may share it.

        cache = staging.KeyCache()
        staging.merge_insert(lance.dataset(uri), rows, on="id", cache=cache)
        staging.delete(lance.dataset(uri), "id = 7", cache=cache)

    The first call with a key column searches the whole table. The second one reads the key column of the small
    fragments, and later ones that of new fragments, as soon as there are 16 of them. Key columns are integers, strings,
    binary values, `date32` or timestamps. Where an index covers the column, pylance uses the index; the cache serves
    the fragments that the index does not cover yet. It does nothing with more than 10,000 keys in a call.

    `max_bytes`: the memory that it keeps at most. A copy or a pickle of a cache is empty.

    Raises `TypeError` or `ValueError` if `max_bytes` is not a number of bytes.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes is a number of bytes, not {type(max_bytes).__name__}")
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}, and must not be negative")
        self._max_bytes = max_bytes
        self._columns: dict[tuple[int, str], _Column] = {}
        self._lock = threading.Lock()
        self._read = threading.Condition(self._lock)
        """Notified when a thread has read new fragments."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return partial(KeyCache, max_bytes=self._max_bytes), ()

    def __repr__(self) -> str:
        with self._lock:
            fragments = sum(len(one.numbers) for one in self._columns.values())
            return f"<KeyCache of {fragments} fragments, {self._size()} bytes>"

    def narrowed(
        self, dataset: lance.LanceDataset, table: ReadTable, keys: Mapping[str, pa.Array]
    ) -> lance.LanceDataset:
        """The dataset without fragments that have none of the keys.

        `table`: the version at which the dataset is open. `keys`: values by column, of the column's type; a row has
        the key only if each column has one of these values. The dataset is returned as it is if little can be left
        out. Otherwise use the result to plan and read this change, and for nothing else: it lacks rows of its version.
        """
        packed = table.packed_fragments
        if (
            not keys
            or len(packed) < _FRAGMENTS_MIN
            or sum(map(len, packed)) + len(packed) * _BYTES_PER_FRAGMENT > self._max_bytes // 2
            or any(len(values) > KEYS_IN_CALL_MAX or not _can_be_compared(values.type) for values in keys.values())
            or not _can_be_opened_again(dataset)
        ):
            return dataset
        scanned = _without_index(dataset, table, keys)
        if len(scanned) < _FRAGMENTS_MIN:
            return dataset
        left = scanned
        for name, values in keys.items():
            column = self._column((table.column(name).id, str(values.type)), scanned)
            if column is not None:
                self._learn(column, dataset, table, name, packed=scanned)
                with self._lock:
                    left = column.without_others(left, values)
        with self._lock:
            self._stay_in_bounds(scanned)
        if len(scanned) - len(left) < _FRAGMENTS_MIN:
            return dataset
        gone = set(scanned).difference(left)
        return with_fragments(dataset, table, [one for one in packed if one not in gone])

    def _column(self, key: tuple[int, str], packed: Sequence[bytes]) -> _Column | None:
        """What is known of a column; None if nobody has asked for it before."""
        with self._lock:
            column = self._columns.get(key)
            if column is None:
                self._columns[key] = _Column(field_id=key[0])
            elif self._size() > self._max_bytes * 3 // 4:
                for one in self._columns.values():
                    one.keep_only(packed)
            return column

    def _learn(
        self, column: _Column, dataset: lance.LanceDataset, table: ReadTable, name: str, *, packed: Sequence[bytes]
    ) -> None:
        """Read the column in those of these fragments that are new, as long as there is room.

        A thread that needs new fragments while another one reads waits for it, but not forever; then it continues with
        what is known.
        """
        with self._lock:
            new = column.new(packed, self._max_bytes - self._size())
            if len(new) < _FRAGMENTS_MIN:
                return
            if column.being_read:
                if not self._read.wait_for(lambda: not column.being_read, _WAIT_SECONDS):
                    return
                new = column.new(packed, self._max_bytes - self._size())
                if len(new) < _FRAGMENTS_MIN:
                    return
            room = self._max_bytes - self._size()
            column.being_read = True
        try:
            read = _values(dataset, table, name, new, room=room)
            with self._lock:
                column.add(new, read)
        finally:
            with self._lock:
                column.being_read = False
                self._read.notify_all()

    def _stay_in_bounds(self, packed: Sequence[bytes]) -> None:
        if self._size() > self._max_bytes:
            for one in self._columns.values():
                one.keep_only(packed)
        if self._size() > self._max_bytes:
            self._columns.clear()

    def _size(self) -> int:
        return sum(one.size() for one in self._columns.values())


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of a column, and for each the number of the file that it is from."""

    values: pa.Array
    files: np.ndarray

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.files.nbytes)


@dataclass(slots=True, kw_only=True)
class _Column:
    """What is known of a column."""

    field_id: int
    being_read: bool = False
    """Whether a thread reads new fragments."""
    full: bool = False
    """Whether there was no room for all that was read last."""
    known: _Values | None = None
    files: dict[_File, int] = field(default_factory=dict)
    """The numbers of the files whose values are known."""
    numbers: dict[bytes, int] = field(default_factory=dict)
    """The number of each fragment's file, by the serialized fragment."""
    packed_bytes: int = 0
    """Those of the keys of `numbers`."""
    next_number: int = 0
    bytes_per_row: float = 0.0
    """What a value took on average when it was read last."""

    def size(self) -> int:
        """About how many bytes it takes."""
        values = 0 if self.known is None else self.known.nbytes
        return values + self.packed_bytes + max(len(self.numbers), len(self.files)) * _BYTES_PER_FRAGMENT

    def new(self, packed: Sequence[bytes], room: int) -> dict[_File, DataFragment]:
        """The small fragments whose values are not known, by the file that holds the column: as many as have room."""
        if self.full:
            return {}
        found = []
        for one in packed:
            if one not in self.numbers:
                fragment = DataFragment.FromString(one)
                file = self._file_of(fragment)
                if file is not None and file not in self.files and 0 < fragment.physical_rows <= _ROWS_MAX:
                    found.append((fragment.physical_rows, len(one), file, fragment))
        new: dict[_File, DataFragment] = {}
        per_row = max(self.bytes_per_row, _BYTES_PER_ROW)
        for rows, size, file, fragment in sorted(found, key=lambda one: one[0]):
            room -= int(rows * per_row) + size + _BYTES_PER_FRAGMENT
            if room < 0:
                break
            new[file] = fragment
        return new

    def add(self, new: Mapping[_File, DataFragment], read: _Read) -> None:
        """Remember the values of those fragments of which all rows were read."""
        import numpy as np
        import pyarrow as pa

        if read.values:
            self.bytes_per_row = sum(one.nbytes for one in read.values) / sum(map(len, read.values)) + 8
        self.full = not read.complete
        ids = np.concatenate([np.empty(0, np.uint64), *read.fragment_ids])
        counted = dict(zip(*(part.tolist() for part in np.unique(ids, return_counts=True)), strict=True))
        whole = {file: one.id for file, one in new.items() if counted.get(one.id) == one.physical_rows}
        if not whole:
            return
        numbers = {file: self.next_number + place for place, file in enumerate(whole)}
        self.next_number += len(whole)
        of_ids = np.fromiter(whole.values(), np.uint64, len(whole))
        order = np.argsort(of_ids)
        stays = np.isin(ids, of_ids)
        places = np.searchsorted(of_ids[order], ids[stays])
        files = np.fromiter(numbers.values(), np.int64, len(numbers))[order][places]
        values = pa.concat_arrays(read.values).filter(pa.array(stays))
        if self.known is not None:
            values = pa.concat_arrays([self.known.values, values])
            files = np.concatenate([self.known.files, files])
        self.known = _Values(values, files)
        self.files.update(numbers)

    def without_others(self, packed: Sequence[bytes], keys: pa.Array) -> list[bytes]:
        """Those of the fragments that may have one of the keys."""
        import numpy as np
        import pyarrow.compute as pc

        if self.known is None:
            return list(packed)
        found = pc.is_in(self.known.values, value_set=keys, skip_nulls=True)
        hits = set(np.unique(self.known.files[found.to_numpy(zero_copy_only=False)]).tolist())
        return [one for one in packed if (number := self._number(one)) is None or number in hits]

    def keep_only(self, packed: Sequence[bytes]) -> None:
        """Forget the fragments of other versions."""
        import numpy as np
        import pyarrow as pa

        self.numbers = {one: self.numbers[one] for one in packed if one in self.numbers}
        self.packed_bytes = sum(map(len, self.numbers))
        kept = set(self.numbers.values())
        if len(kept) < len(self.files):
            self.full = False
        self.files = {file: number for file, number in self.files.items() if number in kept}
        if self.known is not None:
            stays = np.isin(self.known.files, np.fromiter(kept, np.int64, len(kept)))
            self.known = _Values(self.known.values.filter(pa.array(stays)), self.known.files[stays])

    def _number(self, packed: bytes) -> int | None:
        """The number of the fragment's file; None if its values are not known."""
        number = self.numbers.get(packed)
        if number is None and self.files:
            file = self._file_of(DataFragment.FromString(packed))
            number = None if file is None else self.files.get(file)
            if number is not None:
                self.numbers[packed] = number
                self.packed_bytes += len(packed)
        return number

    def _file_of(self, fragment: DataFragment) -> _File | None:
        """The file that holds the column; None if there is none, or the fragment has what this client does not know."""
        for file in fragment.files:
            if self.field_id in file.fields:
                base = file.base_id if file.HasField("base_id") else None
                place = list(file.fields).index(self.field_id)
                column = file.column_indices[place] if place < len(file.column_indices) else place
                return None if has_unknown_fields(fragment) else (base, file.path, column)
        return None


def with_fragments(dataset: lance.LanceDataset, table: ReadTable, packed: Sequence[bytes]) -> lance.LanceDataset:
    """The dataset at the same version, with only these fragments. It shares no cache with the given one.

    Lance caches by version, so a shared cache would mix up the two.
    """
    manifest = PackedManifest.FromString(table.manifest.SerializeToString())
    manifest.fragments.extend(packed)
    # pylance pickles a dataset as its manifest, and the arguments with which it was opened.
    given: Any = dataset
    deserialize, arguments = given.__reduce__()
    view: lance.LanceDataset = deserialize(
        *(manifest.SerializeToString() if isinstance(one, bytes) else one for one in arguments)
    )
    return view


@dataclass(slots=True)
class _Read:
    """Values that were read, in parts."""

    values: list[pa.Array] = field(default_factory=list)
    fragment_ids: list[np.ndarray] = field(default_factory=list)
    """The fragment of each value."""
    complete: bool = True
    """Whether there was room for all."""


def _values(
    dataset: lance.LanceDataset, table: ReadTable, name: str, fragments: Mapping[_File, DataFragment], *, room: int
) -> _Read:
    """Read the column in all rows of the fragments, deleted ones included, until they take more bytes than `room`."""
    import numpy as np

    whole = []
    for one in fragments.values():
        copied = DataFragment()
        copied.CopyFrom(one)
        copied.ClearField("deletion_file")
        whole.append(copied.SerializeToString())
    view, read = with_fragments(dataset, table, whole), _Read()
    for batch in view.scanner(columns=[name], with_row_address=True).to_reader():
        room -= batch.nbytes
        if room < 0:
            read.complete = False
            break
        read.values.append(batch.column(name))
        read.fragment_ids.append(batch.column("_rowaddr").to_numpy() >> np.uint64(32))
    return read


def _can_be_opened_again(dataset: lance.LanceDataset) -> bool:
    """Whether a dataset that is made from its pickle reads all rows, as this one does.

    A provider of credentials is not pickled, nor is a table in memory. Default scan options may leave out rows.
    """
    lost = ("_namespace_client", "_storage_options_provider", "_default_scan_options")
    return not any(getattr(dataset, name, None) for name in lost) and not dataset.uri.startswith("memory:")


def _can_be_compared(kind: pa.DataType) -> bool:
    """Whether Arrow's equality is that of Lance. (Floats have two zeros, and many NaNs.)"""
    import pyarrow as pa

    return any(
        one(kind)
        for one in (
            pa.types.is_integer,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_date32,
            pa.types.is_timestamp,
        )
    )


def _without_index(dataset: lance.LanceDataset, table: ReadTable, names: Mapping[str, object]) -> Sequence[bytes]:
    """The fragments that no index on one of the columns covers.

    None of them if pylance can't say so (4.0.0: of an index without details).
    """
    if not table.manifest.HasField("index_section"):
        return table.packed_fragments
    covered: set[int] = set()
    try:
        for index in dataset.describe_indices():
            if not names.keys().isdisjoint(index.field_names):
                for segment in index.segments:
                    covered.update(segment.fragment_ids)
    except (OSError, RuntimeError, ValueError):
        return ()
    if not covered:
        return table.packed_fragments
    return [one for one in table.packed_fragments if DataFragment.FromString(one).id not in covered]
