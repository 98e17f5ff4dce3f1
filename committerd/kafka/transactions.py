"""Open Kafka transactions: the broker delivers neither their first record nor any record after it.

It holds these records back until the transaction is committed or aborted, at the latest when its timeout is over. A
hanging transaction, which its coordinator no longer knows, stays open forever.

Kafka names only the transactions that this user may describe. A transaction that is not named looks as if it were
hanging, and if an operator ends a healthy transaction as a hanging one, its first records are lost and the rest is
committed. So a transaction is called hanging only if the user may describe all of them, and if it is older than any
transaction may be.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from kafka import KafkaProducer, TopicPartition, errors
from kafka.admin import AbortTransactionSpec, ConfigResource, ConfigResourceType

from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.clients import in_words, open_client
from committerd.kafka.options import producer_options
from committerd.settings.kafka import KafkaSettings
from committerd_login.access import denied, lacking

_ATTEMPTS = 5
_PAUSE_SECONDS = 0.5
TIMEOUT_MS_MAX = 15 * 60 * 1000
"""The longest timeout of a transaction, unless the brokers' `transaction.max.timeout.ms` is longer."""
_SLACK_MS = 5 * 60 * 1000
"""Until a coordinator has ended a transaction whose timeout is over. Apache's own tool waits as long
(TransactionsCommand.java).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """An open transaction, as the brokers describe it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    """Offset of its first record; no record from there on is delivered."""
    last_timestamp_ms: int
    """Timestamp of its last record (Unix milliseconds)."""
    transactional_id: str | None
    """None = no coordinator names it."""
    is_hanging: bool = False
    """Whether no coordinator knows it any more, so that only an operator can end it."""
    unknown: str = ""
    """Why it is neither named nor called hanging, as a sentence; then it must not be ended."""
    started_ms: int | None = None
    timeout_ms: int | None = None


def open_transactions(admin: TopicAdmin, partition: TopicPartition) -> list[OpenTransaction]:
    """The open transactions of a partition, in order of their first offsets. Blocks. Raises `QueueUnavailable`."""
    try:
        with admin.client() as client:
            producers = _producers(client, partition)
            open_ones = [one for one in producers if one.current_transaction_start_offset >= 0]
            if not open_ones:
                return []
            ids = [one.producer_id for one in open_ones]
            listed = client.list_transactions(producer_id_filters=ids)
            names = {one.producer_id: one.transactional_id for ones in listed.values() for one in ones}
            known = client.describe_transactions(sorted(set(names.values()))) if names else {}
            may_describe_all = _may_describe(client, str(uuid.uuid4()))
            timeout_ms = _timeout_ms_max(client, admin.broker_ids())
    except errors.KafkaError as error:
        why = denied(error, "Read", topic=partition.topic) or in_words(error)
        if isinstance(error, errors.UnknownTopicOrPartitionError):
            why = f"there is no such topic, or {lacking('Read', 'Topic', partition.topic)}"
        raise QueueUnavailable(f"asking for open transactions in {partition.topic}: {why}") from error
    now_ms = admin.time_ms() or int(time.time() * 1000)
    found = []
    for one in open_ones:
        name = names.get(one.producer_id)
        described = known.get(name) if name is not None else None
        if described is not None and partition not in described.topic_partitions:
            described = None
        unknown = "" if described is not None else _unknown(one, may_describe_all, now_ms, timeout_ms)
        found.append(
            OpenTransaction(
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                coordinator_epoch=one.coordinator_epoch,
                first_offset=one.current_transaction_start_offset,
                last_timestamp_ms=one.last_timestamp,
                transactional_id=name if described is not None else None,
                is_hanging=described is None and not unknown,
                unknown=unknown,
                started_ms=None if described is None else described.transaction_start_time_ms,
                timeout_ms=None if described is None else described.transaction_timeout_ms,
            )
        )
    return sorted(found, key=lambda one: one.first_offset)


