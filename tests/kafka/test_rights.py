"""A broker with ACLs: a missing one is named, with operation and resource."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import anyio
import pytest
from anyio import to_thread
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ACLOperation, ResourceType

from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka import transactions
from committerd.kafka.member import open_kafka_queue
from committerd.kafka.operator import open_operator
from committerd.kafka.options import Topics, topics_of
from committerd.queue.port import Publication
from committerd.settings.kafka import KafkaSettings
from harness.kafka import LOGIN, KafkaBroker
from tests.kafka.acls import Right, allow, forbid
from tests.kafka.staging import PATIENT, assignment, refusal, settings_for, until

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(strict_kafka: KafkaBroker) -> KafkaSettings:
    user, password = LOGIN
    login: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    return settings_for(strict_kafka.login_servers, **PATIENT, **login)


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
    async with open_kafka_queue(settings_for(broker.bootstrap_servers, **PATIENT), dataset) as queue:
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
        ((ACLOperation.DESCRIBE_CONFIGS, "staged"), "no ACL DescribeConfigs on Topic {staged}"),
        ((ACLOperation.DESCRIBE_CONFIGS, "outcomes"), "no ACL DescribeConfigs on Topic {outcomes}"),
        ((ACLOperation.DESCRIBE_CONFIGS, "dead"), "no ACL DescribeConfigs on Topic {dead}"),
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
    refused = await refusal(settings, dataset)
    assert said.format(staged=topics.staged, outcomes=topics.outcomes, dead=topics.dead, group=topics.group) in refused
    assert "kafka-acls.sh --add" in refused


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
        await until(lambda: "no ACL Read on Group" in queue.trouble(), seconds=60)
        assert topics.group in queue.trouble()
        await to_thread.run_sync(allow, strict_kafka, [right])
        await until(lambda: not queue.trouble(), seconds=60)


async def test_change_events_need_rights_of_their_own(
    strict_kafka: KafkaBroker, settings: KafkaSettings, dataset: str
) -> None:
    settings = settings.model_copy(update={"change_events": True})
    topics = topics_of(settings, dataset)
    operations = (ACLOperation.READ, ACLOperation.WRITE, ACLOperation.DESCRIBE_CONFIGS)
    missing, *others = [(operation, ResourceType.TOPIC, topics.events) for operation in operations]
    administrator = settings_for(strict_kafka.bootstrap_servers, **PATIENT, change_events=True)
    async with open_operator(administrator, dataset) as operator:
        await operator.survey(create=True)
    await to_thread.run_sync(allow, strict_kafka, [*needed(topics), *others])
    assert f"no ACL Read on Topic {topics.events}" in await refusal(settings, dataset)
    await to_thread.run_sync(allow, strict_kafka, [missing])
    async with open_kafka_queue(settings, dataset) as queue:
        await queue.publish_events([Publication(key=b"k", value=b"v")])
        assert await queue.events_tail(1) == [b"v"]


# Open Kafka transactions

ALTER_CLUSTER: Right = (ACLOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")


@contextlib.contextmanager
def left_open(broker: KafkaBroker, topics: Topics) -> Iterator[KafkaProducer]:
    """A healthy transaction that has written one record."""
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id=f"{topics.staged}.writer", max_block_ms=30_000
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topics.staged, value=b"first", partition=0).get(30)
        yield producer
    finally:
        producer.close()


def named(right: ACLOperation, topics: Topics, name: str = "") -> Right:
    return right, ResourceType.TRANSACTIONAL_ID, name or f"{topics.staged}.writer"


async def test_a_transaction_that_may_not_be_described_is_never_ended(
    strict_kafka: KafkaBroker, settings: KafkaSettings, dataset: str
) -> None:
    """With the right to end a hanging one, a healthy one would lose its first record."""
    topics = topics_of(settings, dataset)
    await make(strict_kafka, dataset, [*needed(topics), ALTER_CLUSTER])
    with left_open(strict_kafka, topics) as producer:
        async with open_operator(settings, dataset) as operator:
            (hidden,) = await operator.open_transactions()
            assert (hidden.transactional_id, hidden.is_hanging) == (None, False)
            assert "no ACL Describe on TransactionalId *" in hidden.unknown
            with pytest.raises(SettingsError, match="is not ended: it may be healthy"):
                await operator.end_transaction(hidden)
            # The right to describe this one alone does not show the others.
            await to_thread.run_sync(allow, strict_kafka, [named(ACLOperation.DESCRIBE, topics)])
            (seen,) = await operator.open_transactions()
            assert (seen.transactional_id, seen.unknown) == (f"{topics.staged}.writer", "")
            with pytest.raises(QueueUnavailable) as raised:
                await operator.end_transaction(seen)
            assert f"no ACL Write on TransactionalId {topics.staged}.writer" in str(raised.value)
            producer.send(topics.staged, value=b"second", partition=0).get(30)
            producer.commit_transaction()
            with anyio.fail_after(60):  # the broker answers a commit before its mark is in the log
                while await operator.bounds(topics.staged) != {0: (0, 3)}:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            assert [record.value for record in await operator.read(0, 3)] == [b"first", b"second"]
            assert await operator.open_transactions() == []
    await to_thread.run_sync(forbid, strict_kafka, ALTER_CLUSTER)


async def test_one_that_no_coordinator_names_is_hanging_only_when_it_is_old(
    strict_kafka: KafkaBroker, settings: KafkaSettings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = topics_of(settings, dataset)
    await make(strict_kafka, dataset, [*needed(topics), named(ACLOperation.DESCRIBE, topics, "*")])
    # As if its coordinator had forgotten it.
    monkeypatch.setattr(KafkaAdminClient, "list_transactions", lambda self, **given: {1: []})
    with left_open(strict_kafka, topics):
        async with open_operator(settings, dataset) as operator:
            (young,) = await operator.open_transactions()
            assert (young.transactional_id, young.is_hanging) == (None, False)
            assert "wrote less than 20 minutes ago" in young.unknown
            monkeypatch.setattr(transactions, "TIMEOUT_MS_MAX", 0)
            monkeypatch.setattr(transactions, "_SLACK_MS", -3_600_000)
            (old,) = await operator.open_transactions()
            assert (old.is_hanging, old.unknown) == (True, "")
            with pytest.raises(QueueUnavailable) as raised:
                await operator.end_transaction(old)
            assert "no ACL Alter on Cluster" in str(raised.value)
            assert "Error" not in str(raised.value)
            await to_thread.run_sync(allow, strict_kafka, [ALTER_CLUSTER])
            await operator.end_transaction(old)
            assert await operator.open_transactions() == []
    for right in (ALTER_CLUSTER, named(ACLOperation.DESCRIBE, topics, "*")):
        await to_thread.run_sync(forbid, strict_kafka, right)


async def test_without_read_on_the_topic_the_right_is_named(
    strict_kafka: KafkaBroker, settings: KafkaSettings, dataset: str
) -> None:
    topic = topics_of(settings, dataset).staged
    for rights in ([], [(ACLOperation.DESCRIBE, ResourceType.TOPIC, topic)]):
        await make(strict_kafka, dataset, rights)
        async with open_operator(settings, dataset) as operator:
            with pytest.raises(QueueUnavailable) as raised:
                await operator.open_transactions()
        assert f"no ACL Read on Topic {topic}" in str(raised.value)
