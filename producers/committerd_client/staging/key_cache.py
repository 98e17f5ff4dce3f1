"""Remembers the keys in the small fragments of a table, so that a change by key opens only those that may have the key.

To open a fragment takes pylance about a quarter of a millisecond of processor time, however few rows it has, and a
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
from typing import TYPE_CHECKING, Any, TypeAlias

from committerd_client.staging.transactions import ReadTable
from committerd_common.messages import DataFragment, PackedManifest

if TYPE_CHECKING:
    import lance
    import numpy as np
    import pyarrow as pa

_MAX_BYTES = 32 << 20
_ROWS_MAX = 10_000
"""Larger fragments are not remembered: to search them takes longer than to open them."""
_KEYS_MAX = 10_000
"""With more keys the dataset is searched as it is."""
_FRAGMENTS_MIN = 16
"""With fewer new fragments these are not read, and with fewer to leave out the dataset is searched as it is."""
_BYTES_PER_FRAGMENT = 600
"""What the tables below take for one fragment, beside its keys."""
_BYTES_PER_ROW = 9
"""What a key and the number of its file take at least."""

_File: TypeAlias = "tuple[int | None, str]"
"""The base and the path of a data file."""
_NOT_KNOWN = -1


class KeyCache:
    """What is remembered of one table. It may be shared between threads.

        cache = staging.KeyCache()
        staging.merge_insert(lance.dataset(uri), rows, on="id", cache=cache)
        staging.delete(lance.dataset(uri), "id = 7", cache=cache)

    The first call with a key column searches the whole table; the second one reads the key column of all small
    fragments, and later ones only that of new fragments. Key columns are integers, strings, binary values, dates or
    timestamps. If an index covers the column, pylance uses the index, and the cache does nothing.

    `max_bytes`: the memory that it takes at most.
    """

    def __init__(self, *, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._columns: dict[tuple[int, str], _Column] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        fragments = sum(len(one.owners_of) for one in self._columns.values())
        return f"<KeyCache of {fragments} fragments, {self._size()} bytes>"

    def narrowed(
        self, dataset: lance.LanceDataset, table: ReadTable, keys: Mapping[str, pa.Array]
    ) -> lance.LanceDataset:
        """The dataset without fragments that have none of the keys.

        `table`: the version at which the dataset is open. `keys`: values by column, of the column's type; a row has
        the key only if each column has one of these values. The dataset is returned as it is if nothing can be left
        out. Otherwise plan and read with the result, and with nothing else: its version has other fragments in the
        table.
        """
        packed = table.packed_fragments
        if (
            not keys
            or not _FRAGMENTS_MIN <= len(packed) <= self._max_bytes // _BYTES_PER_FRAGMENT
            or not _can_be_opened_again(dataset)
            or any(len(values) > _KEYS_MAX or not _can_be_compared(values.type) for values in keys.values())
            or _has_index(dataset, table, keys)
        ):
            return dataset
        left = packed
        with self._lock:
            for name, values in keys.items():
                number = table.column(name).id
                column = self._columns.setdefault((number, str(values.type)), _Column(name=name, field_id=number))
                column.name = name
                if column.asked:
                    self._learn(column, dataset, table)
                    left = column.without_others(left, values)
                column.asked = True
        if len(packed) - len(left) < _FRAGMENTS_MIN:
            return dataset
        return with_fragments(dataset, table, left)

    def _learn(self, column: _Column, dataset: lance.LanceDataset, table: ReadTable) -> None:
        """Read the column of the fragments that are not known yet, as far as there is room."""
        new = column.unknown(table.packed_fragments)
        if len(new) < _FRAGMENTS_MIN:
            return
        if self._size() + len(new) * _BYTES_PER_FRAGMENT > self._max_bytes * 3 // 4:
            for one in self._columns.values():
                one.keep_only(table.packed_fragments)
        room = self._max_bytes - self._size() - len(new) * _BYTES_PER_FRAGMENT
        least = sum(one.physical_rows for one in new.values()) * _BYTES_PER_ROW
        column.add(new, None if least > room else _values(dataset, table, column.name, new, room=room))

    def _size(self) -> int:
        return sum(one.size() for one in self._columns.values())


@dataclass(slots=True, kw_only=True)
class _Column:
    """The values of a column, by fragment."""

    name: str
    field_id: int
    asked: bool = False
    """Whether it was asked for before."""
    owners_of: dict[bytes, int] = field(default_factory=dict)
    """The number of each fragment's file, by the serialized fragment."""
    files: dict[_File, int] = field(default_factory=dict)
    """The numbers of the files that hold the column; files without room have `_NOT_KNOWN`."""
    values: pa.Array | None = None
    owners: np.ndarray | None = None
    """The number of the file that each value is from."""
    next_number: int = 0

    def size(self) -> int:
        """About how many bytes it takes."""
        values = 0 if self.values is None or self.owners is None else self.values.nbytes + self.owners.nbytes
        return values + len(self.owners_of) * _BYTES_PER_FRAGMENT

    def unknown(self, packed: Sequence[bytes]) -> dict[_File, DataFragment]:
        """The small fragments whose values have to be read, by the file that holds the column."""
        new: dict[_File, DataFragment] = {}
        for one in packed:
            if one in self.owners_of:
                continue
            fragment = DataFragment.FromString(one)
            file = self._file_of(fragment)
            if file is None or not 0 < fragment.physical_rows <= _ROWS_MAX:
                self.owners_of[one] = _NOT_KNOWN
            elif file in self.files:  # its deletion file is a new one
                self.owners_of[one] = self.files[file]
            else:
                new[file] = fragment
        return new

    def add(self, new: Mapping[_File, DataFragment], read: tuple[pa.Array, np.ndarray] | None) -> None:
        """Remember the values of these fragments: (values, id of the fragment of each); None = there is no room."""
        import numpy as np
        import pyarrow as pa

        numbers = dict.fromkeys(new, _NOT_KNOWN)
        if read is not None:
            numbers = {file: self.next_number + at for at, file in enumerate(new)}
            self.next_number += len(new)
            values, ids = read
            of_ids = np.array([one.id for one in new.values()], np.uint64)
            order = np.argsort(of_ids)
            owners = np.fromiter(numbers.values(), np.int64, len(numbers))[order][np.searchsorted(of_ids[order], ids)]
            if self.values is None or self.owners is None:
                self.values, self.owners = values, owners
            else:
                self.values = pa.concat_arrays([self.values, values])
                self.owners = np.concatenate([self.owners, owners])
        self.files.update(numbers)

    def without_others(self, packed: Sequence[bytes], keys: pa.Array) -> list[bytes]:
        """Those of the fragments that may have one of the keys."""
        import numpy as np
        import pyarrow.compute as pc

        hits = {_NOT_KNOWN}
        if self.values is not None and self.owners is not None:
            found = pc.is_in(self.values, value_set=keys, skip_nulls=True)
            hits.update(np.unique(self.owners[found.to_numpy(zero_copy_only=False)]).tolist())
        self.unknown(packed)  # the fragments whose files were read just now
        return [one for one in packed if self.owners_of.get(one, _NOT_KNOWN) in hits]

    def keep_only(self, packed: Sequence[bytes]) -> None:
        """Forget the fragments of other versions."""
        import numpy as np
        import pyarrow as pa

        self.owners_of = {one: self.owners_of[one] for one in packed if one in self.owners_of}
        kept = set(self.owners_of.values()) - {_NOT_KNOWN}
        self.files = {file: number for file, number in self.files.items() if number in kept}
        if self.values is not None and self.owners is not None:
            stays = np.isin(self.owners, np.fromiter(kept, np.int64, len(kept)))
            self.values, self.owners = self.values.filter(pa.array(stays)), self.owners[stays]

    def _file_of(self, fragment: DataFragment) -> _File | None:
        for file in fragment.files:
            if self.field_id in file.fields:
                return file.base_id if file.HasField("base_id") else None, file.path
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


