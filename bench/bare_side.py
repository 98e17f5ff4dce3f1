"""The bare work of a backlog, in one loop and one thread: read the records, parse them, join their fragments, and put.

Nothing is judged and nobody gets an outcome. As the committer does, it makes a version of each 1,000 records, gives
each fragment its id, and keeps the fragments of earlier versions as bytes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
from kafka import KafkaConsumer, TopicPartition

from committerd.stores.local import LocalStore
from committerd.stores.port import Created
from committerd_common.messages import Manifest, Transaction

_RECORDS = 1000
"""Records of a version: the default of `commit.group_records_max`."""


class BareLoop:
    """For a worker: reads the staged topic of a dataset from its start, and writes versions into a folder."""

    def __init__(self, *, servers: str, topic: str, folder: Path, durable: bool) -> None:
        self._store = LocalStore(folder, durable=durable)
        self._partition = TopicPartition(topic, 0)
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=servers, metrics_enabled=False, allow_auto_create_topics=False, max_poll_records=_RECORDS
        )
        self._consumer.assign([self._partition])

    def catch_up(self, *, count: int) -> float:
        """Return the seconds from the first fetch to the last put."""
        return anyio.run(self._catch_up, count)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    async def _catch_up(self, count: int) -> float:
        began, parts, waiting, done = time.perf_counter(), [b""], [], 0
        self._consumer.seek(self._partition, 0)
        while done < count:
            for records in self._consumer.poll(timeout_ms=1000).values():
                waiting += records
            while len(waiting) >= min(_RECORDS, count - done) > 0:
                group, waiting = waiting[:_RECORDS], waiting[_RECORDS:]
                made = Manifest()
                for number, record in enumerate(group, done):
                    made.fragments.extend(Transaction.FromString(record.value).append.fragments)
                    made.fragments[-1].id = number
                parts.append(made.SerializeToString())
                done += len(group)
                answer = await self._store.put_if_absent(f"bare/{done}", b"".join(parts))
                assert isinstance(answer, Created)
        return time.perf_counter() - began
