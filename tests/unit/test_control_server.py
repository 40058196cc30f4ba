"""The control API on a real socket, and what it reports of clusters in every state."""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from controller.adapters.http import control_server
from controller.api.wire import ErrorBody
from controller.api.wire.status import ClusterState, ClusterStatus, InstanceState, StopProgress
from controller.core.load.snapshot import QueueHead
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.messages.codec import encode
from controller.runtime.messages.requests import DispatchAsked
from tests.unit.control_support import AUTHORIZED, TOKEN, Cluster, Listener, listening

# -- views --------------------------------------------------------------------------------


async def test_starting() -> None:
    cluster = Cluster()
    assert cluster.states() == ["starting", "starting", "starting"]
    assert cluster.view().instances[0].incarnation == 0
    cluster.hello("i-0", "starting", detail="loading the model")
    cluster.hello("f-0")
    assert cluster.states() == ["starting", "starting", "active"]
    assert cluster.view().instances[0].detail == "loading the model"
    cluster.hello("i-0")
    assert cluster.states() == ["starting", "starting", "active"], "no status yet"
    assert cluster.view().instances[0].num_free_blocks is None
    cluster.report()
    assert cluster.states() == ["ready", "active", "active"]


async def test_a_failed_start_fails_the_cluster_in_the_member_s_words() -> None:
    cluster = Cluster(num_instances=2)
    cluster.hello("i-0", "starting")
    cluster.hello("i-1", "failed", detail="RuntimeError: no memory")
    assert cluster.states() == ["failed", "starting", "failed", "starting"]
    assert cluster.view().detail == "i-1: RuntimeError: no memory"


async def test_a_member_that_is_gone_is_restarting_and_the_cluster_degraded() -> None:
    cluster = Cluster(num_instances=2)
    cluster.up()
    cluster.mailbox.lose("mem://i-1")
    assert cluster.states() == ["degraded", "active", "restarting", "active"]
    view = cluster.view()
    assert view.detail == "i-1 is restarting"
    gone = view.instances[1]
    assert (gone.pid, gone.num_free_blocks, gone.freeness_steps) == (None, None, None)
    cluster.hello("i-1", "starting", nonce="b")
    assert cluster.states() == ["degraded", "active", "restarting", "active"]
    again = cluster.view().instances[1]
    assert (again.incarnation, again.num_restarts, again.pid) == (2, 1, 77)
    assert (again.num_free_blocks, again.freeness_steps) == (None, None), "its predecessor's"
    cluster.hello("i-1", nonce="b", incarnation=2)
    cluster.report("i-1", 2)
    assert cluster.states() == ["ready", "active", "active", "active"]


async def test_a_member_that_fails_later_degrades_the_cluster() -> None:
    cluster = Cluster()
    cluster.up()
    cluster.hello("i-0", "failed", nonce="b", detail="why")
    assert cluster.states() == ["degraded", "failed", "active"]
    assert cluster.view().detail == "i-0 is failed"


async def test_an_instance_whose_engine_is_silent_is_stalled() -> None:
    cluster = Cluster()
    cluster.up()
    cluster.now_s += 10.5
    cluster.controller.fleet.look_for_stalls()
    assert cluster.states() == ["degraded", "stalled", "active"]
    assert cluster.view().instances[0].age_s == 10.5
    assert cluster.view().instances[0].num_free_blocks == 100, "its last word, to look at"
    cluster.report()
    assert cluster.states() == ["ready", "active", "active"]


async def test_a_draining_instance_has_no_freeness() -> None:
    cluster = Cluster()
    cluster.up()
    cluster.report(draining=True, num_free_blocks=60)
    assert cluster.states() == ["ready", "draining", "active"]
    cluster.now_s += 10.5
    cluster.controller.fleet.look_for_stalls()
    assert cluster.states() == ["degraded", "stalled", "active"], "it does not drain"
    cluster.report(draining=True, num_free_blocks=60)
    draining = cluster.view().instances[0]
    assert (draining.freeness_steps, draining.virtual_usage_blocks) == (None, None)
    assert draining.num_free_blocks == 60


