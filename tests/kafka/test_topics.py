"""Creating and checking the topics."""

from __future__ import annotations

import time

import anyio
import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from committerd.errors import SettingsError, single_error
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.member import open_kafka_queue
from committerd.kafka.options import topics_of
from committerd.kafka.preparation import TopicPreparation
from committerd.kafka.topics import TopicDescription, checks, planned_topics
from committerd.settings.kafka import DAY_MS, KafkaSettings
from harness.kafka import KafkaBroker, RunningKafka
from tests.kafka.staging import PATIENT, delete_topic, operator, refusal, settings_for

SETTINGS = KafkaSettings(bootstrap_servers=("localhost:9092",))


def as_planned(settings: KafkaSettings = SETTINGS, *, brokers: int = 3) -> dict[str, TopicDescription]:
    """Topics as the settings require them."""
    plans = planned_topics(settings, topics_of(settings, "t"), brokers=brokers)
    return {
        plan.name: TopicDescription(
            partitions=plan.partitions, replicas=plan.replicas, configs={**plan.configs, "segment.ms": "1"}
        )
        for plan in plans
    }


def with_configs(topic: TopicDescription, **configs: str) -> TopicDescription:
    changed = {name.replace("_", "."): value for name, value in configs.items()}
    return TopicDescription(partitions=topic.partitions, replicas=topic.replicas, configs={**topic.configs, **changed})


def wrong(found: dict[str, TopicDescription], settings: KafkaSettings = SETTINGS, *, brokers: int = 3) -> list[str]:
    plans = planned_topics(settings, topics_of(settings, "t"), brokers=brokers)
    return [check.problem for check in checks(plans, found, settings) if check.problem]


# The plan, and what counts as wrong


def test_three_brokers_keep_three_copies_of_which_two_must_be_written() -> None:
    for plan in planned_topics(SETTINGS, topics_of(SETTINGS, "t"), brokers=5):
        assert plan.replicas == 3
        assert plan.configs["min.insync.replicas"] == "2"


@pytest.mark.parametrize("brokers", [1, 2])
def test_fewer_brokers_do_with_what_there_is(brokers: int) -> None:
    for plan in planned_topics(SETTINGS, topics_of(SETTINGS, "t"), brokers=brokers):
        assert plan.replicas == brokers
        assert plan.configs["min.insync.replicas"] == "1"


