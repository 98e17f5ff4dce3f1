"""The calls of a client that read and write the table themselves: `append`, `upsert`, `delete`, `update` and so on.

Names and arguments are those of pylance and lancedb, as far as these agree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anyio import to_thread

from committerd_client.data import ArrowSchema, Data, is_schema, rows_of
from committerd_client.errors import RetryableConflict, TableExists
from committerd_client.headers import AppUnit, StagedChange
from committerd_client.options import CLIENTS_TIMEOUT, CommitOptions, Files, NewTable, Timeout
from committerd_client.place import Place
from committerd_client.reexecution import ATTEMPTS_MAX, AsyncReexecute, Reexecution, Work
from committerd_client.results import CommitResult, WriteResult
from committerd_common.backports import Unpack


class TableCalls:
    """The calls, on top of `commit`. They need pylance (extra `lance`) and the client's `dataset_uri`.

    Each call writes its files into the table's folder, commits them, and executes what is refused again. `timeout`:
    seconds until the outcome, from the moment at which the files are written. `attempts`: how often it is executed at
    most. `app`: a unit of a replayable source (`App`); a unit that is committed already adds nothing. `properties`:
    stored with the version.

    If the outcome is unknown (`CommitTimeout`, `ClientClosed`), do not make the same call again, which would write the
    rows again: `client.commit(error.work)` is safe, because it has the same uuid.
    """

    @abstractmethod
    async def commit(
        self,
        transaction: Work,
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        reexecute: AsyncReexecute | None = None,
        attempts: int = ATTEMPTS_MAX,
        **asked: Unpack[CommitOptions],
    ) -> CommitResult:
        """Stage the transaction and wait until it is in the table."""

    @abstractmethod
    def _table(self) -> Place:
        """The table's place. Raises `ValueError` or `ModuleNotFoundError` if it can't be read or written."""

    async def append(
        self,
        data: Data,
        *,
        create: bool = False,
        enable_stable_row_ids: bool | None = None,
        data_storage_version: str | None = None,
        max_rows_per_file: int | None = None,
        max_bytes_per_file: int | None = None,
        app: AppUnit | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Append rows to the table.

            result = await client.append([{"id": 1, "name": "Ann"}], create=True)

        `data`: an Arrow table, record batch or reader, a pandas or polars DataFrame, a Lance dataset, a list of dicts,
        or a dict of columns. Columns match by name, and values are cast to the table's types. `create`: create the
        table with these rows if it does not exist; `enable_stable_row_ids` and `data_storage_version` are for that
        case, as in `lance.write_dataset`.

        Raises `TableMissing`, `StagingError` for rows that don't fit the table, and the errors of `commit`.
        """
        from committerd_client.changes import Append

        change = Append(
            place=self._table(),
            rows=rows_of(data),
            new_table=NewTable(enable_stable_row_ids=enable_stable_row_ids, data_storage_version=data_storage_version)
            if create
            else None,
            files=Files(max_rows_per_file=max_rows_per_file, max_bytes_per_file=max_bytes_per_file),
            properties=properties,
        )
        return await self._write(change, app=app, timeout=timeout, attempts=attempts)

    async def upsert(
        self,
        data: Data,
        on: str | Sequence[str] | None = None,
        *,
        create: bool = False,
        enable_stable_row_ids: bool | None = None,
        data_storage_version: str | None = None,
        app: AppUnit | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Update the rows of the table that have the same keys, and insert the other rows.

            result = await client.upsert(rows, on="id")

        `on`: the key columns; None = the table's unenforced primary key. `data`, `create`: as in `append`; a reader is
        read into memory, because a merge may have to be executed again. If `data` lacks columns, updated rows keep
        their values of these.

        Raises `TableMissing`, `StagingError`, and the errors of `commit`.
        """
        from committerd_client.changes import Upsert

        change = Upsert(
            place=self._table(),
            rows=rows_of(data),
            on=on,
            clauses={},
            new_table=NewTable(enable_stable_row_ids=enable_stable_row_ids, data_storage_version=data_storage_version)
            if create
            else None,
            properties=properties,
        )
        return await self._write(change, app=app, timeout=timeout, attempts=attempts)

    async def merge_insert(
        self,
        data: Data,
        on: str | Sequence[str] | None = None,
        *,
        when_matched_update_all: bool | str = False,
        when_matched_delete: bool = False,
        when_matched_fail: bool = False,
        when_not_matched_insert_all: bool = False,
        when_not_matched_by_source_delete: bool | str = False,
        use_index: bool = True,
        app: AppUnit | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Merge rows by their keys, with the clauses of pylance's builder.

            await client.merge_insert(rows, on="id", when_not_matched_insert_all=True)  # insert new keys only

        `when_matched_update_all`: True, or a condition on `source.` and `target.`. `when_not_matched_by_source_delete`:
        True, or a condition on the table's columns. `data`, `on`: as in `upsert`.

        Raises `TableMissing`, `StagingError`, and the errors of `commit`.
        """
        from committerd_client.changes import Upsert

        clauses = {
            "when_matched_update_all": when_matched_update_all,
            "when_matched_delete": when_matched_delete,
            "when_matched_fail": when_matched_fail,
            "when_not_matched_insert_all": when_not_matched_insert_all,
            "when_not_matched_by_source_delete": when_not_matched_by_source_delete,
        }
        if not any(clauses.values()):
            raise ValueError(f"merge_insert does nothing without a clause: give one of {', '.join(clauses)}")
        change = Upsert(
            place=self._table(),
            rows=rows_of(data),
            on=on,
            clauses={**clauses, "use_index": use_index},
            properties=properties,
        )
        return await self._write(change, app=app, timeout=timeout, attempts=attempts)

    async def delete(
        self,
        where: str,
        *,
        app: AppUnit | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Delete the rows for which the SQL predicate is true.

            await client.delete("id > 100 and name is null")

        Raises `TableMissing`, pylance's error for a wrong predicate, and the errors of `commit`.
        """
        from committerd_client.changes import Delete

        if not isinstance(where, str):
            raise TypeError(f"delete takes an SQL predicate as a string, such as 'id = 3', not {type(where).__name__}")
        change = Delete(place=self._table(), where=where, properties=properties)
        return await self._write(change, app=app, timeout=timeout, attempts=attempts)

    async def update(
        self,
        values: Mapping[str, Any] | None = None,
        where: str | None = None,
        *,
        values_sql: Mapping[str, str] | None = None,
        app: AppUnit | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Set columns of the rows for which the SQL predicate is true; of all rows without one.

            await client.update({"name": "Ann"}, where="id = 7")
            await client.update(values_sql={"count": "count + 1"}, where="id = 7")

        `values`: Python values by column, as in lancedb. `values_sql`: SQL expressions by column, which may use all
        columns of the old row; pylance calls them `updates`.

        Raises `TableMissing`, `StagingError`, pylance's errors for wrong SQL, and the errors of `commit`.
        """
        from committerd_client.changes import Update

        if isinstance(values, str) or isinstance(where, Mapping):
            raise TypeError("update takes the values first and the predicate second: update({'name': 'Ann'}, 'id = 7')")
        if not values and not values_sql:
            raise ValueError("update needs the new values: values={'name': 'Ann'} or values_sql={'count': 'count + 1'}")
        twice = (values or {}).keys() & (values_sql or {}).keys()
        if twice:
            raise ValueError(f"update got column {min(twice)!r} in values and in values_sql")
        change = Update(
            place=self._table(), values=values or {}, expressions=values_sql or {}, where=where, properties=properties
        )
        return await self._write(change, app=app, timeout=timeout, attempts=attempts)

    async def overwrite(
        self,
        data: Data,
        *,
        schema: ArrowSchema | None = None,
        enable_stable_row_ids: bool | None = None,
        enable_v2_manifest_paths: bool | None = None,
        data_storage_version: str | None = None,
        max_rows_per_file: int | None = None,
        max_bytes_per_file: int | None = None,
        app: AppUnit | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
    ) -> WriteResult:
        """Replace all rows of the table, and its schema; create the table if it does not exist. Indices are dropped.

        It replaces what the table holds when the committer reaches it, so it is never refused because of other
        commits. `schema`: the new schema, to which the rows are cast; default that of the rows.

        Raises `StagingError`, and the errors of `commit`.
        """
        from committerd_client.changes import Overwrite

        change = Overwrite(
            place=self._table(),
            rows=rows_of(data),
            schema=schema,
            new_table=NewTable(
                enable_stable_row_ids=enable_stable_row_ids,
                enable_v2_manifest_paths=enable_v2_manifest_paths,
                data_storage_version=data_storage_version,
            ),
            files=Files(max_rows_per_file=max_rows_per_file, max_bytes_per_file=max_bytes_per_file),
            properties=properties,
        )
        return await self._write(change, app=app, timeout=timeout, attempts=1, always=True)

    async def create(
        self,
        data: Data | ArrowSchema,
        *,
        schema: ArrowSchema | None = None,
        exist_ok: bool = False,
        enable_stable_row_ids: bool | None = None,
        enable_v2_manifest_paths: bool | None = None,
        data_storage_version: str | None = None,
        max_rows_per_file: int | None = None,
        max_bytes_per_file: int | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
    ) -> WriteResult:
        """Create the table, from a schema or with rows. It never changes an existing table.

            await client.create(pa.schema([("id", pa.int64())]), exist_ok=True)

        `schema`: the schema to which the rows are cast; default that of the rows. `exist_ok`: whether an existing table
        is fine; then the result has its version, and the rows are not added (`append(create=True)` adds them). The
        other arguments are as in `lance.write_dataset`.

        Raises `TableExists`, `StagingError`, and the other errors of `commit`.
        """
        from committerd_client.changes import Create

        only_schema = is_schema(data)
        change = Create(
            place=self._table(),
            rows=None if only_schema else rows_of(data),
            schema=data if only_schema else schema,
            new_table=NewTable(
                enable_stable_row_ids=enable_stable_row_ids,
                enable_v2_manifest_paths=enable_v2_manifest_paths,
                data_storage_version=data_storage_version,
            ),
            files=Files(max_rows_per_file=max_rows_per_file, max_bytes_per_file=max_bytes_per_file),
            properties=properties,
        )
        if exist_ok:
            found = await to_thread.run_sync(change.place.find)
            if found is not None:
                return WriteResult(version=found.version)
        try:
            return await self._write(change, app=None, timeout=timeout, attempts=1, always=True)
        except TableExists as error:
            if not exist_ok:
                raise
            found = await to_thread.run_sync(change.place.find)
            return WriteResult(version=error.conflicting_version if found is None else found.version)

    async def _write(
        self,
        change: Callable[[Reexecution | None], StagedChange],
        *,
        app: AppUnit | None,
        timeout: Timeout,
        attempts: int,
        always: bool = False,
    ) -> WriteResult:
        """Execute the change, and commit it. `always`: commit it too if it changes no row."""
        staged = await to_thread.run_sync(change, None)
        if not staged.changes and not always and app is None:
            return WriteResult(version=staged.transaction.read_version)

        def again(refused: Reexecution) -> StagedChange | None:
            nonlocal staged
            staged = change(refused)
            return staged if staged.changes or app is not None else None

        try:
            result = await self.commit(
                staged, reexecute=again if attempts > 1 else None, attempts=attempts, timeout=timeout, app=app
            )
        except RetryableConflict as error:
            if staged.changes or always or app is not None:
                raise
            return WriteResult(version=staged.transaction.read_version, attempts=error.attempts)
        made = WriteResult(version=result.version, attempts=result.attempts, commit=result)
        if made.duplicate:
            return made
        return replace(
            made,
            num_inserted_rows=staged.inserted,
            num_updated_rows=staged.updated,
            num_deleted_rows=staged.deleted,
        )
