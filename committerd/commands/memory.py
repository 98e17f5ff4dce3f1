"""The memory of commands that read one large manifest after another."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
"""The parameter's number in glibc's `malloc.h`."""
_LARGE_BYTES = 1024 * 1024


def return_large_blocks() -> None:
    """Make the C library return every freed block of 1 MiB or more to the system at once.

    By default glibc keeps such blocks after the first one was freed. Manifests of a growing table are each a little
    larger than the last, so none fits into what the one before left: an audit then takes a third more memory. Does
    nothing where the C library has no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
