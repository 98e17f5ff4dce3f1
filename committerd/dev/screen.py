"""What `committerd dev` prints: the lines to paste, and a line for each version."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from committerd_common.extras import install_line
from committerd_common.uris import dataset_name

_QUIET = frozenset({"daemon.drain_cut_short"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a user needs to know."""

    dataset: str
    uri: str
    bootstrap_servers: str
    kafka: str
    """What the Kafka is."""
    status: str
    """The URL of the status page."""
    metrics: str
    """The URL of the metrics."""
    log: str
    """The file with the whole log of the committer."""
    storage_options: Mapping[str, str]
    """What pylance needs to open the table, without secrets."""
    command: str = "committerd"
    """How to call committerd in a shell."""


def to_paste(facts: Facts) -> str:
    """Where everything is, and programs that use it."""
    options = f",\n    storage_options={dict(facts.storage_options)!r}" if facts.storage_options else ""
    opened = f", storage_options={dict(facts.storage_options)!r}" if facts.storage_options else ""
    named = "" if facts.dataset == dataset_name(facts.uri) else f" --name {shlex.quote(facts.dataset)}"
    table = f"{shlex.quote(facts.uri)}{named}"
    return f"""\
Status:   {facts.status}
Table:    {facts.uri}
Kafka:    {facts.bootstrap_servers} ({facts.kafka})
Metrics:  {facts.metrics}
Log:      {facts.log}

In a shell:

export COMMITTERD_KAFKA__BOOTSTRAP_SERVERS={facts.bootstrap_servers}
{facts.command} status {table}
{facts.command} append {table} FILE...
{facts.command} maintain {table} --once
{facts.command} audit {table}

Python ({install_line("lance")}):

from committerd_client import SyncCommitClient
with SyncCommitClient(
    {facts.bootstrap_servers!r}, dataset={facts.dataset!r}, dataset_uri={facts.uri!r}{options}
) as client:
    print(client.append([{{"id": 1}}, {{"id": 2}}], create=True))

Spark ({install_line("spark")}, and Java 17; `stream` is a streaming DataFrame):

from committerd_spark import LanceBatchWriter
writer = LanceBatchWriter(
    {facts.uri!r}, bootstrap_servers={facts.bootstrap_servers!r}, dataset={facts.dataset!r}, app_id="my-stream"{opened}
)
stream.writeStream.option("checkpointLocation", "/tmp/my-stream").foreachBatch(writer).start().awaitTermination()

Ctrl-C stops all of it. The queue is kept: the same command picks up where it left off.
"""


def told(record: logging.LogRecord) -> dict[str, Any] | None:
    """What a log line of the committer tells the user; None if it is only for the log."""
    fields = record.__dict__
    match record.getMessage():
        case "start.done":
            return {"event": "ready", "version": fields["version"]}
        case "version.committed":
            return {
                "event": "version",
                "version": fields["version"],
                "operation": fields["operation"],
                "transactions": fields["transactions"],
                "refused": fields["refused"],
                "milliseconds": round(fields["duration_seconds"] * 1000, 1),
            }
        case "table.moved":
            return {"event": "foreign", "version": fields["to"], "before": fields["from"]}
        case "transaction.settled":
            names = ("status", "reason", "operation", "text", "uuid")
            return {"event": "not_committed", **{name: fields[name] for name in names}}
        case "table.missing":
            return {"event": "no_table", "waiting": fields["waiting"]}
        case "dev.kafka_away" | "dev.kafka_back" as event:
            return {"event": "kafka", "responds": event == "dev.kafka_back", "at": fields["servers"]}
        case "refused":
            return {"event": "refused", "code": fields["code"], "text": fields["error"]}
        case event if record.levelno >= logging.WARNING and event not in _QUIET and not _is_kafkas(record.name):
            error = fields.get("error") or (record.exc_info[1] if record.exc_info else None)
            return {"event": "warning", "name": event, "text": str(error or "")}
    return None


def _is_kafkas(logger: str) -> bool:
    """Whether it is a logger of kafka-python, which writes many lines about one outage: the log has them."""
    return logger.split(".")[0] == "kafka"


def line(news: Mapping[str, Any], *, uri: str) -> str:
    """The same for people."""
    match news["event"]:
        case "ready":
            version = f"at version {news['version']}" if news["version"] else "which does not exist yet"
            return f"ready for the table, {version}"
        case "version":
            refused = f", {news['refused']} refused" if news["refused"] else ""
            many = _many(news["transactions"], "transaction") + refused
            return f"version {news['version']}  {news['operation']}  {many}  {news['milliseconds']} ms"
        case "foreign":
            return f"version {news['version']}  by another writer (the committer knew version {news['before']})"
        case "not_committed":
            return f"not committed: {news['operation']} {news['status']} {news['reason']}: {news['text']}"
        case "no_table":
            return f"{_many(news['waiting'], 'record')} came, and there is no table yet"
        case "kafka" if news["responds"]:
            return f"Kafka at {news['at']} responds again"
        case "kafka":
            return f"Kafka at {news['at']} does not respond: nothing is committed until it does"
        case "refused":
            return (
                f"the committer refuses to run ({news['code']}): {news['text']}\n"
                f"    `committerd dev {uri} --fresh` keeps the table and begins a new queue"
            )
        case _:
            return f"{news['name']}: {news['text']}" if news["text"] else str(news["name"])


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


class Screen(logging.Handler):
    """Prints facts and news: as text, or each as a JSON object on its own line."""

    def __init__(self, echo: Callable[[str], None], *, uri: str, as_json: bool, dataset: str = "") -> None:
        """`dataset`: named in each line, where other tables write lines too."""
        super().__init__()
        self._dataset = dataset
        self._echo = echo
        self._uri = uri
        self._as_json = as_json

    def show(self, facts: Facts) -> None:
        """Print where everything is."""
        self._echo(json.dumps({"event": "started", **asdict(facts)}) if self._as_json else to_paste(facts))

    def say(self, text: str) -> None:
        """Say what is done before everything runs."""
        self._echo(json.dumps({"event": "progress", "text": text}) if self._as_json else f"==> {text}")

    def emit(self, record: logging.LogRecord) -> None:
        news = told(record)
        if news is None:
            return
        at = datetime.fromtimestamp(record.created, UTC).astimezone()  # in the time zone of the user
        if self._as_json:
            named = {"dataset": self._dataset} if self._dataset else {}
            self._echo(json.dumps({**news, **named, "time": at.isoformat(timespec="milliseconds")}, default=str))
        else:
            before = f"{self._dataset}  " if self._dataset else ""
            self._echo(f"{at:%H:%M:%S}  {before}{line(news, uri=self._uri)}")
