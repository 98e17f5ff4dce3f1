"""The real programs that tests, the demo and the measurements run against, and a dataset with its queue on them.

Each module builds, starts and stops one program: Kafka, an S3 server, DynamoDB Local, toxiproxy, Prometheus, Spark, or
committerd itself as a child process. `scene` combines them into a dataset with its topics, its table and its
committers.

The harness imports neither pytest nor tests nor scripts. If a program is not installed, it raises `PartMissingError`,
which names what to install.
"""

from __future__ import annotations

import os
from pathlib import Path


class PartMissingError(RuntimeError):
    """A required program is not installed; the message names it, and says how to get it."""


def cache_folder() -> Path:
    """The folder for downloaded and built programs: `$COMMITTERD_CACHE`, by default in the user's cache folder."""
    given = os.environ.get("COMMITTERD_CACHE")
    if given:
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "committerd"
