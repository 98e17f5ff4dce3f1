"""The Kafka of `committerd dev`, from its start to its end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from committerd.dev import docker, kafka_node
from committerd.dev.brokers import AvailableBrokers, BrokerKind
from committerd.dev.child import ChildProcess
from committerd.dev.jars import KAFKA, jars
from committerd.dev.java import java
from committerd.dev.parts import PartFailedError, PartMissingError, free_port, free_ports
from committerd.dev.state import container_of

PORT = 9092
"""The port that is taken if it is free."""
_ADDRESS_VARIABLES = ("KAFKA_BOOTSTRAP_SERVERS", "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS")
"""Each may name a Kafka that runs already; the first that is set counts."""
_START_ATTEMPTS = 5
_GRACE_SECONDS = 15.0
_GIVEN_SECONDS = 10.0
_PART = "Apache Kafka"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Broker:
    """A Kafka that answers."""

    bootstrap_servers: str
    what: str
    """What it is, for people."""
    running: Callable[[], bool]
    """Whether it still runs; a Kafka that was not started here always counts as running."""
    log: Path | None = None
    """Where its output is."""


def look_around() -> AvailableBrokers:
    """Find which kinds of Kafka there are. Raises `PartMissingError` if KAFKA_HOME names no unpacked Kafka."""
    home = os.environ.get("KAFKA_HOME")
    if home and not (Path(home) / "libs").is_dir():
        raise PartMissingError(f"KAFKA_HOME={home} has no folder `libs`: name the folder of an unpacked Apache Kafka")
    given_by = next((name for name in _ADDRESS_VARIABLES if os.environ.get(name)), _ADDRESS_VARIABLES[0])
    given = os.environ.get(given_by, "")
    return AvailableBrokers(
        given=given,
        given_by=given_by,
        home=Path(home).absolute() if home else None,
        # A slow engine is not asked if another Kafka was named.
        docker=not given and not home and docker.engine_answers(shutil.which("docker")),
    )


@contextmanager
def started(kind: BrokerKind, found: AvailableBrokers, folder: Path, *, fresh: bool, say: Say) -> Iterator[Broker]:
    """Run a Kafka of this kind during the block. `folder`: where its data stays. `fresh`: delete its data first.

    Raises `PartMissingError` if it can't be had, and `PartFailedError` if it does not start.
    """
    if kind is BrokerKind.GIVEN:
        say(f"asks the Kafka at {found.given}")
        if kafka_node.answering(found.given, seconds=_GIVEN_SECONDS) is None:
            raise PartMissingError(f"no Kafka responds at {found.given}: start it, or unset {found.given_by}")
        yield Broker(found.given, "which runs already", lambda: True)
        return
    node = (
        _docker(folder, fresh=fresh) if kind is BrokerKind.DOCKER else _java(kind, found, folder, fresh=fresh, say=say)
    )
    say(f"starts {node.what}")
    port, process = _start(node, folder)
    try:
        yield Broker(f"127.0.0.1:{port}", node.what, process.running, node.log)
    finally:
        process.stop(grace_seconds=_GRACE_SECONDS)


@dataclass(frozen=True, slots=True)
class _Node:
    """How to start a node on a port."""

    what: str
    launch: Callable[[int], ChildProcess]
    cluster: Callable[[], str]
    """The id of its cluster, once it was launched."""
    log: Path
    seconds: float


def _java(kind: BrokerKind, found: AvailableBrokers, folder: Path, *, fresh: bool, say: Say) -> _Node:
    program = java(_PART)
    if kind is BrokerKind.HOME and found.home is not None:
        libs, what = found.home / "libs", f"the Apache Kafka in {found.home}"
    else:
        libs, what = jars(KAFKA, say=say), f"Apache Kafka {KAFKA.stem.removeprefix('kafka-')}"
    home = folder / f"kafka-{kind.value}"
    if fresh:
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    data, file, log = home / "data", home / "server.properties", home / "kafka.log"

    def launch(port: int) -> ChildProcess:
        controller_port = next(other for other in free_ports(2) if other != port)
        chosen = kafka_node.settings(port=port, controller_port=controller_port, data=str(data))
        file.write_text(kafka_node.properties(chosen), encoding="utf-8")
        if not (data / "meta.properties").exists():  # formatting may have been interrupted
            kafka_node.format_data(program, libs, file)
        log.write_bytes(b"")
        return ChildProcess(kafka_node.server(program, libs, file), log=log, folder=home)

    return _Node(
        what=f"{what} with {program}",
        launch=launch,
        cluster=lambda: kafka_node.cluster_of(data),
        log=log,
        seconds=kafka_node.READY_SECONDS,
    )


def _docker(folder: Path, *, fresh: bool) -> _Node:
    program = shutil.which("docker")
    if program is None:
        raise PartMissingError("there is no `docker`: install Docker, or use another --broker")
    name, log = container_of(folder), folder / "docker.log"
    # Always the same: the volume keeps it, and is not asked.
    cluster = kafka_node.cluster_id(hashlib.sha256(name.encode()).digest())
    end = docker.remove(program, name)
    subprocess.run(end, capture_output=True, check=False)  # of a machine that lost its power
    if fresh:
        subprocess.run(docker.forget(program, name), capture_output=True, check=False)

    def launch(port: int) -> ChildProcess:
        log.write_bytes(b"")
        return ChildProcess(docker.run(program, name, port, cluster=cluster), log=log, afterwards=end)

    return _Node(
        what=f"{docker.IMAGE} in Docker",
        launch=launch,
        cluster=lambda: cluster,
        log=log,
        seconds=docker.PULL_SECONDS,
    )


def _start(node: _Node, folder: Path) -> tuple[int, ChildProcess]:
    """Start it on the port that it had before, so that what users have pasted still works, or else on another port."""
    remembered = folder / "port.json"
    before = PORT
    with contextlib.suppress(OSError, ValueError):  # the first start, or a crash while it was written
        before = int(json.loads(remembered.read_text()))
    tail = ""
    for attempt in range(1, _START_ATTEMPTS + 1):
        port = free_port(before, PORT)
        process = node.launch(port)
        try:
            good = kafka_node.ready(process.running, port, cluster=node.cluster(), seconds=node.seconds)
        except BaseException:
            process.kill()
            raise
        if good:
            remembered.write_text(json.dumps(port))
            return port, process
        tail = process.log_tail()
        process.kill()
        if not kafka_node.may_start_again(process.log_tail(lines=1000)):
            break
        time.sleep(0.5 * attempt)
    raise PartFailedError(f"{node.what} does not start; the end of {node.log}:\n{tail}")
