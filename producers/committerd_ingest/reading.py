"""The port of readers: what `committerd ingest` needs of a source that is not Kafka.

A source has *splits*: ordered streams, such as the shards of a Kinesis stream, or one for a whole folder. A reader
yields the rows of a split in order, with *tokens*. A token is a text of the reader's own that says where to go on
behind these rows. It is kept in the table, in the transaction after which the rows are committed, so the reader itself
keeps nothing. `committerd_ingest.testing` has the tests that a reader must pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

TOKEN_CHARS_MAX = 300_000
"""Every version of the table carries the token of each split."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """What the source has in the place of a row, and which makes none."""

    number: int
    """Its place in what it comes from, such as the number of a line."""
    value: bytes
    """As the source has it."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The next rows of a split."""

    rows: pa.Table | pa.RecordBatch | None = None
    """None = none: with a token, what comes before it makes no rows."""
    token: str | None = None
    """Where to go on behind these rows. None: only behind a later part, so that all of them are committed together, or
    none."""
    bad: str = ""
    """Why the rows since the last token can't be used. Such a part has a token and no rows; what was yielded since the
    last token is dropped, and the split stops or goes on behind it (`ingest.on_error`)."""
    bad_rows: Sequence[BadRow] = ()
    """What made no row beside these rows: the split stops, or they are published or logged (`ingest.on_error`)."""
    origin: str = ""
    """Where the rows come from, for messages: such as the path of a file."""
    at_ms: int | None = None
    """When the oldest of these rows came into being: Unix milliseconds."""

    def __post_init__(self) -> None:
        if self.bad and (self.token is None or self.rows is not None or self.bad_rows):
            raise ValueError("a bad part has a token and no rows")
        if self.token is not None and len(self.token) > TOKEN_CHARS_MAX:
            raise ValueError(f"a token has {len(self.token):,} characters, and may have {TOKEN_CHARS_MAX:,}")


class ReaderStopped(Exception):
    """The reader can't go on before somebody acts. It is asked again after `ingest.retry_seconds`."""

    def __init__(self, reason: str, text: str) -> None:
        """`reason`: a word for logs, such as `folder_full`. `text`: what is wrong, and what to do."""
        super().__init__(text)
        self.reason = reason


class Reader(Protocol):
    """Reads one source. Its methods may block; they are called in threads, several at once."""

    @property
    def name(self) -> str:
        """Which source it is, such as the URI of a folder. Under another name everything is read again."""

    def splits(self) -> Sequence[str]:
        """The splits that there are now, at most some hundred: each takes one of the table's marks.

        It may be called at any time. A split keeps its name.
        """

    def read(self, split: str, after: str | None, table: pa.Schema | None) -> Iterator[Part | None]:
        """The parts of a split, behind the token `after`; None = from its beginning.

        Behind a token come the rows that follow it, whichever process yielded the token, and whenever. The parts up to
        a token have the same columns; they match the table's by name. Values may have other types than the table's, as
        long as nothing is lost.

        `table`: the schema of the table, for values without types; with mode `cdc`, that of envelopes with its rows in
        `before` and `after`. None = it does not exist yet.

        Where nothing comes, it yields None each second or so, and goes on; only then can rows be written in time, and
        the process end. An iterator that ends says that the split never has more. It is used in one thread, and closed
        where it is not needed any more. Raises `ReaderStopped`; any other error is logged, and the split is read again
        from the last token that is in the table.
        """

    def waiting(self, split: str) -> int:
        """How many records, files or the like the source has that were not yielded yet, as last seen; 0 if unknown."""

    def close(self) -> None:
        """Nothing more is read."""
