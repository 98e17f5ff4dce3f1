"""The files that `committerd append` reads: where they are, and who each of them is."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs

from committerd.commands.append.job import FileId, file_id
from committerd.commands.lance_options import cloud_options
from committerd.errors import SettingsError, SourceError
from committerd.settings.load import Settings
from committerd.stores.clouds import CloudPlace, cloud_place, cloud_settings, require_obstore
from committerd_common.uris import canonical_uri, lance_uri

if TYPE_CHECKING:
    from committerd.commands.append.cloud_files import CloudFiles

FORMATS = ("parquet", "arrow", "csv", "json", "lance")
_SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".csv": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".lance": "lance",
}  # fmt: skip
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""Of text files; the other formats compress inside."""
_SEGMENTS_OF_BUCKET = 3
"""Of a URI: the scheme, nothing, and the bucket."""
_CHUNK_BYTES = 4 * 1024 * 1024


class ReadableFiles(Protocol):
    """What a source needs of a file system, as `pyarrow.fs.FileSystem` has it."""

    def get_file_info(self, what: Any, /) -> Any:
        """Of a path, or of all that is below a `FileSelector`."""

    def open_input_file(self, path: str, /) -> pa.NativeFile:
        """A file, for reads at any place."""

    def open_input_stream(self, path: str, /, compression: None) -> pa.NativeFile:
        """A file, for reads from its beginning; not uncompressed."""


@dataclass(frozen=True)
class Source:
    """A file, or a Lance table."""

    path: str
    """As it was given, or found in a folder that was given."""
    kind: str
    place: str
    """Its path in the file system."""
    files: ReadableFiles = field(repr=False)
    storage_options: Mapping[str, str] = field(repr=False)
    """pylance's, for a Lance table."""

    @property
    def compression(self) -> str | None:
        """How the whole file is compressed."""
        return _COMPRESSIONS.get(PurePosixPath(self.path).suffix.lower())

    def open(self) -> pa.NativeFile:
        """The file, for reads at any place."""
        return self.files.open_input_file(self.place)

    def text(self) -> pa.NativeFile:
        """The content as a stream, uncompressed."""
        stream = self.files.open_input_stream(self.place, compression=None)
        return pa.CompressedInputStream(stream, self.compression) if self.compression else stream

    def dataset(self) -> Any:
        """The Lance table."""
        import lance  # imported here because it takes a third of a second

        return lance.dataset(lance_uri(self.path), storage_options=dict(self.storage_options) or None)

    @cached_property
    def identity(self) -> FileId:
        """Name and content. An object's ETag stands for its content. Raises `SourceError`."""
        try:
            if self.kind == "lance":
                return self._identity_of_table()
            if "://" in canonical_uri(self.path):
                name, file = canonical_uri(self.path), self.open()
                tag = next(
                    (value for key, value in (file.metadata() or {}).items() if "etag" in str(key).lower()), None
                )
                if tag:
                    return file_id(name, file.size(), tag)
            else:
                name, file = os.path.realpath(self.place), self.open()
            with file:
                digest = hashlib.blake2b(digest_size=16)
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                return file_id(name, file.size(), digest.digest())
        except (OSError, ValueError, pa.ArrowException) as error:
            raise SourceError(unreadable(self, error)) from error

    def _identity_of_table(self) -> FileId:
        dataset = self.dataset()
        uri = canonical_uri(self.path)
        digest = hashlib.blake2b(dataset.schema.serialize().to_pybytes(), digest_size=16)
        for fragment in dataset.get_fragments():
            digest.update(str(fragment.metadata.to_json()).encode())
        return file_id(uri if "://" in uri else os.path.realpath(uri), dataset.count_rows(), digest.digest())


def unreadable(source: Source, error: Exception) -> str:
    """The message for a file that can't be read."""
    return f"{source.path} can't be read as {source.kind}: {_first_line(error)}"


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Name the path in the error if a file system refuses to read it inside the block. Raises `SourceError`."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(f"{path} can't be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def sources(
    paths: Sequence[str], *, chosen: str | None, settings: Settings, storage_options: Mapping[str, str]
) -> list[Source]:
    """The files that were given, and the files of each folder, by name. `chosen`: the format of all of them.

    Files and folders whose names begin with `.` or `_` are left out of folders. Raises `SourceError`.
    """
    places = _Places(settings, storage_options)
    found = {path: list(places.found(path, chosen)) for path in paths}
    for path, inside in found.items():
        if not inside:
            raise SourceError(f"{path}: there is no file in this folder")
    return [one for path in paths for one in found[path]]


