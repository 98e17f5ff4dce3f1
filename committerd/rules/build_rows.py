"""How the operations that add, change, move or remove rows make the next version."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyroaring import BitMap, BitMap64

from committerd.format.fragment_list import NO_FRAGMENTS
from committerd.format.index_details import is_system_index
from committerd.format.messages import DataFile, DataFragment, IndexMetadata, Transaction
from committerd.rules.build_indices import merge_generations
from committerd.rules.draft import Draft, finish, unbuildable
from committerd.rules.fragments import (
    TOMBSTONE,
    FileIdentity,
    file_identity,
    file_version,
    remove_fragments,
    replace_fragments,
    set_fragments,
    with_id,
)
from committerd.rules.indices import (
    coverage,
    holds_addresses,
    rewritten_coverage,
    with_coverage,
    with_moved_rows,
    without_updated_fields,
)
from committerd.rules.lineage import (
    has_all_row_ids,
    require_moved_rows,
    require_same_rows,
    require_unchanged_row_ids,
    stamp_changed_offsets,
    stamp_changed_rows,
    stamp_moved_rows,
    stamp_new_rows,
    stamp_rows_by_address,
    updated_offsets,
)


def append(draft: Draft, operation: Transaction.Append) -> None:
    """Lance: transaction.rs, build_manifest, Append. Indices stay as they are."""
    draft.add_new_rows(operation.fragments)
    finish(draft)


def overwrite(draft: Draft, operation: Transaction.Overwrite) -> None:
    """Lance: transaction.rs, build_manifest, Overwrite. What describes the table stays, but for its
    schema.

    Ids go on counting (pylance 14.0.2), and the data format follows the new files.
    """
    manifest = draft.manifest
    if operation.initial_bases and draft.current is not None:
        raise unbuildable(
            "initial_bases are for a table that does not exist yet; add bases with UpdateBases",
            "initial_bases",
        )
    manifest.base_paths.extend(operation.initial_bases)
    versions = {file_version(file) for one in operation.fragments for file in one.files}
    if len(versions) == 1:
        manifest.data_format.version = versions.pop() or ""
    draft.drop_fragments()
    draft.set_schema(operation.schema)
    manifest.schema_metadata.clear()
    for key, value in operation.schema_metadata.items():
        manifest.schema_metadata[key] = value
    manifest.config.update(operation.config_upsert_values)
    draft.indices = []
    draft.touched = None
    draft.add_new_rows(operation.fragments, chosen=False)
    finish(draft)


def delete(draft: Draft, operation: Transaction.Delete) -> None:
    """Lance: transaction.rs, build_manifest, Delete. A fragment both changed and removed is
    removed.
    """
    changed = _put_in_place(draft, operation.updated_fragments, operation.deleted_fragment_ids)
    draft.keep_useful_indices()
    finish(draft, changed)


def update(draft: Draft, operation: Transaction.Update) -> None:
    """Lance: transaction.rs, build_manifest, Update; the lineage of moved rows as since 6.1."""
    manifest = draft.manifest
    moves_rows = operation.update_mode != Transaction.REWRITE_COLUMNS
    if draft.has_stable_row_ids:
        _require_moved_rows(draft, operation)
    changed = _put_in_place(draft, operation.updated_fragments, operation.removed_fragment_ids)
    draft.indices = without_updated_fields(draft.indices, changed, frozenset(operation.fields_modified))
    fresh = draft.fresh(operation.new_fragments, moved=True)
    if draft.has_stable_row_ids:
        existing = draft.current.fragments if draft.current is not None else NO_FRAGMENTS
        in_order = existing if existing.facts.ascending else sorted(existing, key=lambda one: one.id)
        stamp = stamp_rows_by_address if draft.by_old_lance else stamp_moved_rows
        stamp(fresh, in_order, draft.version)
        for fragment in manifest.fragments:
            if fragment.id in changed:
                # Lance 7: in place, only the rows that it names have changed.
                stamp_changed_offsets(fragment, updated_offsets(operation, fragment.id), draft.version)
    draft.add(fresh)
    if draft.has_stable_row_ids and moves_rows:
        draft.indices = with_moved_rows(
            draft.indices,
            # Only where every row came with its id: the others are new, and no index has them.
            # Lance asks after it has given them ids.
            moved_to=[
                made.id for made, staged in zip(fresh, operation.new_fragments, strict=True) if has_all_row_ids(staged)
            ],
            moved_from=changed | frozenset(operation.removed_fragment_ids),
            changed_fields=frozenset(operation.fields_for_preserving_frag_bitmap),
        )
    draft.keep_useful_indices()
    merge_generations(draft, operation.merged_generations)
    finish(draft, changed)


def _require_moved_rows(draft: Draft, operation: Transaction.Update) -> None:
    """Rows keep their ids where they move to, and are deleted where they were."""
    gone = frozenset(operation.removed_fragment_ids)
    changed = {one.id: one for one in operation.updated_fragments}
    existing = draft.current.fragments if draft.current is not None else NO_FRAGMENTS
    left = existing.of([*gone, *changed])
    deleted = 0
    for fragment in left:
        rows_gone = (
            fragment.physical_rows if fragment.id in gone else changed[fragment.id].deletion_file.num_deleted_rows
        )
        deleted += max(rows_gone - fragment.deletion_file.num_deleted_rows, 0)
    require_moved_rows(left, operation.new_fragments, deleted=deleted)


def rewrite(draft: Draft, operation: Transaction.Rewrite) -> None:
    """Lance: transaction.rs, build_manifest, Rewrite. Row ids and lineage come with the new
    fragments.
    """
    manifest = draft.manifest
    groups: list[tuple[list[int], list[int]]] = []
    made: list[DataFragment] = []
    existing = draft.fragment_ids()
    next_id = draft.next_fragment_id()
    draft.open(fragment.id for group in operation.groups for fragment in group.old_fragments)
    for group in operation.groups:
        old = [fragment.id for fragment in group.old_fragments]
        if missing := [one for one in sorted(set(old)) if one not in existing]:
            raise unbuildable(
                f"Rewrite replaces fragments {missing}, which version {manifest.version - 1} does not have",
                "unknown_fragment",
            )
        new = []
        for fragment in group.new_fragments:
            # An id that is set was reserved before; 0 means that none was.
            fragment_id = fragment.id or next_id
            draft.reserve_ids(fragment_id)
            next_id = max(next_id, fragment_id + 1)
            made.append(with_id(fragment, fragment_id))
            new.append(fragment_id)
        groups.append((old, new))
    if draft.has_stable_row_ids:
        old_ids = {one for old, _ in groups for one in old}
        require_same_rows((one for one in manifest.fragments if one.id in old_ids), made)
    kept_ids = existing - BitMap64(one for old, _ in groups for one in old)
    for fragment in made:
        if fragment.id in kept_ids:
            raise unbuildable(
                f"Rewrite brings a fragment with id {fragment.id}, which another fragment has; reserve ids with "
                "ReserveFragments",
                "fragment_id_taken",
            )
        kept_ids.add(fragment.id)
    kept = [one for one in manifest.fragments if one.id in kept_ids]
    set_fragments(manifest, [*kept, *made])
    draft.indices = _rewritten_indices(draft, operation, groups)
    finish(draft, {fragment.id for fragment in made})


def merge(draft: Draft, operation: Transaction.Merge) -> None:
    """Lance: transaction.rs, build_manifest, Merge. It brings every fragment, with the columns that
    it adds.

    An index on a field whose data lies in another file now covers that fragment no more, and its
    rows count as changed: Lance 9; 4.0.0 leaves both as they were, of which the first makes queries
    miss rows and is not copied.
    """
    manifest = draft.manifest
    draft.open_all()
    before = {fragment.id: fragment for fragment in manifest.fragments}
    moved: dict[int, frozenset[int]] = {}
    changed: set[int] = set()
    kept: list[DataFragment] = []
    added: list[DataFragment] = []
    for fragment in operation.fragments:
        known = before.get(fragment.id)
        if known is None or fragment.id in moved:
            # Not yet in the table; with the id 0 that stands for none, or that of a fragment before it in the list.
            added.append(fragment)
            continue
        if _files(known) != _files(fragment):
            changed.add(fragment.id)
        moved[fragment.id] = _fields_in_other_files(known, fragment)
        kept.append(with_id(fragment, fragment.id))
    fresh = draft.fresh(added)
    changed.update(one.id for one in fresh)
    if draft.has_stable_row_ids:
        for one in kept:
            require_unchanged_row_ids(before[one.id], one)
        stamp_new_rows(fresh, draft.version)
    if draft.has_stable_row_ids and not draft.by_old_lance:
        stamp_changed_rows([one for one in kept if one.id in changed], draft.version)
    set_fragments(manifest, [*kept, *fresh])
    draft.touched = None
    draft.set_schema(operation.schema)
    if operation.schema_metadata:
        manifest.schema_metadata.clear()
        for key, value in operation.schema_metadata.items():
            manifest.schema_metadata[key] = value
    for fragment_id, fields in moved.items():
        if fields:
            draft.indices = without_updated_fields(draft.indices, [fragment_id], fields)
    draft.keep_useful_indices()
    finish(draft, changed)


def data_replacement(draft: Draft, operation: Transaction.DataReplacement) -> None:
    """Lance: transaction.rs, build_manifest, DataReplacement.

    Fields that some other file of the fragment has are from now on read from the new file (Lance
    14; for 4.0.0 the fields have to be all of one file, or none of any).
    """
    replaced = {group.fragment_id: group.new_file for group in operation.replacements}
    fields = frozenset(one for file in replaced.values() for one in file.fields if one >= 0)
    draft.open(replaced)
    if missing := draft.missing(replaced):
        raise unbuildable(
            f"DataReplacement replaces data of fragments {missing}, which version {draft.version - 1} does not have",
            "unknown_fragment",
        )
    for fragment in draft.manifest.fragments:
        if fragment.id in replaced:
            _replace_data(fragment, replaced[fragment.id])
            if draft.has_stable_row_ids and not draft.by_old_lance:
                stamp_changed_rows([fragment], draft.version)
    draft.indices = without_updated_fields(draft.indices, replaced.keys(), fields)
    finish(draft, replaced.keys())


def _put_in_place(draft: Draft, updated: Iterable[DataFragment], removed: Collection[int]) -> frozenset[int]:
    """Replace and remove fragments of the current version; returns the ids of those replaced."""
    gone = frozenset(removed)
    changed = {fragment.id: fragment for fragment in updated if fragment.id not in gone}
    draft.open([*changed, *gone])
    if missing := draft.missing(changed):
        # pylance passes over them; rows that were to be deleted would then be there twice.
        raise unbuildable(
            f"fragments {missing} are to be changed, but version {draft.version - 1} does not have them",
            "unknown_fragment",
        )
    if draft.has_stable_row_ids:
        for fragment in draft.manifest.fragments:
            if fragment.id in changed:
                require_unchanged_row_ids(fragment, changed[fragment.id])
    replace_fragments(draft.manifest, changed)
    remove_fragments(draft.manifest, gone)
    return frozenset(changed)


def _rewritten_indices(
    draft: Draft, operation: Transaction.Rewrite, groups: list[tuple[list[int], list[int]]]
) -> list[IndexMetadata]:
    rewritten = {one.old_id.uuid: one for one in operation.rewritten_indices}
    old = BitMap(one for group, _ in groups for one in group)
    indices = []
    for index in draft.indices:
        change = rewritten.get(index.uuid.uuid)
        covered = coverage(index)
        if change is not None:
            if covered is None:
                raise unbuildable(
                    f"Rewrite rewrites index {index.name!r}, which does not say what it covers",
                    "index_bitmap",
                )
            moved = with_coverage(index, rewritten_coverage(covered, groups, name=index.name))
            moved.uuid.CopyFrom(change.new_id)
            moved.ClearField("files")
            moved.files.extend(change.new_index_files)
            indices.append(moved)
        elif covered is None or is_system_index(index) or not draft.has_stable_row_ids:
            # Also when it covers old fragments: those are gone, and the new ones count as not
            # indexed.
            indices.append(index)
        elif holds_addresses(index):
            indices.append(with_coverage(index, covered - old))
        else:
            # Rows kept their ids, so it finds them in the new fragments.
            indices.append(with_coverage(index, rewritten_coverage(covered, groups, name=index.name)))
    return indices


def _files(fragment: DataFragment) -> list[FileIdentity]:
    return [file_identity(file) for file in fragment.files]


def _fields_in_other_files(before: DataFragment, after: DataFragment) -> frozenset[int]:
    """Fields that had their data in one file and now have it in another."""
    paths = {one: file.path for file in before.files for one in file.fields if one >= 0}
    return frozenset(
        one for file in after.files for one in file.fields if one >= 0 and paths.get(one, file.path) != file.path
    )


def _replace_data(fragment: DataFragment, new_file: DataFile) -> None:
    """Read the fields of the new file from it, in place."""
    same = [
        file
        for file in fragment.files
        if list(file.fields) == list(new_file.fields)
        and file.file_major_version == new_file.file_major_version
        and file.file_minor_version == new_file.file_minor_version
    ]
    if same:
        for file in same:
            file.CopyFrom(new_file)
        return
    fields = set(new_file.fields)
    held = {one for file in fragment.files for one in file.fields}
    if not fields <= held and fields & held:
        raise unbuildable(
            f"DataReplacement of fragment {fragment.id}: of fields {sorted(fields)} the fragment has data for "
            f"{sorted(fields & held)} only; replace existing and new fields by files of their own",
            "partial_replacement",
        )
    for file in fragment.files:
        file.fields[:] = [TOMBSTONE if one in fields else one for one in file.fields]
    fragment.files.append(new_file)
