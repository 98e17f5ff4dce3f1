"""Runs Apache Kafka as a child process: locked jars from Maven Central, one node on free ports of 127.0.0.1.

    with kafka_broker() as kafka:
        ... kafka.bootstrap_servers

If `KAFKA_BOOTSTRAP_SERVERS` names a running Kafka, nothing is downloaded or started. The first start downloads about
45 MB; later ones take three seconds and no network. `COMMITTERD_TEST_KAFKA_VERSION` overrides the default version. How
a node is configured and started is in `committerd.dev.kafka_node`, which `committerd dev` uses too.

    python -m harness.kafka            a broker until Ctrl-C; prints its address
    python -m harness.kafka --fetch    only download
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from committerd.dev import kafka_node
from committerd.dev.jars import KAFKA, jars
from committerd.dev.parts import free_ports
from harness import PartMissingError
from harness.child import ChildProcess
from harness.java import INSTALL, LOCKS, java
from harness.ready_made import ready_made
from harness.restartable import Restartable

_INSTALL = f"{INSTALL}, or name a Kafka that runs in KAFKA_BOOTSTRAP_SERVERS"
LOGIN = ("tester", "known-to-all")
"""User and password of the second listener, SASL_PLAINTEXT with mechanism PLAIN."""
_START_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RunningKafka:
    """A Kafka that already runs."""

    bootstrap_servers: str


PATIENT = {
    "broker.session.timeout.ms": "120000",
    "broker.heartbeat.interval.ms": "2000",
    "replica.high.watermark.checkpoint.interval.ms": "60000",  # with thousands of topics the file is large
}
"""For a broker that nobody kills. On a busy machine a broker may miss its heartbeats to its own controller for the 9
seconds of the default. Then the cluster has no broker for a moment: groups lose their members, and no topic can be
made. A broker that is killed has to wait as long before it may register again."""


FOR_MANY_TOPICS = ("-Xmx768m",)
"""Options of Java for a broker that many tests share. Some files have hundreds of datasets, with eleven partitions
each; where they fill the usual heap, the broker stands still for seconds.
"""


class KafkaBroker(Restartable):
    """A Kafka node, with its data in a temporary folder or in the given one."""

    name = "kafka"

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
        version: str | None = None,
        ports: Sequence[int] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        """`settings`: lines for server.properties.

        `version`: Kafka's version; default the one in the environment variable, or else the default version.
        `ports`: those of the listener without login, the controller, and the listener with login.
        `java_options`: for the Java that runs it, such as `-DNAME=VALUE`.
        """
        super().__init__(folder)
        self._settings = dict(settings or {})
        self._version = version or os.environ.get("COMMITTERD_TEST_KAFKA_VERSION")
        self._ports = ports
        self._java_options = java_options

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
            chosen = self._ports or free_ports(3)
            process = self._launch(libs, chosen)
            cluster = kafka_node.cluster_of(self.folder / "data")
            if kafka_node.ready(process.running, chosen[0], cluster=cluster):
                self._ports = chosen
                return self
            tail = process.log_tail()
            self.kill()
            if not kafka_node.may_start_again(process.log_tail(lines=1000)):
                break
            time.sleep(0.2 * attempt)
        raise RuntimeError(f"Kafka did not start; the end of {self.log}:\n{tail}")

    def _launch(self, libs: Path, ports: Sequence[int]) -> ChildProcess:
        data, file = self.folder / "data", self.folder / "server.properties"
        port, controller_port, login_port = ports
        usual = kafka_node.settings(port=port, controller_port=controller_port, data=str(data))
        chosen = {**usual, **_login(port, controller_port, login_port), **self._settings}
        file.write_text(kafka_node.properties(chosen), encoding="utf-8")
        program = _java()
        begun = ready_made(program, libs)
        if not data.exists():
            begun.copy_data(data)
        *java, main_class, properties = begun.server(program, libs, file)
        # Of an option that is given twice, Java takes the last.
        command = [*java, *self._java_options, main_class, properties]
        self._process = ChildProcess(command, log=self.log, folder=self.folder)
        return self._process


def _login(port: int, controller_port: int, login_port: int) -> dict[str, str]:
    """The settings of a second listener, with a login."""
    user, password = LOGIN
    listeners = f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login_port}"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} required user_{user}="{password}";',
    }


@contextlib.contextmanager
def kafka_broker() -> Iterator[KafkaBroker | RunningKafka]:
    """The Kafka in `KAFKA_BOOTSTRAP_SERVERS`, else our own. Raises `PartMissingError` if there is no Java."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield RunningKafka(given)
        return
    with KafkaBroker(settings=PATIENT, java_options=FOR_MANY_TOPICS) as broker:
        yield broker


def kafka_jars(version: str | None = None) -> Path:
    """The folder of Kafka's jars: from the cache, else downloaded. `version`: None = the default version."""
    _java()
    lock = KAFKA if version is None else KAFKA.with_name(f"kafka-{version}.lock")
    if not lock.exists():
        lock = LOCKS / lock.name
    if not lock.exists():
        raise PartMissingError(f"there is no {lock}: run `python -m scripts.generate.lock_jars {lock}`")
    return jars(lock, install=_INSTALL)


def _java() -> str:
    return java("Apache Kafka", install=_INSTALL)


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
