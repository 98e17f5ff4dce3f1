"""Fixtures for more than one folder of tests: real parts, and fresh names.

A part starts when the first test uses it. If it can't be had, its tests are skipped with a message that says what to
install.
"""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from harness import PartMissingError
from harness.azure import AzureEndpoint, Azurite
from harness.child import ChildProcess, Launch
from harness.directory_buckets import DirectoryBuckets
from harness.dynamodb import DynamoDBEndpoint, DynamoDBLocal
from harness.gcs import GcsEndpoint, gcs_server
from harness.kafka import KafkaBroker, RunningKafka, kafka_broker
from harness.outages import AwayKafka
from harness.preloaded import Preloaded
from harness.s3 import Minio, S3Endpoint, s3_server
from harness.scene import Scene
from harness.secured_kafka import SecuredKafka
from harness.secured_kafka import secured_kafka as secured
from harness.toxiproxy import Toxiproxy
from tests.kafka.acls import strict_broker

Part = TypeVar("Part")

# How long an example takes depends on what else runs. Each run has the same examples, so that the branches that tests
# take do not depend on chance; others with `--hypothesis-profile=fresh`.
settings.register_profile("committerd", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
settings.load_profile("committerd")


_servers = set[str]()
"""The address of the broker of the run, when it is there."""


def _part(part: contextlib.AbstractContextManager[Part]) -> Iterator[Part]:
    """Run a part for as long as the fixture lives."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(part)
        except PartMissingError as error:
            pytest.skip(str(error))
        yield running


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker | RunningKafka]:
    """A broker for the whole run; use your own names. A test that stops the broker needs `breakable_kafka`.

    Where several processes share the tests, they share the broker too: `COMMITTERD_TEST_KAFKA` is its address.
    """
    shared = os.environ.get("COMMITTERD_TEST_KAFKA")
    brokers = [RunningKafka(shared)] if shared else _part(kafka_broker())
    for broker in brokers:
        _servers.add(broker.bootstrap_servers)
        yield broker


@pytest.fixture(scope="module")
def _breakable_kafka() -> Iterator[KafkaBroker]:
    """Ends with the tests of its file, as each broker here but the shared one: an idle broker takes processor time."""
    yield from _part(KafkaBroker())


@pytest.fixture
def breakable_kafka(_breakable_kafka: KafkaBroker) -> Iterator[KafkaBroker]:
    """A second broker, which the test may kill, freeze and start again."""
    if not _breakable_kafka.running:
        _breakable_kafka.start()
    yield _breakable_kafka
    if _breakable_kafka.running:
        _breakable_kafka.thaw()


@pytest.fixture(scope="module")
def strict_kafka() -> Iterator[KafkaBroker]:
    """A broker whose user `LOGIN` may do what ACLs allow (`tests.kafka.acls`); without a login one may do anything."""
    yield from _part(strict_broker())


@pytest.fixture(scope="module")
def secured_kafka() -> Iterator[SecuredKafka]:
    """A broker with ACLs that is reached by TLS, by a client certificate, and by each kind of login over TLS."""
    yield from _part(secured())


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Endpoint]:
    """versitygw, or the server that COMMITTERD_TEST_S3_ENDPOINT names, for the whole run; make your own buckets."""
    yield from _part(s3_server())


@pytest.fixture(scope="session")
def directory_buckets(s3: S3Endpoint) -> Iterator[DirectoryBuckets]:
    """The buckets of versitygw as directory buckets of S3 Express for the whole run; make your own buckets."""
    yield from _part(DirectoryBuckets(s3))


@pytest.fixture(scope="session")
def minio() -> Iterator[S3Endpoint]:
    """A second S3 server, MinIO."""
    for server in _part(Minio()):
        yield server.endpoint


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureEndpoint]:
    """Azurite for the whole run; make your own containers."""
    for server in _part(Azurite()):
        yield server.endpoint


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsEndpoint]:
    """fake-gcs-server for the whole run; make your own buckets."""
    yield from _part(gcs_server())


@pytest.fixture(scope="session")
def dynamodb() -> Iterator[DynamoDBEndpoint]:
    """DynamoDB Local for the whole run; make your own tables."""
    for server in _part(DynamoDBLocal()):
        yield server.endpoint


@pytest.fixture(scope="session")
def toxiproxy() -> Iterator[Toxiproxy]:
    """Network faults for the whole run; make your own proxies, and remove them."""
    yield from _part(Toxiproxy())


@pytest.fixture(scope="module")
def away_kafka(toxiproxy: Toxiproxy) -> Iterator[AwayKafka]:
    """A third broker, behind a network that the test may cut."""
    yield from _part(AwayKafka(toxiproxy))


@pytest.fixture(scope="session")
def launch() -> Iterator[Launch]:
    """How scenes start committerd: on Linux as a fork of a process that has loaded it, which saves loading it."""
    if not sys.platform.startswith("linux"):
        yield ChildProcess
        return
    with Preloaded() as preloaded:
        yield preloaded


@pytest.fixture(scope="module")
def _datasets() -> Iterator[list[str]]:
    """The names of the datasets of a file. At the end of the file their topics are deleted from the broker of the run.

    Otherwise they fill its memory after a thousand tests, and it stands still for seconds again and again.
    """
    names: list[str] = []
    yield names
    for servers in _servers if names else ():
        # What it does not delete in time stays there.
        with contextlib.suppress(KafkaError), contextlib.closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
            topics = [topic for topic in admin.list_topics() if topic.startswith(tuple(names))]
            if topics:
                admin.delete_topics(topics)


@pytest.fixture
def dataset(_datasets: list[str]) -> str:
    """A dataset's name, new for each test, which names its topics and its group."""
    _datasets.append(f"t-{uuid.uuid4().hex[:12]}")
    return _datasets[-1]


@pytest.fixture
def scene(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Scene]:
    """A dataset without a table and without topics."""
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as made:
        yield made


@pytest.fixture
def breakable_scene(breakable_kafka: KafkaBroker, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Scene]:
    """The same on a Kafka that the test may kill."""
    with Scene(kafka=breakable_kafka.bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as made:
        yield made
