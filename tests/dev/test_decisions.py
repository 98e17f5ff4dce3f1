"""Which Kafka `committerd dev` takes, and what it prints of the committer's log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from committerd.dev.brokers import AvailableBrokers, BrokerKind, choose
from committerd.dev.docker import engine_answers
from committerd.dev.ingesting import table_beside
from committerd.dev.screen import Facts, Screen
from committerd.errors import SettingsError


@pytest.mark.parametrize(
    ("given", "home", "docker", "kind"),
    [
        ("broker:9092", Path("/kafka"), True, BrokerKind.GIVEN),
        ("", Path("/kafka"), True, BrokerKind.HOME),
        ("", None, True, BrokerKind.DOCKER),
        ("", None, False, BrokerKind.OWN),
    ],
)
def test_what_the_user_names_goes_first(given: str, home: Path | None, docker: bool, kind: BrokerKind) -> None:
    assert choose(AvailableBrokers(given=given, given_by="", home=home, docker=docker)) is kind


@pytest.mark.parametrize(("script", "answers"), [("exit 0", True), ("exit 1", False)])
def test_docker_without_an_engine_does_not_count(tmp_path: Path, script: str, answers: bool) -> None:
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert engine_answers(str(program)) is answers
    assert not engine_answers(str(tmp_path / "other"))
    assert not engine_answers(None)


def log(level: int, event: str, logger: str = "committerd", /, **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": logger, "levelno": level, "msg": event, "created": 0.0, **fields})


COMMITTED = {"operation": "append", "refused": 0, "duration_seconds": 0.0123}
LINES = [
    (log(20, "start.done", version=0), "ready for the table, which does not exist yet"),
    (log(20, "start.done", version=7), "ready for the table, at version 7"),
    (log(20, "version.committed", version=8, transactions=1, **COMMITTED), "version 8  append  1 transaction  12.3 ms"),
    (
        log(20, "version.committed", version=9, transactions=3, **{**COMMITTED, "refused": 2}),
        "version 9  append  3 transactions, 2 refused  12.3 ms",
    ),
    (log(20, "table.moved", to=12, **{"from": 10}), "version 12  by another writer (the committer knew version 10)"),
    (
        log(20, "transaction.settled", status="RETRYABLE", reason="x", operation="update", text="again", uuid="u"),
        "not committed: update RETRYABLE x: again",
    ),
    (log(30, "table.missing", waiting=1), "1 record came, and there is no table yet"),
    (log(30, "commit.retried", error="away"), "commit.retried: away"),
    (log(40, "daemon.crashed", exc_info=(ValueError, ValueError("bad"), None)), "daemon.crashed: bad"),
    (log(30, "something"), "something"),
    (log(30, "it gets over this by itself", "kafka.conn"), None),
    (log(40, "Connection failed", "kafka.conn"), None),
    (
        log(30, "dev.kafka_away", servers="a:1"),
        "Kafka at a:1 does not respond: nothing is committed until it does",
    ),
    (log(30, "dev.kafka_back", servers="a:1"), "Kafka at a:1 responds again"),
    (log(20, "http.listening", url="http://x"), None),
]


@pytest.mark.parametrize(("record", "text"), LINES)
def test_each_event_is_a_line_and_as_json_an_object(record: logging.LogRecord, text: str | None) -> None:
    lines: list[str] = []
    Screen(lines.append, uri="/t", as_json=False).handle(record)
    assert [line[10:] for line in lines] == ([] if text is None else [text])
    objects: list[str] = []
    Screen(objects.append, uri="/t", as_json=True).handle(record)
    assert len(objects) == len(lines)
    assert all(json.loads(one)["time"] for one in objects)


def test_a_refusal_to_run_comes_with_the_way_out() -> None:
    lines: list[str] = []
    Screen(lines.append, uri="/t.lance", as_json=False).handle(log(40, "refused", code="topic_id", error="other topic"))
    assert lines[0].endswith(
        "the committer refuses to run (topic_id): other topic\n"
        "    `committerd dev /t.lance --fresh` keeps the table and begins a new queue"
    )


def test_the_lines_to_paste_are_programs() -> None:
    facts = Facts(
        dataset="events",
        uri="/data/it's.lance",
        bootstrap_servers="127.0.0.1:9092",
        kafka="Apache Kafka",
        status="http://127.0.0.1:9464/",
        metrics="http://127.0.0.1:9464/metrics",
        log="/log",
        storage_options={"aws_endpoint": "http://127.0.0.1:1"},
    )
    said: list[str] = []
    Screen(said.append, uri=facts.uri, as_json=False).show(facts)
    _, python, spark = said[0].split("pip install")
    for section in (python, spark):
        program = section.partition(":\n")[2].partition("\nSpark")[0].partition("\nCtrl-C")[0]
        compile(program, "pasted", "exec")
        assert "it's.lance" in program
        assert "aws_endpoint" in program


@pytest.mark.parametrize(
    ("files", "table"),
    [
        ("/data/orders.json", "/data/orders.lance"),
        ("/data/orders.v2.csv.gz", "/data/orders.v2.lance"),
        ("/data/orders/", "/data/orders.lance"),
        ("file:///data/orders.parquet", "/data/orders.lance"),
        ("/data/.json", "/data/.json.lance"),
    ],
)
def test_a_table_is_named_after_the_files_that_it_gets(files: str, table: str) -> None:
    assert table_beside(files) == table


def test_files_in_a_store_name_no_table() -> None:
    with pytest.raises(SettingsError, match="give the URI of the table too"):
        table_beside("s3://landing/orders")
