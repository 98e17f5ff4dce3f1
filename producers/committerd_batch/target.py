"""The table that batches are written to, and the plan of one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from committerd_batch.casting import check
from committerd_batch.changes import Changes
from committerd_batch.errors import SchemaMismatch, TableMissing
from committerd_batch.tasks import TargetTable, WriteTask
from committerd_client.app_marks import AppMark, mark_in
from committerd_client.arguments import count
from committerd_client.data import schema_of
from committerd_client.staging.fragments import lance_schema
from committerd_client.staging.transactions import read_table
from committerd_client.table_location import require_no_branch
from committerd_common.backports import StrEnum
from committerd_common.messages import Field


class Mode(StrEnum):
    """The effect of the rows on the table."""

    APPEND = "append"
    """Add the rows."""
    OVERWRITE = "overwrite"
    """Replace all rows of the table; its schema stays."""
    UPSERT = "upsert"
    """Replace the rows with the same keys, and add the rows with new keys."""
    DELETE = "delete"
    """Delete the rows with the same keys."""
    CDC = "cdc"
    """Upsert or delete, as a column says; the latest change of a key wins."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"mode takes one of {', '.join(cls)}, not {value!r}")

    @property
    def keyed(self) -> bool:
        """Whether the rows change the table by their keys."""
        return self in (Mode.UPSERT, Mode.DELETE, Mode.CDC)


