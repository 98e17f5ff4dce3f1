"""DataReplacement: new data files for some columns of some fragments."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from committerd.errors import InvalidRequest
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.operation import Operation, ScalesWith, StagedFiles
from committerd.lance.versions.columns import NO_COLUMN
from committerd.lance.versions.draft import Draft, finish
from committerd.lance.versions.fragments import TOMBSTONE
from committerd.lance.versions.indices import without_updated_fields
from committerd.lance.versions.lineage import stamp_changed_rows
from committerd.lance.versions.schema import with_parents
from committerd_common.messages import DataFile, DataFragment, Field, Manifest, Transaction


def _staged_files(transaction: Transaction) -> StagedFiles:
    return StagedFiles((), [group.new_file for group in transaction.data_replacement.replacements])


def _named_fragments(transaction: Transaction) -> list[int]:
    return [one.fragment_id for one in transaction.data_replacement.replacements]


def _excerpt(transaction: Transaction, file: ManifestFile) -> Manifest:
    return file.part(_named_fragments(transaction))


def _validate_on(transaction: Transaction, latest: Manifest) -> None:
    fields = {tuple(group.new_file.fields) for group in transaction.data_replacement.replacements}
    if len(fields) > 1:
        raise InvalidRequest(
            f"DataReplacement replaces fields {sorted(fields)}; all its files must replace the same fields",
            code="replaced_fields",
        )


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    replaced: dict[int, frozenset[int]] = {}
    for group in transaction.data_replacement.replacements:
        fields = frozenset(group.new_file.fields)
        replaced[group.fragment_id] = replaced.get(group.fragment_id, frozenset()) | fields
    return Footprint(kind=Kind.DATA_REPLACEMENT, fragments=frozenset(replaced), replaced=replaced)


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, DataReplacement.

    Readers then read the replaced fields from the new file, whichever files of the fragment had them (Lance 14; in
    4.0.0 the fields must be all those of one file, or in none).
    """
    replaced = {group.fragment_id: group.new_file for group in transaction.data_replacement.replacements}
    fields = frozenset(one for file in replaced.values() for one in file.fields if one >= 0)
    draft.open(replaced)
    if missing := draft.missing(replaced):
        raise InvalidRequest(
            f"DataReplacement replaces data of fragments {missing}, which version {draft.version - 1} does not have",
            code="unknown_fragment",
        )
    for fragment in draft.manifest.fragments:
        if fragment.id in replaced:
            _replace_data(fragment, replaced[fragment.id], draft.manifest.fields)
            if draft.has_stable_row_ids and not draft.by_old_lance:
                stamp_changed_rows([fragment], draft.version)
    draft.indices = without_updated_fields(draft.indices, replaced.keys(), fields, draft.manifest.fields)
    finish(draft, replaced.keys())


def _replace_data(fragment: DataFragment, new_file: DataFile, schema: Iterable[Field]) -> None:
    """Change the fragment, in place, so that the fields of the new file are read from it.

    A file may list the field of a struct or list beside the fields in it, or these alone (Lance 14: fragment.rs,
    DataFile::schema).
    """
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
    if fields & held and not fields <= with_parents(held, schema):
        raise InvalidRequest(
            f"DataReplacement of fragment {fragment.id}: of fields {sorted(fields)} the fragment has data for "
            f"{sorted(fields & held)} only; replace existing and new fields by files of their own",
            code="partial_replacement",
        )
    above = with_parents(fields, schema)
    for file in fragment.files:
        file.fields[:] = [
            # A field without a column of its own goes too, so that a file without any data left is dropped.
            TOMBSTONE if one in fields or (column == NO_COLUMN and one in above) else one
            for one, column in zip_longest(file.fields, file.column_indices)
            if one is not None
        ]
    fragment.files.append(new_file)


DATA_REPLACEMENT = Operation(
    kind=Kind.DATA_REPLACEMENT,
    scales_with=ScalesWith.UNBOUNDED,
    staged_files=_staged_files,
    named_fragments=_named_fragments,
    validate_on=_validate_on,
    excerpt=_excerpt,
    footprint=_footprint,
    build=_build,
)
