"""Overwrite: new rows and a new schema in place of a table's content, or the first version of a table."""

from __future__ import annotations

from collections.abc import Sequence

from committerd.errors import InvalidRequest
from committerd.lance.checks.texts import Entries
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.operations.deletions import require_no_deletions
from committerd.lance.operations.operation import AppliesTo, Input, Operation, ReadVersion, ScalesWith, StagedFiles
from committerd.lance.operations.permissions import Permissions
from committerd.lance.versions.bases import base_names, require_allowed_bases
from committerd.lance.versions.draft import Draft, finish
from committerd.lance.versions.fragments import file_version, files_of
from committerd.lance.versions.schema import require_readable
from committerd_common.messages import BasePath, Field, Transaction


def _staged_files(transaction: Transaction) -> StagedFiles:
    fragments = transaction.overwrite.fragments
    return StagedFiles(fragments, files_of(fragments))


def _initial_bases(transaction: Transaction) -> Sequence[BasePath]:
    return transaction.overwrite.initial_bases


def _entries(transaction: Transaction) -> list[Entries]:
    overwrite = transaction.overwrite
    return [
        Entries("config_upsert_values", overwrite.config_upsert_values.items()),
        Entries("schema_metadata", overwrite.schema_metadata.items(), may_be_reserved=True),
    ]


def _names(transaction: Transaction) -> list[tuple[str, str]]:
    return base_names(transaction.overwrite.initial_bases)


def _new_schema(transaction: Transaction) -> Sequence[Field]:
    return transaction.overwrite.schema


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    require_allowed_bases("Overwrite.initial_bases", transaction.overwrite.initial_bases, allowed.bases)
    require_readable(transaction.overwrite.schema)
    require_no_deletions(transaction.overwrite.fragments)


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    return Footprint(kind=Kind.OVERWRITE, config_upserts=frozenset(transaction.overwrite.config_upsert_values))


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, Overwrite. The description of the table stays, except for its schema.

    Fragment ids continue (pylance 14.0.2), and the data format becomes that of the new files.
    """
    overwrite, manifest = transaction.overwrite, draft.manifest
    if overwrite.initial_bases and draft.current is not None:
        raise InvalidRequest(
            "initial_bases are for a table that does not exist yet; add bases with UpdateBases", code="initial_bases"
        )
    manifest.base_paths.extend(overwrite.initial_bases)
    versions = {file_version(file) for file in files_of(overwrite.fragments)}
    if len(versions) == 1:
        manifest.data_format.version = versions.pop() or ""
    draft.drop_fragments()
    draft.set_schema(overwrite.schema)
    draft.set_schema_metadata(overwrite.schema_metadata)
    manifest.config.update(overwrite.config_upsert_values)
    draft.indices = []
    draft.touched = None
    draft.add_new_rows(overwrite.fragments, chosen=False)
    finish(draft)


OVERWRITE = Operation(
    kind=Kind.OVERWRITE,
    target=AppliesTo.ANY,
    read_version=ReadVersion.OPTIONAL,
    scales_with=ScalesWith.UNBOUNDED,
    inputs=frozenset({Input.SCHEMA_METADATA}),
    staged_files=_staged_files,
    new_schema=_new_schema,
    initial_bases=_initial_bases,
    entries=_entries,
    names=_names,
    keeps_data_format=False,
    validate=_validate,
    footprint=_footprint,
    build=_build,
)
