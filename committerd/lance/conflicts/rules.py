"""The rules of the conflict grid. Each decides whether an operation of ours may be committed after one of theirs.

A rule is a function of the two footprints. Its docstring says when they conflict, and names the source of the rule. The
first paragraph is also the text that `grid.reason` returns, which messages quote; "a Delete over a Rewrite" is a Delete
of ours after a Rewrite of theirs. `grid.MATRIX` assigns a rule to each pair of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import IntEnum

from pyroaring import FrozenBitMap

from committerd.lance.conflicts.footprint import Footprint, IndexFootprint
from committerd.lance.conflicts.key_filter import may_bring_a_key
from committerd.lance.format.bounds import FRAGMENT_ID_MAX
from committerd.lance.format.kind import Kind
from committerd_common.index_details import FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX, covers_any


class Verdict(IntEnum):
    """Whether ours may be committed after theirs; a higher value is worse."""

    COMPATIBLE = 0
    """Ours may be committed as it is."""
    REBASABLE = 1
    """Ours may be committed after a rebase, which makes it apply on top of theirs."""
    RETRYABLE = 2
    """Ours may not be committed; its writer has to execute it again on the latest version."""
    INCOMPATIBLE = 3
    """Ours may not be committed, and executing it again would not help."""


Rule = Callable[[Footprint, Footprint], Verdict]


def compatible(ours: Footprint, theirs: Footprint) -> Verdict:
    """The two never conflict."""
    return Verdict.COMPATIBLE


def retryable(ours: Footprint, theirs: Footprint) -> Verdict:
    """The two always conflict; ours can be done again."""
    return Verdict.RETRYABLE


def incompatible(ours: Footprint, theirs: Footprint) -> Verdict:
    """The two always conflict, and for good: theirs replaced the table that ours was meant for."""
    return Verdict.INCOMPATIBLE


def same_fragment(ours: Footprint, theirs: Footprint) -> Verdict:
    """Two changes are retryable if both touch the same fragment.

    Lance: transaction.md, Rewrite and DataReplacement.
    """
    return _retry_if(bool(ours.fragments & theirs.fragments))


def moved_rows(ours: Footprint, theirs: Footprint) -> Verdict:
    """A Delete or Update over a Rewrite is rebasable: its rows are followed to the new fragments. It is retryable if
    they can't be followed.

    `not_followed` says why they can't. Whether somebody else deleted one of the rows shows when `operations.following`
    follows them. This rule is committerd's own: Lance retries (transaction.md, Rewrite; conflict_resolver.rs,
    check_delete_txn).
    """
    if not ours.fragments & theirs.fragments:
        return Verdict.COMPATIBLE
    return Verdict.RETRYABLE if not_followed(ours, theirs) else Verdict.REBASABLE


def late_deletions(ours: Footprint, theirs: Footprint) -> Verdict:
    """A Rewrite over a Delete or Update is rebasable: the rows that theirs deleted are deleted in the new fragments,
    too. It is retryable if they can't be followed there.

    `not_followed` says why they can't. This rule is committerd's own: Lance retries (transaction.md, Rewrite;
    conflict_resolver.rs, check_rewrite_txn).
    """
    return moved_rows(ours, theirs)


def not_followed(ours: Footprint, theirs: Footprint) -> str:
    """Why rows can't be followed through the Rewrite, which is one of the two; empty if they can.

    The other one must do no more than delete rows there, and it must be known where the Rewrite put them
    (`MovedGroup.doubt`).
    """
    rewrite, change = (theirs, ours) if theirs.kind is Kind.REWRITE else (ours, theirs)
    shared = ours.fragments & theirs.fragments
    if ours.files_read is None:
        return "its read version is gone, so it is not known which rows it changes"
    if missing := sorted(shared - ours.files_read.keys()):
        return f"its read version does not have fragment {missing[0]}"
    changed = sorted(one for one in shared - change.removed if change.files[one] != ours.files_read[one])
    if changed or change.fields_modified:
        return f"the {change.kind} changes columns in place, in fragment {min(changed or shared)}"
    doubts = (
        moves.doubt(trusts_all=ours.trusts_rewrites)
        for group, moves in zip(rewrite.groups, rewrite.moves, strict=True)
        if not group.isdisjoint(shared)
    )
    return next((f"it is not known where the rewrite put the rows: {doubt}" for doubt in doubts if doubt), "")


def same_row(ours: Footprint, theirs: Footprint) -> Verdict:
    """Two changes of the same fragment that only delete rows are rebasable: their deletions are merged. They are
    retryable if both delete the same row, or if anything else changed in the fragment.

    Whether both deleted the same row shows when the vectors are merged. Lance: transaction.md,
    Delete and Update; conflict_resolver.rs, check_delete_txn.
    """
    shared = ours.fragments & theirs.fragments
    if not shared:
        return Verdict.COMPATIBLE
    if ours.files_read is None or shared & (ours.removed | theirs.removed):
        return Verdict.RETRYABLE
    for fragment in shared:
        read = ours.files_read.get(fragment)
        if ours.files[fragment] != read or theirs.files[fragment] != read:
            return Verdict.RETRYABLE
    return Verdict.REBASABLE


def same_row_or_key(ours: Footprint, theirs: Footprint) -> Verdict:
    """An Update over an Update is retryable if both may have inserted the same key; otherwise the worse of
    `mem_wal_generation` and `same_row` counts.

    An Update that names no keys may have inserted any key, unless it says that it inserts no row (property
    `committerd.changes`) and it changes no key column, and ours depends on no rows but those with its own keys
    (`committerd.merge`). The properties are committerd's own; without them this is the rule of Lance:
    conflict_resolver.rs, check_update_txn. Lance applies `mem_wal_generation` to an UpdateMemWalState only; that two
    Updates must not merge the same MemWAL generation is committerd's own rule.
    """
    if may_bring_a_key(
        ours.key_filter, is_by_key=ours.is_by_key, other=theirs.key_filter, changes=theirs.changed_fields
    ):
        return Verdict.RETRYABLE
    return max(mem_wal_generation(ours, theirs), same_row(ours, theirs))


def appended_key(ours: Footprint, theirs: Footprint) -> Verdict:
    """An Update over an Append is retryable if the appended rows may have one of the keys that the Update inserted.

    Any appended row may have such a key, unless the Append names its keys (property `committerd.keys`) and the Update
    depends on no rows but those with its own keys (`committerd.merge`). The properties are committerd's own; without
    them this is the rule of Lance: conflict_resolver.rs, check_update_txn.
    """
    if ours.key_filter is None:
        return Verdict.COMPATIBLE
    if not ours.is_by_key or theirs.key_filter is None:
        return Verdict.RETRYABLE
    return _retry_if(ours.key_filter.may_share_a_key(theirs.key_filter))


def nullability(ours: Footprint, theirs: Footprint) -> Verdict:
    """Values that were written beside a change of the schema are retryable if some field may no longer be null, or left
    out, where it could be before.

    The schema change may have found a column free of nulls before these values were written, or may require a column
    that they lack. Lance 14: conflict_resolver.rs, may_alter_nullability; 4.0.0 lets them pass.
    """
    return _retry_if(not (ours.preserves_nullability and theirs.preserves_nullability))


def appended_before_cast(ours: Footprint, theirs: Footprint) -> Verdict:
    """An Append over a Merge is retryable if the Merge may have cast a column; otherwise `nullability` counts.

    The Append's files have the column's old field, so readers would find nulls in place of its values. This rule is
    committerd's own: Lance 4.0.0 and 14.0.2 let such an Append pass.
    """
    return max(_retry_if(theirs.may_cast), nullability(ours, theirs))


def updated_column_dropped(ours: Footprint, theirs: Footprint) -> Verdict:
    """An Update over a Project is retryable if a column that it rewrote in place is gone; otherwise `nullability`
    counts.

    Lance 14: conflict_resolver.rs, check_update_txn; 4.0.0 lets them pass.
    """
    return max(_retry_if(not ours.fields_modified <= theirs.schema_fields), nullability(ours, theirs))


def indexed_column_dropped(ours: Footprint, theirs: Footprint) -> Verdict:
    """A CreateIndex over a Project is incompatible if a column that it indexes is gone.

    This rule is committerd's own: Lance commits such an index, and every filter on the table fails from then on.
    """
    gone = any(not index.fields <= theirs.schema_fields for index in ours.new_indices)
    return Verdict.INCOMPATIBLE if gone else Verdict.COMPATIBLE


def replaced_column_dropped(ours: Footprint, theirs: Footprint) -> Verdict:
    """A DataReplacement over a Project is incompatible if a column that it replaces is gone; otherwise `nullability`
    counts.

    Lance 14: conflict_resolver.rs, check_data_replacement_txn; 4.0.0 lets them pass. Over a Project whose writer does
    not assert that it preserves nullability (older writers never do), the verdict is retry, whatever its columns are.
    """
    fields = {one for fields in ours.replaced.values() for one in fields if one >= 0}
    if fields <= theirs.schema_fields:
        return nullability(ours, theirs)
    return Verdict.INCOMPATIBLE if theirs.asserts_nullability else Verdict.RETRYABLE


def replaced_fragment_gone(ours: Footprint, theirs: Footprint) -> Verdict:
    """A DataReplacement over a Delete is incompatible if a fragment that it names is gone; deleted rows do no harm.

    Lance 14: conflict_resolver.rs, check_data_replacement_txn; 4.0.0 lets them pass.
    """
    return Verdict.INCOMPATIBLE if ours.fragments & theirs.removed else Verdict.COMPATIBLE


def replaced_data_updated(ours: Footprint, theirs: Footprint) -> Verdict:
    """A DataReplacement over an Update is incompatible if a fragment that it names is gone, and retryable if the Update
    moved rows of the fragment or rewrote the same field there.

    Lance 14: conflict_resolver.rs, check_data_replacement_txn; 4.0.0 lets them pass.
    """
    if ours.fragments & theirs.removed:
        return Verdict.INCOMPATIBLE
    return _retry_if(
        any(
            fragment in theirs.files and (theirs.moves_rows or bool(fields & theirs.fields_modified))
            for fragment, fields in ours.replaced.items()
        )
    )


def same_data_replaced(ours: Footprint, theirs: Footprint) -> Verdict:
    """A DataReplacement over a DataReplacement is retryable if both replace the same field of the same fragment.

    Lance: conflict_resolver.rs, check_data_replacement_txn.
    """
    return _retry_if(
        any(fields & theirs.replaced.get(fragment, frozenset()) for fragment, fields in ours.replaced.items())
    )


def indexed_data_replaced(ours: Footprint, theirs: Footprint) -> Verdict:
    """A CreateIndex and a DataReplacement are retryable if the index is on a field whose data is replaced.

    Lance: conflict_resolver.rs, check_create_index_txn and check_data_replacement_txn.
    """
    indices = ours.new_indices + theirs.new_indices
    replaced = {one for fields in (*ours.replaced.values(), *theirs.replaced.values()) for one in fields}
    return _retry_if(any(index.fields & replaced for index in indices))


def same_index(ours: Footprint, theirs: Footprint) -> Verdict:
    """A CreateIndex over a CreateIndex is retryable if both make an index of the same name (system indices included),
    or if one removed an index that the other builds on.

    It builds on the index if it adds a segment under the same name, or replaces the same index. Lance 14:
    conflict_resolver.rs, check_create_index_txn. Lance 4.0.0 does not check removals, so a version that such an old
    Lance committed is judged by that Lance's rule: its writers rely on it.
    """
    if ours.creates & theirs.creates:
        return Verdict.RETRYABLE
    if theirs.by_old_lance:
        return Verdict.COMPATIBLE
    return _retry_if(
        _extends_what_is_removed(ours, theirs)
        or _extends_what_is_removed(theirs, ours)
        or _replaces_what_is_removed(ours, theirs)
    )


def indexed_fragment_rewritten(ours: Footprint, theirs: Footprint) -> Verdict:
    """A CreateIndex over a Rewrite is rebasable if the index covers a fragment that is gone. It is retryable if nothing
    of what the index covers is left, if the index does not say what it covers, or if the Rewrite has rewritten an index
    that ours replaces.

    Readers take fragments that are gone for not covered (Lance: transaction.rs, build_manifest, Rewrite without a
    remapped index); `create_index.rebase_indices` says what is left. There is no conflict when the Rewrite added a
    fragment reuse entry that is younger than the index: readers then follow the moved rows. If ours is the index of
    reuse entries itself, it is rebased to include theirs. Lance retries when the index covers a fragment that is gone:
    conflict_resolver.rs, check_create_index_txn; 4.0.0 misses the entry, because it dates the entry at the version
    that the index was built on.
    """
    if theirs.reuse_version is not None and FRAGMENT_REUSE_INDEX in ours.creates:
        alone = len(ours.new_indices) == 1 and len(ours.removed_indices) == 1
        return Verdict.REBASABLE if alone else Verdict.INCOMPATIBLE
    concerned = [
        index for index in ours.new_indices if not _is_followed(index, theirs) and _may_cover(index, theirs.fragments)
    ]
    if any(index.fragments is None for index in concerned) or (concerned and theirs.reuse_version is not None):
        return Verdict.RETRYABLE
    if ours.new_indices and any(index.uuid in theirs.rewritten_indices for index in ours.removed_indices):
        return Verdict.RETRYABLE
    return Verdict.REBASABLE if concerned else Verdict.COMPATIBLE


def rewritten_fragment_indexed(ours: Footprint, theirs: Footprint) -> Verdict:
    """A Rewrite over a CreateIndex is retryable if the index covers a fragment that the Rewrite replaces.

    If ours leaves indices to be remapped later, only an index that covers part of a group, or does not say what it
    covers, is a conflict. Any other index may go on listing fragments that are gone, and the new fragments count as not
    indexed. A CreateIndex that replaces the index of reuse entries, and does nothing else, is not a conflict. Lance:
    conflict_resolver.rs, check_rewrite_txn; the rule about groups is that of 6.0.
    """
    if FRAGMENT_REUSE_INDEX in theirs.creates:
        alone = len(theirs.new_indices) == 1 and len(theirs.removed_indices) == 1
        return Verdict.COMPATIBLE if alone else Verdict.INCOMPATIBLE
    if not ours.defers_indices:
        return _retry_if(any(_may_cover(index, ours.fragments) for index in theirs.new_indices))
    return _retry_if(
        any(
            index.fragments is None or (covers_any(index.fragments, group) and not _covers_all(index.fragments, group))
            for index in theirs.new_indices
            for group in ours.groups
        )
    )


def same_fragment_rewritten(ours: Footprint, theirs: Footprint) -> Verdict:
    """A Rewrite over a Rewrite is retryable if both replace the same fragment, or if both leave indices to be remapped
    later, because there is a single list of reuse entries.

    Lance: conflict_resolver.rs, check_rewrite_txn.
    """
    return max(same_fragment(ours, theirs), _retry_if(ours.defers_indices and theirs.defers_indices))


def indexed_data_updated(ours: Footprint, theirs: Footprint) -> Verdict:
    """A CreateIndex over an Update is rebasable: the index no longer covers what the Update rewrote in place.

    Lance 14: conflict_resolver.rs, check_create_index_txn; in 4.0.0 the index still covers it.
    """
    stale = any(
        index.fields & theirs.fields_modified and _may_cover(index, theirs.files.keys()) for index in ours.new_indices
    )
    return Verdict.REBASABLE if stale else Verdict.COMPATIBLE


def indexed_schema_changed(ours: Footprint, theirs: Footprint) -> Verdict:
    """A CreateIndex and a Merge are retryable if the index is the MemWAL index, which depends on the schema, or is on a
    column that the Merge cast.

    Lance 14: conflict_resolver.rs, check_create_index_txn and check_merge_txn; 4.0.0 lets them pass. The rule for casts
    is committerd's own, like `indexed_column_dropped`: a column that is cast gets a new id, and its index has to be
    built again.
    """
    cast = theirs.kind is Kind.MERGE and indexed_column_dropped(ours, theirs) is Verdict.INCOMPATIBLE
    return _retry_if(cast or MEM_WAL_INDEX in ours.creates | theirs.creates)


def mem_wal_index(ours: Footprint, theirs: Footprint) -> Verdict:
    """A CreateIndex of the MemWAL index over an UpdateMemWalState is rebasable: it takes over the merged generations.
    Any other CreateIndex is incompatible.

    Lance: conflict_resolver.rs, check_create_index_txn.
    """
    return Verdict.REBASABLE if MEM_WAL_INDEX in ours.creates else Verdict.INCOMPATIBLE


def mem_wal_generation(ours: Footprint, theirs: Footprint) -> Verdict:
    """Two changes that merged the same MemWAL region are incompatible if theirs merged our generation or a later one,
    and retryable otherwise.

    Lance: conflict_resolver.rs, check_merged_generations_conflict.
    """
    return max(
        (
            Verdict.INCOMPATIBLE if committed >= generation else Verdict.RETRYABLE
            for region, generation in ours.generations
            for other, committed in theirs.generations
            if region == other
        ),
        default=Verdict.COMPATIBLE,
    )


def overwritten_twice(ours: Footprint, theirs: Footprint) -> Verdict:
    """An Overwrite over an Overwrite is retryable, so that its writer decides; it is incompatible if both set the same
    config key.

    Lance: conflict_resolver.rs, check_overwrite_txn.
    """
    return Verdict.INCOMPATIBLE if _sets_same_config_key(ours, theirs) else Verdict.RETRYABLE


def same_config_key(ours: Footprint, theirs: Footprint) -> Verdict:
    """An Overwrite over an UpdateConfig is incompatible if both change the same config key.

    Lance: conflict_resolver.rs, check_overwrite_txn.
    """
    return Verdict.INCOMPATIBLE if _sets_same_config_key(ours, theirs) else Verdict.COMPATIBLE


def metadata_of_replaced_schema(ours: Footprint, theirs: Footprint) -> Verdict:
    """An UpdateConfig over an Overwrite is incompatible if it changes metadata of the replaced schema or its fields, or
    if both change the same config key.

    Lance: conflict_resolver.rs, check_update_config_txn.
    """
    if ours.sets_schema_metadata or ours.metadata_fields:
        return Verdict.INCOMPATIBLE
    return same_config_key(ours, theirs)


def same_config_or_metadata(ours: Footprint, theirs: Footprint) -> Verdict:
    """An UpdateConfig over an UpdateConfig is incompatible if both change the same config key or the same metadata.

    Lance: conflict_resolver.rs, check_update_config_txn. Table metadata conflicts by key, or when either side replaces
    all of it: Lance 14; in 4.0.0 the last writer wins.
    """
    table = ours.table_metadata_keys & theirs.table_metadata_keys or (
        (ours.replaces_table_metadata and theirs.sets_table_metadata)
        or (theirs.replaces_table_metadata and ours.sets_table_metadata)
    )
    if (
        _sets_same_config_key(ours, theirs)
        or (ours.sets_schema_metadata and theirs.sets_schema_metadata)
        or ours.metadata_fields & theirs.metadata_fields
        or table
    ):
        return Verdict.INCOMPATIBLE
    return Verdict.COMPATIBLE


def merge_undoes_metadata(ours: Footprint, theirs: Footprint) -> Verdict:
    """A Merge and an UpdateConfig that changes metadata of the schema are retryable: the Merge carries the whole
    schema, and would undo the change.

    Lance 14: conflict_resolver.rs, check_txn; 4.0.0 lets them pass.
    """
    return _retry_if(ours.changes_metadata or theirs.changes_metadata)


def restore_undoes_metadata(ours: Footprint, theirs: Footprint) -> Verdict:
    """A Restore and an UpdateConfig that changes metadata of the schema are incompatible: the restored schema would
    undo the change.

    pylance 14.0.2: observed in both orders; 4.0.0 lets them pass.
    """
    changed = ours.changes_metadata or theirs.changes_metadata
    return Verdict.INCOMPATIBLE if changed else Verdict.COMPATIBLE


def same_base(ours: Footprint, theirs: Footprint) -> Verdict:
    """An UpdateBases over an UpdateBases is incompatible if both add a base path with the same id, path or name.

    Lance: conflict_resolver.rs, check_add_bases_txn.
    """
    clash = any(
        (base.id != 0 and base.id == other.id)
        or base.path == other.path
        or (base.name is not None and base.name == other.name)
        for base in ours.bases
        for other in theirs.bases
    )
    return Verdict.INCOMPATIBLE if clash else Verdict.COMPATIBLE


def _may_cover(index: IndexFootprint, fragments: Collection[int]) -> bool:
    return index.fragments is None or covers_any(index.fragments, fragments)


def _covers_all(covered: FrozenBitMap, fragments: Collection[int]) -> bool:
    return all(one <= FRAGMENT_ID_MAX and one in covered for one in fragments)


def _retry_if(conflict: bool) -> Verdict:
    return Verdict.RETRYABLE if conflict else Verdict.COMPATIBLE


def _sets_same_config_key(ours: Footprint, theirs: Footprint) -> bool:
    # Lance: transaction.rs, upsert_key_conflict: two deletions of one key are not a conflict.
    return bool(
        ours.config_upserts & (theirs.config_upserts | theirs.config_deletes)
        or theirs.config_upserts & ours.config_deletes
    )


def _is_followed(index: IndexFootprint, theirs: Footprint) -> bool:
    return theirs.reuse_version is not None and index.dataset_version < theirs.reuse_version and index.follows_reuse


def _names(indices: Iterable[IndexFootprint]) -> frozenset[str]:
    return frozenset(index.name for index in indices)


def _extends_what_is_removed(one: Footprint, other: Footprint) -> bool:
    """Whether `one` adds a segment to an index, removing none of its name, that `other` removed."""
    extended = one.creates - _names(one.removed_indices)
    return bool(extended & _names(other.removed_indices))


def _replaces_what_is_removed(ours: Footprint, theirs: Footprint) -> bool:
    """Whether both removed the same index and one of them put another under its name."""
    theirs_removed = {index.uuid: index.name for index in theirs.removed_indices}
    created = ours.creates | theirs.creates
    return any(
        index.uuid in theirs_removed and (index.name in created or theirs_removed[index.uuid] in created)
        for index in ours.removed_indices
    )
