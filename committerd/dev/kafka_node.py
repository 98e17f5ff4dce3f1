"""How one Apache Kafka node is configured, formatted and started: broker and controller at once, on 127.0.0.1."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import string
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from committerd.dev.parts import PartFailedError

_RESOURCES = Path(__file__).resolve().parent / "resources"
READY_SECONDS_MAX = 60.0
_JVM = (
    "-Xms192m",
    "-Xmx384m",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)


def properties(*, port: int, controller_port: int, data: Path, more: Mapping[str, str]) -> str:
    """The text of server.properties. `more`: further settings, which win over those of the template."""
    template = string.Template((_RESOURCES / "server.properties").read_text(encoding="utf-8"))
    lines = template.substitute(port=port, controller_port=controller_port, data=data).splitlines()
    return "\n".join([*lines, *(f"{name}={value}" for name, value in more.items())]) + "\n"


def command(java: str, jars: Path) -> list[str]:
    """The command of a Java program of Kafka, but for its class. `jars`: the folder of its jars."""
    logs = [f"-Dlog4j2.configurationFile={_RESOURCES / 'log4j2.properties'}"]
    old = jars.parent / "config" / "tools-log4j.properties"  # of an unpacked Kafka before 4.0
    if old.exists():
        logs.append(f"-Dlog4j.configuration=file:{old}")
    return [java, "-cp", f"{jars}/*", *_JVM, *logs]


def server(java: str, jars: Path, settings: Path) -> list[str]:
    """The command that runs the node."""
    return [*command(java, jars), "kafka.Kafka", str(settings)]


def format_data(java: str, jars: Path, settings: Path) -> None:
    """Prepare the node's data folder, which must not exist yet. Raises `PartFailedError`."""
    words = [*command(java, jars), "kafka.tools.StorageTool", "format", "-t", cluster_id(), "-c", str(settings)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PartFailedError(f"Kafka's data folder can't be formatted:\n{done.stdout}{done.stderr}")


def ready(running: Callable[[], bool], port: int) -> bool:
    """Wait until the node lists its topics; False if it is not `running` any more, or took too long."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while running() and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.05)
    else:
        return False
    return answers(f"127.0.0.1:{port}", seconds=20) and running()


def answers(bootstrap_servers: str, *, seconds: float) -> bool:
    """Whether a Kafka at this address lists its topics within this time."""
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap_servers, client_id="ready", bootstrap_timeout_ms=int(seconds * 1000)
        )
        try:
            admin.list_topics()
        finally:
            admin.close()
    except KafkaError:
        return False
    return True


def port_was_taken(log: str) -> bool:
    """Whether a node ended because another program had one of its ports."""
    return "BindException" in log or "Address already in use" in log


def cluster_id() -> str:
    """A random id in Kafka's format, and not one that looks like a command-line option."""
    while (made := base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()).startswith("-"):
        pass
    return made
