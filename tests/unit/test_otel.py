"""What a collector receives of a request, and that nobody waits for one that is away."""

import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from controller.adapters.otel import CLOSE_S, OtelTraces, collector_url
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from tests.collector import Collector, collecting

ROUTE = "/v1/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NOW_S = time.time()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def traces(url: str) -> OtelTraces:
    return OtelTraces(url, {"service.name": "llumctl", "service.instance.id": "f-0"})


def record(request_id: str = "cmpl-1-a", **what: Any) -> RequestRecord:
    def event(kind: EventKind, after_s: float, **numbers: float) -> LoggedEvent:
        at = {"instance_id": "i-0", "incarnation": 1, "request_id": request_id}
        return LoggedEvent(kind, NOW_S + after_s, "cause", numbers=numbers, **at)

    known: dict[str, Any] = {
        "request_id": request_id,
        "client_request_id": "cmpl-1",
        "parent_id": None,
        "frontend_id": "f-0",
        "level": "normal",
        "state": RequestState.FINISHED,
        "instance_id": "i-0",
        "incarnation": 1,
        "arrival_time_s": NOW_S,
        "num_prompt_tokens": 9,
        "num_output_tokens": 4,
        "num_evictions": 0,
        "first_token_time_s": NOW_S + 0.3,
        "end_time_s": NOW_S + 0.7,
        "finish_reason": "length",
        "history": (
            event(EventKind.DISPATCHED, 0.1, num_candidates=2),
            event(EventKind.ADMITTED, 0.2, num_tokens=9, num_cached_tokens=5),
            event(EventKind.FINISHED, 0.7),
        ),
    }
    return RequestRecord(**known | what)


def sent(
    headers: dict[str, str], *records: RequestRecord, status: int | None = 200, error: str = ""
) -> Any:
    """What onward calls get, after one request whose trace has been sent."""
    with collecting() as collector:
        found = traces(collector.url)
        trace = found.begin(
            "POST", ROUTE, [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
        )
        onward = trace.onward()
        trace.end(status, records, time.time(), error)
        found.close()
    return collector, onward


def test_a_request_goes_on_with_its_caller_s_trace() -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "shop=7,other=8"}
    collector, onward = sent(headers, record())
    (server,) = collector.named(f"POST {ROUTE}")
    assert (server.trace_id, server.parent_id, server.kind) == (TRACE, PARENT, 2)
    assert onward == {
        "traceparent": f"00-{TRACE}-{server.span_id}-01",
        "tracestate": "shop=7,other=8",
    }
    assert (
        server.attributes
        | {
            "http.request.method": "POST",
            "http.route": ROUTE,
            "http.response.status_code": 200,
            "gen_ai.usage.input_tokens": 9,
            "gen_ai.usage.output_tokens": 4,
            "llumctl.request_id": "cmpl-1-a",
            "llumctl.client_request_id": "cmpl-1",
            "llumctl.num_cached_tokens": 5,
        }
        == server.attributes
    )
    assert server.resource | {"service.name": "llumctl"} == server.resource
    parts = collector.below(server)
    assert [part.name for part in parts] == ["queue", "prefill", "decode"]
    assert {part.trace_id for part in parts} == {TRACE}
    assert parts[0].begin_ns < parts[0].end_ns == parts[1].begin_ns
    assert parts[1].end_ns == parts[2].begin_ns < parts[2].end_ns
    assert server.events["dispatched"]["llumctl.num_candidates"] == 2


def test_of_several_models_a_trace_names_the_request_s() -> None:
    collector, _ = sent({}, record(model="small"), record("cmpl-1-b", model="small"))
    (server,) = collector.named(f"POST {ROUTE}")
    assert server.attributes["gen_ai.request.model"] == "small"
    collector, _ = sent({}, record())
    (server,) = collector.named(f"POST {ROUTE}")
    assert "gen_ai.request.model" not in server.attributes


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"traceparent": "nonsense"},
        {"traceparent": f"00-{'0' * 32}-{PARENT}-01"},
        {"traceparent": f"00-{TRACE}-{PARENT}-01" + "x" * 5000},
        {"tracestate": "shop=7"},
    ],
)
def test_without_a_readable_parent_a_trace_of_its_own_begins(headers: dict[str, str]) -> None:
    collector, onward = sent(headers, record())
    (server,) = collector.named(f"POST {ROUTE}")
    assert server.parent_id == ""
    assert server.trace_id != TRACE
    assert "tracestate" not in onward


