"""Executes the changes that a client's `append`, `upsert`, `update` and so on ask for.

Each change is a function for `reexecute`: it opens the table at its latest version, writes the files, and returns the
transaction, with the numbers of rows. It may be called any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from committerd_client import staging
from committerd_client.data import Rows
from committerd_client.errors import StagingError
from committerd_client.headers import Staged, StagedChange
from committerd_client.options import Files, NewTable
from committerd_client.reexecution import Reexecution
from committerd_client.staging.fragments import fragment, storage_version
from committerd_client.staging.keys import KEYS_MAX, KeyHashes, key_columns, name_keys
from committerd_client.staging.rows import comparable
from committerd_client.staging.streams import Stream
from committerd_client.staging.transactions import ReadTable, read_table
from committerd_client.staging.unique_keys import require_unique
from committerd_client.table_location import TableLocation
from committerd_client.vectors import warn_of_lists
from committerd_common.messages import DataFragment, Field, Transaction

PRIMARY_KEY = b"lance-schema:unenforced-primary-key"
"""Metadata of a field that belongs to the table's primary key."""

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from lance.schema import LanceSchema


@dataclass(slots=True, kw_only=True)
class Append:
    """Appends rows, and creates the table with them if asked."""

    place: TableLocation
    rows: Rows
    new_table: NewTable | None = None
    """How to create the table if it does not exist; None = it must exist."""
    files: Files = field(default_factory=Files)
    keys: Sequence[str] = ()
    """The key columns whose values the Append names, so that upserts of other keys pass it; empty = none."""
    properties: Mapping[str, str] | None = None
    at: lance.LanceDataset | None = None
    """The version for which the files are written at first; None = the latest."""
    _written: _WrittenFiles | None = None

    def __call__(self, again: Reexecution | None = None) -> StagedChange:
        require_columns(self.rows, self.keys)
        dataset = self.place.find() if self.at is None or again is not None else self.at
        if dataset is None and self.new_table is not None:
            staged = Create(
                place=self.place,
                rows=self.rows,
                new_table=self.new_table,
                files=self.files,
                properties=self.properties,
            )()
            overwrite = staged.transaction.overwrite
            self._written = _WrittenFiles(tuple(overwrite.fragments), tuple(overwrite.schema), staged.inserted)
            return staged
        return self._append(self.place.open() if dataset is None else dataset)

    def with_written_files(self, dataset: lance.LanceDataset) -> StagedChange | None:
        """The change of another version with the files that are written; None if that version may not take them."""
        table, written = read_table(dataset), self._written
        return None if written is None or not written.fits(table) else self._staged(table, written)

    def _append(self, dataset: lance.LanceDataset) -> StagedChange:
        table = read_table(dataset)
        written = self._written
        if written is None or not written.fits(table):
            if written is not None and not self.rows.again:
                raise StagingError(
                    f"the table has another schema by now (version {table.version}), and the rows came from a reader, "
                    "which can't be read again: read the rows again and append them",
                    code="schema_differs",
                )
            schema, batches = self.rows.read(dataset.schema)
            hashes = KeyHashes(key_columns(dataset, self.keys), most=KEYS_MAX) if self.keys else None
            stream = Stream(schema, batches if hashes is None else hashes.adding(batches))
            fragments = [fragment(one) for one in _write(stream, dataset, self.files, mode="append")]
            written = self._written = _WrittenFiles(
                tuple(fragments),
                tuple(table.manifest.fields),
                _count(fragments),
                hashes.filter() if hashes is not None else None,
            )
        return self._staged(table, written)

    def _staged(self, table: ReadTable, written: _WrittenFiles) -> StagedChange:
        transaction = table.transaction(None, self.properties)
        transaction.append.SetInParent()
        transaction.append.fragments.extend(written.fragments)
        name_keys(transaction, written.keys)
        return table.change(transaction, inserted=written.count)


@dataclass(frozen=True, slots=True)
class _WrittenFiles:
    """Files that are written, and the schema that they are for. A later execution uses them again."""

    fragments: tuple[DataFragment, ...]
    fields: tuple[Field, ...]
    count: int
    keys: Transaction.KeyExistenceFilter | None = None
    """Those of an Append that names them."""

    def fits(self, table: ReadTable) -> bool:
        """Whether an Append to this version of the table may name the files."""
        used = {number for one in self.fragments for file in one.files for number in file.fields}
        ours, theirs = comparable(self.fields), comparable(table.manifest.fields)
        return (
            {one for one in ours if one[0] in used} <= set(theirs)
            and {number for number, _, _, _, nullable in theirs if not nullable} <= used
            and storage_version(self.fragments) in (None, table.manifest.data_format.version)
        )


