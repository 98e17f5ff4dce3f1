"""Delete: deleted rows, in fragments that keep other rows or are removed."""

from __future__ import annotations

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.changed_fragments import (
    changed_fragments,
    put_in_place,
    require_same_row_count,
    with_files_read,
)
from committerd.lance.operations.deletions import deletions_to_merge, merge_deletions
from committerd.lance.operations.following import follow_deletions
from committerd.lance.operations.operation import Input, Operation, ScalesWith, StagedFiles
from committerd.lance.operations.rebase_footprints import RowFootprints
from committerd.lance.versions.draft import Draft, finish
from committerd_common.messages import Manifest, Transaction


def _staged_files(transaction: Transaction) -> StagedFiles:
    return StagedFiles(transaction.delete.updated_fragments, ())


def _named_fragments(transaction: Transaction) -> list[int]:
    delete = transaction.delete
    return [*(one.id for one in delete.updated_fragments), *delete.deleted_fragment_ids]


def _validate_on(transaction: Transaction, latest: Manifest) -> None:
    require_same_row_count(transaction.delete.updated_fragments, latest)


def _excerpt(transaction: Transaction, file: ManifestFile) -> Manifest:
    return file.part(_named_fragments(transaction))


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    return changed_fragments(Kind.DELETE, transaction.delete.updated_fragments, transaction.delete.deleted_fragment_ids)


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance 14: manifest_build.rs, Delete: only the deletions of the updated fragments count. 4.0.0 takes all."""
    delete = transaction.delete
    changed = put_in_place(draft, delete.updated_fragments, delete.deleted_fragment_ids, deletions_only=True)
    draft.keep_useful_indices()
    finish(draft, changed)


DELETE = Operation(
    kind=Kind.DELETE,
    scales_with=ScalesWith.TABLE,
    inputs=frozenset({Input.READ_VERSION}),
    staged_files=_staged_files,
    named_fragments=_named_fragments,
    validate_on=_validate_on,
    excerpt=_excerpt,
    footprint=_footprint,
    footprint_of_ours=with_files_read,
    deletions_to_merge=deletions_to_merge,
    rebase=merge_deletions,
    rebase_footprints=RowFootprints,
    follow=follow_deletions,
    build=_build,
)
