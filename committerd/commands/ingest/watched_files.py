"""Files whose store is watched: whether it failed while they were read."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs

from committerd.commands.append.sources import ReadableFiles

_T = TypeVar("_T")


class WatchedFiles:
    """The methods of a file system that a source needs."""

    def __init__(self, files: ReadableFiles) -> None:
        self._files = files
        self.failed: Exception | None = None
        """What the store has raised last."""

    def get_file_info(self, what: Any) -> Any:
        """As that of the file system."""
        return self.watch(lambda: self._files.get_file_info(what))

    def open_input_file(self, path: str) -> pa.NativeFile:
        """The file, for reads at any place."""
        return pa.PythonFile(_Watched(self, self.watch(lambda: self._files.open_input_file(path))), mode="r")

    def open_input_stream(self, path: str, compression: None = None) -> pa.NativeFile:
        """The file, for reads from its beginning; not uncompressed."""
        stream = self.watch(lambda: self._files.open_input_stream(path, compression=compression))
        return pa.PythonFile(_Watched(self, stream), mode="r")

    def watch(self, call: Callable[[], _T]) -> _T:
        """What the call returns; notes what it raises."""
        try:
            return call()
        except Exception as error:
            self.failed = error
            raise


class _Watched(io.RawIOBase):
    def __init__(self, files: WatchedFiles, file: pa.NativeFile) -> None:
        super().__init__()
        self._files, self._file = files, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))  # a place that is not there is said by what the file holds

    def read(self, size: int | None = -1) -> bytes:
        return bytes(self._files.watch(lambda: self._file.read(None if size is None or size < 0 else size)))

    def close(self) -> None:
        self._file.close()
        super().close()
