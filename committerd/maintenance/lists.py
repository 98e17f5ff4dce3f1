"""All files of a table, and which versions name them, in a temporary database.

Memory stays small however many files there are: SQLite keeps the rows in a file of its own in TMPDIR, which it deletes
itself, and a few MiB of it in memory. The file takes about 600 bytes for each file that goes, and 250 for each other.

Files are deleted in turns. The turn of a manifest is its version, and that of a file the last version that names it. So
all that goes with a version has its turn, and nothing of it is left when a later turn begins.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from committerd.errors import CommitterError
from committerd.maintenance.files import File, FileUse, RemovalReason
from committerd.maintenance.names import owner

_CACHE_KIB = 4096
_PAGE = 1000
_KEPT = 2**62
"""The number of the version that stands for all that must stay."""
_LAST_TURNS = 2**62
"""The first turn of files that no version names."""

_SCHEMA = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -{_CACHE_KIB};
CREATE TABLE files (key TEXT PRIMARY KEY, size INTEGER, modified_ms INTEGER, owner TEXT) WITHOUT ROWID;
CREATE TABLE names (name TEXT PRIMARY KEY, version INTEGER) WITHOUT ROWID;
CREATE TABLE promised (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE going (
    turn INTEGER, later INTEGER, key TEXT, size INTEGER, modified_ms INTEGER, why TEXT, owner TEXT,
    PRIMARY KEY (turn, later, key)
) WITHOUT ROWID;
CREATE INDEX owners ON going (owner);
BEGIN;
"""

Going = tuple[File, RemovalReason]


