"""Questions about the staged topic that need no consumer: which topic is it, where does it end.

kafka-python fetches by the topic's name, so a topic that was deleted and created again would be read
on as if nothing had happened. `identity` asks the broker that leads the partition, on a connection of
its own: a Kafka node learns of a new topic before it serves that topic's records, so once it has told
the old id, no record that it served before can be of the new topic.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from kafka import KafkaAdminClient, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.protocol.metadata import MetadataRequest

from committerd.errors import QueueUnavailable, RefusedToRun, SettingsError
from committerd.kafka.access import lacking
from committerd.kafka.clients import Opened, in_words, open_client
from committerd.kafka.options import admin_options
from committerd.queue.port import Acknowledged, TopicIdentity
from committerd.settings.kafka import KafkaSettings

_BOOTSTRAP_MS = 5_000
_METADATA_SECONDS_MAX = 4.0
"""Commits wait for this answer, which takes a millisecond; one that was lost on its way must not hold them up."""
_REDIRECTS_MAX = 4
_GONE_ATTEMPTS = 4
_GONE_SECONDS = 0.25
"""A node that has just started or just heard of a topic may not know it yet."""

_COORDINATOR = (
    errors.CoordinatorNotAvailableError,
    errors.CoordinatorLoadInProgressError,
    errors.NotCoordinatorError,
)
"""While a broker takes a group over, or a new cluster makes its topic of groups."""
_COORDINATOR_SECONDS_MAX = 3.0
_UNANSWERED = (errors.KafkaTimeoutError, errors.RequestTimedOutError)


class TopicAdmin:
    """Blocking; callers of other threads wait. Raises `QueueUnavailable` where Kafka fails."""

    def __init__(self, settings: KafkaSettings, name: str, *, bootstrap_ms: int = _BOOTSTRAP_MS) -> None:
        self._options = admin_options(settings, name) | {"bootstrap_timeout_ms": bootstrap_ms}
        self._timeout_ms = settings.request_timeout_ms
        # One call at a time: a client that failed is closed, and must not be under another's feet.
        self._one = threading.RLock()
        self._closed = False
        self._opened: Opened[Any] | None = open_client(KafkaAdminClient, self._options)

    @property
    def client(self) -> Any:
        """kafka-python's admin client."""
        with self._one:
            if self._closed:
                raise QueueUnavailable("the Kafka client is closed")
            if self._opened is None:
                self._opened = open_client(KafkaAdminClient, self._options)
            return self._opened.client

    def identity(self, topic: str, leader: int | None) -> TopicIdentity:
        """Ask the partition's leader which topic the name stands for; `leader` is where to begin.

        Raises `RefusedToRun` (`topic_gone`) when there is none. One round trip, about a millisecond
        on one machine.
        """
        with self._one:
            return self._identity(topic, leader)

    def bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Log start and end of each, half-open.

        The end is that of what may be read: an open Kafka transaction holds it back.
        """
        with self._one:
            try:
                first = self.client.list_partition_offsets(
                    dict.fromkeys(partitions, OffsetSpec.EARLIEST), timeout_ms=self._timeout_ms
                )
                last = self.client.list_partition_offsets(
                    dict.fromkeys(partitions, OffsetSpec.LATEST),
                    isolation_level="read_committed",
                    timeout_ms=self._timeout_ms,
                )
            except errors.KafkaError as error:
                raise self.failed(f"asking for bounds of {partitions[0].topic}", error) from error
        return {found: (first[found].offset, last[found].offset) for found in partitions}

    def end(self, partition: TopicPartition) -> int:
        """The end of what is there, that which an open Kafka transaction holds back included."""
        with self._one:
            try:
                found = self.client.list_partition_offsets({partition: OffsetSpec.LATEST}, timeout_ms=self._timeout_ms)
            except errors.KafkaError as error:
                raise self.failed(f"asking for the end of {partition.topic}", error) from error
        return int(found[partition].offset)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Of a topic; `QueueUnavailable` also when there is none."""
        with self._one:
            try:
                (described,) = self.client.describe_topics([topic])
                if described["error_code"]:
                    raise errors.for_code(described["error_code"])(topic)
            except errors.KafkaError as error:
                raise self.failed(f"asking for partitions of {topic}", error) from error
        return [TopicPartition(topic, p["partition_index"]) for p in described["partitions"]]

    def broker_count(self) -> int:
        """How many brokers the cluster has.

        kafka-python 3.0.12's `describe_cluster` fails on brokers older than 3.7, which name no type of endpoint.
        """
        with self._one:
            try:
                return len(self._metadata(None, None).brokers)
            except errors.KafkaError as error:
                raise self.failed("asking for the number of brokers", error) from error

    def offsets_at(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """The first offset of each whose record is as new as that, or newer; a partition without one is left out."""
        with self._one:
            try:
                found = self.client.list_partition_offsets(
                    dict.fromkeys(partitions, timestamp_ms), timeout_ms=self._timeout_ms
                )
            except errors.KafkaError as error:
                raise self.failed(f"asking for offsets of {partitions[0].topic}", error) from error
        return {partition: at.offset for partition, at in found.items() if at.offset >= 0}

    def retention_ms(self, topic: str) -> int | None:
        """How long the topic keeps a record; None for ever."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        with self._one:
            try:
                described = self.client.describe_configs([resource], config_filter="all")
            except errors.KafkaError as error:
                raise self.failed(f"asking for the configuration of {topic}", error) from error
        entry = described.get("topic", {}).get(topic, {}).get("retention.ms")
        if entry is None or entry["value"] is None:
            raise QueueUnavailable(f"Kafka does not report the retention of {topic}")
        kept = int(entry["value"])
        return None if kept < 0 else kept

    def time_ms(self) -> int | None:
        """What time it is for the brokers: the leader of their quorum has always just heard from itself.

        None where they don't tell: with ZooKeeper, before 3.3, or without the permission to describe the cluster.
        """
        with self._one:
            try:
                described = self.client.describe_metadata_quorum()
                (partition,) = described["topics"][0]["partitions"]
                voters = {voter["replica_id"]: voter for voter in partition["current_voters"]}
                told = int(voters[partition["leader_id"]]["last_fetch_timestamp"])
            except errors.RetriableError as error:
                raise self.failed("asking what time it is", error) from error
            except (errors.KafkaError, KeyError, IndexError, ValueError, TypeError):
                return None
        return told if told > 0 else None

    def group(self, group: str) -> dict[str, Any]:
        """kafka-python's description of a consumer group; of one that there is not, state Dead."""
        with self._one:
            try:
                described: dict[str, Any] = self.client.describe_groups([group])[group]
            except errors.KafkaError as error:
                raise self.failed(f"asking for group {group}", error) from error
        return described

    def acknowledged(self, group: str, partition: TopicPartition) -> Acknowledged | None:
        """The group's offset, None when it has none."""
        deadline = time.monotonic() + _COORDINATOR_SECONDS_MAX
        found: Any = None
        with self._one:
            while True:
                try:
                    found = self.client.list_group_offsets({group: [partition]})[group].get(partition)
                    break
                except _COORDINATOR as error:
                    if time.monotonic() >= deadline:
                        raise self.failed(f"reading the offset of group {group}", error) from error
                    time.sleep(_GONE_SECONDS)
                except errors.KafkaError as error:
                    raise self.failed(f"reading the offset of group {group}", error) from error
        if found is None or found.offset < 0:
            return None
        return Acknowledged(offset=found.offset, metadata=found.metadata or "")

    def delete_below(self, partition: TopicPartition, offset: int) -> int:
        """Delete the records of a partition below an offset; returns where its log starts then."""
        with self._one:
            try:
                done = self.client.delete_records({partition: offset}, timeout_ms=self._timeout_ms)[partition]
            except errors.KafkaError as error:
                raise self.failed(f"deleting records of {partition.topic}", error) from error
        return int(done["low_watermark"])

    def close(self) -> None:
        """Release the connections."""
        with self._one:
            self._closed = True
            self._drop()

    def _identity(self, topic: str, leader: int | None) -> TopicIdentity:
        node, missing = leader, 0
        for _ in range(_REDIRECTS_MAX + _GONE_ATTEMPTS):
            try:
                answer = self._metadata(topic, node)
            except errors.KafkaError as error:
                failed = self.failed(f"asking for topic {topic}", error)
                if node is None:
                    raise failed from error
                node = None  # whoever answers may know the new leader
                continue
            found = answer.topics[0]
            error_type = errors.for_code(found.error_code)
            if error_type is errors.UnknownTopicOrPartitionError:
                missing += 1
                if missing == _GONE_ATTEMPTS:
                    raise RefusedToRun(
                        f"there is no topic {topic} in Kafka cluster {answer.cluster_id}; what was "
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
                raise self.failed(f"asking for topic {topic}", error_type())
            if len(found.partitions) > 1:
                raise RefusedToRun(
                    f"{topic} has {len(found.partitions)} partitions and must have one: only within a partition is "
                    "there an order to commit in, and committerd reads one. Kafka can't remove partitions: stage the "
                    "records of all partitions again elsewhere, delete the topic, create it again, and run "
                    "`committerd position adopt`",
                    code="topic_partitions",
                )
            return TopicIdentity(cluster_id=answer.cluster_id, topic=topic, topic_id=_written(found.topic_id))
        raise QueueUnavailable(f"the leader of topic {topic} keeps changing")

    def _metadata(self, topic: str | None, node: int | None) -> Any:
        # kafka-python has no public call that asks a given node.
        manager = self.client._manager
        request = MetadataRequest(
            topics=[] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

        async def ask() -> Any:
            seconds = min(self._timeout_ms / 1000, _METADATA_SECONDS_MAX)
            return await manager.wait_for(manager.send(request, node_id=node), seconds * 1000)

        return manager.run(ask)

    def failed(self, doing: str, error: errors.KafkaError) -> QueueUnavailable:
        """What to raise after an error of the client, which may have to be replaced."""
        # A refused login sticks to the client: only a new one tries again. And an answer that does not come may have
        # been lost on a connection that stays open.
        if not isinstance(error, errors.RetriableError) or isinstance(error, _UNANSWERED):
            self._drop()
        return QueueUnavailable(f"{doing}: {in_words(error)}")

    def require_group(self, group: str) -> None:
        """Raise `SettingsError` where we may not use the group, with the ACL that is missing."""
        with self._one:
            try:
                self.client.describe_groups([group])
            except errors.GroupAuthorizationFailedError as error:
                raise SettingsError(f"the consumer group can't be used: {lacking('Read', 'Group', group)}") from error
            except errors.KafkaError as error:
                # A new cluster makes its topic of groups only now. Whatever else it is, the member will meet it too.
                self.failed(f"asking for group {group}", error)

    def _drop(self) -> None:
        if self._opened is not None:
            self._opened.client.close()
            self._opened = None


def _written(topic_id: UUID) -> str:
    """As Kafka prints it: base64url of 16 bytes, without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
