"""Update: rows changed in new fragments (rewritten rows) or in place (rewritten columns), and rows that a merge
inserts.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from committerd.errors import InvalidRequest
from committerd.lance.checks.texts import require_property
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.key_filter import changed_fields, inserted_keys, is_by_key
from committerd.lance.format.bounds import FIELDS_MAX
from committerd.lance.format.fragment_list import NO_FRAGMENTS
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.wording import listed
from committerd.lance.operations.changed_fragments import (
    changed_fragments,
    put_in_place,
    require_same_row_count,
    with_files_read,
)
from committerd.lance.operations.deletions import deletions_to_merge, merge_deletions, require_no_deletions
from committerd.lance.operations.following import follow_deletions
from committerd.lance.operations.operation import Input, Operation, ScalesWith, StagedFiles
from committerd.lance.operations.permissions import Permissions
from committerd.lance.operations.rebase import (
    copied,
)
from committerd.lance.operations.rebase_footprints import RowFootprints
from committerd.lance.versions.draft import Draft, finish
from committerd.lance.versions.fragments import fields_in_other_files, files_of
from committerd.lance.versions.indices import with_moved_rows, without_updated_fields
from committerd.lance.versions.lineage import (
    has_all_row_ids,
    require_moved_rows,
    require_rows_live_in,
    stamp_changed_offsets,
    stamp_moved_rows,
    stamp_rows_by_address,
    updated_offsets,
)
from committerd.lance.versions.mem_wal import merge_generations, require_regions, touched_generations
from committerd.lance.versions.schema import with_relatives
from committerd_common.malformed import MalformedError, blamed
from committerd_common.messages import Manifest, Transaction
from committerd_common.own_properties import BY_KEY, CHANGES, KEY_HASH, MERGE


def _staged_files(transaction: Transaction) -> StagedFiles:
    update = transaction.update
    fragments = [*update.updated_fragments, *update.new_fragments]
    return StagedFiles(fragments, files_of(fragments))


def _new_files(transaction: Transaction) -> StagedFiles:
    update = transaction.update
    return StagedFiles([*update.updated_fragments, *update.new_fragments], files_of(update.new_fragments))


def _named_fragments(transaction: Transaction) -> list[int]:
    update = transaction.update
    return [*(one.id for one in update.updated_fragments), *update.removed_fragment_ids]


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    update = transaction.update
    require_property(transaction, MERGE, {BY_KEY})
    with blamed(f"property {CHANGES}", code="reserved_key", staged=True):
        changed_fields(transaction)
    require_regions(update.merged_generations)
    require_no_deletions(update.new_fragments)
    for name, fields in (
        ("fields_modified", update.fields_modified),
        ("fields_for_preserving_frag_bitmap", update.fields_for_preserving_frag_bitmap),
        ("inserted_rows.field_ids", update.inserted_rows.field_ids),
    ):
        if len(fields) > FIELDS_MAX:
            raise InvalidRequest(
                f"{name} lists {len(fields)} fields; at most {FIELDS_MAX} are allowed", code="number_out_of_bounds"
            )
    probability = update.inserted_rows.bloom.probability
    if not 0 <= probability <= 1:
        raise InvalidRequest(
            f"inserted_rows.bloom.probability is {probability}; 0 to 1 is allowed", code="number_out_of_bounds"
        )
    for fragment_id in update.updated_fragment_offset_bitmaps:
        updated_offsets(update, fragment_id)
    _require_offsets_of_updated(update)


def _require_offsets_of_updated(update: Transaction.Update) -> None:
    """Check that it names changed rows only in fragments that it changes. Lance 14: validate.rs, validate_operation."""
    if update.update_mode != Transaction.REWRITE_COLUMNS:
        return
    updated = {fragment.id for fragment in update.updated_fragments}
    named = update.updated_fragment_offset_bitmaps or update.updated_fragment_offsets
    if stray := sorted(one for one in named if one not in updated and updated_offsets(update, one)):
        raise InvalidRequest(
            f"updated_fragment_offsets name rows of fragments {listed(stray)}, which the Update does not change",
            code="updated_offsets",
        )


def _validate_on(transaction: Transaction, latest: Manifest) -> None:
    require_same_row_count(transaction.update.updated_fragments, latest)


def _completed(transaction: Transaction, latest: Manifest) -> Transaction:
    """Name the fields that the Update rewrites in place as modified.

    Indices on them must no longer cover those fragments. pylance believes what `fields_modified` says, and so an index
    goes on giving old values if a writer leaves a field out.
    """
    update = transaction.update
    before = {fragment.id: fragment for fragment in latest.fragments}
    moved = set[int]()
    for fragment in update.updated_fragments:
        if fragment.id in before:
            moved |= fields_in_other_files(before[fragment.id], fragment)
    moved &= {field.id for field in latest.fields}
    unnamed = moved - with_relatives(update.fields_modified, latest.fields) if moved else moved
    if not unnamed:
        return transaction
    completed = copied(transaction)
    completed.update.fields_modified.extend(sorted(unnamed))
    return completed


def _excerpt(transaction: Transaction, file: ManifestFile) -> Manifest:
    return file.part(_named_fragments(transaction))


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    update = transaction.update
    in_place = update.update_mode == Transaction.REWRITE_COLUMNS
    return replace(
        changed_fragments(Kind.UPDATE, update.updated_fragments, update.removed_fragment_ids),
        moves_rows=bool(update.new_fragments) and not in_place,
        fields_modified=frozenset(update.fields_modified),
        generations=touched_generations(update.merged_generations),
        key_filter=inserted_keys(transaction),
        is_by_key=is_by_key(transaction),
        changed_fields=_changed_fields(transaction),
    )


def _changed_fields(transaction: Transaction) -> frozenset[int] | None:
    try:
        return changed_fields(transaction)
    except MalformedError:
        return None  # another writer's: what it says is not understood


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, Update; the lineage of moved rows as since 6.1."""
    update, manifest = transaction.update, draft.manifest
    moves_rows = update.update_mode != Transaction.REWRITE_COLUMNS
    if draft.has_stable_row_ids:
        _require_moved_rows(draft, update)
    changed = put_in_place(draft, update.updated_fragments, update.removed_fragment_ids)
    draft.indices = without_updated_fields(draft.indices, changed, update.fields_modified, manifest.fields)
    fresh = draft.fresh(update.new_fragments, moved=True)
    if draft.has_stable_row_ids:
        existing = draft.current.fragments if draft.current is not None else NO_FRAGMENTS
        in_order = existing if existing.facts.ascending else sorted(existing, key=lambda one: one.id)
        stamp = stamp_rows_by_address if draft.by_old_lance else stamp_moved_rows
        stamp(fresh, in_order, draft.version)
        for fragment in manifest.fragments:
            if fragment.id in changed:
                # Lance 7: of a fragment changed in place, only the rows that the update names have changed.
                stamp_changed_offsets(fragment, updated_offsets(update, fragment.id), draft.version)
    draft.add(fresh)
    if draft.has_stable_row_ids and moves_rows:
        whole = [(len(fresh), changed | frozenset(update.removed_fragment_ids))]
        made_of = zip(fresh, update.new_fragments, strict=True)
        for count, moved_from in draft.given.moves or whole:
            draft.indices = with_moved_rows(
                draft.indices,
                # Only fragments in which every row came with its id: other rows are new, and no index has them.
                # Lance checks this after it has assigned ids.
                moved_to=[made.id for made, staged in islice(made_of, count) if has_all_row_ids(staged)],
                moved_from=moved_from,
                changed_fields=frozenset(update.fields_for_preserving_frag_bitmap),
            )
    draft.keep_useful_indices()
    merge_generations(draft, update.merged_generations)
    finish(draft, changed)


