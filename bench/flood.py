"""Clients that wait for each of their upserts while another producer floods the queue: how long do they wait?

    python -m bench.flood [--appends 100000] [--waiting 2000] [--seconds 8] [--clients 6] [--pause 0]
                          [--fragments 0] [--batch] [--plan-between] [--upserts] [--files 1] [--s3 60]

Processes (`--clients`) upsert 20 rows at a time, each one upsert after the other. Meanwhile a producer stages raw
Appends of a few files each (`--files`) that say which keys they bring, as fast as they are committed: at most
`--waiting` of them have no outcome. Committer and Kafka are of this machine (`KAFKA_BOOTSTRAP_SERVERS`, or one that is
started).

Measured are the clients alone, then both at once, and then the flood alone, for `--seconds` each, in rounds until all
Appends are committed. So a round measures the three within a minute, in which the speed of a machine changes little,
and on one table, which grows by the Appends of the round. The last line has the medians of all rounds.

When the flood begins, its records come at once. The calls of its first two seconds are shown apart, because a flood
begins once, however long it is.

Upserts and Appends are planned, and their files written, before they are measured: clients do that on machines of their
own, and not on the processors that the committer needs. With `--plan-between` a client plans each upsert after the
commit of the one before.

With `--fragments` so many Appends of a file each are committed first, so that the table has as many fragments.

With `--batch` the committer knows the producer as a batch producer (`commit.batch_producers`).

With `--s3` the table is on an S3 server of this machine, which adds so many milliseconds to each response that the
committer gets. Otherwise it is on the local disk.

With `--upserts` the flood stages upserts of a row each. All are planned on the first version, so each is compared with
all versions since then, also with those that the clients have made alone.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from threading import BrokenBarrierError
from typing import Any, NamedTuple

import lance
import pyarrow as pa
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.proxied_s3 import ProxiedS3
from committerd_client import SyncCommitClient, staging
from committerd_common.messages import DataFile, Transaction
from harness.kafka import kafka_broker
from harness.lance_table import LanceTable
from harness.places import StorePlace
from harness.scene import Scene
from harness.topics import OUTCOME_PARTITIONS

CLIENTS, ROWS = 6, 20
_PARTITION = OUTCOME_PARTITIONS - 1
"""The partition of the outcomes topic for those of the Appends: the last one.