@dataclass(frozen=True, slots=True)
class FileThere:
    """A file that a listing has found."""

    source: Source | None
    """None: the name says no format that is read."""
    path: str
    """Its path or URI."""
    name: str
    """Its path below the folder."""
    size: int
    mtime_ns: int
    """When it was last changed: Unix nanoseconds."""


class Folder:
    """A folder of files, here or in a store, or one file, which is listed again and again."""

    def __init__(self, path: str, settings: Settings, storage_options: Mapping[str, str]) -> None:
        """Raises `SourceError`."""
        self.path = path
        uri = canonical_uri(path)
        self.local = "://" not in uri
        self.name = os.path.realpath(uri) if self.local else uri.rstrip("/")
        """What tells it from other folders."""
        self._files, self._place = _Places(settings, storage_options).opened(path)

    def list(self) -> Sequence[FileThere]:
        """The files that there are now, without those whose name or folder begins with `.` or `_`.

        Raises `SourceError`.
        """
        with _reading(self.path):
            about = self._files.get_file_info(self._place)
            if about.type is pyarrow.fs.FileType.NotFound:
                return []
            if about.type is pyarrow.fs.FileType.File:
                return [self._there(self.path, PurePosixPath(self.path).name, about)]
            below = _below(self._files, self._place)
        return [
            self._there(f"{self.path.rstrip('/')}/{path}", str(path), about)
            for path, about in below
            if _is_visible_file(path, about)
        ]

    def require(self) -> None:
        """Raise `SourceError` if it is a local folder that does not exist; a store has no empty folders."""
        if self.local and not os.path.exists(self._place):
            raise SourceError(f"{self.path}: there is no such folder or file")

    def require_same(self, file: FileThere) -> None:
        """Raise `SourceError` if the file is gone or was changed."""
        assert file.source is not None
        with _reading(file.path):
            about = self._files.get_file_info(file.source.place)
        if about.type is not pyarrow.fs.FileType.File:
            raise SourceError(f"{file.path} was deleted while it was read")
        # A store tells the time of a single object in whole seconds, and more exactly in a listing.
        apart = abs(about.mtime_ns - file.mtime_ns)
        if about.size != file.size or apart >= (1 if self.local else 1_000_000_000):
            raise SourceError(f"{file.path} was changed while it was read")

    def _there(self, path: str, name: str, about: Any) -> FileThere:
        kind = _format_of(path)
        source = None if kind in (None, "lance") else Source(path, kind, about.path, self._files, {})
        return FileThere(source, path, name, about.size, about.mtime_ns)