class SchemaMode(StrEnum):
    """What happens if the rows have other columns than the table."""

    STRICT = "strict"
    """It is an error."""
    MERGE = "merge"
    """New columns are added to the table, nullable, and nullable columns that are missing are null."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"schema_mode takes one of {', '.join(cls)}, not {value!r}")


FieldKey = tuple[int, str, int, str, bool]
"""The parts of a field that must be equal in a file and in the table: id, name, parent, type, nullable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A table to write to, and the options to create it with if it does not exist."""

    uri: str
    """Of the table's root, or of the branch's folder."""
    branch: str = ""
    """The branch; empty for the main branch."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    keys: tuple[str, ...] = ()
    op_column: str | None = None
    order_by: tuple[str, ...] = ()
    schema_mode: SchemaMode = SchemaMode.STRICT
    target_rows_per_file: int | None = None
    schema: pa.Schema | None = None
    enable_stable_row_ids: bool | None = None
    enable_v2_manifest_paths: bool | None = None
    data_storage_version: str | None = None

    def check(self, mode: Mode) -> None:
        """Raise `ValueError` if the options do not suit the mode."""
        if mode.keyed and not self.keys:
            raise ValueError(f"mode {mode.value!r} needs keys=[...]: the columns by which rows are found")
        if mode is Mode.CDC and not (self.op_column and self.order_by):
            raise ValueError(
                "mode 'cdc' needs op_column='...', the column that says whether a row is put in or taken out, and "
                "order_by='...', whose highest value is the latest change of a key"
            )
        schema_of(self.schema)
        if self.target_rows_per_file is not None:
            count(self.target_rows_per_file, "target_rows_per_file")

    @property
    def table(self) -> TargetTable:
        """The table at its latest version."""
        return TargetTable(uri=self.uri, storage_options=self.storage_options)

    def open(self) -> Any:
        """pylance's dataset at the latest version; None if there is no table.

        Raises `committerd_client.TableMissing` for a branch that does not exist, because no batch makes a branch.
        """
        try:
            return self.table.open()
        except (ValueError, OSError) as error:
            # pylance has no error class for it.
            if "was not found" not in str(error):
                raise
            require_no_branch(self.uri, self.branch)
            return None

    def stored(self, given: pa.Schema, mode: Mode, dataset: Any) -> pa.Schema:
        """The columns that go into the table, without those that only say how a row changes it."""
        kept = set(dataset.schema.names) if dataset is not None else {*self.order_by, *self.keys}
        if mode is Mode.DELETE:
            missing = [key for key in self.keys if key not in given.names]
            if missing:
                raise SchemaMismatch(f"the DataFrame has no columns {missing}, which are keys: it has {given.names}")
            return pa.schema([given.field(key) for key in self.keys])
        if mode is not Mode.CDC:
            return given
        only_say = {self.op_column or "", *self.order_by}
        missing = sorted(only_say.difference(given.names))
        if missing:
            raise SchemaMismatch(
                f"the DataFrame has no columns {missing}, which mode 'cdc' needs: it has {given.names}"
            )
        return pa.schema([one for one in given if one.name in kept or one.name not in only_say])

    def new_columns(self, given: pa.Schema, mode: Mode, dataset: Any) -> pa.Schema | None:
        """The columns to add to the table before the batch is written; None if there are none."""
        if self.schema_mode is not SchemaMode.MERGE or dataset is None or mode is Mode.DELETE:
            return None
        known = set(dataset.schema.names)
        new = [one.with_nullable(True) for one in self.stored(given, mode, dataset) if one.name not in known]
        return pa.schema(new) if new else None

    def plan(self, given: pa.Schema, mode: Mode, dataset: Any) -> Plan:
        """The plan of a batch whose rows have the schema `given`, against the version at which `dataset` is open.

        `dataset`: None if there is no table. Raises `SchemaMismatch`, `TableMissing`.
        """
        stored = self.stored(given, mode, dataset)
        if dataset is not None:
            schema = dataset.schema
        elif mode is Mode.DELETE:
            raise TableMissing(f"there is no table at {self.uri} to delete from: check the URI, or create it first")
        else:
            schema = self.schema or stored
        unknown = [key for key in self.keys if key not in schema.names]
        if unknown:
            raise SchemaMismatch(f"keys {unknown} are not columns of the table: it has {schema.names}")
        wanted = pa.schema([schema.field(key) for key in self.keys]) if mode is Mode.DELETE else schema
        check(stored, wanted, may_lack=self.schema_mode is SchemaMode.MERGE)
        if dataset is not None:
            fields = fields_of(read_table(dataset).manifest.fields)
        else:
            fields = fields_of(lance_schema(schema, data_storage_version=self.data_storage_version)[0])
        version = None if dataset is None else dataset.version
        return Plan(target=self, mode=mode, schema=schema, version=version, fields=fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A batch, planned against one version of the table; it may be pickled."""

    target: Target
    mode: Mode
    schema: pa.Schema
    """Of the table."""
    version: int | None
    """None if there is no table yet."""
    fields: tuple[FieldKey, ...]
    """Of the files that the tasks write."""

    @property
    def replaces(self) -> bool:
        """Whether the files are for a new table, or replace all rows."""
        return self.version is None or self.mode is Mode.OVERWRITE

    @property
    def changes(self) -> Changes | None:
        """How the rows change the table by their keys; None if they don't."""
        if not self.mode.keyed:
            return None
        cdc = self.mode is Mode.CDC
        return Changes(
            keys=self.target.keys,
            deletes=self.mode is Mode.DELETE,
            op_column=self.target.op_column if cdc else None,
            order_by=self.target.order_by if cdc else (),
        )

    @property
    def task(self) -> WriteTask:
        """What each task does with its rows."""
        target = self.target
        return WriteTask(
            place=replace(target.table, version=self.version),
            schema=self.schema,
            replace=self.replaces,
            data_storage_version=target.data_storage_version if self.version is None else None,
            rows_per_file=target.target_rows_per_file,
            changes=self.changes,
            named=target.keys if self.mode is Mode.APPEND and not self.replaces else (),
        )


def fields_of(fields: Any) -> tuple[FieldKey, ...]:
    """The parts of the fields that must be equal in a file and in the table."""

    def parts(one: Field) -> FieldKey:
        return one.id, one.name, one.parent_id, one.logical_type, one.nullable

    return tuple(parts(one) for one in fields)


def mark_of(dataset: Any, app_id: str) -> AppMark | None:
    """The application's mark in the version at which the dataset is open; None if there is none, or no table."""
    return None if dataset is None else mark_in(read_table(dataset).manifest.table_metadata, app_id)
