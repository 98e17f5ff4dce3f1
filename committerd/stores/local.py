"""A table's directory on a local or mounted file system.

An object appears atomically. It is written to a temporary file in its folder, and then gets its name: by a hard link,
which fails if the name is taken (`put_if_absent`), or by a rename, which replaces (`put`). On file systems without hard
links, a rename with Linux's RENAME_NOREPLACE stands in for the link; a plain rename never does.

A killed process leaves at most temporary files, named `.tmp-` and a random number. Listings leave them out, no reader
of Lance takes one for a manifest, and Lance's cleanup deletes files with that prefix.

With `durable`, a completed write survives a power failure: the file is synced before it gets its name, and its folder
after that.

Records name the files that are read here, so a record's writer chooses them. Only regular files are read, and symbolic
links are followed only for the table's own folders (`data`, `_deletions` and so on), which the operator may have made
links. A read that takes longer than `read_seconds_max` is abandoned, and its thread continues in the background.
"""

from __future__ import annotations

import errno
import heapq
import logging
import math
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from urllib.parse import unquote_to_bytes

import anyio
from anyio import to_thread

from committerd.errors import InvalidRequest, ObjectUnreadable, PutUnknown, SettingsError, StoreUnavailable
from committerd.stores.local_files import Reader, Superseded, link, reason, sync_folder, write_all
from committerd.stores.port import Content, Created, Exists, ObjectEntry, Tail, TailOrError, require_below_root
from committerd_common.paths import VERSIONS

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_TEMPORARY = ".tmp"
_THREADS_MAX = 8
"""Maximum number of threads for writes, and of threads for reads. Disks gain nothing from more concurrent writers."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_COPY_CHUNK_BYTES = 1 << 20
_LARGE_BYTES_MIN = 1 << 20

_READ_SECONDS_MAX = 30.0
_ABANDONED_MAX = 16
"""Maximum number of abandoned reads that still run. At this number all reads fail, because the file system hangs."""

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP})
"""Errors of a read that mean that the object does not exist; none can exist under too long a name."""
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.ENXIO, errno.ENODEV, errno.EOVERFLOW})
"""Errors of a read that may concern one file while others are readable."""
_LOCAL_SCHEMES = ("file", "file-object-store")  # Lance: both are the local file system
_OTHER_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_FOREIGN_STAGING = re.compile(r".#\d+$")
"""Lance writes with the object_store crate, which stages local files as `name#1`."""


def local_path(uri: str) -> Path | None:
    """Return the absolute path of the local directory that a URI names; None for another scheme.

    A plain path is used as it is; the forms `file:///p`, `file:/p` and `file://localhost/p` are percent-decoded. Raises
    `SettingsError` for a `file:` URI that names another host or has no absolute path.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon or scheme.lower() not in _LOCAL_SCHEMES:
        return None if _OTHER_SCHEME.match(uri) else Path(os.path.abspath(uri))
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        rest = slash + path
        if host.lower() not in ("", "localhost"):
            raise SettingsError(f"{uri!r} names the host {host!r}; a local table is file:///absolute/path")
    decoded = os.fsdecode(unquote_to_bytes(rest))
    if not decoded.startswith("/") or "\0" in decoded:
        raise SettingsError(f"{uri!r} has no absolute path; a local table is file:///absolute/path")
    return Path(os.path.abspath(decoded))


class _Thread:
    """The state of a read's thread."""

    began = ended = False


