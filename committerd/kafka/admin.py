"""Admin requests about the dataset's topics and group: topic ids, offsets, configuration, members.

kafka-python fetches by topic name, so after a topic was deleted and recreated it would continue with the new topic
without notice. `identity` asks the leader of the partition, on a connection of its own. A Kafka node learns of a new
topic before it serves that topic's records, so if it returns the old id, all records that it served before are records
of the old topic.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka import KafkaAdminClient, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from committerd.errors import CommitterError, QueueUnavailable, RefusedToRun, SettingsError
from committerd.kafka.clients import OpenClient, in_words, open_client
from committerd.kafka.options import admin_options
from committerd.kafka.repairs import send_to, send_to_each
from committerd.parts import Parts
from committerd.queue.port import Acknowledged, TopicIdentity
from committerd.settings.kafka import KafkaSettings
from committerd_login.access import denied, lacking

_BOOTSTRAP_MS = 5_000
_METADATA_SECONDS_MAX = 4.0
"""Timeout of an identity request. Commits wait for the response, which takes a millisecond, and may be lost."""
_REDIRECTS_MAX = 4
_GONE_ATTEMPTS = 4
_GONE_SECONDS = 0.25
"""Time between two attempts: a node that has just started, or a new topic, needs a moment."""

_COORDINATOR = (
    errors.CoordinatorNotAvailableError,
    errors.CoordinatorLoadInProgressError,
    errors.NotCoordinatorError,
)
"""Errors while a broker takes a group over, or while a new cluster creates its topic of group offsets."""
_COORDINATOR_SECONDS_MAX = 3.0
_LATEST, _EARLIEST = -1, -2
"""In a request for offsets: the end of the partition, and the start of its log."""
_ANSWERS = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.UnknownTopicOrPartitionError,
)
"""Errors that are no fault of the client."""


@dataclass(eq=False, slots=True)
class _Lent:
    """A client, and how many requests use it."""

    opened: OpenClient[Any]
    users: int = 0
    dropped: bool = False


class TopicAdmin:
    """An admin client. Methods block, run at the same time in several threads, and raise `QueueUnavailable` on errors.

    A client that must be replaced is closed when the last request on it has ended.
    """

    def __init__(
        self, settings: KafkaSettings, name: str, *, bootstrap_ms: int = _BOOTSTRAP_MS, parts: Parts | None = None
    ) -> None:
        self._parts = parts or Parts()
        self._options = admin_options(settings, name) | {"bootstrap_timeout_ms": bootstrap_ms}
        self._timeout_ms = settings.request_timeout_ms
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._closed = False
        self._current: _Lent | None = _Lent(open_client(KafkaAdminClient, self._options))

    @contextmanager
    def client(self) -> Iterator[Any]:
        """kafka-python's admin client, for as long as the block runs."""
        with self._lent() as opened:
            yield opened.client

    def broker_version(self) -> tuple[int, ...]:
        """Kafka's version, as in (4, 3): of the broker that the client asked when it connected."""
        with self._lent() as opened:
            version: tuple[int, ...] = opened.network.get_broker_version()
        return version

    def identity(self, topic: str, leader: int | None) -> TopicIdentity:
        """Ask the partition's leader for the cluster id and the topic's id.

        `leader`: node id of the broker to ask first; None if it is not known. Raises `RefusedToRun` (`topic_gone`) if
        the topic does not exist. One round trip, about a millisecond on one machine.
        """
        return self._identity(topic, leader)

    def identities(self, topics: Sequence[str], leader: int | None) -> dict[str, TopicIdentity]:
        """As `identity`, in one request to the leader of all of them.

        Leaves out each topic about which the leader does not say that it leads its only partition: ask about it alone.
        """
        if leader is None:
            return {}
        try:
            response = self._metadata(topics, leader)
        except errors.KafkaError:
            return {}
        return {
            found.name: TopicIdentity(
                cluster_id=response.cluster_id, topic=found.name, topic_id=_written(found.topic_id)
            )
            for found in response.topics
            if errors.for_code(found.error_code) is errors.NoError
            and [partition.leader_id for partition in found.partitions] == [leader]
        }

    def bounds(
        self, partitions: Sequence[TopicPartition], *, held_back: bool = False
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Log start and end of each partition: the half-open range of readable offsets.

        An open Kafka transaction holds the end back. `held_back`: include the records from there on.
        """
        topic = partitions[0].topic
        with self._request(f"asking for bounds of {topic}", topic=topic) as client:
            first = client.list_partition_offsets(
                dict.fromkeys(partitions, OffsetSpec.EARLIEST), timeout_ms=self._timeout_ms
            )
            last = client.list_partition_offsets(
                dict.fromkeys(partitions, OffsetSpec.LATEST),
                isolation_level="read_uncommitted" if held_back else "read_committed",
                timeout_ms=self._timeout_ms,
            )
        return {found: (first[found].offset, last[found].offset) for found in partitions}

    def all_bounds(
        self, partitions: Sequence[TopicPartition], leader: int | None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """As `bounds` for partitions 0 of topics, in two requests to the leader of all of them.

        Leaves out a partition about which the leader does not say both.
        """
        if leader is None:
            return {}
        seconds = self._timeout_ms / 1000
        firsts = self._offsets({leader: partitions}, _EARLIEST, held_back=False, seconds=seconds)
        ends = self._offsets({leader: partitions}, _LATEST, held_back=False, seconds=seconds)
        found = {}
        for partition in partitions:
            first, end = firsts[partition], ends[partition]
            if isinstance(first, int) and isinstance(end, int):
                found[partition] = first, end
        return found

    def end(self, partition: TopicPartition) -> int:
        """The end of the log, including records that an open Kafka transaction holds back."""
        topic = partition.topic
        with self._request(f"asking for the end of {topic}", topic=topic) as client:
            found = client.list_partition_offsets({partition: OffsetSpec.LATEST}, timeout_ms=self._timeout_ms)
        return int(found[partition].offset)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic. Raises `QueueUnavailable` also if the topic does not exist."""
        with self._request(f"asking for partitions of {topic}", topic=topic) as client:
            (described,) = client.describe_topics([topic])
            if described["error_code"]:
                raise errors.for_code(described["error_code"])(topic)
        return [TopicPartition(topic, p["partition_index"]) for p in described["partitions"]]

    def all_partitions(self, topics: Sequence[str]) -> dict[str, list[TopicPartition]]:
        """As `partitions`, in one request; leaves out a topic that Kafka does not describe."""
        with self._request("asking for the partitions of topics", topic=topics[0]) as client:
            described = client.describe_topics(list(topics))
        return {
            one["name"]: [TopicPartition(one["name"], p["partition_index"]) for p in one["partitions"]]
            for one in described
            if not one["error_code"]
        }

    def topics(self) -> list[str]:
        """The names of all topics that this user may see."""
        with self._request("asking for the topics") as client:
            return [str(name) for name in client.list_topics()]

    def broker_ids(self) -> list[int]:
        """The ids of the cluster's brokers.

        It does not use `describe_cluster`, which in kafka-python 3.0.12 fails on brokers before 3.7: these return no
        endpoint type.
        """
        with self._request("asking for the brokers"):
            return [broker.node_id for broker in self._metadata([], None).brokers]

    def offsets_at(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """For each partition, the offset of the first record at or after a time (Unix milliseconds).

        The result leaves out partitions without such a record.
        """
        topic = partitions[0].topic
        with self._request(f"asking for offsets of {topic}", topic=topic) as client:
            found = client.list_partition_offsets(dict.fromkeys(partitions, timestamp_ms), timeout_ms=self._timeout_ms)
        return {partition: at.offset for partition, at in found.items() if at.offset >= 0}

    def retentions_ms(self, topics: Sequence[str]) -> dict[str, int | None]:
        """The topics' retentions in milliseconds, in one request; None = unlimited. Leaves out what is not reported."""
        resources = [ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None}) for topic in topics]
        with self._request("asking for the configuration of topics", "DescribeConfigs", topic=topics[0]) as client:
            described = client.describe_configs(resources, config_filter="all").get("topic", {})
        found = {topic: (described.get(topic, {}).get("retention.ms") or {}).get("value") for topic in topics}
        return {topic: None if int(kept) < 0 else int(kept) for topic, kept in found.items() if kept is not None}

    def leaders(self, topics: Sequence[str], *, seconds: float) -> dict[str, int | None]:
        """The node that leads partition 0 of each topic, in one request; None = no such topic, or no leader."""
        try:
            response = self._metadata(topics, None, seconds=seconds)
        except errors.KafkaError as error:
            raise self.failed("asking for the leaders of topics", error) from error
        found: dict[str, int | None] = dict.fromkeys(topics)
        for topic in response.topics:
            leads = next((one.leader_id for one in topic.partitions if one.partition_index == 0), -1)
            found[topic.name] = None if leads < 0 else int(leads)
        return found

    def ends(
        self, partitions: Mapping[int | None, Sequence[TopicPartition]], *, held_back: bool, seconds: float
    ) -> dict[TopicPartition, int | errors.KafkaError]:
        """The end of each partition, in one request to each node; the error if there is no good response.

        `partitions`: by the node that leads them. `held_back`: include the records that an open Kafka transaction holds
        back. Raises `QueueUnavailable` if no broker can be used.
        """
        return self._offsets(partitions, _LATEST, held_back=held_back, seconds=seconds)

    def _offsets(
        self,
        partitions: Mapping[int | None, Sequence[TopicPartition]],
        timestamp: int,
        *,
        held_back: bool,
        seconds: float,
    ) -> dict[TopicPartition, int | errors.KafkaError]:
        """The offset of each partition for a timestamp of the protocol; the rest is as for `ends`."""
        isolation = IsolationLevel.READ_UNCOMMITTED if held_back else IsolationLevel.READ_COMMITTED
        wanted = [ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
        requests = {
            node: ListOffsetsRequest(
                isolation_level=isolation.value,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=one.topic, partitions=wanted) for one in led],
                min_version=ListOffsetsRequest.min_version_for_isolation_level(isolation),
            )
            for node, led in partitions.items()
        }
        with self._lent() as opened:
            answers = send_to_each(opened.network, requests, seconds=seconds)
        found: dict[TopicPartition, int | errors.KafkaError] = {}
        for node, answer in answers.items():
            if isinstance(answer, errors.KafkaError):
                found |= dict.fromkeys(partitions[node], answer)
                continue
            for topic in answer.topics:
                (one,) = topic.partitions
                error = errors.for_code(one.error_code)
                found[TopicPartition(topic.name, 0)] = int(one.offset) if error is errors.NoError else error()
        return found

    def time_ms(self) -> int | None:
        """The brokers' clock (Unix milliseconds): the quorum's leader always reports the present as its last fetch.

        None if Kafka does not return it: with ZooKeeper, before 3.3, or without the permission to describe the cluster.
        """
        with self.client() as client:
            try:
                described = client.describe_metadata_quorum()
                (partition,) = described["topics"][0]["partitions"]
                voters = {voter["replica_id"]: voter for voter in partition["current_voters"]}
                fetched_ms = int(voters[partition["leader_id"]]["last_fetch_timestamp"])
            except errors.RetriableError as error:
                raise self.failed("asking what time it is", error) from error
            except (errors.KafkaError, KeyError, IndexError, ValueError, TypeError):
                return None
        return fetched_ms if fetched_ms > 0 else None

    def group(self, group: str) -> dict[str, Any]:
        """kafka-python's description of a consumer group; state Dead if the group does not exist."""
        with self._request(f"asking for group {group}", "Describe", group=group) as client:
            described: dict[str, Any] = client.describe_groups([group])[group]
        return described

    def acknowledged(self, group: str, partition: TopicPartition) -> Acknowledged | None:
        """The group's committed offset; None if it has none."""
        return self.all_acknowledged(group, [partition]).get(partition)

    def all_acknowledged(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Acknowledged]:
        """The group's committed offsets, in one request; leaves out partitions without one."""
        deadline = time.monotonic() + _COORDINATOR_SECONDS_MAX
        found: Mapping[TopicPartition, Any] = {}
        doing = f"reading the offset of group {group}"
        with self._request(doing, "Describe", topic=partitions[0].topic, group=group) as client:
            while True:
                try:
                    found = client.list_group_offsets({group: list(partitions)})[group]
                    break
                except _COORDINATOR:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(_GONE_SECONDS)
        return {
            partition: Acknowledged(offset=one.offset, metadata=one.metadata or "")
            for partition, one in found.items()
            if one is not None and one.offset >= 0
        }

    def delete_below(self, partition: TopicPartition, offset: int) -> int:
        """Delete the records of a partition below an offset; returns the new log start."""
        topic = partition.topic
        with self._request(f"deleting records of {topic}", "Delete", topic=topic) as client:
            done = client.delete_records({partition: offset}, timeout_ms=self._timeout_ms)[partition]
        return int(done["low_watermark"])

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        self._drop()

    @contextmanager
    def _request(self, doing: str, operation: str = "Read", *, topic: str = "", group: str = "") -> Iterator[Any]:
        """The client, for requests that fail together; `failed` describes the arguments."""
        with self.client() as client:
            try:
                yield client
            except errors.KafkaError as error:
                raise self.failed(doing, error, operation, topic=topic, group=group) from error

    def _identity(self, topic: str, leader: int | None) -> TopicIdentity:
        node, missing = leader, 0
        for _ in range(_REDIRECTS_MAX + _GONE_ATTEMPTS):
            try:
                response = self._metadata([topic], node)
            except errors.KafkaError as error:
                failed = self.failed(f"asking for topic {topic}", error, topic=topic)
                if node is None:
                    raise failed from error
                node = None  # any node may know the new leader
                continue
            found = response.topics[0]
            error_type = errors.for_code(found.error_code)
            if error_type is errors.UnknownTopicOrPartitionError:
                missing += 1
                if missing == _GONE_ATTEMPTS:
                    raise RefusedToRun(
                        f"there is no topic {topic} in Kafka cluster {response.cluster_id}; what was "
                        "staged there and not committed is lost unless the topic is restored",
                        code="topic_gone",
                    )
                time.sleep(_GONE_SECONDS)
                node = None
                continue
            leads = found.partitions[0].leader_id if found.partitions else -1
            if leads not in (-1, node):
                node = leads
                continue
            if error_type is not errors.NoError and not found.topic_id:
                raise self.failed(f"asking for topic {topic}", error_type(), topic=topic)
            if len(found.partitions) > 1:
                raise RefusedToRun(
                    f"{topic} has {len(found.partitions)} partitions and must have 1: records have a "
                    "common order only within a partition, and committerd reads only 1. Kafka can't remove partitions: "
                    "stage the records of all partitions again elsewhere, delete the topic, recreate it, and run "
                    "`committerd position adopt`",
                    code="topic_partitions",
                )
            return TopicIdentity(cluster_id=response.cluster_id, topic=topic, topic_id=_written(found.topic_id))
        raise QueueUnavailable(f"the leader of topic {topic} keeps changing")

    @contextmanager
    def _lent(self) -> Iterator[OpenClient[Any]]:
        lent = self._lend()
        try:
            yield lent.opened
        except (errors.KafkaError, CommitterError):
            raise
        except Exception as error:
            self._drop()
            self._parts.failed("admin", error)
            raise QueueUnavailable(f"the Kafka client has failed, and is replaced: {error!r}") from error
        finally:
            with self._lock:
                lent.users -= 1
                unused = lent.dropped and not lent.users
            if unused:
                _close(lent)

    def _lend(self) -> _Lent:
        with self._opening:
            if self._closed:
                raise QueueUnavailable("the Kafka client is closed")
            with self._lock:
                if self._current is not None:
                    self._current.users += 1
                    return self._current
            opened = _Lent(open_client(KafkaAdminClient, self._options), users=1)
            with self._lock:
                self._current = opened
            return opened

    def _metadata(self, topics: Sequence[str], node: int | None, *, seconds: float = _METADATA_SECONDS_MAX) -> Any:
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        with self._lent() as opened:
            return send_to(opened.network, request, node=node, seconds=min(self._timeout_ms / 1000, seconds))

    def failed(
        self, doing: str, error: errors.KafkaError, operation: str = "Read", *, topic: str = "", group: str = ""
    ) -> QueueUnavailable:
        """The error to raise after an error of the client; also closes the client if it must be replaced.

        `operation`: the ACL on the topic or group that this needs. What is asked about a topic needs Describe, which
        Read includes; whoever asks reads the topic too.
        """
        # After a refused login only a new client tries again.
        if not isinstance(error, (errors.RetriableError, *_ANSWERS)):
            self._drop()
        return QueueUnavailable(f"{doing}: {denied(error, operation, topic=topic, group=group) or in_words(error)}")

    def require_group(self, group: str) -> None:
        """Raise `SettingsError` with the missing ACL if this user may not use the group."""
        with self.client() as client:
            try:
                client.describe_groups([group])
            except errors.GroupAuthorizationFailedError as error:
                raise SettingsError(f"the consumer group can't be used: {lacking('Read', 'Group', group)}") from error
            except errors.KafkaError as error:
                # A new cluster creates its topic of group offsets only now. The member gets any other error too.
                self.failed(f"asking for group {group}", error)

    def _drop(self) -> None:
        with self._lock:
            lent, self._current = self._current, None
            if lent is None:
                return
            lent.dropped = True
            unused = not lent.users
        if unused:
            _close(lent)


def _close(lent: _Lent) -> None:
    for close in (lent.opened.client.close, lent.opened.network.close):
        with suppress(Exception):  # it may be dropped because it has failed
            close()


def _written(topic_id: UUID) -> str:
    """A topic id as Kafka prints it: base64url of 16 bytes, without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