def _values(
    dataset: lance.LanceDataset, table: ReadTable, name: str, fragments: Mapping[_File, DataFragment], *, room: int
) -> tuple[pa.Array, np.ndarray] | None:
    """(values of the column, fragment id of each) of all rows, deleted ones included; None if they take more bytes."""
    import numpy as np
    import pyarrow as pa

    whole = []
    for one in fragments.values():
        copied = DataFragment()
        copied.CopyFrom(one)
        copied.ClearField("deletion_file")
        whole.append(copied.SerializeToString())
    view = with_fragments(dataset, table, whole)
    values, ids = [], []
    for batch in view.scanner(columns=[name], with_row_address=True, scan_in_order=False).to_reader():
        room -= batch.nbytes
        if room < 0:
            return None
        values.append(batch.column(name))
        ids.append(batch.column("_rowaddr").to_numpy() >> np.uint64(32))
    return pa.concat_arrays(values), np.concatenate(ids)


def _can_be_opened_again(dataset: lance.LanceDataset) -> bool:
    """Whether what pylance pickles of a dataset is enough to read it: a provider of credentials is not among it."""
    return not any(getattr(dataset, name, None) for name in ("_namespace_client", "_storage_options_provider"))


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


def _has_index(dataset: lance.LanceDataset, table: ReadTable, names: Mapping[str, object]) -> bool:
    """Whether an index covers one of the columns."""
    if not table.manifest.HasField("index_section"):
        return False
    return any(not names.keys().isdisjoint(index.field_names) for index in dataset.describe_indices())
