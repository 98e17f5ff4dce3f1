"""Creates the dataset's topics if they are missing, and checks them before anything is read.

The checks keep outcomes true: one staged partition (its order is the order of the commits), no compaction and no early
deletion, no unclean leader election.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kafka import codec, errors
from kafka.admin import ConfigResource, ConfigResourceType

from committerd.errors import CommitterError, QueueUnavailable, SettingsError
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.options import BATCH_BYTES, RECORD_OVERHEAD_BYTES, Topics, topics_of
from committerd.queue.dead_letter import OVERHEAD_BYTES
from committerd.settings.kafka import DAY_MS, KafkaSettings
from committerd_login.access import denied, lacking

_log = logging.getLogger(__name__)

_BROKER_MIN = (2, 8)
"""Kafka returns topic ids from this version on."""
_REPLICAS_MAX = 3
_LOOK_SECONDS = 0.1
_CONFIGS = (
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "unclean.leader.election.enable",
)
"""The settings of a topic that are checked: Kafka describes only these, because it has four times as many."""
_OPERATIONS = {
    "staged": ("Read",),
    "outcomes": ("Read", "Write"),
    "dead": ("Write",),
    "events": ("Read", "Write"),
}
"""The committer's operations on each topic. In Kafka each of them includes Describe."""
_ORDERED = {
    "staged": "drain it, delete it, create it anew, and adopt it with `committerd position adopt`",
    "events": "delete it, and create it anew: its first event says from which version on it has events",
}
"""The topics that must have one partition, and what to do if they have more."""
_UNLIMITED = -1
_OUTCOMES_BYTES = 1024 * 1024
_OUTCOMES_BYTES_MIN = BATCH_BYTES + RECORD_OVERHEAD_BYTES
"""The least max.message.bytes of the outcomes topic: outcomes are published in batches of up to this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic as the settings require it."""

    name: str
    role: str
    partitions: int
    replicas: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as Kafka describes it."""

    partitions: int
    replicas: int
    configs: Mapping[str, str]
    """The settings of the topic that are checked, defaults included; empty if this user may not read them."""
    is_led: bool = True
    """Whether each of its partitions has a leader."""
    allowed: frozenset[str] = frozenset()
    """Operations that this user may do, in Kafka's terms (READ, WRITE, ...); empty if Kafka does not return them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCheck:
    """One check of a topic."""

    topic: str
    setting: str
    """Kafka's name of the setting; or `topic`, `partitions`, `configuration`."""
    expected: str
    actual: str
    problem: str
    """A sentence with its remedy; empty if all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSurvey:
    """The topics, compared with the settings."""

    checks: Sequence[TopicCheck]
    created: Sequence[str]
    """Names of the topics that were created just now."""
    found: Mapping[str, TopicDescription]


def planned_topics(settings: KafkaSettings, topics: Topics, *, brokers: int) -> list[TopicPlan]:
    """The topics that the settings require, in a cluster with this number of brokers."""
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
        # The broker's clock, so that ages and deadlines don't depend on producers' clocks.
        "message.timestamp.type": "LogAppendTime",
        # The broker decompresses producers' batches. So the committer can read each codec, the limit applies to the
        # real size of a batch (1 MiB of gzip can hold 1 GiB), and a dead letter fits into its topic.
        "compression.type": "uncompressed",
    }
    letters = str(settings.max_record_bytes + OVERHEAD_BYTES)
    dead = {"retention.ms": str(settings.dead_retention_ms), "max.message.bytes": letters}
    outcomes = {"retention.ms": str(settings.outcomes_retention_ms), "max.message.bytes": str(_OUTCOMES_BYTES)}
    events = {"retention.ms": str(settings.events_retention_ms), "max.message.bytes": str(_OUTCOMES_BYTES)}
    return [
        TopicPlan(name=name, role=role, partitions=partitions, replicas=replicas, configs=shared | configs)
        for role, name, partitions, configs in (
            ("staged", topics.staged, 1, staged),
            ("outcomes", topics.outcomes, settings.outcome_partitions, outcomes),
            ("dead", topics.dead, 1, dead),
            *([("events", topics.events, 1, events)] if settings.change_events else []),
        )
    ]


def survey_topics(
    admin: TopicAdmin,
    settings: KafkaSettings,
    name: str,
    *,
    create: bool,
    seconds: float = 10,
    rights: bool = True,
    note_created: Callable[[str], None] = lambda topic: None,
) -> TopicSurvey:
    """Create the missing topics of one dataset if `create` is set, then compare all of them with the settings.

    `seconds`: how long to wait until new topics are ready. The rest is as for `survey_all`.

    Blocks. Raises `SettingsError` for brokers that are too old and for a topic that can't be created, and
    `QueueUnavailable` if Kafka doesn't respond.
    """
    deadline, created = time.monotonic() + seconds, list[str]()
    while True:
        found = survey_all(admin, settings, [name], create=create, rights=rights, note_created=note_created)[name]
        if isinstance(found, CommitterError):
            raise found
        created += found.created
        leaderless = without_leader(found, created)
        if not leaderless:
            return replace(found, created=tuple(created))
        if time.monotonic() >= deadline:
            raise QueueUnavailable(leaderless)
        time.sleep(_LOOK_SECONDS)


def survey_all(
    admin: TopicAdmin,
    settings: KafkaSettings,
    names: Sequence[str],
    *,
    create: bool,
    rights: bool = True,
    note_created: Callable[[str], None] = lambda topic: None,
) -> dict[str, TopicSurvey | CommitterError]:
    """Create the missing topics of datasets if `create` is set, then compare them with the settings.

    It takes a few requests for all of them, and does not wait: a topic that was created may have no leader yet, or may
    not be described yet. `rights`: whether to check that this user may do what a committer does. `note_created`: called
    with each topic as soon as Kafka has created it, whatever is raised then.

    Returns for each dataset what was found, or its error: `SettingsError` if a topic can't be created or described,
    `QueueUnavailable` if Kafka does not say. Blocks. Raises `SettingsError` for brokers that are too old, and
    `QueueUnavailable` if Kafka doesn't respond.
    """
    version = admin.broker_version()
    if version < _BROKER_MIN:
        shown = ".".join(map(str, version))
        raise SettingsError(
            f"Kafka {shown} does not report topic ids; committerd needs 2.8 or newer, to notice a "
            "topic that was deleted and recreated"
        )
    about = names[0] if len(names) == 1 else f"{len(names)} datasets"
    created: list[str] = []
    refused: dict[str, errors.KafkaError | SettingsError] = {}
    try:
        brokers = len(admin.broker_ids())
        planned = {name: planned_topics(settings, topics_of(settings, name), brokers=brokers) for name in names}
        plans = [plan for its in planned.values() for plan in its]
        with admin.client() as client:
            found, failed = _described(client, plans)
            missing = [plan for plan in plans if plan.name not in found and plan.name not in failed]
            if missing and create:
                created, refused = _create(client, missing, note_created=note_created)
                there, failed_then = _described(client, missing)
                found, failed = found | there, failed | failed_then
    except errors.KafkaError as error:
        raise admin.failed(f"checking the topics of {about}", error) from error
    surveyed: dict[str, TopicSurvey | CommitterError] = {}
    for name, its in planned.items():
        wrong = [each[plan.name] for plan in its for each in (refused, failed) if plan.name in each]
        if not wrong:
            surveyed[name] = TopicSurvey(
                checks=tuple(checks(its, found, settings, rights=rights)),
                created=tuple(plan.name for plan in its if plan.name in created),
                found={plan.name: found[plan.name] for plan in its if plan.name in found},
            )
        elif isinstance(wrong[0], SettingsError):
            surveyed[name] = wrong[0]
        else:
            surveyed[name] = admin.failed(f"checking the topics of {name}", wrong[0])
    return surveyed


def without_leader(survey: TopicSurvey, topics: Iterable[str]) -> str:
    """A sentence if one of these topics, which were created just now, is not ready; empty if all are."""
    found = survey.found
    return next(
        (
            f"{topic} was created, and has no leader yet"
            for topic in topics
            if topic not in found or not found[topic].is_led
        ),
        "",
    )


def topic_problems(admin: TopicAdmin, settings: KafkaSettings, names: Iterable[str]) -> dict[str, list[str]]:
    """The problems with the topics of each dataset, as sentences; three requests for all datasets.

    Leaves out a dataset if Kafka does not describe its topics now. Blocks. Raises `QueueUnavailable`.
    """
    try:
        brokers = len(admin.broker_ids())
        planned = {name: planned_topics(settings, topics_of(settings, name), brokers=brokers) for name in names}
        with admin.client() as client:
            found, failed = _described(client, [plan for plans in planned.values() for plan in plans])
    except errors.KafkaError as error:
        raise admin.failed("checking the topics", error) from error
    return {
        name: [check.problem for check in checks(plans, found, settings) if check.problem]
        for name, plans in planned.items()
        if not any(plan.name in failed for plan in plans)
    }


def checks(
    plans: list[TopicPlan], found: Mapping[str, TopicDescription], settings: KafkaSettings, *, rights: bool = True
) -> Iterator[TopicCheck]:
    """All checks of the topics, with their results. `rights`: as for `survey_topics`."""
    for plan in plans:
        topic = found.get(plan.name)
        if topic is None:
            yield TopicCheck(
                topic=plan.name,
                setting="topic",
                expected="exists",
                actual="missing",
                problem=f"{plan.name} does not exist: `committerd topics create` creates it, as does topics_mode = "
                f"create at start; it needs {plan.partitions} partition(s)",
            )
            continue
        yield _shape(plan, topic)
        if rights:
            yield from _rights(plan, topic)
        if topic.configs:
            yield from _configs(plan, topic, settings)
        else:
            yield TopicCheck(
                topic=plan.name,
                setting="configuration",
                expected="readable",
                actual="unreadable",
                problem=f"{plan.name}: {lacking('DescribeConfigs', 'Topic', plan.name)}",
            )


def _shape(plan: TopicPlan, topic: TopicDescription) -> TopicCheck:
    only_one = plan.role in _ORDERED
    return TopicCheck(
        topic=plan.name,
        setting="partitions",
        expected="1" if only_one else ">= 1",
        actual=str(topic.partitions),
        problem=""
        if topic.partitions == 1 or not only_one
        else f"{plan.name} has {topic.partitions} partitions and must have 1, or records have no "
        f"common order. Partitions can't be removed: {_ORDERED[plan.role]}",
    )


def _rights(plan: TopicPlan, topic: TopicDescription) -> Iterator[TopicCheck]:
    """The checks of this user's rights on the topic; none if Kafka does not return them."""
    for operation in _OPERATIONS[plan.role] if topic.allowed else ():
        allowed = operation.upper() in topic.allowed
        yield TopicCheck(
            topic=plan.name,
            setting=f"ACL {operation}",
            expected="allowed",
            actual="allowed" if allowed else "denied",
            problem="" if allowed else f"{plan.name}: {lacking(operation, 'Topic', plan.name)}",
        )


