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

        `failed`: called with such an error of a later look, once for each change of the file. The file is read again at
        each look until it can be read.
        """
        self._path, self._option, self._parse = Path(path), option, parse
        self._failed, self._monotonic = failed, monotonic
        self._seen, self._looked_at = self._stamp(), monotonic()
        self._found, self._is_wrong = self._read(), False

    def current(self) -> T:
        """What the file holds, at most a second ago; what it held before, if it can't be read or parsed now."""
        now = self._monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return self._found
        self._looked_at = now
        stamp = self._stamp()
        if stamp != self._seen or self._is_wrong:  # a right to read may come without a change of what `_stamp` shows
            changed, self._seen = stamp != self._seen, stamp
            try:
                self._found, self._is_wrong = self._read(), False
            except ValueError as error:
                self._is_wrong = True
                if changed:
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
