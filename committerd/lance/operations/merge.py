"""Merge: every fragment of the table with added columns, and a new schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from committerd.errors import InvalidRequest
from committerd.lance.checks.texts import Entries
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.operation import NO_FILES, Input, Operation, ScalesWith, StagedFiles
from committerd.lance.operations.permissions import Permissions
from committerd.lance.operations.schema_change import footprint, with_nullability
from committerd.lance.versions.columns import changed_fields, field_type_changed
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
from committerd.lance.versions.schema import require_readable, with_relatives
from committerd_common.messages import DataFragment, Field, Manifest, Transaction


def _staged_files(transaction: Transaction) -> StagedFiles:
    fragments = transaction.merge.fragments
    return StagedFiles(fragments, files_of(fragments))


def _new_files(transaction: Transaction) -> StagedFiles:
    return NO_FILES


def _named_fragments(transaction: Transaction) -> list[int]:
    return [one.id for one in transaction.merge.fragments]


def _entries(transaction: Transaction) -> list[Entries]:
    return [Entries("schema_metadata", transaction.merge.schema_metadata.items(), may_be_reserved=True)]


def _new_schema(transaction: Transaction) -> Sequence[Field]:
    return transaction.merge.schema


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    require_readable(transaction.merge.schema)


def _validate_on(transaction: Transaction, latest: Manifest) -> None:
    """Lance: transaction.rs, merge_fragments_valid."""
    rows = {fragment.id: fragment.physical_rows for fragment in transaction.merge.fragments}
    if len(rows) < len(latest.fragments):
        raise InvalidRequest(
            f"Merge operation reduced fragment count from {len(latest.fragments)} to {len(rows)}",
            code="merge_fragments",
        )
    for fragment in latest.fragments:
        if fragment.id not in rows:
            raise InvalidRequest(
                f"Merge operation is missing original fragments: {fragment.id}", code="merge_fragments"
            )
        if rows[fragment.id] != fragment.physical_rows:
            raise InvalidRequest(
                f"Merge operation changed row count for fragment {fragment.id}: {fragment.physical_rows} to "
                f"{rows[fragment.id]}",
                code="merge_fragments",
            )
    _require_same_types(transaction.merge, latest)


def _require_same_types(merge: Transaction.Merge, latest: Manifest) -> None:
    """Check that a field whose type changes is read from new files only. Lance 14: validate.rs, merge_schema_valid."""
    known = {field.id: field for field in latest.fields}
    for field in changed_fields(latest.fields, merge.schema):
        of_field = with_relatives([field.id], latest.fields)
        had = {fragment.id: set(_files_with(fragment, of_field)) for fragment in latest.fragments}
        if any(not had.get(one.id, set()).isdisjoint(_files_with(one, of_field)) for one in merge.fragments):
            raise field_type_changed(known[field.id], field)


def _files_with(fragment: DataFragment, fields: frozenset[int]) -> Iterator[tuple[str, int | None]]:
    """Path and base of the data files that have one of these fields."""
    for file in fragment.files:
        if not fields.isdisjoint(file.fields):
            yield file.path, file.base_id if file.HasField("base_id") else None


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
    moved: dict[int, frozenset[int]] = {}
    changed: set[int] = set()
    kept: list[DataFragment] = []
    added: list[DataFragment] = []
    for fragment in merge.fragments:
        known = before.get(fragment.id)
        if known is None or fragment.id in moved:
            # A new fragment: its id is 0, which means none, or that of a fragment before it in the list.
            added.append(fragment)
            continue
        if list(map(file_identity, known.files)) != list(map(file_identity, fragment.files)):
            changed.add(fragment.id)
        moved[fragment.id] = fields_in_other_files(known, fragment)
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
    carries_row_ids=True,
    validate=_validate,
    validate_on=_validate_on,
    excerpt=_excerpt,
    footprint=footprint,
    footprint_of_ours=with_nullability,
    footprint_of_theirs=with_nullability,
    build=_build,
)
