"""What all scenarios share: plan, results, files, worker processes, and real parts, which start when first used."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

from kafka import KafkaAdminClient

from bench.plan import Plan
from bench.pool import Pool, make_pool, make_table
from bench.proxied_s3 import ProxiedS3
from bench.proxied_store import ProxiedStore
from bench.results import Results
from bench.workers import Worker
from harness.daemon import Daemon
from harness.kafka import kafka_broker
from harness.places import StorePlace

StoreKind = Literal["s3", "azure", "gcs"]


class Bench:
    """One run of the benchmark. Everything that it starts and writes is removed at its end."""

    def __init__(self, plan: Plan, folder: Path | None, store: StoreKind = "s3") -> None:
        """`folder`: where tables are made, on the file system to measure; by default the temporary folder. `store`:
        the server of the scenario `s3`.
        """
        self.plan = plan
        self._kind = store
        self.results = Results()
        self._parent = folder
        self._began = time.monotonic()
        self._workers: list[Worker] = []
        self._kafka = ""
        self._s3: ProxiedS3 | None = None
        self._pool: Pool | None = None
        self._datasets: list[str] = []

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="committerd-bench-", dir=self._parent))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.callback(self.drop_workers)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tell(self, text: str) -> None:
        """Print progress to standard error."""
        print(f"{time.monotonic() - self._began:6.0f} s  {text}", file=sys.stderr, flush=True)

    @property
    def pool(self) -> Pool:
        """The data files."""
        if self._pool is None:
            self.tell(f"writes {self.plan.files} data files")
            self._pool = make_pool(self.folder, self.plan.files)
        return self._pool

    @property
    def kafka(self) -> str:
        """Bootstrap servers of a real Kafka."""
        if not self._kafka:
            self._kafka = self._stack.enter_context(kafka_broker()).bootstrap_servers
            if "KAFKA_BOOTSTRAP_SERVERS" in os.environ:  # a port that stays the same after a restart
                self._stack.callback(self._remove_topics)
            self.tell("Kafka runs")
        return self._kafka

    def workers(self, count: int) -> list[Worker]:
        """Return this many processes. They are kept for the next caller."""
        if len(self._workers) < count:
            self.tell(f"starts {count - len(self._workers)} worker processes")
        while len(self._workers) < count:
            self._workers.append(Worker())
        return self._workers[:count]

    def drop_workers(self) -> None:
        """End the shared processes: after a failure they may be in the middle of a call."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def new_table(self, ids: Iterable[int] = ()) -> str:
        """Return the URI of a new local table with a schema and rows with these ids.

        The table is deleted at the end of the run and not before: on ext4 without a journal, as small virtual machines
        have it, a new file costs up to ten times as much for a few minutes after many were deleted (`recently_deleted`
        in Linux' fs/ext4/ialloc.c). The next measurement would pay for it.
        """
        uri = self.folder / f"table-{secrets.token_hex(4)}.lance"
        make_table(self.pool, uri, ids=ids)
        return str(uri)

    @property
    def s3(self) -> ProxiedS3:
        """A real S3 server with adjustable latency; it is removed at the end of the run, as tables are."""
        if self._s3 is None:
            self._s3 = self._stack.enter_context(ProxiedS3())
        return self._s3

    @functools.cached_property
    def store(self) -> ProxiedStore:
        """The server of the scenario `s3`; as `s3`."""
        if self._kind == "s3":
            return self.s3
        from bench.proxied_cloud import ProxiedCloud

        return self._stack.enter_context(ProxiedCloud(self._kind))

    def daemon(self, place: StorePlace, *, durable: bool, kafka: str | None = None, **settings: str) -> Daemon:
        """`committerd run` for a table, not started; its log is removed at the end of the run. `kafka`: None = the
        Kafka of all scenarios.
        """
        name = f"bench-{secrets.token_hex(4)}"
        self._datasets.append(name)
        return Daemon(
            name=name,
            uri=place.uri,
            kafka=kafka or self.kafka,
            settings={**place.settings, "STORE__DURABLE": str(durable).lower(), **settings},
            log=self.folder / f"{name}.log",
        )

    def queue(self, daemon: Daemon, uri: str) -> dict[str, Any]:
        """The arguments with which a worker process commits through this daemon's queue, to the daemon's table."""
        return {"pool": self.pool, "servers": self.kafka, "dataset": dataset_of(daemon), "uri": uri}

    def queue_of(self, daemon: Daemon, place: StorePlace) -> dict[str, Any]:
        """As `queue`, for workers that read and write the table too."""
        return {**self.queue(daemon, place.uri), "storage_options": dict(place.storage_options) or None}

    def _remove_topics(self) -> None:
        admin: Any = KafkaAdminClient(bootstrap_servers=self._kafka)
        wanted = {f"{name}.{role}" for name in self._datasets for role in ("staged", "outcomes", "dead")}
        admin.delete_topics(sorted(wanted & set(admin.list_topics())))
        admin.close()


def dataset_of(daemon: Daemon) -> str:
    """The name of its dataset, which names the topics."""
    return daemon.environment["COMMITTERD_DATASET__NAME"]


def mode(durable: bool) -> str:
    """The part of a case's name that says whether writes are durable."""
    return "durable" if durable else "not durable"
