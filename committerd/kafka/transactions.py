"""Open Kafka transactions: the broker delivers neither the first record of one nor any record after it.

It holds these records back until the transaction is committed or aborted, at the latest when its timeout is over. A
hanging transaction, which its coordinator no longer knows, stays open forever.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from kafka import KafkaProducer, TopicPartition, errors
from kafka.admin import AbortTransactionSpec

from committerd.errors import QueueUnavailable
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.clients import in_words, open_client
from committerd.kafka.options import producer_options
from committerd.settings.kafka import KafkaSettings

_ATTEMPTS = 5
_PAUSE_SECONDS = 0.5


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
    """None = no coordinator knows it (any more), and only an operator can end it."""
    started_ms: int | None = None
    timeout_ms: int | None = None


def open_transactions(admin: TopicAdmin, partition: TopicPartition) -> list[OpenTransaction]:
    """The open transactions of a partition, in order of their first offsets. Blocks. Raises `QueueUnavailable`."""
    client = admin.client
    try:
        producers = _producers(client, partition)
        open_ones = [one for one in producers if one.current_transaction_start_offset >= 0]
        if not open_ones:
            return []
        ids = [one.producer_id for one in open_ones]
        listed = client.list_transactions(producer_id_filters=ids)
        names = {one.producer_id: one.transactional_id for ones in listed.values() for one in ones}
        known = client.describe_transactions(sorted(set(names.values()))) if names else {}
    except errors.KafkaError as error:
        raise QueueUnavailable(f"asking for open transactions in {partition.topic}: {in_words(error)}") from error
    found = []
    for one in open_ones:
        name = names.get(one.producer_id)
        described = known.get(name) if name is not None else None
        if described is not None and partition not in described.topic_partitions:
            described = None
        found.append(
            OpenTransaction(
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                coordinator_epoch=one.coordinator_epoch,
                first_offset=one.current_transaction_start_offset,
                last_timestamp_ms=one.last_timestamp,
                transactional_id=name if described is not None else None,
                started_ms=None if described is None else described.transaction_start_time_ms,
                timeout_ms=None if described is None else described.transaction_timeout_ms,
            )
        )
    return sorted(found, key=lambda one: one.first_offset)


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
    """Abort a transaction: its records are never delivered. Blocks. Raises `QueueUnavailable`.

    Its producer, if it still runs, is fenced, and gets an error.
    """
    try:
        if one.transactional_id is not None:
            _fence(settings, one.transactional_id)
        else:
            admin.client.abort_transaction(
                AbortTransactionSpec(partition, one.producer_id, one.producer_epoch, one.coordinator_epoch)
            )
    except errors.KafkaError as error:
        raise QueueUnavailable(
            f"ending the transaction of producer {one.producer_id} in {partition.topic}: {in_words(error)}"
        ) from error


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
