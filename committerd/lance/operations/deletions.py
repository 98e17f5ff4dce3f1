"""Deleted rows: merging our deletions with those that were committed since.

A transaction does not name the rows that it deletes. They are derived: the rows in its deletion file, without those in
the deletion file of the same fragment at the read version. pylance has them in memory, and retries if it has only the
message.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from itertools import islice

from committerd.errors import InvalidRequest
from committerd.lance.format.deletion_file import encode_bitmap
from committerd.lance.operations.rebase import DeletionMerge, Rebased, RebaseFacts, RowConflict
from committerd_common.messages import DataFragment, DeletionFile, Manifest, Transaction
from committerd_common.paths import deletion_key

_DELETION_FILE_TYPES = frozenset(DeletionFile.DeletionFileType.values())
_ADDRESSES_NAMED_MAX = 5


def require_known_type(fragment: DataFragment) -> None:
    """Check that the fragment has no deletion file, or one of a type that Lance knows.

    Raises `InvalidRequest` (`deletion_file_type`).
    """
    # Lance 4.0.0 can't open a version whose transaction has another.
    if fragment.HasField("deletion_file") and fragment.deletion_file.file_type not in _DELETION_FILE_TYPES:
        raise InvalidRequest(
            f"fragment {fragment.id} has a deletion file of type {fragment.deletion_file.file_type}, unknown to us",
            code="deletion_file_type",
        )


def plan_deletions(updated: Iterable[DataFragment], read: Manifest | None, latest: Manifest) -> Sequence[DeletionMerge]:
    """Our updated fragments whose deletion files changed since the read version; `read` None = it can't be read."""
    ours = {fragment.id: fragment for fragment in updated}
    if read is None or not ours:
        return ()
    then = {fragment.id: fragment for fragment in read.fragments if fragment.id in ours}
    now = {fragment.id: fragment for fragment in latest.fragments if fragment.id in ours}
    return [
        DeletionMerge(read=then[one], ours=ours[one], latest=now[one])
        for one in sorted(then.keys() & now.keys())
        if then[one].deletion_file != now[one].deletion_file
    ]


def merge_deletions(
    rebased: Transaction, updated: Iterable[DataFragment], removed: MutableSequence[int], facts: RebaseFacts
) -> Rebased | RowConflict:
    """The rebased transaction, with their deletions and ours in every fragment; a conflict if both deleted a row.

    The function changes `rebased`; `updated` and `removed` are its lists of updated fragments and of removed fragment
    ids. The new deletion files are bitmaps, each named after the latest version and one of `facts.file_ids`. A fragment
    without a row left is removed, and gets no file. Lance: conflict_resolver.rs, finish_delete_update.
    """
    rebased.read_version = facts.latest_version
    by_id = {fragment.id: fragment for fragment in updated}
    files: dict[str, bytes] = {}
    clashes, addresses = 0, list[str]()
    for merge, deletions in facts.deletions:
        fragment_id = merge.ours.id
        if not deletions.read <= deletions.ours:
            return RowConflict(
                message=f"fragment {fragment_id} has rows again that were deleted at the read version, so the rows "
                "that the transaction deletes can't be determined"
            )
        affected = deletions.ours - deletions.read
        both = affected & deletions.latest
        clashes += len(both)
        addresses += (str(fragment_id << 32 | row) for row in islice(both, _ADDRESSES_NAMED_MAX - len(addresses)))
        merged = affected | deletions.latest
        if len(merged) >= merge.latest.physical_rows:
            # It stays in the list of updated fragments too, as in Lance, where removal takes precedence.
            removed.append(fragment_id)
        elif merged == deletions.latest:
            by_id[fragment_id].deletion_file.CopyFrom(merge.latest.deletion_file)
        else:
            file = DeletionFile(
                file_type=DeletionFile.BITMAP,
                read_version=facts.latest_version,
                id=next(facts.file_ids),
                num_deleted_rows=len(merged),
            )
            by_id[fragment_id].deletion_file.CopyFrom(file)
            files[deletion_key(fragment_id, file, staged=True)] = encode_bitmap(merged)
    if clashes:
        more = "" if clashes <= len(addresses) else f" and {clashes - len(addresses)} more"
        return RowConflict(message=f"both modified rows at addresses [{', '.join(addresses)}]{more}")
    return Rebased(transaction=rebased, files=files)
