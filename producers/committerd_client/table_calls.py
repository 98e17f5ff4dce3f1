"""The calls of a client that read and write the table themselves: `append`, `upsert`, `delete`, `update` and so on.

Names and arguments are those of pylance and lancedb, as far as these agree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from committerd_client import arguments
from committerd_client.app_marks import log_duplicate, mark_in
from committerd_client.data import ArrowSchema, Data, is_schema, rows_of, scalars, schema_of
from committerd_client.errors import IncompatibleConflict, RetryableConflict, TableExists
from committerd_client.headers import App, AppUnit, Staged, StagedChange, app_unit, require_app
from committerd_client.options import CLIENTS_TIMEOUT, CommitOptions, Files, NewTable, Timeout
from committerd_client.panics import run_sync
from committerd_client.reexecution import ATTEMPTS_MAX, AsyncReexecute, Reexecution, TransactionLike
from committerd_client.results import APP_VERSION_SEEN, CommitResult, CompactionResult, WriteResult
from committerd_client.table_location import TableLocation
from committerd_client.tracing import work_span
from committerd_common.backports import Unpack

if TYPE_CHECKING:
    import lance

    from committerd_client.changes import OnLatest
    from committerd_client.staging import KeyCache


class TableCalls:
    """The calls, on top of `commit`. They need pylance (extra `lance`) and the client's `dataset_uri`.

    Each call writes its files into the table's folder, commits them, and executes what is refused again. `timeout`:
    seconds until the outcome, from the moment at which the files are written. `attempts`: how often it is executed at
    most. `app`: a unit of a replayable source (`App`), such as `("daily", 20261031)`; its number grows with each unit.
    A unit that the table has adds nothing: the call looks before it writes, and the result is a `duplicate`. A number
    below the last one is taken for a duplicate too, with a warning in the log. `properties`: stored with the version.

    If the outcome is unknown (`CommitTimeout`, `ClientClosed`), do not make the same call again, which would write the
    rows again: `client.commit(error.work)` is safe, because it has the same uuid.
    """

    @abstractmethod
    async def commit(
        self,
        transaction: TransactionLike,
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        reexecute: AsyncReexecute | None = None,
        attempts: int = ATTEMPTS_MAX,
        **asked: Unpack[CommitOptions],
    ) -> CommitResult:
        """Stage the transaction and wait until it is in the table."""

    @abstractmethod
    def _table(self) -> TableLocation:
        """The table's place. Raises `ValueError` or `ModuleNotFoundError` if it can't be read or written."""

    @abstractmethod
    def _key_cache(self) -> KeyCache | None:
        """What the client remembers of the table's keys; None = nothing."""

    @abstractmethod
    def _usable(self) -> object:
        """Raises `ClientClosed` if the client is closed, `RuntimeError` if it is not started, or not in this loop."""

    @abstractmethod
    def _seconds(self, timeout: Timeout) -> float | None:
        """The seconds of a `timeout`. Raises `TypeError`, `ValueError`."""

    def _begin(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout,
        attempts: int = 1,
        app: AppUnit | None = None,
    ) -> TableLocation:
        """The table's place. Raises for a client that can't be used, and for wrong arguments, before anything else."""
        place = self._table()
        arguments.properties(properties)
        arguments.attempts(attempts)
        if app is not None:
            require_app(app)
        self._seconds(timeout)
        self._usable()
        return place

    async def append(
        self,
        data: Data,
        *,
        create: bool = False,
        enable_stable_row_ids: bool | None = None,
        data_storage_version: str | None = None,
        max_rows_per_file: int | None = None,
        max_bytes_per_file: int | None = None,
        keys: str | Sequence[str] = (),
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
        case, as in `lance.write_dataset`. `keys`: the columns by which others upsert; then upserts of other keys pass
        the Append and need not be executed again (`staging.append`).

        Raises `TableMissing`, `StagingError` for rows that don't fit the table, and the errors of `commit`.
        """
        from committerd_client.changes import Append

        change = Append(
            place=self._begin(properties=properties, timeout=timeout, attempts=attempts, app=app),
            rows=rows_of(data),
            new_table=NewTable(enable_stable_row_ids=enable_stable_row_ids, data_storage_version=data_storage_version)
            if create
            else None,
            files=Files(max_rows_per_file=max_rows_per_file, max_bytes_per_file=max_bytes_per_file),
            keys=tuple(arguments.names(keys, "keys")),
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
            place=self._begin(properties=properties, timeout=timeout, attempts=attempts, app=app),
            rows=rows_of(data),
            on=None if on is None else arguments.names(on, "on"),
            clauses={},
            cache=self._key_cache(),
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
            place=self._begin(properties=properties, timeout=timeout, attempts=attempts, app=app),
            rows=rows_of(data),
            on=None if on is None else arguments.names(on, "on"),
            clauses={**clauses, "use_index": use_index},
            cache=self._key_cache(),
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
        from committerd_client import staging

        arguments.predicate(where, "delete")
        cache = self._key_cache()
        change = _on_latest(
            self._begin(properties=properties, timeout=timeout, attempts=attempts, app=app),
            lambda table: staging.delete(table, where, cache=cache, properties=properties),
        )
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
        from committerd_client import staging

        if isinstance(values, str) or isinstance(where, Mapping):
            raise TypeError("update takes the values first and the predicate second: update({'name': 'Ann'}, 'id = 7')")
        for name, given in (("values", values), ("values_sql", values_sql)):
            if given is not None and not isinstance(given, Mapping):
                raise TypeError(f"{name} takes a dict of columns, such as {{'name': ...}}, not {given!r}")
        if where is not None:
            arguments.predicate(where, "update")
        if not values and not values_sql:
            raise ValueError("update needs the new values: values={'name': 'Ann'} or values_sql={'count': 'count + 1'}")
        twice = (values or {}).keys() & (values_sql or {}).keys()
        if twice:
            raise ValueError(f"update got column {min(twice)!r} in values and in values_sql")

        cache = self._key_cache()

        def stage(table: lance.LanceDataset) -> Staged | None:
            updates = {**(values_sql or {}), **scalars(values or {}, table.schema)}
            return staging.update(table, updates, where, cache=cache, properties=properties)

        change = _on_latest(self._begin(properties=properties, timeout=timeout, attempts=attempts, app=app), stage)
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
            place=self._begin(properties=properties, timeout=timeout, app=app),
            rows=rows_of(data),
            schema=schema_of(schema),
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
            place=self._begin(properties=properties, timeout=timeout),
            rows=None if only_schema else rows_of(data),
            schema=data if only_schema else schema_of(schema),
            new_table=NewTable(
                enable_stable_row_ids=enable_stable_row_ids,
                enable_v2_manifest_paths=enable_v2_manifest_paths,
                data_storage_version=data_storage_version,
            ),
            files=Files(max_rows_per_file=max_rows_per_file, max_bytes_per_file=max_bytes_per_file),
            properties=properties,
        )
        if exist_ok:
            found = await run_sync(change.place.find)
            if found is not None:
                return WriteResult(version=found.version)
        try:
            return await self._write(change, app=None, timeout=timeout, attempts=1, always=True)
        except TableExists as error:
            if not exist_ok:
                raise
            found = await run_sync(change.place.find)
            return WriteResult(version=error.conflicting_version if found is None else found.version)

    async def restore(
        self,
        version: int,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Make an old version the latest one. The table then lacks all changes since that version, of every writer.

        Raises `TableMissing`, and the errors of `commit`.
        """
        from committerd_client import staging

        change = _on_latest(
            self._begin(properties=properties, timeout=timeout, attempts=attempts),
            lambda table: staging.restore(table, version, properties=properties),
        )
        return await self._write(change, timeout=timeout, attempts=attempts)

    async def add_columns(
        self,
        transforms: Mapping[str, str] | ArrowSchema | Callable[..., Any],
        *,
        read_columns: list[str] | None = None,
        batch_size: int | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Add columns to all rows, as `dataset.add_columns` of pylance does.

            await client.add_columns({"total": "price * amount"})

        `transforms`: SQL expressions by the name of the new column; a pyarrow schema or field, for columns that are
        null; or a function from record batches to record batches, whose input is `read_columns`, in batches of
        `batch_size` rows.

        Raises `TableMissing`, `StagingError`, and the errors of `commit`.
        """
        from committerd_client import staging

        given: Any = transforms
        change = _on_latest(
            self._begin(properties=properties, timeout=timeout, attempts=attempts),
            lambda table: staging.add_columns(
                table, given, read_columns=read_columns, batch_size=batch_size, properties=properties
            ),
        )
        return await self._write(change, timeout=timeout, attempts=attempts)

    async def drop_columns(
        self,
        columns: Sequence[str],
        *,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Drop columns, by path (`outer.inner` for nested ones). Their data stays in the files until a compaction.

        Raises `TableMissing`, `StagingError`, and the errors of `commit`.
        """
        from committerd_client import staging

        names = arguments.names(columns, "drop_columns")
        change = _on_latest(
            self._begin(properties=properties, timeout=timeout, attempts=attempts),
            lambda table: staging.drop_columns(table, names, properties=properties),
        )
        return await self._write(change, timeout=timeout, attempts=attempts)

    async def alter_columns(
        self,
        *alterations: Mapping[str, Any],
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Change names, nullability or types of columns, as `dataset.alter_columns` of pylance does.

            await client.alter_columns({"path": "name", "name": "full_name"}, {"path": "id", "data_type": pa.int64()})

        Raises `TableMissing`, `StagingError`, and the errors of `commit`.
        """
        from committerd_client import staging

        given: Any = alterations
        change = _on_latest(
            self._begin(properties=properties, timeout=timeout, attempts=attempts),
            lambda table: staging.alter_columns(table, *given, properties=properties),
        )
        return await self._write(change, timeout=timeout, attempts=attempts)

    async def create_index(
        self,
        /,
        column: str,
        index_type: str,
        *,
        name: str | None = None,
        replace: bool = False,
        properties: Mapping[str, str] | None = None,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
        **parameters: Any,
    ) -> WriteResult:
        """Create an index on a column, as pylance's `create_scalar_index` and `create_index` do.

            await client.create_index("id", "BTREE")
            await client.create_index("vector", "IVF_PQ", metric="cosine", num_partitions=256)

        `index_type`: `BTREE`, `BITMAP`, `INVERTED`, `IVF_PQ`, ... `name`: default `{column}_idx`. `replace`: whether to
        replace an index of that name. `parameters`: those of pylance. Rows that are appended later are found without
        the index, until `optimize_indices`.

        Raises `TableMissing`, `StagingError`, pylance's errors, and the errors of `commit`.
        """
        from committerd_client import staging

        change = _on_latest(
            self._begin(properties=properties, timeout=timeout, attempts=attempts),
            lambda table: staging.create_index(
                table, column, index_type, name=name, replace=replace, properties=properties, **parameters
            ),
        )
        return await self._write(change, timeout=timeout, attempts=attempts)

    async def optimize_indices(
        self,
        /,
        names: Sequence[str] | None = None,
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
        **options: Any,
    ) -> WriteResult:
        """Add the rows to the indices that these don't cover yet, as `dataset.optimize.optimize_indices` does.

        `names`: None = all indices. `options`: those of pylance, such as `num_indices_to_merge`.

        Raises `TableMissing`, pylance's errors, and the errors of `commit`.
        """
        from committerd_client import staging

        change = _on_latest(
            self._begin(timeout=timeout, attempts=attempts),
            lambda table: staging.optimize_indices(table, names, **options),
        )
        return await self._write(change, timeout=timeout, attempts=attempts)

    async def compact(
        self,
        /,
        *,
        reindex: bool = True,
        timeout: Timeout = CLIENTS_TIMEOUT,
        attempts: int = ATTEMPTS_MAX,
        **options: Any,
    ) -> CompactionResult:
        """Rewrite small fragments, and those with deleted rows, into fewer ones, while others write to the table.

            await client.compact(target_rows_per_fragment=1_000_000)

        `reindex`: afterwards add the moved rows to the indices that hold addresses of rows. `options`: fields of
        `lance.optimize.CompactionOptions`.

        Raises `TableMissing`, `StagingError` for tables that can't be compacted, and the errors of `commit`.
        """
        from committerd_client.compacting import compact

        place = self._begin(timeout=timeout, attempts=attempts)
        done = await compact(self, place.open, timeout=timeout, attempts=attempts, reindex=reindex, **options)
        return CompactionResult() if done is None else done

    async def _write(
        self,
        change: Callable[[Reexecution | None], Staged | None],
        *,
        app: AppUnit | None = None,
        timeout: Timeout,
        attempts: int,
        always: bool = False,
    ) -> WriteResult:
        """Execute the change, and commit it. `always`: commit it too if it changes no row.

        A unit `app` that is in the table already is neither executed nor committed.
        """
        there = None if app is None else await run_sync(partial(_there, self._table(), app_unit(app)))
        if there is not None:
            return _duplicate(there)
        staged = await _executed(change)
        spent = 0  # executions of earlier commits

        def idle() -> bool:
            return staged is None or (
                isinstance(staged, StagedChange) and not staged.changes and not always and app is None
            )

        def again(refused: Reexecution) -> Staged | None:
            nonlocal staged
            staged = change(refused)
            return None if idle() else staged

        while staged is not None and not idle():
            left = attempts - spent
            try:
                commit = await self.commit(
                    staged, reexecute=again if left > 1 else None, attempts=left, timeout=timeout, app=app
                )
            except RetryableConflict as error:
                spent += error.attempts
                if not idle():
                    raise
            except IncompatibleConflict as error:
                # For example after an Overwrite: this transaction can't pass it, but the change can be made again.
                spent += error.attempts
                if spent >= attempts:
                    raise
                staged = await _executed(change)
            else:
                if commit.reason == APP_VERSION_SEEN and app is not None:
                    log_duplicate(app_unit(app), commit)
                    return _duplicate(commit, attempts=spent + commit.attempts)
                return _result(staged, commit, spent + commit.attempts)
        return WriteResult(version=None if staged is None else staged.transaction.read_version, attempts=max(spent, 1))


def _result(staged: Staged, commit: CommitResult, attempts: int) -> WriteResult:
    """The result of a call whose last execution was committed."""
    result = WriteResult(version=commit.version, attempts=attempts, commit=commit)
    if not isinstance(staged, StagedChange):
        return result
    return replace(
        result,
        num_inserted_rows=staged.inserted,
        num_updated_rows=staged.updated,
        num_deleted_rows=staged.deleted,
    )


async def _executed(change: Callable[[Reexecution | None], Staged | None]) -> Staged | None:
    """Execute the change on the latest version; below a span, if the application has a trace."""
    with work_span("write"):
        return await run_sync(partial(change, None))


def _duplicate(commit: CommitResult, *, attempts: int = 1) -> WriteResult:
    return WriteResult(version=commit.version, attempts=attempts, duplicate=True, commit=commit)


def _there(place: TableLocation, app: App) -> CommitResult | None:
    """The result of a unit that is in the table already, which is logged; None if it is not there."""
    from committerd_client.staging.transactions import read_table

    dataset = place.find()
    mark = None if dataset is None else mark_in(read_table(dataset).manifest.table_metadata, app.app_id)
    found = None if mark is None else mark.result(app)
    if found is not None:
        log_duplicate(app, found)
    return found


def _on_latest(place: TableLocation, stage: Callable[[lance.LanceDataset], Staged | None]) -> OnLatest:
    from committerd_client.changes import OnLatest

    return OnLatest(place, stage)
