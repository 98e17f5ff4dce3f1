"""Commits batches: looks whether a batch may be written, stages its transaction, and removes what nothing names."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from committerd_batch.app_marks import result_of
from committerd_batch.errors import AppIdInUse, TableChanged, app_id_in_use
from committerd_batch.gathering import BatchFiles, gather, stage
from committerd_batch.target import Mode, Plan, Target, mark_of
from committerd_batch.tasks import TaskResult
from committerd_client import staging
from committerd_client.app_marks import below_the_last
from committerd_client.errors import (
    IncompatibleConflict,
    InvalidTransaction,
    NotCommitted,
    RetryableConflict,
    UnsupportedTransaction,
)
from committerd_client.headers import App, Staged
from committerd_client.leftovers import remover
from committerd_client.reexecution import Reexecution
from committerd_client.results import CommitResult
from committerd_client.sync import SyncCommitClient
from committerd_common.paths import data_key

_log = logging.getLogger("committerd_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The queue of a table, and how long to wait for it."""

    bootstrap_servers: str | tuple[str, ...]
    dataset: str
    topic_prefix: str = ""
    producer: str = "batches"
    producer_key_file: str | None = None
    timeout: float | None = 300.0
    """Seconds for the commit of a batch, re-executions included; None waits forever."""
    attempts: int = 10
    kafka_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}: the first execution counts, so at least 1 is needed")

    def client(self, target: Target) -> SyncCommitClient:
        """A client for this queue, which connects later. Raises `ValueError` for invalid options."""
        return SyncCommitClient(
            self.bootstrap_servers if isinstance(self.bootstrap_servers, str) else list(self.bootstrap_servers),
            dataset=self.dataset,
            topic_prefix=self.topic_prefix,
            dataset_uri=target.uri,
            storage_options=target.storage_options,
            producer=self.producer,
            producer_key_file=self.producer_key_file,
            timeout=self.timeout,
            kafka_options=self.kafka_options,
        )


def key_file_of(producer: str | None, key_file: str | os.PathLike[str] | None) -> str | None:
    """The file with a producer's key, which the driver reads. Raises `ValueError` for a key without a producer."""
    if key_file is None:
        return None
    if not producer:
        raise ValueError("producer_key_file needs producer: the name that the committer knows")
    return os.fspath(key_file)


def before_writing(client: SyncCommitClient, target: Target, app: App | None) -> tuple[Any, CommitResult | None]:
    """Look before any file is written: (pylance's dataset or None, the result if the unit is in the table already).

    Raises `KafkaUnavailable` if the queue can't be reached, and `AppIdInUse`.
    """
    client.start()
    dataset = target.open()
    mark = None if app is None else mark_of(dataset, app.app_id)
    return dataset, result_of(mark, app)


def add_new_columns(client: SyncCommitClient, target: Target, given: pa.Schema, mode: Mode, *, dataset: Any) -> Any:
    """Add the columns that the table lacks, if the target allows it; returns the dataset to plan against."""
    opened = [dataset]

    def work(_: Reexecution | None = None) -> Staged | None:
        opened[0] = target.open()
        new = target.new_columns(given, mode, opened[0])
        return None if new is None else staging.add_columns(opened[0], new)

    first = work() if target.new_columns(given, mode, dataset) is not None else None
    if first is not None:
        try:
            client.commit(first, reexecute=work)
        except RetryableConflict:
            if target.new_columns(given, mode, target.open()) is not None:
                raise
        opened[0] = target.open()
    return opened[0]


class BatchLog:
    """Writes one line for each batch to the log `committerd_batch`, at level INFO."""

    def __init__(self, what: str) -> None:
        self._what, self._began = what, time.monotonic()

    def done(self, result: CommitResult | None, rows: int = 0, *, files: int = 0) -> None:
        """Name the batch, its version, rows, new data files, and milliseconds.

        A batch below the last one of its application is a warning: its rows may never have been in the table.
        """
        took = (time.monotonic() - self._began) * 1000
        if result is None:
            said = "it changes nothing"
        elif result.duplicate and result.version is None:
            _log.warning("%s: %s", self._what, below_the_last(result))
            return
        elif result.duplicate:
            said = f"it is in the table already (version {result.version})"
        else:
            said = f"version {result.version}"
        _log.info("%s: %s, %d rows, %d files, %.0f ms", self._what, said, rows, files, took)


