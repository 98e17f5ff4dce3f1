"""What the demo does, step by step."""

from __future__ import annotations

import argparse
import contextlib
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
from demo_fleet import DemoFailed, Fleet
from demo_producer import Job
from demo_report import Measured, Metric, checks, summary
from demo_rows import all_rows, differences
from demo_screen import Screen
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from tests.parts.daemon import Daemon
from tests.parts.kafka import KafkaBroker, kafka_broker

AGAIN_EVERY = 20
"""Every so many appends of a producer, one is sent once more."""

METRICS = (
    Metric(name="committerd_transactions_total", labels={"outcome": "committed"}),
    Metric(name="committerd_transactions_total", labels={"outcome": "duplicate"}),
    Metric(name="committerd_republished_answers_total"),
    Metric(name="committerd_conflicts_total"),
    Metric(name="committerd_commit_attempts_total"),
    Metric(name="committerd_refusal_only_versions_total"),
    Metric(name="committerd_table_version"),
)
"""What is shown of /metrics."""
_METRICS_SECONDS_MAX = 5.0
_GRACE_SECONDS = 3.0
_KAFKA_MS_MAX = 5_000

SignalsHeldOff = Callable[[], AbstractContextManager[None]]


def run(chosen: argparse.Namespace, signals_held_off_afterwards: SignalsHeldOff) -> int:
    """The exit code. Whatever happens, all that was started is stopped before this returns."""
    screen = Screen()
    with ExitStack() as cleanup:
        folder = cleanup.enter_context(work_folder(keep=chosen.keep))
        logging.basicConfig(filename=folder / "demo.log")  # of the libraries; the screen is ours
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
                    screen.line(f"Table and logs are kept in {folder}")
    return 0


@contextlib.contextmanager
def work_folder(*, keep: bool) -> Iterator[Path]:
    """For all that is written: table, logs, and what others put into a temporary folder."""
    with ExitStack() as cleanup:
        prefix = "committerd-demo-"
        if keep:
            made = tempfile.mkdtemp(prefix=prefix)
        else:
            made = cleanup.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
        tempfile.tempdir = made
        yield Path(made)


def admin_client(bootstrap_servers: str) -> Any:
    """Connected. Raises `KafkaError` when nobody answers."""
    return KafkaAdminClient(bootstrap_servers=bootstrap_servers, bootstrap_timeout_ms=_KAFKA_MS_MAX)