The clients read the others. A client that reads it parses the outcomes of the flood too, which takes processors.
"""
_HEADERS = [("producer", b"flood"), ("outcome-partition", b"%d" % _PARTITION)]
_PLANNED_A_SECOND = 40
"""How many upserts a client plans for each second in which it commits. It plans more one by one if it needs more."""
_STUCK_SECONDS = 60
"""How long the flood may wait for its next outcome."""
_SETTLED_SECONDS = 2.0
"""So long after the clients or the flood have begun or ended, the others are not measured."""
_LINKS_MAX = 30_000
"""How many links to one file are made: file systems have a maximum."""
_LOOK_SECONDS = 0.05
"""How often the flood asks Kafka how many outcomes there are: seldom, because that takes processors from the others."""
_WAITS = {"KAFKA__FETCH_MAX_WAIT_MS": "500", "STORE__RECHECK_SECONDS": "10"}
"""Defaults that are longer than the scene's: how long the committer may wait before it reads elsewhere in the log, and
how often it looks for versions of other writers, which takes two requests to the store before a put.
"""


def producer_of(partition: int) -> str:
    """A producer name with which a client reads this partition of the outcomes topic."""
    names = (f"client-{number}" for number in itertools.count())
    return next(name for name in names if zlib.crc32(name.encode()) % OUTCOME_PARTITIONS == partition)


@contextmanager
def place_of_table(folder: Path, s3: int | None) -> Iterator[tuple[StorePlace, Path]]:
    """Where the table is, and the folder of its data files on this machine.

    `s3`: the milliseconds that an S3 server adds to each response that the committer gets; None = in `folder`.
    """
    if s3 is None:
        yield StorePlace(str(folder / "table.lance")), folder / "table.lance" / "data"
        return
    with ProxiedS3() as server, server.adding(s3):
        place, direct = server.free_place()
        yield StorePlace(place.uri, direct, place.settings), server.data / place.uri.partition("://")[2] / "data"


def upsert(
    place: StorePlace,
    kafka: str,
    name: str,
    producer: str,
    *,
    planned: int,
    pause: float,
    steps: Any,
    on: Any,
    ended: Any,
    calls: Any,
) -> None:
    """Upsert as this producer while `on` is set, round after round. Puts (began, seconds) of each commit into `calls`.

    A round has two `steps` (a barrier): it begins, and all clients have planned. `ended`, an event, is set before the
    step that begins no round. `planned`: how many upserts to plan for each round. `pause`: seconds to wait after each
    commit. `began` is in monotonic seconds, which all processes share.

    Each upsert brings keys of its own. So it can be planned on the first version, which has a row, and is valid for the
    latest version that the client knows. To plan it there takes the longer the more files the table has.
    """
    options = dict(place.storage_options)
    open_table = partial(lance.dataset, place.uri, storage_options=options)
    first = open_table(version=1)
    keys, version = itertools.count(uuid.uuid4().int >> 70, ROWS), open_table().version
    upserts: list[Transaction] = []

    def plan() -> Transaction:
        start = next(keys)
        return staging.merge_insert(first, pa.table({"id": range(start, start + ROWS)}), on="id").transaction

    def again(_: object) -> Transaction:
        nonlocal version
        version = open_table().version
        change = plan()
        change.read_version = version
        return change

    try:
        with SyncCommitClient(
            kafka, dataset=name, dataset_uri=place.uri, storage_options=options, producer=producer
        ) as client:
            while True:
                steps.wait()
                if ended.is_set():
                    return
                upserts.extend(plan() for _ in range(planned - len(upserts)))
                steps.wait()
                while on.is_set():
                    change = upserts.pop() if upserts else plan()
                    change.read_version = version
                    began = time.monotonic()
                    version = client.commit(change, reexecute=again).version or version
                    calls.put((began, time.monotonic() - began))
                    time.sleep(pause)
    except BaseException:
        steps.abort()
        raise


class Span(NamedTuple):
    """Of a measurement, in monotonic seconds."""

    begin: float
    end: float


class Clients:
    """The clients, in processes of their own, and all calls that they have made."""

    def __init__(self, place: StorePlace, kafka: str, name: str, *, count: int, planned: int, pause: float) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._steps, self._calls = spawned.Barrier(count + 1), spawned.Queue()
        self._on, self._ended = spawned.Event(), spawned.Event()
        self._made: list[tuple[float, float]] = []
        given = place, kafka, name
        shared = {"steps": self._steps, "on": self._on, "ended": self._ended, "calls": self._calls}
        shared |= {"planned": planned, "pause": pause}
        self._running = [
            spawned.Process(target=upsert, args=(*given, producer_of(number % _PARTITION)), kwargs=shared, daemon=True)
            for number in range(count)
        ]
        self._collecting = threading.Thread(target=self._collect)

    def __enter__(self) -> Clients:
        for process in self._running:
            process.start()
        self._collecting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._on.clear()
        self._ended.set()
        if self._are_all_there:
            with suppress(BrokenBarrierError):
                self._steps.wait()
        else:
            self._steps.abort()
        for process in self._running:
            process.join()
        self._calls.put(None)
        self._collecting.join()

    def begin_round(self) -> None:
        """Let the clients plan, then let them commit. Raises `BrokenBarrierError` if a client has failed."""
        self._steps.wait()
        self._on.set()
        self._steps.wait()

    def end_round(self) -> None:
        """Let each client end after the call that it is in. Raises `RuntimeError` if a client has failed."""
        self._on.clear()
        if not self._are_all_there:
            raise RuntimeError("a client has failed: its error is above")

    @property
    def _are_all_there(self) -> bool:
        return not self._steps.broken and all(process.is_alive() for process in self._running)

    def _collect(self) -> None:
        while (call := self._calls.get()) is not None:
            self._made.append(call)

    def of(self, span: Span) -> Calls:
        """The calls that began in it."""
        return Calls(sorted(seconds for began, seconds in self._made if span.begin <= began < span.end))


class Calls(NamedTuple):
    """How long calls took."""

    seconds: list[float]
    """Ascending."""

    def quantile(self, share: float) -> float:
        return self.seconds[int(share * (len(self.seconds) - 1))]

    def __str__(self) -> str:
        if not self.seconds:
            return "no calls"
        p50, p99, slowest = map(self.quantile, (0.5, 0.99, 1))
        return f"{len(self.seconds)} calls, p50 {p50:.3f} s, p99 {p99:.3f} s, slowest {slowest:.3f} s"


def prepared(table: LanceTable, data: Path, count: int, *, files: int, upserts: bool) -> list[bytes]:
    """Appends of so many files of a row each, or upserts of a file and a row. The files are links to a few files.

    `data`: the folder of the table's files on this machine.
    """
    rows, opened = pa.table({"id": table.new_ids(1)}), table.open()
    if upserts:
        one = staging.merge_insert(opened, rows, on="id").transaction
    else:
        fragments = lance.fragment.write_fragments(rows, opened, mode="append", data_storage_version="2.0")
        one = staging.append(fragments, keys=staging.keys_of(opened, "id", rows))
        one.append.fragments.extend([one.append.fragments[0]] * (files - 1))
    made, links = list[bytes](), 0
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


class Flood:
    """Stages records in a thread, while it is on. `waiting`: so many of them have no outcome at most."""

    def __init__(self, kafka: str, name: str, records: Sequence[bytes], *, waiting: int) -> None:
        self._kafka, self._name, self._records, self._waiting = kafka, name, records, waiting
        self._on = threading.Event()
        self._stop = False
        self._began = 0.0
        """When it began last, in monotonic seconds."""
        self._staged = 0
        self._done = [(time.monotonic(), 0)]
        """When Kafka was asked (monotonic seconds), and how many of the records had an outcome then."""
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._on.set()
        self._thread.join()

    @property
    def has_ended(self) -> bool:
        return self._done[-1][1] >= len(self._records)

    def begin(self) -> None:
        self._began = time.monotonic()
        self._on.set()

    def pause(self) -> None:
        """Stage nothing more, and wait for the outcomes of what is staged."""
        self._on.clear()
        while self._done[-1][1] < self._staged:
            self._require_progress()
            time.sleep(_LOOK_SECONDS)

    def during(self, seconds: float) -> Span:
        """Wait for so long, or until every record has an outcome."""
        begin = time.monotonic()
        while time.monotonic() < begin + seconds and not self.has_ended:
            self._require_progress()
            time.sleep(_LOOK_SECONDS)
        return Span(begin, time.monotonic())

    def rate(self, span: Span) -> float:
        """How many records were committed a second in it."""
        looks = [look for look in self._done if span.begin <= look[0] < span.end]
        (first, before), (last, after) = looks[0], looks[-1]
        return (after - before) / (last - first)

    def _require_progress(self) -> None:
        """Raise `RuntimeError` if records are under way, and none has had an outcome for long."""
        if self.has_ended:
            return
        if not self._thread.is_alive():
            raise RuntimeError("the flood has failed: its error is above")
        now, done = self._done[-1]
        changed = next((at for at, before in reversed(self._done) if before < done), 0.0)
        if done < self._staged and now - max(changed, self._began) > _STUCK_SECONDS:
            raise RuntimeError(f"no record of the flood has had an outcome for {_STUCK_SECONDS} s")

    def _run(self) -> None:
        answered = TopicPartition(f"{self._name}.outcomes", _PARTITION)
        consumer: Any = KafkaConsumer(bootstrap_servers=self._kafka)
        producer: Any = KafkaProducer(bootstrap_servers=self._kafka, acks="all", linger_ms=5, batch_size=256 * 1024)
        before = consumer.end_offsets([answered])[answered]
        while not self._stop and not self.has_ended:
            if self._staged <= self._done[-1][1]:  # nothing is under way
                self._on.wait()
            done = consumer.end_offsets([answered])[answered] - before
            self._done.append((time.monotonic(), done))
            if self._on.is_set() and not self._stop:
                for record in self._records[self._staged : done + self._waiting]:
                    producer.send(f"{self._name}.staged", value=record, headers=_HEADERS, partition=0)
                    self._staged += 1
                producer.flush()
            time.sleep(_LOOK_SECONDS)
        producer.close()
        consumer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What was measured in a round."""

    alone: Calls
    """Of the clients."""
    as_it_begins: Calls
    """In the first seconds of the flood."""
    beside: Calls
    """After that."""
    rate_alone: float
    """How many records of the flood were committed a second."""
    rate_beside: float

    @property
    def p99_times(self) -> float:
        return self.beside.quantile(0.99) / self.alone.quantile(0.99)

    @property
    def rate_share(self) -> float:
        return self.rate_beside / self.rate_alone

    def __str__(self) -> str:
        return "\n  ".join(
            (
                f"the clients alone: {self.alone}",
                f"as the flood begins: {self.as_it_begins}",
                f"beside the flood: {self.beside}",
                f"the flood: {self.rate_alone:.0f}/s alone, {self.rate_beside:.0f}/s beside the clients",
                f"p99 {self.p99_times:.1f}x of what it is alone, the flood at {self.rate_share:.2f}x of its own rate",
            )
        )