async def test_the_load_of_an_instance() -> None:
    cluster = Cluster()
    cluster.up()
    head = QueueHead("r9", 1, 30, time.time() - 5.0, True, time.time() - 2.0)
    cluster.report(
        num_free_blocks=40,
        watermark_blocks=2,
        num_running=3,
        num_running_by_rank={0: 3},
        num_queued=1,
        queued_demand_blocks=30,
        queue_head=head,
        num_evictions=4,
    )
    cluster.mailbox.say(encode(DispatchAsked(DispatchRequested("r", "f-0", 100, 0, 1.0))), [])
    load = cluster.view().instances[0]
    assert load.freeness_steps == 16 * (98 - 60 - 30) / 4
    assert (load.virtual_usage_blocks, load.headroom_blocks, load.kv_cache_usage) == (90, 0, 0.6)
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_unreported_reqs) == (3, 1, 1)
    assert (load.num_steps, load.step_time_s, load.num_evictions) == (12, 0.007251, 4)
    assert load.queue_head is not None
    assert (load.queue_head.level, load.queue_head.evicted) == ("high", True)
    assert load.queue_head.waited_s == pytest.approx(5.0, abs=1.0)
    assert load.queue_head.evicted_for_s == pytest.approx(2.0, abs=1.0)


async def test_stopping() -> None:
    cluster = Cluster()
    cluster.up()
    cluster.hello("f-0", incarnation=1, num_live_reqs=3)
    cluster.controller.stop(drain=True, grace_s=0.0)
    view = cluster.view()
    assert (view.state, view.detail) == (ClusterState.STOPPING, "3 requests live")
    assert cluster.states() == ["stopping", "active", "active"], "they finish what they have"
    cluster.mailbox.lose("mem://i-0")
    assert cluster.states() == ["stopping", "stopping", "active"], "nothing starts it again"
    cluster.now_s += 100
    assert cluster.controller._stopping is not None
    await cluster.controller._stopping


# -- the listener -------------------------------------------------------------------------


@pytest.fixture
async def listener() -> AsyncIterator[tuple[Listener, httpx.AsyncClient]]:
    async with listening() as both:
        yield both


Both = tuple[Listener, httpx.AsyncClient]


async def test_no_part_of_an_answer_waits_for_an_acknowledgement(listener: Both) -> None:
    """Connections inherit this option."""
    own, _ = listener
    assert own.server._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_who_may_ask(listener: Both) -> None:
    _, client = listener
    refusals = [
        ({}, 401, "no_token"),
        ({"Authorization": ""}, 401, "no_token"),
        ({"Authorization": "Bearer wrong"}, 403, "bad_token"),
        ({"Authorization": TOKEN}, 403, "bad_token"),
        ({"Authorization": f"bearer {TOKEN}"}, 403, "bad_token"),
        (AUTHORIZED | {"Origin": "http://evil.example"}, 403, "foreign_origin"),
        (AUTHORIZED | {"Origin": "null"}, 403, "foreign_origin"),
    ]
    for headers, status, code in refusals:
        for path in ("/v1/status", "/nowhere"):
            answer = await client.get(path, headers=headers)
            assert answer.status_code == status, headers
            assert ErrorBody.model_validate_json(answer.content).code == code
            assert "default-src" not in answer.text
    assert (await client.get("/v1/status", headers=AUTHORIZED)).status_code == 200


async def test_the_status_is_the_view(listener: Both) -> None:
    own, client = listener
    answer = await client.get("/v1/status", headers=AUTHORIZED)
    assert answer.headers["content-type"] == "application/json"
    status = ClusterStatus.model_validate_json(answer.content)
    assert status.uptime_s < 60
    same = {"uptime_s": 1.0, "cluster_uptime_s": 1.0, "time_s": 1.0}
    assert status.model_copy(update=same) == own.cluster.view().model_copy(update=same)
    assert status.instances[0].state is InstanceState.ACTIVE


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/status/", 404),
        ("POST", "/v1/status", 405),
        ("GET", "/v1/stop", 405),
        ("DELETE", "/v1/settings", 405),
        ("PUT", "/v1/rolling-restart", 405),
    ],
)
async def test_unknown_paths_and_methods(
    listener: Both, method: str, path: str, status: int
) -> None:
    own, client = listener
    answer = await client.request(method, path, headers=AUTHORIZED)
    assert answer.status_code == status
    body = ErrorBody.model_validate_json(answer.content)
    assert body.code == {404: "not_found", 405: "method_not_allowed"}[status]
    assert len(answer.content) < 300
    allowed = {each for each, route in control_server.CALLS if route == path}
    named = set(answer.headers.get("allow", "").split(", ")) - {"HEAD", ""}
    assert named == (allowed if status == 405 else set())
    assert not own.cluster.controller.stopping


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"null", b"\xff\xfe", b'{"grace_s": "soon"}', b'{"drain": 7}', b"x" * 60_000],
)
async def test_a_malformed_stop_stops_nothing(listener: Both, body: bytes) -> None:
    own, client = listener
    answer = await client.post("/v1/stop", headers=AUTHORIZED, content=body)
    assert answer.status_code == 400
    assert ErrorBody.model_validate_json(answer.content).code == "bad_request"
    assert len(answer.content) < 500
    assert not own.cluster.controller.stopping


