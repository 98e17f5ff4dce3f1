"""How the operations on a table as a whole make the next version: Restore, Clone, bases,
reserved ids.
"""

from __future__ import annotations

from committerd.format.bounds import BASE_ID_MAX
from committerd.format.feature_flags import CARRIED
from committerd.format.messages import DataFragment, IndexMetadata, Manifest, Transaction
from committerd.format.support import has_stable_row_ids
from committerd.rules.draft import Draft, finish, own_metadata, unbuildable


def restore(draft: Draft, operation: Transaction.Restore) -> None:
    """Everything as it was, under a new number. Lance: commit.rs, restore_old_manifest.

    Ids that were given out since are not given again: both counters keep the higher value (4.0.0
    does so for fragment ids only). The queue's table metadata is the latest, not the restored one.
    """
    restored, latest = draft.given.restored, draft.manifest
    if restored is None:
        raise unbuildable(
            f"Restore names version {operation.version}, which is not there (any more)", "unknown_version"
        )
    if has_stable_row_ids(restored.outline) != draft.has_stable_row_ids:
        raise unbuildable(
            f"Restore can't go back to version {operation.version}: stable row ids were turned on or off since",
            "restore_row_ids",
        )
    own = own_metadata(latest.table_metadata)
    version, timestamp = latest.version, latest.timestamp
    made = restored.manifest
    made.version = version
    made.timestamp.CopyFrom(timestamp)
    made.writer_version.CopyFrom(latest.writer_version)
    made.transaction_file = latest.transaction_file
    for name in ("index_section", "transaction_section", "transaction_section_v14"):
        made.ClearField(name)
    if latest.HasField("max_fragment_id"):
        made.max_fragment_id = max(made.max_fragment_id, latest.max_fragment_id)
    made.next_row_id = max(made.next_row_id, latest.next_row_id)
    # pylance 14.0.2: what has been in the table once stays flagged.
    made.reader_feature_flags |= latest.reader_feature_flags & CARRIED
    for key in own_metadata(made.table_metadata):
        del made.table_metadata[key]
    made.table_metadata.update(own)
    draft.drop_fragments()
    latest.CopyFrom(made)
    draft.indices = list(restored.indices)
    draft.touched = None
    finish(draft)


def reserve_fragments(draft: Draft, operation: Transaction.ReserveFragments) -> None:
    """Lance: transaction.rs, build_manifest, ReserveFragments. See `reserved` for what the
    caller gets.
    """
    draft.reserve_ids(draft.manifest.max_fragment_id + operation.num_fragments)
    finish(draft)


def update_bases(draft: Draft, operation: Transaction.UpdateBases) -> None:
    """Lance: transaction.rs, build_manifest, UpdateBases. Names and paths are unique; so is the
    lack of a name.
    """
    manifest = draft.manifest
    for base in operation.new_bases:
        name = base.name if base.HasField("name") else None
        for known in manifest.base_paths:
            known_name = known.name if known.HasField("name") else None
            if name == known_name or base.path == known.path or base.id == known.id != 0:
                raise unbuildable(
                    f"UpdateBases adds base {base.id} {name!r} at {base.path!r}, but base {known.id} is "
                    f"{known_name!r} at {known.path!r}: ids, names and paths must differ (no name counts as one)",
                    "base_taken",
                )
        added = manifest.base_paths.add()
        added.CopyFrom(base)
        if added.id == 0:
            added.id = _next_base_id(manifest)
    finish(draft)


def clone(draft: Draft, operation: Transaction.Clone) -> None:
    """The first version of a table made from one of another. Lance: commit.rs,
    do_commit_new_dataset.

    It has the number of the version that it is made from. A shallow one reads that table's files
    through a base; a deep one has copies of them.
    """
    source = draft.given.source
    if source is None:
        raise unbuildable(
            f"Clone reads version {operation.ref_version} of {operation.ref_path!r}, which is not there",
            "unknown_version",
        )
    own = draft.manifest
    made = source.manifest
    made.timestamp.CopyFrom(own.timestamp)
    made.writer_version.CopyFrom(own.writer_version)
    made.transaction_file = own.transaction_file
    for name in ("tag", "branch", "index_section", "transaction_section", "transaction_section_v14"):
        made.ClearField(name)
    for key in own_metadata(made.table_metadata):
        del made.table_metadata[key]
    if operation.HasField("branch_name"):
        made.branch = operation.branch_name
    indices = [_copied(index) for index in source.indices]
    if operation.is_shallow:
        base_id = _next_base_id(made) if made.base_paths else 0
        base = made.base_paths.add(id=base_id, is_dataset_root=True, path=operation.ref_path)
        if operation.HasField("ref_name"):
            base.name = operation.ref_name
        for fragment in made.fragments:
            _set_base(fragment, base_id)
        for index in indices:
            index.base_id = base_id
    else:
        made.ClearField("base_paths")
        for fragment in made.fragments:
            _clear_base(fragment)
        for index in indices:
            index.ClearField("base_id")
    draft.manifest.CopyFrom(made)
    draft.indices = indices
    draft.touched = None
    finish(draft)


def _next_base_id(manifest: Manifest) -> int:
    """Above those of all bases that a version has."""
    highest = max(base.id for base in manifest.base_paths)
    if highest > BASE_ID_MAX:
        raise unbuildable(
            f"base {highest} has the highest id that a new base may follow: give the new one an id that is free",
            "base_taken",
        )
    return highest + 1


def _copied(index: IndexMetadata) -> IndexMetadata:
    copied = IndexMetadata()
    copied.CopyFrom(index)
    return copied


def _set_base(fragment: DataFragment, base_id: int) -> None:
    """Files that have no base lie, from now on, in this one."""
    for file in fragment.files:
        if not file.HasField("base_id"):
            file.base_id = base_id
    if fragment.HasField("deletion_file") and not fragment.deletion_file.HasField("base_id"):
        fragment.deletion_file.base_id = base_id


def _clear_base(fragment: DataFragment) -> None:
    for file in fragment.files:
        file.ClearField("base_id")
    if fragment.HasField("deletion_file"):
        fragment.deletion_file.ClearField("base_id")
