"""Traces by OpenTelemetry: the times of a record's way from the queue to its outcome, as spans of its producer's trace.

The extra `otel` brings OpenTelemetry's SDK and its exporter, which are configured by OpenTelemetry's own environment
variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, ...). Spans are made of times that the committer has
noted anyway, once the outcomes are published, in a thread of its own. So a collector that is slow or away costs traces,
and no commit. Commands that stage transactions have the spans of the client (`committerd_client.tracing`), which is
given the same SDK.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from anyio import to_thread

from committerd import __version__
from committerd.committer.stages import Trace, Traced
from committerd.queue.outcomes import status_name
from committerd_common.extras import install_line
from committerd_common.messages import COMMITTED, DUPLICATE

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_RECORDS_MAX = 5_000
"""Maximum number of records that wait for their spans to be made; further records are not traced."""
_FLUSH_RECORDS = 256
"""After so many records their spans are sent before more are made: the SDK's queue has room for 2,048 spans."""
_FLUSH_SECONDS = 10.0
"""How long the end of the process waits for the spans to be sent: as long as the exporter tries by default."""

_BAD_HEADER = "a header of OTEL_EXPORTER_OTLP_HEADERS is left out: it must be NAME=VALUE, with the value URL-encoded"

Attributes = Mapping[str, str | int]


class Stage(NamedTuple):
    """One stage of a record's way, as a span."""

    name: str
    began: float
    """Unix time in seconds, as the next one."""
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpans:
    """The spans of one record: that of its whole way, and those of its stages below it."""

    name: str
    began: float
    """Unix time in seconds, as the next one."""
    ended: float
    stages: Sequence[Stage]
    attributes: Attributes
    error: str
    """Why it was not committed; empty = it was, or it was in the table before."""
    event: str
    """The event of the stage `decide`: what was decided instead of a commit; empty = the record was committed."""
    event_attributes: Attributes = field(default_factory=dict)


def spans_of(traced: Traced, *, dataset: str, published: float) -> RecordSpans:
    """The spans of a record whose outcome was published at `published`, in Unix seconds.

    Attributes follow OpenTelemetry's conventions for messaging; those that begin with `committerd.` are ours.
    """
    outcome, stages = traced.outcome, list(_stages(traced, published))
    committed = outcome.status in (COMMITTED, DUPLICATE)
    status = status_name(outcome.status)
    rule = traced.stages.rules.get(outcome.offset, "")
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": outcome.topic,
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": outcome.offset,
        "committerd.dataset": dataset,
        "committerd.status": status.lower(),
        "committerd.read_version": outcome.read_version,
    }
    attributes |= _given(
        {
            "messaging.message.id": outcome.uuid,
            "committerd.producer": outcome.producer,
            "committerd.operation": outcome.operation,
            "committerd.version": outcome.version,
            "committerd.transactions": outcome.transactions,
        }
    )
    decision = _given(
        {
            "committerd.reason": outcome.reason,
            "committerd.rule": rule,
            "committerd.conflicting_version": outcome.conflicting_version,
            "committerd.conflicting_operation": outcome.conflicting_operation,
        }
    )
    decided = "conflict" if rule or outcome.conflicting_version else status.lower()
    if not committed:
        attributes["error.type"] = outcome.reason or status.lower()
    return RecordSpans(
        name=f"process {outcome.topic}",
        began=stages[0].began,
        ended=stages[-1].ended,
        stages=stages,
        attributes=attributes | decision,
        error="" if committed else ": ".join(part for part in (status, outcome.reason, rule) if part),
        event="" if outcome.status == COMMITTED else f"committerd.{decided}",
        event_attributes=decision,
    )


def _given(attributes: Attributes) -> dict[str, str | int]:
    """The attributes that have a value: 0 and an empty text mean that there is no value."""
    return {name: value for name, value in attributes.items() if value}


def _stages(traced: Traced, published: float) -> Iterator[Stage]:
    """The stages in order; none begins before its predecessor has ended.

    The noted times may overlap: a producer's clock may be ahead, and facts are fetched again if they are old.
    """
    known, unix = traced.stages, traced.stages.unix
    fetched = known.fetched.get(traced.outcome.offset)
    parts = [("needs", fetched), ("decide", known.decided), ("put", known.put)]
    at = unix + (fetched or known.decided).began
    if traced.timestamp_ms is not None:
        yield Stage("queue", min(traced.timestamp_ms / 1000, at), at)
    for name, period in parts:
        if period is not None:
            began = max(at, unix + period.began)
            at = max(began, unix + period.ended)
            yield Stage(name, began, at)
    yield Stage("outcome", at, max(published, at))


