"""Runs Apache Kafka as a child process: jars from Maven Central, one node on free ports of 127.0.0.1.

    with kafka_broker() as kafka:
        ... kafka.bootstrap_servers

If `KAFKA_BOOTSTRAP_SERVERS` names a running Kafka, nothing is downloaded or started. Otherwise Java 17 and Maven are
needed. The first start downloads about 45 MB; later ones take three seconds and no network.
`COMMITTERD_TEST_KAFKA_VERSION` overrides the default version.

    python -m harness.kafka            a broker until Ctrl-C; prints its address
    python -m harness.kafka --fetch    only download
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import socket
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from harness import PartMissingError
from harness.child import ChildProcess
from harness.java import INSTALL, jars, java
from harness.restartable import Restartable
from harness.server import free_port

_SOURCES = Path(__file__).resolve().parent / "resources" / "kafka"
_POM = _SOURCES / "pom.xml"
_INSTALL = f"{INSTALL}, or name a Kafka that runs in KAFKA_BOOTSTRAP_SERVERS"
LOGIN = ("tester", "known-to-all")
"""User and password of the second listener, SASL_PLAINTEXT with mechanism PLAIN."""
_START_ATTEMPTS = 3
_READY_SECONDS_MAX = 60.0
_JVM = (
    "-Xms192m",
    "-Xmx384m",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)


@dataclass(frozen=True, slots=True)
class RunningKafka:
    """A Kafka that already runs."""

    bootstrap_servers: str


class KafkaBroker(Restartable):
    """A Kafka node, with its data in a temporary folder or in the given one."""

    name = "kafka"

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
        version: str | None = None,
        ports: tuple[int, int, int] | None = None,
    ) -> None:
        """`settings`: lines for server.properties.

        `version`: Kafka's version; default the one in the environment variable, or else the default version.
        `ports`: those of the listener without login, the controller, and the listener with login.
        """
        super().__init__(folder)
        self._settings = dict(settings or {})
        self._version = version or os.environ.get("COMMITTERD_TEST_KAFKA_VERSION")
        self._ports = ports

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`; stays the same over `kill` and `start`."""
        assert self._ports is not None, "not started"
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def login_servers(self) -> str:
        """`host:port` of the listener that requires the login `LOGIN`."""
        assert self._ports is not None, "not started"
        return f"127.0.0.1:{self._ports[2]}"

    def start(self) -> Self:
        assert self._process is None, "runs already"
        libs, tail = kafka_jars(self._version), ""
        for attempt in range(1, _START_ATTEMPTS + 1):
            chosen = self._ports or (free_port(), free_port(), free_port())
            self._launch(libs, chosen)
            assert self._process is not None
            if _ready(self._process, chosen[0]):
                self._ports = chosen
                return self
            tail = self._process.log_tail()
            self.kill()
            if "BindException" not in tail and "Address already in use" not in tail:
                break
            time.sleep(0.2 * attempt)
        raise RuntimeError(f"Kafka did not start; the end of {self.log}:\n{tail}")

    def _launch(self, libs: Path, ports: tuple[int, int, int]) -> None:
        data = self.folder / "data"
        properties = self.folder / "server.properties"
        template = string.Template((_SOURCES / "server.properties").read_text())
        port, controller_port, login_port = ports
        user, password = LOGIN
        filled = template.substitute(
            port=port,
            controller_port=controller_port,
            login_port=login_port,
            user=user,
            password=password,
            data=data,
        )
        lines = filled.splitlines()
        lines += [f"{name}={value}" for name, value in self._settings.items()]
        properties.write_text("\n".join(lines) + "\n")
        log4j = f"-Dlog4j2.configurationFile={_SOURCES / 'log4j2.properties'}"
        java = [_java(), "-cp", f"{libs}/*", *_JVM, log4j]
        if not data.exists():
            command = [*java, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(properties)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"Kafka's data folder can't be formatted:\n{done.stdout}{done.stderr}")
        self._process = ChildProcess([*java, "kafka.Kafka", str(properties)], log=self.log, folder=self.folder)


@contextlib.contextmanager
def kafka_broker() -> Iterator[KafkaBroker | RunningKafka]:
    """The Kafka in `KAFKA_BOOTSTRAP_SERVERS`, else our own. Raises `PartMissingError` if Java or Maven is missing."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield RunningKafka(given)
        return
    with KafkaBroker() as broker:
        yield broker


def kafka_jars(version: str | None = None) -> Path:
    """The folder of Kafka's jars: from the cache, else downloaded with Maven. `version`: None = the default version."""
    _java()
    return jars("kafka", _POM, install=_INSTALL, version=version)


def _java() -> str:
    return java("Apache Kafka", install=_INSTALL)


def _ready(process: ChildProcess, port: int) -> bool:
    """Wait until the node lists its topics; False if it ended or took too long."""
    deadline = time.monotonic() + _READY_SECONDS_MAX
    while process.running() and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.05)
    else:
        return False
    try:
        admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}", client_id="ready", bootstrap_timeout_ms=20_000)
        try:
            admin.list_topics()
            return process.running()
        finally:
            admin.close()
    except KafkaError:
        return False


def _cluster_id() -> str:
    """A random id in Kafka's format, and not one that looks like a command-line option."""
    while (made := base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()).startswith("-"):
        pass
    return made


def _main() -> None:
    parser = argparse.ArgumentParser(description="Apache Kafka for tests and the demo")
    parser.add_argument("--fetch", action="store_true", help="only download what is missing")
    try:
        if parser.parse_args().fetch:
            print(kafka_jars())
            return
        with KafkaBroker() as broker, contextlib.suppress(KeyboardInterrupt):
            print(broker.bootstrap_servers, flush=True)
            threading.Event().wait()
    except PartMissingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
