"""`committerd dev`: a broker, the topics and the committer of one table, in one process tree, for a laptop."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import anyio
import click

from committerd.commands.committing import stores_and_queue, world
from committerd.commands.options import config_option, json_option
from committerd.commands.run import commit_until_stopped
from committerd.commands.surroundings import monotonic
from committerd.committer import operate
from committerd.committer.loading import Loading
from committerd.daemon import logs
from committerd.dev import broker
from committerd.dev.broker import Broker
from committerd.dev.brokers import BrokerKind, choose
from committerd.dev.parts import cache_folder, free_port
from committerd.dev.screen import Facts, Screen
from committerd.errors import CommitterError, SettingsError
from committerd.kafka.operator import open_operator
from committerd.settings.load import Settings, load_settings
from committerd.table.versions import Table
from committerd_common.uris import canonical_uri, dataset_name

_METRICS_PORT = 9464
_SESSION_TIMEOUT_MS = 3_000
"""How long a committer that was killed delays the next one."""
_WATCH_SECONDS = 0.5


@click.command()
@click.argument("uri")
@click.option("--name", help="Name of the dataset; by default the last part of the URI, without .lance.")
@click.option(
    "--broker",
    "chosen",
    type=click.Choice([kind.value for kind in BrokerKind]),
    help="Which Kafka: given (KAFKA_BOOTSTRAP_SERVERS), home (the unpacked one in KAFKA_HOME), docker (apache/kafka), "
    "own (Apache Kafka, downloaded once). By default the first of these that there is.",
)
@click.option("--fresh", is_flag=True, help="Delete the queue that was kept, and begin a new one. The table stays.")
@config_option
@json_option
def dev(uri: str, name: str | None, chosen: str | None, fresh: bool, as_json: bool) -> None:
    """Run all that one table needs on this machine, until Ctrl-C: Kafka, its topics, the committer, /metrics.

    URI is a path, or s3://bucket/path with credentials from the environment. The table need not exist. The command
    prints the lines to paste into Python and Spark, and a line for each version that is committed.

    Kafka's data is kept in the cache folder (COMMITTERD_CACHE, by default ~/.cache/committerd), so the same command
    picks up where it left off. Ports are 9092 and 9464, or others if these are taken. All other settings are those of
    `committerd run`. The extra `dev` runs Kafka on a machine without
    Java and Docker.

    Not for production: the Kafka has one node, and nothing is encrypted.
    """
    uri = uri if "://" in uri or uri.startswith("file:") else str(Path(uri).absolute())
    dataset = name or dataset_name(uri)
    screen = Screen(click.echo, uri=uri, as_json=as_json)
    _load(uri, dataset, 0)  # raises for wrong settings before anything is started
    _end_at_signals()
    try:
        with (
            _own_folder(uri, dataset) as folder,
            _metrics_port(folder.parent) as port,
            _kafka(chosen, folder, fresh=fresh, screen=screen) as kafka,
        ):
            failed = _run(_load(uri, dataset, port, kafka), kafka, folder, fresh=fresh, screen=screen)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    if failed:
        raise CommitterError(failed, code="part_failed")


def _load(uri: str, dataset: str, port: int, kafka: Broker | None = None) -> Settings:
    connection: dict[str, object] = {"bootstrap_servers": kafka.bootstrap_servers if kafka else "localhost:9092"}
    if kafka is not None and kafka.log is not None:  # started here, so it allows shorter sessions
        connection["session_timeout_ms"] = _SESSION_TIMEOUT_MS
    return load_settings(
        dataset={"name": dataset, "uri": uri},
        kafka=connection,
        http={"host": "127.0.0.1", "port": port},
    )


@contextlib.contextmanager
def _own_folder(uri: str, dataset: str) -> Iterator[Path]:
    """The folder in the cache for all that is kept of this table. Raises `CommitterError` if another process has it."""
    digest = hashlib.sha256(canonical_uri(uri).encode()).hexdigest()[:8]
    folder = cache_folder() / "dev" / f"{dataset}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock") as holder:
        if holder:
            raise CommitterError(f"`committerd dev` runs already for {uri}, in process {holder}", code="runs_already")
        yield folder


@contextlib.contextmanager
def _metrics_port(folder: Path) -> Iterator[int]:
    """The usual port, or a free one if another process has that, or another `committerd dev` is about to take it."""
    with _locked(folder / f"{_METRICS_PORT}.lock") as holder:
        yield free_port() if holder else free_port(_METRICS_PORT)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[str]:
    """Lock a file for the block. Returns the number of the process that has it, empty if it is this one now."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            yield file.read() or "unknown"
            return
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield ""


