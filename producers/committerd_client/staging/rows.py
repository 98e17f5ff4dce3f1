"""Adds rows from files that are already written: append to a table, create a table, overwrite a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from committerd_client.arguments import texts
from committerd_client.headers import Staged
from committerd_client.reexecution import Reexecution
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import (
    default_storage_version,
    fragment,
    lance_schema,
    storage_version,
)
from committerd_client.staging.keys import name_keys
from committerd_client.staging.transactions import new_transaction, read_table
from committerd_client.table_location import require_files
from committerd_common.messages import DataFragment, Field, Transaction
from committerd_common.uris import local_folder

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from lance.schema import LanceSchema


@overload
def append(
    fragments: Iterable[FragmentMetadata],
    *,
    dataset: lance.LanceDataset,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    keys: Transaction.KeyExistenceFilter | None = None,
) -> Staged: ...


@overload
def append(
    fragments: Iterable[FragmentMetadata],
    *,
    read_version: int = 0,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    keys: Transaction.KeyExistenceFilter | None = None,
) -> Transaction: ...


@takes_branches
def append(
    fragments: Iterable[FragmentMetadata],
    *,
    dataset: lance.LanceDataset | None = None,
    read_version: int = 0,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    keys: Transaction.KeyExistenceFilter | None = None,
) -> Staged | Transaction:
    """Append the rows of fragments that `lance.fragment.write_fragments` returned.

        dataset = lance.dataset(uri)
        fragments = write_fragments(rows, dataset, mode="append")
        await client.commit(staging.append(fragments, dataset=dataset))

    `dataset`: the argument of `write_fragments`; from it the committer knows the schema of the files. An Overwrite or a
    Restore since that version conflicts with the Append, and so does a table that was recreated under the same name.
    `read_version`: the dataset's version alone, if the dataset is not at hand. Without either, the rows go to the
    version that is the latest when the committer reaches the record. That is safe only if nobody ever overwrites the
    table: an Overwrite may give the field ids to columns of other types, and then nobody can read the rows.

    `uuid`: default a new one; keep it if you stage the same work again, at whatever version, so that it is committed
    once. `properties`: stored with the version; `__lance_commit_message` is the commit message. `keys`: the keys of all
    the rows (`keys_of`), so that a concurrent upsert of other keys passes the Append. Without them an upsert that was
    planned before it is executed again. The version stores them: about 13 bytes for each key. A wrong set of keys lets
    an upsert insert a key twice.

    Raises `TypeError` for rows in place of fragments. Raises `StagingError` if there are no fragments
    (`nothing_to_stage`); for fragments with fields that the dataset does not have, or without columns that it requires
    (`schema_differs`); and if the dataset is in a local folder that lacks their files (`files_elsewhere`).
    """
    if keys is not None and not isinstance(keys, Transaction.KeyExistenceFilter):
        raise TypeError(f"keys takes what staging.keys_of(dataset, 'id', rows) returned, not {keys!r}")
    if not isinstance(read_version, int) or read_version < 0:
        raise TypeError(f"read_version takes the number of a version, not {read_version!r}")
    if dataset is not None and read_version:
        raise TypeError("give append() either dataset= or read_version=: the dataset is open at a version")
    table = None if dataset is None else read_table(dataset)
    transaction = new_transaction(table.version if table else read_version, uuid=uuid, properties=properties)
    transaction.append.fragments.extend(_messages(fragments, "append"))
    name_keys(transaction, keys)
    if not transaction.append.fragments:
        raise StagingError(
            "there are no fragments to append: write_fragments() returns none if there are no rows",
            code="nothing_to_stage",
        )
    if dataset is None or table is None:
        return transaction
    _require_schema(
        table.manifest.fields,
        transaction.append.fragments,
        of=f"version {table.version} of the table",
        hint="Give append() the dataset that write_fragments() was given, or write the data again",
    )
    _require_files(dataset.uri, transaction.append.fragments)
    return table.staged(transaction)


def _messages(fragments: Iterable[FragmentMetadata], helper: str) -> list[DataFragment]:
    """The messages of fragments. Raises `TypeError` for anything else."""
    single = hasattr(fragments, "__arrow_c_stream__") or hasattr(fragments, "files") or isinstance(fragments, str)
    items: list[Any] = [fragments] if single or not isinstance(fragments, Iterable) else list(fragments)
    for one in items:
        if not (hasattr(one, "files") and hasattr(one, "physical_rows")):
            kind = type(one).__name__
            hint = {"LanceFragment": "these fragments belong to a table already, and new fragments are needed"}.get(
                kind, f"to write rows and commit them, call client.{helper}(rows)"
            )
            raise TypeError(
                f"staging.{helper} takes the list of fragments that lance.fragment.write_fragments() returned, not "
                f"{'None' if one is None else kind}: {hint}"
            )
    return [fragment(one) for one in items]


def _require_files(uri: str, fragments: Iterable[DataFragment]) -> None:
    folder = local_folder(uri)
    if folder is not None:
        require_files(folder, fragments)


def _require_schema(fields: Iterable[Field], fragments: Iterable[DataFragment], *, of: str, hint: str) -> None:
    """Raise `StagingError` if the files of new fragments can't have this schema, which is the schema `of` something."""
    every = list(fields)
    known = {one.id for one in every}
    parents = {one.parent_id for one in every}
    required = {one.id: one.name for one in every if one.parent_id == -1 and not one.nullable and one.id not in parents}
    for one in fragments:
        has = {number for file in one.files for number in file.fields}
        unknown = sorted(has - known)
        lacking = sorted(required[number] for number in required.keys() - has)
        if unknown or lacking:
            what = f"has fields {unknown[:10]}, which" if unknown else f"lacks the columns {lacking[:10]}, which"
            does = "does not have" if unknown else "requires"
            raise StagingError(
                f"data file {one.files[0].path} {what} {of} {does}: it was written for another schema. {hint}",
                code="schema_differs",
            )