def _configs(plan: TopicPlan, topic: TopicDescription, settings: KafkaSettings) -> Iterator[TopicCheck]:
    check = partial(_config, plan, topic)
    configs = topic.configs
    yield check(
        "cleanup.policy",
        good=configs.get("cleanup.policy") == "delete",
        why="compaction removes records that still count",
    )
    yield check(
        "retention.bytes",
        good=int(configs.get("retention.bytes", _UNLIMITED)) == _UNLIMITED,
        why="records are deleted however new they are",
    )
    least = int(plan.configs["retention.ms"])
    if plan.role == "outcomes":
        # Outcomes may expire before the operator's own limit, but never before the staged record.
        least = settings.staged_retention_ms
    days = f"{least / DAY_MS:g} days"
    yield check(
        "retention.ms",
        good=not 0 <= int(configs.get("retention.ms", _UNLIMITED)) < least,
        why=f"less than {days}; or lower {plan.role}_retention_ms",
        value=str(least),
        expected=f">= {least} ({days})",
    )
    copies = "2" if topic.replicas >= _REPLICAS_MAX else "1"
    yield check(
        "min.insync.replicas",
        good=int(configs.get("min.insync.replicas", 1)) >= int(copies),
        why="with one broker, records that it took can be lost",
        value=copies,
        expected=f">= {copies}",
    )
    yield check(
        "unclean.leader.election.enable",
        good=configs.get("unclean.leader.election.enable") != "true",
        why="a replica that lacks records may lead",
    )
    if plan.role == "staged":
        yield from _staged_configs(plan, topic)
    else:
        yield from _outcome_configs(plan, topic)


