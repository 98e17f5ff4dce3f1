"""A temporary file for an audit's facts about each record: about 1 GiB for ten million records.

It is an SQLite database without a journal, because nobody needs the file after the process ends.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from contextlib import suppress
from typing import Self

from committerd.audit.history import Entry
from committerd.errors import CommitterError
from committerd_common.messages import Status as StatusNumber

_CACHE_KIB = 1024
_WRITTEN_AT_ONCE = 1000
"""The number of rows that are collected in memory, to be written in the order of their keys."""

_SCHEMA = """
CREATE TABLE entries (
    topic INTEGER, offset INTEGER, at INTEGER, era INTEGER, status INTEGER, version INTEGER, reason INTEGER, uuid TEXT,
    PRIMARY KEY (topic, offset)
) WITHOUT ROWID;
CREATE TABLE uuids (key BLOB PRIMARY KEY, value INTEGER) WITHOUT ROWID;
CREATE TABLE outcomes (key INTEGER PRIMARY KEY, value INTEGER);
"""


class Spill:
    """A temporary file, which exists until the context manager exits. For use by one thread.

    Raises `CommitterError` (`no_temporary_file`) if the file can't be created.
    """

    def __init__(self) -> None:
        try:
            handle, self._path = tempfile.mkstemp(prefix="committerd-audit-", suffix=".sqlite")
            os.close(handle)
            self._database = sqlite3.connect(self._path, isolation_level=None)
            # SQLite requires the pragmas before the first table. Everything is one transaction.
            self._database.executescript(
                f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{_CACHE_KIB};"
                f"PRAGMA locking_mode = EXCLUSIVE; {_SCHEMA} BEGIN;"
            )
        except (OSError, sqlite3.Error) as error:
            raise CommitterError(
                f"the audit needs a temporary file: {error}. Set TMPDIR to a folder with room for 150 bytes a record",
                code="no_temporary_file",
            ) from error
        self.entries = SpilledEntries(self._database)
        self.uuids = Uuids(self._database)
        self.outcome_numbers = OutcomeNumbers(self._database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)


class SpilledEntries:
    """An `EntryMap` in the file."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._waiting: dict[tuple[int, int], Entry] = {}
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def get(self, topic_id: str, offset: int) -> Entry | None:
        """The record's entry; None if it has none."""
        topic = self._number(topic_id)
        waiting = self._waiting.get((topic, offset))
        if waiting is not None:
            return waiting
        row = self._database.execute(
            "SELECT at, era, status, version, reason, uuid FROM entries WHERE topic = ? AND offset = ?", (topic, offset)
        ).fetchone()
        if row is None:
            return None
        at, era, status, version, reason, uuid = row
        return Entry(
            at=at,
            era=era,
            status=StatusNumber.ValueType(status),
            version=version,
            reason=self._texts[reason],
            uuid=uuid,
        )

    def put(self, topic_id: str, offset: int, entry: Entry) -> None:
        """Set the record's entry, in place of an earlier one."""
        self._waiting[self._number(topic_id), offset] = entry
        if len(self._waiting) >= _WRITTEN_AT_ONCE:
            self._write()

    def count_below(self, topic_id: str, offset: int) -> int:
        """The number of entries below an offset of a topic."""
        self._write()
        (count,) = self._database.execute(
            "SELECT count(*) FROM entries WHERE topic = ? AND offset < ?", (self._number(topic_id), offset)
        ).fetchone()
        return int(count)

    def _write(self) -> None:
        rows = (
            (topic, offset, one.at, one.era, one.status, one.version, self._number(one.reason), one.uuid)
            for (topic, offset), one in sorted(self._waiting.items(), key=lambda item: item[0])
        )
        self._database.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._waiting.clear()

    def _number(self, text: str) -> int:
        """The number that stands for a text in the file; there are few different reasons and topics."""
        if text not in self._numbers:
            self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return self._numbers[text]


class Uuids:
    """The version that holds each transaction, by a 128-bit hash of its uuid. In practice no two uuids share a hash."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._waiting: dict[bytes, int] = {}

    def get(self, uuid: str) -> int | None:
        """The version of this uuid; None if it has none."""
        key = _digest(uuid)
        waiting = self._waiting.get(key)
        if waiting is not None:
            return waiting
        row = self._database.execute("SELECT value FROM uuids WHERE key = ?", (key,)).fetchone()
        return None if row is None else int(row[0])

    def put(self, uuid: str, version: int) -> None:
        """Set the version of this uuid, in place of an earlier one."""
        self._waiting[_digest(uuid)] = version
        if len(self._waiting) >= _WRITTEN_AT_ONCE:
            self._database.executemany("INSERT OR REPLACE INTO uuids VALUES (?, ?)", sorted(self._waiting.items()))
            self._waiting.clear()


class OutcomeNumbers:
    """A signed 64-bit number for each record that has an outcome, by offset (`Audit.outcome_numbers`)."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._waiting: dict[int, int] = {}

    def get(self, offset: int) -> int | None:
        """The number of this offset; None if it has none."""
        waiting = self._waiting.get(offset)
        if waiting is not None:
            return waiting
        row = self._database.execute("SELECT value FROM outcomes WHERE key = ?", (offset,)).fetchone()
        return None if row is None else int(row[0])

    def put(self, offset: int, value: int) -> None:
        """Set the number of this offset, in place of an earlier one."""
        self._waiting[offset] = value
        if len(self._waiting) >= _WRITTEN_AT_ONCE:
            self._database.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", sorted(self._waiting.items()))
            self._waiting.clear()


def _digest(uuid: str) -> bytes:
    return hashlib.blake2b(uuid.encode(), digest_size=16).digest()
