"""Clients that wait for each of their Appends while another producer floods the queue: how long do they wait?

    python -m bench.flood

Six processes append 20 rows each, one call after the other. Meanwhile a producer stages raw Appends of one file each,
as fast as they are committed: at most `WAITING` of them have no outcome. Measured are the clients alone, the flood
alone, and both at once, with a committer and a Kafka of this machine (`KAFKA_BOOTSTRAP_SERVERS`, or one that is
started).
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from committerd_client import SyncCommitClient
from committerd_common.messages import Transaction
from harness.kafka import kafka_broker
from harness.scene import Scene

CLIENTS, ROWS, SECONDS = 6, 20, 10
APPENDS, WAITING = 6_000, 4_000
_PARTITION = 7
"""The partition of the outcomes topic for those of the Appends."""


def append(uri: str, kafka: str, name: str, number: int, *, until: Any, seconds: Any) -> None:
    """Append until the event is set; puts the seconds that each call took into the queue."""
    with SyncCommitClient(kafka, dataset=name, dataset_uri=uri) as client:
        first = 10**6 * (number + 1)
        while not until.is_set():
            began = time.monotonic()
            client.append(pa.table({"id": range(first, first + ROWS)}))
            seconds.put(time.monotonic() - began)


class Clients:
    """The calls of all clients, while the block runs."""

    def __init__(self, scene: Scene, kafka: str) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._until, self._seconds = spawned.Event(), spawned.Queue()
        self.seconds: list[float] = []
        given = scene.table.uri, kafka, scene.name
        shared = {"until": self._until, "seconds": self._seconds}
        self._running = [
            spawned.Process(target=append, args=(*given, number), kwargs=shared) for number in range(CLIENTS)
        ]
        self._collecting = threading.Thread(target=self._collect)

    def __enter__(self) -> Clients:
        for process in self._running:
            process.start()
        self._collecting.start()
        while len(self.seconds) < 10 * CLIENTS:  # starting takes seconds
            time.sleep(0.1)
        self.seconds.clear()
        return self

    def __exit__(self, *error: object) -> None:
        self._until.set()
        for process in self._running:
            process.join()
        self._seconds.put(None)
        self._collecting.join()

    def _collect(self) -> None:
        while (took := self._seconds.get()) is not None:
            self.seconds.append(took)

    def shown(self) -> str:
        """Count and quantiles of the seconds of the block so far."""
        sorted_ = sorted(self.seconds)
        p50, p99 = (sorted_[int(share * (len(sorted_) - 1))] for share in (0.5, 0.99))
        return f"{len(sorted_)} calls, p50 {p50:.3f} s, p99 {p99:.3f} s, slowest {sorted_[-1]:.3f} s"


def prepared(scene: Scene) -> list[bytes]:
    """Appends of a file each. The files are links to one."""
    one = scene.table.append()
    (file,) = one.append.fragments[0].files
    data, made = Path(scene.table.uri) / "data", list[bytes]()
    for _ in range(APPENDS):
        copy = Transaction()
        copy.CopyFrom(one)
        copy.uuid = str(uuid.uuid4())
        copy.append.fragments[0].files[0].path = f"{uuid.uuid4().hex}.lance"
        os.link(data / file.path, data / copy.append.fragments[0].files[0].path)
        made.append(copy.SerializeToString())
    return made


def flood(kafka: str, name: str, appends: list[bytes]) -> float:
    """Stage these; returns how many of them are committed a second."""
    answered = TopicPartition(f"{name}.outcomes", _PARTITION)
    headers = [("producer", b"flood"), ("outcome-partition", b"%d" % _PARTITION)]
    consumer: Any = KafkaConsumer(bootstrap_servers=kafka)
    producer: Any = KafkaProducer(bootstrap_servers=kafka, acks="all", linger_ms=5, batch_size=256 * 1024)
    before, staged, began = consumer.end_offsets([answered])[answered], 0, time.monotonic()
    while (done := consumer.end_offsets([answered])[answered] - before) < len(appends):
        for append in appends[staged : done + WAITING]:
            producer.send(f"{name}.staged", value=append, headers=headers, partition=0)
            staged += 1
        producer.flush()
        time.sleep(0.02)
    took = time.monotonic() - began
    producer.close()
    consumer.close()
    return len(appends) / took


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, kafka_broker() as kafka:
        servers, name = kafka.bootstrap_servers, f"flood-{uuid.uuid4().hex[:8]}"
        with Scene(kafka=servers, name=name, folder=Path(folder)) as scene:
            scene.table.create()
            scene.started()
            with Clients(scene, servers) as clients:
                time.sleep(SECONDS)
                print(f"alone: {clients.shown()}", flush=True)
            print(f"alone: {flood(servers, name, prepared(scene)):.0f} Appends/s", flush=True)
            appends = prepared(scene)
            with Clients(scene, servers) as clients:
                rate = flood(servers, name, appends)
                print(f"beside them: {clients.shown()}", flush=True)
            print(f"beside them: {rate:.0f} Appends/s", flush=True)


if __name__ == "__main__":
    main()
