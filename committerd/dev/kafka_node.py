"""How one Apache Kafka node is configured, formatted and started: broker and controller at once, on 127.0.0.1."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import string
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
    NotCoordinatorError,
)
from kafka.net.compat import KafkaNetClient

from committerd.dev.parts import PartFailedError

_RESOURCES = Path(__file__).resolve().parent / "resources"
READY_SECONDS = 240.0
"""A node that runs and has not responded after this time will not start any more. On a busy machine a start takes more
than a minute.
"""
_ANSWER_SECONDS = 20.0
_REFUSES_SECONDS = 10.0
"""How long a node may say that it does not coordinate its groups. After that it never will."""
_ABOUT_GROUPS = (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    NotCoordinatorError,
)
_JVM = (
    "-Xms192m",
    "-Xmx384m",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
)


def settings(*, port: int, controller_port: int, data: str) -> dict[str, str]:
    """The node's settings, by name, as they stand in server.properties."""
    template = string.Template((_RESOURCES / "server.properties").read_text(encoding="utf-8"))
    lines = template.substitute(port=port, controller_port=controller_port, data=data).splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def properties(chosen: Mapping[str, str]) -> str:
    """The text of server.properties."""
    return "".join(f"{name}={value}\n" for name, value in chosen.items())


def command(java: str, jars: Path) -> list[str]:
    """The command that runs a Java program of Kafka, without the program's class. `jars`: the folder of its jars."""
    logs = [f"-Dlog4j2.configurationFile={_RESOURCES / 'log4j2.properties'}"]
    old = jars.parent / "config" / "tools-log4j.properties"  # of an unpacked Kafka before 4.0
    if old.exists():
        logs.append(f"-Dlog4j.configuration=file:{old}")
    return [java, "-cp", f"{jars}/*", *_JVM, *logs]


def server(java: str, jars: Path, file: Path) -> list[str]:
    """The command that runs the node. `file`: its server.properties."""
    return [*command(java, jars), "kafka.Kafka", str(file)]


def format_data(java: str, jars: Path, file: Path) -> None:
    """Prepare the node's data folder, which must not exist yet. Raises `PartFailedError`."""
    cluster = cluster_id(os.urandom(16))
    words = [*command(java, jars), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PartFailedError(f"Kafka's data folder can't be formatted:\n{done.stdout}{done.stderr}")


def cluster_of(data: Path) -> str:
    """The id of the cluster whose data this is."""
    lines = (data / "meta.properties").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]


def cluster_id(seed: bytes) -> str:
    """An id in Kafka's format from 16 bytes. It does not begin with a dash, as a command-line option does."""
    return base64.urlsafe_b64encode(bytes([seed[0] & 0x3F]) + seed[1:16]).rstrip(b"=").decode()


def ready(running: Callable[[], bool], port: int, *, cluster: str, seconds: float = READY_SECONDS) -> bool:
    """Wait until the node of this cluster responds, and coordinates groups.

    False if it is not `running` any more, took too long, or is not going to coordinate groups: a node that starts very
    slowly may give up loading them, and never tries again. Another node may respond at this port. Then the node
    of this cluster ends, because the port is taken.
    """
    server, deadline, refuses_since = f"127.0.0.1:{port}", time.monotonic() + seconds, None
    responds = False
    while running() and time.monotonic() < deadline:
        if not responds:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                responds = answering(server, seconds=_ANSWER_SECONDS) == cluster
        if responds:
            error = _group_error(server, seconds=_ANSWER_SECONDS)
            if error in (None, GroupAuthorizationFailedError) and running():
                return True
            if error is not NotCoordinatorError:
                refuses_since = None
            elif refuses_since is None:
                refuses_since = time.monotonic()
            elif time.monotonic() - refuses_since > _REFUSES_SECONDS:
                return False
        time.sleep(0.05)
    return False


def answering(bootstrap_servers: str, *, seconds: float) -> str | None:
    """The id of the cluster that responds at this address; None if none does within this time."""
    networks = list[KafkaNetClient]()

    def network(**options: Any) -> KafkaNetClient:
        networks.append(KafkaNetClient(**options))
        return networks[-1]

    try:
        with _admin(bootstrap_servers, seconds=seconds, kafka_client=network) as admin:
            admin.list_topics()
            # Not `describe_cluster`, which fails on brokers before 3.7 (docs/upstream/cluster-of-old-brokers.md).
            return str(networks[-1].cluster.cluster_id)
    except KafkaError:
        return None


def _group_error(bootstrap_servers: str, *, seconds: float) -> type[KafkaError] | None:
    """The error of a request about a group, from the node or from a client that gets no response; None = no error."""
    try:
        with _admin(bootstrap_servers, seconds=seconds) as admin:
            (described,) = admin.describe_groups(["ready"]).values()
    except KafkaError as error:
        return type(error)
    said = str(described["error"] or "")
    return next((error for error in _ABOUT_GROUPS if error.__name__ in said), None)


@contextlib.contextmanager
def _admin(bootstrap_servers: str, *, seconds: float, **options: Any) -> Iterator[KafkaAdminClient]:
    """A client that waits this long for a connection. Raises a KafkaError."""
    admin = KafkaAdminClient(
        bootstrap_servers=bootstrap_servers, client_id="ready", bootstrap_timeout_ms=int(seconds * 1000), **options
    )
    try:
        yield admin
    finally:
        admin.close()


def may_start_again(log: str) -> bool:
    """Whether a new start may help.

    Another program had one of the node's ports, or an earlier node still had its data, or it gave up loading groups.
    """
    return any(
        said in log
        for said in (
            "BindException",
            "Address already in use",
            "Failed to acquire lock on file",
            "Failed to load metadata from __consumer_offsets",
        )
    )
