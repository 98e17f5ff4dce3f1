"""docs/how-to/limit-a-producer.md: its commands limit the client and a producer of kafka-python's, and nobody else."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from committerd_client import CommitClient, CommitResult
from harness.kafka import LOGIN, KafkaBroker
from harness.kafka_configs import WINDOW_SECONDS, kafka_configs
from harness.scene import STAYS, Scene
from harness.topics import Staged
from tests.producers.answering import make_topics

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]

_PAGE = Path(__file__).parents[2].joinpath("docs/how-to/limit-a-producer.md").read_text("utf-8")
_QUOTA = 20_000
"""Bytes a second, as on the page."""


def _commands() -> list[list[str]]:
    """The arguments of the page's commands: a quota for a client, for a user; to look at the client's, to remove it."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert [words[:3] for words in lines] == [["kafka-configs.sh", "--bootstrap-server", "kafka:9092"]] * 4
    return [words[3:] for words in lines]


@pytest.mark.long
async def test_a_client_waits_as_long_as_its_quota_says(
    breakable_scene: Scene, breakable_kafka: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    scene, servers = breakable_scene, breakable_kafka.bootstrap_servers
    scene.table.create()
    scene.started(**STAYS)
    limit, _, look, end = _commands()
    kafka_configs(servers, *limit)
    assert f"producer_byte_rate={_QUOTA}" in kafka_configs(servers, *look)
    appends = scene.table.appends(2_500)
    given: dict[str, Any] = {"dataset": scene.name, "dataset_uri": scene.table.uri, "timeout": 200}
    others: list[CommitResult] = []
    async with (
        CommitClient(servers, producer="loader", **given) as limited,
        CommitClient(servers, producer="another", **given) as other,
    ):

        async def commit_others() -> None:
            while True:
                others.append(await other.commit(scene.table.append()))

        beside = asyncio.create_task(commit_others())
        began = time.monotonic()
        handles = await asyncio.gather(*(limited.submit(one) for one in appends))
        took = time.monotonic() - began
        committed_beside = len(others)
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        results = await asyncio.gather(*(handle.outcome() for handle in handles))
    kafka_configs(servers, *end)
    assert "producer_byte_rate" not in kafka_configs(servers, *look)
    sent = sum(_size(record) for record in scene.topics.read_staged() if ("producer", b"loader") in record.headers)
    assert took > _shortest(sent, batch=128 * 1024) > 5
    assert committed_beside >= 10
    assert [result.duplicate for result in results] == [False] * len(appends)
    assert [record.message for record in caplog.records if "replaced" in record.message] == []


def _shortest(sent: int, *, batch: int) -> float:
    """The seconds that `sent` bytes take at least. The first bytes are free, and a producer has sent the last two
    batches before Kafka makes it wait for them.
    """
    return (sent - WINDOW_SECONDS * _QUOTA - 2 * batch) / _QUOTA


def _size(record: Staged) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def test_a_user_waits_as_long_as_its_quota_says(breakable_kafka: KafkaBroker, dataset: str) -> None:
    user, password = LOGIN
    make_topics(breakable_kafka.bootstrap_servers, dataset)
    _, limit, _, end = _commands()
    assert limit[-2:] == ["--entity-name", "loader"]
    kafka_configs(breakable_kafka.bootstrap_servers, *limit[:-1], user)
    producer: Any = KafkaProducer(
        bootstrap_servers=breakable_kafka.login_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=user,
        sasl_plain_password=password,
    )
    began = time.monotonic()
    sent = [producer.send(f"{dataset}.staged", value=bytes(1_000), partition=0) for _ in range(400)]
    producer.flush(120)
    took = time.monotonic() - began
    assert [one.get(timeout=1).offset for one in sent] == list(range(400))
    producer.close()
    of_the_user = {"clients": "users", "loader-staged": user}
    kafka_configs(breakable_kafka.bootstrap_servers, *(of_the_user.get(word, word) for word in end))
    assert took > _shortest(400_000, batch=16 * 1024) > 5
