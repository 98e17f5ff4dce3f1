"""Clients that wait for each of their upserts while another producer floods the queue: how long do they wait?

    python -m bench.flood [--appends 6000] [--waiting 4000] [--seconds 10] [--clients 6] [--pause 0]
                          [--quota 0.5] [--batch] [--plan-between] [--upserts] [--files 1]

Processes (`--clients`) upsert 20 rows at a time, each one upsert after the other. Meanwhile a producer stages raw
Appends of a few files each (`--files`) that say which keys they bring, as fast as they are committed: at most
`--waiting` of them have no outcome. Measured are the flood alone, then the clients alone, on a table with the files of
the flood, and then both at once, with a committer and a Kafka of this machine (`KAFKA_BOOTSTRAP_SERVERS`, or one that
is started). The last lines compare them. The more Appends, the less the first second of the flood counts, in which its
records come at once.

Upserts and Appends are planned, and their files written, before they are measured: clients do that on machines of their
own, and not on the processors that the committer needs. With `--plan-between` a client plans each upsert after the
commit of the one before.

With `--quota` a quota of Kafka limits the flood beside the clients, to this share of the bytes that it sends alone in a
second. Kafka lets it send the bytes of eleven seconds at once. So calls of the first eleven seconds do not count, and
the flood should last a minute: `--appends 60000 --quota 0.33` at 2,500 Appends/s alone.

With `--batch` the committer knows the producer as a batch producer (`commit.batch_producers`).

With `--upserts` the flood stages upserts of a row each. All are planned on the first version, so each is compared with
all versions since then, also with those that the clients have made alone.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
import uuid
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from committerd_client import SyncCommitClient, staging
from committerd_common.messages import DataFile, Transaction
from harness.kafka import kafka_broker
from harness.kafka_configs import WINDOW_SECONDS, limit_client
from harness.scene import Scene
from harness.topics import OUTCOME_PARTITIONS

CLIENTS, ROWS = 6, 20
_PARTITION = OUTCOME_PARTITIONS - 1
"""The partition of the outcomes topic for those of the Appends: the last one.

The clients read the others. A client that reads it parses the outcomes of the flood too, which takes processors.
"""
_HEADERS = [("producer", b"flood"), ("outcome-partition", b"%d" % _PARTITION)]
_CLIENT_ID = "flood-staged"
_PLANNED = 400
"""How many upserts a client plans before its first commit. It plans more of them one by one if it needs more."""
_LINKS_MAX = 30_000
"""How many links to one file are made: file systems have a maximum."""
_LOOK_SECONDS = 0.05
"""How often the flood asks Kafka how many outcomes there are: seldom, because that takes processors from the others."""
_WAITS = {"KAFKA__FETCH_MAX_WAIT_MS": "500"}
"""The default, which is longer than the scene's: as long as this, the committer may wait before it reads elsewhere."""
_RECORD_BYTES = 20
"""About how many bytes a record in Kafka has beside its value and headers."""


def producer_of(partition: int) -> str:
    """A producer name with which a client reads this partition of the outcomes topic."""
    names = (f"client-{number}" for number in itertools.count())
    return next(name for name in names if zlib.crc32(name.encode()) % OUTCOME_PARTITIONS == partition)


def upsert(
    uri: str, kafka: str, name: str, producer: str, *, planned: int, pause: float, begin: Any, until: Any, seconds: Any
) -> None:
    """Upsert as this producer from when all clients are ready (`begin`, a barrier) until the event is set.

    Puts the seconds that each commit took into the queue.

    `planned`: how many upserts to plan before the first commit. `pause`: seconds to wait after each commit.

    Each upsert brings keys of its own. So it can be planned on the first version, which has a row, and is valid for the
    latest version that the client knows. To plan it there takes the longer the more files the table has.
    """
    first = lance.dataset(uri, version=1)
    keys, version = itertools.count(uuid.uuid4().int >> 70, ROWS), lance.dataset(uri).version

    def plan() -> Transaction:
        start = next(keys)
        return staging.merge_insert(first, pa.table({"id": range(start, start + ROWS)}), on="id").transaction

    def again(_: object) -> Transaction:
        nonlocal version
        version = lance.dataset(uri).version
        change = plan()
        change.read_version = version
        return change

    upserts = [plan() for _ in range(planned)]
    with SyncCommitClient(kafka, dataset=name, dataset_uri=uri, producer=producer) as client:
        begin.wait()
        while not until.is_set():
            change = upserts.pop() if upserts else plan()
            change.read_version = version
            began = time.monotonic()
            version = client.commit(change, reexecute=again).version or version
            seconds.put(time.monotonic() - began)
            time.sleep(pause)


