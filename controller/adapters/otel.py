"""Traces of requests for OpenTelemetry, sent over HTTP (OTLP) by a thread of their own.

A trace has a span for each HTTP request that is answered, and below it the parts of the request's
life (`controller/core/record/request_spans.py`). They are made when the answer is over, from the
record that the frontend keeps of the request in any case; a token costs nothing.

The variables of OpenTelemetry's specification apply, with two exceptions: the collector's URL is a
setting, because without it there are no traces, and the protocol is always HTTP with protobuf. The
provider of this module is not made the process's own. Otherwise vLLM, which asks for that one,
would add spans of its own.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from controller.core.record.request_record import RequestRecord
from controller.core.record.request_spans import Moment, RequestStory, Value, story_of

log = logging.getLogger(__name__)

PATH = "/v1/traces"
"""Where collectors take traces, by the specification of OTLP."""
CLOSE_S = 2.0
"""How long a frontend that stops waits for the collector."""
MAX_HEADER_BYTES = 512
"""Longer headers of a trace are ignored: a client may send 64 KiB. W3C asks to pass on this much of
`tracestate`."""
PREFIX = "llumctl."
_SCOPE = InstrumentationScope("llumctl")
_SERVER, _UNSET = SpanKind.SERVER, Status()
Headers = Iterable[tuple[bytes, bytes]]


class OtelTraces:
    """`url`: the collector's. `resource`: what is said of this process in each export; the
    variables of the environment take precedence."""

    def __init__(self, url: str, resource: Mapping[str, str]) -> None:
        found = Resource.create(dict(resource)).merge(OTELResourceDetector().detect())
        # Of the provider only what the environment says is used.
        provider = TracerProvider(resource=found, shutdown_on_exit=False)
        self.resource, self._sampler, self.ids = found, provider.sampler, provider.id_generator
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint=collector_url(url))
        self._processor = BatchSpanProcessor(self._exporter)
        self.send = self._processor.on_end
        # It warns of each wrong `tracestate`, in the client's words.
        logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)

    def begin(self, method: str, path: str, headers: Headers) -> "OtelTrace":
        within = _W3C.extract(list(headers), Context(), _HEADERS)
        parent = get_current_span(within).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else self.ids.generate_trace_id()
        name = f"{method} {path}"
        attributes = {"http.request.method": method, "http.route": path, "url.path": path}
        sampling = self._sampler.should_sample(within, trace_id, name, SpanKind.SERVER, attributes)
        flags = TraceFlags(int(sampling.decision is Decision.RECORD_AND_SAMPLE))
        span_id = self.ids.generate_span_id()
        context = SpanContext(trace_id, span_id, False, flags, sampling.trace_state)
        known = parent if parent.is_valid else None
        return OtelTrace(self, name, context, known, attributes, time.time())

    def close(self) -> None:
        """Sends what is left, for CLOSE_S at most; then drops it. Blocks."""
        closing = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            log.warning("the last traces were dropped: the collector does not answer")
            self._exporter.shutdown()


class OtelTrace:
    """The trace of one HTTP request. The SDK's own way to make a span takes 40 us of the event
    loop, mostly for locks and bounds that a span needs while it is under way. Spans of the past
    need neither, and are made in 4 us."""

    def __init__(
        self,
        traces: OtelTraces,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: Mapping[str, Value],
        begin_s: float,
    ) -> None:
        self._traces = traces
        self._name = name
        self._context = context
        self._parent = parent
        self._attributes = attributes
        self._begin_s = begin_s

    def onward(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        _W3C.inject(headers, set_span_in_context(NonRecordingSpan(self._context), Context()))
        return headers

    def end(
        self,
        status: int | None,
        records: Sequence[RequestRecord],
        end_s: float,
        error: str = "",
    ) -> None:
        if not self._context.trace_flags.sampled:
            return
        stories = [story_of(record, end_s) for record in records]
        attributes = {**self._attributes, **_conventional(records)}
        moments: Sequence[Moment] = ()
        if len(stories) == 1:
            attributes |= _named(stories[0].attributes)
            moments = stories[0].moments
            self._send_parts(self._context, stories[0])
        else:
            for story in stories:
                self._send_request(story)
        if status is not None:
            attributes["http.response.status_code"] = status
        error = next((story.error for story in stories if story.error), error)
        if status is not None and status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            attributes["error.type"] = str(status)
            error = error or f"HTTP {status}"
        elif error and status == HTTPStatus.OK:
            attributes["error.type"] = "stream"  # the error came within the stream
        else:
            error = ""
        life = (self._begin_s, end_s)
        self._send(
            self._name, self._context, self._parent, life, attributes, error, moments, _SERVER
        )

    def _send_request(self, story: RequestStory) -> None:
        """Sends a span for one of the several requests of the HTTP request: one of its prompts, or
        one of its choices."""
        context, life = self._child(), (story.begin_s, story.end_s)
        self._send_parts(context, story)
        named = _named(story.attributes)
        self._send("request", context, self._context, life, named, story.error, story.moments)

    def _send_parts(self, within: SpanContext, story: RequestStory) -> None:
        for part in story.spans:
            life, named = (part.begin_s, part.end_s), _named(part.attributes)
            self._send(part.name, self._child(), within, life, named, part.error)

    def _child(self) -> SpanContext:
        span_id, of = self._traces.ids.generate_span_id(), self._context
        return SpanContext(of.trace_id, span_id, False, of.trace_flags, of.trace_state)

    def _send(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        life: tuple[float, float],
        attributes: Mapping[str, Value],
        error: str = "",
        moments: Iterable[Moment] = (),
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        """`life`: when the span began and ended, in seconds since the epoch."""
        events = [Event(m.name, _named(m.attributes), _nanoseconds(m.time_s)) for m in moments]
        span = ReadableSpan(
            name,
            context,
            parent,
            self._traces.resource,
            attributes,
            events,
            kind=kind,
            status=Status(StatusCode.ERROR, error) if error else _UNSET,
            start_time=_nanoseconds(life[0]),
            end_time=_nanoseconds(life[1]),
            instrumentation_scope=_SCOPE,
        )
        self._traces.send(span)


def collector_url(given: str) -> str:
    """The URL to which traces are posted: the given one, with PATH if it has no path."""
    parts = urlsplit(given)
    return given if parts.path.strip("/") else urlunsplit(parts._replace(path=PATH))


def _named(attributes: Mapping[str, Value]) -> dict[str, Value]:
    return {PREFIX + name: value for name, value in attributes.items()}


def _conventional(records: Sequence[RequestRecord]) -> dict[str, Value]:
    """What OpenTelemetry's conventions have names for."""
    if not records:
        return {}
    model: dict[str, Value] = {}
    if records[0].model:  # one HTTP request is about one model
        model["gen_ai.request.model"] = records[0].model
    return model | {
        "gen_ai.usage.input_tokens": sum(each.num_prompt_tokens for each in records),
        "gen_ai.usage.output_tokens": sum(each.num_output_tokens for each in records),
    }


def _nanoseconds(time_s: float) -> int:
    return int(time_s * 1_000_000_000)


class _RequestHeaders(Getter[Sequence[tuple[bytes, bytes]]]):
    def get(self, carrier: Sequence[tuple[bytes, bytes]], key: str) -> list[str] | None:
        wanted = key.encode()
        found = [value.decode("latin-1") for name, value in carrier if name == wanted]
        if key == "traceparent" and len(found) > 1:
            return None  # with several it is unknown which one is meant
        return found if found and sum(map(len, found)) <= MAX_HEADER_BYTES else None

    def keys(self, carrier: Sequence[tuple[bytes, bytes]]) -> list[str]:
        return [name.decode("latin-1") for name, _ in carrier]


_HEADERS = _RequestHeaders()
_W3C = TraceContextTextMapPropagator()