class LocalStore:
    """`ObjectStore` on a directory, which the first write creates.

    Each operation blocks in a worker thread. A cancelled caller waits for the thread, unless it reads an object.
    """

    lists_whole_folders = False  # it sends no requests

    def __init__(self, root: Path, *, durable: bool = True, read_seconds_max: float = _READ_SECONDS_MAX) -> None:
        self._root = os.path.abspath(root)
        self._durable = durable
        self._read_seconds_max = read_seconds_max
        self._abandoned: set[_Thread] = set()
        self._limiter = anyio.CapacityLimiter(_THREADS_MAX)
        self._readers = anyio.CapacityLimiter(_THREADS_MAX)
        self._turns_given = anyio.CapacityLimiter(math.inf)  # the thread of a read that has its turn starts at once
        self._superseded = Superseded(durable=durable)
        self.uri = self._root

    async def get(self, key: str) -> bytes | None:
        return await self._read(key, _whole)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return await self._read(key, lambda descriptor, _: _part(descriptor, start, max(end, start)))

    async def get_tail(self, key: str, size: int) -> Tail | None:
        return await self._read(key, lambda descriptor, whole: _tail(descriptor, whole, size))

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        """As the port says; reads all of them in one thread."""

        def tails() -> list[TailOrError]:
            with Reader(self._root) as reader:
                return [self._tail_of(reader, key, size) for key in keys]

        return await self._within_limits(keys[0], tails) if keys else []

    async def head(self, key: str) -> int | None:
        return await self._read(key, lambda _, whole: whole)

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        """As the port says; reads the whole folder, whatever the limit."""
        if prefix and not prefix.endswith("/"):
            raise ValueError(f"a folder ends with a slash: {prefix!r}")
        if prefix:
            self._path(prefix.removesuffix("/"))
        names = await self._in_thread(self._scan, prefix.removesuffix("/"))
        keys = [key for key in (prefix + name for name in names) if key > start_after]
        return sorted(keys) if limit is None else heapq.nsmallest(limit, keys)

    async def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        """As the port says; a batch for each folder. Does not follow symbolic links below `prefix`.

        Leaves out the files of a folder below `prefix` that can't be listed.
        """
        first = prefix.removesuffix("/")
        self._path(first)
        folders = [first]
        while folders:
            folder = folders.pop()
            try:
                found, below = await self._in_thread(_entries, self._root, folder)
            except ObjectUnreadable as error:
                if folder == first:
                    raise
                _log.warning("store.folder_unreadable", extra={"key": folder, "error": str(error)})
                continue
            folders += below
            yield found

    async def put(self, key: str, body: bytes) -> None:
        await self._in_thread(self._replace, self._path(key), [[body]])

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        parts = [body] if isinstance(body, bytes) else body
        return await self._in_thread(self._create, self._path(key), parts)

    async def copy(self, source: str, target: str) -> bool:
        self._path(source)
        return await self._in_thread(self._duplicate, source, self._path(target))

    async def delete(self, key: str) -> None:
        path = self._path(key)

        def remove() -> None:
            with _reading(self._root, key):
                os.unlink(path)

        await self._in_thread(remove)

    async def _read(self, key: str, work: Callable[[int, int], _T]) -> _T | None:
        """Call `work` with the file's descriptor and size, and return its result; None when the file does not exist."""
        self._path(key)

        def read() -> _T | None:
            with Reader(self._root) as reader:
                return self._read_here(reader, key, work)

        return await self._within_limits(key, read)

    def _read_here(self, reader: Reader, key: str, work: Callable[[int, int], _T]) -> _T | None:
        """As `_read`, in this thread.

        Follows a symbolic link only for a manifest: no record names a manifest, so the table's owner made the link.
        """
        with _reading(self._root, key), reader.regular(key, follow=key.startswith(VERSIONS)) as (descriptor, whole):
            return work(descriptor, whole)
        return None

    def _tail_of(self, reader: Reader, key: str, size: int) -> TailOrError:
        """As `get_tail`, in this thread; returns an error about this object."""
        try:
            self._path(key)
            return self._read_here(reader, key, lambda descriptor, whole: _tail(descriptor, whole, size))
        except (ObjectUnreadable, InvalidRequest) as error:
            return error

    async def _within_limits(self, key: str, read: Callable[[], _T]) -> _T:
        """Call `read` in a thread and return its result.

        Raises `ObjectUnreadable` when it takes longer than `read_seconds_max`, and `StoreUnavailable` when it got no
        thread in that time or too many threads are abandoned. A read that waited for its turn has all of its time from
        then on: other reads that hang say nothing about its object.
        """
        self._require_few_abandoned()
        thread = _Thread()

        def noted() -> _T:
            thread.began = True
            try:
                return read()
            finally:
                thread.ended = True
                self._abandoned.discard(thread)

        try:
            with anyio.fail_after(self._read_seconds_max):
                await self._readers.acquire_on_behalf_of(thread)
            try:
                self._require_few_abandoned()  # there may be more of them than when this read began to wait
                with anyio.fail_after(self._read_seconds_max):
                    return await to_thread.run_sync(noted, limiter=self._turns_given, abandon_on_cancel=True)
            finally:
                self._readers.release_on_behalf_of(thread)
        except TimeoutError as error:
            kind = ObjectUnreadable if thread.began else StoreUnavailable
            raise kind(
                f"can't read {os.path.join(self._root, key)}: no response within {self._read_seconds_max:g} s"
            ) from error
        finally:
            if thread.began and not thread.ended:
                self._abandoned.add(thread)
                if thread.ended:  # it ended after the check above
                    self._abandoned.discard(thread)

    def _require_few_abandoned(self) -> None:
        if len(self._abandoned) >= _ABANDONED_MAX:
            raise StoreUnavailable(
                f"can't read {self._root}: {len(self._abandoned)} reads there have not ended; does its file system "
                "hang?"
            )

    async def _in_thread(self, function: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
        return await to_thread.run_sync(function, *args, limiter=self._limiter)

    def _path(self, key: str) -> str:
        """Return the file's path. Raises `InvalidRequest` (`path_invalid`) for a key that leads out of the table."""
        require_below_root(key)
        return os.path.join(self._root, key)

    def _create(self, path: str, parts: Sequence[bytes]) -> Created | Exists:
        if sum(map(len, parts)) >= _LARGE_BYTES_MIN:
            self._superseded.before(path)
        with _unchanged(path), self._staged(path, [parts]) as temporary:
            created = link(temporary, path)
        if self._durable:
            # Sync even if the name was taken: it may be our own earlier link, whose sync failed.
            try:
                sync_folder(os.path.dirname(path))
            except OSError as error:
                what = "was created" if created else "was there"
                raise PutUnknown(f"{path} {what}, but its folder could not be synced: {reason(error)}") from error
        return Created() if created else Exists()

    def _replace(self, path: str, chunks: Iterable[Sequence[bytes]]) -> None:
        """Write a file atomically, replacing an existing one. `chunks`: as for `_staged`."""
        with _unchanged(path), self._staged(path, chunks) as temporary:
            os.rename(temporary, path)
            if self._durable:
                sync_folder(os.path.dirname(path))

    def _duplicate(self, source: str, path: str) -> bool:
        with _reading(self._root, source), Reader(self._root) as reader, reader.regular(source) as (descriptor, _):
            self._replace(path, ([chunk] for chunk in iter(lambda: os.read(descriptor, _COPY_CHUNK_BYTES), b"")))
            return True
        return False

    def _scan(self, key: str) -> Sequence[str]:
        """Return the names of the objects directly in a folder, in no order; none if it does not exist."""
        folder = os.path.join(self._root, key)
        names: list[str] = []
        with _reading(self._root, key):
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if _is_object(entry)]
            if self._durable:
                # An outcome may rest on this listing: a version whose writer was killed before it synced the folder
                # must not vanish in a later power failure.
                sync_folder(folder)
        return names

    @contextmanager
    def _staged(self, path: str, chunks: Iterable[Sequence[bytes]]) -> Iterator[str]:
        """Write a temporary file in the folder of `path`, and yield its path. Creates the folder if necessary.

        `chunks`: what to write, one chunk behind the other, each in parts. Makes few system calls: while the event loop
        computes, a thread waits for the interpreter after each of them.
        """
        folder = os.path.dirname(path)
        temporary = os.path.join(folder, f"{_TEMPORARY}-{secrets.token_hex(8)}")
        try:
            descriptor = self._new_file(temporary)
            try:
                for parts in chunks:
                    write_all(descriptor, parts)
                if self._durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield temporary
        finally:
            with suppress(OSError):  # it was renamed, or stays as a harmless leftover
                os.unlink(temporary)

    def _new_file(self, path: str) -> int:
        """Create the file, and its folder if necessary; returns its descriptor."""
        with suppress(FileNotFoundError):
            return os.open(path, _NEW, 0o666)
        self._make_folder(os.path.dirname(path))
        return os.open(path, _NEW, 0o666)

    def _make_folder(self, folder: str) -> None:
        if os.path.isdir(folder):
            return
        above = os.path.dirname(folder)
        self._make_folder(above)
        with suppress(FileExistsError):  # another writer made it, or it is a file and the next step fails
            os.mkdir(folder)
        if self._durable:
            sync_folder(above)


