"""Rewrite: the same rows in other fragments, usually by a compaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyroaring import BitMap, BitMap64

from committerd.errors import InvalidRequest
from committerd.lance.checks.file_paths import require_index_path
from committerd.lance.checks.texts import require_property
from committerd.lance.checks.uuids import is_uuid
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.fragment_reuse import ExternalContent, reuse_content
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import has_stable_row_ids
from committerd.lance.operations.changed_fragments import with_files_read
from committerd.lance.operations.deletions import require_known_type
from committerd.lance.operations.following import carry_deletions
from committerd.lance.operations.operation import Input, Operation, ScalesWith, StagedFiles, StagedIndexFile
from committerd.lance.operations.permissions import Permissions
from committerd.lance.operations.rebase import copied
from committerd.lance.versions.columns import fields_with_columns
from committerd.lance.versions.draft import Draft, finish
from committerd.lance.versions.fragments import file_identity, files_of, live_rows, set_fragments, with_id
from committerd.lance.versions.indices import (
    coverage,
    holds_addresses,
    require_distinct_indices,
    rewritten_coverage,
    with_coverage,
)
from committerd.lance.versions.lineage import require_rows_of
from committerd.lance.versions.moves import moved_groups
from committerd_common.index_details import FRAGMENT_REUSE_INDEX, covered_fragments, covers_any, is_system_index
from committerd_common.messages import DataFragment, IndexMetadata, Manifest, Transaction
from committerd_common.own_properties import EMPTIED, IN_ORDER, ROWS


def _normalised(transaction: Transaction) -> Transaction:
    """Lance: transaction.rs, conversion of Rewrite: the two deprecated lists become one group."""
    rewrite = transaction.rewrite
    if rewrite.groups or not (rewrite.old_fragments or rewrite.new_fragments):
        return transaction
    changed = copied(transaction)
    rewrite = changed.rewrite
    group = rewrite.groups.add()
    group.old_fragments.extend(rewrite.old_fragments)
    group.new_fragments.extend(rewrite.new_fragments)
    del rewrite.old_fragments[:]
    del rewrite.new_fragments[:]
    return changed


def _staged_files(transaction: Transaction) -> StagedFiles:
    fragments = [fragment for group in transaction.rewrite.groups for fragment in group.new_fragments]
    return StagedFiles(fragments, files_of(fragments))


def _index_files(transaction: Transaction) -> list[StagedIndexFile]:
    return [
        StagedIndexFile(one.new_id.uuid, file.path, file.size_bytes, None)
        for one in transaction.rewrite.rewritten_indices
        for file in one.new_index_files
    ]


def _unlisted_indices(transaction: Transaction) -> list[bytes]:
    return [one.new_id.uuid for one in transaction.rewrite.rewritten_indices if not one.new_index_files]


def _named_fragments(transaction: Transaction) -> list[int]:
    return [one.id for group in transaction.rewrite.groups for one in group.old_fragments]


def _excerpt(transaction: Transaction, file: ManifestFile) -> Manifest:
    return file.part(_named_fragments(transaction))


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    rewrite = transaction.rewrite
    require_property(transaction, ROWS, {IN_ORDER})
    for group in rewrite.groups:
        for fragment in group.old_fragments:
            require_known_type(fragment)
    require_distinct_indices("rewritten_indices", [one.old_id.uuid for one in rewrite.rewritten_indices])
    for one in rewrite.rewritten_indices:
        if not is_uuid(one.old_id.uuid) or not is_uuid(one.new_id.uuid) or not one.HasField("new_index_details"):
            # Lance 4.0.0 can't open a version whose transaction lacks one of them.
            raise InvalidRequest(
                "each of rewritten_indices needs old_id, new_id (16 bytes each) and new_index_details",
                code="rewritten_index_incomplete",
            )
        for file in one.new_index_files:
            require_index_path(file.path, key_bytes_max)


def _validate_on(transaction: Transaction, latest: Manifest) -> None:
    """Check that new fragments have all fields that their old ones have.

    Rows of a field that was left out would be null, and an index on it would go on giving their values.
    """
    columns = fields_with_columns(latest.fields)
    there = {one.id: one for one in latest.fragments}
    for group in transaction.rewrite.groups:
        old = [there[one.id] for one in group.old_fragments if one.id in there]
        had = columns.intersection(field for file in files_of(old) for field in file.fields)
        for fragment in group.new_fragments:
            if left_out := sorted(had.difference(field for file in fragment.files for field in file.fields)):
                raise InvalidRequest(
                    f"it rewrites fragments {[one.id for one in old]} into a fragment without data of fields "
                    f"{left_out}, which the old fragments have. Rewrite all columns",
                    code="rewritten_fields",
                )


def _validate_as_read(transaction: Transaction, read: Manifest) -> None:
    """Check that the old fragments of groups whose rows can be followed are those of the read version.

    A wrong number of rows, list of row ids or deletion file would lead later Deletes to other rows.
    """
    then = {one.id: one for one in read.fragments}
    groups = zip(moved_groups(transaction, staged=False), transaction.rewrite.groups, strict=True)
    for one in (old for moved, group in groups if not moved.fault for old in group.old_fragments):
        if one.id not in then or not _has_same_rows(then[one.id], one):
            raise InvalidRequest(
                f"it describes fragment {one.id} differently from version {read.version}, so the rows that others "
                "delete there can't be followed. Name the fragments as they are at read_version",
                code="old_fragment_differs",
            )


def _has_same_rows(read: DataFragment, named: DataFragment) -> bool:
    """Whether both have the same rows, with the same ids, the same deleted rows and the same files."""
    return (
        read.physical_rows == named.physical_rows
        and read.inline_row_ids == named.inline_row_ids
        and read.deletion_file == named.deletion_file
        and [file_identity(file) for file in read.files] == [file_identity(file) for file in named.files]
    )


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    groups = tuple(frozenset(old.id for old in group.old_fragments) for group in transaction.rewrite.groups)
    return Footprint(
        kind=Kind.REWRITE,
        groups=groups,
        fragments=frozenset().union(*groups),
        moves=moved_groups(transaction, staged=staged),
        rewritten_indices=frozenset(one.old_id.uuid for one in transaction.rewrite.rewritten_indices),
    )


def _footprint_of_ours(
    touched: Footprint, transaction: Transaction, read: Manifest, indices: Iterable[IndexMetadata]
) -> Footprint:
    """Lance: optimize.rs: a compaction rewrites every index that covers its fragments, unless an option defers it.

    Indices of stable row ids need no rewriting, and those that can't be rewritten stay as they are.
    """
    touched = with_files_read(touched, transaction, read, indices)
    if has_stable_row_ids(read):
        return touched
    rewritten = {one.old_id.uuid for one in transaction.rewrite.rewritten_indices}
    defers_indices = any(
        not is_system_index(index)
        and not holds_addresses(index)
        and not index.covering_fields
        and index.uuid.uuid not in rewritten
        and covers_any(covered_fragments(index, staged=False), touched.fragments)
        for index in indices
    )
    return replace(touched, defers_indices=defers_indices)


def _footprint_of_theirs(
    touched: Footprint, transaction: Transaction, before: Manifest | None, indices: Iterable[IndexMetadata]
) -> Footprint:
    reuse = _reuse_version(touched.fragments, indices)
    return replace(touched, reuse_version=reuse, defers_indices=reuse is not None)


def _reuse_version(old: frozenset[int], indices: Iterable[IndexMetadata]) -> int | None:
    """The `dataset_version` of the fragment reuse entry for a Rewrite of these fragments; None if there is no entry.

    pylance adds the entry to the manifest and never to the transaction, so it must come from the manifest.
    """
    for index in indices:
        if index.name != FRAGMENT_REUSE_INDEX or not old:
            continue
        content = reuse_content(index)
        if isinstance(content, ExternalContent):
            # The content is in a file, and this function can't read; the version of the index stands in for it.
            return index.dataset_version
        for entry in content.versions:
            described = {digest.id for group in entry.groups for digest in group.old_fragments}
            if old <= described:
                return entry.dataset_version
    return None


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, Rewrite. The new fragments contain their row ids and lineage.

    A new fragment whose rows were all deleted meanwhile is not added (`finish`), and no index covers it.
    """
    rewrite, manifest = transaction.rewrite, draft.manifest
    groups: list[tuple[list[int], list[int]]] = []
    made: list[DataFragment] = []
    existing = draft.fragment_ids()
    next_id = draft.next_fragment_id()
    emptied = _emptied(transaction)
    draft.open(fragment.id for group in rewrite.groups for fragment in group.old_fragments)
    for group in rewrite.groups:
        old = [fragment.id for fragment in group.old_fragments]
        if missing := [one for one in sorted({*old} - emptied) if one not in existing]:
            raise InvalidRequest(
                f"Rewrite replaces fragments {missing}, which version {manifest.version - 1} does not have",
                code="unknown_fragment",
            )
        new = []
        for fragment in group.new_fragments:
            # An id other than 0 was reserved before.
            fragment_id = fragment.id or next_id
            draft.reserve_ids(fragment_id)
            next_id = max(next_id, fragment_id + 1)
            made.append(with_id(fragment, fragment_id))
            if live_rows(fragment) > 0:
                new.append(fragment_id)
        groups.append((old, new))
    if draft.has_stable_row_ids:
        old_ids = {one for old, _ in groups for one in old}
        was = [one for one in manifest.fragments if one.id in old_ids]
        was += [one for group in rewrite.groups for one in group.old_fragments if one.id in emptied]
        require_rows_of(was, made)
    kept_ids = existing - BitMap64(one for old, _ in groups for one in old)
    for fragment in made:
        if fragment.id in kept_ids:
            raise InvalidRequest(
                f"Rewrite brings a fragment with id {fragment.id}, which another fragment has; reserve ids with "
                "ReserveFragments",
                code="fragment_id_taken",
            )
        kept_ids.add(fragment.id)
    kept = [one for one in manifest.fragments if one.id in kept_ids]
    set_fragments(manifest, [*kept, *made])
    draft.indices = _rewritten_indices(draft, rewrite, groups)
    finish(draft, {fragment.id for fragment in made})


