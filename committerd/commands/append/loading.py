"""Appends files through a client, each as one transaction; the files of a job once, whenever and wherever it runs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from committerd.commands.append import job as jobs
from committerd.commands.append.formats import SourceRows
from committerd.commands.append.job import FileId, Plan, Record
from committerd.commands.append.sources import Source
from committerd.errors import CommitterError, SourceError
from committerd_client import IncompatibleConflict, Reexecution, SyncCommitClient, Undecided
from committerd_client.changes import Append
from committerd_client.data import rows_of
from committerd_client.errors import ClientError, TableMissing
from committerd_client.headers import StagedChange
from committerd_client.history import committed_among
from committerd_client.reexecution import ATTEMPTS_MAX
from committerd_client.results import CommitResult
from committerd_client.staging import update_config
from committerd_client.staging.transactions import read_table
from committerd_client.table_location import TableLocation
from committerd_client.tracing import work_span

if TYPE_CHECKING:
    import lance

_NOTE_SECONDS = 30.0
"""How often a run notes what it has appended. What a killed run has not noted, the next run looks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """What became of a file."""

    file: str
    rows: int
    version: int | None
    """None for a file that the job's record names: its version may be long gone."""
    duplicate: bool
    """Whether this job had appended the file before."""


@dataclass(slots=True, kw_only=True)
class Loader:
    """Appends files to one table."""

    client: SyncCommitClient
    place: TableLocation
    create: bool
    nulls: tuple[str, ...]
    assume: str | None = None
    """What to take files for of which nobody can tell whether they are in the table: `appended`, `missing`, or None."""
    on_read: Callable[[int, float], None] = lambda number, share: None
    """Called while a file is read, with its number in the order given and the share of it that is read."""
    _kept: dict[str, SourceRows] = field(default_factory=dict)

    def load(self, sources: Sequence[Source], job: str | None) -> Iterator[AppendResult]:
        """Append the files in their order. Raises the errors of `client.append`, which name the file.

        Nothing is written before all schemas are checked, and before it is known which files are new.
        """
        dataset = self.place.find()
        if job is None:
            self._check(sources, dataset)
            for number, source in enumerate(sources):
                with _naming(source), _span(source):
                    done = self.client.append(self._rows(source, number), create=self.create)
                yield AppendResult(file=source.path, rows=done.num_inserted_rows, version=done.version, duplicate=False)
        else:
            yield from self._load_once(list({one.identity: one for one in sources}.values()), job, dataset)

    def _load_once(
        self, sources: Sequence[Source], job: str, dataset: lance.LanceDataset | None
    ) -> Iterator[AppendResult]:
        record = jobs.NOTHING if dataset is None else _record(dataset, job)
        _refuse_changed([one for one in sources if record.differs(one.identity)], job)
        new = [one for one in sources if not record.has(one.identity)]
        self._check(new, dataset)
        if new and dataset is None:
            dataset = self._created(new[0])
        run = _Run(self.client, self.place, job, record, assume=self.assume)
        if new:
            run.plan({one.identity: one for one in new})
        with run.noting():
            for number, source in enumerate(sources):
                if run.record.has(source.identity):
                    yield AppendResult(file=source.path, rows=0, version=run.found.get(source.identity), duplicate=True)
                    continue
                with _naming(source), _span(source):
                    done = run.append(source, self._rows(source, number))
                yield done

    def _created(self, source: Source) -> lance.LanceDataset:
        """The table, which is made without rows: it holds the job's record before the first file."""
        if not self.create:
            return self.place.open()  # raises
        with _naming(source):
            schema, _ = rows_of(self._rows(source, 0)).read()
            self.client.create(schema, exist_ok=True)
        return self.place.open()

    def _check(self, sources: Sequence[Source], dataset: lance.LanceDataset | None) -> None:
        """Raise an error for the first file that can't be read, or whose columns don't fit."""
        table: pa.Schema | None = None if dataset is None else dataset.schema
        for source in sources:
            with _naming(source):
                rows = self._kept[source.path] = SourceRows(source, table, nulls=self.nulls)
                if table is None:
                    table, _ = rows_of(rows).read()
                # A batch without rows is cast as any other: it shows whether the types fit.
                empty = pa.RecordBatch.from_pylist([], schema=rows.schema)
                rows_of(pa.RecordBatchReader.from_batches(rows.schema, [empty])).table(table)

    def _rows(self, source: Source, number: int) -> SourceRows:
        """The rows of a file that was checked."""
        rows = self._kept[source.path]
        rows.on_read = lambda share: self.on_read(number, share)
        return rows