class BatchCommit:
    """The commit of one batch whose tasks have ended."""

    def __init__(self, client: SyncCommitClient, queue: QueueOptions, plan: Plan, log: BatchLog) -> None:
        self._client, self._queue, self._plan, self._log = client, queue, plan, log
        self._written: set[str] = set()

    def run(self, results: Sequence[TaskResult], app: App | None) -> CommitResult | None:
        """Commit the files of all tasks as one transaction; None if they change nothing.

        What was written and is named by no version is removed. Raises the errors of the tasks, `InvalidKeys`,
        `TableChanged`, `AppIdInUse`, and those of `CommitClient.commit`.
        """
        self._written.update(name for result in results for name in result.file_names)
        named: set[str] | None = set()
        try:
            gathered = gather(self._plan, results)
            self._written |= gathered.file_names
            first = self._stage(gathered)
            if first is None:
                self._log.done(None, gathered.rows)
                return None
            named = None  # from here on a transaction may be committed that names them
            result, named = self._commit(first, gathered, app)
        except TableChanged:
            named = set()
            raise
        except NotCommitted as error:
            # A dead letter may be replayed, with its files.
            if not isinstance(error, InvalidTransaction | UnsupportedTransaction):
                named = set()
            if app is not None and error.code == AppIdInUse.code:
                made = app_id_in_use(app.app_id, f"The committer said: {error}", uuid=error.uuid)
                made.offset = error.offset
                raise made from error
            raise
        else:
            self._log.done(result, gathered.rows, files=len(named or ()))
            return result
        finally:
            self._tidy(named)

    def _commit(self, first: Staged, gathered: BatchFiles, app: App | None) -> tuple[CommitResult, set[str] | None]:
        """The result, and the names of the files that the table has; None if they are not known."""
        work, left = first, self._queue.attempts

        def again(refused: Reexecution | None = None) -> Staged | None:
            nonlocal work
            made = self._stage(gathered, refused)
            work = work if made is None else made
            return made

        while True:
            try:
                result = self._client.commit(work, app=app, reexecute=again, attempts=left)
            except IncompatibleConflict as error:
                # For example an Overwrite since the table was read: no transaction can pass it, but the same rows
                # can be staged again.
                left -= error.attempts
                if left < 1 or again() is None:
                    raise
            else:
                return result, None if result.duplicate else set(_files_of(work))

    def _stage(self, gathered: BatchFiles, refused: Reexecution | None = None) -> Staged | None:
        work = stage(gathered, self._plan.target.open(), refused)
        self._written.update([] if work is None else _files_of(work))
        return work

    def _tidy(self, named: set[str] | None) -> None:
        """Remove the files that no version names. `named`: those that one names; None = it is not known."""
        if named is None:
            if self._written:
                _log.info("these files may be in the table, and are kept: %s", sorted(self._written))
        else:
            remove_files(self._plan.target, self._written - named)


def _files_of(work: Staged) -> Iterable[str]:
    transaction = work.transaction
    kind = transaction.WhichOneof("operation")
    fragments = {
        "append": transaction.append.fragments,
        "overwrite": transaction.overwrite.fragments,
        "update": transaction.update.new_fragments,
    }[kind or "append"]
    return [file.path for one in fragments for file in one.files]


def remove_files(target: Target, names: Iterable[str]) -> None:
    """Remove data files that no version names; writes the names of those that can't be removed to the log."""
    left = []
    options = target.table.options
    for name in sorted(names):
        try:
            remover(target.uri, options)(data_key(name))
        except Exception as error:  # noqa: BLE001  # whatever it is, Lance's cleanup removes the file later
            left.append(f"{name} ({error})")
    if left:
        _log.warning("no version of %s names these data files, and they could not be removed: %s", target.uri, left)