@dataclass(slots=True, kw_only=True)
class Upsert:
    """Merges rows by their keys. `clauses`: those of `staging.merge_insert`."""

    place: TableLocation
    rows: Rows
    on: Sequence[str] | None
    clauses: Mapping[str, Any]
    cache: staging.KeyCache | None = None
    new_table: NewTable | None = None
    properties: Mapping[str, str] | None = None
    _source: pa.Table | None = None
    _schema: pa.Schema | None = None

    def __call__(self, again: Reexecution | None = None) -> StagedChange:
        dataset = self.place.find()
        if dataset is None and self.new_table is not None:
            rows = self._in_memory()
            self._check_keys(rows)
            return Create(place=self.place, rows=rows, new_table=self.new_table, properties=self.properties)()
        dataset = self.place.open() if dataset is None else dataset
        # A merge whose source is the same object is recognised as the one that was executed before.
        if self._source is None or self._schema != dataset.schema:
            self._schema = dataset.schema
            rows = self._in_memory()
            adds = self.clauses.get("when_not_matched_insert_all", True) and rows.count != 0
            # Rows of the table keep the columns, and the fields of structs, that the source does not have.
            self._source = rows.table(dataset.schema, fill_structs=False, adds=adds)
        return staging.merge_insert(
            dataset,
            self._source,
            on=self.on,
            again=again,
            cache=self.cache,
            properties=self.properties,
            **self.clauses,
        )

    def _check_keys(self, rows: Rows) -> None:
        """Raise `StagingError` if the rows could not be merged into the table that they make."""
        require_columns(rows, self.on or ())
        table = rows.table()
        keys = self.on or [one.name for one in table.schema if PRIMARY_KEY in (one.metadata or {})]
        if not keys:
            raise StagingError(
                "the new table would have no unenforced primary key: name the columns to merge on, as in on='id'",
                code="column",
            )
        require_unique(table, [table.schema.field(name) for name in keys if name in table.schema.names])

    def _in_memory(self) -> Rows:
        """The rows, which a refused merge needs again."""
        if not self.rows.again:
            self.rows = rows_in_memory(self.rows)
        return self.rows


def require_columns(rows: Rows, names: Sequence[str]) -> None:
    """Raise `StagingError` if the rows lack one of these key columns; no rows need none."""
    missing = [name for name in names if name not in rows.names]
    if missing and rows.count != 0:
        raise StagingError(
            f"the rows have no column {missing[0]!r}, which is part of the key; they have {', '.join(rows.names)}",
            code="keys_missing",
        )


def rows_in_memory(rows: Rows) -> Rows:
    """The same rows, which can be read more than once."""
    table = rows.table()
    return replace(rows, count=table.num_rows, again=True, open=lambda *_: table.to_reader())


@dataclass(frozen=True, slots=True)
class OnLatest:
    """Any other change: `stage` gets the table at its latest version, and may return None if there is nothing to do."""

    place: TableLocation
    stage: Callable[[lance.LanceDataset], Staged | None]

    def __call__(self, again: Reexecution | None = None) -> Staged | None:
        return self.stage(self.place.open())


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite:
    """Replaces all rows and the schema, or creates the table."""

    place: TableLocation
    rows: Rows
    schema: pa.Schema | None = None
    new_table: NewTable = field(default_factory=NewTable)
    files: Files = field(default_factory=Files)
    properties: Mapping[str, str] | None = None

    def __call__(self, again: Reexecution | None = None) -> StagedChange:
        schema, fragments = _written_anew(
            self.place, self.rows, self.schema, new_table=self.new_table, files=self.files
        )
        version = self.new_table.data_storage_version
        staged = staging.overwrite(fragments, schema, properties=self.properties, data_storage_version=version)
        return _counted(replace(staged, create_options=self.new_table.given()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Creates the table, with rows or with a schema alone."""

    place: TableLocation
    rows: Rows | None = None
    schema: pa.Schema | LanceSchema | None = None
    new_table: NewTable = field(default_factory=NewTable)
    files: Files = field(default_factory=Files)
    properties: Mapping[str, str] | None = None

    def __call__(self, again: Reexecution | None = None) -> StagedChange:
        schema, fragments = self.schema, list[Any]()
        if self.place.branch:
            self.place.find()  # raises for a branch that does not exist, which only pylance makes
        if self.rows is not None:
            schema, fragments = _written_anew(self.place, self.rows, schema, new_table=self.new_table, files=self.files)
        return _counted(staging.create(fragments, schema, properties=self.properties, **self.new_table.given()))


def _written_anew(
    place: TableLocation, rows: Rows, schema: pa.Schema | None, *, new_table: NewTable, files: Files
) -> tuple[pa.Schema, list[FragmentMetadata]]:
    """Write files whose fields get ids of their own: (their schema, the fragments)."""
    target = schema
    schema, batches = rows.read(target, fill=True)
    if not schema.names:
        raise StagingError("a table needs columns: give rows, or a pyarrow schema", code="column")
    if target is None:
        warn_of_lists(schema)
    options = {"data_storage_version": new_table.data_storage_version, "storage_options": place.options}
    # "overwrite" would warn of a missing table, and "create" refuses one that exists.
    mode = "create" if place.find() is None else "overwrite"
    try:
        return schema, _write(Stream(schema, batches), place.uri, files, mode=mode, **options)
    except OSError as error:
        if mode == "overwrite" or "already exists" not in str(error):
            raise
        if not rows.again:  # pylance has read the first of them
            raise StagingError(
                f"somebody has just created the table at {place.uri}, and the rows came from a reader, which can't be "
                "read again: read the rows again and append them",
                code="schema_differs",
            ) from error
    _, batches = rows.read(target, fill=True)
    return schema, _write(Stream(schema, batches), place.uri, files, mode="overwrite", **options)


def _write(stream: Stream, target: Any, files: Files, **options: Any) -> list[FragmentMetadata]:
    from lance.fragment import write_fragments  # imported here because it takes a third of a second

    given: dict[str, Any] = {**files.given(), **options}
    with stream.being_read() as reader:
        return list(write_fragments(reader, target, return_transaction=False, **given))


def _counted(staged: Staged) -> StagedChange:
    """A create or an Overwrite, with the number of its rows."""
    return StagedChange(
        transaction=staged.transaction,
        create_only=staged.create_only,
        create_options=staged.create_options,
        inserted=_count(staged.transaction.overwrite.fragments),
    )


def _count(fragments: Sequence[DataFragment]) -> int:
    return sum(one.physical_rows for one in fragments)