class Clients:
    """The calls of all clients, while the block runs."""

    def __init__(self, scene: Scene, kafka: str, *, count: int, planned: int, pause: float) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._begin, self._until, self._seconds = spawned.Barrier(count), spawned.Event(), spawned.Queue()
        self.seconds: list[float] = []
        self._first_calls = (2 if pause else 10) * count
        """So many calls do not count: the clients all begin at once."""
        given = scene.table.uri, kafka, scene.name
        producers = [producer_of(number % _PARTITION) for number in range(count)]
        shared = {"begin": self._begin, "until": self._until, "seconds": self._seconds}
        shared |= {"planned": planned, "pause": pause}
        self._running = [
            spawned.Process(target=upsert, args=(*given, producer), kwargs=shared, daemon=True)
            for producer in producers
        ]
        self._collecting = threading.Thread(target=self._collect)

    def __enter__(self) -> Clients:
        for process in self._running:
            process.start()
        self._collecting.start()
        while len(self.seconds) < self._first_calls:
            if not all(process.is_alive() for process in self._running):
                self._seconds.put(None)
                raise RuntimeError("a client has ended before it was measured: its error is above")
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

    def quantile(self, share: float) -> float:
        """Of the seconds of the calls of the block so far."""
        return sorted(self.seconds)[int(share * (len(self.seconds) - 1))]

    def shown(self) -> str:
        p50, p99, slowest = map(self.quantile, (0.5, 0.99, 1))
        return f"{len(self.seconds)} calls, p50 {p50:.3f} s, p99 {p99:.3f} s, slowest {slowest:.3f} s"


def prepared(scene: Scene, count: int, *, files: int, upserts: bool) -> list[bytes]:
    """Appends of so many files of a row each, or upserts of a file and a row. The files are links to a few files."""
    rows = pa.table({"id": scene.table.new_ids(1)})
    if upserts:
        one = staging.merge_insert(scene.table.open(), rows, on="id").transaction
    else:
        fragments = lance.fragment.write_fragments(rows, scene.table.uri, mode="append", data_storage_version="2.0")
        one = staging.append(fragments, keys=staging.keys_of(scene.table.open(), "id", rows))
        one.append.fragments.extend([one.append.fragments[0]] * (files - 1))
    data, made, links = Path(scene.table.uri) / "data", list[bytes](), 0
    linked = data / _files_of(one)[0].path
    for _ in range(count):
        copy = Transaction()
        copy.CopyFrom(one)
        copy.uuid = str(uuid.uuid4())
        if upserts:
            copy.update.inserted_rows.exact.key_hashes[:] = [uuid.uuid4().int >> 64]
        for file in _files_of(copy):
            if links == _LINKS_MAX:
                linked, links = Path(shutil.copyfile(linked, data / f"{uuid.uuid4().hex}.lance")), 0
            file.path = f"{uuid.uuid4().hex}.lance"
            os.link(linked, data / file.path)
            links += 1
        made.append(copy.SerializeToString())
    return made


def _files_of(one: Transaction) -> list[DataFile]:
    """The data files of an Append or of an upsert, whose fragments have a file each."""
    is_append = one.WhichOneof("operation") == "append"
    fragments = one.append.fragments if is_append else one.update.new_fragments
    return [fragment.files[0] for fragment in fragments]


