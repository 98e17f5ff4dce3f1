"""Real parts that tests, the demo and the measurements run against, and a dataset with its queue on them.

One module builds, starts and stops one program: Kafka, an S3 server, DynamoDB Local, toxiproxy, Prometheus, Spark, or
committerd itself as a child process. `scene` joins them to one dataset with its topics, its table and its committers.

Nothing here imports pytest, tests or scripts. What is needed and not installed raises `PartMissingError`, which says
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
