"""One stream into three tables: each record once in its table, whatever the others do, and whatever is killed."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pytest

from harness.child import Launch
from harness.fleet import COMMAND, Fleet
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import STAYS
from tests.ingest.running import SCHEMA, Topic, wait

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.timeout(900)]

_PARTITIONS = 2
_KINDS = ("order", "return", "other")
"""The kinds of the records, in turn. No route takes the last."""


def send(topic: Topic, count: int) -> None:
    """Send so many more records. Each has its kind in a header, and in its value."""
    for number in range(topic.sent, topic.sent + count):
        kind = _KINDS[number % len(_KINDS)]
        value = json.dumps({"id": number, "text": kind}).encode()
        place = number // len(_KINDS) % _PARTITIONS
        topic.send_value(value, partition=place, headers=[("kind", kind.encode())])
    topic.sent += count
    topic.flush()


def test_one_stream_into_three_tables(kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch) -> None:
    names = {one: f"{one}-{uuid4().hex[:8]}" for one in ("orders", "returns", "quiet")}
    orders, returns, quiet = names.values()
    servers = kafka.bootstrap_servers
    with (
        contextlib.closing(Topic(servers, partitions=_PARTITIONS)) as topic,
        Fleet(kafka=servers, folder=tmp_path, names=list(names.values()), launch=launch) as fleet,
    ):
        routes = {orders: ["order"], returns: ["return"], quiet: ["rare"]}
        text = fleet.tables() + "".join(
            f"[ingest.routes.{name}]\nroute_values = {json.dumps(values)}\n" for name, values in routes.items()
        )
        file = tmp_path / "routes.toml"
        file.write_text(text)
        settings = {
            "INGEST__TOPICS": topic.name,
            "INGEST__ROUTE_HEADER": "kind",
            "INGEST__UNMATCHED": "skip",
            "INGEST__FLUSH_SECONDS": "0.1",
            "INGEST__FLUSH_ROWS": "50",
            "INGEST__RETRY_SECONDS": "1",
            "INGEST__COMMIT_TIMEOUT_SECONDS": "600",
            "INGEST__PARTITION_COLUMN": "partition",
            "INGEST__OFFSET_COLUMN": "offset",
        }

        def rows(name: str) -> list[dict[str, int]]:
            found: list[dict[str, int]] = fleet.scenes[name].table.open().to_table().to_pylist()
            return found

        def check(name: str, kind: str) -> None:
            found = rows(name)
            wanted = [number for number in range(topic.sent) if _KINDS[number % len(_KINDS)] == kind]
            assert sorted(row["id"] for row in found) == wanted
            for partition in range(_PARTITIONS):
                offsets = [row["offset"] for row in found if row["partition"] == partition]
                assert offsets == sorted(set(offsets))

        def wait_rows(name: str, count: int) -> None:
            wait(lambda: len(rows(name)) >= count, seconds=240, what=lambda: f"{len(rows(name))} of {count} rows")

        def marks(name: str) -> list[int]:
            found = fleet.scenes[name].table.metadata()
            return sorted(
                json.loads(text)["version"] for key, text in found.items() if key.startswith("committerd.app.")
            )

        for name in names.values():
            lance.write_dataset(SCHEMA.empty_table(), fleet.scenes[name].table.uri)
        committers = {name: fleet.scenes[name].started(**STAYS) for name in names.values()}
        committers[returns].stop()
        send(topic, 600)
        ingest = fleet.member(text, command=(*COMMAND, "ingest"), **settings, INGEST__MARK_SECONDS="3600")

        # A table whose committer is away holds no other up.
        wait_rows(orders, 200)
        check(orders, "order")
        wait(lambda: ingest.metric("committerd_ingest_passed_records_total", dataset=quiet) >= 600)
        wait(lambda: ingest.metric("committerd_ingest_unmatched_records_total", dataset=orders) >= 200)
        wait(lambda: ingest.metric("committerd_ingest_lag_records", dataset=orders) == 0)
        wait(lambda: ingest.metric("committerd_ingest_lag_records", dataset=quiet) == 0)
        assert ingest.metric("committerd_ingest_unmatched_records_total", dataset=returns) == 0
        wait(lambda: ingest.metric("committerd_ingest_lag_records", dataset=returns) == 600)
        for name in names.values():
            ingest.wait_ready(text=f"{name}: ")
        # A table without records of its own gets no version for each flush of the others.
        assert marks(quiet) == [0, 0]
        before = fleet.scenes[quiet].table.version
        send(topic, 300)
        wait_rows(orders, 300)
        wait(lambda: ingest.metric("committerd_ingest_passed_records_total", dataset=quiet) >= 900)
        assert (marks(quiet), fleet.scenes[quiet].table.version) == ([0, 0], before)

        # Killed with transactions on their way, it begins again at the marks of each table.
        ingest.kill()
        send(topic, 300)
        committers[returns].start()
        again = fleet.member(text, command=(*COMMAND, "ingest"), **settings, INGEST__MARK_SECONDS="0.5")
        send(topic, 300)
        for name in (orders, returns):
            wait_rows(name, topic.sent // 3)
        wait(lambda: marks(quiet) == [topic.sent // _PARTITIONS] * _PARTITIONS, what=lambda: f"{marks(quiet)}")
        check(orders, "order")
        check(returns, "return")
        assert rows(quiet) == []

        # One route is stopped by a record that makes no row, and is moved on.
        topic.send_value(b"{", headers=[("kind", b"return")])
        topic.flush()
        said = again.wait_line("ingest.partition_stopped", dataset=returns)["error"]
        found = re.search(rf"committerd (ingest move {topic.name} 0 --dataset {returns} --offset \d+ --apply)", said)
        assert found is not None
        send(topic, 6)
        wait_rows(orders, topic.sent // 3)
        assert f"{returns}: 2 partitions, of which 1 are stopped" in again.wait_ready(text="stopped")
        told: dict[str, Any] = {name: value for name, value in settings.items() if name != "INGEST__UNMATCHED"}
        fleet.command(*found[1].split(), "--reason", "half a record", file=file, **told)
        wait_rows(returns, topic.sent // 3)
        check(returns, "return")
        again.stop(grace_seconds=120)

        # By a field of the value, which is a column.
        by_field: dict[str, Any] = told | {"INGEST__ROUTE_HEADER": "", "INGEST__ROUTE_COLUMN": "text"}
        shown = fleet.command("ingest", "--dry-run", file=file, **by_field)
        first, second, third = (shown.index(f"Route {name}:") for name in names.values())
        assert shown.count('"text": "order"', first, second) == shown.count('"text": "order"') > 0
        assert shown.count('"text": "return"', second, third) == shown.count('"text": "return"') > 0
        assert "no route takes the record, which has 'other' in its field 'text'" in shown[first:second]
        assert re.search(r"0 are bad\. \d+ are of other routes, or of none", shown[third:])
        only = fleet.command("ingest", "--dry-run", "--dataset", quiet, file=file, **by_field)
        assert "0 records make 0 rows" in only
