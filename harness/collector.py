"""A collector of traces: takes OpenTelemetry's protocol over HTTP, in threads of this process."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One span."""

    span: Span
    service: str
    """The name of the service that sent it."""
    attributes: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Its id, as 16 hex digits."""
        return self.span.span_id.hex()

    @property
    def parent(self) -> str:
        """The id of the span above it; empty = it is a root."""
        return self.span.parent_span_id.hex()

    @property
    def trace(self) -> str:
        """The trace's id, as 32 hex digits."""
        return self.span.trace_id.hex()


class Collector:
    """Collects while the block runs."""

    def __init__(self) -> None:
        self.spans: list[Taken] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="collector", daemon=True)

    @property
    def url(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` names."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, uuid: str) -> list[Taken]:
        """The spans of the traces in which a transaction is, in the order in which they begin, and then end."""
        traces = {one.trace for one in self.spans if one.attributes.get("messaging.message.id") == uuid}
        found = [one for one in self.spans if one.trace in traces]
        return sorted(found, key=lambda one: (one.span.start_time_unix_nano, one.span.end_time_unix_nano))

    def _take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _plain(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [
                    Taken(span=span, service=service, attributes=_plain(span.attributes)) for span in scope.spans
                ]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        take = self._take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path != "/v1/traces":
                    self.send_error(404)
                    return
                take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
