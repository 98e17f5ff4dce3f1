"""A temporary file for what an audit knows of each record: about 1 GiB for ten million records.

It is an SQLite database without a journal, because nobody needs the file after the process has ended.
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

_CACHE_KIB = 4 * 1024
_WRITTEN_AT_ONCE = 4000
"""Rows that wait in memory, so that they are written in the order of their keys."""

_SCHEMA = """
CREATE TABLE entries (
    topic INTEGER, offset INTEGER, at INTEGER, era INTEGER, status INTEGER, version INTEGER, reason INTEGER, uuid TEXT,
    PRIMARY KEY (topic, offset)
) WITHOUT ROWID;
CREATE TABLE uuids (key BLOB PRIMARY KEY, value INTEGER) WITHOUT ROWID;
CREATE TABLE told (key INTEGER PRIMARY KEY, value INTEGER);
"""


class Spill:
    """A temporary file, which is gone when the context manager ends. Used by one thread.

    Raises `CommitterError` where no file can be made.
    """

    def __init__(self) -> None:
        try:
            handle, self._path = tempfile.mkstemp(prefix="committerd-audit-", suffix=".sqlite")
            os.close(handle)
            self._database = sqlite3.connect(self._path, isolation_level=None)
            # The settings of the file come before its first table, and all is one transaction.
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
        self.told = Told(self._database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)


class SpilledEntries:
    """How versions answer records, by topic id and offset."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._waiting: dict[tuple[int, int], Entry] = {}
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def get(self, topic_id: str, offset: int) -> Entry | None:
        """The entry that was put last."""
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
        """Keep an entry in place of what was there."""
        self._waiting[self._number(topic_id), offset] = entry
        if len(self._waiting) >= _WRITTEN_AT_ONCE:
            self._write()

    def count_below(self, topic_id: str, offset: int) -> int:
        """How many entries there are below an offset."""
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
        """That stands for a text: there are few reasons and topics."""
        if text not in self._numbers:
            self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return self._numbers[text]


class Uuids:
    """In which version a transaction is, by a hash of its uuid that no two of them share."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._waiting: dict[bytes, int] = {}

    def get(self, uuid: str) -> int | None:
        """The version that was put last."""
        key = _digest(uuid)
        waiting = self._waiting.get(key)
        if waiting is not None:
            return waiting
        row = self._database.execute("SELECT value FROM uuids WHERE key = ?", (key,)).fetchone()
        return None if row is None else int(row[0])

    def put(self, uuid: str, version: int) -> None:
        """Keep a version in place of what was there."""
        self._waiting[_digest(uuid)] = version
        if len(self._waiting) >= _WRITTEN_AT_ONCE:
            self._database.executemany("INSERT OR REPLACE INTO uuids VALUES (?, ?)", sorted(self._waiting.items()))
            self._waiting.clear()


class Told:
    """What outcomes say, by the offset of their record: a number of 64 bits with a sign."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._waiting: dict[int, int] = {}

    def get(self, offset: int) -> int | None:
        """The number that was put last."""
        waiting = self._waiting.get(offset)
        if waiting is not None:
            return waiting
        row = self._database.execute("SELECT value FROM told WHERE key = ?", (offset,)).fetchone()
        return None if row is None else int(row[0])

    def put(self, offset: int, said: int) -> None:
        """Keep a number in place of what was there."""
        self._waiting[offset] = said
        if len(self._waiting) >= _WRITTEN_AT_ONCE:
            self._database.executemany("INSERT OR REPLACE INTO told VALUES (?, ?)", sorted(self._waiting.items()))
            self._waiting.clear()


def _digest(uuid: str) -> bytes:
    return hashlib.blake2b(uuid.encode(), digest_size=16).digest()