def measured(clients: Clients, flood: Flood, seconds: float) -> Round | None:
    """Measure each of the three for so long; None if the flood has ended too soon, or a client made no call."""
    clients.begin_round()
    flood.during(_SETTLED_SECONDS)
    alone = flood.during(seconds)
    flood.during(_SETTLED_SECONDS)  # no call that counts as alone ends beside the flood
    flood.begin()
    as_it_begins, beside = flood.during(_SETTLED_SECONDS), flood.during(seconds)
    clients.end_round()
    flood.during(_SETTLED_SECONDS)
    flood_alone = flood.during(seconds)
    flood.pause()
    calls_alone, calls_beside = clients.of(alone), clients.of(beside)
    has_ended_soon = flood_alone.end - flood_alone.begin < seconds / 2
    if has_ended_soon or not calls_alone.seconds or not calls_beside.seconds:
        return None
    return Round(
        alone=calls_alone,
        as_it_begins=clients.of(as_it_begins),
        beside=calls_beside,
        rate_alone=flood.rate(flood_alone),
        rate_beside=flood.rate(beside),
    )


def compared(rounds: Sequence[Round]) -> str:
    """The medians of all rounds, and the p99 of all calls together: too few calls of one round lie beyond its p99."""
    times = sorted(one.p99_times for one in rounds)
    shares = sorted(one.rate_share for one in rounds)
    alone, beside = (_all_of(calls) for calls in ([one.alone for one in rounds], [one.beside for one in rounds]))
    rate = sum(one.rate_beside for one in rounds) / sum(one.rate_alone for one in rounds)
    return (
        f"{len(rounds)} rounds: p99 {median(times):.1f}x of what it is alone ({times[0]:.1f} to {times[-1]:.1f}x), "
        f"the flood at {median(shares):.2f}x of its own rate ({shares[0]:.2f} to {shares[-1]:.2f}x)\n"
        f"all calls together: p99 {beside.quantile(0.99):.3f} s, which is "
        f"{beside.quantile(0.99) / alone.quantile(0.99):.1f}x of what it is alone; the flood at {rate:.2f}x"
    )