def flood(kafka: str, name: str, records: list[bytes], *, waiting: int) -> float:
    """Stage these; returns how many of them are committed a second. `waiting`: as many have no outcome at most."""
    answered = TopicPartition(f"{name}.outcomes", _PARTITION)
    consumer: Any = KafkaConsumer(bootstrap_servers=kafka)
    producer: Any = KafkaProducer(
        bootstrap_servers=kafka, client_id=_CLIENT_ID, acks="all", linger_ms=5, batch_size=256 * 1024
    )
    before, staged, began = consumer.end_offsets([answered])[answered], 0, time.monotonic()
    while (done := consumer.end_offsets([answered])[answered] - before) < len(records):
        for record in records[staged : done + waiting]:
            producer.send(f"{name}.staged", value=record, headers=_HEADERS, partition=0)
            staged += 1
        producer.flush()
        time.sleep(_LOOK_SECONDS)
    took = time.monotonic() - began
    producer.close()
    consumer.close()
    return len(records) / took


def record_bytes(value: bytes) -> int:
    """About how many bytes a record of the flood has in Kafka."""
    return _RECORD_BYTES + len(value) + sum(len(name) + len(value) for name, value in _HEADERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=6_000)
    parser.add_argument("--waiting", type=int, default=4_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the clients are measured alone")
    parser.add_argument("--quota", type=float, help="limit the flood to this share of its own bytes a second")
    parser.add_argument("--batch", action="store_true", help="the committer knows the producer as a batch producer")
    parser.add_argument("--upserts", action="store_true", help="the flood is of upserts, all planned on one version")
    parser.add_argument("--files", type=int, default=1, help="how many files each Append of the flood has")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="how many processes upsert")
    parser.add_argument("--plan-between", action="store_true", help="the clients plan each upsert between two commits")
    parser.add_argument("--pause", type=float, default=0.0, help="how many seconds a client waits after each commit")
    given = parser.parse_args()
    planned = 0 if given.plan_between else _PLANNED
    what = "upserts" if given.upserts else "Appends"
    clients_of = partial(Clients, count=given.clients, planned=planned, pause=given.pause)
    records_of = partial(prepared, count=given.appends, files=given.files, upserts=given.upserts)
    with tempfile.TemporaryDirectory() as folder, kafka_broker() as kafka:
        servers, name = kafka.bootstrap_servers, f"flood-{uuid.uuid4().hex[:8]}"
        with Scene(kafka=servers, name=name, folder=Path(folder)) as scene:
            scene.table.create()
            scene.started(**_WAITS | ({"COMMIT__BATCH_PRODUCERS": "flood"} if given.batch else {}))
            first, records = records_of(scene), records_of(scene)
            rate_alone = flood(servers, name, first, waiting=given.waiting)
            with clients_of(scene, servers) as clients:  # on a table of the size that the flood beside them finds
                time.sleep(given.seconds)
                alone = clients.quantile(0.99)
                print(f"alone: {clients.shown()}", flush=True)
            bytes_alone = rate_alone * record_bytes(records[0])
            print(f"alone: {rate_alone:.0f} {what}/s, {bytes_alone:.0f} bytes/s", flush=True)
            if given.quota is not None:
                limit_client(servers, _CLIENT_ID, int(given.quota * bytes_alone))
                print(f"quota: {given.quota * bytes_alone:.0f} bytes/s", flush=True)
            with clients_of(scene, servers) as clients:
                if given.quota is not None:
                    threading.Timer(WINDOW_SECONDS, clients.seconds.clear).start()
                rate = flood(servers, name, records, waiting=given.waiting)
                print(f"beside them: {clients.shown()}", flush=True)
                beside = clients.quantile(0.99)
            print(f"beside them: {rate:.0f} {what}/s", flush=True)
    print(f"p99 {beside / alone:.1f}x of what it is alone, the flood at {rate / rate_alone:.2f}x of its own rate")


if __name__ == "__main__":
    main()