def _is_object(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(_TEMPORARY) or _FOREIGN_STAGING.search(entry.name):
        return False
    try:
        entry.name.encode()
    except UnicodeEncodeError:  # a name that is not valid UTF-8 can't be a key
        return False
    return entry.is_file()


def _entries(root: str, folder: str) -> tuple[Sequence[ObjectEntry], Sequence[str]]:
    """The files directly in a folder, and the folders; none if it does not exist."""
    found: list[ObjectEntry] = []
    below: list[str] = []
    with _reading(root, folder), os.scandir(os.path.join(root, folder)) as entries:
        for entry in entries:
            key = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                below.append(key)
                continue
            with suppress(FileNotFoundError):  # deleted since
                facts = entry.stat(follow_symlinks=False)
                found.append(ObjectEntry(key=key, size=facts.st_size, modified_ms=facts.st_mtime_ns // 1_000_000))
    return found, below


def _whole(descriptor: int, _: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _part(descriptor: int, start: int, end: int) -> bytes:
    parts = list[bytes]()  # one call reads 2 GiB at most, and the file may be shorter
    while start < end and (part := os.pread(descriptor, end - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _tail(descriptor: int, whole: int, size: int) -> Tail:
    """The last `size` bytes of a file of `whole` bytes."""
    start = max(0, whole - size)
    return Tail(body=_part(descriptor, start, whole), size=whole)


@contextmanager
def _reading(root: str, key: str) -> Iterator[None]:
    """Suppress the error of a missing object.

    Raises `ObjectUnreadable` for errors that may concern this object alone, `StoreUnavailable` for others.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _ABSENT:
            return
        kind = ObjectUnreadable if error.errno in _UNREADABLE else StoreUnavailable
        raise kind(f"can't read {os.path.join(root, key)}: {reason(error)}") from error


@contextmanager
def _unchanged(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"can't write {path}: {reason(error)}") from error
