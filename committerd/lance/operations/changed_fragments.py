"""The fragments that a Delete or an Update changes in place or removes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from committerd.errors import InvalidRequest
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.rows.deletions import take_deletions
from committerd.lance.versions.draft import Draft
from committerd.lance.versions.fragments import FileIdentity, file_identity, remove_fragments, replace_fragments
from committerd.lance.versions.lineage import require_unchanged_row_ids
from committerd_common.messages import DataFragment, IndexMetadata, Manifest, Transaction


def changed_fragments(kind: Kind, updated: Sequence[DataFragment], removed: Iterable[int]) -> Footprint:
    """The footprint of an operation that updates and removes these fragments."""
    gone = frozenset(removed)
    return Footprint(
        kind=kind,
        fragments=gone | {fragment.id for fragment in updated},
        removed=gone,
        files={fragment.id: _files(fragment) for fragment in updated},
    )


def with_files_read(
    touched: Footprint, transaction: Transaction, read: Manifest, indices: Iterable[IndexMetadata]
) -> Footprint:
    """The footprint, with the data files that its fragments had at the read version (`Operation.footprint_of_ours`)."""
    files = {fragment.id: _files(fragment) for fragment in read.fragments if fragment.id in touched.fragments}
    return replace(touched, files_read=files)


def require_same_row_count(updated: Iterable[DataFragment], latest: Manifest) -> None:
    """Check that each updated fragment has as many rows as in the latest version, deleted ones included.

    Raises `InvalidRequest` (`row_count_changed`).
    """
    rows = {fragment.id: fragment.physical_rows for fragment in latest.fragments}
    for fragment in updated:
        if rows.get(fragment.id, fragment.physical_rows) != fragment.physical_rows:
            raise InvalidRequest(
                f"fragment {fragment.id} has {rows[fragment.id]} rows, but would be replaced by a fragment of "
                f"{fragment.physical_rows}; only deletions and columns may change in place",
                code="row_count_changed",
            )


def put_in_place(
    draft: Draft, updated: Iterable[DataFragment], removed: Collection[int], *, deletions_only: bool = False
) -> frozenset[int]:
    """Replace and remove fragments of the draft; returns the ids of those replaced.

    `deletions_only`: of the fragments that are replaced, all but the deletion file stays.

    A fragment that is both updated and removed is removed. Raises `InvalidRequest` (`unknown_fragment`, `row_ids`).
    """
    gone = frozenset(removed)
    changed = {fragment.id: fragment for fragment in updated if fragment.id not in gone}
    draft.open([*changed, *gone])
    if missing := draft.missing(changed):
        # pylance ignores them; then rows that should have been deleted would be in the table twice.
        raise InvalidRequest(
            f"fragments {missing} are to be changed, but version {draft.version - 1} does not have them",
            code="unknown_fragment",
        )
    if draft.has_stable_row_ids:
        for fragment in draft.manifest.fragments:
            if fragment.id in changed:
                require_unchanged_row_ids(fragment, changed[fragment.id])
    if deletions_only:
        for fragment in draft.manifest.fragments:
            if fragment.id in changed:
                take_deletions(fragment, changed[fragment.id])
    else:
        replace_fragments(draft.manifest, changed)
    remove_fragments(draft.manifest, gone)
    return frozenset(changed)


def _files(fragment: DataFragment) -> tuple[FileIdentity, ...]:
    return tuple(file_identity(file) for file in fragment.files)
