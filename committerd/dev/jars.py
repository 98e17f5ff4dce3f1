"""Downloads the jars of a Java program from Maven Central, without Maven, once, into the cache.

A lock names every jar: a line `SHA-256 group:artifact:version`, with `:extension` where it is not a jar and
`:classifier` after that. `scripts/generate/lock_jars.py` writes locks. A jar with another digest is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from committerd.dev.java import EXTRA
from committerd.dev.parts import PartFailedError, PartMissingError, cache_folder, made_in_cache

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA = Path(__file__).resolve().parent / "resources" / "kafka-4.3.0.lock"
"""The lock of the Apache Kafka that `committerd dev` runs."""
_CONNECTIONS = 8
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class LockedFile:
    """A file in a Maven repository."""

    sha256: str
    group: str
    artifact: str
    version: str
    extension: str = "jar"
    classifier: str = ""

    @property
    def name(self) -> str:
        """Its name among the other jars."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.{self.extension}"

    @property
    def line(self) -> str:
        """Its line in a lock."""
        words = [self.group, self.artifact, self.version]
        if self.extension != "jar" or self.classifier:
            words.append(self.extension)
        return f"{self.sha256} {':'.join([*words, *([self.classifier] if self.classifier else [])])}"


def read_lock(text: str) -> Iterator[LockedFile]:
    """The files that a lock names."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            sha256, _, coordinates = line.partition(" ")
            yield LockedFile(sha256, *coordinates.split(":"))


def folder_of(lock: Path) -> Path:
    """The folder in the cache for the jars of this lock; named after the lock and a digest of its content."""
    return cache_folder() / f"{lock.stem}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:8]}"


def jars(lock: Path, *, install: str = EXTRA, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the jars of this lock: from the cache, or downloaded. `say` is called before a download.

    Jars that Maven has in `~/.m2/repository` are copied from there. Safe to call from several processes at once. Raises
    `PartMissingError`, with `install`, if they are not there and can't be downloaded.
    """
    folder = folder_of(lock)
    if folder.is_dir():
        return folder
    files = list(read_lock(lock.read_text(encoding="utf-8")))
    try:
        from jgo.maven import MavenContext  # of the extra `dev`
    except ImportError:
        raise PartMissingError(f"{lock.stem} has to be downloaded and jgo is not installed: {install}") from None
    say(f"downloads {lock.stem}, {len(files)} files, into {folder.parent} (once)")
    with made_in_cache(folder, needed=folder) as made:
        made.mkdir()
        repository = MavenContext(
            repo_cache=made.parent / "repository",
            local_repos=[Path.home() / ".m2" / "repository"],
            timeout=_TIMEOUT_SECONDS,
        )
        with ThreadPoolExecutor(_CONNECTIONS) as threads:
            list(threads.map(lambda file: _fetch(file, repository, made), files))
    return folder


def _fetch(file: LockedFile, repository: MavenContext, folder: Path) -> None:
    component = repository.project(file.group, file.artifact).at_version(file.version)
    try:
        data = component.artifact(file.classifier, file.extension).resolve().read_bytes()
    except (OSError, RuntimeError) as error:  # no network; not in the repository
        raise PartMissingError(
            f"{file.name} can't be downloaded from Maven Central ({type(error).__name__}: {error}): connect to the "
            "network once, or name a Kafka that runs in KAFKA_BOOTSTRAP_SERVERS, or an unpacked Kafka in KAFKA_HOME"
        ) from error
    if (found := hashlib.sha256(data).hexdigest()) != file.sha256:
        raise PartFailedError(f"{file.name} is not the locked file: its SHA-256 is {found}, and not {file.sha256}")
    (folder / file.name).write_bytes(data)
