"""Merge: every fragment of the table with added columns, and a new schema."""

from __future__ import annotations

from collections.abc import Container, Sequence

from committerd.errors import InvalidRequest
from committerd.lance.checks.texts import Entries
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import has_stable_row_ids
from committerd.lance.format.wording import listed
from committerd.lance.operations.deletions import require_no_deletions
from committerd.lance.operations.operation import NO_FILES, Input, Operation, ScalesWith, StagedFiles
from committerd.lance.operations.permissions import Permissions
from committerd.lance.operations.schema_change import compared_with, footprint
from committerd.lance.versions.draft import Draft, finish
from committerd.lance.versions.fragments import (
    fields_in_other_files,
    file_identity,
    files_of,
    set_fragments,
    with_id,
)
from committerd.lance.versions.indices import without_updated_fields
from committerd.lance.versions.lineage import require_unchanged_row_ids, stamp_changed_rows, stamp_new_rows
from committerd.lance.versions.merged_schema import require_merged_schema
from committerd.lance.versions.schema import require_readable
from committerd_common.messages import DataFragment, Field, Manifest, Transaction


def _staged_files(transaction: Transaction) -> StagedFiles:
    fragments = transaction.merge.fragments
    return StagedFiles(fragments, files_of(fragments))


def _new_files(transaction: Transaction) -> StagedFiles:
    return NO_FILES


def _named_fragments(transaction: Transaction) -> list[int]:
    ids = [one.id for one in transaction.merge.fragments]
    return [*filter(None, ids), *([0] if 0 in ids else [])]  # any number of new fragments may have id 0


def _entries(transaction: Transaction) -> list[Entries]:
    return [Entries("schema_metadata", transaction.merge.schema_metadata.items(), may_be_reserved=True)]


def _new_schema(transaction: Transaction) -> Sequence[Field]:
    return transaction.merge.schema


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    require_readable(transaction.merge.schema)


def _validate_on(transaction: Transaction, latest: Manifest) -> None:
    """Lance 14: validate.rs, merge_fragments_valid and merge_schema_valid; manifest_build.rs, Merge."""
    merge = transaction.merge
    known = {fragment.id: fragment for fragment in latest.fragments}
    existing, added = _divided(merge.fragments, known)
    if missing := sorted(known.keys() - existing.keys()):
        raise InvalidRequest(
            f"Merge operation is missing original fragments: {listed(missing)}", code="merge_fragments"
        )
    stable = has_stable_row_ids(latest)
    for number, fragment in existing.items():
        if fragment.physical_rows != known[number].physical_rows:
            raise InvalidRequest(
                f"Merge operation changed row count for fragment {number}: {known[number].physical_rows} to "
                f"{fragment.physical_rows}",
                code="merge_fragments",
            )
        if stable and not fragment.HasField("inline_row_ids"):
            raise InvalidRequest(
                f"fragment {number} has no row ids, but the rows of this table keep their ids", code="row_ids"
            )
    require_no_deletions(added)
    for fragment in added:
        if fragment.HasField("inline_row_ids"):
            raise InvalidRequest(
                f"fragment {fragment.id} is new and comes with row ids; leave them out, and the commit assigns them",
                code="row_ids",
            )
    require_merged_schema(merge.schema, existing, merge.fragments, latest)


def _divided(
    fragments: Sequence[DataFragment], known: Container[int]
) -> tuple[dict[int, DataFragment], list[DataFragment]]:
    """The fragments that the table has, by id, and the new ones, which come after them.

    Several new ones may have id 0, which means that the commit chooses their ids. Of fragments with an id of the table,
    the first is the one that it has. Raises `InvalidRequest` (`merge_fragments`) for another order.
    """
    existing: dict[int, DataFragment] = {}
    added: list[DataFragment] = []
    for fragment in fragments:
        if fragment.id not in known or fragment.id in existing:
            added.append(fragment)
        elif added:
            raise InvalidRequest(
                f"Merge operation lists existing fragment {fragment.id} after a new fragment (id {added[0].id}); list "
                "new fragments last",
                code="merge_fragments",
            )
        else:
            existing[fragment.id] = fragment
    return existing, added


def _excerpt(transaction: Transaction, file: ManifestFile) -> Manifest:
    return file.manifest


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, Merge.

    If the data of a field is now in another file, an index on the field no longer covers that fragment, and its rows
    count as changed (Lance 9). 4.0.0 does neither. Without the first, queries miss rows, so committerd always does it.
    """
    merge, manifest = transaction.merge, draft.manifest
    draft.open_all()
    before = {fragment.id: fragment for fragment in manifest.fragments}
    existing, added = _divided(merge.fragments, before)
    moved: dict[int, frozenset[int]] = {}
    changed: set[int] = set()
    kept: list[DataFragment] = []
    for number, fragment in existing.items():
        known = before[number]
        if list(map(file_identity, known.files)) != list(map(file_identity, fragment.files)):
            changed.add(number)
        moved[number] = fields_in_other_files(known, fragment)
        kept.append(with_id(fragment, number))
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
    draft.set_schema(merge.schema)
    if merge.schema_metadata:
        draft.set_schema_metadata(merge.schema_metadata)
    for fragment_id, fields in moved.items():
        if fields:
            draft.indices = without_updated_fields(draft.indices, [fragment_id], fields, manifest.fields)
    draft.keep_useful_indices()
    finish(draft, changed)


MERGE = Operation(
    kind=Kind.MERGE,
    scales_with=ScalesWith.UNBOUNDED,
    inputs=frozenset({Input.READ_VERSION, Input.VERSION_BELOW}),
    staged_files=_staged_files,
    new_schema=_new_schema,
    new_files=_new_files,
    named_fragments=_named_fragments,
    entries=_entries,
    validate=_validate,
    validate_on=_validate_on,
    excerpt=_excerpt,
    footprint=footprint,
    footprint_of_ours=compared_with,
    footprint_of_theirs=compared_with,
    build=_build,
)
