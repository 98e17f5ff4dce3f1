"""The command lines with which Docker runs one Apache Kafka node of the image apache/kafka."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

from committerd.dev import kafka_node
from committerd.dev.jars import KAFKA

IMAGE = f"apache/kafka:{KAFKA.stem.removeprefix('kafka-')}"
PULL_SECONDS = 900.0
"""How long the node may take to respond, including the download of its image."""
_INSIDE = "/var/lib/kafka/data"
"""A folder of the image that belongs to the user that Kafka runs as."""
_CONTROLLER_PORT = 19093
_ENGINE_SECONDS = 10.0


def engine_answers(docker: str | None) -> bool:
    """Whether there is a program `docker`, and it reaches its engine."""
    if docker is None:
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([docker, "version"], capture_output=True, check=False, timeout=_ENGINE_SECONDS)
        return done.returncode == 0
    return False


def run(docker: str, name: str, port: int, *, cluster: str) -> list[str]:
    """Run a container `name`, in the foreground, with its data in the volume `name`. It is removed when it ends."""
    usual = kafka_node.settings(port=port, controller_port=_CONTROLLER_PORT, data=f"{_INSIDE}/log")
    # Inside the container, 127.0.0.1 is not where the port is published.
    chosen = usual | {"listeners": usual["listeners"].replace(f"127.0.0.1:{port}", f"0.0.0.0:{port}")}
    return [
        *(docker, "run", "--rm", "--name", name),
        *("--publish", f"127.0.0.1:{port}:{port}", "--volume", f"{name}:{_INSIDE}"),
        *(word for setting in [f"CLUSTER_ID={cluster}", *_environment(chosen)] for word in ("--env", setting)),
        IMAGE,
    ]


def remove(docker: str, name: str) -> list[str]:
    """End the container, if it still runs: it outlives a `docker run` that is killed."""
    return [docker, "rm", "--force", name]


def forget(docker: str, name: str) -> list[str]:
    """Delete the volume with the node's data."""
    return [docker, "volume", "rm", "--force", name]


def _environment(chosen: Mapping[str, str]) -> Sequence[str]:
    """The image takes a setting a.b from the variable KAFKA_A_B."""
    return [f"KAFKA_{name.upper().replace('.', '_')}={value}" for name, value in chosen.items()]