async def test_stop_is_idempotent_and_tells_how_far_it_has_come(listener: Both) -> None:
    own, client = listener
    controller = own.cluster.controller
    own.cluster.hello("f-0", incarnation=1, num_live_reqs=2)
    for body in (b'{"grace_s": 0}', b""):
        answer = await client.post("/v1/stop", headers=AUTHORIZED, content=body)
        assert answer.status_code == 200
        progress = StopProgress.model_validate_json(answer.content)
        assert (progress.stopped, progress.num_live_reqs) == (False, 2)
    own.cluster.hello("f-0", "stopped", incarnation=1)
    assert controller._stopping is not None
    await asyncio.wait_for(controller._stopping, 5.0)
    answer = await client.post("/v1/stop", headers=AUTHORIZED)
    assert StopProgress.model_validate_json(answer.content).stopped


async def test_a_controller_that_fails_ends_its_listener() -> None:
    listener = Listener()
    listener.close()

    async def work() -> None:
        raise RuntimeError("a bug")

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug")):
        await asyncio.wait_for(listener.server.run_beside(work()), 5.0)


async def test_a_listener_that_ends_ends_its_controller() -> None:
    listener, cancelled = Listener(), asyncio.Event()
    listener.close()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    listener.server._server.should_exit = True
    await asyncio.wait_for(listener.server.run_beside(work()), 5.0)
    assert cancelled.is_set()


# -- connections --------------------------------------------------------------------------


async def sent(listener: Listener, data: bytes) -> bytes:
    """Everything that is answered to these bytes, up to the connection's end."""
    host, port = listener.server._socket.getsockname()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 5.0)
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /v1/status HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, 431),
        (b"GET /v1/status HTTP/1.1\r\na: " + b"b" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"\0\1\2\r\n\r\n", 400),
    ],
)
async def test_heads_are_bounded_before_a_token_is_known(
    listener: Both, caplog: pytest.LogCaptureFixture, data: bytes, status: int
) -> None:
    own, client = listener
    answer = await sent(own, data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert ErrorBody.model_validate_json(body).message
    assert caplog.records == [], "strangers do not fill the log"
    assert (await client.get("/v1/status", headers=AUTHORIZED)).status_code == 200


async def test_a_head_comes_in_time(listener: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.adapters.connections.HEAD_TIMEOUT_S", 0.1)
    own, _ = listener
    assert (await sent(own, b"GET /v1/status HTTP/1.1\r\na:")).startswith(b"HTTP/1.1 408 ")
    assert await sent(own, b"") == b"", "who says nothing is answered nothing"


async def test_who_opens_many_connections_keeps_nobody_out(listener: Both) -> None:
    own, client = listener
    own.server._server.config.http.max_open = 4  # type: ignore[union-attr]
    async with client.stream("GET", "/v1/watch", headers=AUTHORIZED) as watching:
        frames = watching.aiter_lines()
        await anext(frames)
        address = own.server._socket.getsockname()
        strangers = [await asyncio.open_connection(*address) for _ in range(6)]
        for reader, _ in strangers[:3]:  # the watcher's is one of the four
            assert await asyncio.wait_for(reader.read(), 5.0) == b""
        assert (await client.get("/v1/status", headers=AUTHORIZED)).status_code == 200
        assert await asyncio.wait_for(anext(frames), 5.0)
        for _, writer in strangers:
            writer.close()


# -- the description ----------------------------------------------------------------------


async def test_the_description_has_each_route(listener: Both) -> None:
    own, client = listener
    routes = own.server._server.config.app.routes  # type: ignore[union-attr]
    served = {
        (method, route.path) for route in routes for method in route.methods if method != "HEAD"
    }
    assert set(control_server.CALLS) == served
    assert (await client.get("/openapi.json")).status_code == 401
    answer = await client.get("/openapi.json", headers=AUTHORIZED)
    found = answer.json()
    assert {path for _, path in served} == set(found["paths"])
    schemas, references = (
        found["components"]["schemas"],
        set(re.findall(r'"#/components/schemas/(\w+)"', answer.text)),
    )
    assert references == set(schemas)
    scale = found["paths"]["/v1/scale"]["post"]
    assert scale["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/ScaleRequest"
    )
    assert schemas["ScaleRequest"]["additionalProperties"] is False
    assert {each["name"] for each in scale["parameters"]} == {"Idempotency-Key"}
    (limit,) = found["paths"]["/v1/operations"]["get"]["parameters"]
    assert (limit["in"], limit["schema"]["maximum"]) == ("query", 200)