@pytest.mark.parametrize("role", ["outcomes", "dead"])
def test_a_topic_of_answers_that_takes_too_little_or_packs_them_is_wrong(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("committerd.kafka.topics._unreadable_codecs", lambda: ["snappy", "zstd"])
    name, found = f"t.{role}", as_planned()
    assert wrong(found) == []
    (small,) = wrong({**found, name: with_configs(found[name], max_message_bytes="100000")})
    assert f"{name}: max.message.bytes is 100000" in small
    (packed,) = wrong({**found, name: with_configs(found[name], compression_type="zstd")})
    assert f"{name}: compression.type is zstd (snappy, zstd can't be read here" in packed
    assert packed.endswith("compression.type=uncompressed")
    for good in ("producer", "uncompressed", "gzip"):
        assert wrong({**found, name: with_configs(found[name], compression_type=good)}) == []


def test_a_dead_letter_topic_takes_more_than_a_record() -> None:
    staged, _, dead = planned_topics(SETTINGS, topics_of(SETTINGS, "t"), brokers=1)
    assert int(dead.configs["max.message.bytes"]) > int(staged.configs["max.message.bytes"]) + 10_000


def test_nothing_is_wrong_with_topics_as_planned() -> None:
    assert wrong(as_planned()) == []


@pytest.mark.parametrize(
    ("role", "configs", "said"),
    [
        ("staged", {"cleanup_policy": "compact"}, "cleanup.policy=delete"),
        ("outcomes", {"cleanup_policy": "compact,delete"}, "cleanup.policy=delete"),
        ("staged", {"retention_ms": str(DAY_MS)}, f"retention.ms={14 * DAY_MS}"),
        ("outcomes", {"retention_ms": str(13 * DAY_MS)}, f"retention.ms={14 * DAY_MS}"),
        ("dead", {"retention_ms": str(DAY_MS)}, f"retention.ms={30 * DAY_MS}"),
        ("staged", {"retention_bytes": "1000000"}, "retention.bytes=-1"),
        ("staged", {"min_insync_replicas": "1"}, "min.insync.replicas=2"),
        ("dead", {"min_insync_replicas": "1"}, "min.insync.replicas=2"),
        ("outcomes", {"unclean_leader_election_enable": "true"}, "unclean.leader.election.enable=false"),
        ("staged", {"message_timestamp_type": "CreateTime"}, "message.timestamp.type=LogAppendTime"),
        ("dead", {"max_message_bytes": "1048588"}, "max.message.bytes=1114112"),
    ],
)
def test_each_deviation_is_named_with_its_remedy(role: str, configs: dict[str, str], said: str) -> None:
    found = as_planned()
    found[f"t.{role}"] = with_configs(found[f"t.{role}"], **configs)
    (line,) = wrong(found)
    assert line.startswith(f"t.{role}: ")
    assert line.endswith(f"--entity-name t.{role} --add-config {said}")


def test_change_events_have_a_topic_only_if_they_are_wanted() -> None:
    assert "t.events" not in as_planned()
    settings = SETTINGS.model_copy(update={"change_events": True, "events_retention_ms": 3 * DAY_MS})
    found = as_planned(settings)
    assert wrong(found, settings) == []
    assert found["t.events"].configs["retention.ms"] == str(3 * DAY_MS)
    found["t.events"] = TopicDescription(partitions=2, replicas=3, configs=found["t.events"].configs)
    (line,) = wrong(found, settings)
    assert line.startswith("t.events has 2 partitions and must have 1")
    assert "adopt" not in line


def test_all_deviations_are_listed_at_once() -> None:
    found = as_planned()
    del found["t.dead"]
    found["t.staged"] = TopicDescription(partitions=3, replicas=3, configs={"cleanup.policy": "compact"})
    lines = wrong(found)
    assert any("t.staged has 3 partitions and must have 1" in line for line in lines)
    assert any("cleanup.policy" in line for line in lines)
    assert any("t.dead does not exist" in line for line in lines)


@pytest.mark.parametrize(
    ("role", "configs"),
    [
        ("staged", {"retention_ms": "-1"}),
        ("outcomes", {"retention_ms": "-1"}),
        ("staged", {"retention_ms": str(15 * DAY_MS)}),
        ("staged", {"max_message_bytes": "10485760"}),
        ("dead", {"max_message_bytes": "10485760"}),
        ("dead", {"message_timestamp_type": "CreateTime"}),
    ],
)
def test_what_is_safer_than_asked_or_none_of_our_business_is_right(role: str, configs: dict[str, str]) -> None:
    found = as_planned()
    found[f"t.{role}"] = with_configs(found[f"t.{role}"], **configs)
    assert wrong(found) == []


def test_more_partitions_of_the_outcomes_are_right() -> None:
    found = as_planned()
    outcomes = found["t.outcomes"]
    found["t.outcomes"] = TopicDescription(partitions=40, replicas=3, configs=outcomes.configs)
    assert wrong(found) == []


def test_one_written_copy_is_right_where_there_are_two() -> None:
    assert wrong(as_planned(brokers=2), brokers=2) == []


def test_a_topic_whose_settings_can_not_be_read_is_wrong() -> None:
    found = as_planned()
    found["t.staged"] = TopicDescription(partitions=1, replicas=3, configs={})
    (line,) = wrong(found)
    assert line.startswith(
        "t.staged: the user has no ACL DescribeConfigs on Topic t.staged. Remedy: kafka-acls.sh --add"
    )


@pytest.mark.parametrize("kept", ["producer", "gzip", "zstd"])
def test_records_must_have_their_real_size_in_the_topic(kept: str) -> None:
    found = as_planned()
    found["t.staged"] = with_configs(found["t.staged"], compression_type=kept)
    (line,) = wrong(found)
    assert "limits the compressed size of a batch" in line
    assert line.endswith("compression.type=uncompressed")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a:b"])
def test_a_name_that_kafka_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="can't be part of a Kafka topic"):
        topics_of(SETTINGS, name)


def test_a_name_that_is_too_long_is_refused() -> None:
    settings = KafkaSettings(bootstrap_servers=("localhost:9092",), topic_prefix="p" * 50)
    longest = "n" * (249 - 50 - len(".outcomes"))
    assert len(topics_of(settings, longest).outcomes) == 249
    with pytest.raises(SettingsError, match="has 250 characters, and Kafka allows 249"):
        topics_of(settings, longest + "n")


def test_prefixes_name_topics_and_group() -> None:
    settings = KafkaSettings(bootstrap_servers=("localhost:9092",), topic_prefix="lake.", group_prefix="c-")
    topics = topics_of(settings, "orders")
    assert (topics.staged, topics.outcomes, topics.dead) == (
        "lake.orders.staged",
        "lake.orders.outcomes",
        "lake.orders.dead",
    )
    assert topics.group == "c-orders"


# On a broker


@pytest.fixture
def settings(kafka: KafkaBroker | RunningKafka) -> KafkaSettings:
    return settings_for(kafka.bootstrap_servers, **PATIENT)