class Tracing:
    """Makes spans of the records of all datasets of a process, and sends them. Its methods never raise."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("committerd", __version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._given = self._taken = 0
        """Numbers of records; each is written by one thread."""
        self._queue = SimpleQueue[tuple[str, Sequence[Traced], float] | None]()
        self._thread = threading.Thread(target=self._run, name="committerd-traces", daemon=True)
        self._thread.start()

    def of(self, dataset: str) -> Trace:
        """What takes the records of this dataset."""
        return partial(self._take, dataset)

    async def close(self) -> None:
        """Send what is there, for a few seconds at most. Records that come later are not traced."""
        self._queue.put(None)
        await to_thread.run_sync(partial(self._thread.join, _FLUSH_SECONDS), abandon_on_cancel=True)

    def _take(self, dataset: str, traced: Sequence[Traced], published: float) -> None:
        room = max(_RECORDS_MAX - (self._given - self._taken), 0)
        if len(traced) > room:
            _log.warning("traces.dropped", extra={"records": len(traced) - room, "waiting": _RECORDS_MAX})
        if room:
            self._given += min(len(traced), room)
            self._queue.put((dataset, traced[:room], published))

    def _run(self) -> None:
        unsent = 0
        for dataset, traced, published in iter(self._queue.get, None):
            for one in traced:
                self._taken += 1
                try:
                    unsent += self._make(spans_of(one, dataset=dataset, published=published), one.traceparent)
                    if unsent >= _FLUSH_RECORDS:
                        unsent = 0
                        self._provider.force_flush()
                except Exception:  # noqa: BLE001  # costs this trace alone
                    _log.warning("traces.not_made", exc_info=True)
        _shut_down(self._provider)

    def _make(self, spans: RecordSpans, traceparent: str) -> bool:
        """Make the spans if the sampler, which follows the header, wants them; returns whether it does."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        above = self._extract({"traceparent": traceparent}) if traceparent else None
        start = self._tracer.start_span
        whole = start(
            spans.name,
            above,
            SpanKind.CONSUMER,
            attributes=dict(spans.attributes),
            start_time=_nanoseconds(spans.began),
        )
        if not whole.is_recording():
            return False
        below = set_span_in_context(whole)
        for stage in spans.stages:
            span = start(stage.name, below, start_time=_nanoseconds(stage.began))
            if stage.name == "decide" and spans.event:
                span.add_event(spans.event, dict(spans.event_attributes), _nanoseconds(stage.ended))
            span.end(_nanoseconds(stage.ended))
        if spans.error:
            whole.set_status(Status(StatusCode.ERROR, spans.error))
        whole.end(_nanoseconds(spans.ended))
        return True


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def tracing(environment: Mapping[str, str]) -> Tracing | None:
    """The tracing that the environment's `OTEL_` variables ask for; None if they ask for none, or it can't be had."""
    provider = _asked_for(environment, "committerd")
    return None if provider is None else Tracing(provider)


@contextmanager
def traced_clients(environment: Mapping[str, str], service: str) -> Iterator[None]:
    """While the block lasts, send the spans of this process's clients, if the `OTEL_` variables ask for it.

    `service`: its name, unless the variables give another one. At the end it sends what is there, for a few seconds.
    """
    provider = _asked_for(environment, service)
    if provider is None:
        yield
        return
    from opentelemetry.trace import set_tracer_provider

    set_tracer_provider(provider)
    try:
        yield
    finally:
        sending = threading.Thread(target=partial(_shut_down, provider), name="committerd-traces", daemon=True)
        sending.start()
        sending.join(_FLUSH_SECONDS)


def _shut_down(provider: TracerProvider) -> None:
    try:
        provider.shutdown()
    except Exception:  # noqa: BLE001  # the process ends
        _log.warning("traces.not_sent", exc_info=True)


def _asked_for(environment: Mapping[str, str], service: str) -> TracerProvider | None:
    """The SDK, if the environment's `OTEL_` variables ask for traces, and they can be had; else None.

    A log line says why they can't be had. Without an endpoint nothing of OpenTelemetry is loaded.
    """
    given = {name: text.strip() for name, text in environment.items() if name.startswith("OTEL_")}
    if not any(map(given.get, _ENDPOINTS)) or given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    exporters = given.get("OTEL_TRACES_EXPORTER") or "otlp"
    if exporters == "none":
        return None
    protocol = next(filter(None, map(given.get, _PROTOCOLS)), _PROTOCOL)
    why = f"committerd sends traces with the exporter otlp by {_PROTOCOL}, not {exporters} by {protocol}"
    if "otlp" in exporters.split(",") and protocol == _PROTOCOL:
        try:
            return _provider(service)
        except ImportError as error:
            why = f"{error}: {install_line('otel', distribution='committerd')}"
        except Exception as error:  # noqa: BLE001  # a wrong variable must not keep the queue from being served
            why = repr(error)
    _log.error("traces.off", extra={"error": why})
    return None


def _hide_header(record: logging.LogRecord) -> bool:
    """A filter of log lines: the SDK shows a header that it can't read, which may be a password."""
    record.msg, record.args = _BAD_HEADER, ()
    return True


def _provider(service: str) -> TracerProvider:
    """The SDK, configured by the environment. `service`: its name, unless the environment gives another one."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    logging.getLogger("opentelemetry.util.re").addFilter(_hide_header)
    named = OTELResourceDetector().detect().attributes
    ours = {SERVICE_NAME: service, SERVICE_VERSION: __version__}
    provider = TracerProvider(resource=Resource.create({**ours, **named}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
