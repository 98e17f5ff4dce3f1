"""A Spark job whose driver comes with a client certificate to a Kafka with an authorizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from committerd_spark.options import Options
from harness.child import Launch
from harness.secured_kafka import SecuredKafka
from tests.kafka.acls import allow, listed
from tests.spark.queue import Queue

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pylance]


def test_a_job_comes_with_a_certificate(
    spark: SparkSession, secured_kafka: SecuredKafka, dataset: str, tmp_path: Path, launch: Launch
) -> None:
    for user, row in (("committer", "`committerd run`"), ("committer", "... if it creates"), ("writer", "a client")):
        allow(secured_kafka.broker, listed(row, dataset), user=user)
    settings = secured_kafka.settings("mTLS")
    servers = secured_kafka.servers("mTLS")
    with Queue(name=dataset, kafka=servers, folder=tmp_path, launch=launch, settings=settings) as queue:
        options = {f"kafka.{name}": text for name, text in secured_kafka.options("mTLS", "writer").items()}
        given = {"bootstrap_servers": queue.kafka, "timeout": "200", **options}
        spark.range(10).write.format("committerd").mode("append").options(**given).save(queue.uri)
        assert queue.column("id") == list(range(10))


def test_a_password_of_digits_stays_a_text() -> None:
    given = {"kafka.sasl.plain.password": "0123", "kafka.ssl.check.hostname": "false", "kafka.request.timeout.ms": "9"}
    options = Options.of({"bootstrap_servers": "b:1", "uri": "/t.lance", **given}).queue.kafka_options
    assert options == {"sasl_plain_password": "0123", "ssl_check_hostname": False, "request_timeout_ms": 9}