@dataclass(slots=True)
class _Run:
    """A run of a job on a table that exists."""

    client: SyncCommitClient
    place: TableLocation
    job: str
    record: Record
    assume: str | None
    found: dict[FileId, int] = field(default_factory=dict)
    """Versions of files that an earlier run has appended without noting it."""
    _done: list[FileId] = field(default_factory=list)
    _dropped: list[FileId] = field(default_factory=list)
    _resumed: dict[FileId, Plan] = field(default_factory=dict)
    """Plans of earlier runs whose end is not known yet."""
    _noted: float = 0.0

    def plan(self, new: Mapping[FileId, Source]) -> None:
        """Write plans for these files, and find out what became of earlier plans for them."""
        seen: list[Plan] = []

        def planned(record: Record, version: int) -> Record:
            seen[:] = record.earlier_plans(new)
            return record.planned(new, version=version, token=_token)

        self._write(planned)
        self._noted = time.monotonic()
        if seen:
            # The plan came through the queue, so whatever an earlier run has staged is settled by now.
            self._look_for(seen, new)

    def _look_for(self, plans: Sequence[Plan], new: Mapping[FileId, Source]) -> None:
        wanted = jobs.executions(self.job, plans, ATTEMPTS_MAX)
        oldest = min(plan.version for plan in plans)
        there, all_read = committed_among(self.place.open(), wanted, above=oldest)
        self.found = {wanted[uuid]: version for uuid, version in there.items()}
        lost = [plan for plan in plans if plan.file not in self.found and not all_read]
        if self.assume == "appended":
            self._done += [plan.file for plan in lost if plan.file in new]
        replaced = [plan for plan in plans if plan.file not in new]
        undecided = [plan for plan in replaced if plan in lost and self.assume is None]
        by_name = {file.name: source for file, source in new.items()}
        self._done += self.found
        self._dropped += [plan.file for plan in replaced if plan.file not in self.found and plan not in undecided]
        if self.assume == "missing":
            # Under another uuid, since the committer must not return the outcome of the old one.
            self._dropped += [plan.file for plan in lost]
        elif self.assume is None:
            self._resumed = {plan.file: plan for plan in lost if plan.file in new}
        self._note()
        if self.assume == "missing" and lost:
            self._write(lambda record, version: record.planned(new, version=version, token=_token))
        _refuse_changed([by_name[plan.file.name] for plan in replaced if plan.file in self.found], self.job)
        if undecided:
            raise _undecided(by_name[undecided[0].file.name].path, self.job)

    def append(self, source: Source, rows: SourceRows) -> AppendResult:
        """Append a file that is planned."""
        file = source.identity
        try:
            result, inserted = self._commit(self.record.plans[file], Append(place=self.place, rows=rows_of(rows)))
        except Undecided as error:
            raise _undecided(source.path, self.job) from error
        except (ClientError, SourceError) as error:
            if not getattr(error, "unknown", False):
                self._dropped.append(file)
            raise
        self._done.append(file)
        if time.monotonic() - self._noted > _NOTE_SECONDS:
            self._note()
        if result is None:
            return AppendResult(file=source.path, rows=0, version=None, duplicate=False)
        return AppendResult(
            file=source.path,
            rows=0 if result.duplicate else inserted,
            version=result.version,
            duplicate=result.duplicate,
        )

    def _commit(self, plan: Plan, change: Append) -> tuple[CommitResult | None, int]:
        """Commit the change under the uuids of the plan; (the result, the number of rows). None: there are no rows."""
        staged: StagedChange | None = None
        executions = 0

        def execute(again: Reexecution | None = None) -> StagedChange:
            nonlocal staged, executions
            with work_span("write"):
                staged = change(again)
            staged.transaction.uuid = plan.uuid(self.job, executions)
            if executions == 0 and plan.file in self._resumed:
                # Whether an earlier run has committed it is judged from the version on at which it was planned.
                staged.transaction.read_version = plan.version
                staged = replace(staged, read_uuid=None)
            executions += 1
            return staged

        while True:
            made = execute()
            if not made.changes:
                return None, 0
            try:
                result = self.client.commit(made, reexecute=execute, attempts=ATTEMPTS_MAX - executions + 1)
            except IncompatibleConflict:
                if executions >= ATTEMPTS_MAX:
                    raise
            else:
                assert staged is not None
                return result, staged.inserted

    @contextmanager
    def noting(self) -> Iterator[None]:
        """At the end of the block, however it ends, note which files are in the table."""
        try:
            yield
        finally:
            self._note()

    def _note(self) -> None:
        if self._done or self._dropped:
            done, dropped = self._done[:], self._dropped[:]
            self._write(lambda record, _: record.settled(done, dropped))
            del self._done[: len(done)], self._dropped[: len(dropped)]
        self._noted = time.monotonic()

    def _write(self, change: Callable[[Record, int], Record]) -> None:
        """Change the job's record in the table. If another run changes it at the same time, change what that made."""
        while True:
            dataset = self.place.open()
            stored = _record(dataset, self.job)
            made = change(stored, dataset.version)
            if made == stored:
                break
            entry = {jobs.key_of(self.job): jobs.text_of(made)}
            try:
                self.client.commit(update_config(dataset, table_metadata=entry))
                break
            except IncompatibleConflict:
                continue
        self.record = made


