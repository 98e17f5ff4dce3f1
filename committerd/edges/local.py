"""A table's directory on a local or mounted file system.

An object appears under its name whole or not at all. It is written to a temporary file beside its
place and then given its name: by a hard link, which fails where the name is taken
(`put_if_absent`), or by a rename, which replaces (`put`). A plain rename never stands in for the
link; Linux's rename without replacing does, on file systems without links.

A process that is killed leaves at most a temporary file, `.tmp-` and a random number. No listing
shows it, no reader of Lance takes it for a manifest, and Lance's cleanup collects the prefix.

With `durable`, a returned write survives a power failure: the file is synced before it gets its
name, the folder after.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from urllib.parse import unquote_to_bytes

import anyio
from anyio import to_thread

from committerd.errors import InvalidRequest, OutcomeUnknown, SettingsError, StoreUnavailable
from committerd.ports import Created, Exists, Tail

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_TEMPORARY = ".tmp"
_THREADS_MAX = 8
"""Disks gain nothing from more writers at once, and one table has few."""
_COPY_CHUNK_BYTES = 1 << 20
_RESERVED_BYTES_MIN = 1 << 20
_PARTS_AT_ONCE = 1024
"""writev(2): IOV_MAX on Linux and macOS."""

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP})
"""What a read meets where there is no object; nor can there be one under too long a name."""
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
"""link(2): EPERM is what vfat and others say."""
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EROFS})
"""Some file systems sync folders with every change and refuse to do it on demand."""
_LINK_NOT_MADE = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.ELOOP,
        errno.EMLINK,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EROFS,
        errno.EXDEV,
    }
)
"""Refusals of link(2) before any change. After others (EIO, a lost NFS answer) it may be there."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_LOCAL_SCHEMES = ("file", "file-object-store")  # Lance: both are the local file system
_OTHER_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_FOREIGN_STAGING = re.compile(r".#\d+$")
"""The object_store crate, with which Lance writes, stages local files as `name#1`."""


