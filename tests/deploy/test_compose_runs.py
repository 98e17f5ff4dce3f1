"""deploy/docker-compose.yml, run without its engine: the servers with the arguments and settings that it gives them,
and our containers, from our images, with their commands and environments. Only addresses are other ones.
"""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import lance
import pytest

from committerd.dev.parts import free_port
from harness import PartMissingError
from harness.child import ChildProcess
from harness.daemon import Daemon
from harness.dynamodb import DynamoDBLocal
from harness.kafka import KafkaBroker
from harness.prometheus import Prometheus
from harness.s3 import Versitygw
from tests.deploy.compose import Compose
from tests.deploy.image import Image

pytestmark = pytest.mark.timeout(1800)


class DemoS3(Versitygw):
    """Service `s3`."""

    def __init__(self, compose: Compose) -> None:
        super().__init__()
        self._words = compose.services["s3"]["command"]
        environment = compose.environment("s3")
        self.access_key, self.secret_key = environment["ROOT_ACCESS_KEY"], environment["ROOT_SECRET_KEY"]
        self.check = compose.services["s3"]["healthcheck"]["test"]

    def command(self, port: int) -> Sequence[str | Path]:
        program = super().command(port)[0]
        here = {":7070": f"127.0.0.1:{port}", "/data": str(self.data)}
        assert here.keys() <= set(self._words)
        return [program, *(here.get(word, word) for word in self._words)]


class DemoDynamoDB(DynamoDBLocal):
    """Service `dynamodb`; its data lie in the folder that it is started in."""

    def __init__(self, compose: Compose) -> None:
        super().__init__()
        self._words = compose.services["dynamodb"]["command"]

    def command(self, port: int) -> Sequence[str | Path]:
        usual = [str(word) for word in super().command(port)]
        start, (jar, _, *words) = usual[: usual.index("-inMemory")], self._words
        assert jar == "-jar"  # its main class is the one named in `start`
        return [*start, *words, "-port", str(port)]


class DemoKafka(KafkaBroker):
    """Service `kafka`: variables KAFKA_A_B are its image's way to set a.b. They win over the settings of the tests."""

    def __init__(self, compose: Compose) -> None:
        super().__init__()
        self._given = compose.environment("kafka")

    def _launch(self, libs: Path, ports: Sequence[int]) -> ChildProcess:
        inside, controller, outside = ports
        here = {"9092": inside, "9093": controller, "29092": outside}

        def moved(value: str) -> str:
            return re.sub(r"[\w.]*:(9092|9093|29092)\b", lambda found: f"127.0.0.1:{here[found[1]]}", value)

        self._settings = {
            name.removeprefix("KAFKA_").lower().replace("_", "."): moved(value)
            for name, value in self._given.items()
            if name != "KAFKA_LOG_DIRS"
        }
        return super()._launch(libs, ports)


@pytest.fixture(scope="module")
def servers(compose: Compose) -> Iterator[tuple[DemoS3, DemoDynamoDB, DemoKafka]]:
    with ExitStack() as stack:
        try:
            yield (
                stack.enter_context(DemoS3(compose)),
                stack.enter_context(DemoDynamoDB(compose)),
                stack.enter_context(DemoKafka(compose)),
            )
        except PartMissingError as error:
            pytest.skip(str(error))


class Demo:
    """Starts our containers, which find the servers where they are."""

    def __init__(self, compose: Compose, servers: tuple[DemoS3, DemoDynamoDB, DemoKafka]) -> None:
        s3, dynamodb, kafka = servers
        self._compose = compose
        self._addresses = {
            "http://s3:7070": s3.url,
            "http://dynamodb:8000": dynamodb.url,
            "kafka:9092": kafka.bootstrap_servers,
        }

    def here(self, text: str) -> str:
        for there, address in self._addresses.items():
            text = text.replace(there, address)
        return text

    def environment(self, image: Image, service: str) -> dict[str, str]:
        given = {name: self.here(value) for name, value in self._compose.environment(service).items()}
        return image.environment | given

    def command(self, image: Image, service: str) -> list[str]:
        described = self._compose.services[service]
        mounts = {Path(mount["source"]): mount["target"] for mount in described.get("volumes", ())}
        words = [self.here(word) for word in described.get("command") or ()]
        return image.started(words, entrypoint=described.get("entrypoint"), volumes=mounts)

    def run(self, image: Image, service: str) -> str:
        """A container that ends."""
        done = subprocess.run(
            self.command(image, service),
            env=self.environment(image, service),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def member(self, image: Image) -> Daemon:
        """One of the committers."""
        daemon = Daemon(name="member", uri="", kafka="", command=self.command(image, "committerd"))
        # Both would listen on one port; in the demo each has an address of its own.
        own = {"COMMITTERD_HTTP__HOST": "127.0.0.1", "COMMITTERD_HTTP__PORT": str(free_port())}
        daemon.environment = self.environment(image, "committerd") | own
        return daemon


def test_the_demo_makes_what_it_needs_and_fills_its_table(
    compose: Compose,
    servers: tuple[DemoS3, DemoDynamoDB, DemoKafka],
    image: Image,
    producer_image: Image,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    demo, (s3, dynamodb, _) = Demo(compose, servers), servers
    for _ in range(2):  # `up` once more finds what is there
        demo.run(image, "store")
        demo.run(image, "topics")
    monkeypatch.setitem(
        compose.services["producer"], "command", [*compose.services["producer"]["command"], "--batches=3"]
    )
    with demo.member(image) as first, demo.member(image) as second:
        for member in (first, second):
            member.wait_ready()
        said = demo.run(producer_image, "producer")
        assert said.count(" batch 2: version ") == 4
    options = {**s3.endpoint.storage_options(), **dynamodb.endpoint.storage_options()}
    uri = compose.environment("committerd")["COMMITTERD_DATASET__URI"]
    table = lance.dataset(uri, storage_options=options)
    assert table.count_rows() == 4 * 3 * 1000
    assert len(dynamodb.endpoint.items("manifests")) == table.version


def test_the_s3_server_answers_where_its_healthcheck_asks(servers: tuple[DemoS3, DemoDynamoDB, DemoKafka]) -> None:
    s3 = servers[0]
    asked = s3.check[-1].replace("http://127.0.0.1:7070", s3.url)
    assert asked.startswith(s3.url)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 200


def test_the_healthcheck_of_prometheus_knows_it_from_nothing(compose: Compose) -> None:
    kind, *words = compose.services["prometheus"]["healthcheck"]["test"]
    assert kind == "CMD"

    def healthy(url: str) -> bool:
        here = [word.replace("http://127.0.0.1:9090", url) for word in words]
        assert any(url in word for word in here)
        return subprocess.run(here, capture_output=True, check=False).returncode == 0

    try:
        with Prometheus(targets=[]) as prometheus:
            assert healthy(prometheus.url)
    except PartMissingError as error:
        pytest.skip(str(error))
    assert not healthy(f"http://127.0.0.1:{free_port()}")
