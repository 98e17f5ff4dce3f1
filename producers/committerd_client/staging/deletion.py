"""Deletes rows: each fragment gets a new deletion file, or is removed if no row is left."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from array import array
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyroaring import BitMap

from committerd_client import arguments
from committerd_client.headers import StagedChange
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.equalities import asked_values
from committerd_client.staging.fragments import AT_ONCE_LOCAL, at_once, fragment, opened_fragments
from committerd_client.staging.key_cache import KeyCache
from committerd_client.staging.transactions import ReadTable, read_table
from committerd_common.deletion_file import Frames, decode_deletions, encode_bitmap
from committerd_common.messages import DataFragment, DeletionFile
from committerd_common.paths import DELETIONS, deletion_key
from committerd_common.uris import local_folder

if TYPE_CHECKING:
    import lance
    import numpy as np
    import pyarrow as pa
    from lance.fragment import FragmentMetadata, LanceFragment

_WRITTEN_IN_TURN = 256
"""So many deletion files are written one after the other."""
_SORTED_AT_ONCE = 1 << 20
"""Rows."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@takes_branches
def delete(
    dataset: lance.LanceDataset,
    predicate: str,
    *,
    cache: KeyCache | None = None,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> StagedChange:
    """Delete the rows for which the SQL predicate is true.

    It conflicts with deletes and updates of the same rows that are committed meanwhile, and not with those of others.

    `cache`: remembers keys from call to call, for predicates such as `id = 7` and `id IN (7, 8)` (`KeyCache`).
    """
    table = read_table(dataset)
    arguments.predicate(predicate, "delete")
    transaction = table.transaction(uuid, properties)
    operation = transaction.delete
    operation.predicate = predicate
    found = RowOffsets()
    searched = dataset if cache is None else cache.narrowed(dataset, table, asked_values(predicate, dataset.schema))
    for batch in searched.scanner(columns=[], filter=predicate, with_row_address=True, scan_in_order=False).to_reader():
        found.add(batch.column("_rowaddr"))
    changed, removed = delete_rows(dataset, table, found, predicate)
    operation.updated_fragments.extend(changed)
    operation.deleted_fragment_ids.extend(removed)
    return table.change(transaction, deleted=sum(found.counts().values()))


class RowOffsets:
    """Rows of a table, as offsets in their fragments; a few bytes for each row."""

    def __init__(self) -> None:
        self._of_fragment: dict[int, BitMap] = {}
        self._waiting: list[np.ndarray] = []
        """Row addresses that are not in `_of_fragment` yet. A scan yields a batch for each fragment that has rows, and
        many such batches are sorted in faster together.
        """
        self._waiting_rows = 0

    def add(self, addresses: pa.UInt64Array) -> None:
        """Add the rows with these row addresses: the fragment's id in the upper 32 bits, the offset in the lower."""
        self._waiting.append(addresses.to_numpy().copy())  # without the copy it keeps the whole batch in memory
        self._waiting_rows += len(addresses)
        if self._waiting_rows >= _SORTED_AT_ONCE:
            self._sort_in()

    def _sort_in(self) -> None:
        import numpy as np

        if not self._waiting_rows:
            return
        values = np.sort(np.concatenate(self._waiting), kind="stable")  # fast on runs that are sorted
        self._waiting, self._waiting_rows = [], 0
        ids = values >> np.uint64(32)
        offsets = array("I", values.astype(np.uint32).tobytes())
        starts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        ends = [*starts.tolist(), len(offsets)]
        start = 0
        for id, end in zip(ids[np.concatenate(([0], starts))].tolist(), ends, strict=True):
            run = offsets[start:end]
            if (known := self._of_fragment.get(id)) is None:
                self._of_fragment[id] = BitMap(run)
            else:
                known.update(run)
            start = end

    def counts(self) -> dict[int, int]:
        """The number of rows by fragment id."""
        self._sort_in()
        return {id: len(offsets) for id, offsets in self._of_fragment.items()}

    def of(self, fragment_id: int) -> BitMap:
        """The offsets of a fragment's rows."""
        self._sort_in()
        return self._of_fragment[fragment_id]


def delete_rows(
    dataset: lance.LanceDataset, table: ReadTable, rows: RowOffsets, predicate: str
) -> tuple[list[DataFragment], list[int]]:
    """Delete these rows of a table, which are those for which the predicate is true.

    Returns the fragments with new deletion files, and the ids of the fragments without rows left. Only fragments that
    have such rows are opened.

    In a local folder the deletion files are written here, because a call of pylance for each fragment takes several
    times as long. Elsewhere pylance writes them; one that can delete only by predicate (4.0.0) evaluates it once more.
    """
    folder = local_folder(dataset.uri)
    counts = rows.counts()
    if not counts:
        return [], []
    if folder is not None:
        touched = table.fragments_with(counts)
        if all(map(_is_here, touched)):
            return _deleted_here(folder, table.version, touched, rows)
    return _deleted_by_pylance(dataset, rows, predicate)


def _is_here(one: DataFragment) -> bool:
    """Whether the fragment's number of rows is known, and its deletion file, if any, is in the table's folder."""
    return one.physical_rows > 0 and not one.deletion_file.HasField("base_id")


def _deleted_here(
    folder: str, version: int, touched: list[DataFragment], rows: RowOffsets
) -> tuple[list[DataFragment], list[int]]:
    """As `delete_rows`; `touched` are the fragments, to which it adds the deletion files.

    No version names the new files yet, so a crash in between leaves only files that nothing names.
    """
    os.makedirs(os.path.join(folder, DELETIONS), exist_ok=True)

    frames: Frames = {}

    def delete_from(some: list[DataFragment]) -> list[bool]:
        return [_write_deletions(folder, version, one, rows.of(one.id), frames=frames) for one in some]

    parts = [touched[start : start + _WRITTEN_IN_TURN] for start in range(0, len(touched), _WRITTEN_IN_TURN)]
    began, worked = time.perf_counter(), time.thread_time()
    written = [delete_from(part) for part in parts[:1]]
    seconds, worked = time.perf_counter() - began, time.thread_time() - worked
    if seconds < 2 * worked:  # threads of Python take turns, and help only where they wait for the disk
        written += [delete_from(part) for part in parts[1:]]
    else:
        with ThreadPoolExecutor(AT_ONCE_LOCAL) as threads:
            written += threads.map(delete_from, parts[1:])
    has_rows = list(zip(touched, itertools.chain.from_iterable(written), strict=True))
    return [one for one, has in has_rows if has], [one.id for one, has in has_rows if not has]


def _write_deletions(folder: str, version: int, one: DataFragment, deleted: BitMap, *, frames: Frames) -> bool:
    """Give a fragment a deletion file with these rows and those that are deleted already; False if none is left."""
    if one.HasField("deletion_file"):
        with open(os.path.join(folder, deletion_key(one.id, one.deletion_file, staged=False)), "rb", 0) as old:
            deleted = deleted | decode_deletions(old.read(), one, staged=False, frames=frames)
    if len(deleted) == one.physical_rows:
        return False
    made = DeletionFile(
        file_type=DeletionFile.BITMAP, read_version=version, id=secrets.randbits(64), num_deleted_rows=len(deleted)
    )
    new = os.open(os.path.join(folder, deletion_key(one.id, made, staged=True)), _NEW_FILE, 0o666)
    try:
        body = memoryview(encode_bitmap(deleted))
        while body:
            body = body[os.write(new, body) :]
    finally:
        os.close(new)
    one.deletion_file.CopyFrom(made)
    return True


def _deleted_by_pylance(
    dataset: lance.LanceDataset, rows: RowOffsets, predicate: str
) -> tuple[list[DataFragment], list[int]]:
    from lance.fragment import LanceFragment

    by_offset = hasattr(LanceFragment, "delete_rows")

    def deleted(one: LanceFragment) -> FragmentMetadata | None:
        return one.delete_rows(list(rows.of(one.fragment_id))) if by_offset else one.delete(predicate)

    changed: list[DataFragment] = []
    removed: list[int] = []
    opened = opened_fragments(dataset, rows.counts())
    with ThreadPoolExecutor(at_once(dataset)) as threads:
        for one, after in zip(opened, threads.map(deleted, opened), strict=True):
            if after is None:
                removed.append(one.fragment_id)
            elif by_offset or after.num_deletions != one.num_deletions:  # a random predicate may leave all rows
                changed.append(fragment(after))
    return changed, removed
