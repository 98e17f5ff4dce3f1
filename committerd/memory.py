"""The memory of this process, and what the C library keeps of the memory that Python frees.

Without glibc, the functions that return memory do nothing.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NO_LIMIT = 1 << 60
"""Version 1 of control groups shows a number above this one where there is no limit."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""The parameters' numbers in glibc's `malloc.h`."""


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not provide it."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError, ValueError):
        return 0


def limit_bytes() -> int:
    """The limit of this process' control group, as a container has it; 0 if there is none or it is not known.

    Source: the Linux kernel's pages on control groups, versions 2 and 1.
    """
    for path in _LIMITS:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else 0
    return 0


def return_large_blocks(bytes_min: int = 1024 * 1024) -> None:
    """Make the C library return every freed block of `bytes_min` or more to the system at once.

    By default glibc keeps blocks of up to 32 MiB after the first one was freed. The next one may not fit into what they
    left. An audit of a growing table takes a third more memory then, and a committer keeps a part of what each of the
    largest records took.
    """
    mallopt = _of_the_c_library("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, bytes_min)
        mallopt(_M_TRIM_THRESHOLD, 2 * bytes_min)  # glibc's own ratio


def share_arenas(count: int) -> None:
    """Let all threads share so many of the C library's arenas.

    By default glibc gives threads up to eight arenas for each core, and what one of them has freed is of no use to the
    others.
    """
    mallopt = _of_the_c_library("mallopt")
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, count)


def return_freed_memory() -> None:
    """Make the C library return all freed memory that it keeps to the system. It takes 100 ms for 800 MB."""
    malloc_trim = _of_the_c_library("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _of_the_c_library(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
