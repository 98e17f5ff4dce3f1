"""Finds Java, and downloads the jars of Java programs with Maven, once, into the cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from harness import PartMissingError, cache_folder

_JAVA_MIN = 17  # Kafka 4 and DynamoDB Local 3 need it
INSTALL = (
    "install Java 17 or newer and Maven (Debian: apt-get install openjdk-17-jre-headless maven; "
    "macOS: brew install openjdk maven)"
)


def java(part: str, *, install: str = INSTALL) -> str:
    """The path of `java`. Raises `PartMissingError` with `install` if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or shutil.which(found) is None:
        raise PartMissingError(f"{part} needs Java and there is no {found or 'java'}: {install}")
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', said.stderr)
    if version is None or int(version[1]) < _JAVA_MIN:
        shown = said.stderr.strip().partition("\n")[0]
        raise PartMissingError(f"{part} needs Java {_JAVA_MIN}, and {found} says {shown!r}: {install}")
    return found


def jars(name: str, pom: Path, *, install: str = INSTALL, version: str | None = None) -> Path:
    """The folder `NAME-VERSION-...` with the pom's dependencies: from the cache, else downloaded with Maven.

    The pom must have the property `NAME.version`, which `version` overrides, and copy the jars to `libs`. Safe to call
    from several processes at once.
    """
    text = pom.read_bytes()
    version = version or ElementTree.fromstring(text).findtext(f".//{{*}}{name}.version")
    # The digest covers the other versions in the pom.
    folder = cache_folder() / f"{name}-{version}-{hashlib.sha256(text).hexdigest()[:8]}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise PartMissingError(f"{name} {version} has to be downloaded and there is no `mvn`: {install}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as scratch:
        libs = Path(scratch) / "libs"
        command = [maven, "-q", "-B", "-f", str(pom), "package", f"-Dlibs={libs}", f"-D{name}.version={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Maven can't download {name} {version}:\n{done.stdout}{done.stderr}")
        try:
            libs.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    return folder