def test_a_long_state_is_dropped_and_a_wrong_one_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for state in ("a=" + "b" * 60_000, "\xff; DROP"):
        collector, onward = sent(
            {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": state}, record()
        )
        assert collector.named(f"POST {ROUTE}")[0].trace_id == TRACE
        assert "tracestate" not in onward
    assert caplog.records == []


def test_what_the_caller_does_not_sample_is_not_sent() -> None:
    collector, onward = sent({"traceparent": f"00-{TRACE}-{PARENT}-00"}, record())
    assert collector.spans == []
    assert onward["traceparent"].startswith(f"00-{TRACE}-")
    assert onward["traceparent"].endswith("-00")


def test_several_requests_of_one_answer_have_a_span_each() -> None:
    both = (record("cmpl-1-a"), record("cmpl-1-b", num_output_tokens=6))
    collector, _ = sent({}, *both)
    (server,) = collector.named(f"POST {ROUTE}")
    assert server.attributes["gen_ai.usage.output_tokens"] == 10
    requests = collector.below(server)
    assert [each.name for each in requests] == ["request", "request"]
    assert {each.attributes["llumctl.request_id"] for each in requests} == {"cmpl-1-a", "cmpl-1-b"}
    for each in requests:
        assert [part.name for part in collector.below(each)] == ["queue", "prefill", "decode"]


@pytest.mark.parametrize(
    ("status", "is_error"), [(200, True), (503, True), (429, False), (400, False), (None, False)]
)
def test_which_answers_are_errors(status: int | None, is_error: bool) -> None:
    """An error within a stream is one too. A client's own fault is none, nor is that it left."""
    failed = record(state=RequestState.FAILED, finish_reason="lost")
    (server,) = sent({}, failed, status=status)[0].named(f"POST {ROUTE}")
    assert server.is_error == is_error
    assert server.message == ("lost" if is_error else "")
    assert server.attributes.get("http.response.status_code") == status


def test_an_answer_that_was_cut_is_an_error_though_its_request_was_aborted() -> None:
    aborted = record(state=RequestState.ABORTED, finish_reason="the client left")
    for status in (200, 504):
        collector, _ = sent({}, aborted, status=status, error="it took longer than 8 s")
        (server,) = collector.named(f"POST {ROUTE}")
        assert (server.is_error, server.message) == (True, "it took longer than 8 s")


def test_the_variables_of_opentelemetry_apply(
    monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    found = traces(collector.url)
    for _ in range(200):
        found.begin("POST", ROUTE, []).end(200, [], time.time())
    found.close()
    assert 60 < len(collector.spans) < 140
    resource = collector.spans[0].resource
    assert (resource["service.name"], resource["deployment.environment"]) == ("chat", "test")
    assert resource["service.instance.id"] == "f-0"
    assert collector.headers[0]["x-key"] == "secret"


def test_nobody_waits_for_a_collector_that_does_not_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It takes connections and says nothing. The queue is bounded, and that it is full is told
    once, not for each span."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = traces(f"http://127.0.0.1:{silent.getsockname()[1]}")
        for _ in range(5000):
            found.begin("POST", ROUTE, []).end(200, [], time.time())
        silent.settimeout(20)
        with silent.accept()[0]:  # the exporter is in the middle of its first batch
            began_s = time.monotonic()
            found.close()
            assert CLOSE_S <= time.monotonic() - began_s < CLOSE_S + 10
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert told[0].startswith("Queue full")
    assert "the last traces were dropped: the collector does not answer" in told
    assert len(told) < 12


def test_the_url_gets_the_path_of_traces_unless_it_has_one() -> None:
    for given, found in (
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("https://c/", "https://c/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ):
        assert collector_url(given) == found