class Demo:
    """One run. What it starts ends with `cleanup`, in the opposite order."""

    def __init__(self, chosen: argparse.Namespace, *, screen: Screen, folder: Path, cleanup: ExitStack) -> None:
        self._rows_each: int = chosen.rows
        self._keep: bool = chosen.keep
        self._screen = screen
        self._folder = folder
        self._cleanup = cleanup
        # A fresh name: demos that share a Kafka don't meet.
        self._name = f"demo-{secrets.token_hex(4)}"
        self._uri = str(folder / "demo.lance")
        each, more = divmod(chosen.appends, chosen.producers)
        self._appends = [each + (number < more) for number in range(chosen.producers)]
        self._again = sum(len(range(0, appends, AGAIN_EVERY)) for appends in self._appends)

    def run(self) -> None:
        """Raises `DemoFailed` when something is not as it must be."""
        bootstrap_servers = self._start_kafka()
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
            appends_wanted=sum(self._appends),
            again_wanted=self._again,
            rows_wrong=wrong,
        )
        self._report(measured, url)

    def _start_kafka(self) -> str:
        given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
        self._screen.step(f"Using Apache Kafka at {given}" if given else "Starting Apache Kafka in a child JVM")
        try:
            kafka = self._cleanup.enter_context(kafka_broker())
        except RuntimeError as error:  # Java is missing, or Kafka did not start; the message says which
            raise DemoFailed(str(error)) from error
        if isinstance(kafka, KafkaBroker):
            self._cleanup.callback(kafka.kill)  # its data goes anyway
        else:
            try:
                admin_client(kafka.bootstrap_servers).close()
            except KafkaError as error:
                raise DemoFailed(f"no Kafka answers at KAFKA_BOOTSTRAP_SERVERS={given}: {error}") from error
            self._cleanup.callback(self._remove_topics, kafka.bootstrap_servers)
        self._screen.done(f"it answers at {kafka.bootstrap_servers}")
        return kafka.bootstrap_servers

    def _remove_topics(self, bootstrap_servers: str) -> None:
        """From a Kafka that goes on running: what this run has left there."""
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
        daemon = Daemon(name=self._name, uri=self._uri, kafka=bootstrap_servers, log=log)
        # Not killed even after Ctrl-C: it leaves its consumer group when it has the time to.
        self._cleanup.callback(daemon.stop, grace_seconds=_GRACE_SECONDS)
        daemon.start()
        try:
            reason = daemon.wait_ready()
        except AssertionError as error:  # it ended, or is not ready in time; its log is in the message
            raise DemoFailed(str(error)) from error
        self._screen.done(f"/readyz: {reason}")
        return daemon

    def _start_producers(self, bootstrap_servers: str, daemon: Daemon) -> Fleet:
        count = len(self._appends)
        self._screen.step(f"Starting {count} producers, a process each; the first creates the table through the queue")
        jobs = [
            Job(
                bootstrap_servers=bootstrap_servers,
                dataset=self._name,
                uri=self._uri,
                number=number,
                appends=appends,
                rows=self._rows_each,
                again_every=AGAIN_EVERY,
            )
            for number, appends in enumerate(self._appends, start=1)
        ]
        fleet = Fleet(jobs, self._folder)
        self._cleanup.callback(fleet.kill)
        fleet.start()

        def look(ready: int) -> None:
            self._must_run(daemon)
            self._screen.progress(f"{ready} of {count} are ready")

        fleet.wait_ready(look)
        (created,) = fleet.answers()
        self._screen.done(f"all are ready, and the table is there: create {created.status}, version {created.version}")
        return fleet

    def _commit(self, fleet: Fleet, daemon: Daemon) -> float:
        """Seconds from the first data file until the last append was answered."""
        total = sum(self._appends) + self._again
        self._screen.step(
            f"{len(self._appends)} producers write {sum(self._appends):,} x {self._rows_each:,} rows, stage the "
            f"appends and wait for their outcomes; {self._again:,} are staged once more"
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
        """Address and values of the metrics; an outcome may be published a moment before it is counted."""
        url = f"{daemon.url()}/metrics"
        self._screen.step(f"Reading {url}")
        deadline = time.monotonic() + _METRICS_SECONDS_MAX
        told = len(list(fleet.answers()))
        while True:
            values = {metric: daemon.metric(metric.name, **metric.labels) for metric in METRICS}
            counted = sum(value for metric, value in values.items() if "outcome" in metric.labels)
            if counted >= told or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self._screen.done(f"{counted:,.0f} outcomes counted")
        return url, values

    def _stop(self, daemon: Daemon) -> None:
        self._screen.step("Stopping committerd with SIGTERM")
        daemon.stop()
        if daemon.code != 0:
            raise DemoFailed(f"committerd ended with code {daemon.code}, and not 0, after SIGTERM")
        self._screen.done("drained and ended")

    def _read_table(self) -> tuple[int, dict[str, int]]:
        """How many versions it has, and what is wrong with its rows."""
        self._screen.step(f"Reading the table with pylance {lance.__version__}")
        table = lance.dataset(self._uri)
        found = table.to_table()
        wrong = differences(found, all_rows(self._appends, self._rows_each))
        self._screen.done(
            f"{found.num_rows:,} rows in {len(table.get_fragments()):,} fragments at version {table.version}"
        )
        return table.version, wrong

    def _report(self, measured: Measured, url: str) -> None:
        """Show it all. Raises `DemoFailed` when a check fails."""
        screen = self._screen
        screen.line()
        screen.table(summary(measured))
        screen.line()
        screen.line(f"  Metrics were at {url}, among them:")
        for metric, value in measured.metrics.items():
            screen.line(f"    {metric} {value:g}")
        screen.line()
        screen.line(f"  The table: {self._uri}{'' if self._keep else ' (removed at the end; --keep keeps it)'}")
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
