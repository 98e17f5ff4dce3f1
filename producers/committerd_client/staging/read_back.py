"""Reads back what a compaction has written, before it is committed: the same rows as before, in the same order.

The old and the new fragments are scanned side by side, and each batch is compared column by column: nulls, lengths and
values. The new fragments are read through a copy of the table that has no others (`copies`), so by the same way by
which everybody reads them later. Of blobs, whose bytes a scan does not yield, nulls and sizes are compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committerd_client.panics import NOT_AS_BEFORE
from committerd_client.staging.copies import place_of_objects, write_copy
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import opened_fragments
from committerd_client.staging.transactions import read_table
from committerd_common.messages import DataFragment, IndexSection, Manifest

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

_BATCH_ROWS = 8192
_BATCH_BYTES = 8 << 20
"""A batch has about this many bytes, or `_BATCH_ROWS` rows, by the sizes of the files; values may take more."""
_READAHEAD = 2
"""Batches, and fragments, that are read ahead; so memory holds a few batches of the old and of the new rows."""
_BUFFER_BYTES = 64 << 20
_DESCRIPTIONS = (("position", "size"), ("kind", "position", "size", "blob_id", "blob_uri"))
"""The fields of what a scan yields for a blob, of both forms. A compaction changes where blobs are."""


def read_back(dataset: lance.LanceDataset, old: Sequence[DataFragment], new: Sequence[DataFragment]) -> None:
    """Compare the rows of new fragments, which belong to no version yet, with those of the old ones.

    `dataset`: open at the version of the old fragments. Raises `StagingError` (`not_as_before`) if the new ones can't
    be read while the old ones can, or hold other rows, and pylance's errors if the old ones can't be read.
    """
    import lance

    table = read_table(dataset)
    manifest = Manifest()
    manifest.CopyFrom(table.manifest)
    for id, one in enumerate(new):
        manifest.fragments.add().CopyFrom(one)
        manifest.fragments[-1].id = id
    manifest.max_fragment_id = len(new)
    with tempfile.TemporaryDirectory(prefix="committerd-") as folder:
        copy = Path(folder, "copy.lance")
        write_copy(copy, manifest, IndexSection(), source=place_of_objects(dataset.uri))
        opened_old = {one.fragment_id: one for one in opened_fragments(dataset, {one.id for one in old})}
        given: Any = {"batch_size": _rows_in_a_batch([*old, *new]), "with_row_id": table.stable_row_ids}
        before = _Rows(dataset, [opened_old[one.id] for one in old], **given)
        try:
            opened = lance.dataset(copy, storage_options=dataset.latest_storage_options())
            differs = _first_difference(before, _Rows(opened, None, **given), blobs=table.has_blobs)
        except Exception as error:
            if before.failed:
                raise
            raise StagingError(f"what was written can't be read: {error}", code=NOT_AS_BEFORE) from error
    if differs is not None:
        raise StagingError(f"what was written is not what was there: {differs}", code=NOT_AS_BEFORE)


def _rows_in_a_batch(fragments: Sequence[DataFragment]) -> int:
    """Rows of a batch, so that it has about `_BATCH_BYTES`."""
    rows = sum(one.physical_rows for one in fragments)
    size = sum(file.file_size_bytes for one in fragments for file in one.files)
    return max(min(_BATCH_ROWS, _BATCH_BYTES * rows // max(size, 1)), 1)


class _Rows:
    """The rows of some fragments, in order."""

    def __init__(self, dataset: lance.LanceDataset, fragments: Any, *, batch_size: int, with_row_id: bool) -> None:
        self._scanner = dataset.scanner(
            fragments=fragments,
            batch_size=batch_size,
            batch_readahead=_READAHEAD,
            fragment_readahead=_READAHEAD,
            io_buffer_size=_BUFFER_BYTES,
            scan_in_order=True,
            with_row_id=with_row_id,
        )
        self.failed = False
        """Whether the last read has raised an error."""
        self._batches = self._read()
        self._batch: pa.RecordBatch | None = next(self._batches, None)

    def _read(self) -> Iterator[pa.RecordBatch]:
        self.failed = True
        for batch in self._scanner.to_batches():
            self.failed = False
            if batch.num_rows:
                yield batch
            self.failed = True
        self.failed = False

    @property
    def available(self) -> int:
        """Rows that `take` can return at once; 0 at the end."""
        return 0 if self._batch is None else self._batch.num_rows

    def take(self, count: int) -> pa.RecordBatch:
        """The next rows."""
        assert self._batch is not None
        taken, rest = self._batch.slice(0, count), self._batch.slice(count)
        self._batch = rest if rest.num_rows else next(self._batches, None)
        return taken


def _first_difference(before: _Rows, after: _Rows, *, blobs: bool) -> str | None:
    """What differs first; None if nothing does."""
    row = 0
    while count := min(before.available, after.available):
        ours, theirs = before.take(count), after.take(count)
        if ours.schema.names != theirs.schema.names:
            return f"columns {theirs.schema.names}, and {ours.schema.names} before"
        for name, one, other in zip(ours.schema.names, ours.columns, theirs.columns, strict=True):
            if not _same(one, other, blobs=blobs):
                return f"column {name!r} in rows {row} to {row + count - 1}"
        row += count
    if before.available or after.available:
        return f"{'fewer' if before.available else 'more'} rows"
    return None


def _same(one: pa.Array, other: pa.Array, *, blobs: bool = False) -> bool:
    """Whether two arrays hold the same values; what lies below a null, and how values are encoded, does not count.

    `blobs`: the table has blobs.
    """
    import pyarrow as pa

    kind: Any = pa.types
    if one.type.equals(other.type) and one.equals(other):
        return True
    if isinstance(one, pa.ExtensionArray) or isinstance(other, pa.ExtensionArray):
        return _same(getattr(one, "storage", one), getattr(other, "storage", other), blobs=blobs)
    if not one.type.equals(other.type) or len(one) != len(other):
        return False
    if kind.is_dictionary(one.type):
        return _same(one.dictionary_decode(), other.dictionary_decode())
    if not one.is_valid().equals(other.is_valid()):
        return False
    if one.null_count:
        return _same(one.drop_null(), other.drop_null(), blobs=blobs)
    if kind.is_struct(one.type):
        names = tuple(field.name for field in one.type)
        parts = zip(names, one.flatten(), other.flatten(), strict=True)
        if blobs and names in _DESCRIPTIONS:
            return all(a.equals(b) for name, a, b in parts if name in ("size", "blob_uri"))
        return all(_same(a, b, blobs=blobs) for _, a, b in parts)
    if kind.is_map(one.type) or kind.is_list(one.type) or kind.is_large_list(one.type):
        if not _lengths(one).equals(_lengths(other)):
            return False
        return all(_same(a, b, blobs=blobs) for a, b in zip(_below(one), _below(other), strict=True))
    if kind.is_fixed_size_list(one.type):
        return _same(one.flatten(), other.flatten(), blobs=blobs)
    if kind.is_floating(one.type):  # NaN is not equal to itself
        bits: pa.DataType = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[one.type.bit_width]
        return bool(one.view(bits).equals(other.view(bits)))
    return False


def _lengths(lists: Any) -> pa.Array:
    import pyarrow.compute as pc

    return pc.subtract(lists.offsets[1:], lists.offsets[:-1])


def _below(lists: Any) -> list[pa.Array]:
    """The values of lists without nulls, or the keys and items of maps; without those of other slices of the array."""
    import pyarrow as pa

    if not pa.types.is_map(lists.type):
        return [lists.flatten()]
    first, last = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return [lists.keys.slice(first, last - first), lists.items.slice(first, last - first)]
