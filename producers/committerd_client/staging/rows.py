"""New rows in files that are written already: append to a table, create one, replace what one holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from committerd.format.messages import Field, Transaction
from committerd_client.headers import Staged
from committerd_client.reexecution import Reexecution
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import fragment, lance_schema, storage_version
from committerd_client.staging.transactions import new_transaction, read_table

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from lance.schema import LanceSchema


def append(
    fragments: Iterable[FragmentMetadata],
    *,
    read_version: int = 0,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Transaction:
    """Add the rows of what `lance.fragment.write_fragments` returned.

    `read_version`: 0 = the latest version, whatever it is when the committer gets to it; with a version, what
    contradicts an Append since then (an Overwrite, a Restore) refuses it. `uuid`: a fresh one unless given; keep it
    when you stage the same work again. `properties`: kept with the version; `__lance_commit_message` is the commit
    message.
    """
    transaction = new_transaction(read_version, uuid=uuid, properties=properties)
    transaction.append.SetInParent()
    transaction.append.fragments.extend(fragment(one) for one in fragments)
    return transaction


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
    """Make the table, with the rows of what `write_fragments(mode="create")` returned; one that exists is left alone.

    `schema`: that of the written data; its fields get the ids that pylance gave them in the files. `config`: settings
    of the table. The others are as in `lance.write_dataset`; None leaves them to the committer.
    """
    transaction = new_transaction(0, uuid=uuid, properties=properties)
    _replace_rows(transaction, fragments, schema, config=config, data_storage_version=data_storage_version)
    options = {
        "enable_stable_row_ids": enable_stable_row_ids,
        "enable_v2_manifest_paths": enable_v2_manifest_paths,
        "data_storage_version": data_storage_version,
    }
    return Staged(
        transaction=transaction,
        create_only=True,
        create_options={name: value for name, value in options.items() if value is not None},
    )


def append_if_exists(staged: Staged, open_table: Callable[[], lance.LanceDataset]) -> Callable[[Reexecution], Staged]:
    """For `reexecute`: where a `create` finds that the table exists by now, its rows are added to that one.

        staged = staging.create(fragments, schema)
        await client.commit(staged, reexecute=staging.append_if_exists(staged, lambda: lance.dataset(uri)))

    That Append is planned against the latest version, and again against a later one if it is refused. The table must
    have the fields of the create, ids included, which two creates of one schema have. Otherwise it
    raises `StagingError` with code `schema_differs`, and the data has to be written again, for that table.
    """
    overwrite = staged.transaction.overwrite

    def reexecute(_refused: Reexecution) -> Staged:
        table = read_table(open_table())
        ours, theirs = _comparable(overwrite.schema), _comparable(table.manifest.fields)
        if ours != theirs:
            told = sorted({name for _, name, *_ in {*ours} ^ {*theirs}})
            raise StagingError(
                f"the table exists by now (version {table.version}), with another schema than the data was written "
                f"for: {', '.join(told)}. Write the data again with write_fragments(data, dataset) and append that",
                code="schema_differs",
            )
        transaction = table.transaction(None, staged.transaction.transaction_properties)
        transaction.append.fragments.extend(overwrite.fragments)
        return table.staged(transaction)

    return reexecute


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
    """Replace all rows and the schema by what `write_fragments(mode="overwrite")` returned; indices go.

    `dataset`: the version that is replaced; another Overwrite since then refuses this one. None: whatever there is when
    the committer gets to it; a table that does not exist is made. `schema`, `config`: as in `create`.
    """
    table = None if dataset is None else read_table(dataset)
    transaction = new_transaction(0 if table is None else table.version, uuid=uuid, properties=properties)
    _replace_rows(transaction, fragments, schema, config=config, data_storage_version=data_storage_version)
    return Staged(transaction=transaction, read_uuid=None if table is None else table.read_uuid)


def _replace_rows(
    transaction: Transaction,
    fragments: Iterable[FragmentMetadata],
    schema: pa.Schema | LanceSchema,
    *,
    config: Mapping[str, str] | None,
    data_storage_version: str | None,
) -> None:
    operation = transaction.overwrite
    operation.SetInParent()
    operation.fragments.extend(fragment(one) for one in fragments)
    version = data_storage_version or storage_version(operation.fragments)
    fields, metadata = lance_schema(schema, data_storage_version=version)
    operation.schema.extend(fields)
    for key, value in metadata.items():
        operation.schema_metadata[key] = value
    operation.config_upsert_values.update(config or {})


def _comparable(fields: Iterable[Field]) -> list[tuple[int, str, int, str, bool]]:
    """What the files of one and the table of the other must agree on."""
    return [(one.id, one.name, one.parent_id, one.logical_type, one.nullable) for one in fields]
