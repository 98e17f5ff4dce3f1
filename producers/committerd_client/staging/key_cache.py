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
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from committerd_client.staging.transactions import ReadTable
from committerd_common.messages import DataFragment, PackedManifest
from committerd_common.unknown_fields import has_unknown_fields

if TYPE_CHECKING:
    import lance
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
"""How long a change waits for another thread that reads new fragments. Searching them itself would take as long, and
slow the other thread down.
"""
_BYTES_PER_ENTRY = 300
"""Memory of an entry of the dicts below, in addition to its key and its values."""

_Column: TypeAlias = "tuple[int, str]"
"""The field id of a column, and its type."""
_File: TypeAlias = "tuple[_Column, int | None, str, int]"
"""A column, the base and the path of the data file that holds it, and its position in that file."""


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
        self._lock = threading.Lock()
        self._keys: dict[_File, pa.Array | None] = {}
        """The keys in a file; None for a file that is too large, or for which there was no room."""
        self._files: dict[_Column, dict[bytes, _File | None]] = {}
        """The file that holds a column of a fragment, by the serialized fragment: decoding takes longer. A column that
        nobody has asked for yet is not there."""
        self._bytes = 0

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return partial(KeyCache, max_bytes=self._max_bytes), ()

    def __repr__(self) -> str:
        return f"<KeyCache of {len(self._keys)} fragments, {self._bytes} bytes>"

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
            or sum(map(len, packed)) + len(packed) * 2 * _BYTES_PER_ENTRY > self._max_bytes // 2
            or any(len(values) > KEYS_IN_CALL_MAX or not _can_be_compared(values.type) for values in keys.values())
            or not _can_be_opened_again(dataset)
        ):
            return dataset
        scanned = _without_index(dataset, table, keys)
        if len(scanned) < _FRAGMENTS_MIN or not self._lock.acquire(timeout=_WAIT_SECONDS):
            return dataset
        try:
            gone = set[bytes]()
            for name, values in keys.items():
                gone |= self._without(values, self._known(dataset, table, name, str(values.type), packed=scanned))
            if self._bytes > self._max_bytes:
                self._forget_all_but(())
        finally:
            self._lock.release()
        if len(gone) < _FRAGMENTS_MIN:
            return dataset
        return with_fragments(dataset, table, [one for one in packed if one not in gone])

    def _known(
        self, dataset: lance.LanceDataset, table: ReadTable, name: str, kind: str, *, packed: Sequence[bytes]
    ) -> dict[bytes, pa.Array]:
        """The keys in those of the fragments that are known, after a look at new ones."""
        column = (table.column(name).id, kind)
        if column not in self._files:
            self._files[column] = {}
            return {}
        if self._bytes > self._max_bytes * 3 // 4:
            self._forget_all_but(packed)
        files = self._files[column]
        for one in packed:
            if one not in files:
                files[one] = _file_of(DataFragment.FromString(one), column)
                self._bytes += _BYTES_PER_ENTRY + len(one)
        held = [(one, file) for one in packed if (file := files[one]) is not None]
        new = {file: one for one, file in held if file not in self._keys}
        if len(new) >= _FRAGMENTS_MIN:
            self._learn(new, dataset, table, name)
        return {one: keys for one, file in held if (keys := self._keys.get(file)) is not None}

    def _learn(self, new: Mapping[_File, bytes], dataset: lance.LanceDataset, table: ReadTable, name: str) -> None:
        """Read the column in these fragments, the smallest first, as long as there is room."""
        fragments = {file: DataFragment.FromString(one) for file, one in new.items()}
        small = [one for one in fragments.values() if 0 < one.physical_rows <= _ROWS_MAX]
        small.sort(key=lambda one: one.physical_rows)
        room = self._max_bytes - self._bytes - len(new) * _BYTES_PER_ENTRY
        found = _values(dataset, table, name, small, room=room)
        for file, one in fragments.items():
            keys = found.get(one.id)
            whole = keys is not None and len(keys) == one.physical_rows
            self._keys[file] = keys if whole else None
            self._bytes += _BYTES_PER_ENTRY + (keys.nbytes if keys is not None and whole else 0)

    @staticmethod
    def _without(wanted: pa.Array, known: Mapping[bytes, pa.Array]) -> set[bytes]:
        """Those of the fragments that have none of the wanted keys."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if not known:
            return set()
        found = pc.is_in(pa.concat_arrays(known.values()), value_set=wanted, skip_nulls=True)
        places = np.repeat(np.arange(len(known)), [len(keys) for keys in known.values()])
        hits = set(places[found.to_numpy(zero_copy_only=False)].tolist())
        return {one for place, one in enumerate(known) if place not in hits}

    def _forget_all_but(self, packed: Sequence[bytes]) -> None:
        """Forget the fragments of other versions; if that makes room, what had no room is read again."""
        before = len(self._keys)
        for column, files in self._files.items():
            self._files[column] = {one: files[one] for one in packed if one in files}
        memory = [len(one) for files in self._files.values() for one in files]
        current = {file for files in self._files.values() for file in files.values()}
        self._keys = {file: keys for file, keys in self._keys.items() if file in current}
        if len(self._keys) < before:
            self._keys = {file: keys for file, keys in self._keys.items() if keys is not None}
        memory += [0 if keys is None else keys.nbytes for keys in self._keys.values()]
        self._bytes = sum(memory) + len(memory) * _BYTES_PER_ENTRY


def _file_of(fragment: DataFragment, column: _Column) -> _File | None:
    """The file that holds the column; None if there is none, or the fragment has what this client does not know."""
    for file in fragment.files:
        if column[0] in file.fields and not has_unknown_fields(fragment):
            place = list(file.fields).index(column[0])
            position = file.column_indices[place] if place < len(file.column_indices) else place
            return column, file.base_id if file.HasField("base_id") else None, file.path, position
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
    dataset: lance.LanceDataset, table: ReadTable, name: str, fragments: Iterable[DataFragment], *, room: int
) -> dict[int, pa.Array]:
    """The column in the fragments by their ids, in deleted rows too. Stops when it takes more bytes than `room`."""
    import numpy as np
    import pyarrow as pa

    whole = []
    for one in fragments:
        copied = DataFragment()
        copied.CopyFrom(one)
        copied.ClearField("deletion_file")
        whole.append(copied.SerializeToString())
    if not whole:
        return {}
    values, ids = [], []
    for batch in with_fragments(dataset, table, whole).scanner(columns=[name], with_row_address=True).to_reader():
        room -= batch.nbytes
        if room < 0:
            break
        values.append(batch.column(name))
        ids.append(batch.column("_rowaddr").to_numpy() >> np.uint64(32))
    if not values:
        return {}
    joined, of = pa.concat_arrays(values), np.concatenate(ids)
    order = np.argsort(of, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(of[order])) + 1)
    # Each in memory of its own, which is free when the file is forgotten.
    return {int(of[part[0]]): joined.take(pa.array(part)) for part in parts}


def _can_be_opened_again(dataset: lance.LanceDataset) -> bool:
    """Whether a dataset that is made from its pickle reads all rows, as this one does.

    A provider of credentials is not pickled, nor is a table in memory. Default scan options may leave out rows.
    """
    lost = ("_namespace_client", "_storage_options_provider", "_default_scan_options")
    return not any(getattr(dataset, name, None) for name in lost) and not dataset.uri.startswith("memory:")


def _can_be_compared(kind: pa.DataType) -> bool:
    """Whether Arrow's equality is that of Lance. (Floats have two zeros, and many NaNs.)"""
    import pyarrow as pa

    kinds = ("integer", "string", "large_string", "binary", "large_binary", "date32", "timestamp")
    return any(getattr(pa.types, f"is_{one}")(kind) for one in kinds)


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