def _token() -> int:
    return secrets.randbits(64)


def _record(dataset: lance.LanceDataset, job: str) -> Record:
    metadata = dict(read_table(dataset).manifest.table_metadata)
    if jobs.key_of(job) not in metadata and f"committerd.app.{job}" in metadata:
        raise CommitterError(
            f"the table has no list of the files of job {job!r}, and knows an application of that name: an earlier "
            "committerd, which counted the files of a job, or another producer. Choose another --job, and give it only "
            "files that are not in the table",
            code="job_unreadable",
        )
    return jobs.record_in(metadata, job)


def _refuse_changed(changed: Sequence[Source], job: str) -> None:
    if changed:
        others = f", nor are {len(changed) - 1} others" if len(changed) > 1 else ""
        raise SourceError(
            f"{changed[0].path} is not the file any more that job {job!r} appended: its size or content has "
            f"changed{others}. Nothing of it was appended. Give the new content a name of its own, or append it under "
            "another --job"
        )


def _undecided(path: str, job: str) -> CommitterError:
    return CommitterError(
        f"an earlier run of job {job!r} was ended while it appended {path}, and the versions that would show whether "
        "its rows are in the table are cleaned up. Look for them, and run the command again with "
        "--undecided appended, or --undecided missing",
        code="undecided",
    )


def _span(source: Source) -> AbstractContextManager[None]:
    return work_span("append", {"committerd.file": source.path})


@contextmanager
def _naming(source: Source) -> Iterator[None]:
    """Errors about rows and schemas say which file they are about."""
    try:
        yield
    except TableMissing:
        raise
    except ClientError as error:
        error.args = (f"{error}\n  file: {source.path}", *error.args[1:])
        raise
    except (OSError, ValueError) as error:  # pylance's, of the table's store
        raise CommitterError(f"{error}\n  file: {source.path}", code="store_unavailable") from error
