"""The steps of the demo."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from committerd.errors import CommitterError
from harness import PartMissingError
from harness.daemon import Daemon
from harness.java import INSTALL_JDK, jdk
from harness.kafka import KafkaBroker, kafka_broker
from harness.places import StorePlace
from scripts.demo.fleet import DemoFailed, Fleet
from scripts.demo.member import Job
from scripts.demo.report import APPENDS_ANSWERED, Measured, Metric, Wanted, checks, summary
from scripts.demo.rows import all_rows, changed_rows, differences
from scripts.demo.screen import Screen
from scripts.demo.store import start_store

AGAIN_EVERY = 20
"""Of this many Appends of a producer, one is sent once more."""

CHANGES = 5
"""Upserts, each followed by a delete."""
MICRO_BATCHES = 10
FRAGMENTS_MIN = 10
"""The least number of fragments that are compacted."""

METRICS = (
    *APPENDS_ANSWERED,
    Metric(name="committerd_republished_answers_total"),
    Metric(name="committerd_conflicts_total"),
    Metric(name="committerd_commit_attempts_total"),
    Metric(name="committerd_refusal_only_versions_total"),
    Metric(name="committerd_holds_total"),
    Metric(name="committerd_table_version"),
)
"""The metrics that are shown."""
_METRICS_SECONDS_MAX = 5.0
_GRACE_SECONDS = 3.0
_KAFKA_MS_MAX = 5_000

SignalsHeldOff = Callable[[], AbstractContextManager[None]]


def run(chosen: argparse.Namespace, signals_held_off_afterwards: SignalsHeldOff) -> int:
    """Return the exit code. Everything that was started is stopped before this returns, whatever happens."""
    screen = Screen()
    with ExitStack() as cleanup:
        folder = cleanup.enter_context(work_folder(keep=chosen.keep))
        logging.basicConfig(filename=folder / "demo.log")  # of the libraries; the screen belongs to the demo
        with signals_held_off_afterwards():
            try:
                Demo(chosen, screen=screen, folder=folder, cleanup=cleanup).run()
            except DemoFailed as error:
                screen.leave()
                print(f"\nFailed: {error}", file=sys.stderr)
                return 1
            finally:
                screen.leave()
                if chosen.keep:
                    screen.line(f"{'Table and logs' if chosen.store == 'local' else 'Logs'} are kept in {folder}")
    return 0


@contextlib.contextmanager
def work_folder(*, keep: bool) -> Iterator[Path]:
    """A folder for all that is written: table, logs, and temporary files of others."""
    with ExitStack() as cleanup:
        prefix = "committerd-demo-"
        if keep:
            made = tempfile.mkdtemp(prefix=prefix)
        else:
            made = cleanup.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
        tempfile.tempdir = made
        yield Path(made)


def admin_client(bootstrap_servers: str) -> Any:
    """Connect an admin client. Raises `KafkaError` if Kafka does not respond."""
    return KafkaAdminClient(bootstrap_servers=bootstrap_servers, bootstrap_timeout_ms=_KAFKA_MS_MAX)


class Demo:
    """One run. `cleanup` ends everything that it starts, in the opposite order."""

    def __init__(self, chosen: argparse.Namespace, *, screen: Screen, folder: Path, cleanup: ExitStack) -> None:
        self._rows_each: int = chosen.rows
        self._keep: bool = chosen.keep
        self._screen = screen
        self._folder = folder
        self._cleanup = cleanup
        # A fresh name, so that demos that share a Kafka don't meet.
        self._name = f"demo-{secrets.token_hex(4)}"
        self._store: str = chosen.store
        self._place = StorePlace(str(folder / "demo.lance"))
        each, more = divmod(chosen.appends, chosen.producers)
        self._appends = [each + (number < more) for number in range(chosen.producers)]
        again = sum(len(range(0, appends, AGAIN_EVERY)) for appends in self._appends)
        beside = not chosen.appends_only
        self._wanted = Wanted(
            appends=chosen.appends,
            again=again,
            changes=CHANGES if beside else 0,
            micro_batches=MICRO_BATCHES if beside else 0,
            # Fewer Appends may leave too few fragments.
            compactions=1 if beside and chosen.appends >= 2 * FRAGMENTS_MIN else 0,
        )

    def run(self) -> None:
        """Run all steps. Raises `DemoFailed` if something is wrong."""
        if self._wanted.micro_batches:
            self._find_spark()
        bootstrap_servers = self._start_kafka()
        if self._store != "local":
            self._place = start_store(self._store, self._screen, self._cleanup)
        daemon = self._start_daemon(bootstrap_servers)
        fleet = self._start_producers(bootstrap_servers, daemon)
        seconds = self._commit(fleet, daemon)
        url, metrics = self._scrape(fleet, daemon)
        self._stop(daemon)
        versions, wrong = self._read_table()
        measured = Measured(
            answers=list(fleet.answers()),
            refusals=list(fleet.refusals()),
            seconds=seconds,
            versions=versions,
            metrics=metrics,
            wanted=self._wanted,
            rows_wrong=wrong,
        )
        self._report(measured, url)

    def _find_spark(self) -> None:
        """Leave out Spark's stream where there is no Java that runs Spark."""
        try:
            jdk("Spark", install=INSTALL_JDK)
        except PartMissingError as error:
            self._wanted = dataclasses.replace(self._wanted, micro_batches=0)
            self._screen.line(f"Without Spark's stream: {error}")

    def _start_kafka(self) -> str:
        given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
        self._screen.step(f"Using Apache Kafka at {given}" if given else "Starting Apache Kafka in a child JVM")
        try:
            kafka = self._cleanup.enter_context(kafka_broker())
        except (
            CommitterError,
            RuntimeError,
        ) as error:  # Java is missing, or Kafka did not start; the message says which
            raise DemoFailed(str(error)) from error
        if isinstance(kafka, KafkaBroker):
            self._cleanup.callback(kafka.kill)  # its data is deleted anyway
        else:
            try:
                admin_client(kafka.bootstrap_servers).close()
            except KafkaError as error:
                raise DemoFailed(f"no Kafka responds at KAFKA_BOOTSTRAP_SERVERS={given}: {error}") from error
            self._cleanup.callback(self._remove_topics, kafka.bootstrap_servers)
        self._screen.done(f"it responds at {kafka.bootstrap_servers}")
        return kafka.bootstrap_servers

    def _remove_topics(self, bootstrap_servers: str) -> None:
        """Remove this run's topics from a Kafka that keeps running."""
        try:
            with contextlib.closing(admin_client(bootstrap_servers)) as admin:
                topics = [topic for topic in admin.list_topics() if topic.startswith(f"{self._name}.")]
                groups = [one["group_id"] for one in admin.list_groups() if one["group_id"].endswith(f".{self._name}")]
                if topics:
                    admin.delete_topics(topics)
                if groups:
                    admin.delete_groups(groups)
        except KafkaError as error:
            self._screen.line(f"Topics {self._name}.* and their group may be left in Kafka: {error}")

    def _start_daemon(self, bootstrap_servers: str) -> Daemon:
        self._screen.step(f"Starting committerd for dataset {self._name}")
        log = self._folder / "committerd.log"
        daemon = Daemon(
            name=self._name, uri=self._place.uri, kafka=bootstrap_servers, settings=self._place.settings, log=log
        )
        # Not killed even after Ctrl-C: it leaves its consumer group if it has the time.
        self._cleanup.callback(daemon.stop, grace_seconds=_GRACE_SECONDS)
        daemon.start()
        try:
            reason = daemon.wait_ready()
        except AssertionError as error:  # it ended, or was not ready in time; its log is in the message
            raise DemoFailed(str(error)) from error
        self._screen.done(f"/readyz: {reason}")
        return daemon

    def _start_producers(self, bootstrap_servers: str, daemon: Daemon) -> Fleet:
        count = len(self._work())
        spark = ", and Spark" if self._wanted.micro_batches else ""
        self._screen.step(
            f"Starting {len(self._appends)} producers, a process each{spark}; the first creates the table through the "
            "queue"
        )
        jobs = [
            Job(
                work=work,
                bootstrap_servers=bootstrap_servers,
                dataset=self._name,
                uri=self._place.uri,
                number=number,
                count=units,
                rows=self._rows_each,
                folder=str(self._folder / f"{work}-{number}"),
                again_every=AGAIN_EVERY,
            )
            for number, (work, units) in enumerate(self._work(), start=1)
        ]
        fleet = Fleet(jobs, self._folder, self._place.storage_options)
        self._cleanup.callback(fleet.kill)
        fleet.start()

        def look(ready: int) -> None:
            self._must_run(daemon)
            self._screen.progress(f"{ready} of {count} are ready")

        fleet.wait_ready(look)
        (created,) = fleet.answers()
        self._screen.done(f"all are ready, and the table is there: create {created.status}, version {created.version}")
        return fleet

    def _work(self) -> list[tuple[str, int]]:
        """Program and number of units of each writer; the writer's number is its index."""
        wanted = self._wanted
        beside = {"changes": wanted.changes, "spark": wanted.micro_batches}
        if wanted.compactions:
            beside["compaction"] = FRAGMENTS_MIN
        return [("producer", appends) for appends in self._appends] + [one for one in beside.items() if one[1]]

    def _commit(self, fleet: Fleet, daemon: Daemon) -> float:
        """Return the seconds from the first data file to the outcome of the last Append."""
        wanted = self._wanted
        total = wanted.answers
        self._screen.step(
            f"{len(self._appends)} producers write {wanted.appends:,} x {self._rows_each:,} rows, stage the "
            f"appends and wait for their outcomes; {wanted.again:,} are staged once more"
        )
        if wanted.changes:
            self._screen.line(
                f"    beside them {wanted.changes} upserts and {wanted.changes} deletes"
                f"{f', a Spark stream of {wanted.micro_batches} micro-batches' if wanted.micro_batches else ''}"
                f"{', and a compaction' if wanted.compactions else ''}"
            )
        began = time.monotonic()
        fleet.go()

        def look(answered: int) -> None:
            self._must_run(daemon)
            answered -= 1  # the create
            rate = answered / (time.monotonic() - began)
            self._screen.progress(f"{answered:,} of {total:,} answered, {rate:,.0f}/s")

        fleet.wait_done(look)
        self._screen.done(f"{len(list(fleet.answers())) - 1:,} of {total:,} answered")
        return max((answer.at for answer in fleet.answers() if answer.kind == "append"), default=began) - began

    def _scrape(self, fleet: Fleet, daemon: Daemon) -> tuple[str, dict[Metric, float]]:
        """Return address and values of the metrics; an outcome may be published a moment before it is counted."""
        url = f"{daemon.url()}/metrics"
        self._screen.step(f"Reading {url}")
        deadline = time.monotonic() + _METRICS_SECONDS_MAX
        told = sum(answer.is_append for answer in fleet.answers())
        while True:
            values = {metric: daemon.metric(metric.name, **metric.labels) for metric in METRICS}
            counted = sum(values[metric] for metric in APPENDS_ANSWERED)
            if counted >= told or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self._screen.done(f"{counted:,.0f} answers to appends counted")
        return url, values

    def _stop(self, daemon: Daemon) -> None:
        self._screen.step("Stopping committerd with SIGTERM")
        daemon.stop()
        if daemon.code != 0:
            raise DemoFailed(f"committerd ended with code {daemon.code}, and not 0, after SIGTERM")
        self._screen.done("drained and ended")

    def _read_table(self) -> tuple[int, dict[str, int]]:
        """Return the number of versions of the table, and its wrong rows."""
        self._screen.step(f"Reading the table with pylance {lance.__version__}")
        table = lance.dataset(self._place.uri, storage_options=dict(self._place.storage_options))
        found = table.to_table()
        wrong = differences(found, self._expected())
        self._screen.done(
            f"{found.num_rows:,} rows in {len(table.get_fragments()):,} fragments at version {table.version}"
        )
        return table.version, wrong

    def _expected(self) -> pa.Table:
        """All rows that the table must have in the end."""
        work = dict(enumerate(self._work(), start=1))
        appended = {number: units for number, (name, units) in work.items() if name in ("producer", "spark")}
        changed = [changed_rows(number, units) for number, (name, units) in work.items() if name == "changes"]
        return pa.concat_tables([all_rows(appended, self._rows_each), *changed])

    def _report(self, measured: Measured, url: str) -> None:
        """Print everything. Raises `DemoFailed` if a check fails."""
        screen = self._screen
        screen.line()
        screen.table(summary(measured))
        screen.line()
        screen.line(f"  Metrics were at {url}, among them:")
        for metric, value in measured.metrics.items():
            screen.line(f"    {metric} {value:g}")
        screen.line()
        removed = " (removed at the end; --keep keeps it)" if self._store == "local" else " (removed at the end)"
        kept = self._keep and self._store == "local"
        screen.line(f"  The table: {self._place.uri}{'' if kept else removed}")
        screen.line()
        results = checks(measured)
        for text, good in results:
            screen.line(f"  {'ok    ' if good else 'FAILED'} {text}")
        for refusal in measured.refusals[:3]:
            screen.line(f"         {refusal.kind}: {refusal.name} ({refusal.code}): {refusal.message}")
        failed = [text for text, good in results if not good]
        if failed:
            raise DemoFailed(f"{len(failed)} of {len(results)} checks failed: {'; '.join(failed)}")

    def _must_run(self, daemon: Daemon) -> None:
        if not daemon.running():
            tail = "\n".join(daemon.log.read_text(errors="replace").splitlines()[-30:])
            raise DemoFailed(f"committerd has ended with code {daemon.code}; the end of its log:\n{tail}")
