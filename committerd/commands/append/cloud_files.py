"""Files in a container of Azure Blob Storage or Google Cloud Storage, as `committerd append` reads them.

pyarrow's own file systems for both find credentials in their own way. This module uses the settings and the environment
variables that the committer and pylance use.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.fs
from obstore.exceptions import BaseError

from committerd.settings.clouds import CloudSettings
from committerd.stores.clouds import CloudPlace
from committerd.stores.obstore_failures import failure_of
from committerd.stores.obstore_store import open_container, seconds_of

_READ_BYTES = 1 << 20
"""A request asks for at least so many bytes."""
_READ_BYTES_MAX = 8 << 20
"""A request asks for at most so many: a column of a file may be large, and a request has a time limit."""


class CloudFiles:
    """The methods of `pyarrow.fs.FileSystem` that sources need, on one container. They raise `OSError`."""

    def __init__(self, place: CloudPlace, settings: CloudSettings) -> None:
        """Raises `SettingsError` for settings that obstore refuses."""
        self._cloud, self._root = place.cloud, place.root
        self._container = open_container(
            place.cloud,
            place.root,
            settings,
            seconds_max=settings.connect_timeout_seconds + settings.read_timeout_seconds + seconds_of(_READ_BYTES_MAX),
            retries=settings.attempts - 1,
        )

    def get_file_info(self, what: Any) -> Any:
        """As in pyarrow: of a path, or of all that is below a `FileSelector`."""
        if isinstance(what, pyarrow.fs.FileSelector):
            return list(self._below(what.base_dir))
        kinds = pyarrow.fs.FileType
        about = self._about(what) if what else None
        if about is not None:
            return pyarrow.fs.FileInfo(what, kinds.File, mtime=about["last_modified"], size=about["size"])
        found = next(self._below(what), None)
        return pyarrow.fs.FileInfo(what, kinds.NotFound if found is None else kinds.Directory)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """The object, for reads at any place."""
        about = self._about(path)
        if about is None:
            raise FileNotFoundError(f"there is no object {self._root}/{path}")
        return _File(io.BufferedReader(_Object(self, path, about["size"]), _READ_BYTES), about["e_tag"] or "")

    def open_input_stream(self, path: str, compression: None = None) -> pa.NativeFile:
        """The object, for reads from its beginning."""
        return self.open_input_file(path)

    def read(self, path: str, start: int, end: int) -> memoryview:
        """The bytes `start` to `end` of an object."""
        try:
            return memoryview(obstore.get_range(self._container, path, start=start, end=end))
        except BaseError as error:
            raise self._failed(error, path) from error

    def _about(self, path: str) -> Mapping[str, Any] | None:
        """Size, ETag and time of change of an object; None when it does not exist."""
        try:
            return dict(obstore.head(self._container, path))
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise self._failed(error, path) from error

    def _below(self, folder: str) -> Iterator[Any]:
        """All objects below a folder, and all folders there that have objects."""
        seen = set[PurePosixPath]()
        root = PurePosixPath(folder)
        try:
            for page in obstore.list(self._container, folder.rstrip("/") or None):
                for one in page:
                    path = one["path"]
                    for parent in PurePosixPath(path).parents:
                        if parent != root and parent.is_relative_to(root) and parent not in seen:
                            seen.add(parent)
                            yield pyarrow.fs.FileInfo(str(parent), pyarrow.fs.FileType.Directory)
                    kind, changed = pyarrow.fs.FileType.File, one["last_modified"]
                    yield pyarrow.fs.FileInfo(path, kind, mtime=changed, size=one["size"])
        except BaseError as error:
            raise self._failed(error, folder) from error

    def _failed(self, error: BaseError, path: str) -> OSError:
        return OSError(str(failure_of(error, f"{self._cloud.service} read of {self._root}/{path}", self._cloud.advice)))


class _Object(io.RawIOBase):
    def __init__(self, files: CloudFiles, path: str, size: int) -> None:
        super().__init__()
        self._files, self._path, self._size = files, path, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + min(len(buffer), _READ_BYTES_MAX), self._size)
        if end <= self._at:
            return 0
        found = self._files.read(self._path, self._at, end)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


class _File(pa.PythonFile):  # type: ignore[misc]  # untyped
    """A file of pyarrow that knows its ETag, as those of pyarrow's own file systems do."""

    def __init__(self, handle: io.BufferedReader, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def __new__(cls, handle: io.BufferedReader, tag: str) -> _File:
        made: _File = super().__new__(cls, handle, mode="r")
        return made

    def metadata(self) -> Mapping[str, str]:
        """The ETag."""
        return {"ETag": self._tag}
