"""What a compaction and an optimized index leave in the table's folder when they fail, and when they write data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from anyio import to_thread

from committerd.queue.outcomes import Status
from committerd_client import (
    ClientError,
    CommitTimeout,
    IncompatibleConflict,
    InvalidTransaction,
    RetryableConflict,
    Staged,
    SubmitFailed,
    TransactionTooLarge,
    staging,
)
from committerd_client.compacting import compact, optimize_index, require_committer
from committerd_client.reexecution import Reexecution
from committerd_client.results import CommitResult, CommitStatus
from committerd_client.staging.indices import index_names
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance

OPTIONS: Any = {"target_rows_per_fragment": 200}
DEAD = InvalidTransaction("no")
DEAD.offset = 7


class Queue:
    """A queue whose committer commits at once, unless the test has an error for the operation."""

    def __init__(self, uri: str, **errors: ClientError | None) -> None:
        """`errors`: by the name of the operation; they are raised each time."""
        self._uri, self._errors = uri, errors
        self.before: Callable[[str], Any] = lambda _: None
        """Called with the operation before it is judged."""
        self.timeouts: list[Any] = []
        self.operations: list[str] = []

    async def commit(
        self, transaction: Any, *, timeout: Any = None, reexecute: Any = None, attempts: int = 10
    ) -> CommitResult:
        self.timeouts.append(timeout)
        work, tries = transaction, 1
        while True:
            operation = work.transaction.WhichOneof("operation")
            self.operations.append(operation)
            if inspect.isawaitable(coming := self.before(operation)):
                await coming
            if (error := self._errors.get(operation)) is not None:
                raise error
            done = await commit(self._uri, work)
            if done.status is Status.COMMITTED:
                first, count = done.reserved
                return CommitResult(
                    uuid=work.transaction.uuid,
                    status=CommitStatus.COMMITTED,
                    version=done.version,
                    offset=len(self.operations),
                    operation=operation,
                    reserved=range(first, first + count) if count else None,
                    attempts=tries,
                )
            refused = RetryableConflict(done.message)
            if tries >= attempts or reexecute is None:
                raise refused
            tries += 1
            asked = Reexecution(error=refused, work=work, attempt=tries, attempts_max=attempts, seconds_left=None)
            made = (
                await reexecute(asked)
                if inspect.iscoroutinefunction(reexecute)
                else await to_thread.run_sync(reexecute, asked)
            )
            if made is None:
                raise refused
            work = made


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of 8 fragments with 50 rows, and an index."""
    rows = pa.table({"id": range(400), "text": [f"word{one}" for one in range(400)]})
    lance.write_dataset(rows, tmp_path / "t.lance", max_rows_per_file=50)
    lance.dataset(tmp_path / "t.lance").create_scalar_index("id", "BTREE")
    return str(tmp_path / "t.lance")


def files(uri: str) -> set[str]:
    found = {path.relative_to(uri).as_posix() for path in Path(uri).rglob("*") if path.is_file()}
    return {one for one in found if one.startswith(("data/", "_indices/"))}


def named(uri: str) -> set[str]:
    """The files that a version names."""
    keys: set[str] = set()
    for version in lance.dataset(uri).versions():
        table = lance.dataset(uri, version=version["version"])
        keys |= {f"data/{file.path}" for one in table.get_fragments() for file in one.data_files()}
        folders = [f"_indices/{one.uuid}/" for index in table.describe_indices() for one in index.segments]
        keys |= {one for one in files(uri) if one.startswith(tuple(folders))}
    return keys


def conflicting(uri: str) -> Callable[[str], None]:
    """Before the first Rewrite, another process compacts some of the fragments."""
    left = [100]

    def before(operation: str) -> None:
        if operation == "rewrite" and left:
            lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=left.pop())

    return before


async def compacted(queue: Queue, uri: str, **options: Any) -> Any:
    return await compact(queue, lambda: lance.dataset(uri), **OPTIONS, **options)


@pytest.mark.parametrize("error", [CommitTimeout("no committer"), SubmitFailed("no Kafka")])
async def test_nothing_is_written_while_no_committer_answers(uri: str, error: ClientError) -> None:
    before, queue = files(uri), Queue(uri, reserve_fragments=error)
    with pytest.raises(type(error)):
        await compacted(queue, uri)
    assert (files(uri), queue.operations) == (before, ["reserve_fragments"])
    with pytest.raises(type(error)):
        await require_committer(queue, lambda: lance.dataset(uri))