def _staged_configs(plan: TopicPlan, topic: TopicDescription) -> Iterator[TopicCheck]:
    yield _config(
        plan,
        topic,
        "message.timestamp.type",
        good=topic.configs.get("message.timestamp.type") == "LogAppendTime",
        why="ages depend on producers' clocks",
    )
    yield _config(
        plan,
        topic,
        "compression.type",
        good=topic.configs.get("compression.type") == "uncompressed",
        why="max.message.bytes limits the compressed size of a batch, which can take 1,000 times as much memory",
    )


def _outcome_configs(plan: TopicPlan, topic: TopicDescription) -> Iterator[TopicCheck]:
    """The checks of the topics that committerd writes: records must fit, and readers must be able to unpack them."""
    if "max.message.bytes" in topic.configs:
        dead = plan.role == "dead"
        least = int(plan.configs["max.message.bytes"]) if dead else _OUTCOMES_BYTES_MIN
        yield _config(
            plan,
            topic,
            "max.message.bytes",
            good=int(topic.configs["max.message.bytes"]) >= least,
            why="a dead record and its reasons must fit; or lower max_record_bytes" if dead else "records must fit",
            expected=f">= {least}",
        )
    codecs = ", ".join(_unreadable_codecs())
    yield _config(
        plan,
        topic,
        "compression.type",
        good=not codecs or topic.configs.get("compression.type", "producer") in ("producer", "uncompressed", "gzip"),
        why=f"{codecs} can't be read here, nor by producers without its library; or install kafka-python"
        f"[{codecs.replace(' ', '')}]",
        value="uncompressed",
        expected="producer, uncompressed or gzip" if codecs else "any",
    )


