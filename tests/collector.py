"""A collector of traces: it takes OpenTelemetry's messages over HTTP, as its package defines them
(opentelemetry-proto)."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for a root."""
    kind: int
    begin_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: dict[str, dict[str, Any]]
    """The attributes of the last event of each name."""
    is_error: bool
    message: str
    resource: dict[str, Any]


@dataclass
class Collector:
    server: ThreadingHTTPServer
    spans: list[Span] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each export."""
    bodies: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def named(self, name: str, **attributes: Any) -> list[Span]:
        """The spans of this name with these attributes, whose names begin with `llumctl.`."""
        wanted = {f"llumctl.{key}": value for key, value in attributes.items()}
        return [s for s in self.spans if s.name == name and wanted.items() <= s.attributes.items()]

    def below(self, parent: Span) -> list[Span]:
        """Its children, in the order of their beginnings."""
        children = [s for s in self.spans if s.parent_id == parent.span_id]
        return sorted(children, key=lambda span: span.begin_ns)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> bytes:
        assert path == "/v1/traces"
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.headers.append(headers)
        self.bodies.append(body)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _plain(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                self.spans += [_span(each, resource) for each in scope.spans]
        return bytes(ExportTraceServiceResponse().SerializeToString())


def _span(found: Any, resource: dict[str, Any]) -> Span:
    return Span(
        found.name,
        found.trace_id.hex(),
        found.span_id.hex(),
        found.parent_span_id.hex(),
        found.kind,
        found.start_time_unix_nano,
        found.end_time_unix_nano,
        _plain(found.attributes),
        {event.name: _plain(event.attributes) for event in found.events},
        found.status.code == found.status.STATUS_CODE_ERROR,
        found.status.message,
        resource,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = collector.take(self.path, headers, body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Writes nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
