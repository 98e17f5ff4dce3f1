"""Executes a DataFrame: writes files into the table's folder, and makes the transaction that names them.

A new execution after a refusal reads the table again and writes new files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from committerd_client import staging
from committerd_client.reexecution import Work
from committerd_client.staging.transactions import read_table
from committerd_common.backports import StrEnum
from committerd_common.messages import Transaction
from committerd_spark.arrow_types import arrow_schema
from committerd_spark.casting import check
from committerd_spark.errors import SchemaMismatch, TableMissing
from committerd_spark.tasks import FRAGMENT, KEYS, RESULT, TRANSACTION, MergeRows, Place, WriteFragments, refusal


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

    @property
    def keyed(self) -> bool:
        """Whether one task must see the whole batch: two tasks would make two conflicting transactions."""
        return self in (Mode.UPSERT, Mode.DELETE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """A table to write to, and the options to create it with if it does not exist."""

    uri: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    keys: Sequence[str] = ()
    schema: pa.Schema | None = None
    enable_stable_row_ids: bool | None = None
    enable_v2_manifest_paths: bool | None = None
    data_storage_version: str | None = None

    def execute(self, df: DataFrame, mode: Mode) -> Work | None:
        """Execute the DataFrame; returns the transaction to commit, or None if the rows change nothing.

        Raises `SchemaMismatch`, `InvalidKeys`, `TableMissing`, and the errors of Spark and pylance.
        """
        dataset = opened(self.uri, self.storage_options)
        if mode is Mode.DELETE:
            df = self._only_keys(df)
        given = arrow_schema(df.schema)
        if dataset is not None:
            schema = dataset.schema
        elif mode is Mode.DELETE:
            raise TableMissing(f"there is no table at {self.uri} to delete from: check the URI, or create it first")
        else:
            schema = self.schema or given
        self._check_keys(schema)
        wanted = pa.schema([schema.field(key) for key in self.keys]) if mode is Mode.DELETE else schema
        check(given, wanted)
        if mode.keyed and dataset is not None:
            return self._merge(df, dataset, wanted, mode)
        return self._write(df, dataset, schema, mode)

    def _only_keys(self, df: DataFrame) -> DataFrame:
        missing = [key for key in self.keys if key not in df.columns]
        if missing:
            raise SchemaMismatch(f"the DataFrame has no columns {missing}, which are keys: it has {df.columns}")
        quoted = ["`" + key.replace("`", "``") + "`" for key in self.keys]
        return df.select(*quoted).dropDuplicates()

    def _check_keys(self, schema: pa.Schema) -> None:
        unknown = [key for key in self.keys if key not in schema.names]
        if unknown:
            raise SchemaMismatch(f"keys {unknown} are no columns of the table: it has {schema.names}")

    def _merge(self, df: DataFrame, dataset: Any, schema: pa.Schema, mode: Mode) -> Work | None:
        place = Place(uri=self.uri, storage_options=self.storage_options, version=dataset.version)
        task = MergeRows(place=place, schema=schema, keys=tuple(self.keys), delete=mode is Mode.DELETE)
        _, payload = next(_run(df.repartition(1), task), (TRANSACTION, None))
        return None if payload is None else read_table(dataset).staged(Transaction.FromString(payload))

    def _write(self, df: DataFrame, dataset: Any, schema: pa.Schema, mode: Mode) -> Work | None:
        version = None if dataset is None else dataset.version
        replace = dataset is None or mode is Mode.OVERWRITE
        task = WriteFragments(
            place=Place(uri=self.uri, storage_options=self.storage_options, version=version),
            schema=schema,
            replace=replace,
            data_storage_version=self.data_storage_version if dataset is None else None,
            keys=tuple(self.keys) if mode.keyed else (),
            named=tuple(self.keys) if mode is Mode.APPEND and not replace else (),
        )
        results = list(_run(df.repartition(1) if mode.keyed else df, task))
        fragments = _fragments(payload for kind, payload in results if kind == FRAGMENT)
        if not fragments and mode is not Mode.OVERWRITE:
            return None
        if dataset is None:
            return staging.create(
                fragments,
                schema,
                enable_stable_row_ids=self.enable_stable_row_ids,
                enable_v2_manifest_paths=self.enable_v2_manifest_paths,
                data_storage_version=self.data_storage_version,
            )
        if replace:
            return staging.overwrite(fragments, schema, dataset=dataset)
        named = [Transaction.KeyExistenceFilter.FromString(payload) for kind, payload in results if kind == KEYS]
        keys = staging.joined_keys(named)
        return read_table(dataset).staged(staging.append(fragments, read_version=dataset.version, keys=keys))


def opened(uri: str, storage_options: Mapping[str, str] | None) -> Any:
    """pylance's dataset at the latest version; None if there is no table."""
    import lance  # imported here: making a writer need not take the third of a second

    try:
        return lance.dataset(uri, storage_options=dict(storage_options) if storage_options is not None else None)
    except (ValueError, OSError) as error:
        # pylance has no error class for it.
        if "was not found" not in str(error):
            raise
        return None


def _run(df: DataFrame, task: WriteFragments | MergeRows) -> Iterator[tuple[str, bytes]]:
    """Run the task over the partitions, and yield their results. Raises the errors that they return."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    for kind, payload in df.mapInArrow(work, RESULT).collect():
        refused = refusal(kind, bytes(payload))
        if refused is not None:
            raise refused
        yield kind, bytes(payload)


def _fragments(described: Iterable[bytes]) -> list[Any]:
    payloads = [payload.decode() for payload in described]
    if not payloads:
        return []
    from lance.fragment import FragmentMetadata

    return [FragmentMetadata.from_json(payload) for payload in payloads]
