"""Which files of a folder are in the table: the token of the reader of files. No I/O.

A token has 15 bytes for each file: who it is (its path below the folder), and what it holds (its size and the time of
its last change). They stand in the order in which the files were read, so that a token continues the one before it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from committerd_ingest.reading import ReaderStopped

FILES_MAX = 10_000
"""Files that a token may hold. Each adds 20 bytes to every later version of the table."""
_NAME_BYTES = 8
_CONTENT_BYTES = 7
_FILE_BYTES = _NAME_BYTES + _CONTENT_BYTES
_FORMAT = "1:"


@dataclass(frozen=True, slots=True)
class FileMark:
    """A file as a token names it."""

    name: bytes
    content: bytes


def file_mark(name: str, size: int, mtime_ns: int) -> FileMark:
    """`name`: path below the folder. `mtime_ns`: Unix nanoseconds."""
    return FileMark(
        _hash(name.encode("utf-8", "surrogateescape"), _NAME_BYTES), _hash(b"%d:%d" % (size, mtime_ns), _CONTENT_BYTES)
    )


class DoneFiles:
    """The files that are in the table, or were passed over."""

    def __init__(self, token: str | None) -> None:
        """`token`: None = no file. Raises `ValueError` for a text that is no token."""
        self._content: dict[bytes, bytes] = {}
        if token is None:
            return
        try:
            if not token.startswith(_FORMAT):
                raise ValueError("its format is unknown")
            raw = base64.b64decode(token.removeprefix(_FORMAT), validate=True)
            if len(raw) % _FILE_BYTES:
                raise ValueError("it is cut off")
        except (ValueError, binascii.Error) as error:
            raise ValueError(f"{token[:100]!r} is no token of the reader of files: {error}") from error
        for at in range(0, len(raw), _FILE_BYTES):
            self._content[raw[at : at + _NAME_BYTES]] = raw[at + _NAME_BYTES : at + _FILE_BYTES]

    def __len__(self) -> int:
        return len(self._content)

    def has(self, file: FileMark) -> bool:
        """Whether the file is done."""
        return self._content.get(file.name) == file.content

    def changed(self, file: FileMark) -> bool:
        """Whether a file of this name is done that held something else."""
        return self._content.get(file.name, file.content) != file.content

    def make_room(self, file: FileMark, there: Collection[bytes]) -> None:
        """See that this file can be added. `there`: the names that the folder has now.

        If it is full, the files that were read first and are there no longer are forgotten. Raises `ReaderStopped` if
        all are there.
        """
        if file.name in self._content or len(self._content) < FILES_MAX:
            return
        gone = [name for name in self._content if name not in there]
        if not gone:
            raise ReaderStopped(
                "folder_full",
                f"{FILES_MAX:,} files of the folder are done, all are still there, and the table remembers no more. "
                "Delete files that are done, or move them out of the folder: its other files are then read",
            )
        for name in gone[: FILES_MAX // 10]:
            del self._content[name]

    def add(self, file: FileMark) -> str:
        """The token behind this file, for which there is room."""
        self._content[file.name] = file.content
        return self.token()

    def token(self) -> str:
        """The token."""
        return _FORMAT + base64.b64encode(b"".join(name + content for name, content in self._content.items())).decode()


def names_of(files: Iterable[FileMark]) -> frozenset[bytes]:
    """Their names, as `DoneFiles.make_room` takes them."""
    return frozenset(one.name for one in files)


def _hash(given: bytes, size: int) -> bytes:
    return hashlib.blake2b(given, digest_size=size).digest()