def _unknown(one: Any, may_describe_all: bool, now_ms: int, timeout_ms: int) -> str:
    """Why a transaction that no coordinator names can't be called hanging; empty if it can."""
    if not may_describe_all:
        return (
            "it may be healthy, because Kafka hides the transactions that this user may not describe: "
            f"{lacking('Describe', 'TransactionalId', '*')}"
        )
    if now_ms - one.last_timestamp <= timeout_ms + _SLACK_MS:
        return (
            f"it may be healthy, because its producer wrote less than {round((timeout_ms + _SLACK_MS) / 60_000)} "
            "minutes ago: look again later"
        )
    return ""


def _may_describe(client: Any, transactional_id: str) -> bool:
    """Whether this user may describe the transaction of a producer, which need not exist."""
    try:
        client.describe_transactions([transactional_id])
    except errors.TransactionalIdNotFoundError:
        return True
    except errors.TransactionalIdAuthorizationFailedError:
        return False
    return True


def _timeout_ms_max(client: Any, brokers: Sequence[int]) -> int:
    """The longest timeout of a transaction on these brokers; Kafka's default, if the user may not ask for it."""
    try:
        described = client.describe_configs(
            [ConfigResource(ConfigResourceType.BROKER, str(broker)) for broker in brokers], config_filter="all"
        )
        found = described["broker"].values()
        return max([TIMEOUT_MS_MAX, *(int(one["transaction.max.timeout.ms"]["value"]) for one in found)])
    except (errors.AuthorizationError, KeyError, TypeError, ValueError):
        return TIMEOUT_MS_MAX


def _producers(client: Any, partition: TopicPartition) -> Sequence[Any]:
    """The producers that have written to the partition lately. Asks again if its leader has just changed."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return cast(Sequence[Any], client.describe_producers([partition])[partition].active_producers)
        except errors.RetriableError:
            time.sleep(_PAUSE_SECONDS)
    return cast(Sequence[Any], client.describe_producers([partition])[partition].active_producers)


def end_transaction(
    admin: TopicAdmin, settings: KafkaSettings, partition: TopicPartition, one: OpenTransaction
) -> None:
    """Abort a transaction: its records are never delivered. Blocks.

    Its producer, if it still runs, is fenced, and gets an error. Raises `SettingsError` for a transaction that is
    neither named nor hanging, and `QueueUnavailable`.
    """
    if one.transactional_id is None and not one.is_hanging:
        raise SettingsError(f"the transaction of producer {one.producer_id} is not ended: {one.unknown}")
    try:
        if one.transactional_id is not None:
            _fence(settings, one.transactional_id)
        else:
            with admin.client() as client:
                client.abort_transaction(
                    AbortTransactionSpec(partition, one.producer_id, one.producer_epoch, one.coordinator_epoch)
                )
    except errors.KafkaError as error:
        raise QueueUnavailable(
            f"ending the transaction of producer {one.producer_id} in {partition.topic}: {_why(error, one)}"
        ) from error


def _why(error: errors.KafkaError, one: OpenTransaction) -> str:
    if isinstance(error, errors.ClusterAuthorizationFailedError):
        return lacking("Alter", "Cluster")
    if isinstance(error, errors.TransactionalIdAuthorizationFailedError):
        return lacking("Write", "TransactionalId", one.transactional_id or "*")
    return in_words(error)


def _fence(settings: KafkaSettings, transactional_id: str) -> None:
    """Start a producer with the same id. The coordinator then aborts the open transaction, in all partitions, and keeps
    the id.
    """
    options = producer_options(settings, "operator", "transactions", record_bytes_max=settings.max_record_bytes)
    wanted: dict[str, Any] = {**options, "transactional_id": transactional_id, "enable_idempotence": True}
    opened = open_client(KafkaProducer, wanted)
    try:
        opened.client.init_transactions()
    finally:
        opened.client.close(timeout=1)
        opened.network.close()
