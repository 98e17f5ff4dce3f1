"""`committerd dev`: a broker, the topics and the committers of some tables, in one process tree, for a laptop."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NoReturn

import anyio
import click
from pydantic import SecretStr

from committerd.commands.committing import stores_and_queue
from committerd.commands.ingest import require_packages
from committerd.commands.lance_options import TIMES_AND_TRIES, cloud_options
from committerd.commands.options import config_option, json_option
from committerd.commands.printing import echo_table
from committerd.commands.run import commit_until_stopped
from committerd.commands.system import monotonic, sources
from committerd.committer import operate
from committerd.committer.loading import Loading
from committerd.daemon import logs
from committerd.dev import broker, state
from committerd.dev.broker import Broker
from committerd.dev.brokers import BrokerKind, choose
from committerd.dev.child import ChildProcess
from committerd.dev.ingesting import ingesting, table_beside
from committerd.dev.parts import free_port
from committerd.dev.screen import Facts, Screen
from committerd.dev.state import DevTable
from committerd.errors import CommitterError, SettingsError
from committerd.kafka.operator import open_operator
from committerd.settings.clouds import CloudSettings
from committerd.settings.load import Settings, load_settings, of_one
from committerd.stores.clouds import cloud_place
from committerd.table.versions import Table

_METRICS_PORT = 9464
_SESSION_TIMEOUT_MS = 3_000
"""How long a committer that was killed delays the next."""
_WATCH_SECONDS = 0.5
_GRACE_SECONDS = 30.0
_log = logging.getLogger(__name__)


@click.command()
@click.argument("uris", nargs=-1, metavar="URI...")
@click.option(
    "--name", help="Name of the dataset, if there is one table; by default the last part of its URI, without .lance."
)
@click.option(
    "--broker",
    "chosen",
    type=click.Choice([kind.value for kind in BrokerKind]),
    help="Which Kafka: given (KAFKA_BOOTSTRAP_SERVERS), home (the unpacked Kafka in KAFKA_HOME), docker, "
    "own (Apache Kafka, downloaded once). By default the first of these that there is.",
)
@click.option("--fresh", is_flag=True, help="Delete the queue that was kept, and begin a new queue. The table stays.")
@click.option(
    "--ingest",
    "files",
    help="Bring this file, or the files of this folder, into the table too, each once, with `committerd ingest`: "
    "JSON lines, CSV, Parquet or Arrow. The first file makes the table. Without URI, that lies beside, with its name.",
)
@click.option("--list", "listed", is_flag=True, help="List the tables whose queues are kept, and run nothing.")
@click.option(
    "--remove",
    "removed",
    is_flag=True,
    help="Delete the queues that are kept of these tables, and run nothing. The tables stay.",
)
@click.option(
    "--of-another", "child", is_flag=True, hidden=True
)  # the committer of a table, with the Kafka of its parent
@config_option
@json_option
def dev(
    uris: Sequence[str],
    name: str | None,
    chosen: str | None,
    fresh: bool,
    files: str | None,
    listed: bool,
    removed: bool,
    child: bool,
    as_json: bool,
) -> None:
    """Run all that tables need on this machine, until Ctrl-C: Kafka, its topics, a committer for each, /metrics.

    URI is a path, or that of a table in a store (s3://, az://, gs://), with credentials from the environment. The table
    need not exist. The command prints the lines to paste into Python, Spark and a shell, and a line for each version
    that is committed.

    Kafka's data is kept in the cache folder (COMMITTERD_CACHE, by default ~/.cache/committerd), so the same command
    picks up where it left off. The ports are 9092 and 9464, or others if these are taken. All other settings are as for
    `committerd run`. The extra `dev` runs Kafka on a machine without Java and Docker.

    Not for production: the Kafka has one node, and nothing is encrypted.
    """
    if listed:
        _list(as_json=as_json)
        return
    if files is not None:
        if len(uris) > 1:
            raise click.UsageError("--ingest is for one table")
        require_packages("--ingest")
        uris = uris or (table_beside(files),)
    if not uris:
        raise click.UsageError("give the URI of a table, or --list")
    if name is not None and len(uris) > 1:
        raise click.UsageError("--name is for one table")
    tables = [state.named(uri, name) for uri in uris]
    if removed:
        state.remove(tables)
        for table in tables:
            click.echo(json.dumps({"removed": table.uri}) if as_json else f"removed what was kept of {table.uri}")
        return
    _refuse_same_names(tables)
    for table in tables:
        _load(table, 0)  # raises for wrong settings before anything is started
    screen = Screen(click.echo, uri=tables[0].uri, as_json=as_json, dataset=tables[0].dataset if child else "")
    _end_at_signals()
    try:
        if child:
            failed = _serve(
                tables[0],
                Broker(os.environ["KAFKA_BOOTSTRAP_SERVERS"], "of this command", lambda: True),
                screen,
                fresh=fresh,
            )
        else:
            failed = _with_kafka(tables, chosen, screen, fresh=fresh, as_json=as_json, files=files)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    if failed:
        raise CommitterError(failed, code="part_failed")


def _list(*, as_json: bool) -> None:
    found = [state.summary_of(one) for one in state.all_tables()]
    if as_json:
        click.echo(json.dumps({"kept": [asdict(one) for one in found]}))
        return
    if not found:
        click.echo("Nothing is kept.")
        return
    rows = [
        [one.dataset, one.uri or "?", one.kafka, f"{one.bytes / 2**20:.1f}", one.used, one.process] for one in found
    ]
    echo_table(["dataset", "table", "Kafka of", "MiB", "last used", "runs in process"], rows)


def _refuse_same_names(tables: Sequence[DevTable]) -> None:
    """Two tables with one name would share their topics. Raises `SettingsError`."""
    seen: dict[str, str] = {}
    for one in tables:
        other = seen.setdefault(one.dataset, one.uri)
        if other != one.uri or sum(two.uri == one.uri for two in tables) > 1:
            raise SettingsError(
                f"{other} and {one.uri} would both be the dataset {one.dataset!r}: run each in a command of its own, "
                "and give --name"
            )


def _load(table: DevTable, port: int, kafka: Broker | None = None, *, short_session: bool = False) -> Settings:
    connection: dict[str, object] = {"bootstrap_servers": kafka.bootstrap_servers if kafka else "localhost:9092"}
    if short_session:  # a Kafka that was started here allows it
        connection["session_timeout_ms"] = _SESSION_TIMEOUT_MS
    found = load_settings(
        dataset={"name": table.dataset, "uri": table.uri},
        kafka=connection,
        http={"host": "127.0.0.1", "port": port},
    )
    if found.dataset.branch:
        raise SettingsError(
            "`committerd dev` serves no branch by its name: unset dataset.branch, and give the URI of the branch's "
            f"folder, {found.dataset.place}"
        )
    return found


def _with_kafka(
    tables: Sequence[DevTable], chosen: str | None, screen: Screen, *, fresh: bool, as_json: bool, files: str | None
) -> str:
    """Start Kafka, and serve the tables. Returns why it ended, unless a signal ended it. `files`: what is ingested."""
    found = broker.look_around()
    kind = BrokerKind(chosen) if chosen else choose(found)
    if kind is BrokerKind.GIVEN and not found.given:
        raise SettingsError("--broker given needs an address in KAFKA_BOOTSTRAP_SERVERS")
    if kind is BrokerKind.HOME and found.home is None:
        raise SettingsError("--broker home needs the folder of an unpacked Kafka in KAFKA_HOME")
    if kind is BrokerKind.GIVEN and fresh:
        raise SettingsError(
            "--fresh deletes the data of a Kafka that `committerd dev` starts, and this one runs already: delete the "
            "dataset's topics yourself, and accept the new topics with `committerd position adopt`"
        )
    with contextlib.ExitStack() as stack:
        if len(tables) == 1:
            stack.enter_context(state.table_locked(tables[0]))
        home = tables[0].folder
        if kind is not BrokerKind.GIVEN:
            home = state.shared_kafka(tables, fresh=fresh)
            stack.enter_context(state.kafka_locked(home))
        tables = [one.write(one.kafka if kind is BrokerKind.GIVEN else home) for one in tables]
        kafka = stack.enter_context(broker.started(kind, found, home, fresh=fresh, say=screen.say))
        # What follows at the end takes a few seconds at most, and leaves a broken broker behind if it is interrupted.
        stack.callback(_ignore_signals)
        if len(tables) == 1:
            return _committer(tables[0], kafka, screen, fresh=fresh, short_session=kafka.log is not None, files=files)
        return _committers(tables, kafka, fresh=fresh, as_json=as_json)


def _serve(table: DevTable, kafka: Broker, screen: Screen, *, fresh: bool) -> str:
    """Commit to one of several tables, with the Kafka of the parent."""
    with state.table_locked(table):
        return _committer(table, kafka, screen, fresh=fresh, short_session=True)


def _committers(tables: Sequence[DevTable], kafka: Broker, *, fresh: bool, as_json: bool) -> str:
    """Run a process for each table until a signal comes. Returns why it ended otherwise."""
    options = [word for word, given in (("--fresh", fresh), ("--json", as_json)) if given]
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    children = dict[str, ChildProcess]()
    try:
        for table in tables:
            words = [sys.executable, "-m", "committerd", "dev", table.uri, "--name", table.dataset, "--of-another"]
            children[table.uri] = ChildProcess(
                [*words, *options], log=table.folder / "committerd.log", environment=environment, speaks=True
            )
        while True:
            if not kafka.running():
                return f"Kafka has ended; its log is {kafka.log}"
            for uri, one in children.items():
                if not one.running():
                    return f"the committer of {uri} has ended"
            time.sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        return ""
    finally:
        _ignore_signals()
        for one in children.values():
            one.signal(signal.SIGTERM)
        for one in children.values():
            one.stop(grace_seconds=_GRACE_SECONDS)


@contextlib.contextmanager
def _metrics_port(folder: Path) -> Iterator[int]:
    """The usual port, or a free port if another process has it or another `committerd dev` is about to take it."""
    with state.locked(folder / f"{_METRICS_PORT}.lock") as holder:
        yield free_port() if holder else free_port(_METRICS_PORT)


def _committer(
    table: DevTable,
    kafka: Broker,
    screen: Screen,
    *,
    fresh: bool,
    short_session: bool,
    files: str | None = None,
) -> str:
    """Commit until a signal ends it. Returns why it ended, unless a signal ended it."""
    file = table.folder / "committerd.log"
    with _metrics_port(table.folder.parent) as port, file.open("w", encoding="utf-8") as log:
        configured = _load(table, port, kafka, short_session=short_session)
        logs.configure(configured.log.level, "text", stream=log)
        if fresh:
            anyio.run(_accept_new_queue, configured)
        screen.show(
            Facts(
                dataset=configured.dataset.name,
                uri=configured.dataset.uri,
                bootstrap_servers=kafka.bootstrap_servers,
                kafka=kafka.what,
                status=f"http://127.0.0.1:{configured.http.port}/",
                metrics=f"http://127.0.0.1:{configured.http.port}/metrics",
                log=str(file),
                storage_options=_public_options(configured),
                command=_command(),
            )
        )
        logging.getLogger().addHandler(screen)
        with _watched(kafka) as ended:
            try:
                with _ingest(files, table, configured):
                    anyio.run(commit_until_stopped, of_one(configured))
            finally:
                logs.configure()  # the file is closed
        return f"Kafka has ended; its log is {kafka.log}" if ended.is_set() else ""


def _ingest(files: str | None, table: DevTable, configured: Settings) -> contextlib.AbstractContextManager[None]:
    if files is None:
        return contextlib.nullcontext()
    settings = {
        "DATASET__NAME": configured.dataset.name,
        "DATASET__URI": configured.dataset.uri,
        "KAFKA__BOOTSTRAP_SERVERS": ",".join(configured.kafka.bootstrap_servers),
        "HTTP__HOST": "127.0.0.1",
        "HTTP__PORT": str(free_port()),
    }
    return ingesting(files, settings=settings, log=table.folder / "ingest.log")


def _command() -> str:
    """How to call committerd in another shell."""
    found = shutil.which("committerd")
    own = Path(sys.executable).with_name("committerd")
    if found is not None and Path(found).resolve() == own.resolve():
        return "committerd"
    return str(own) if own.exists() else f"{sys.executable} -m committerd"


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
            sources(),
            new_position=operate.adopted(found, None),
            change_marks=lambda marks: marks,
            reason="committerd dev --fresh",
        )


def _public_options(configured: Settings) -> dict[str, str]:
    """The options with which pylance reaches the store; it takes keys from the environment too."""
    cloud = cloud_place(configured.dataset.uri)
    if cloud is not None:
        group: CloudSettings = getattr(configured, cloud.cloud.service)
        secrets = {name: None for name, value in group if isinstance(value, SecretStr)}
        options = cloud_options(cloud.cloud, group.model_copy(update=secrets))
        return {name: value for name, value in options.items() if name not in TIMES_AND_TRIES}
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
    """During the block, end the committer when Kafka has ended; the event is set then. Log when Kafka is away."""
    ended, done = threading.Event(), threading.Event()

    def watch() -> None:
        responds = True
        while not done.wait(_WATCH_SECONDS):
            if not kafka.running():
                ended.set()
                os.kill(os.getpid(), signal.SIGTERM)
                return
            before, responds = responds, _accepts_connections(kafka.bootstrap_servers)
            if before and not responds:
                _log.warning("dev.kafka_away", extra={"servers": kafka.bootstrap_servers})
            if responds and not before:
                _log.warning("dev.kafka_back", extra={"servers": kafka.bootstrap_servers})

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield ended
    finally:
        done.set()


def _accepts_connections(bootstrap_servers: str) -> bool:
    """Whether any of the brokers does, within a second each."""
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        with contextlib.suppress(OSError, ValueError), socket.create_connection((host, int(port)), timeout=1):
            return True
    return False


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _end_at_signals() -> None:
    """End at SIGTERM and SIGHUP as at Ctrl-C, even while Kafka starts. The committer drains at the first two."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