async def test_ids_are_reserved_once_and_before_data_is_written(uri: str) -> None:
    queue, seen, there = Queue(uri), [], files(uri)
    queue.before = lambda operation: seen.append((operation, files(uri) == there))
    done = await compacted(queue, uri)
    assert (done.fragments_removed, done.fragments_added) == (8, 2)
    assert seen == [("reserve_fragments", True), ("rewrite", False)]
    assert files(uri) == named(uri)
    assert await compacted(queue, uri) is None
    assert len(queue.operations) == 2


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (IncompatibleConflict("no"), False),
        (TransactionTooLarge("too large"), False),
        (InvalidTransaction("the client itself has refused it"), False),
        (DEAD, True),  # it may be replayed
        (CommitTimeout("no outcome"), True),
        (SubmitFailed("no answer"), True),
    ],
)
async def test_the_files_of_a_refused_rewrite_are_removed_and_those_of_an_unknown_outcome_stay(
    uri: str, error: ClientError, kept: bool
) -> None:
    before, queue = files(uri), Queue(uri, rewrite=error)
    with pytest.raises(type(error)):
        await compacted(queue, uri)
    assert before <= files(uri)
    assert bool(files(uri) - before) == kept
    assert len(lance.dataset(uri).to_table(filter="id = 77")) == 1


async def test_fragments_that_come_after_the_reservation_do_not_fail_the_next_execution(uri: str) -> None:
    others = staging.compact_files(lance.dataset(uri), groups=[[0, 1]])
    first, _ = (await commit(uri, staging.reserve_fragments(lance.dataset(uri), 1))).reserved
    queue = Queue(uri)

    async def before(operation: str) -> None:
        if operation == "rewrite" and queue.operations.count("rewrite") == 1:
            append(uri)
            assert (await commit(uri, others.rewrite([first]))).status is Status.COMMITTED

    queue.before = before
    done = await compacted(queue, uri, groups=[[0, 1], [4, 5, 6, 7]])
    assert (done.attempts, done.fragments_removed, done.fragments_added) == (2, 4, 1)
    assert queue.operations == ["reserve_fragments", "rewrite", "rewrite"]
    assert lance.dataset(uri).to_table(filter="id in (7, 399, 9001)").num_rows == 3
    assert lance.dataset(uri).describe_indices()[0].num_rows_indexed == 300, "others did not carry it along"
    assert files(uri) == named(uri)


@pytest.mark.parametrize("others", [[[0, 1]], [[0, 1], [4, 5, 6, 7]]], ids=["one group", "all"])
async def test_what_a_waiting_rewrite_replaces_is_not_rewritten_in_vain(uri: str, others: list[list[int]]) -> None:
    """It is that of an earlier call, say, which had no outcome in time: it is committed before the ids are reserved."""
    waiting = staging.compact_files(lance.dataset(uri), groups=others)
    first, count = (await commit(uri, staging.reserve_fragments(lance.dataset(uri), 2))).reserved
    queue, executed = Queue(uri), []

    async def before(operation: str) -> None:
        if operation == "reserve_fragments":
            assert (await commit(uri, waiting.rewrite(range(first, first + count)))).status is Status.COMMITTED

    def execute(dataset: lance.LanceDataset, tasks: Sequence[Any]) -> Iterator[Any]:
        executed.append(len(tasks))
        yield from staging.compaction.execute_here(dataset, tasks)

    queue.before = before
    done = await compacted(queue, uri, groups=[[0, 1], [4, 5, 6, 7]], execute=execute)
    if len(others) == 2:
        assert (done, executed, queue.operations) == (None, [], ["reserve_fragments"])
    else:
        assert (done.attempts, done.fragments_removed, executed) == (1, 4, [1])
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [*range(400)]
    assert files(uri) == named(uri)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_what_executions_that_were_refused_have_written_is_removed(uri: str, attempts: int) -> None:
    queue = Queue(uri)
    queue.before = conflicting(uri)
    if attempts == 1:
        with pytest.raises(RetryableConflict):
            await compacted(queue, uri, attempts=1)
    else:
        done = await compacted(queue, uri)
        assert (done.attempts, done.fragments_removed, done.fragments_added) == (2, 4, 2)
    assert files(uri) == named(uri)
    assert lance.dataset(uri).to_table(filter="id in (7, 399)").num_rows == 2


