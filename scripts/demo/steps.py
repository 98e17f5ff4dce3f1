"""The steps of the demo."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
from scripts.demo.report import BESIDE, Expected, Measured, checks, summary
from scripts.demo.rows import all_rows, changed_rows, differences
from scripts.demo.screen import Screen
from scripts.demo.store import start_store
from scripts.demo.writers import Job

AGAIN_EVERY = 20
"""Of this many Appends of a producer, one is sent once more."""

CHANGES = 5
"""Upserts, each followed by a delete."""
MICRO_BATCHES = 10
FRAGMENTS_MIN = 10
"""The least number of fragments that are compacted."""

METRICS = (
    "committerd_republished_answers_total",
    "committerd_conflicts_total",
    "committerd_commit_attempts_total",
    "committerd_refusal_only_versions_total",
    "committerd_holds_total",
    "committerd_table_version",
)
"""The metrics that are shown, with the count of outcomes of Appends."""
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
        self._chosen, self._screen, self._folder, self._cleanup = chosen, screen, folder, cleanup
        # A fresh name, so that demos that share a Kafka don't meet.
        self._name = f"demo-{secrets.token_hex(4)}"
        self._place = StorePlace(str(folder / "demo.lance"))
        each, more = divmod(chosen.appends, chosen.producers)
        appends = [each + (number < more) for number in range(chosen.producers)]
        beside = {} if chosen.appends_only else self._find_work()
        self._work = [*(("producer", count) for count in appends), *beside.items()]
        """Kind and number of units of each writer; its number is its place, from 1."""
        outcomes = {
            "upsert": beside.get("changes", 0),
            "delete": beside.get("changes", 0),
            "micro-batch": beside.get("spark", 0),
            "compaction": int("compaction" in beside),
        }
        self._expected = Expected(
            appends=chosen.appends,
            again=sum(len(range(0, count, AGAIN_EVERY)) for count in appends),
            beside={kind: count for kind, count in outcomes.items() if count},
        )

    def _find_work(self) -> dict[str, int]:
        """What is done beside the Appends: no Spark stream where there is no Java that runs Spark."""
        work = {"changes": CHANGES, "spark": MICRO_BATCHES}
        try:
            jdk("Spark", install=INSTALL_JDK)
        except PartMissingError as error:
            del work["spark"]
            self._screen.line(f"Without Spark's stream: {error}")
        # Fewer Appends may leave too few fragments.
        return work | ({"compaction": FRAGMENTS_MIN} if self._chosen.appends >= 2 * FRAGMENTS_MIN else {})

    def run(self) -> None:
        """Run all steps. Raises `DemoFailed` if something is wrong."""
        bootstrap_servers = self._start_kafka()
        if self._chosen.store != "local":
            self._place = start_store(self._chosen.store, self._screen, self._cleanup)
        daemon = self._start_daemon(bootstrap_servers)
        fleet = self._start_writers(bootstrap_servers, daemon)
        seconds = self._commit(fleet, daemon)
        counted, metrics = self._read_metrics(fleet, daemon)
        self._stop(daemon)
        versions, wrong = self._read_table()
        measured = Measured(
            outcomes=fleet.outcomes(),
            seconds=seconds,
            versions=versions,
            appends_counted=counted,
            expected=self._expected,
            rows_wrong=wrong,
        )
        self._report(measured, metrics)

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

    def _start_writers(self, bootstrap_servers: str, daemon: Daemon) -> Fleet:
        spark = ", and Spark" if ("spark", MICRO_BATCHES) in self._work else ""
        self._screen.step(
            f"Starting {self._chosen.producers} producers, a process each{spark}; the first creates the table through "
            "the queue"
        )
        jobs = [
            Job(
                work=work,
                bootstrap_servers=bootstrap_servers,
                dataset=self._name,
                uri=self._place.uri,
                number=number,
                count=units,
                rows=self._chosen.rows,
                folder=str(self._folder / f"{work}-{number}"),
                again_every=AGAIN_EVERY,
            )
            for number, (work, units) in enumerate(self._work, start=1)
        ]
        fleet = Fleet(jobs, self._folder, self._place.storage_options)
        self._cleanup.callback(fleet.kill)
        fleet.start()

        def look(ready: int) -> None:
            self._must_run(daemon)
            self._screen.progress(f"{ready} of {len(jobs)} are ready")

        fleet.wait_ready(look)
        (created,) = fleet.outcomes()
        self._screen.done(f"all are ready, and the table is there: create {created.status}, version {created.version}")
        return fleet

    def _commit(self, fleet: Fleet, daemon: Daemon) -> float:
        """Return the seconds from the first data file to the outcome of the last Append."""
        expected = self._expected
        self._screen.step(
            f"{self._chosen.producers} producers write {expected.appends:,} x {self._chosen.rows:,} rows, stage the "
            f"appends and wait for their outcomes; {expected.again:,} are staged once more"
        )
        if expected.beside:
            beside = ", ".join(f"{count} {BESIDE[kind]}" for kind, count in expected.beside.items())
            self._screen.line(f"    beside them {beside}")
        began = time.monotonic()
        fleet.go()

        def look(answered: int) -> None:
            self._must_run(daemon)
            answered -= 1  # the create
            rate = answered / (time.monotonic() - began)
            self._screen.progress(f"{answered:,} of {expected.outcomes:,} answered, {rate:,.0f}/s")

        fleet.wait_done(look)
        self._screen.done(f"{len(fleet.outcomes()) - 1:,} of {expected.outcomes:,} answered")
        ends = [one.at for one in fleet.outcomes() if one.kind == "append" and not one.refused]
        return max(ends, default=began) - began

    def _read_metrics(self, fleet: Fleet, daemon: Daemon) -> tuple[float, list[str]]:
        """Return the outcomes of Appends that were counted, and lines with all metrics to show.

        An outcome may be published a moment before it is counted.
        """
        url = f"{daemon.url()}/metrics"
        self._screen.step(f"Reading {url}")
        deadline = time.monotonic() + _METRICS_SECONDS_MAX
        told = sum(one.is_append for one in fleet.outcomes())
        while True:
            counts = {
                outcome: daemon.metric("committerd_transactions_total", operation="append", outcome=outcome)
                for outcome in ("committed", "duplicate")
            }
            counted = sum(counts.values())
            if counted >= told or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self._screen.done(f"{counted:,.0f} answers to appends counted")
        return counted, [
            f"Metrics were at {url}, among them:",
            *(
                f'  committerd_transactions_total{{operation="append",outcome="{outcome}"}} {count:g}'
                for outcome, count in counts.items()
            ),
            *(f"  {name} {daemon.metric(name):g}" for name in METRICS),
        ]

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
        wrong = differences(found, self._expected_rows())
        self._screen.done(
            f"{found.num_rows:,} rows in {len(table.get_fragments()):,} fragments at version {table.version}"
        )
        return table.version, wrong

    def _expected_rows(self) -> pa.Table:
        """All rows that the table must have in the end."""
        work = dict(enumerate(self._work, start=1))
        appended = {number: units for number, (name, units) in work.items() if name in ("producer", "spark")}
        changed = [changed_rows(number, units) for number, (name, units) in work.items() if name == "changes"]
        return pa.concat_tables([all_rows(appended, self._chosen.rows), *changed])

    def _report(self, measured: Measured, metrics: Sequence[str]) -> None:
        """Print everything. Raises `DemoFailed` if a check fails."""
        screen = self._screen
        screen.line()
        screen.table(summary(measured))
        screen.line()
        for line in metrics:
            screen.line(f"  {line}")
        screen.line()
        removed = " (removed at the end; --keep keeps it)" if self._chosen.store == "local" else " (removed at the end)"
        kept = self._chosen.keep and self._chosen.store == "local"
        screen.line(f"  The table: {self._place.uri}{'' if kept else removed}")
        screen.line()
        results = checks(measured)
        for text, good in results:
            screen.line(f"  {'ok    ' if good else 'FAILED'} {text}")
        for one in [one for one in measured.outcomes if one.refused][:3]:
            screen.line(f"         {one.kind}: {one.status} ({one.code}): {one.message}")
        failed = [text for text, good in results if not good]
        if failed:
            raise DemoFailed(f"{len(failed)} of {len(results)} checks failed: {'; '.join(failed)}")

    def _must_run(self, daemon: Daemon) -> None:
        if not daemon.running():
            tail = "\n".join(daemon.log.read_text(errors="replace").splitlines()[-30:])
            raise DemoFailed(f"committerd has ended with code {daemon.code}; the end of its log:\n{tail}")