def _require_moved_rows(draft: Draft, update: Transaction.Update) -> None:
    """Check that moved rows keep their ids, and are deleted in the fragments that they came from."""
    gone = frozenset(update.removed_fragment_ids)
    changed = {one.id: one for one in update.updated_fragments}
    existing = draft.current.fragments if draft.current is not None else NO_FRAGMENTS
    left = existing.of([*gone, *changed])
    deleted = 0
    for fragment in left:
        rows_gone = (
            fragment.physical_rows if fragment.id in gone else changed[fragment.id].deletion_file.num_deleted_rows
        )
        deleted += max(rows_gone - fragment.deletion_file.num_deleted_rows, 0)
    require_moved_rows(left, update.new_fragments, deleted=deleted)
    new = iter(update.new_fragments)
    members = draft.given.moves or [(len(update.new_fragments), gone | changed.keys())]
    require_rows_live_in(
        left, [(list(islice(new, count)), losing) for count, losing in members], existing.newest_first()
    )


UPDATE = Operation(
    kind=Kind.UPDATE,
    scales_with=ScalesWith.TABLE,
    inputs=frozenset({Input.READ_VERSION}),
    staged_files=_staged_files,
    new_files=_new_files,
    named_fragments=_named_fragments,
    own_properties=frozenset({CHANGES, KEY_HASH, MERGE}),
    validate=_validate,
    validate_on=_validate_on,
    completed=_completed,
    excerpt=_excerpt,
    footprint=_footprint,
    footprint_of_ours=with_files_read,
    deletions_to_merge=deletions_to_merge,
    rebase=merge_deletions,
    rebase_footprints=RowFootprints,
    follow=follow_deletions,
    build=_build,
)
