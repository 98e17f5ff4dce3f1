"""Which rows a transaction of a reader's split has."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from committerd_client.errors import StagingError
from committerd_client.panics import PANIC
from committerd_ingest.buffering import FlushLimits
from committerd_ingest.gathering import BadRows, BrokenReader, Ending, Gathering, OneByOne, Panicked
from committerd_ingest.reading import BadRow, Part

SOON = FlushLimits(rows=5, bytes=10**9, seconds=3600)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def part(*ids: int, token: str | None = None, at_ms: int | None = None) -> Part:
    return Part(rows=rows(*ids), token=token, at_ms=at_ms, origin="f")


class Run:
    """Takes transactions, and keeps what is written; the id 666 fits no table."""

    def __init__(self, parts: Sequence[Part | None], *, one_by_one: bool = False, limits: FlushLimits = SOON) -> None:
        self.ending, self.written, self.taken = threading.Event(), list[list[int]](), 0
        self.gathering = Gathering(
            self._counted(parts), token="0", limits=limits, ending=self.ending, one_by_one=one_by_one
        )

    def _counted(self, parts: Sequence[Part | None]) -> Iterator[Part | None]:
        for one in parts:
            self.taken += 1
            yield one

    def take(self) -> tuple[str | None, int] | None:
        found = self.gathering.take(self._write)
        return None if found is None else (found.token, found.rows)

    def _write(self, reader: pa.RecordBatchReader) -> None:
        if "other" in reader.schema.names:
            raise StagingError("the table has no such column")
        ids = []
        for batch in reader:
            ids += batch.column("id").to_pylist()
            if 666 in ids:
                raise StagingError("it does not fit")
        self.written.append(ids)


def test_rows_up_to_a_token_are_committed_together() -> None:
    run = Run([part(1), None, part(2), part(3, 4, 5, 6), part(7, token="7"), part(8, token="8"), None, None])
    assert run.take() == ("7", 7)
    limits = FlushLimits(rows=1, bytes=10**9, seconds=3600)
    run = Run([part(1, token="1"), part(2, token="2"), None], limits=limits)
    assert [run.take(), run.take(), run.take()] == [("1", 1), ("2", 1), None]
    assert run.written == [[1], [2]]


def test_a_transaction_ends_when_its_time_is_over() -> None:
    limits = FlushLimits(rows=100, bytes=10**9, seconds=0)
    run = Run([part(1, token="1"), part(2), part(3, token="3"), None], limits=limits)
    assert [run.take(), run.take(), run.take()] == [("1", 1), ("3", 2), None]


def test_it_ends_when_it_is_large() -> None:
    limits = FlushLimits(rows=100, bytes=1, seconds=3600)
    assert Run([part(1, token="1"), part(2, token="2")], limits=limits).take() == ("1", 1)


def test_the_oldest_row_counts() -> None:
    run = Run([part(1, at_ms=7), part(2, at_ms=5), part(3, 4, 5), part(6, token="x", at_ms=9)])
    found = run.gathering.take(run._write)
    assert found is not None
    assert (found.at_ms, found.bytes) == (5, 48)


def test_a_token_alone_moves_on() -> None:
    run = Run([Part(token="1"), part(token="2"), None])
    assert [run.take(), run.take()] == [("2", 0), None]
    assert run.written == []


def test_other_columns_begin_another_transaction() -> None:
    other = Part(rows=pa.table({"id": [2], "more": [1]}), token="2")
    run = Run([part(1, token="1"), other, *[None] * 3], limits=FlushLimits(rows=2, bytes=10**9, seconds=3600))
    assert run.take() == ("1", 1)
    with pytest.raises(BrokenReader, match="changed between two tokens"):
        Run([part(1), other]).take()


def test_a_split_that_has_no_more_ends() -> None:
    run = Run([part(1, token="1")])
    assert run.take() == ("1", 1)
    assert run.gathering.ended
    assert run.take() is None
    with pytest.raises(BrokenReader, match="ended behind rows"):
        Run([part(1)]).take()


def test_bad_rows_are_told_from_good_ones() -> None:
    bad = Part(token="2", bad="why")
    with pytest.raises(BadRows, match="why") as found:
        Run([part(1), bad]).take()
    assert found.value.token == "2"
    with pytest.raises(BadRows):
        Run([bad]).take()
    run = Run([part(1, token="1"), bad])
    assert run.take() == ("1", 1)
    with pytest.raises(BadRows):
        run.take()
    run = Run([Part(token="1"), bad])
    assert run.take() == ("1", 0)
    with pytest.raises(BadRows):
        run.take()
    with pytest.raises(OneByOne):
        Run([part(1, token="1"), part(2), bad]).take()


@pytest.mark.parametrize(
    ("parts", "token"),
    [
        ([part(666, token="1"), part(2, token="2")], "1"),
        ([part(1), part(666), part(3, token="3"), part(4, token="4")], "3"),
        ([part(1), part(666, token="3")], "3"),
        ([Part(rows=pa.table({"other": [1]}), token="1", origin="f"), part(2, token="2")], "1"),
        ([Part(rows=pa.table({"other": [1]}), origin="f"), None, part(2, token="2")], "2"),
    ],
)
def test_rows_that_do_not_fit_are_bad_up_to_their_token(parts: Sequence[Part | None], token: str) -> None:
    with pytest.raises(OneByOne):
        Run(parts).take()
    with pytest.raises(BadRows, match=r"^f: ") as found:
        Run(parts, one_by_one=True).take()
    assert found.value.token == token


def test_a_panic_makes_no_rows_bad() -> None:
    def panics(reader: pa.RecordBatchReader) -> None:
        reader.read_next_batch()
        raise StagingError("pylance panicked", code=PANIC)

    for one_by_one, raised in ((False, OneByOne), (True, Panicked)):
        run = Run([part(1, token="1"), None], one_by_one=one_by_one)
        with pytest.raises(raised, match="pylance panicked"):
            run.gathering.take(panics)


def test_one_by_one_each_token_is_a_transaction() -> None:
    run = Run([part(1, token="1"), part(2), part(666, token="2")], one_by_one=True)
    assert run.take() == ("1", 1)
    with pytest.raises(BadRows):
        run.take()
    with pytest.raises(BrokenReader):
        Run([part(666)], one_by_one=True).take()


def test_at_the_end_only_whole_rows_are_written() -> None:
    run = Run([part(1, token="1"), part(2), part(3, token="3")])
    run.ending.set()
    assert run.take() == ("1", 1)
    with pytest.raises(Ending):
        run.take()


def read(reader: pa.RecordBatchReader) -> None:
    reader.read_all()


def test_what_comes_before_an_error_of_the_reader_is_committed() -> None:
    def parts(*first: Part) -> Iterator[Part | None]:
        yield from first
        raise OSError("away")

    for first, token in (([part(1, token="1")], "1"), ([Part(token="1")], "1")):
        gathering = Gathering(parts(*first), token="0", limits=SOON, ending=threading.Event())
        found = gathering.take(read)
        assert found is not None
        assert found.token == token
        with pytest.raises(OSError, match="away"):
            gathering.take(lambda reader: None)
    for first in ([], [part(1)], [part(1, token="1"), part(2)]):
        with pytest.raises(OSError, match="away"):
            Gathering(parts(*first), token="0", limits=SOON, ending=threading.Event()).take(read)


def test_bad_rows_wait_for_their_token_beside_rows_and_without_any() -> None:
    def bad(number: int, token: str | None = None) -> Part:
        return Part(bad_rows=[BadRow(number, b"x", "why")], token=token, origin="f")

    run = Run([bad(1), None, bad(2), part(3, token="1"), bad(4), None, bad(5, token="2"), None])
    taken = []
    while (found := run.gathering.take(run._write)) is not None:
        taken.append((found.token, found.rows, [(origin, one.number) for origin, one in found.bad]))
    numbers = [number for _, _, each in taken for _, number in each]
    assert (numbers, taken[-1][0], run.written) == ([1, 2, 4, 5], "2", [[3]])
    with pytest.raises(BrokenReader):
        Run([bad(1)]).take()
    ending = Run([bad(1), None])
    ending.ending.set()
    with pytest.raises(Ending):
        ending.take()
    with pytest.raises(ValueError, match="a bad part has a token and no rows"):
        Part(bad="why", token="1", bad_rows=[BadRow(1, b"x", "why")])


def test_bad_rows_behind_a_token_are_settled_with_their_own() -> None:
    bad = Part(bad_rows=[BadRow(1, b"long", "why")], origin="f")
    run = Run([Part(token="1"), bad, Part(token="2"), None], limits=FlushLimits(rows=5, bytes=1, seconds=3600))
    found = run.gathering.take(run._write)
    assert found is not None
    assert (found.token, [one.number for _, one in found.bad]) == ("2", [1])