class Lists:
    """The lists of one look at a table. For use by one thread at a time.

    `add`, `decide` and the sums take a time that grows with the number of files: call them in a thread. Every method
    may raise `CommitterError` (`no_temporary_file`) when there is no room for the temporary file.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._script(_SCHEMA)

    def close(self) -> None:
        """Delete the temporary file. Nothing else can be called then."""
        self._database.close()

    def add(self, files: Iterable[File]) -> None:
        """Add files of the table."""
        rows = ((one.key, one.size, one.modified_ms, owner(one.key)) for one in files)
        self._many("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", rows)

    def name(self, names: Iterable[str], version: int) -> None:
        """Add the names that a version gives. If several versions give a name, the highest version counts."""
        self._many(
            "INSERT INTO names VALUES (?, ?) ON CONFLICT DO UPDATE SET version = max(version, excluded.version)",
            ((one, version) for one in names),
        )

    def keep(self, names: Iterable[str]) -> None:
        """Keep the files with these names, whatever else is known or was decided."""
        given = iter(names)
        while page := list(islice(given, _PAGE)):
            self.name(page, _KEPT)
            self._many("DELETE FROM going WHERE owner = ?", ((one,) for one in page))

    def promise(self, keys: Iterable[str]) -> None:
        """Note the files that an earlier run was about to delete with their versions when it ended."""
        self._many("INSERT OR IGNORE INTO promised VALUES (?)", ((one,) for one in keys))

    def decide(
        self, why: Callable[[File, FileUse], RemovalReason | None], manifests: Mapping[str, int], *, above: int
    ) -> None:
        """Choose what goes: these manifests, keys with versions, and the files for which `why` gives a reason.

        A file stays if a version above `above` names it.
        """
        self._many(
            "INSERT INTO going SELECT ?, 0, key, size, modified_ms, ?, key FROM files WHERE key = ?",
            ((version, RemovalReason.MANIFEST.value, key) for key, version in manifests.items()),
        )
        alone = 0
        for page in self._standing():
            rows = []
            for key, size, modified_ms, name, version, promised in page:
                file = File(key=key, size=size, modified_ms=modified_ms)
                kept, removed = version is not None and version > above, version is not None and version <= above
                found = why(file, FileUse(kept=kept, removed=removed, promised=bool(promised)))
                if found is not None:
                    alone += not removed
                    turn = version if removed else _LAST_TURNS + alone // _PAGE
                    rows.append((turn, 1, key, size, modified_ms, found.value, name or key))
            self._many("INSERT OR IGNORE INTO going VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def next_turn(self, most: int) -> int | None:
        """The last turn of the next step, of about `most` files and at least one turn. None: nothing is left."""
        found, files = None, 0
        for turn, count in self._database.execute("SELECT turn, count(*) FROM going GROUP BY turn ORDER BY turn"):
            if found is not None and files + count > most:
                break
            found, files = turn, files + count
        return found

    def pages(self, turn: int, most: int) -> Iterator[list[Going]]:
        """All files that go in the turns up to `turn`, in the order in which they go, at most `most` at a time."""
        after: tuple[int, int, str] = (-1, 0, "")
        while rows := self._rows(
            "SELECT turn, later, key, size, modified_ms, why FROM going WHERE turn <= ? AND (turn, later, key) > "
            "(?, ?, ?) ORDER BY turn, later, key LIMIT ?",
            (turn, *after, most),
        ):
            after = rows[-1][:3]
            yield [_going(*row[2:]) for row in rows]

    def first(self, turn: int, most: int, *, manifests: bool) -> list[Going]:
        """The first `most` files that go in the turns up to `turn`: manifests, or else the other files."""
        rows = self._rows(
            "SELECT key, size, modified_ms, why FROM going WHERE turn <= ? AND later = ? ORDER BY turn, key LIMIT ?",
            (turn, int(not manifests), most),
        )
        return [_going(*row) for row in rows]

    def still(self, going: Iterable[Going]) -> list[Going]:
        """The files among these that still go."""
        select = "SELECT 1 FROM going WHERE owner = ? AND key = ?"
        return [one for one in going if self._rows(select, (owner(one[0].key) or one[0].key, one[0].key))]

    def deleted(self, going: Iterable[Going]) -> None:
        """These files have been deleted."""
        self._many(
            "DELETE FROM going WHERE owner = ? AND key = ?",
            ((owner(one.key) or one.key, one.key) for one, _ in going),
        )

    def go_with_versions(self, names: Iterable[str]) -> set[str]:
        """The names among these whose files go because their versions go."""
        select = "SELECT 1 FROM going WHERE owner = ? AND why = ? LIMIT 1"
        return {one for one in names if self._rows(select, (one, RemovalReason.VERSION.value))}

    def totals(self) -> dict[RemovalReason, tuple[int, int]]:
        """Number and bytes of what goes, by reason."""
        rows = self._rows("SELECT why, count(*), sum(size) FROM going GROUP BY why")
        return {RemovalReason(why): (count, size) for why, count, size in rows}

    def bytes_in_all(self) -> int:
        """Bytes of all files."""
        return int(self._rows("SELECT coalesce(sum(size), 0) FROM files")[0][0])

    def bytes_unneeded(self, *, above: int) -> int:
        """Bytes of the files that stay although nothing names them; only files that could have a name count."""
        (found,) = self._rows(
            "SELECT coalesce(sum(f.size), 0) FROM files f LEFT JOIN names n ON n.name = f.owner WHERE f.owner IS NOT "
            "NULL AND coalesce(n.version, 0) <= ? AND NOT EXISTS (SELECT 1 FROM going g WHERE g.owner = f.owner AND "
            "g.key = f.key)",
            (above,),
        )
        return int(found[0])

    def _standing(self) -> Iterator[list[tuple[str, int, int, str | None, int | None, int]]]:
        """Each file with its name, the last version that gives that name, and whether it is promised; in pages."""
        after = ""
        while rows := self._rows(
            "SELECT f.key, f.size, f.modified_ms, f.owner, n.version, p.key IS NOT NULL FROM files f LEFT JOIN names n "
            "ON n.name = f.owner LEFT JOIN promised p ON p.key = f.key WHERE f.key > ? ORDER BY f.key LIMIT ?",
            (after, _PAGE),
        ):
            after = rows[-1][0]
            yield rows

    def _rows(self, statement: str, values: Iterable[Any] = ()) -> list[Any]:
        try:
            return self._database.execute(statement, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise _no_room(error) from error

    def _many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        try:
            self._database.executemany(statement, rows)
        except sqlite3.Error as error:
            raise _no_room(error) from error

    def _script(self, statements: str) -> None:
        try:
            self._database.executescript(statements)
        except sqlite3.Error as error:
            raise _no_room(error) from error


def _going(key: str, size: int, modified_ms: int, why: str) -> Going:
    return File(key=key, size=size, modified_ms=modified_ms), RemovalReason(why)


def _no_room(error: sqlite3.Error) -> CommitterError:
    return CommitterError(
        f"maintenance needs a temporary file: {error}. Set TMPDIR to a folder with room for 600 bytes for each file of "
        "the table",
        code="no_temporary_file",
    )
