"""Brings a broker into the state that it has in production, after some minutes of work.

Java interprets code first, and compiles and optimizes what runs often; a broker that has just started needs several
times the processor time for each request, and its compiler takes the rest of the machine.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic

_VALUE = b"x" * 500
_COMMIT_EACH = 20
"""Records between two commits of the consumer's offset."""


def warm(servers: str, *, seconds: float) -> int:
    """Send records and receive them, one at a time, for so long; return how many."""
    topic, count = f"warming-{secrets.token_hex(4)}", 0
    admin: Any = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=1)])
    producer: Any = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=0)
    consumer: Any = KafkaConsumer(
        topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
    )
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        producer.send(topic, value=_VALUE).get()
        found = consumer.poll(timeout_ms=1000)
        count += sum(map(len, found.values()))
        if count % _COMMIT_EACH == 0 and found:
            consumer.commit()
    producer.close()
    consumer.close()
    admin.delete_topics([topic])
    admin.close()
    return count
