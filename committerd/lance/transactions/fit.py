"""Checks whether the files of a transaction fit the table.

Lance checks some of this against the version that the writer read, some after it has built the manifest, and some
never. committerd checks all of it against the latest version, before it writes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from committerd.errors import InvalidRequest
from committerd.lance.format.data_file import FileFacts
from committerd.lance.format.feature_flags import CARRIED
from committerd.lance.format.support import has_stable_row_ids
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.operations.operation import Operation, StagedFiles
from committerd.lance.transactions.transaction import operation_of
from committerd.lance.versions.bases import require_known_bases
from committerd.lance.versions.columns import (
    BLOB_V2_FORMATS,
    DescribedFile,
    old_blobs,
    require_as_described,
    require_columns,
)
from committerd.lance.versions.draft import CreateOptions
from committerd.lance.versions.fragments import file_version
from committerd_common.messages import DataFile, DataFragment, Field, Manifest, Transaction

_MIX = (
    ". The operator can allow the table to mix versions (setting commit.mixed_file_versions): from then on no Lance "
    "below 12 can read the table"
)


def schema_after(transaction: Transaction, latest: TableSchema) -> TableSchema:
    """The schema of the version that the transaction makes; `latest` is that of the latest version."""
    new = operation_of(transaction).new_schema(transaction)
    return TableSchema(new) if new else latest


def require_fits(
    transaction: Transaction,
    files: StagedFiles,
    latest: Manifest | None,
    *,
    schema: TableSchema,
    create: CreateOptions,
    may_mix: bool,
) -> None:
    """Check that the transaction's new `files` fit the version `latest`.

    `latest` is an `excerpt` of the latest version; None = there is no table. `schema`: as `schema_after` returns it.
    `may_mix`: whether the table may get its first files of another storage version than its own. Raises
    `InvalidRequest`: `duplicate_base`, `unknown_base`, `file_version`, `row_ids`, `column_indices`, `field_type`,
    `merge_fragments`, `row_count_changed`, `replaced_fields`, `unknown_field`, `schema`, `deletion_file`.
    """
    operation = operation_of(transaction)
    _require_bases(operation, transaction, files, latest)
    mixes = latest is not None and (may_mix or _is_mixed(latest))
    _require_file_versions(operation, latest, create, {file_version(file) for file in files.data_files}, mixes=mixes)
    _require_row_ids(operation, files.fragments, latest, create)
    if files.data_files:
        if latest is not None and mixes and operation.keeps_data_format:
            _require_same_blobs(files.data_files, schema.fields, latest)
        require_columns(files.data_files, schema)
    if latest is not None:
        operation.validate_on(transaction, latest)


def require_files_as_described(
    transaction: Transaction,
    files: StagedFiles,
    latest: Manifest | None,
    facts: Mapping[str, FileFacts],
    *,
    schema: TableSchema,
) -> None:
    """Check that data files are as the transaction describes them.

    `latest`, `schema`: as in `require_fits`. `facts`: what data files say of themselves, by path; a file without facts
    is not checked. Raises as `require_as_described` of `lance.versions.columns`.
    """
    rows: dict[str, int | None] = {
        file.path: fragment.physical_rows for fragment in files.fragments for file in fragment.files
    }
    if transaction.WhichOneof("operation") == "data_replacement":
        there = {fragment.id: fragment.physical_rows for fragment in latest.fragments} if latest is not None else {}
        for one in transaction.data_replacement.replacements:
            rows[one.new_file.path] = there.get(one.fragment_id)
    described = [
        DescribedFile(file, rows.get(file.path), facts[file.path])
        for file in files.data_files
        if file.path in facts and not file.HasField("base_id")
    ]
    require_as_described(described, schema)


def _require_bases(operation: Operation, transaction: Transaction, files: StagedFiles, latest: Manifest | None) -> None:
    initial = [base.id for base in operation.initial_bases(transaction)]
    if len(set(initial)) != len(initial):
        raise InvalidRequest(f"initial_bases give the same id twice: {initial}", code="duplicate_base")
    used = {file.base_id for file in files.data_files if file.HasField("base_id")}
    for fragment in files.fragments:
        if fragment.HasField("deletion_file") and fragment.deletion_file.HasField("base_id"):
            used.add(fragment.deletion_file.base_id)
    if used:
        known = {base.id for base in latest.base_paths} if latest is not None else set()
        require_known_bases(used, known.union(initial))


def _require_file_versions(
    operation: Operation, latest: Manifest | None, create: CreateOptions, versions: set[str | None], *, mixes: bool
) -> None:
    if None in versions or "0.1" in versions:
        raise InvalidRequest(
            "a data file has a file format that committerd does not write: versions 2.0 to 2.3 are known",
            code="file_version",
        )
    if not versions or mixes:
        return
    advice = _MIX if latest is not None else ""
    if len(versions) > 1:
        raise InvalidRequest(
            "All data files must have the same version. Detected both "
            + " and ".join(sorted(str(version) for version in versions))
            + advice,
            code="file_version",
        )
    wanted = create.data_storage_version if latest is None else latest.data_format.version
    if not operation.keeps_data_format and latest is not None:
        return
    found = versions.pop()
    if wanted is not None and found != wanted:
        raise InvalidRequest(
            f"The operation added files with version {found}. However, the data storage version is {wanted}. Write "
            f"with data_storage_version={wanted!r}{advice}",
            code="file_version",
        )


def _is_mixed(latest: Manifest) -> bool:
    """Whether the table has files of several 2.x versions. Lance 14 writes such a table, which then stays mixed; 4.x
    can't read it.
    """
    return bool(latest.reader_feature_flags & CARRIED)


def _require_same_blobs(files: Iterable[DataFile], schema: Sequence[Field], latest: Manifest) -> None:
    """Check that no file brings blobs of format 2.2 to a column of older blobs, in a table that mixes formats.

    Lance 14 then gives the column another type and new fields, in the same commit; committerd does not.
    """
    default, old = latest.data_format.version, old_blobs(schema)
    for file in files:
        version = file_version(file)
        if version != default and version in BLOB_V2_FORMATS and not old.isdisjoint(file.fields):
            raise InvalidRequest(
                f"data file {file.path!r} has version {version} and blobs, and the table's blob columns are those of "
                f"files before version {min(BLOB_V2_FORMATS)}. Write with data_storage_version={default!r}",
                code="file_version",
            )


def _require_row_ids(
    operation: Operation, fragments: Iterable[DataFragment], latest: Manifest | None, create: CreateOptions
) -> None:
    stable = create.enable_stable_row_ids if latest is None else has_stable_row_ids(latest)
    for fragment in fragments:
        given = fragment.HasField("inline_row_ids")
        if given and not stable:
            raise InvalidRequest(
                f"fragment {fragment.id} has row ids, but rows of this table have no stable ids",
                code="row_ids",
            )
        if operation.carries_row_ids and stable and not given:
            raise InvalidRequest(
                f"fragment {fragment.id} has no row ids, but the rows of this table keep their ids",
                code="row_ids",
            )
