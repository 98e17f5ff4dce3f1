"""The rows of one transaction, taken from the parts that a reader yields. It does no I/O of its own.

They are streamed, so that the rows of a large part need not be in memory together. A transaction ends at a token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from committerd_client.errors import StagingError
from committerd_client.panics import PANIC
from committerd_ingest.buffering import FlushLimits
from committerd_ingest.reading import BadRow, Part


class BadRows(Exception):
    """The rows up to a token can't be used, and nothing else is in the transaction."""

    def __init__(self, token: str, why: str, origin: str) -> None:
        super().__init__(why)
        self.token, self.origin = token, origin


class OneByOne(Exception):
    """Some of these rows can't be used: they are to be read again, a transaction for each token."""


class Panicked(Exception):
    """pylance panicked over rows that may be good."""


class Ending(Exception):
    """The process ends in the midst of rows without a token."""


class BrokenReader(Exception):
    """The reader breaks its contract."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a transaction takes a split to."""

    token: str | None
    rows: int
    """0: nothing was written."""
    bytes: int
    """What the rows take in memory."""
    at_ms: int | None
    """When the oldest row came into being."""
    bad: Sequence[tuple[str, BadRow]] = ()
    """What made no row, each with where it comes from."""


class Gathering:
    """Takes the parts of one iterator of a reader."""

    def __init__(
        self,
        parts: Iterator[Part | None],
        *,
        token: str | None,
        limits: FlushLimits,
        ending: threading.Event,
        one_by_one: bool = False,
        asking: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`token`: where the iterator begins. `ending`: set when the process ends. `one_by_one`: a transaction ends at
        each token. `asking`: called with True when the reader is asked for a part, and with False behind it."""
        self._parts, self._limits, self._ending, self._asking = parts, limits, ending, asking
        self._one_by_one = one_by_one
        self._token = token
        self._held: Part | None = None
        self.ended = False
        """Whether the split never has more."""
        self._clean = True
        """Whether the last part had a token."""
        self._under_way: Part | None = None
        """A part that is taken, and whose token counts when its rows are."""
        self._origin = ""
        self._failed: Exception | None = None
        """What the reader has raised behind a token: what comes before is committed first."""
        self._rows = self._bytes = self._tokens = 0
        self._at_ms: int | None = None
        self._bad: list[tuple[str, BadRow]] = []
        self._began = 0.0

    def take(self, write: Callable[[pa.RecordBatchReader], None]) -> Gathered | None:
        """The next transaction; None if nothing has come. It blocks.

        `write` reads all rows, if there are any. Raises `BadRows`, `OneByOne`, `Panicked`, `Ending`, `BrokenReader`,
        and what the reader and `write` raise.
        """
        self._rows = self._bytes = self._tokens = 0
        self._at_ms, self._bad, self._clean, self._began = None, [], True, time.monotonic()
        self._under_way, token = None, self._token
        try:
            first = self._first()
            if first is not None:
                assert first.rows is not None
                self._under_way, self._origin, self._began = first, first.origin, time.monotonic()
                write(pa.RecordBatchReader.from_batches(first.rows.schema, self._stream(first)))
        except StagingError as error:
            if not self._one_by_one:
                raise OneByOne(str(error)) from error
            origin = self._origin
            why = f"{origin}: {error}" if origin else str(error)
            if error.code == PANIC:
                raise Panicked(why) from error
            raise BadRows(self._behind(), why, origin) from error
        except BadRows:
            if not self._one_by_one and self._tokens:
                raise OneByOne from None
            raise
        if not self._rows and self._token == token:
            return None
        return Gathered(self._token, self._rows, self._bytes, self._at_ms, self._bad)

    def _first(self) -> Part | None:
        """The first part with rows; None if nothing comes, or tokens alone."""
        while True:
            part = self._next()
            if part is None:
                if self._clean:
                    return None
                if self.ended:
                    raise BrokenReader("the reader has ended behind bad rows without a token")
                if self._ending.is_set():
                    raise Ending
                continue
            if part.rows is not None and part.rows.num_rows:
                return part
            if part.bad and self._tokens:
                self._held = part
                return None
            self._end_of(part)
            if self._tokens and self._clean and self._due():
                return None

    def _stream(self, part: Part | None) -> Iterator[pa.RecordBatch]:
        assert part is not None
        assert part.rows is not None
        schema = part.rows.schema
        while True:
            if part is None:
                if self.ended and not self._clean:
                    raise BrokenReader("the reader has ended behind rows without a token")
            elif self._clean and (part.bad or (part.rows is not None and part.rows.schema != schema)):
                self._held = part
                return
            elif part.rows is not None and part.rows.schema != schema:
                now = part.rows.schema.names
                raise BrokenReader(f"the columns changed between two tokens, from {schema.names} to {now}")
            else:
                self._under_way, self._origin = part, part.origin
                if part.rows is not None:
                    self._clean = False
                    self._rows += part.rows.num_rows
                    self._bytes += part.rows.nbytes
                    if part.at_ms is not None:
                        self._at_ms = part.at_ms if self._at_ms is None else min(self._at_ms, part.at_ms)
                    yield from part.rows.to_batches() if isinstance(part.rows, pa.Table) else [part.rows]
                self._end_of(part)
            if self._clean and self._due():
                return
            if self._ending.is_set():
                raise Ending
            part = self._next()

    def _end_of(self, part: Part) -> None:
        """Note the token of a part. Raises `BadRows`."""
        if part.bad:
            assert part.token is not None
            raise BadRows(part.token, part.bad, part.origin)
        if part.bad_rows:
            self._bad += [(part.origin, one) for one in part.bad_rows]
            self._bytes += sum(len(one.value) for one in part.bad_rows)
            self._clean = False
        if part.token is not None:
            self._token, self._clean = part.token, True
            self._tokens += 1
        self._under_way = None

    def _due(self) -> bool:
        limits = self._limits
        return (
            self._one_by_one
            or self.ended
            or self._failed is not None
            or self._ending.is_set()
            or self._rows >= limits.rows
            or self._bytes >= limits.bytes
            or time.monotonic() >= self._began + limits.seconds
        )

    def _next(self) -> Part | None:
        held, self._held = self._held, None
        if held is not None or self.ended:
            return held
        if self._failed is not None:
            raise self._failed
        self._asking(True)
        try:
            return next(self._parts)
        except StopIteration:
            self.ended = True
            return None
        except Exception as error:
            if not self._tokens or not self._clean:
                raise
            self._failed = error
            return None
        finally:
            self._asking(False)

    def _behind(self) -> str:
        """The token behind the rows that can't be used."""
        part = self._under_way
        if part is None and self._clean and self._token is not None:
            return self._token
        while part is None or part.token is None:
            if self.ended:
                raise BrokenReader("the reader has ended behind rows without a token")
            if self._ending.is_set():
                raise Ending
            part = self._next()
        return part.token
