"""Tasks: each writes the rows of one partition as data files of the table, and returns what the driver has to know.

A task with few rows writes no file: it returns the rows, and the driver writes those of all tasks as one file. No
version names the files of failed, repeated or speculative attempts.

A task returns an error about the data instead of raising it: the engine would repeat the task, and it would fail again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from committerd_batch.casting import conform
from committerd_batch.changes import Changes, packed
from committerd_batch.errors import BatchWriteError, InvalidKeys, SchemaMismatch
from committerd_client.staging.keys import KEYS_MAX, KeyHashes, key_columns

FEW_BYTES = 256 * 1024
"""A task with rows of at most this many bytes (Arrow) returns them."""
_REFUSALS: dict[str, type[BatchWriteError]] = {kind.code: kind for kind in (SchemaMismatch, InvalidKeys)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """The table that tasks write to."""

    uri: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    version: int | None = None
    """The version that the batch is planned against; None = the latest one, or there is no table yet."""

    def open(self) -> Any:
        """pylance's dataset at this version."""
        import lance  # imported here: a task imports it in its own process, the driver only if needed

        return lance.dataset(self.uri, version=self.version, storage_options=self.options)

    @property
    def options(self) -> dict[str, str] | None:
        """The storage options as pylance takes them."""
        return dict(self.storage_options) if self.storage_options is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What one task has made of its rows; small, and may be pickled."""

    fragments: tuple[str, ...] = ()
    """pylance's JSON of each fragment that the task has written."""
    rows: bytes = b""
    """The rows themselves (Arrow IPC) if they are few; empty if they are in the fragments."""
    keys: bytes = b""
    """The keys of the rows (Arrow IPC), for a mode that finds rows by keys; see `changes.py`."""
    named: bytes = b""
    """The keys that an Append names: a `KeyExistenceFilter`; empty if it names none."""
    row_count: int = 0
    refused: tuple[str, str] | None = None
    """Code and message of an error about the data."""

    @property
    def error(self) -> BatchWriteError | None:
        """The error that the task has found; None if there is none."""
        return None if self.refused is None else _REFUSALS[self.refused[0]](self.refused[1])

    @property
    def files(self) -> list[dict[str, Any]]:
        """pylance's JSON of each data file that the task has written."""
        return [file for one in self.fragments for file in json.loads(one)["files"]]

    @property
    def file_names(self) -> list[str]:
        """Names of these files."""
        return [file["path"] for file in self.files]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """Writes one partition; it may be pickled."""

    place: TargetTable
    schema: pa.Schema
    """The table's schema; `casting.check` has found that the rows' schema fits."""
    replace: bool
    """Whether the fragments are for a new table, or replace all rows; otherwise they are added to the table."""
    data_storage_version: str | None = None
    rows_per_file: int | None = None
    """The largest number of rows in a file; None = pylance's default."""
    changes: Changes | None = None
    """How the rows change the table, for a mode that finds rows by keys; None adds all rows."""
    named: tuple[str, ...] = ()
    """Key columns whose values an Append names; empty = none."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        """Write the rows. Raises the errors of pylance and of `batches`."""
        source = _Source(self, batches)
        try:
            held = source.few()
            if held is not None:
                return source.result(rows=packed(held, self.schema) if held else b"")
            fragments = source.read_by(self.write)
        except (SchemaMismatch, InvalidKeys) as error:
            return TaskResult(refused=(error.code, str(error)))
        return source.result(fragments=tuple(json.dumps(one.to_json()) for one in fragments))

    def write(self, rows: pa.RecordBatchReader) -> list[Any]:
        """Write these rows as fragments; returns pylance's descriptions of them."""
        from lance.fragment import write_fragments

        limits: Any = {} if self.rows_per_file is None else {"max_rows_per_file": self.rows_per_file}
        return list(
            write_fragments(
                rows,
                self.place.uri if self.replace else self.place.open(),
                mode="overwrite" if self.replace else "append",
                data_storage_version=self.data_storage_version,
                storage_options=self.place.options,
                **limits,
            )
        )


class _Source:
    """The rows of a partition, cast to the table's schema; keeps their keys and their number."""

    def __init__(self, task: WriteTask, batches: Iterable[pa.RecordBatch]) -> None:
        self._task = task
        self._keys: list[pa.Table] = []
        self._count = 0
        self._error: Exception | None = None
        self._held: list[pa.RecordBatch] = []
        self._hashes: KeyHashes | None = None
        self._rows = self._cast(self._counted(batches))

    def few(self) -> list[pa.RecordBatch] | None:
        """All rows, if they are few; None if there are more."""
        size = 0
        for batch in self._rows:
            self._held.append(batch)
            size += batch.nbytes
            if size > FEW_BYTES:
                return None
        return self._held

    def read_by(self, write: Any) -> list[Any]:
        """The result of `write` for a reader of all rows. An error of the rows is raised as it is."""
        reader = pa.RecordBatchReader.from_batches(self._task.schema, self._passed())
        try:
            fragments: list[Any] = write(reader)
        except Exception:
            if self._error is not None:  # pylance's own error has it only as text
                raise self._error from None
            raise
        return fragments

    def result(self, *, fragments: tuple[str, ...] = (), rows: bytes = b"") -> TaskResult:
        keys = b"" if not self._keys else packed(pa.concat_tables(self._keys).to_batches(), self._keys[0].schema)
        named = b"" if self._hashes is None else self._hashes.filter().SerializeToString()
        return TaskResult(fragments=fragments, rows=rows, keys=keys, named=named, row_count=self._count)

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                self._count += batch.num_rows
                yield batch

    def _cast(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = self._task
        if task.changes is not None:
            return task.changes.rows(batches, task.schema, self._keys)
        rows = (conform(batch, task.schema) for batch in batches)
        if not task.named:
            return rows
        self._hashes = KeyHashes(key_columns(task.place.open(), task.named), most=KEYS_MAX)
        return self._hashes.adding(rows)

    def _passed(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from itertools.chain(self._held, self._rows)
        except Exception as error:
            self._error = error
            raise