@dataclass(frozen=True)
class _Places:
    settings: Settings
    storage_options: Mapping[str, str]

    def found(self, path: str, chosen: str | None) -> Iterator[Source]:
        if "*" in path and "://" in canonical_uri(path):  # a shell expands the names of local files alone
            for name in self._matching(path):
                yield from self.found(name, chosen)
            return
        kind = chosen or _format_of(path)
        if kind == "lance":
            # pylance opens it by its own means.
            yield Source(path, kind, path, pyarrow.fs.LocalFileSystem(), self._options_of(path))
            return
        files, place = self.opened(path)
        with _reading(path):
            about = files.get_file_info(place)
            if about.type is not pyarrow.fs.FileType.Directory:
                yield Source(path, kind or _unnamed(path), place, files, {})
                return
            below = dict(_below(files, place))
        # A Lance table is a folder with a folder `_versions`.
        tables = {one.parent for one in below if one.name == "_versions"}
        for table in sorted(tables):
            name = path.rstrip("/") if table == PurePosixPath() else f"{path.rstrip('/')}/{table}"
            yield Source(name, "lance", name, files, self._options_of(name))
        for one, about in sorted(below.items()):
            if _is_visible_file(one, about) and not tables.intersection(one.parents):
                name = f"{path.rstrip('/')}/{one}"
                yield Source(name, chosen or _format_of(name) or _unnamed(name), about.path, files, {})

    def _matching(self, pattern: str) -> list[str]:
        """The URIs of the objects and folders that a URI with `*` matches, by name.

        Raises `SourceError` if there is none.
        """
        segments = pattern.split("/")
        first = next(number for number, segment in enumerate(segments) if "*" in segment)
        if first < _SEGMENTS_OF_BUCKET:
            raise SourceError(f"{pattern}: a bucket has one name, so write it without *")
        folder, matchers = "/".join(segments[:first]), [_matcher(unquote(segment)) for segment in segments[first:]]
        files, place = self.opened(folder)
        with _reading(pattern):
            inside = files.get_file_info(pyarrow.fs.FileSelector(place, recursive=len(matchers) > 1))
        names = sorted(_relative(one, place.rstrip("/")) for one in inside)
        matched = [
            f"{folder}/{str(name).replace('%', '%25')}"
            for name in names
            if len(name.parts) == len(matchers)
            and all(matcher.fullmatch(part) for matcher, part in zip(matchers, name.parts, strict=True))
        ]
        if not matched:
            raise SourceError(f"{pattern}: no object has such a name")
        return matched

    def _options_of(self, path: str) -> Mapping[str, str]:
        cloud = self._cloud(path)
        if cloud is not None:
            return cloud_options(cloud.cloud, cloud_settings(self.settings)[cloud.cloud])
        return self.storage_options if canonical_uri(path).startswith("s3://") else {}

    def opened(self, path: str) -> tuple[pyarrow.fs.FileSystem | CloudFiles, str]:
        """(file system, path in it)."""
        cloud = self._cloud(path)
        if cloud is not None:
            require_obstore(cloud.cloud)
            from committerd.commands.append.cloud_files import CloudFiles

            return CloudFiles(cloud, cloud_settings(self.settings)[cloud.cloud]), cloud.prefix.rstrip("/")
        uri = canonical_uri(path)
        scheme, mark, key = uri.partition("://")
        if not mark:
            return pyarrow.fs.LocalFileSystem(), os.path.abspath(uri)
        if scheme == "s3":
            return self._s3, key
        with _reading(path):
            files, place = pyarrow.fs.FileSystem.from_uri(path)
            return files, str(place)

    def _cloud(self, path: str) -> CloudPlace | None:
        try:
            return cloud_place(path)
        except SettingsError as error:
            raise SourceError(str(error)) from error

    @cached_property
    def _s3(self) -> pyarrow.fs.FileSystem:
        """With the settings of the group `s3`, and else the usual AWS variables."""
        s3 = self.settings.s3
        endpoint = s3.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        given: dict[str, Any] = {
            "access_key": s3.access_key_id and s3.access_key_id.get_secret_value(),
            "secret_key": s3.secret_access_key and s3.secret_access_key.get_secret_value(),
            "session_token": s3.session_token and s3.session_token.get_secret_value(),
            "region": s3.region or ("us-east-1" if endpoint else None),
            "force_virtual_addressing": s3.addressing_style == "virtual",
        }
        if endpoint:
            parts = urlsplit(endpoint)
            given |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        return pyarrow.fs.S3FileSystem(**given)


def _relative(found: Any, root: str) -> PurePosixPath:
    """The path of an object of a listing, below the folder that was listed."""
    return PurePosixPath(found.path[len(root) :].lstrip("/"))


def _below(files: pyarrow.fs.FileSystem | CloudFiles, folder: str) -> list[tuple[PurePosixPath, Any]]:
    """What lies in a folder, at any depth: the path below it, and what the file system says of it."""
    root = folder.rstrip("/")
    return [(_relative(one, root), one) for one in files.get_file_info(pyarrow.fs.FileSelector(folder, recursive=True))]


def _is_visible_file(path: PurePosixPath, about: Any) -> bool:
    """Whether it is a file, and no part of its path below the folder begins with `.` or `_`."""
    return about.type is pyarrow.fs.FileType.File and not any(part.startswith((".", "_")) for part in path.parts)


def _matcher(segment: str) -> re.Pattern[str]:
    """`*` stands for any characters, but not for `.` or `_` at the beginning."""
    text = re.escape(segment).replace(r"\*", ".*")
    return re.compile(f"(?![._]){text}" if segment.startswith("*") else text, re.DOTALL)


def _format_of(path: str) -> str | None:
    """The format that the name says; None if it says none."""
    name = PurePosixPath(path.rstrip("/"))
    if name.suffix.lower() in _COMPRESSIONS:
        name = name.with_suffix("")
        found = _SUFFIXES.get(name.suffix.lower())
        return found if found in ("csv", "json") else None
    return _SUFFIXES.get(name.suffix.lower())


def _unnamed(path: str) -> str:
    raise SourceError(f"{path}: the name does not say the format: give --format ({', '.join(FORMATS)})")
