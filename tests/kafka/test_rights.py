"""A broker with ACLs: a missing one is named, with operation and resource."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from anyio import to_thread
from kafka.admin import ACLOperation, ResourceType

from committerd.errors import SettingsError
from committerd.kafka.options import Topics, topics_of
from committerd.kafka.queue import open_kafka_queue
from committerd.queue.port import Publication
from committerd.settings.kafka import KafkaSettings
from harness.kafka import LOGIN, KafkaBroker
from tests.kafka.acls import Right, allow, forbid, strict_broker
from tests.kafka.staging import assignment, settings_for, until

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def strict_kafka() -> Iterator[KafkaBroker]:
    with strict_broker() as broker:
        yield broker


@pytest.fixture
def settings(strict_kafka: KafkaBroker) -> KafkaSettings:
    user, password = LOGIN
    login: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    return settings_for(strict_kafka.login_servers, **login, bootstrap_timeout_ms=5_000)


def needed(topics: Topics) -> list[Right]:
    """All that a committer may do."""
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    rights: list[Right] = [
        (ACLOperation.READ, topic, topics.staged),
        (ACLOperation.READ, topic, topics.outcomes),
        (ACLOperation.WRITE, topic, topics.outcomes),
        (ACLOperation.WRITE, topic, topics.dead),
        (ACLOperation.READ, group, topics.group),
    ]
    names = (topics.staged, topics.outcomes, topics.dead)
    return rights + [(ACLOperation.DESCRIBE_CONFIGS, topic, name) for name in names]


async def make(broker: KafkaBroker, dataset: str, rights: Sequence[Right]) -> Topics:
    """Make the dataset's topics as administrator, and give the user its rights."""
    async with open_kafka_queue(settings_for(broker.bootstrap_servers), dataset) as queue:
        topics = queue.topics
    await to_thread.run_sync(allow, broker, rights)
    return topics


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ((ACLOperation.READ, "staged"), "no ACL Describe on Topic {staged}"),
        ((ACLOperation.READ, "outcomes"), "no ACL Read on Topic {outcomes}"),
        ((ACLOperation.WRITE, "outcomes"), "no ACL Write on Topic {outcomes}"),
        ((ACLOperation.WRITE, "dead"), "no ACL Describe on Topic {dead}"),
        ((ACLOperation.READ, "group"), "no ACL Read on Group {group}"),
    ],
)
async def test_a_start_without_one_of_the_rights_names_it(
    strict_kafka: KafkaBroker, settings: KafkaSettings, dataset: str, without: tuple[ACLOperation, str], said: str
) -> None:
    topics = topics_of(settings, dataset)
    operation, role = without
    lacks = getattr(topics, role)
    rights = [right for right in needed(topics) if (right[0], right[2]) != (operation, lacks)]
    # DescribeConfigs does not include describing the topic itself.
    await make(strict_kafka, dataset, rights)
    with pytest.raises(SettingsError) as raised:
        async with open_kafka_queue(settings, dataset):
            pass
    assert said.format(staged=topics.staged, outcomes=topics.outcomes, dead=topics.dead, group=topics.group) in str(
        raised.value
    )
    assert "kafka-acls.sh --add" in str(raised.value)


async def test_with_all_of_them_it_works_and_one_that_is_taken_away_is_named(
    strict_kafka: KafkaBroker, settings: KafkaSettings, dataset: str
) -> None:
    topics = topics_of(settings, dataset)
    await make(strict_kafka, dataset, needed(topics))
    async with open_kafka_queue(settings, dataset) as queue:
        generation = await assignment(queue)
        await queue.seek(generation, 0)
        await queue.publish([Publication(key=b"k", value=b"v")])
        await queue.dead_letter([Publication(key=b"k", value=b"v")])
        assert await queue.outcomes_tail(1) == [b"v"]
        assert await queue.acknowledge(generation, 0, "")
        assert queue.trouble() == ""
        right = (ACLOperation.READ, ResourceType.GROUP, topics.group)
        await to_thread.run_sync(forbid, strict_kafka, right)
        await until(lambda: "no ACL Read on Group" in queue.trouble(), seconds=30)
        assert topics.group in queue.trouble()
        await to_thread.run_sync(allow, strict_kafka, [right])
        await until(lambda: not queue.trouble(), seconds=30)