def create(
    fragments: Iterable[FragmentMetadata],
    schema: pa.Schema | LanceSchema,
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    enable_stable_row_ids: bool | None = None,
    enable_v2_manifest_paths: bool | None = None,
    data_storage_version: str | None = None,
) -> Staged:
    """Create the table, with the rows of fragments that `write_fragments(mode="create")` returned.

    It never changes an existing table. `schema`: the schema of the written data; its fields get the ids that pylance
    gave them in the files. `config`: settings of the table. The other arguments are as in `lance.write_dataset`; for
    None the committer takes pylance's defaults, and without fragments the storage version of the installed pylance.
    """
    transaction = new_transaction(0, uuid=uuid, properties=properties)
    version = data_storage_version
    _replace_rows(transaction, fragments, schema, helper="create", config=config, data_storage_version=version)
    if not transaction.overwrite.fragments and version is None:
        version = default_storage_version()
    options = {
        "enable_stable_row_ids": enable_stable_row_ids,
        "enable_v2_manifest_paths": enable_v2_manifest_paths,
        "data_storage_version": version,
    }
    return Staged(
        transaction=transaction,
        create_only=True,
        create_options={name: value for name, value in options.items() if value is not None},
    )


def append_if_exists(staged: Staged, open_table: Callable[[], lance.LanceDataset]) -> Callable[[Reexecution], Staged]:
    """For `reexecute`: if a `create` is refused because the table exists, append its rows to that table.

        staged = staging.create(fragments, schema)
        await client.commit(staged, reexecute=staging.append_if_exists(staged, lambda: lance.dataset(uri)))

    The Append is planned against the latest version, and again against a later one if it is refused. The table must
    have the fields of the create, with the same ids, as any two creates of one schema have. Otherwise it raises
    `StagingError` with code `schema_differs`, and the data must be written again, for that table.
    """
    overwrite = staged.transaction.overwrite

    def reexecute(_refused: Reexecution) -> Staged:
        table = read_table(open_table())
        ours, theirs = comparable(overwrite.schema), comparable(table.manifest.fields)
        if ours != theirs:
            fields = sorted({name for _, name, *_ in {*ours} ^ {*theirs}})
            raise StagingError(
                f"the table exists by now (version {table.version}), with another schema than the data was written "
                f"for: {', '.join(fields)}. Write the data again with write_fragments(data, dataset) and append that",
                code="schema_differs",
            )
        transaction = table.transaction(None, staged.transaction.transaction_properties)
        transaction.append.fragments.extend(overwrite.fragments)
        return table.staged(transaction)

    return reexecute


@takes_branches
def overwrite(
    fragments: Iterable[FragmentMetadata],
    schema: pa.Schema | LanceSchema,
    *,
    dataset: lance.LanceDataset | None = None,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    data_storage_version: str | None = None,
) -> Staged:
    """Replace all rows and the schema with those that `write_fragments(mode="overwrite")` returned; drops all indices.

    `dataset`: open at the version to replace; another Overwrite since then conflicts with this one. None: replace the
    version that is the latest when the committer reaches the record, or create the table if it does not exist.
    `schema`, `config`: as in `create`.
    """
    table = None if dataset is None else read_table(dataset)
    transaction = new_transaction(0 if table is None else table.version, uuid=uuid, properties=properties)
    version = data_storage_version
    _replace_rows(transaction, fragments, schema, helper="overwrite", config=config, data_storage_version=version)
    if table is None:
        return Staged(transaction=transaction)
    if table.uri is not None:
        _require_files(table.uri, transaction.overwrite.fragments)
    return table.staged(transaction)


def _replace_rows(
    transaction: Transaction,
    fragments: Iterable[FragmentMetadata],
    schema: pa.Schema | LanceSchema,
    *,
    helper: str,
    config: Mapping[str, str] | None,
    data_storage_version: str | None,
) -> None:
    operation = transaction.overwrite
    operation.SetInParent()
    operation.fragments.extend(_messages(fragments, helper))
    version = data_storage_version or storage_version(operation.fragments)
    fields, metadata = lance_schema(schema, data_storage_version=version)
    _require_schema(
        fields, operation.fragments, of="the schema", hint=f"Give {helper}() the schema of the rows that were written"
    )
    operation.schema.extend(fields)
    for key, value in metadata.items():
        operation.schema_metadata[key] = value
    operation.config_upsert_values.update(texts(config, "config"))


def comparable(fields: Iterable[Field]) -> list[tuple[int, str, int, str, bool]]:
    """The parts of the fields that must be equal in the files and in the table."""
    return [(one.id, one.name, one.parent_id, one.logical_type, one.nullable) for one in fields]