def local_path(uri: str) -> Path | None:
    """The directory that a URI names on this machine, absolute; None when it is of another scheme.

    A path is taken as it stands; the forms `file:///p`, `file:/p` and `file://localhost/p` are
    percent-decoded. Raises `SettingsError` for a `file:` URI that names another host or no
    absolute path.
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


class LocalStore:
    """`ObjectStore` on a directory, which the first write creates.

    Calls block in threads, one hop for each operation; a cancelled caller waits until the file
    system has answered.
    """

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self._root = os.path.abspath(root)
        self._durable = durable
        self._limiter = anyio.CapacityLimiter(_THREADS_MAX)
        self.uri = self._root

    async def get(self, key: str) -> bytes | None:
        return await self._in_thread(_read, self._path(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return await self._in_thread(_read, self._path(key), start, max(0, end - start))

    async def get_tail(self, key: str, size: int) -> Tail | None:
        return await self._in_thread(_read_tail, self._path(key), size)

    async def head(self, key: str) -> int | None:
        return await self._in_thread(_size, self._path(key))

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        """Costs one read of the whole folder, whatever the limit."""
        if prefix and not prefix.endswith("/"):
            raise ValueError(f"a folder ends with a slash: {prefix!r}")
        folder = self._path(prefix.removesuffix("/")) if prefix else self._root
        names = await self._in_thread(self._scan, folder)
        keys = [key for key in (prefix + name for name in names) if key > start_after]
        return sorted(keys) if limit is None else heapq.nsmallest(limit, keys)

    async def put(self, key: str, body: bytes) -> None:
        await self._in_thread(self._replace, self._path(key), [[body]])

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        return await self._in_thread(self._create, self._path(key), [body])

    async def put_parts_if_absent(self, key: str, parts: Sequence[bytes]) -> Created | Exists:
        return await self._in_thread(self._create, self._path(key), parts)

    async def copy(self, source: str, target: str) -> bool:
        return await self._in_thread(self._duplicate, self._path(source), self._path(target))

    async def delete(self, key: str) -> None:
        await self._in_thread(_remove, self._path(key))

    async def aclose(self) -> None:
        """Nothing is held open between calls."""

    async def _in_thread(self, function: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
        return await to_thread.run_sync(function, *args, limiter=self._limiter)

    def _path(self, key: str) -> str:
        """Raises `InvalidRequest` for a key that would leave the table."""
        if "\0" in key or any(segment in ("", ".", "..") for segment in key.split("/")):
            raise InvalidRequest(
                f"{key[:200]!r} is no path below the table's root: "
                "it must be relative, without `.`, `..` or empty segments",
                code="path_invalid",
            )
        return os.path.join(self._root, key)

    def _create(self, path: str, parts: Sequence[bytes]) -> Created | Exists:
        with _unchanged(path):
            temporary = self._stage(path, [parts], size=sum(map(len, parts)))
        try:
            created = _link(temporary, path)
        finally:
            _discard(temporary)
        if self._durable:
            # Where the name was taken too: it may be our own earlier link, whose sync failed.
            try:
                _sync_folder(os.path.dirname(path))
            except OSError as error:
                raise OutcomeUnknown(
                    f"{path} was {'created' if created else 'there'}, "
                    f"but its folder could not be synced: {_reason(error)}"
                ) from error
        return Created() if created else Exists()

    def _replace(self, path: str, batches: Iterable[Sequence[bytes]]) -> None:
        with _unchanged(path):
            temporary = self._stage(path, batches)
            try:
                os.rename(temporary, path)
            except OSError:
                _discard(temporary)
                raise
            if self._durable:
                _sync_folder(os.path.dirname(path))

    def _duplicate(self, source: str, path: str) -> bool:
        with _reading(source), open(source, "rb") as file:
            self._replace(path, ([chunk] for chunk in iter(lambda: file.read(_COPY_CHUNK_BYTES), b"")))
            return True
        return False

    def _scan(self, folder: str) -> Sequence[str]:
        """Names of the objects directly in a folder, in no order."""
        with _reading(folder), os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _is_object(entry)]
            if self._durable:
                # An answer may rest on what is seen here: a version whose writer was killed before
                # it had synced the folder must not vanish in a power failure after that.
                _sync_folder(folder)
            return names
        return []

    def _stage(self, path: str, batches: Iterable[Sequence[bytes]], *, size: int = 0) -> str:
        """Write a temporary file beside `path`, and its folder where that is missing. `size` 0 = not known."""
        folder = os.path.dirname(path)
        temporary = os.path.join(folder, f"{_TEMPORARY}-{secrets.token_hex(8)}")
        try:
            file = open(temporary, "xb", buffering=0)  # noqa: SIM115 - closed in the with below
        except FileNotFoundError:
            self._make_folder(folder)
            file = open(temporary, "xb", buffering=0)  # noqa: SIM115
        try:
            with file:
                if size >= _RESERVED_BYTES_MIN:
                    _reserve(file.fileno(), size)
                for parts in batches:
                    _write(file.fileno(), parts)
                if self._durable:
                    os.fsync(file.fileno())
        except BaseException:
            _discard(temporary)
            raise
        return temporary

    def _make_folder(self, folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for path in reversed(missing):
            with suppress(FileExistsError):  # faster, or a file, at which the next step fails
                os.mkdir(path)
            if self._durable:
                _sync_folder(os.path.dirname(path))


def _reserve(descriptor: int, size: int) -> None:
    """Take the space at once; ext4 writes 10 MB into it in three quarters of the time.

    Where the file system can't, or has no space, nothing is said: the writes that follow find out.
    """
    if (allocate := _fallocate()) is not None:
        allocate(descriptor, 0, 0, size)


def _write(descriptor: int, parts: Sequence[bytes]) -> None:
    """Write them one after the other, as many at once as the system takes."""
    for start in range(0, len(parts), _PARTS_AT_ONCE):
        rest = [memoryview(part) for part in parts[start : start + _PARTS_AT_ONCE]]
        while rest:
            written = os.writev(descriptor, rest)
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if written:
                rest[0] = rest[0][written:]


def _is_object(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(_TEMPORARY) or _FOREIGN_STAGING.search(entry.name):
        return False
    try:
        entry.name.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8 can't be a key
        return False
    return entry.is_file()


def _read(path: str, start: int = 0, size: int = -1) -> bytes | None:
    with _reading(path), open(path, "rb") as file:
        file.seek(start)
        return file.read(size)
    return None


def _read_tail(path: str, size: int) -> Tail | None:
    with _reading(path), open(path, "rb") as file:
        whole = os.fstat(file.fileno()).st_size
        start = file.seek(max(0, whole - size))
        return Tail(body=file.read(whole - start), size=whole)
    return None


def _size(path: str) -> int | None:
    with _reading(path):
        found = os.stat(path)
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


def _remove(path: str) -> None:
    with _reading(path):
        os.unlink(path)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Leave the block where there is no such object; other failures are `StoreUnavailable`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ABSENT:
            raise StoreUnavailable(f"can't read {path}: {_reason(error)}") from error


@contextmanager
def _unchanged(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"can't write {path}: {_reason(error)}") from error


def _link(temporary: str, path: str) -> bool:
    """Give the temporary file its name; False when the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            return _rename_without_replacing(temporary, path)
        if error.errno in _LINK_NOT_MADE:
            raise StoreUnavailable(f"can't write {path}: {_reason(error)}") from error
        raise OutcomeUnknown(f"{path} may have been created: {_reason(error)}") from error
    return True


def _rename_without_replacing(temporary: str, path: str) -> bool:
    rename = _renameat2()
    code = errno.ENOSYS
    if rename is not None:
        source, target = os.fsencode(temporary), os.fsencode(path)
        if rename(_AT_FDCWD, source, _AT_FDCWD, target, _RENAME_NOREPLACE) == 0:
            return True
        code = ctypes.get_errno()
    if code == errno.EEXIST:
        return False
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM):
        raise SettingsError(
            f"the file system of {os.path.dirname(path)} has neither hard links nor a rename that "
            "never replaces, so two committers could overwrite each other's versions. "
            "Nothing was written. Move the table to one that has (ext4, xfs, btrfs, NFS), or to an "
            "object store",
            code="no_atomic_create",
        )
    error = OSError(code, os.strerror(code))
    if code in _LINK_NOT_MADE:
        raise StoreUnavailable(f"can't write {path}: {_reason(error)}")
    raise OutcomeUnknown(f"{path} may have been created: {_reason(error)}")


def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """renameat2(2), where the C library has it (Linux)."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """fallocate(2), where the C library has it (Linux). posix_fallocate(3) would write where that is not supported."""
    function = getattr(ctypes.CDLL(None), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    return function


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _discard(temporary: str) -> None:
    with suppress(OSError):  # harmless where it stays
        os.unlink(temporary)


def _reason(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "no errno")
    return f"{error.strerror or error} ({name})"
