"""A Spark job whose driver comes to a Kafka with an authorizer: each way, with wrong logins, and without a right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from committerd_spark.options import Options
from harness.child import Launch
from harness.secured_kafka import SecuredKafka, Way
from tests.kafka.acls import allow, forbid, listed
from tests.spark.queue import Queue

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]


@pytest.fixture
def queue(secured_kafka: SecuredKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Queue]:
    """A queue whose committer and writer have the rights of their rows."""
    for user, row in (("committer", "`committerd run`"), ("committer", "... if it creates"), ("writer", "a client")):
        allow(secured_kafka.broker, listed(row, dataset), user=user)
    servers, settings = secured_kafka.servers("mTLS"), secured_kafka.settings("mTLS")
    with Queue(name=dataset, kafka=servers, folder=tmp_path, launch=launch, settings=settings) as made:
        yield made


def _write(
    spark: SparkSession, queue: Queue, kafka: SecuredKafka, way: Way, *, seconds: int = 200, **other: str
) -> None:
    """Run a job that comes this way. `other`: options of Kafka that are different."""
    login = {f"kafka.{name}": text for name, text in (kafka.options(way, "writer") | other).items()}
    options = {"bootstrap_servers": kafka.servers(way), "timeout": str(seconds), **login}
    spark.range(10).write.format("committerd").mode("append").options(**options).save(queue.uri)


def _refused(spark: SparkSession, queue: Queue, kafka: SecuredKafka, way: Way, why: str, **other: str) -> str:
    """Run a job that fails; returns its message, which should say `why`."""
    told = ""
    for seconds in (8, 30, 90):  # on a busy machine, a short time-out knows less
        with pytest.raises(Exception, match="KafkaUnavailable") as raised:
            _write(spark, queue, kafka, way, seconds=seconds, **other)
        told = str(raised.value)
        if why in told:
            break
    return told


@pytest.mark.parametrize("way", ["mTLS", "PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_job_comes_each_way(way: Way, spark: SparkSession, secured_kafka: SecuredKafka, queue: Queue) -> None:
    _write(spark, queue, secured_kafka, way)
    assert queue.column("id") == list(range(10))


@pytest.mark.parametrize(
    ("way", "option", "why"),
    [
        ("PLAIN", "sasl_plain_password", "Invalid username or password"),
        ("SCRAM-SHA-512", "sasl_plain_password", "invalid credentials"),
        ("OAUTHBEARER", "sasl_oauth_client_secret", "invalid_client"),
    ],
)
def test_a_job_that_is_not_let_in_says_why_and_not_its_secret(
    way: Way, option: str, why: str, spark: SparkSession, secured_kafka: SecuredKafka, queue: Queue
) -> None:
    told = _refused(spark, queue, secured_kafka, way, why, **{option: "m4rked"})
    assert why in told
    assert "m4rked" not in told


def test_a_job_without_one_of_its_rights_names_it(
    spark: SparkSession, secured_kafka: SecuredKafka, queue: Queue, dataset: str
) -> None:
    for right in listed("a client", dataset):
        forbid(secured_kafka.broker, right, user="writer")
        operation, _, name = right
        why = f"no ACL {operation.name.title()} on it"
        told = _refused(spark, queue, secured_kafka, "SCRAM-SHA-512", why)
        assert why in told
        assert name in told
        allow(secured_kafka.broker, [right], user="writer")


def test_a_password_of_digits_stays_a_text() -> None:
    given = {"kafka.sasl.plain.password": "0123", "kafka.ssl.check.hostname": "false", "kafka.request.timeout.ms": "9"}
    options = Options.of({"bootstrap_servers": "b:1", "uri": "/t.lance", **given}).queue.kafka_options
    assert options == {"sasl_plain_password": "0123", "ssl_check_hostname": False, "request_timeout_ms": 9}
