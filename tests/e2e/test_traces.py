"""Receipts and traces of two emulated instances: a request that is moved, and one whose instance is
killed, as their client and a collector see them."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from controller.api.client import ControlClient
from controller.api.token_sequence import start
from tests.collector import Collector, Span, collecting
from tests.e2e.steering import done, instance
from tools.client_stream import LIVE
from tools.cluster import NOTHING_MOVES, Cluster, running_with, wait_for
from tools.emulated_answers import first_wrong
from tools.fake_server import FakeServer, Served

NUM_TOKENS = 220
"""They take some 3 s."""
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONFIG = """
[cluster]
engine = "emulated"
instances = 2

[emulated]
speed = 2.0

[endpoint]
otlp_traces_endpoint = "{url}"
allowed_origins = ["https://chat.example"]
"""
VARIABLES = {
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-key=of-a-vendor",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
}
SERVER = 2
"""The kind of a server's span."""
SECRET_WORD = "a-prompt-that-no-span-may-show"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(
    base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[Cluster]:
    folder, config = tmp_path_factory.mktemp("traces"), CONFIG.format(url=collector.url)
    with running_with(config, folder, base_env | NOTHING_MOVES | VARIABLES, "traces") as found:
        yield found


class Answers:
    """Requests of a test's cluster that are under way, each in a thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._http = httpx.Client(base_url=cluster.url, timeout=60)
        self._threads = ThreadPoolExecutor(4)

    def ask(self, name: str, headers: dict[str, str], **more: Any) -> Future[httpx.Response]:
        body = {"model": "embedded", "max_tokens": NUM_TOKENS, "ignore_eos": True} | more
        named = {"x-request-id": name} | headers
        return self._threads.submit(
            lambda: self._http.post("/v1/completions", json=body, headers=named)
        )

    def close(self) -> None:
        self._threads.shutdown()
        self._http.close()


@pytest.fixture
def answers(cluster: Cluster) -> Iterator[Answers]:
    found = Answers(cluster)
    yield found
    found.close()


def of_request(collector: Collector, name: str) -> Span:
    """The span of the HTTP request, once the collector has it: it is sent last. vLLM numbers the
    prompts of a request."""

    def found() -> Span | None:
        whole = [span for span in collector.spans if span.kind == SERVER]
        ids = ("llumctl.client_request_id", f"cmpl-{name}-0")
        one = next((span for span in whole if ids in span.attributes.items()), None)
        parents = {each.parent_id for each in collector.spans if ids in each.attributes.items()}
        return one or next((span for span in whole if span.span_id in parents), None)

    span = wait_for(found, f"the trace of {name}")
    assert span is not None
    return span


def running(client: ControlClient, name: str) -> Callable[[], Any]:
    """Gives the request once it has a few tokens."""

    def found() -> Any:
        live = client.requests(states=LIVE).requests
        return next((r for r in live if name in r.client_id and r.num_output_tokens > 5), None)

    return found


def in_order(*times_ns: int) -> None:
    assert list(times_ns) == sorted(times_ns), times_ns


def check_times(collector: Collector, server: Span) -> dict[str, Span]:
    """The parts of the request by name: within the request, and its phases one after the other."""
    parts = collector.below(server)
    assert {part.trace_id for part in parts} == {server.trace_id}
    for part in parts:
        in_order(server.begin_ns, part.begin_ns, part.end_ns, server.end_ns)
    by_name = {part.name: part for part in parts}
    assert len(by_name) == len(parts)
    queue, prefill, decode = (by_name[name] for name in ("queue", "prefill", "decode"))
    assert queue.end_ns == prefill.begin_ns
    assert prefill.end_ns == decode.begin_ns
    return by_name


def test_a_moved_request_is_told_to_its_client_and_to_the_collector(
    cluster: Cluster, collector: Collector, answers: Answers
) -> None:
    prompt = f"{SECRET_WORD} " * 20
    answer = answers.ask(
        "moved", {"traceparent": f"00-{TRACE}-{PARENT}-01"}, prompt=prompt, return_token_ids=True
    )
    with cluster.control() as client:
        request = wait_for(running(client, "moved"), "its tokens")
        there = {"i-0": "i-1", "i-1": "i-0"}[request.instance_id]
        done(cluster, "migrate", request.id, "--to", there, "--reason", "test")
    headers = answer.result().headers
    told = {name: value for name, value in headers.items() if name.startswith("x-llumctl-")}
    assert told.pop("x-llumctl-queue-ms").isdigit()
    assert told == {
        "x-llumctl-instance": there,
        "x-llumctl-moves": "1",
        "x-llumctl-replays": "0",
        "x-llumctl-cached-tokens": "0",
    }
    server = of_request(collector, "moved")
    assert (server.name, server.trace_id, server.parent_id) == (
        "POST /v1/completions",
        TRACE,
        PARENT,
    )
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["llumctl.num_moves"] == 1
    assert server.attributes["gen_ai.usage.output_tokens"] == NUM_TOKENS
    assert not server.is_error
    parts = check_times(collector, server)
    move, decode = parts["move"], parts["decode"]
    assert move.attributes["llumctl.from"] == request.instance_id
    assert move.attributes["llumctl.to"] == there
    assert move.attributes["llumctl.num_stages"] >= 1
    assert move.attributes["llumctl.num_blocks"] > 0
    in_order(decode.begin_ns, move.begin_ns, move.end_ns, decode.end_ns)
    pause_ns = move.attributes["llumctl.downtime_s"] * 1e9
    assert 0 < pause_ns <= server.end_ns - decode.begin_ns
    took_s = move.attributes["llumctl.duration_s"] + move.attributes["llumctl.since_commit_s"]
    assert move.end_ns - move.begin_ns == pytest.approx(took_s * 1e9, abs=1e6)
    resource = server.resource
    assert (resource["service.name"], resource["service.instance.id"]) == ("llumctl", "f-0")
    assert (resource["llumctl.cluster"], resource["deployment.environment"]) == ("traces", "test")
    assert {each["x-key"] for each in collector.headers} == {"of-a-vendor"}


def test_a_replayed_request_is_told_too(
    cluster: Cluster, collector: Collector, answers: Answers
) -> None:
    prompt = [300 + n for n in range(100)]
    answer = answers.ask("replayed", {}, prompt=prompt, return_token_ids=True)
    with cluster.control() as client:
        request = wait_for(running(client, "replayed"), "its tokens")
        pid = instance(client, request.instance_id).pid
        assert pid is not None
        killed_ns = time.time_ns()
        os.kill(pid, signal.SIGKILL)
    found = answer.result()
    (choice,) = found.json()["choices"]
    assert first_wrong(start(prompt), choice["token_ids"]) is None
    assert found.headers["x-llumctl-replays"] == "1"
    assert found.headers["x-llumctl-instance"] != request.instance_id
    server = of_request(collector, "replayed")
    assert server.parent_id == ""
    assert server.attributes["llumctl.num_replays"] == 1
    parts = check_times(collector, server)
    replay, decode = parts["replay"], parts["decode"]
    in_order(decode.begin_ns, killed_ns, replay.begin_ns, replay.end_ns, decode.end_ns)
    assert replay.attributes["llumctl.from"] == request.instance_id
    assert replay.attributes["llumctl.to"] == found.headers["x-llumctl-instance"]
    assert replay.attributes["llumctl.num_tokens"] > len(prompt)
    assert not replay.is_error
    cluster.wait_state("ready")


def test_the_head_of_a_stream_says_what_is_known_by_then(
    collector: Collector, answers: Answers
) -> None:
    headers = {"origin": "https://chat.example"}
    found = answers.ask("streamed", headers, prompt="a b", max_tokens=3, stream=True).result()
    told = {name for name in found.headers if name.startswith("x-llumctl-")}
    assert told == {"x-llumctl-instance", "x-llumctl-queue-ms"}
    exposed = found.headers["access-control-expose-headers"]
    assert {"X-Llumctl-Instance", "X-Llumctl-Moves"} <= set(exposed.split(", "))
    assert check_times(collector, of_request(collector, "streamed"))
    several = answers.ask("several", {}, prompt=["a b", "c d"], n=2, max_tokens=3).result()
    assert set(several.headers["x-llumctl-instance"].split(",")) <= {"i-0", "i-1"}
    requests = collector.below(of_request(collector, "several"))
    assert [each.name for each in requests] == ["request"] * 4
    assert all(check_times(collector, each) for each in requests)


def test_a_refused_request_is_a_short_trace(
    cluster: Cluster, collector: Collector, answers: Answers
) -> None:
    found = answers.ask("refused", {"traceparent": f"00-{TRACE}-{PARENT}-01"}, prompt=7).result()
    assert found.status_code == 400
    assert not any(name.startswith("x-llumctl-") for name in found.headers)

    def refused() -> list[Span]:
        status = "http.response.status_code"
        return [span for span in collector.spans if span.attributes.get(status) == 400]

    (server,) = wait_for(refused, "its trace")
    assert (server.trace_id, server.is_error) == (TRACE, False)
    assert collector.below(server) == []
    assert httpx.get(f"{cluster.url}/v1/models").status_code == 200
    assert SECRET_WORD.encode() not in b"".join(collector.bodies)


def test_a_server_that_is_attached_goes_on_with_the_trace(
    cluster: Cluster, collector: Collector, answers: Answers
) -> None:
    served = Served(FakeServer("vllm"))
    done(cluster, "attach", served.url)
    with cluster.control() as client:
        wait_for(lambda: instance(client, "i-2").state == "active", "the attached server")
    done(cluster, "cordon", "i-0", "i-1", "--force")
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    found = answers.ask("attached", headers, prompt=[300] * 9, max_tokens=3).result()
    assert found.headers["x-llumctl-instance"] == "i-2"
    span = of_request(collector, "attached")
    (told,) = served.fake.headers
    assert told["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
    assert told["tracestate"] == "vendor=1"
    done(cluster, "uncordon", "i-0", "i-1")
    done(cluster, "detach", "i-2", "-y")
    served.end()


def test_without_its_collector_a_cluster_serves_and_stops(
    cluster: Cluster, collector: Collector, answers: Answers
) -> None:
    collector.server.shutdown()
    collector.server.server_close()
    for number in range(5):
        found = answers.ask(f"later-{number}", {}, prompt="a b", max_tokens=3).result()
        assert found.status_code == 200
        assert found.headers["x-llumctl-moves"] == "0"
    began_s = time.monotonic()
    done(cluster, "down")
    assert time.monotonic() - began_s < 30
    assert not cluster.leftovers()
