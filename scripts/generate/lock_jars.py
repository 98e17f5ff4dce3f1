"""Lock the jars of Apache Kafka, its tools and DynamoDB Local, by coordinates and SHA-256, for committerd.dev.jars.

python -m scripts.generate.lock_jars                         all of them
python -m scripts.generate.lock_jars harness/resources/jars/kafka-3.8.1.lock    one; Kafka's version is in its name
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jgo.maven import Artifact, Dependency, MavenContext

from committerd.dev.jars import KAFKA, LockedFile
from harness.dynamodb import DYNAMODB
from harness.java import LOCKS

_LOG4J = "2.25.4"
"""Kafka 4 speaks slf4j 1.7 and brings no binding: without one the broker logs nothing."""
_KAFKA = re.compile(r"kafka-(\d[\d.]*)\.lock")
_TOOLS = re.compile(r"kafka-tools-(\d[\d.]*)\.lock")
"""MirrorMaker, and the programs of Kafka's command line."""


def roots(lock: Path) -> list[str]:
    """What a lock is made for, as `group:artifact:version`."""
    if lock == DYNAMODB:
        return ["software.amazon.dynamodb:DynamoDBLocal:3.1.0"]
    version, tools = _KAFKA.fullmatch(lock.name), _TOOLS.fullmatch(lock.name)
    if tools is not None:
        parts = [f"org.apache.kafka:{name}:{tools[1]}" for name in ("connect-mirror", "kafka-tools")]
        return [*parts, f"org.apache.logging.log4j:log4j-slf4j-impl:{_LOG4J}"]
    if version is None:
        sys.exit(f"{lock} is none of {DYNAMODB.name}, kafka-VERSION.lock and kafka-tools-VERSION.lock")
    logging = [f"org.apache.logging.log4j:{name}:{_LOG4J}" for name in ("log4j-core", "log4j-slf4j-impl")]
    return [f"org.apache.kafka:kafka_2.13:{version[1]}", *logging]


def resolved(root: str, repository: MavenContext) -> list[Artifact]:
    """The artifact of a root and all that it needs at run time.

    Roots are resolved apart: together, log4j's bill of materials pulls kafka-clients down to another version.
    """
    group, artifact, version = root.split(":")
    wanted = Dependency(repository.project(group, artifact).at_version(version).artifact(), scope="compile")
    own, needed = repository.resolver.resolve([wanted])
    return [one.artifact for one in (*own, *needed) if one.scope in ("compile", "runtime")]


def write(lock: Path) -> None:
    """Download everything, and write the lock."""
    with tempfile.TemporaryDirectory() as scratch:
        repository = MavenContext(
            repo_cache=Path(scratch), local_repos=[Path.home() / ".m2" / "repository"], timeout=60
        )
        artifacts = {str(one): one for root in roots(lock) for one in resolved(root, repository)}
        with ThreadPoolExecutor(8) as threads:
            files = list(threads.map(_locked, artifacts.values()))
    newest = {(file.group, file.artifact, file.extension, file.classifier): file for file in files}
    assert len(newest) == len(files), "two versions of one jar"
    lines = sorted((file.line for file in files), key=lambda line: line.partition(" ")[2])
    lock.write_text("\n".join([f"# Locked for {', '.join(roots(lock))}", *lines]) + "\n")
    print(f"{lock.name}: {len(files)} files")


def _locked(artifact: Artifact) -> LockedFile:
    data = artifact.resolve().read_bytes()
    return LockedFile(
        hashlib.sha256(data).hexdigest(),
        *(artifact.groupId, artifact.artifactId, artifact.version),
        extension=artifact.packaging,
        classifier=artifact.classifier,
    )


def main(chosen: list[str]) -> None:
    for lock in [Path(one).resolve() for one in chosen] or [KAFKA, *sorted(LOCKS.glob("*.lock"))]:
        write(lock)


if __name__ == "__main__":
    main(sys.argv[1:])
