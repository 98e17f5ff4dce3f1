"""The deleted rows of one fragment: what a transaction adds to them, and the deletion file that holds them.

A transaction does not name the rows that it deletes. They are derived: the rows in its deletion file, without those in
the deletion file of the same fragment at the read version. pylance has them in memory, and retries if it has only the
message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence
from dataclasses import dataclass, field
from itertools import islice

from pyroaring import BitMap

from committerd.lance.format.wording import LISTED_MAX
from committerd_common.deletion_file import encode_bitmap
from committerd_common.messages import DataFragment, DeletionFile, Transaction
from committerd_common.paths import deletion_key


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConflict:
    """Both sides changed the same rows, or it can't be known whether they did."""

    message: str
    rule: str = "same_row"
    """The rule of the conflict grid that the conflict belongs to."""
    version: int = 0
    """The version that ours can't pass; 0 = the last version that touched the same fragments."""


def rows_deleted(fragment_id: int, *, read: BitMap, staged: BitMap) -> BitMap | RowConflict:
    """The rows of a fragment that a transaction deletes; a conflict if that can't be determined.

    `read` and `staged` are the fragment's deleted rows at the transaction's read version and as it stages them.
    """
    if not read <= staged:
        return RowConflict(
            message=f"fragment {fragment_id} has rows again that were deleted at the read version; so the rows that "
            "the transaction deletes can't be determined"
        )
    return staged - read


def clash(both: Mapping[int, BitMap]) -> RowConflict | None:
    """The conflict over rows that both sides deleted, by fragment id; None if there are none."""
    count = sum(map(len, both.values()))
    if not count:
        return None
    addresses = (str(fragment_id << 32 | row) for fragment_id, rows in both.items() for row in rows)
    named = ", ".join(islice(addresses, LISTED_MAX))
    more = f", and {count - LISTED_MAX} more" if count > LISTED_MAX else ""
    return RowConflict(message=f"both modified the rows at addresses {named}{more}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrunkFragment:
    """A fragment from which more rows are deleted."""

    deletion_file: DeletionFile | None
    """None = no row is left, so the fragment is removed."""
    key: str = ""
    """The key of the new deletion file; empty if the fragment keeps the one that it has."""
    body: bytes = b""
    """The content of the new deletion file."""
    rows: BitMap = field(default_factory=BitMap)
    """The rows that the new deletion file holds."""


def without_rows(
    fragment: DataFragment, deleted: BitMap, more: BitMap, *, latest_version: int, file_ids: Iterator[int]
) -> ShrunkFragment:
    """A fragment of the latest version, from which the rows `more` are deleted in addition to the rows `deleted`.

    A new deletion file is a bitmap, named after the latest version and one of `file_ids`. Lance:
    conflict_resolver.rs, finish_delete_update.
    """
    merged = more | deleted
    if len(merged) >= fragment.physical_rows:
        return ShrunkFragment(deletion_file=None)
    if merged == deleted:
        return ShrunkFragment(deletion_file=fragment.deletion_file)
    file, key, body = deletion_file(fragment.id, merged, latest_version=latest_version, file_ids=file_ids)
    return ShrunkFragment(deletion_file=file, key=key, body=body, rows=merged)


def changed_lists(
    transaction: Transaction,
) -> tuple[MutableSequence[DataFragment], MutableSequence[int]]:
    """The lists of a Delete or an Update: the fragments that it updates, and the ids of those that it removes."""
    if transaction.HasField("delete"):
        return transaction.delete.updated_fragments, transaction.delete.deleted_fragment_ids
    return transaction.update.updated_fragments, transaction.update.removed_fragment_ids


def take_deletions(fragment: DataFragment, changed: DataFragment) -> None:
    """Give the fragment, in place, the deletion file of the changed one."""
    fragment.ClearField("deletion_file")
    if changed.HasField("deletion_file"):
        fragment.deletion_file.CopyFrom(changed.deletion_file)


def deletion_file(
    fragment_id: int, rows: BitMap, *, latest_version: int, file_ids: Iterator[int]
) -> tuple[DeletionFile, str, bytes]:
    """A new deletion file with these rows: its message, its key and its content."""
    file = DeletionFile(
        file_type=DeletionFile.BITMAP, read_version=latest_version, id=next(file_ids), num_deleted_rows=len(rows)
    )
    return file, deletion_key(fragment_id, file, staged=True), encode_bitmap(rows)