@contextlib.contextmanager
def _kafka(chosen: str | None, folder: Path, *, fresh: bool, screen: Screen) -> Iterator[Broker]:
    found = broker.look_around()
    kind = BrokerKind(chosen) if chosen else choose(found)
    if kind is BrokerKind.GIVEN and not found.given:
        raise SettingsError("--broker given needs an address in KAFKA_BOOTSTRAP_SERVERS")
    if kind is BrokerKind.HOME and found.home is None:
        raise SettingsError("--broker home needs the folder of an unpacked Kafka in KAFKA_HOME")
    if kind is BrokerKind.GIVEN and fresh:
        raise SettingsError(
            "--fresh deletes the data of a Kafka that `committerd dev` starts, and this one runs already: delete the "
            "dataset's topics yourself, and accept new ones with `committerd position adopt`"
        )
    with broker.started(kind, found, folder, fresh=fresh, say=screen.say) as kafka:
        try:
            yield kafka
        finally:
            # What follows takes a few seconds at most, and leaves a broken broker behind if it is interrupted.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)


def _run(configured: Settings, kafka: Broker, folder: Path, *, fresh: bool, screen: Screen) -> str:
    """Commit until a signal ends it. Returns why it ended, unless a signal ended it."""
    file = folder / "committerd.log"
    with file.open("w", encoding="utf-8") as log:
        logs.configure(configured.log.level, "text", stream=log)
        if fresh:
            anyio.run(_accept_new_queue, configured)
        screen.show(
            Facts(
                dataset=configured.dataset.name,
                uri=configured.dataset.uri,
                bootstrap_servers=kafka.bootstrap_servers,
                kafka=kafka.what,
                metrics=f"http://127.0.0.1:{configured.http.port}/metrics",
                log=str(file),
                storage_options=_public_options(configured),
            )
        )
        logging.getLogger().addHandler(screen)
        with _watched(kafka) as ended:
            try:
                anyio.run(commit_until_stopped, configured)
            finally:
                logs.configure()  # the file is closed
        return f"Kafka has ended; its log is {kafka.log}" if ended.is_set() else ""


async def _accept_new_queue(configured: Settings) -> None:
    """Let the table continue with the new topics: its position belongs to the queue that was deleted."""
    async with open_operator(configured.kafka, configured.dataset.name) as operator:
        await operator.survey(create=True)
    async with stores_and_queue(configured) as (stores, queue):
        table = Table(stores.open(configured.dataset.uri))
        found = await operate.look(queue, table, Loading(monotonic=monotonic))
        if found.refusal is None or not found.loaded.version:
            return
        await operate.write(
            found.loaded,
            Loading(monotonic=monotonic),
            world(stores),
            new_position=operate.adopted(found, None),
            change_marks=lambda marks: marks,
            reason="committerd dev --fresh",
        )


def _public_options(configured: Settings) -> dict[str, str]:
    """The options with which pylance reaches the store; it takes keys from the environment too."""
    endpoint = configured.s3.endpoint_url
    if endpoint is None:
        return {}
    return {
        "aws_endpoint": endpoint,
        "aws_region": configured.s3.region or "us-east-1",
        "allow_http": str(endpoint.startswith("http://")).lower(),
        "aws_virtual_hosted_style_request": str(configured.s3.addressing_style == "virtual").lower(),
    }


@contextlib.contextmanager
def _watched(kafka: Broker) -> Iterator[threading.Event]:
    """During the block, end the committer when Kafka has ended; the event is set then."""
    ended, done = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_WATCH_SECONDS):
            if not kafka.running():
                ended.set()
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield ended
    finally:
        done.set()


def _end_at_signals() -> None:
    """End at SIGTERM and SIGHUP as at Ctrl-C, even while Kafka starts. The committer drains at the first two."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
