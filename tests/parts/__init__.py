"""Real parts that tests and the demo run against: each builds, starts and stops one program.

Nothing here imports pytest. What is needed and not installed raises `PartMissingError`, which says
what to install.
"""

from __future__ import annotations

import os
from pathlib import Path


class PartMissingError(RuntimeError):
    """A program that the part needs is not installed; the message says which, and how to get it."""


def cache_folder() -> Path:
    """Where built parts are kept: `$COMMITTERD_CACHE`, by default below the user's cache folder."""
    given = os.environ.get("COMMITTERD_CACHE")
    if given:
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "committerd"
