"""An application that uses OpenTelemetry finds its trace in the header; for any other, nothing is loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags, use_span

from committerd_client import CommitClient
from committerd_client.errors import ClientClosed
from committerd_client.headers import StagedRecord
from committerd_client.in_flight import Submission
from committerd_client.tracing import SendSpan, send_span
from committerd_common.request import decode_envelope
from tests.producers.answering import answering, append


@pytest.mark.kafka
@pytest.mark.parametrize("flags", [TraceFlags.SAMPLED, TraceFlags.DEFAULT])
async def test_the_header_names_the_span_of_the_caller(servers: str, dataset: str, flags: int) -> None:
    above = NonRecordingSpan(SpanContext(trace_id=10, span_id=11, is_remote=False, trace_flags=TraceFlags(flags)))
    with answering(servers, dataset) as committer:
        async with CommitClient(servers, dataset=dataset) as client:
            await client.commit(append())
            with use_span(above):
                await client.commit(append())
                await client.commit_many([append()])
                await client.commit(append(), traceparent="00-1-2-03")
    found = [decode_envelope(record.headers).traceparent for record in committer.records]
    named = f"00-{10:032x}-{11:016x}-0{flags}"
    assert found == ["", named, named, "00-1-2-03"]


def _submission() -> tuple[Submission, InMemorySpanExporter]:
    """A submission with a span of the real SDK."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = SendSpan(provider.get_tracer("t").start_span("send t.staged"), "")
    return Submission(StagedRecord(uuid="u", value=b"", headers=[]), 1, span), exporter


def _ended(exporter: InMemorySpanExporter) -> Any:
    (span,) = exporter.get_finished_spans()
    return span


def test_the_span_ends_once_when_kafka_has_the_record() -> None:
    submission, exporter = _submission()
    submission.stage(7)
    submission.fail(ClientClosed("closed"))
    assert _ended(exporter).attributes == {"messaging.kafka.offset": 7}
    assert _ended(exporter).status.status_code is StatusCode.UNSET


def test_the_span_of_a_record_that_is_not_sent_says_why() -> None:
    submission, exporter = _submission()
    submission.fail(ClientClosed("a text that may be long"))
    assert _ended(exporter).attributes == {"error.type": "ClientClosed"}
    assert (_ended(exporter).status.status_code, _ended(exporter).status.description) == (
        StatusCode.ERROR,
        "ClientClosed",
    )


def test_an_application_without_opentelemetry_is_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert send_span("t", client_id="c", producer="p") is None
    script = "import sys, committerd_client; print([one for one in sys.modules if one.startswith('opentelemetry')])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"[]\n"
