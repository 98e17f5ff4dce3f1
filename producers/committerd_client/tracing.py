"""Spans of an application that uses OpenTelemetry: a span for each record that is sent, which the header carries on,
and spans of the work before it.

Only an application that has loaded OpenTelemetry's API is traced, with the SDK that it has set up. Nothing is loaded
for others, so they pay for one look into `sys.modules`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from committerd_client.headers import StagedRecord


class SendSpan:
    """The span of one record: from its submission until Kafka has it. Its methods do not raise."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: Span, traceparent: str) -> None:
        self._span = span
        self.traceparent = traceparent
        """Its place in the trace, for the record's header."""

    def made(self, record: StagedRecord) -> None:
        """Note the record."""
        self._span.set_attribute("messaging.message.id", record.uuid)

    def sent(self, offset: int | None) -> None:
        """Kafka has the record. `offset`: None if Kafka does not return it."""
        if offset is not None:
            self._span.set_attribute("messaging.kafka.offset", offset)
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """The record is not sent, or it is not known whether it is."""
        from opentelemetry.trace import Status, StatusCode

        name = type(error).__name__
        self._span.set_attribute("error.type", name)
        self._span.set_status(Status(StatusCode.ERROR, name))
        self._span.end()


def send_span(topic: str, *, client_id: str, producer: str) -> SendSpan | None:
    """Begin the span of a record for this topic, below the caller's; None if the application has no trace."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace import SpanKind, get_current_span, get_tracer

    span = get_tracer("committerd-client").start_span(
        f"send {topic}",
        kind=SpanKind.PRODUCER,
        attributes={
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.client.id": client_id,
            "committerd.producer": producer,
        },
    )
    context = span.get_span_context()
    if not context.is_valid:  # there is no SDK, and so no span of ours; the caller may be in a trace all the same
        context = get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return SendSpan(span, f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}")


@contextmanager
def work_span(name: str, attributes: Mapping[str, str | int] | None = None, *, ago: float = 0.0) -> Iterator[None]:
    """A span of the block, below the caller's span; spans that begin in the block are below this one.

    Without OpenTelemetry it does nothing. `ago`: how many seconds before the block the span begins. If the block
    raises, the span has the name of the error's type; its message may hold content of records.
    """
    if "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry.trace import Status, StatusCode, get_tracer, use_span

    span = get_tracer("committerd-client").start_span(name, attributes=attributes, start_time=_nanoseconds_ago(ago))
    try:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        kind = type(error).__name__
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, kind))
        raise
    finally:
        span.end()


def past_span(name: str, *, ago: float) -> None:
    """A span that ends now, and has begun `ago` seconds before; below the caller's span."""
    if "opentelemetry.trace" not in sys.modules:
        return
    from opentelemetry.trace import get_tracer

    get_tracer("committerd-client").start_span(name, start_time=_nanoseconds_ago(ago)).end()


def _nanoseconds_ago(seconds: float) -> int:
    return time.time_ns() - int(seconds * 1e9)
