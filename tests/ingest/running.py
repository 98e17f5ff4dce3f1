"""Processes of `committerd ingest` for tests, and topics to read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError

from harness.child import Launch, without_waits
from harness.daemon import Daemon
from harness.places import StorePlace
from harness.scene import QUICK, STAYS, Scene

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)


class Topic:
    """A topic with JSON records, which have the numbers 0, 1, 2 and so on, in the partitions in turn."""

    def __init__(
        self, servers: str, *, partitions: int, name: str = "", configs: Mapping[str, str] | None = None
    ) -> None:
        """`configs`: settings of the topic."""
        self.name = name or f"orders-{uuid4().hex[:8]}"
        self.partitions, self.servers = partitions, servers
        self._configs = dict(configs or {})
        self.sent = 0
        self._unproven: list[Any] = []
        """The futures of records of which nobody knows yet whether Kafka has them."""
        self._create()
        self._producer = self._opened()

    def _opened(self) -> KafkaProducer:
        return KafkaProducer(bootstrap_servers=self.servers, acks="all", max_block_ms=60_000)

    def _create(self) -> None:
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.servers)) as admin:
            admin.create_topics([NewTopic(self.name, self.partitions, 1, topic_configs=self._configs)])

    def delete(self) -> None:
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.servers)) as admin:
            admin.delete_topics([self.name])

    def make_again(self) -> None:
        """Delete the topic and create it again; waits until the broker leads the partitions of the new one."""
        before = self._id()
        self.delete()

        def created() -> bool:
            try:
                self._create()
            except TopicAlreadyExistsError:  # the old one is not gone yet, or a request was sent twice
                return self._id() not in ("", before)
            return True

        wait(created)
        wait(lambda: self._id() not in ("", before))
        self._producer.close(10)
        self._producer = self._opened()  # the other one counts its records on from those of the old topic

    def _id(self) -> str:
        """The topic's id; empty if there is none, or a partition has no leader yet."""
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.servers)) as admin:
            (found,) = admin.describe_topics([self.name])
        led = all(one["leader_id"] >= 0 for one in found["partitions"])
        return "" if found["error_code"] or not led else str(found["topic_id"])

    def send(self, count: int, *, text: str = "x", flush: bool = True) -> None:
        """Send so many more records. `flush`: whether to wait until Kafka has them."""
        for number in range(self.sent, self.sent + count):
            self.send_value(json.dumps({"id": number, "text": text}).encode(), partition=number % self.partitions)
        self.sent += count
        if flush:
            self.flush()

    def send_value(
        self,
        value: bytes | None,
        *,
        partition: int = 0,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (("trace", b"7"),),
    ) -> None:
        sent = self._producer.send(
            self.name,
            value=value,
            key=key,
            partition=partition,
            headers=list(headers),
            timestamp_ms=timestamp_ms,
        )
        self._unproven.append(sent)

    def flush(self) -> None:
        """Wait until Kafka has all records. Raises if it has not taken one."""
        self._producer.flush(240)
        sent, self._unproven = self._unproven, []
        for one in sent:
            one.get(timeout=240)

    def close(self) -> None:
        self._producer.close(10)


