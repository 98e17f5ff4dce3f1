"""File operations of the local store: read, sync, and link a file to its name."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from committerd.errors import ObjectUnreadable, PutUnknown, SettingsError, StoreUnavailable

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
"""Errors of link(2) on file systems without hard links. vfat and others return EPERM."""
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EROFS})
"""Errors of fsync(2) on a folder where the file system syncs folders with every change and not on demand."""
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
"""Errors of link(2) that precede any change. After others (EIO, a lost NFS reply) the link may exist."""

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PARTS_MAX = 1024
"""How many parts writev(2) takes at once (`IOV_MAX` of Linux and macOS)."""
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


_UNSYNCED_MAX = 6
"""Number of files to remember that are not synced. Such a file reaches the disk some writes later, so each is advised
again.
"""


class Superseded:
    """Large files of which only the newest will be read: the manifests of a table with many fragments.

    Tells the operating system to drop the older ones from its page cache, so that the next file reuses their pages: on
    ext4, in a virtual machine, a durable file of 10 MB then takes 15 ms in place of 67 ms. It also keeps such files
    from evicting everything else from the page cache. Older versions remain readable from disk.
    """

    def __init__(self, *, durable: bool) -> None:
        """`durable`: the files are synced, so the last but one can be dropped at once."""
        self._written: deque[str] = deque(maxlen=2 if durable else _UNSYNCED_MAX)
        self._lock = threading.Lock()

    def before(self, path: str) -> None:
        """Call before a large file is written to `path`: drops all but the last remembered file from the page cache."""
        with self._lock:
            superseded = list(self._written)[:-1]
            self._written.append(path)
        for written in superseded if hasattr(os, "posix_fadvise") else ():  # macOS has none
            with suppress(OSError):  # it was removed, or never got its name
                descriptor = os.open(written, _READ)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


def write_all(descriptor: int, parts: Sequence[bytes]) -> None:
    """Write these, one behind the other, in as few system calls as possible."""
    for first in range(0, len(parts), _PARTS_MAX):
        left = [memoryview(part) for part in parts[first : first + _PARTS_MAX]]
        while left:
            written = os.writev(descriptor, left)
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if left:
                left[0] = left[0][written:]


def link(temporary: str, path: str) -> bool:
    """Link the temporary file to its name; False when the name is taken.

    Raises `StoreUnavailable` (nothing changed), `PutUnknown` when the link may exist, and `SettingsError`
    (`no_atomic_create`) when the file system has neither hard links nor RENAME_NOREPLACE.
    """
    try:
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            _rename_without_replacing(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _LINK_NOT_MADE:
            raise StoreUnavailable(f"can't write {path}: {reason(error)}") from error
        raise PutUnknown(f"{path} may have been created: {reason(error)}") from error
    return True


def _rename_without_replacing(temporary: str, path: str) -> None:
    """Call renameat2(2), which the C library of Linux has, with RENAME_NOREPLACE. Raises `OSError`, and as `link`."""
    rename, code = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None), errno.ENOSYS
    if rename is not None:
        rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
        if rename(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
    if code in _NO_HARD_LINKS or code == errno.EINVAL:
        raise SettingsError(
            f"the file system of {os.path.dirname(path)} has neither hard links nor a rename that "
            "never replaces, so two committers could overwrite each other's versions. "
            "Nothing was written. Move the table to one that has (ext4, xfs, btrfs, NFS), or to an "
            "object store",
            code="no_atomic_create",
        )
    raise OSError(code, os.strerror(code))


class Reader:
    """Opens the files of a table for one thread. The folder of the last file stays open for the next one."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = ""
        """The folder that is open, relative to the root, if `_descriptor` is set."""
        self._descriptor: int | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    @contextmanager
    def regular(self, key: str, *, follow: bool = False) -> Iterator[tuple[int, int]]:
        """Open the regular file of this key below the root for reading; yields (descriptor, size in bytes).

        `follow`: the file itself may be a symbolic link. Never blocks on a device or a pipe. Raises `ObjectUnreadable`
        for a link that is not followed and for anything but a regular file, and `OSError`.
        """
        above, name = self._folder_of(key)
        self._require_regular(key, os.stat(name, dir_fd=above, follow_symlinks=follow))
        descriptor = os.open(name, _READ if follow else _READ | os.O_NOFOLLOW, dir_fd=above)
        try:
            found = os.fstat(descriptor)
            self._require_regular(key, found)
            yield descriptor, found.st_size
        finally:
            os.close(descriptor)

    def _folder_of(self, key: str) -> tuple[int, str]:
        """Open the folder of a key's file, unless it is open; returns (its descriptor, name of the file in it)."""
        folder, _, name = key.rpartition("/")
        if self._descriptor is None or self._folder != folder:
            self._close()
            self._descriptor = self._opened(folder, key)
            self._folder = folder
        return self._descriptor, name

    def _opened(self, folder: str, key: str) -> int:
        own, *below = folder.split("/")
        opened = os.open(os.path.join(self._root, own), _FOLDER)
        try:
            for name in below:
                if stat.S_ISLNK(os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode):
                    raise ObjectUnreadable(
                        f"can't read {os.path.join(self._root, key)}: its folder {name!r} is a symbolic link"
                    )
                above, opened = opened, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=opened)
                os.close(above)
        except BaseException:
            os.close(opened)
            raise
        return opened

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # nothing was written
                os.close(descriptor)

    def _require_regular(self, key: str, found: os.stat_result) -> None:
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), key)
        if not stat.S_ISREG(found.st_mode):
            what = "a symbolic link, which is not followed" if stat.S_ISLNK(found.st_mode) else "not a regular file"
            raise ObjectUnreadable(f"can't read {os.path.join(self._root, key)}: it is {what}")


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, _FOLDER)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def reason(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "no errno")
    return f"{error.strerror or error} ({name})"
