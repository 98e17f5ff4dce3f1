"""The contract of every reader (`committerd_ingest.reading`)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

import pyarrow as pa
import pytest

from committerd_client.data import rows_of
from committerd_ingest.reading import Part, Reader

_SECONDS_MAX = 120.0
"""How long a test waits for what must come."""

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
"""The table of the tests."""


class Supply(Protocol):
    """A source for a test, which is empty at first."""

    def add(self, first: int, count: int) -> None:
        """Add rows with the columns of `SCHEMA`, whose ids are `first`, `first` + 1 and so on, in this order.

        If the source has several splits, all rows of one call are in one of them. They can be read when it returns.
        """

    def open(self) -> Reader:
        """A reader of the source, as each process opens one."""


@dataclass
class _Seen:
    """What a test has read of one split."""

    parts: list[Part] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    tokens: list[tuple[str, int]] = field(default_factory=list)
    """Each with the number of rows before it."""

    def add(self, part: Part) -> None:
        assert not part.bad, part.bad
        self.parts.append(part)
        if part.rows is not None:
            _, batches = rows_of(part.rows).read(SCHEMA, fill=True)
            self.ids += [one for batch in batches for one in batch.column("id").to_pylist()]
        if part.token is not None:
            self.tokens.append((part.token, len(self.ids)))


class ReaderTests:
    """Subclass it with a name that begins with `Test`, and override the fixture `source`."""

    @pytest.fixture
    def source(self) -> Supply:
        """A source without rows."""
        pytest.fail("override the fixture source: it returns a source without rows")

    @pytest.fixture
    def reader(self, source: Supply) -> Iterator[Reader]:
        """A reader of the source."""
        reader = source.open()
        yield reader
        reader.close()

    def test_name_and_splits_are_the_same_for_each_process(self, source: Supply, reader: Reader) -> None:
        source.add(0, 3)
        other = source.open()
        try:
            assert reader.name == other.name
            assert reader.name
            assert sorted(reader.splits()) == sorted(other.splits())
            assert all(isinstance(one, str) for one in reader.splits())
            assert len({*reader.splits()}) == len(reader.splits())
        finally:
            other.close()

    def test_where_nothing_comes_the_iterator_goes_on(self, source: Supply, reader: Reader) -> None:
        for split in reader.splits():
            parts = reader.read(split, None, SCHEMA)
            assert [_rows(next(parts)), _rows(next(parts))] == [0, 0]
            _close(parts)

    def test_rows_come_once_and_in_their_order(self, source: Supply, reader: Reader) -> None:
        for first in (0, 5, 10):
            source.add(first, 5)
        seen = _read_all(reader, 15)
        assert sorted(one for each in seen.values() for one in each.ids) == list(range(15))
        for each in seen.values():
            assert each.ids == sorted(each.ids)

    def test_a_token_follows_all_rows(self, source: Supply, reader: Reader) -> None:
        source.add(0, 7)
        for each in _read_all(reader, 7).values():
            assert not each.ids or each.tokens[-1][1] == len(each.ids)

    def test_behind_each_token_come_the_rows_that_follow_it(self, source: Supply, reader: Reader) -> None:
        for first in (0, 4, 8):
            source.add(first, 4)
        for split, seen in _read_all(reader, 12).items():
            for token, count in seen.tokens:
                other = source.open()  # as another process, later
                try:
                    kept = json.loads(json.dumps(token))
                    assert _read(other, split, kept, len(seen.ids) - count).ids == seen.ids[count:]
                finally:
                    other.close()

    def test_a_token_may_be_used_twice_at_once(self, source: Supply, reader: Reader) -> None:
        source.add(0, 4)
        tokens = {split: seen.tokens[-1] for split, seen in _read_all(reader, 4).items() if seen.tokens}
        source.add(4, 2)
        source.add(6, 2)
        for split, seen in _read_all(reader, 8).items():
            if split in tokens:
                token, count = tokens[split]
                behind = seen.ids[count:]
                running = {name: (_Seen(), reader.read(split, token, SCHEMA)) for name in ("one", "other")}
                _turn(running, partial(_have_all, running, len(behind)))
                for found, parts in running.values():
                    _close(parts)
                    assert found.ids == behind

    def test_rows_that_are_added_come_to_an_iterator_that_waits(self, source: Supply, reader: Reader) -> None:
        source.add(0, 3)
        running = {split: (_Seen(), reader.read(split, None, SCHEMA)) for split in reader.splits()}

        def count() -> int:
            return sum(len(seen.ids) for seen, _ in running.values())

        _turn(running, lambda: count() >= 3)
        source.add(3, 3)
        for split in reader.splits():
            running.setdefault(split, (_Seen(), reader.read(split, None, SCHEMA)))
        _turn(running, lambda: count() >= 6)
        assert sorted(one for seen, _ in running.values() for one in seen.ids) == list(range(6))
        for _, parts in running.values():
            _close(parts)

    def test_an_iterator_that_is_closed_leaves_nothing_behind(self, source: Supply, reader: Reader) -> None:
        source.add(0, 6)
        for split in reader.splits():
            parts = reader.read(split, None, SCHEMA)
            next(parts)
            _close(parts)
        assert sorted(one for each in _read_all(reader, 6).values() for one in each.ids) == list(range(6))

    def test_parts_up_to_a_token_have_the_same_columns(self, source: Supply, reader: Reader) -> None:
        source.add(0, 50)
        for seen in _read_all(reader, 50).values():
            columns: pa.Schema | None = None
            for part in seen.parts:
                if part.rows is not None:
                    assert columns is None or part.rows.schema == columns
                    columns = part.rows.schema
                if part.token is not None:
                    columns = None

    def test_what_waits_is_counted(self, source: Supply, reader: Reader) -> None:
        source.add(0, 2)
        _read_all(reader, 2)
        assert all(reader.waiting(split) >= 0 for split in reader.splits())


def _rows(part: Part | None) -> int:
    return 0 if part is None or part.rows is None else part.rows.num_rows


def _close(parts: Iterator[Part | None]) -> None:
    close = getattr(parts, "close", None)
    if close is not None:
        close()


def _read(reader: Reader, split: str, token: str | None, count: int) -> _Seen:
    """The rows behind a token, of which there are so many; more would show, since it reads until no more waits."""
    running = {split: (_Seen(), reader.read(split, token, SCHEMA))}
    _turn(running, partial(_have_all, running, count))
    seen, parts = running[split]
    _close(parts)
    return seen


_Running: TypeAlias = "dict[str, tuple[_Seen, Iterator[Part | None]]]"
"""Iterators that are read in turn, and what each has yielded."""


def _have_all(running: _Running, count: int) -> bool:
    """Whether each has yielded so many rows."""
    return all(len(seen.ids) >= count for seen, _ in running.values())


def _turn(running: _Running, done: Callable[[], bool]) -> None:
    """Read one item of each in turn until it is done, and then until none has more."""
    until = time.monotonic() + _SECONDS_MAX
    while True:
        quiet = True
        for seen, parts in running.values():
            part = next(parts, None)
            if part is not None:
                quiet = False
                seen.add(part)
        if quiet and done():
            return
        assert time.monotonic() < until, f"waited {_SECONDS_MAX:.0f} s for rows"


def _read_all(reader: Reader, count: int) -> dict[str, _Seen]:
    """All rows, of which there are so many, by their splits."""
    running = {split: (_Seen(), reader.read(split, None, SCHEMA)) for split in reader.splits()}
    _turn(running, lambda: sum(len(seen.ids) for seen, _ in running.values()) >= count)
    for _, parts in running.values():
        _close(parts)
    return {split: seen for split, (seen, _) in running.items()}