class Flow:
    """A table with its committer, a topic, and processes that bring the topic into the table."""

    def __init__(self, scene: Scene, topic: Topic, *, launch: Launch) -> None:
        self.scene, self.topic, self._launch = scene, topic, launch
        self._count = 0
        self.committer: Daemon | None = None

    def restart_committer(self, **settings: str) -> None:
        """Put a committer with other settings in its place."""
        assert self.committer is not None
        self.committer.stop()
        self.committer = self.scene.started(**settings)

    def create(self, schema: pa.Schema = SCHEMA) -> None:
        lance.write_dataset(schema.empty_table(), self.scene.table.uri)

    def ingest(self, **settings: str) -> Daemon:
        """A process, not started yet."""
        self._count += 1
        return Daemon(
            name=self.scene.name,
            uri=self.scene.table.uri,
            kafka=self.scene.topics.servers,
            settings={**QUICK, **self.settings(), **settings},
            log=self.scene.folder / f"ingest-{self._count}.log",
            command=(sys.executable, "-m", "committerd", "ingest"),
            launch=self._launch,
        )

    def settings(self) -> Mapping[str, str]:
        return {
            "INGEST__TOPICS": self.topic.name,
            "INGEST__FLUSH_SECONDS": "0.1",
            "INGEST__PARTITION_COLUMN": "partition",
            "INGEST__OFFSET_COLUMN": "offset",
            "INGEST__RETRY_SECONDS": "1",
        }

    def command(self, *words: str, good: bool = True, **settings: str) -> str:
        """Run `committerd` with the settings of the pipeline; returns what it prints."""
        daemon = self.ingest(**STAYS | settings)
        done = subprocess.run(
            [sys.executable, "-m", "committerd", *words],
            env={**os.environ, **daemon.environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode == 0) is good, done.stdout + done.stderr
        return without_waits(done.stdout + done.stderr)

    def rows(self) -> list[dict[str, Any]]:
        return list(self.scene.table.open().to_table().to_pylist())

    def schema(self) -> pa.Schema:
        return self.scene.table.open().schema

    def exists(self) -> bool:
        try:
            return bool(self.schema().names)
        except (OSError, ValueError):  # pylance has no class for it
            return False

    def count(self) -> int:
        return int(self.scene.table.open().count_rows())

    def wait_rows(self, count: int, *, seconds: float = 240) -> None:
        wait(lambda: self.count() >= count, seconds=seconds, what=lambda: f"{self.count()} of {count} rows")

    def check(self, count: int | None = None) -> None:
        """Fail unless each record of the topic is in the table once, in the order of its partition."""
        rows = self.rows()
        ids = [row["id"] for row in rows]
        assert sorted(ids) == list(range(self.topic.sent if count is None else count))
        for partition in range(self.topic.partitions):
            offsets = [row["offset"] for row in rows if row["partition"] == partition]
            assert offsets == sorted(set(offsets))


class FilesFlow(Flow):
    """A flow whose rows come from a folder."""

    def settings(self) -> Mapping[str, str]:
        return {
            "INGEST__SOURCE": "files",
            "INGEST__FOLDER": str(self.folder),
            "INGEST__LIST_SECONDS": "0.2",
            "INGEST__FLUSH_SECONDS": "0.1",
            "INGEST__RETRY_SECONDS": "0.5",
        }

    @property
    def folder(self) -> Path:
        return self.scene.folder / "incoming"

    def put(self, name: str, *ids: int, changed_at: float | None = None) -> None:
        """Put a whole file there, of the format that its name says. `changed_at`: its time, in Unix seconds."""
        self.folder.mkdir(exist_ok=True)
        hidden, rows = self.folder / f"_{name}", pa.table({"id": ids, "text": [f"row {one}" for one in ids]})
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(rows, hidden)
        elif name.endswith(".csv"):
            pyarrow.csv.write_csv(rows, hidden)
        else:
            hidden.write_text("".join(f"{json.dumps(one)}\n" for one in rows.to_pylist()))
        if changed_at is not None:  # before anybody sees it
            os.utime(hidden, (changed_at, changed_at))
        hidden.rename(self.folder / name)

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())


def wait(holds: Callable[[], bool], *, seconds: float = 120, what: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain: {what()}"
        time.sleep(0.1)


def bad_records(servers: str, topic: str) -> list[Any]:
    """All records of a topic with one partition."""
    return records_of(servers, topic, 0)


def records_of(servers: str, topic: str, number: int) -> list[Any]:
    """All records of a partition."""
    with contextlib.closing(KafkaConsumer(bootstrap_servers=servers)) as consumer:
        place = TopicPartition(topic, number)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        found: list[Any] = []
        while consumer.position(place) < end:
            for records in consumer.poll(timeout_ms=200).values():
                found += records
    return found


@contextlib.contextmanager
def flow_of(
    servers: str,
    folder: Path,
    launch: Launch,
    *,
    partitions: int = 3,
    schema: pa.Schema | None = SCHEMA,
    configs: Mapping[str, str] | None = None,
    kind: type[Flow] = Flow,
    place: StorePlace | None = None,
    **committer: str,
) -> Iterator[Flow]:
    """A flow whose committer runs, and whose table exists, unless `schema` is None.

    `configs`: of the topic; `place`: of the table, by default in `folder`; `committer`: its settings.
    """
    topic = Topic(servers, partitions=partitions, configs=configs)
    try:
        name = f"table-{uuid4().hex[:8]}"
        with Scene(kafka=servers, name=name, folder=folder, place=place, launch=launch) as scene:
            flow = kind(scene, topic, launch=launch)
            if schema is not None:
                flow.create(schema)
            flow.committer = scene.started(**committer)
            yield flow
    finally:
        topic.close()


def stopping(daemons: Sequence[Daemon]) -> contextlib.ExitStack:
    """Kills the daemons at its end."""
    stack = contextlib.ExitStack()
    for one in daemons:
        stack.callback(one.kill)
    return stack
