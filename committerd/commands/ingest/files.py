"""The reader of a folder of files: Parquet, Arrow, CSV and JSON lines, each file once and in one transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from committerd.commands.append.formats import SourceRows
from committerd.commands.append.sources import FORMATS, FileThere, Folder, Source
from committerd.commands.ingest.done_files import DoneFiles, FileMark, file_mark, names_of
from committerd.commands.ingest.json_lines import Check, good_lines
from committerd.commands.ingest.watched_files import WatchedFiles
from committerd.errors import SourceError
from committerd_ingest.reading import BadRow, Part

_log = logging.getLogger(__name__)

_SPLIT = "files"
_SLICE_SECONDS = 0.5

_Rows = tuple[pa.Table | pa.RecordBatch, Sequence[BadRow]]


class FolderReader:
    """Reads the files of a folder in the order of their last changes, and those that are added later."""

    def __init__(self, folder: Folder, *, list_seconds: float, check_line: Check | None = None) -> None:
        """`list_seconds`: the time between two listings. `check_line`: says of rows whether they can be used, so that
        bad lines of JSON are told from good ones; None = a bad line makes its whole file bad."""
        self._folder, self._list_seconds, self._check_line = folder, list_seconds, check_line
        self._waiting = 0
        self.name = f"files {folder.name}"

    def splits(self) -> Sequence[str]:
        """One: the files have an order. Raises `SourceError` for a local folder that does not exist."""
        self._folder.require()
        return [_SPLIT]

    def waiting(self, split: str) -> int:
        """The files that are not done."""
        return self._waiting

    def close(self) -> None:
        """Nothing is open."""

    def read(self, split: str, after: str | None, table: pa.Schema | None) -> Iterator[Part | None]:
        """The files that are not done. Text files get the types of the table."""
        done = DoneFiles(after)
        before: Mapping[str, FileThere] = {}
        while True:
            listed = sorted(self._folder.list(), key=lambda one: (one.mtime_ns, one.path))
            marks = {one.path: self._mark(one) for one in listed}
            new = [one for one in listed if one.size and not done.has(marks[one.path])]
            self._waiting = len(new)
            there = names_of(marks.values())
            for one in new:
                mark = marks[one.path]
                done.make_room(mark, there)
                if done.changed(mark):
                    yield _bad(
                        done.add(mark),
                        one,
                        "it was read before, and its size or time of change is another now. A file is read once: put "
                        "new rows into a file of another name",
                    )
                elif self._whole(one, before):
                    yield from self._parts(one, partial(done.add, mark), table)
                else:
                    continue
                self._waiting -= 1
            before = {one.path: one for one in listed}
            until = time.monotonic() + self._list_seconds
            while (left := until - time.monotonic()) > 0:
                yield None
                time.sleep(min(left, _SLICE_SECONDS))
            yield None

    def _mark(self, file: FileThere) -> FileMark:
        return file_mark(file.name, file.size, file.mtime_ns)

    def _whole(self, file: FileThere, before: Mapping[str, FileThere]) -> bool:
        """Whether nobody writes the file any more, as far as can be seen; objects of a store come whole."""
        if not self._folder.local or before.get(file.path) == file:
            return True
        return time.time_ns() - file.mtime_ns > self._list_seconds * 1e9

    def _parts(self, file: FileThere, token: Callable[[], str], table: pa.Schema | None) -> Iterator[Part]:
        """The rows of a file. The last part has the token."""
        if file.source is None:
            yield _bad(token(), file, f"its name does not say its format ({', '.join(FORMATS[:-1])})")
            return
        try:
            for good, bad in self._rows(file.source, table):
                yield Part(rows=good, bad_rows=bad, origin=file.path, at_ms=file.mtime_ns // 1_000_000)
        except SourceError as error:
            self._folder.require_same(file)
            if isinstance(error.__cause__, OSError):
                self._require_bad(file.source, table, error)
            yield _bad(token(), file, str(error).removeprefix(file.path).lstrip(" :"))
            return
        self._folder.require_same(file)
        _log.info("ingest.file_read", extra={"file": file.path})
        yield Part(token=token(), origin=file.path)

    def _rows(self, source: Source, table: pa.Schema | None) -> Iterator[_Rows]:
        """The rows of a file, and the lines that make none. Raises `SourceError`."""
        if self._check_line is not None and table is not None and source.kind == "json":
            yield from good_lines(source, table, self._check_line)
        else:
            yield from ((batch, ()) for batch in SourceRows(source, table).to_reader())

    def _require_bad(self, source: Source, table: pa.Schema | None, error: SourceError) -> None:
        """Raise unless what the file holds makes its reading fail: pyarrow raises `OSError` for that too.

        The file is read again, and the errors of its store are told from others. A file that can be read by now is
        good: `error` is raised, and the split reads it again.
        """
        watched = WatchedFiles(source.files)
        try:
            for _ in self._rows(replace(source, files=watched), table):
                pass
        except SourceError:
            if watched.failed is None:
                return
            raise
        raise error


def _bad(token: str, file: FileThere, why: str) -> Part:
    return Part(token=token, bad=f"{file.path}: {why}", origin=file.path)
