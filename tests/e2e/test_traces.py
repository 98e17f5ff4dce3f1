"""One trace of each transaction: a real committer sends it to a collector, by OpenTelemetry's own variables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from committerd_client import staging
from committerd_common.messages import Status
from harness.child import Launch
from harness.collector import Collector, Taken
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace
from harness.scene import STAYS, Scene, until
from tests.ingest.running import flow_of, stopping

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "traces.md"
_FRAGMENTS_TO_MERGE = 8
_STAGES = ["queue", "needs", "decide", "put", "outcome"]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector to which the committers of the test send."""
    with Collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "of-the-test")
        yield made


def _require_stages(spans: list[Taken], whole: Taken) -> None:
    """All stages lie below the span of the whole way, one after the other."""
    below = [one for one in spans if one.parent == whole.id]
    assert [one.span.name for one in below] == _STAGES
    moments = [m for one in below for m in (one.span.start_time_unix_nano, one.span.end_time_unix_nano)]
    assert moments == sorted(moments)
    assert (moments[0], moments[-1]) == (whole.span.start_time_unix_nano, whole.span.end_time_unix_nano)


def test_a_trace_has_every_stage_of_a_commit_a_conflict_and_a_duplicate(
    scene: Scene, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    row = f"id = {scene.table.create(3)[0]}"
    scene.started(**STAYS)
    committed, conflicting = (staging.delete(scene.table.open(), row).transaction for _ in range(2))
    answers = [
        scene.ask(one, traceparent=f"00-{number:032x}-{number:016x}-01")[0]
        for number, one in enumerate((committed, conflicting, committed), start=1)
    ]
    assert [one.status for one in answers] == [Status.COMMITTED, Status.RETRYABLE, Status.DUPLICATE]
    unsampled, alone = scene.table.append(), scene.table.append()
    scene.ask(unsampled, traceparent=f"00-{4:032x}-{4:016x}-00")
    scene.ask(alone)
    until(lambda: len(collector.spans) >= 4 * (1 + len(_STAGES)))

    events = []
    for number, answer in enumerate(answers, start=1):
        spans = [one for one in collector.of(answer.uuid) if one.trace == f"{number:032x}"]
        (whole,) = (one for one in spans if one.parent == f"{number:016x}")
        assert (whole.span.name, whole.service) == (f"process {scene.topics.staged}", "of-the-test")
        assert whole.attributes["committerd.status"] == Status.Name(answer.status).lower()
        assert whole.attributes["messaging.kafka.offset"] == answer.offset
        _require_stages(spans, whole)
        events.append([(one.span.name, event.name) for one in spans for event in one.span.events])
    assert events == [[], [("decide", "committerd.conflict")], [("decide", "committerd.duplicate")]]
    (conflict,) = (one for one in collector.of(conflicting.uuid) if one.attributes)
    assert conflict.attributes["committerd.rule"] == "same_row"
    assert conflict.span.status.code == conflict.span.status.STATUS_CODE_ERROR

    assert collector.of(unsampled.uuid) == []
    spans = collector.of(alone.uuid)
    (root,) = (one for one in spans if not one.parent)
    _require_stages(spans, root)


def test_the_program_of_the_page_is_above_what_the_committer_does(
    kafka: KafkaBroker | RunningKafka,
    dataset: str,
    tmp_path: Path,
    launch: Launch,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client finds the application's span, and the table is created in the same trace.

    Program and committer send their spans only at their ends.
    """
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    (program,) = re.findall(r"^```python\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    uri = str(tmp_path / f"{dataset}.lance")
    with Scene(
        kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=StorePlace(uri), launch=launch
    ) as scene:
        daemon = scene.daemon(**STAYS)
        daemon.wait_ready(text="waits for the table")
        program = program.replace("localhost:9092", kafka.bootstrap_servers).replace("/tmp/events.lance", uri)
        subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)
        daemon.stop()
    (root,) = (one for one in collector.spans if not one.parent)
    assert root.span.name == "nightly load"
    assert {one.trace for one in collector.spans} == {root.trace}
    below = [one for one in collector.spans if one.parent == root.id]
    assert [one.span.name for one in below] == ["write", f"send {dataset}.staged"] * 2
    sent = below[1::2]
    created, upserted = (next(one for one in collector.spans if one.parent == above.id) for above in sent)
    for above, whole in zip(sent, (created, upserted), strict=True):
        assert whole.span.name == f"process {dataset}.staged"
        for shared in ("messaging.message.id", "committerd.producer"):
            assert whole.attributes[shared] == above.attributes[shared]
    assert [one.span.name for one in collector.spans if one.parent == created.id] == _STAGES[2:]
    _require_stages(collector.of(upserted.attributes["messaging.message.id"]), upserted)


def test_commands_that_stage_are_above_what_the_committer_does(
    kafka: KafkaBroker | RunningKafka,
    tmp_path: Path,
    launch: Launch,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each process sends its spans at its end alone."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    monkeypatch.delenv("OTEL_SERVICE_NAME")
    files = [tmp_path / f"{number}.jsonl" for number in range(_FRAGMENTS_TO_MERGE)]
    for number, file in enumerate(files):
        file.write_text(f'{{"id": {100 + number}}}\n')
    with flow_of(kafka.bootstrap_servers, tmp_path, launch, partitions=1) as flow:
        ingest = flow.ingest()
        with stopping([ingest]):
            ingest.start()
            flow.topic.send(3)
            flow.wait_rows(3)
            ingest.stop()
        flow.command("append", flow.scene.table.uri, *map(str, files))
        flow.command("maintain", "--once")
        assert flow.committer is not None
        flow.committer.stop()
        send, process = f"send {flow.scene.topics.staged}", f"process {flow.scene.topics.staged}"
    by_id = {one.id: one for one in collector.spans}

    def chain(one: Taken) -> tuple[str, ...]:
        above = by_id.get(one.parent)
        return (*(chain(above) if above is not None else ()), one.span.name)

    brought = f"ingest {flow.topic.name}"
    assert {(brought, "commit", send, process), ("append", send, process), ("rewrite", send, process)} <= {
        chain(one) for one in collector.spans
    }
    roots = [one for one in collector.spans if not one.parent]
    below = [{one.span.name for one in collector.spans if one.parent == root.id} for root in roots]
    assert {"poll", "decode", "write", "commit"} in below
    assert {"write", send} in below
    services = {one.span.name: one.service for one in roots}
    assert (services[brought], services["append"]) == ("committerd-ingest", "committerd-append")
    assert services["rewrite"] == services["cleanup"] == "committerd-maintain"