def prepared(settings: KafkaSettings, name: str, *, joins: bool = True) -> None:
    async def prepare() -> None:
        admin = TopicAdmin(settings, name)
        preparation = TopicPreparation(settings, f"group-of-{name}", admin=admin)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(preparation.run)
                await preparation.prepare(name, joins=joins, takes_longer=lambda: None)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as error:
            raise single_error(error) from None
        finally:
            admin.close()

    anyio.run(prepare)


@pytest.mark.kafka
def test_creates_what_is_missing_and_is_content_with_it(settings: KafkaSettings, dataset: str) -> None:
    prepared(settings, dataset)
    with operator(settings) as admin:
        described = {t["name"]: t for t in admin.describe_topics([f"{dataset}.{r}" for r in _ROLES])}
        resources = [ConfigResource(ConfigResourceType.TOPIC, f"{dataset}.staged")]
        configs = admin.describe_configs(resources, config_filter="all")["topic"][f"{dataset}.staged"]
    assert [len(described[f"{dataset}.{role}"]["partitions"]) for role in _ROLES] == [1, 8, 1]
    assert configs["message.timestamp.type"]["value"] == "LogAppendTime"
    assert configs["retention.ms"]["value"] == str(14 * DAY_MS)
    prepared(settings, dataset)
    prepared(settings, dataset, joins=False)


@pytest.mark.kafka
def test_creates_only_the_one_that_is_missing(settings: KafkaSettings, dataset: str) -> None:
    prepared(settings, dataset)
    with operator(settings) as admin:
        before = {t["name"]: t["topic_id"] for t in admin.describe_topics([f"{dataset}.staged"])}
    delete_topic(f"{dataset}.dead", settings)
    prepared(settings, dataset)
    with operator(settings) as admin:
        after = {t["name"]: t["topic_id"] for t in admin.describe_topics([f"{dataset}.staged"])}
        assert f"{dataset}.dead" in admin.list_topics()
    assert before == after


@pytest.mark.kafka
def test_creates_nothing_when_it_is_only_to_check(settings: KafkaSettings, dataset: str) -> None:
    with pytest.raises(SettingsError) as refused:
        prepared(settings, dataset, joins=False)
    for role in _ROLES:
        assert f"{dataset}.{role} does not exist" in str(refused.value)
    with operator(settings) as admin:
        assert not [name for name in admin.list_topics() if name.startswith(dataset)]


@pytest.mark.kafka
def test_refuses_topics_that_would_lose_data(settings: KafkaSettings, dataset: str) -> None:
    with operator(settings) as admin:
        made = {
            f"{dataset}.staged": {
                "num_partitions": 2,
                "replication_factor": 1,
                "configs": {"retention.ms": "60000"},
            }
        }
        admin.create_topics(made, wait_for_metadata=True)
    with pytest.raises(SettingsError) as refused:
        prepared(settings, dataset)
    text = str(refused.value)
    assert f"the topics of dataset {dataset} can't be used" in text
    assert "has 2 partitions and must have 1" in text
    assert "retention.ms is 60000 (less than 14 days; or lower staged_retention_ms). Remedy: kafka-configs.sh" in text
    assert "message.timestamp.type is CreateTime" in text


@pytest.mark.kafka
def test_says_what_kafka_says_when_a_topic_can_not_be_created(settings: KafkaSettings, dataset: str) -> None:
    with operator(settings) as admin:
        # Kafka takes a.b and a_b for the same name.
        admin.create_topics(
            {f"{dataset}_staged": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True
        )
    with pytest.raises(SettingsError, match=rf"topic {dataset}\.staged can't be created: .*collides"):
        prepared(settings, dataset)


_ROLES = ("staged", "outcomes", "dead")


@pytest.mark.kafka
async def test_a_start_waits_for_topics_that_others_are_still_making(
    kafka: KafkaBroker | RunningKafka, dataset: str
) -> None:
    settings = settings_for(kafka.bootstrap_servers, topics_mode="check", bootstrap_timeout_ms=60_000)
    maker = settings_for(kafka.bootstrap_servers, bootstrap_timeout_ms=60_000)
    async with anyio.create_task_group() as tasks:

        async def make_later() -> None:
            await anyio.sleep(3)
            async with open_kafka_queue(maker, dataset, join=True):
                pass

        tasks.start_soon(make_later)
        began = time.monotonic()
        async with open_kafka_queue(settings, dataset) as queue:
            assert time.monotonic() - began > 3
            assert await queue.bounds() == (0, 0)


@pytest.mark.kafka
async def test_a_start_gives_up_waiting_when_the_time_is_over(kafka: KafkaBroker | RunningKafka, dataset: str) -> None:
    settings = settings_for(kafka.bootstrap_servers, **PATIENT, topics_mode="check")
    began = time.monotonic()
    assert f"{dataset}.staged does not exist" in await refusal(settings, dataset)
    assert time.monotonic() - began >= 4
