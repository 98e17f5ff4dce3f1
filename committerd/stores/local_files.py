"""What the store on a local file system asks of the system: read, write, sync, and give a file its name.

Errors of the system are passed on, but where more must be said: whether a link was made or may have been, and what is
no regular file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import groupby

from committerd.errors import ObjectUnreadable, OutcomeUnknown, SettingsError, StoreUnavailable

_PARTS_AT_ONCE = 1024
"""writev(2): IOV_MAX on Linux and macOS."""

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

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1

_SUPERSEDED_MAX = 6
"""Where nothing is synced, the system needs the time of some writes to have a file on disk."""


class Superseded:
    """Large files of which only the newest will be read: the manifests of a table with many fragments.

    The system keeps what was written in memory as long as it has any. Told that it needn't, it has the pages at hand
    for the next file, where otherwise each must be found: in a virtual machine that gives unused memory back to its
    host that is most of what 8 MB cost (18 ms against 2). And a table that grows by such files doesn't push all else
    out of memory. Whoever does read an older version finds it on disk.
    """

    def __init__(self) -> None:
        self._written: deque[str] = deque(maxlen=_SUPERSEDED_MAX)
        self._lock = threading.Lock()

    def before(self, path: str) -> None:
        """Another will be written there: those before the last one needn't stay in memory."""
        with self._lock:
            superseded = list(self._written)[:-1]
            self._written.append(path)
        for written in superseded:
            with suppress(OSError):  # removed since, or its name was never given
                _keep_on_disk_only(written)


def _keep_on_disk_only(path: str) -> None:
    """What is on disk leaves memory; what is not will soon be on disk. Not on systems that can't be told (macOS)."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def reserve(descriptor: int, size: int) -> None:
    """Take the space at once; ext4 writes 10 MB into it in three quarters of the time.

    Where the file system can't, or has no space, nothing is said: the writes that follow find out.
    """
    if (allocate := _fallocate()) is not None:
        allocate(descriptor, 0, 0, size)


def write(descriptor: int, parts: Sequence[bytes]) -> None:
    """Write them one after the other, as many at once as the system takes."""
    for start in range(0, len(parts), _PARTS_AT_ONCE):
        rest = [memoryview(part) for part in parts[start : start + _PARTS_AT_ONCE]]
        while rest:
            written = os.writev(descriptor, rest)
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if written:
                rest[0] = rest[0][written:]


class HeldFolder:
    """A folder held open. What is written through it stays in it, even when its path names another folder by then."""

    def __init__(self, path: str) -> None:
        """Raises `OSError` where there is no such folder."""
        self.path = path
        self.descriptor = os.open(path, _FOLDER)

    def is_in_place(self) -> bool:
        """Whether its path still names this folder."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def __del__(self) -> None:
        # Threads may still write through it when another one takes its place.
        if (descriptor := getattr(self, "descriptor", None)) is not None:
            os.close(descriptor)


def link(temporary: str, path: str, *, held: HeldFolder | None = None) -> bool:
    """Give the temporary file its name; False when the name is taken. `held`: the folder of both."""
    try:
        if held is None:
            os.link(temporary, path)
        else:
            source, target = os.path.basename(temporary), os.path.basename(path)
            os.link(source, target, src_dir_fd=held.descriptor, dst_dir_fd=held.descriptor)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            return _rename_without_replacing(temporary, path, held)
        if error.errno in _LINK_NOT_MADE:
            raise StoreUnavailable(f"can't write {path}: {reason(error)}") from error
        raise OutcomeUnknown(f"{path} may have been created: {reason(error)}") from error
    return True


def _rename_without_replacing(temporary: str, path: str, held: HeldFolder | None) -> bool:
    rename = _renameat2()
    code = errno.ENOSYS
    if rename is not None:
        folder = _AT_FDCWD if held is None else held.descriptor
        names = (temporary, path) if held is None else (os.path.basename(temporary), os.path.basename(path))
        source, target = map(os.fsencode, names)
        if rename(folder, source, folder, target, _RENAME_NOREPLACE) == 0:
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
        raise StoreUnavailable(f"can't write {path}: {reason(error)}")
    raise OutcomeUnknown(f"{path} may have been created: {reason(error)}")


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


@contextmanager
def regular(root: str, key: str, *, follow: bool = False) -> Iterator[int]:
    """A descriptor of the regular file of this key below `root`, open to read.

    Of links only those are followed that stand for the table or for one of its own folders, such as `data`, unless
    `follow`. Opening never waits for a device or for the other end of a pipe. Raises `ObjectUnreadable` for a link and
    for what is no regular file, and what the system says.
    """
    with _folder_of(root, key) as (folder, name):
        _require_regular(root, key, os.stat(name, dir_fd=folder, follow_symlinks=follow))
        descriptor = os.open(name, _READ if follow else _READ | os.O_NOFOLLOW, dir_fd=folder)
    try:
        _require_regular(root, key, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def regular_size(root: str, key: str, *, follow: bool = False) -> int:
    """Bytes of the regular file of this key. Raises as `regular`; the file itself is not opened."""
    with _folder_of(root, key) as (folder, name):
        found = os.stat(name, dir_fd=folder, follow_symlinks=follow)
    _require_regular(root, key, found)
    return found.st_size


def regular_sizes(root: str, keys: Sequence[str]) -> Iterator[int | OSError | ObjectUnreadable]:
    """Bytes of each regular file, or what `regular_size` raises for it. A folder is opened once for all keys in it that
    follow each other.
    """
    for prefix, several in groupby(keys, lambda key: key.rpartition("/")[0]):
        some = list(several)
        try:
            with _folder_of(root, some[0]) as (folder, _):
                for key in some:
                    try:
                        found = os.stat(key[len(prefix) + 1 :] if prefix else key, dir_fd=folder, follow_symlinks=False)
                        _require_regular(root, key, found)
                        yield found.st_size
                    except (OSError, ObjectUnreadable) as error:
                        yield error
        except (OSError, ObjectUnreadable) as error:
            yield from [error] * len(some)


@contextmanager
def _folder_of(root: str, key: str) -> Iterator[tuple[int, str]]:
    """(descriptor of the folder that a file lies in, the file's name there)."""
    own, *below = key.split("/")
    if not below:
        own, below = "", [own]
    folder = os.open(os.path.join(root, own), _FOLDER)
    try:
        for name in below[:-1]:
            if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise ObjectUnreadable(f"can't read {os.path.join(root, key)}: its folder {name!r} is a symbolic link")
            above, folder = folder, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(above)
        yield folder, below[-1]
    finally:
        os.close(folder)


def _require_regular(root: str, key: str, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), key)
    if not stat.S_ISREG(found.st_mode):
        what = "a symbolic link, which is not followed" if stat.S_ISLNK(found.st_mode) else "no regular file"
        raise ObjectUnreadable(f"can't read {os.path.join(root, key)}: it is {what}")


def sync_folder(folder: str | HeldFolder) -> None:
    held = folder if isinstance(folder, HeldFolder) else HeldFolder(folder)
    try:
        os.fsync(held.descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def discard(temporary: str, *, held: HeldFolder | None = None) -> None:
    with suppress(OSError):  # harmless where it stays
        if held is None:
            os.unlink(temporary)
        else:
            os.unlink(os.path.basename(temporary), dir_fd=held.descriptor)


def reason(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "no errno")
    return f"{error.strerror or error} ({name})"