def _emptied(transaction: Transaction) -> frozenset[int]:
    """The old fragments that are gone already, because others deleted all their rows (`following.carry_deletions`)."""
    listed = transaction.transaction_properties.get(EMPTIED, "")
    return frozenset(map(int, listed.split(","))) if listed else frozenset()


def _rewritten_indices(
    draft: Draft, rewrite: Transaction.Rewrite, groups: list[tuple[list[int], list[int]]]
) -> list[IndexMetadata]:
    rewritten = {one.old_id.uuid: one for one in rewrite.rewritten_indices}
    old = BitMap(one for group, _ in groups for one in group)
    indices = []
    for index in draft.indices:
        change = rewritten.get(index.uuid.uuid)
        covered = coverage(index)
        if change is not None:
            if covered is None:
                raise InvalidRequest(
                    f"Rewrite rewrites index {index.name!r}, which does not say what it covers", code="index_bitmap"
                )
            moved = with_coverage(index, rewritten_coverage(covered, groups, name=index.name))
            moved.uuid.CopyFrom(change.new_id)
            moved.ClearField("base_id")  # the new one is in the table's own folder, unlike the old one of a clone
            moved.ClearField("files")
            moved.files.extend(change.new_index_files)
            indices.append(moved)
        elif covered is None or is_system_index(index) or not draft.has_stable_row_ids:
            # The index stays as it is. Old fragments in its list no longer exist, and new ones count as not indexed.
            indices.append(index)
        elif holds_addresses(index):
            indices.append(with_coverage(index, covered - old))
        else:
            # Rows keep their ids, so the index finds them in the new fragments.
            indices.append(with_coverage(index, rewritten_coverage(covered, groups, name=index.name)))
    return indices


REWRITE = Operation(
    kind=Kind.REWRITE,
    scales_with=ScalesWith.UNBOUNDED,
    inputs=frozenset({Input.READ_VERSION}),
    normalised=_normalised,
    staged_files=_staged_files,
    index_files=_index_files,
    unlisted_indices=_unlisted_indices,
    named_fragments=_named_fragments,
    excerpt=_excerpt,
    carries_row_ids=True,
    own_properties=frozenset({ROWS}),
    validate=_validate,
    validate_on=_validate_on,
    validate_as_read=_validate_as_read,
    footprint=_footprint,
    footprint_of_ours=_footprint_of_ours,
    footprint_of_theirs=_footprint_of_theirs,
    follow=carry_deletions,
    build=_build,
)
