"""Programs that must be installed, and the folder that keeps downloaded programs."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from committerd.errors import CommitterError


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


def free_port(*wanted: int) -> int:
    """The first of the `wanted` TCP ports of 127.0.0.1 on which no program listens, else any free port."""
    for port in (*wanted, 0):
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
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