def _all_of(calls: Sequence[Calls]) -> Calls:
    return Calls(sorted(one for some in calls for one in some.seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=100_000, help="how many records the flood has")
    parser.add_argument("--waiting", type=int, default=2_000, help="how many of them have no outcome, at most")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long to measure each in a round")
    parser.add_argument("--fragments", type=int, default=0, help="how many fragments the table has at first, about")
    parser.add_argument("--batch", action="store_true", help="the committer knows the producer as a batch producer")
    parser.add_argument("--upserts", action="store_true", help="the flood is of upserts, all planned on one version")
    parser.add_argument("--files", type=int, default=1, help="how many files each Append of the flood has")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="how many processes upsert")
    parser.add_argument("--plan-between", action="store_true", help="the clients plan each upsert between two commits")
    parser.add_argument("--s3", type=int, metavar="MS", help="the table is on S3, with these milliseconds added")
    parser.add_argument("--pause", type=float, default=0.0, help="how many seconds a client waits after each commit")
    given = parser.parse_args()
    planned = 0 if given.plan_between else math.ceil(_PLANNED_A_SECOND * (given.seconds + 2 * _SETTLED_SECONDS))
    with (
        tempfile.TemporaryDirectory() as folder,
        place_of_table(Path(folder), given.s3) as (place, data),
        kafka_broker() as kafka,
    ):
        servers, name = kafka.bootstrap_servers, f"flood-{uuid.uuid4().hex[:8]}"
        with Scene(kafka=servers, name=name, folder=Path(folder), place=place) as scene:
            scene.table.create()
            scene.started(**_WAITS | ({"COMMIT__BATCH_PRODUCERS": "flood"} if given.batch else {}))
            if given.fragments:
                first = prepared(scene.table, data, given.fragments, files=1, upserts=False)
                with Flood(servers, name, first, waiting=given.waiting) as flood:
                    flood.begin()
                    flood.during(math.inf)
            records = prepared(scene.table, data, given.appends, files=given.files, upserts=given.upserts)
            with (
                Clients(place, servers, name, count=given.clients, planned=planned, pause=given.pause) as clients,
                Flood(servers, name, records, waiting=given.waiting) as flood,
            ):
                rounds = list[Round]()
                while not flood.has_ended:
                    if (one := measured(clients, flood, given.seconds)) is not None:
                        rounds.append(one)
                        print(f"round {len(rounds)}\n  {one}", flush=True)
    print(compared(rounds) if rounds else "no round was long enough: give more --appends")


if __name__ == "__main__":
    main()
