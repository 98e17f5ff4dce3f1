"""The dataset's three topics: made when they are missing, and looked at before anything is read.

What is asked of them is what keeps answers true: one staged partition (its order is the order of the
commits), nothing compacted or deleted early, no replica that lost records becoming leader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import codec, errors
from kafka.admin import ConfigResource, ConfigResourceType

from committerd.edges.kafka_admin import TopicAdmin
from committerd.edges.kafka_clients import in_words
from committerd.edges.kafka_options import LETTER_OVERHEAD_BYTES, Topics, topics_of
from committerd.errors import QueueUnavailable, SettingsError
from committerd.settings_kafka import DAY_MS, KafkaSettings

_log = logging.getLogger(__name__)

_BROKER_MIN = (2, 8)
"""Kafka tells topic ids from this version on."""
_REPLICAS_MAX = 3
_UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic as it should be."""

    name: str
    role: str
    partitions: int
    replicas: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic as Kafka describes it."""

    partitions: int
    replicas: int
    configs: Mapping[str, str]
    """All of its settings, defaults included; empty when we may not read them."""


def planned_topics(settings: KafkaSettings, topics: Topics, *, brokers: int) -> list[TopicPlan]:
    """The topics that the settings ask for, in a cluster of so many brokers."""
    replicas = settings.replication_factor or min(_REPLICAS_MAX, brokers)
    shared = {
        "cleanup.policy": "delete",
        "retention.bytes": str(_UNLIMITED),
        "min.insync.replicas": "2" if replicas >= _REPLICAS_MAX else "1",
        "unclean.leader.election.enable": "false",
    }
    staged = {
        "retention.ms": str(settings.staged_retention_ms),
        "max.message.bytes": str(settings.max_record_bytes),
        # The broker's clock: ages and deadlines don't depend on producers.
        "message.timestamp.type": "LogAppendTime",
        # The broker unpacks what producers packed. So each codec is readable here, the limit on a
        # record holds for its real size, and a dead letter fits into its topic.
        "compression.type": "uncompressed",
    }
    letters = str(settings.max_record_bytes + LETTER_OVERHEAD_BYTES)
    dead = {"retention.ms": str(settings.dead_retention_ms), "max.message.bytes": letters}
    outcomes = {"retention.ms": str(settings.outcomes_retention_ms)}
    return [
        TopicPlan(name=name, role=role, partitions=partitions, replicas=replicas, configs=shared | configs)
        for role, name, partitions, configs in (
            ("staged", topics.staged, 1, staged),
            ("outcomes", topics.outcomes, settings.outcome_partitions, outcomes),
            ("dead", topics.dead, 1, dead),
        )
    ]


def prepare_topics(admin: TopicAdmin, settings: KafkaSettings, name: str, *, create: bool | None = None) -> Topics:
    """Create the missing topics if the settings (or `create`) say so, then check all three.

    Blocking. Raises `SettingsError` that lists everything wrong and what to do about it,
    `QueueUnavailable` when Kafka doesn't answer.
    """
    topics = topics_of(settings, name)
    client = admin.client
    version = client._manager.broker_version
    if version < _BROKER_MIN:
        shown = ".".join(map(str, version))
        raise SettingsError(
            f"Kafka {shown} does not tell topic ids; committerd needs 2.8 or newer, to notice a "
            "topic that was deleted and created again"
        )
    try:
        brokers = len(client.describe_cluster()["brokers"])
        plans = planned_topics(settings, topics, brokers=brokers)
        found = _describe(client, plans)
        missing = [plan for plan in plans if plan.name not in found]
        if missing and (settings.topics_mode == "create" if create is None else create):
            _create(client, missing)
            found = _describe(client, plans)
    except errors.KafkaError as error:
        raise QueueUnavailable(f"checking the topics of {name}: {in_words(error)}") from error
    wrong = list(deviations(plans, found, settings))
    if wrong:
        listed = "\n".join(f"  - {line}" for line in wrong)
        raise SettingsError(f"the topics of dataset {name} can't be used:\n{listed}")
    return topics


def deviations(plans: list[TopicPlan], found: Mapping[str, FoundTopic], settings: KafkaSettings) -> Iterator[str]:
    """What is wrong with the topics as they are, a sentence with its remedy each."""
    for plan in plans:
        topic = found.get(plan.name)
        if topic is None:
            yield (
                f"{plan.name} does not exist: create it with {plan.partitions} partition(s), or set "
                "topics_mode = create"
            )
            continue
        yield from _wrong_shape(plan, topic)
        if topic.configs:
            yield from _wrong_configs(plan, topic, settings)
        else:
            yield f"{plan.name}: its configuration can't be read; allow DescribeConfigs on the topic"
    yield from _wrong_sizes(plans, found)


def _wrong_shape(plan: TopicPlan, topic: FoundTopic) -> Iterator[str]:
    if plan.role == "staged" and topic.partitions != 1:
        yield (
            f"{plan.name} has {topic.partitions} partitions and must have one, or there is no order "
            "to commit in. Partitions can't be taken away: drain it, delete it, create it anew, and "
            "adopt it with `committerd position adopt`"
        )


def _wrong_configs(plan: TopicPlan, topic: FoundTopic, settings: KafkaSettings) -> Iterator[str]:
    configs = topic.configs
    if configs.get("cleanup.policy") != "delete":
        yield _alter(plan, topic, "cleanup.policy", "compaction removes records that still count")
    if int(configs.get("retention.bytes", _UNLIMITED)) != _UNLIMITED:
        yield _alter(plan, topic, "retention.bytes", "records are deleted however new they are")
    least = int(plan.configs["retention.ms"])
    if plan.role == "outcomes":
        # Outcomes may go before the operator's own limit, never before the staged record.
        least = settings.staged_retention_ms
    if 0 <= int(configs.get("retention.ms", _UNLIMITED)) < least:
        days = least / DAY_MS
        yield _alter(
            plan,
            topic,
            "retention.ms",
            f"less than {days:g} days; or lower {plan.role}_retention_ms",
            value=str(least),
        )
    if topic.replicas >= _REPLICAS_MAX and int(configs.get("min.insync.replicas", 1)) < 2:
        yield _alter(plan, topic, "min.insync.replicas", "losing one broker can lose what it took", value="2")
    if configs.get("unclean.leader.election.enable") == "true":
        yield _alter(plan, topic, "unclean.leader.election.enable", "a replica that lacks records may lead")
    if plan.role != "staged":
        return
    if configs.get("message.timestamp.type") != "LogAppendTime":
        yield _alter(plan, topic, "message.timestamp.type", "ages depend on producers' clocks")
    codecs = _unreadable_codecs()
    if codecs and configs.get("compression.type") not in ("uncompressed", "gzip"):
        yield _alter(
            plan,
            topic,
            "compression.type",
            f"records packed with {', '.join(codecs)} can't be read here; or install kafka-python[{','.join(codecs)}]",
        )


def _wrong_sizes(plans: list[TopicPlan], found: Mapping[str, FoundTopic]) -> Iterator[str]:
    limits = {
        plan.role: int(found[plan.name].configs["max.message.bytes"])
        for plan in plans
        if plan.name in found and "max.message.bytes" in found[plan.name].configs
    }
    dead = next(plan for plan in plans if plan.role == "dead")
    planned = int(dead.configs["max.message.bytes"])
    if limits.get("dead", planned) < planned:
        yield _alter(
            dead,
            found[dead.name],
            "max.message.bytes",
            "a dead record and its reasons must fit; or lower max_record_bytes",
        )


def _alter(plan: TopicPlan, topic: FoundTopic, config: str, why: str, *, value: str | None = None) -> str:
    wanted = plan.configs[config] if value is None else value
    return (
        f"{plan.name}: {config} is {topic.configs.get(config)} ({why}). Remedy: kafka-configs.sh "
        f"--alter --entity-type topics --entity-name {plan.name} --add-config {config}={wanted}"
    )


def _unreadable_codecs() -> list[str]:
    """Codecs that producers may use and for which no library is installed here."""
    readable = {"lz4": codec.has_lz4(), "snappy": codec.has_snappy(), "zstd": codec.has_zstd()}
    return [name for name, present in readable.items() if not present]


def _describe(client: Any, plans: list[TopicPlan]) -> dict[str, FoundTopic]:
    """The topics that exist. Raises KafkaError, also when one may not be described."""
    names = [plan.name for plan in plans]
    shapes = {}
    for described in client.describe_topics(names):
        error = errors.for_code(described["error_code"])
        if error is errors.UnknownTopicOrPartitionError:
            continue
        if error not in (errors.NoError, errors.LeaderNotAvailableError):
            raise error(described["name"])
        shapes[described["name"]] = described["partitions"]
    if not shapes:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in shapes]
    configs = client.describe_configs(resources, config_filter="all").get("topic", {})
    return {
        name: FoundTopic(
            partitions=len(partitions),
            replicas=min((len(p["replica_nodes"]) for p in partitions), default=0),
            configs={
                config: str(entry["value"])
                for config, entry in configs.get(name, {}).items()
                if entry["value"] is not None
            },
        )
        for name, partitions in shapes.items()
    }


def _create(client: Any, plans: list[TopicPlan]) -> None:
    """Create them; one that another process has just created is as good. Raises `SettingsError`."""
    wanted = {
        plan.name: {
            "num_partitions": plan.partitions,
            "replication_factor": plan.replicas,
            "configs": dict(plan.configs),
        }
        for plan in plans
    }
    answer = client.create_topics(wanted, raise_errors=False)
    for topic in answer["topics"]:
        error = errors.for_code(topic["error_code"])
        if error is errors.NoError:
            _log.info("kafka.topic_created", extra={"topic": topic["name"]})
        elif issubclass(error, errors.RetriableError):
            raise error(topic["name"])
        elif error is not errors.TopicAlreadyExistsError:
            raise SettingsError(
                f"topic {topic['name']} can't be created: {topic.get('error_message') or error()}. "
                "Create it by hand and set topics_mode = check, or allow Create on it"
            )
    client.wait_for_topics([plan.name for plan in plans])
