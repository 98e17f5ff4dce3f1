"""Programs that must be installed, and the folder that keeps downloaded programs."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from committerd.errors import CommitterError

_QUIET_PORTS = range(20_000, 30_000)
"""No system gives one of these to a connection, or to a server that asks for any port (Linux begins at 32768): it stays
free until the program for which it was found listens, and while that program is stopped and started again.
"""
_TRIES = 50
_RANDOM = random.SystemRandom()


class PartMissingError(CommitterError):
    """A required program is not installed; the message names it, and says how to get it."""

    code = "part_missing"


class PartFailedError(CommitterError):
    """A program is installed, but does not start; the message has the end of its output."""

    code = "part_failed"


def cache_folder() -> Path:
    """The folder for downloaded and built programs: `$COMMITTERD_CACHE`, by default in the user's cache folder."""
    given = os.environ.get("COMMITTERD_CACHE")
    if given:
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "committerd"


@contextmanager
def made_in_cache(folder: Path, *, needed: Path) -> Iterator[Path]:
    """Make a folder of the cache as a whole. Several processes may do so at once: the folder of the first stays.

    Yields a path in a new scratch folder: the block makes a folder there, which then becomes `folder`. `needed`: the
    file or folder for which `folder` is made. Where another process was faster, it must be there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        made = Path(scratch, "made")
        yield made
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not needed.exists():
                raise


def free_port(*wanted: int) -> int:
    """The first of the `wanted` TCP ports of 127.0.0.1 on which no program listens, else any free port."""
    for port in (*wanted, *_RANDOM.sample(_QUIET_PORTS, _TRIES), 0):
        with socket.socket() as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as servers do: connections that ended don't count
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise PartFailedError("no TCP port of 127.0.0.1 is free")


def free_ports(count: int) -> list[int]:
    """So many different TCP ports of 127.0.0.1 on which no program listens."""
    found: list[int] = []
    while len(found) < count:
        if (port := free_port()) not in found:
            found.append(port)
    return found