async def test_what_the_tasks_wrote_that_ended_before_one_failed_is_removed(uri: str) -> None:
    def execute(dataset: lance.LanceDataset, tasks: Sequence[Any]) -> Iterator[Any]:
        yield tasks[0].execute(dataset)
        raise OSError("no room")

    def remap(*_: Any) -> Any:
        raise OSError("no room for the index")

    before = files(uri)
    with pytest.raises(OSError, match="no room"):
        await compacted(Queue(uri), uri, execute=execute)
    assert files(uri) == before
    with pytest.raises(OSError, match="no room for the index"):
        await compacted(Queue(uri), uri, remap=remap)
    assert files(uri) == before


async def test_reexecutions_may_take_as_long_as_the_first_execution_suggests(uri: str) -> None:
    queue = Queue(uri)
    await compacted(queue, uri, timeout=60.0, patience=1000.0)
    assert queue.timeouts[0] == 60
    assert 60 < queue.timeouts[1] < 60 + 1000 * 60
    queue = Queue(uri)
    await optimize_index(queue, lambda: lance.dataset(uri), optimized, timeout=60.0, patience=1000.0)
    assert queue.timeouts == []


def optimized(dataset: lance.LanceDataset) -> Staged | None:
    return staging.optimize_indices(dataset, ["id_idx"])


def append(uri: str) -> None:
    lance.write_dataset(pa.table({"id": range(9000, 9100), "text": ["x"] * 100}), uri, mode="append")


@pytest.mark.parametrize(
    ("error", "kept"),
    [(RetryableConflict("lost each time"), False), (IncompatibleConflict("no"), False), (CommitTimeout("?"), True)],
)
async def test_the_files_of_an_index_that_was_refused_are_removed_and_the_error_is_raised(
    uri: str, error: ClientError, kept: bool
) -> None:
    append(uri)
    before = files(uri)
    with pytest.raises(type(error)):
        await optimize_index(Queue(uri, create_index=error), lambda: lance.dataset(uri), optimized)
    assert before <= files(uri)
    assert bool(files(uri) - before) == kept
    assert len(lance.dataset(uri).to_table(filter="id = 77")) == 1


async def test_an_index_that_others_have_optimized_meanwhile_is_done(uri: str) -> None:
    append(uri)
    queue = Queue(uri)
    queue.before = lambda _: lance.dataset(uri).optimize.optimize_indices()
    done = await optimize_index(queue, lambda: lance.dataset(uri), optimized)
    assert done is None or done.attempts == 1
    assert lance.dataset(uri).to_table(filter="id = 9001").num_rows == 1


@pytest.mark.parametrize("column", ["", "id", "text"], ids=["dropped", "made again", "made again on another column"])
async def test_an_index_that_others_drop_meanwhile_is_as_they_left_it(uri: str, column: str) -> None:
    """Between the work and its commit, of a compaction that carries the index and of one that extends it."""
    for operation in ("rewrite", "create_index"):
        append(uri)
        queue, left = Queue(uri), ["drop"]

        def before(given: str, wanted: str = operation, left: list[str] = left) -> None:
            if given == wanted and left:
                left.pop()
                lance.dataset(uri).drop_index("id_idx")
                if column:
                    lance.dataset(uri).create_scalar_index(column, "BTREE", name="id_idx")

        queue.before = before
        if operation == "rewrite":
            assert (await compacted(queue, uri)).fragments_removed > 2
        else:
            assert await optimize_index(queue, lambda: lance.dataset(uri), optimized_if_there) is None
        table = lance.dataset(uri)
        assert [(one.name, one.field_names) for one in table.describe_indices()] == [("id_idx", [column])][
            : bool(column)
        ]
        for filter in ("id = 77", "id = 399", "text = 'word77'"):
            assert table.to_table(filter=filter).num_rows == 1
        if not column:
            table.create_scalar_index("id", "BTREE")


def optimized_if_there(dataset: lance.LanceDataset) -> Staged | None:
    return staging.optimize_indices(dataset, index_names(dataset).intersection(["id_idx"]))
