"""What a record's spans say, and that nothing which is wrong with traces reaches the queue."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from committerd.committer.stages import Period, Traced, VersionStages
from committerd.daemon import tracing as module
from committerd.daemon.tracing import Tracing, spans_of, tracing
from committerd_common.messages import COMMITTED, DUPLICATE, INVALID, RETRYABLE, Outcome

_UNIX = 1_790_000_000.0
_SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_NOT_SAMPLED = _SAMPLED[:-1] + "0"
_SECRET = "what-a-row-says"


def _traced(traceparent: str = "", *, queued: float | None = 1.0, **outcome: Any) -> Traced:
    """A record that was staged at second 1, and put from second 7 to 9."""
    stages = VersionStages(
        version=8,
        unix=_UNIX,
        decided=Period(4.0, 6.0),
        put=Period(7.0, 9.0),
        fetched={5: Period(2.0, 3.0)},
        rules={5: "same_row"} if outcome.get("reason") == "row_conflict" else {},
    )
    given: dict[str, Any] = {
        "uuid": "u",
        "topic": "t.staged",
        "offset": 5,
        "status": COMMITTED,
        "message": _SECRET,
    } | outcome
    timestamp_ms = None if queued is None else int((_UNIX + queued) * 1000)
    return Traced(Outcome(**given), traceparent, timestamp_ms, stages)


def _times(traced: Traced, published: float = 10.0) -> list[tuple[str, float, float]]:
    spans = spans_of(traced, dataset="t", published=_UNIX + published)
    assert (spans.began, spans.ended) == (spans.stages[0].began, spans.stages[-1].ended)
    return [(one.name, one.began - _UNIX, one.ended - _UNIX) for one in spans.stages]


def test_the_stages_are_as_they_were() -> None:
    assert _times(_traced()) == [
        ("queue", 1.0, 2.0),
        ("needs", 2.0, 3.0),
        ("decide", 4.0, 6.0),
        ("put", 7.0, 9.0),
        ("outcome", 9.0, 10.0),
    ]


def test_a_stage_that_is_not_known_is_left_out() -> None:
    assert _times(_traced(offset=6, queued=None)) == [("decide", 4.0, 6.0), ("put", 7.0, 9.0), ("outcome", 9.0, 10.0)]


@pytest.mark.parametrize(("queued", "published"), [(2.5, 10.0), (20.0, 10.0), (1.0, 3.0)])
def test_clocks_that_differ_do_not_change_the_order(queued: float, published: float) -> None:
    found = _times(_traced(queued=queued), published)
    assert [name for name, _, _ in found] == ["queue", "needs", "decide", "put", "outcome"]
    moments = [moment for _, began, ended in found for moment in (began, ended)]
    assert moments == sorted(moments)


def test_facts_that_were_fetched_late_come_before_the_decision() -> None:
    traced = _traced()
    late = VersionStages(
        version=8, unix=_UNIX, decided=Period(4.0, 6.0), put=Period(7.0, 9.0), fetched={5: Period(4.5, 5.0)}
    )
    assert _times(traced._replace(stages=late))[:3] == [("queue", 1.0, 4.5), ("needs", 4.5, 5.0), ("decide", 5.0, 6.0)]


def test_a_commit_is_described_by_the_conventions() -> None:
    spans = spans_of(_traced(version=8, operation="append", producer="p", transactions=3), dataset="t", published=_UNIX)
    assert (spans.name, spans.error, spans.event) == ("process t.staged", "", "")
    assert spans.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t.staged",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 5,
        "messaging.message.id": "u",
        "committerd.dataset": "t",
        "committerd.status": "committed",
        "committerd.read_version": 0,
        "committerd.producer": "p",
        "committerd.operation": "append",
        "committerd.version": 8,
        "committerd.transactions": 3,
    }


def test_a_refusal_names_its_rule_and_no_text() -> None:
    refused: dict[str, Any] = {"reason": "row_conflict", "conflicting_version": 7, "conflicting_operation": "delete"}
    spans = spans_of(_traced(status=RETRYABLE, **refused), dataset="t", published=_UNIX)
    said = {
        "committerd.reason": "row_conflict",
        "committerd.rule": "same_row",
        "committerd.conflicting_version": 7,
        "committerd.conflicting_operation": "delete",
    }
    assert (spans.error, spans.event) == ("RETRYABLE: row_conflict: same_row", "committerd.conflict")
    assert spans.event_attributes == said
    assert said.items() <= spans.attributes.items()
    assert spans.attributes["error.type"] == "row_conflict"
    assert _SECRET not in repr(spans)


@pytest.mark.parametrize(
    ("status", "reason", "error", "event"),
    [
        (DUPLICATE, "uuid_seen", "", "committerd.duplicate"),
        (INVALID, "missing_file", "INVALID: missing_file", "committerd.invalid"),
        (99, "", "99", "committerd.99"),
    ],
)
def test_other_outcomes(status: Any, reason: str, error: str, event: str) -> None:
    spans = spans_of(_traced(status=status, reason=reason), dataset="t", published=_UNIX)
    assert (spans.error, spans.event) == (error, event)


class _Sent:
    """Tracing with the real SDK, whose spans stay in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(self.exporter))
        self.tracing = Tracing(provider)

    async def spans(self) -> Any:
        await self.tracing.close()
        self.tracing._thread.join()
        return self.exporter.get_finished_spans()


