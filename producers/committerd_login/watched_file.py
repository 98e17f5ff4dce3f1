"""A file with secrets that is read again when it changes, so that another key needs no restart."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from committerd_login.secret_file import read_secret

T = TypeVar("T")

_LOOK_SECONDS = 1.0
"""The least time between two looks at the file."""


class WatchedFile(Generic[T]):
    """What a file holds, as `parse` makes it of the text."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        option: str,
        *,
        parse: Callable[[str], T],
        failed: Callable[[ValueError], None] = lambda error: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file. Raises `ValueError`, which names the option, if it can't be read, or `parse` refuses it.

        `failed`: called with such an error of a later look, once for each change of the file.
        """
        self._path, self._option, self._parse = Path(path), option, parse
        self._failed, self._monotonic = failed, monotonic
        self._seen, self._looked_at = self._stamp(), monotonic()
        self._found = self._read()

    def current(self) -> T:
        """What the file holds, at most a second ago; what it held before, if it can't be read or parsed now."""
        now = self._monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return self._found
        self._looked_at = now
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._found = self._read()
            except ValueError as error:
                self._failed(error)
        return self._found

    def _stamp(self) -> tuple[int, int, int] | None:
        """What differs after each change of the file; None if there is none."""
        try:
            found = self._path.stat()
        except (OSError, ValueError):
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        text = read_secret(self._path, self._option)
        try:
            return self._parse(text)
        except ValueError as error:
            raise ValueError(f"{self._option}: {str(self._path)!r}: {error}") from error