def _config(
    plan: TopicPlan,
    topic: TopicDescription,
    config: str,
    *,
    good: bool,
    why: str,
    value: str | None = None,
    expected: str | None = None,
) -> TopicCheck:
    """The check of one setting. `value`: the value in the remedy, if it is not the planned value."""
    wanted, actual = plan.configs[config] if value is None else value, str(topic.configs.get(config))
    remedy = (
        f"{plan.name}: {config} is {actual} ({why}). Remedy: kafka-configs.sh "
        f"--alter --entity-type topics --entity-name {plan.name} --add-config {config}={wanted}"
    )
    return TopicCheck(
        topic=plan.name,
        setting=config,
        expected=wanted if expected is None else expected,
        actual=actual,
        problem="" if good else remedy,
    )


def _unreadable_codecs() -> list[str]:
    """Codecs that producers may use and that no library installed here can decompress."""
    readable = {"lz4": codec.has_lz4(), "snappy": codec.has_snappy(), "zstd": codec.has_zstd()}
    return [name for name, present in readable.items() if not present]


def _described(
    client: Any, plans: Sequence[TopicPlan]
) -> tuple[dict[str, TopicDescription], dict[str, errors.KafkaError | SettingsError]]:
    """The topics that exist, and the errors of those that Kafka does not describe. Raises KafkaError."""
    shapes: dict[str, Any] = {}
    failed: dict[str, errors.KafkaError | SettingsError] = {}
    for described in client.describe_topics([plan.name for plan in plans]):
        name, error = described["name"], errors.for_code(described["error_code"])
        if error in (errors.NoError, errors.LeaderNotAvailableError):
            shapes[name] = described
        elif error is errors.TopicAuthorizationFailedError:
            failed[name] = SettingsError(f"{name} can't be read: {lacking('Describe', 'Topic', name)}")
        elif error is not errors.UnknownTopicOrPartitionError:
            failed[name] = error(name)
    if not shapes:
        return {}, failed
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(_CONFIGS)) for name in shapes]
    configs = client.describe_configs(resources, config_filter="all").get("topic", {})
    found = {
        name: TopicDescription(
            partitions=len(described["partitions"]),
            replicas=min((len(p["replica_nodes"]) for p in described["partitions"]), default=0),
            is_led=bool(described["partitions"]) and all(p["leader_id"] >= 0 for p in described["partitions"]),
            allowed=frozenset(described.get("authorized_operations") or ()),
            configs={
                config: str(entry["value"])
                for config, entry in configs.get(name, {}).items()
                if entry["value"] is not None
            },
        )
        for name, described in shapes.items()
    }
    return found, failed


def _create(
    client: Any, plans: Sequence[TopicPlan], *, note_created: Callable[[str], None]
) -> tuple[list[str], dict[str, errors.KafkaError | SettingsError]]:
    """Create the topics in one request. Raises KafkaError if Kafka does not respond.

    Returns the names of the topics that it has created, and the errors of those that it could not create. A topic that
    another process has just created is neither.
    """
    wanted = {
        plan.name: {
            "num_partitions": plan.partitions,
            "replication_factor": plan.replicas,
            "configs": dict(plan.configs),
        }
        for plan in plans
    }
    created: list[str] = []
    refused: dict[str, errors.KafkaError | SettingsError] = {}
    for topic in client.create_topics(wanted, raise_errors=False)["topics"]:
        name, error = topic["name"], errors.for_code(topic["error_code"])
        if error is errors.NoError:
            _log.info("kafka.topic_created", extra={"topic": name})
            created.append(name)
            note_created(name)
        elif issubclass(error, errors.RetriableError):
            refused[name] = error(name)
        elif error is not errors.TopicAlreadyExistsError:
            why = denied(error(), "Create", topic=name)
            refused[name] = SettingsError(
                f"topic {name} can't be created: {why or topic.get('error_message') or error()}. "
                f"{'Or' if why else 'Remedy:'} create it by hand and set topics_mode = check"
            )
    return created, refused
