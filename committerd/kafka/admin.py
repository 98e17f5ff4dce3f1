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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from kafka import KafkaAdminClient, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.protocol.metadata import MetadataRequest

from committerd.errors import QueueUnavailable, RefusedToRun, SettingsError
from committerd.kafka.access import denied, lacking
from committerd.kafka.clients import OpenClient, in_words, open_client
from committerd.kafka.options import admin_options
from committerd.kafka.repairs import send_to
from committerd.queue.port import Acknowledged, TopicIdentity
from committerd.settings.kafka import KafkaSettings

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
_UNANSWERED = (errors.KafkaTimeoutError, errors.RequestTimedOutError)


class TopicAdmin:
    """An admin client for the dataset. Methods block, run one at a time, and raise `QueueUnavailable` on errors."""

    def __init__(self, settings: KafkaSettings, name: str, *, bootstrap_ms: int = _BOOTSTRAP_MS) -> None:
        self._options = admin_options(settings, name) | {"bootstrap_timeout_ms": bootstrap_ms}
        self._timeout_ms = settings.request_timeout_ms
        # One call at a time: a failed call closes the client, which no other call may be using.
        self._one = threading.RLock()
        self._closed = False
        self._opened: OpenClient[Any] | None = open_client(KafkaAdminClient, self._options)

    @property
    def client(self) -> Any:
        """kafka-python's admin client."""
        return self._open().client

    def broker_version(self) -> tuple[int, ...]:
        """Kafka's version, as in (4, 3): of the broker that the client asked when it connected."""
        version: tuple[int, ...] = self._open().network.get_broker_version()
        return version

    def identity(self, topic: str, leader: int | None) -> TopicIdentity:
        """Ask the partition's leader for the cluster id and the topic's id.

        `leader`: node id of the broker to ask first; None if it is not known. Raises `RefusedToRun` (`topic_gone`) if
        the topic does not exist. One round trip, about a millisecond on one machine.
        """
        with self._one:
            return self._identity(topic, leader)

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

    def broker_ids(self) -> list[int]:
        """The ids of the cluster's brokers.

        It does not use `describe_cluster`, which in kafka-python 3.0.12 fails on brokers before 3.7: these return no
        endpoint type.
        """
        with self._request("asking for the brokers"):
            return [broker.node_id for broker in self._metadata(None, None).brokers]

    def offsets_at(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """For each partition, the offset of the first record at or after a time (Unix milliseconds).

        The result leaves out partitions without such a record.
        """
        topic = partitions[0].topic
        with self._request(f"asking for offsets of {topic}", topic=topic) as client:
            found = client.list_partition_offsets(dict.fromkeys(partitions, timestamp_ms), timeout_ms=self._timeout_ms)
        return {partition: at.offset for partition, at in found.items() if at.offset >= 0}

    def retention_ms(self, topic: str) -> int | None:
        """The topic's retention in milliseconds; None = unlimited."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        with self._request(f"asking for the configuration of {topic}", "DescribeConfigs", topic=topic) as client:
            described = client.describe_configs([resource], config_filter="all")
        entry = described.get("topic", {}).get(topic, {}).get("retention.ms")
        if entry is None or entry["value"] is None:
            raise QueueUnavailable(f"Kafka does not report the retention of {topic}")
        kept = int(entry["value"])
        return None if kept < 0 else kept

    def time_ms(self) -> int | None:
        """The brokers' clock (Unix milliseconds): the quorum's leader always reports the present as its last fetch.

        None if Kafka does not return it: with ZooKeeper, before 3.3, or without the permission to describe the cluster.
        """
        with self._one:
            try:
                described = self.client.describe_metadata_quorum()
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
        deadline = time.monotonic() + _COORDINATOR_SECONDS_MAX
        found: Any = None
        doing = f"reading the offset of group {group}"
        with self._request(doing, "Describe", topic=partition.topic, group=group) as client:
            while True:
                try:
                    found = client.list_group_offsets({group: [partition]})[group].get(partition)
                    break
                except _COORDINATOR:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(_GONE_SECONDS)
        if found is None or found.offset < 0:
            return None
        return Acknowledged(offset=found.offset, metadata=found.metadata or "")

    def delete_below(self, partition: TopicPartition, offset: int) -> int:
        """Delete the records of a partition below an offset; returns the new log start."""
        topic = partition.topic
        with self._request(f"deleting records of {topic}", "Delete", topic=topic) as client:
            done = client.delete_records({partition: offset}, timeout_ms=self._timeout_ms)[partition]
        return int(done["low_watermark"])

    def close(self) -> None:
        """Close the connections."""
        with self._one:
            self._closed = True
            self._drop()

    @contextmanager
    def _request(self, doing: str, operation: str = "Read", *, topic: str = "", group: str = "") -> Iterator[Any]:
        """The client, for requests that fail together; `failed` describes the arguments."""
        with self._one:
            try:
                yield self.client
            except errors.KafkaError as error:
                raise self.failed(doing, error, operation, topic=topic, group=group) from error

    def _identity(self, topic: str, leader: int | None) -> TopicIdentity:
        node, missing = leader, 0
        for _ in range(_REDIRECTS_MAX + _GONE_ATTEMPTS):
            try:
                response = self._metadata(topic, node)
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

    def _open(self) -> OpenClient[Any]:
        with self._one:
            if self._closed:
                raise QueueUnavailable("the Kafka client is closed")
            if self._opened is None:
                self._opened = open_client(KafkaAdminClient, self._options)
            return self._opened

    def _metadata(self, topic: str | None, node: int | None) -> Any:
        request = MetadataRequest(
            topics=[] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        seconds = min(self._timeout_ms / 1000, _METADATA_SECONDS_MAX)
        return send_to(self._open().network, request, node=node, seconds=seconds)

    def failed(
        self, doing: str, error: errors.KafkaError, operation: str = "Read", *, topic: str = "", group: str = ""
    ) -> QueueUnavailable:
        """The error to raise after an error of the client; also closes the client if it must be replaced.

        `operation`: the ACL on the topic or group that this needs. What is asked about a topic needs Describe, which
        Read includes; whoever asks reads the topic too.
        """
        # After a refused login only a new client tries again. A response that does not come may have been lost on a
        # connection that stays open.
        if not isinstance(error, errors.RetriableError) or isinstance(error, _UNANSWERED):
            self._drop()
        return QueueUnavailable(f"{doing}: {denied(error, operation, topic=topic, group=group) or in_words(error)}")

    def require_group(self, group: str) -> None:
        """Raise `SettingsError` with the missing ACL if this user may not use the group."""
        with self._one:
            try:
                self.client.describe_groups([group])
            except errors.GroupAuthorizationFailedError as error:
                raise SettingsError(f"the consumer group can't be used: {lacking('Read', 'Group', group)}") from error
            except errors.KafkaError as error:
                # A new cluster creates its topic of group offsets only now. The member gets any other error too.
                self.failed(f"asking for group {group}", error)

    def _drop(self) -> None:
        if self._opened is not None:
            self._opened.client.close()
            self._opened = None


def _written(topic_id: UUID) -> str:
    """A topic id as Kafka prints it: base64url of 16 bytes, without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
