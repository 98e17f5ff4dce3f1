"""Merges the rows that a transaction deletes with those that were deleted since its read version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyroaring import BitMap

from committerd.errors import InvalidRequest
from committerd.lance.format.support import DELETION_FILE_TYPES
from committerd.lance.operations.rebase import DeletionMerge, RebasedTransaction, RebaseFacts, RowConflict, copied
from committerd.lance.rows.deletions import changed_lists, clash, rows_deleted, without_rows
from committerd_common.messages import DataFragment, Manifest, Transaction


def require_known_type(fragment: DataFragment) -> None:
    """Check that the fragment has no deletion file, or one of a type that Lance knows.

    Raises `InvalidRequest` (`deletion_file_type`).
    """
    # Lance 4.0.0 can't open a version whose transaction has another.
    if fragment.HasField("deletion_file") and fragment.deletion_file.file_type not in DELETION_FILE_TYPES:
        raise InvalidRequest(
            f"fragment {fragment.id} has a deletion file of type {fragment.deletion_file.file_type}, which committerd "
            "does not know",
            code="deletion_file_type",
        )


def require_no_deletions(fragments: Iterable[DataFragment]) -> None:
    """Check that new fragments come without deletion files. Raises `InvalidRequest` (`deletion_file`).

    The name of a deletion file contains the id of its fragment, and the commit chooses the ids of new fragments: with
    others, readers look for a file that does not exist. Lance 14: validate.rs, overwrite_fragments_valid; it commits an
    Append of that kind, and then it can't read the table.
    """
    for fragment in fragments:
        if fragment.HasField("deletion_file"):
            raise InvalidRequest(
                f"fragment {fragment.id} ({fragment.files[0].path!r}) is to be new and has a deletion file, which "
                "readers could not find. Write its remaining rows into new files, or delete rows in a transaction of "
                "its own",
                code="deletion_file",
            )


def deletions_to_merge(transaction: Transaction, read: Manifest | None, latest: Manifest) -> Sequence[DeletionMerge]:
    """The updated fragments of a Delete or an Update whose deletion files changed since the read version.

    `read` None = that version can't be read.
    """
    updated, _ = changed_lists(transaction)
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


def merge_deletions(transaction: Transaction, facts: RebaseFacts) -> RebasedTransaction | RowConflict:
    """A Delete or an Update with their deletions and ours in every fragment; a conflict if both deleted a row.

    The new deletion files are bitmaps, each named after the latest version and one of `facts.file_ids`. A fragment
    without a row left is removed, and gets no file. Lance: conflict_resolver.rs, finish_delete_update.
    """
    rebased = copied(transaction)
    updated, removed = changed_lists(rebased)
    rebased.read_version = facts.latest_version
    by_id = {fragment.id: fragment for fragment in updated}
    files: dict[str, bytes] = {}
    both: dict[int, BitMap] = {}
    for merge, deletions in facts.deletions:
        fragment_id = merge.ours.id
        affected = rows_deleted(fragment_id, read=deletions.read, staged=deletions.ours)
        if isinstance(affected, RowConflict):
            return affected
        both[fragment_id] = affected & deletions.latest
        shrunk = without_rows(
            merge.latest,
            deletions.latest,
            affected,
            latest_version=facts.latest_version,
            file_ids=facts.file_ids,
        )
        if shrunk.deletion_file is None:
            # It stays in the list of updated fragments too, as in Lance, where removal takes precedence.
            removed.append(fragment_id)
            continue
        by_id[fragment_id].deletion_file.CopyFrom(shrunk.deletion_file)
        if shrunk.key:
            files[shrunk.key] = shrunk.body
    return clash(both) or RebasedTransaction(transaction=rebased, files=files)