async def test_the_header_says_what_is_above_and_what_is_sampled() -> None:
    sent = _Sent()
    trace = sent.tracing.of("t")
    trace([_traced(_SAMPLED), _traced(_NOT_SAMPLED, uuid="not"), _traced("nonsense", uuid="alone")], _UNIX + 10)
    spans = await sent.spans()
    found = {one.attributes["messaging.message.id"]: one for one in spans if one.name.startswith("process")}
    assert found.keys() == {"u", "alone"}
    assert f"{found['u'].context.trace_id:032x}-{found['u'].parent.span_id:016x}" == _SAMPLED[3:-3]
    assert found["alone"].parent is None
    below = [one for one in spans if one.parent is not None and one.parent.span_id == found["u"].context.span_id]
    assert [one.name for one in below] == ["queue", "needs", "decide", "put", "outcome"]


async def test_records_that_nobody_takes_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_RECORDS_MAX", 300)
    sent = _Sent()
    sent.tracing.of("t")([_traced()] * 1_000, _UNIX + 10)
    assert [(one.getMessage(), one.__dict__["records"]) for one in caplog.records] == [("traces.dropped", 700)]
    assert len(await sent.spans()) == 300 * 6


async def test_a_record_that_can_not_be_traced_costs_its_own_trace_alone(caplog: pytest.LogCaptureFixture) -> None:
    sent = _Sent()
    nothing: Any = None
    broken = _traced()._replace(outcome=nothing)
    sent.tracing.of("t")([broken, _traced()], _UNIX + 10)
    assert len(await sent.spans()) == 6
    assert [one.getMessage() for one in caplog.records] == ["traces.not_made"]


async def test_a_header_that_can_not_be_read_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", _SECRET)
    made = tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
    assert made is not None
    await made.close()
    assert "OTEL_EXPORTER_OTLP_HEADERS" in caplog.text
    assert _SECRET not in caplog.text


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, ""),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp by grpc"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "console"}, "not console"),
    ],
)
def test_no_traces(environment: dict[str, str], why: str, caplog: pytest.LogCaptureFixture) -> None:
    assert tracing(environment) is None
    said = [one.__dict__["error"] for one in caplog.records if one.levelno == logging.ERROR]
    assert len(said) == bool(why)
    assert why in "".join(said)


def test_without_an_endpoint_nothing_is_loaded_and_without_the_extra_it_is_said() -> None:
    script = """
import sys
from committerd.daemon.tracing import tracing
assert tracing({}) is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
sys.modules["opentelemetry"] = None
assert tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}) is None
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (0, ["traces.off"]), done.stderr
