"""The control API's listener, and what it reports of clusters in every state."""

import asyncio
import json
import re
import socket
import time
from typing import Any

import pytest
from starlette.routing import Route

from controller.adapters.http import control_server, model_api
from controller.adapters.http.model_api import MAX_LINE_CHARS, MAX_LINES
from controller.api.wire.status import ClusterState, ClusterStatus, StopProgress
from controller.core.load.snapshot import QueueHead
from controller.core.record.event_log import EventKind
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.messages.codec import encode
from controller.runtime.messages.requests import DispatchAsked
from tests.unit.control.control_support import VIEW_TOKEN, Both, Cluster, Listener, listening

PATIENCE_S = 5.0
VIEWER = {"Authorization": f"Bearer {VIEW_TOKEN}"}

# -- views --------------------------------------------------------------------------------


async def test_a_cluster_starts() -> None:
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


async def test_a_failed_start_fails_the_cluster_and_a_later_failure_degrades_it() -> None:
    cluster = Cluster(num_instances=2)
    cluster.hello("i-1", "failed", detail="RuntimeError: no memory")
    assert cluster.states() == ["failed", "starting", "failed", "starting"]
    assert cluster.view().detail == "i-1: RuntimeError: no memory"
    later = Cluster()
    later.up()
    later.hello("i-0", "failed", nonce="b", detail="why")
    assert later.states() == ["degraded", "failed", "active"]
    assert later.view().detail == "i-0 is failed"


async def test_a_member_that_is_gone_is_restarting_and_the_cluster_degraded() -> None:
    cluster = Cluster(num_instances=2)
    cluster.up()
    cluster.mailbox.lose("mem://i-1")
    assert cluster.states() == ["degraded", "active", "restarting", "active"]
    gone = cluster.view().instances[1]
    assert (gone.pid, gone.num_free_blocks, gone.freeness_steps) == (None, None, None)
    cluster.hello("i-1", "starting", nonce="b")
    again = cluster.view().instances[1]
    assert (again.state, again.incarnation) == ("restarting", 2)
    assert (again.num_restarts, again.pid) == (1, 77)
    assert (again.num_free_blocks, again.freeness_steps) == (None, None), "its predecessor's"
    cluster.hello("i-1", nonce="b", incarnation=2)
    assert cluster.states() == ["degraded", "active", "restarting", "active"], "no status yet"
    cluster.report("i-1", 2)
    assert cluster.states() == ["ready", "active", "active", "active"]


async def test_an_instance_whose_engine_is_silent_is_stalled() -> None:
    cluster = Cluster()
    cluster.up()
    for draining, state in ((False, "active"), (True, "draining")):
        cluster.report(draining=draining, num_free_blocks=60)
        assert cluster.states() == ["ready", state, "active"]
        found = cluster.view().instances[0]
        assert (found.freeness_steps is None) == (found.virtual_usage_blocks is None) == draining
        cluster.now_s += 10.5
        cluster.controller.fleet.look_for_stalls()
        assert cluster.states() == ["degraded", "stalled", "active"]
        stalled = cluster.view().instances[0]
        assert (stalled.age_s, stalled.num_free_blocks) == (10.5, 60)


async def test_the_load_of_an_instance() -> None:
    cluster = Cluster()
    cluster.up()
    load: dict[str, Any] = {"num_free_blocks": 40, "watermark_blocks": 2, "num_running": 3}
    load |= {"num_running_by_rank": {0: 3}, "num_queued": 1, "queued_demand_blocks": 30}
    head = QueueHead("r9", 1, 30, time.time() - 5.0, True, time.time() - 2.0)
    cluster.report(queue_head=head, num_evictions=4, **load)
    cluster.mailbox.say(encode(DispatchAsked(DispatchRequested("r", "f-0", 100, 0, 1.0))), [])
    found = cluster.view().instances[0]
    assert found.freeness_steps == 16 * (98 - 60 - 30) / 4
    assert (found.virtual_usage_blocks, found.headroom_blocks, found.kv_cache_usage) == (90, 0, 0.6)
    assert (found.num_running_reqs, found.num_waiting_reqs, found.num_unreported_reqs) == (3, 1, 1)
    assert (found.num_steps, found.step_time_s, found.num_evictions) == (12, 0.007251, 4)
    assert (found.queue_head.level, found.queue_head.evicted) == ("high", True)
    assert found.queue_head.waited_s == pytest.approx(5.0, abs=1.0)
    assert found.queue_head.evicted_for_s == pytest.approx(2.0, abs=1.0)


# -- the listener -------------------------------------------------------------------------


async def test_no_part_of_an_answer_waits_for_an_acknowledgement(both: Both) -> None:
    """Connections inherit this option."""
    assert both[0].socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_who_has_the_view_token_may_look(both: Both) -> None:
    own, client = both
    for path in ("/v1/events", "/v1/settings", "/v1/requests", "/v1/operations", "/openapi.json"):
        assert (await client.get(path, headers=VIEWER)).status_code == 200, path
    metrics = await client.get("/metrics", headers=VIEWER)
    assert metrics.text == "of c1"
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    answer = await client.get("/v1/status", headers=VIEWER)
    status = ClusterStatus.model_validate_json(answer.content)
    assert status.uptime_s < 60
    same = {"uptime_s": 1.0, "cluster_uptime_s": 1.0, "time_s": 1.0, "verdict": None, "alarms": ()}
    same |= {"tokens_per_s": None, "tokens_per_instance_hour": None}
    assert status.model_copy(update=same) == own.cluster.view().model_copy(update=same)


async def test_stop_is_idempotent_and_tells_how_far_it_has_come(both: Both) -> None:
    own, client = both
    cluster = own.cluster
    cluster.hello("f-0", incarnation=1, num_live_reqs=2)
    for body in (b'{"grace_s": 0}', b""):
        answer = await client.post("/v1/stop", content=body)
        assert answer.status_code == 200
        progress = StopProgress.model_validate_json(answer.content)
        assert (progress.stopped, progress.num_live_reqs) == (False, 2)
    view = cluster.view()
    assert (view.state, view.detail) == (ClusterState.STOPPING, "2 requests live")
    assert cluster.states() == ["stopping", "active", "active"], "they finish what they have"
    cluster.mailbox.lose("mem://i-0")
    assert cluster.states() == ["stopping", "stopping", "active"], "nothing starts it again"
    cluster.hello("f-0", "stopped", incarnation=1)
    async with asyncio.timeout(PATIENCE_S):
        while not StopProgress.model_validate_json((await client.post("/v1/stop")).content).stopped:
            await asyncio.sleep(0.01)


async def test_a_controller_and_its_listener_end_together() -> None:
    fails, ends, cancelled = Listener(), Listener(), asyncio.Event()
    fails.close()
    ends.close()

    async def fail() -> None:
        raise RuntimeError("a bug")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug")):
        await asyncio.wait_for(fails.server.run_beside(fail()), PATIENCE_S)
    ends.uvicorn.should_exit = True
    await asyncio.wait_for(ends.server.run_beside(work()), PATIENCE_S)
    assert cancelled.is_set()


async def test_who_opens_many_connections_keeps_nobody_out(both: Both) -> None:
    own, client = both
    own.uvicorn.config.http.max_open = 4
    async with client.stream("GET", "/v1/watch?status_every_s=0.1") as watching:
        frames = watching.aiter_lines()
        await anext(frames)
        strangers = [await asyncio.open_connection(*own.address) for _ in range(6)]
        for reader, _ in strangers[:3]:  # the watcher's is one of the four
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        assert (await client.get("/v1/status")).status_code == 200
        assert await asyncio.wait_for(anext(frames), PATIENCE_S)
        for _, writer in strangers:
            writer.close()


async def test_the_description_has_each_route(both: Both) -> None:
    own, client = both
    routes = own.uvicorn.config.app.routes
    served = {
        (method, route.path)
        for route in routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert set(control_server.CALLS) == served
    answer = await client.get("/openapi.json")
    assert set(answer.json()["paths"]) == {path for _, path in served}
    schemas = answer.json()["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', answer.text)) == set(schemas)


async def test_the_last_lines_of_a_member_s_log(both: Both) -> None:
    own, client = both

    async def lines(member_id: str, number: int) -> list[str]:
        answer = await client.get(f"/v1/members/{member_id}/log?lines={number}", headers=VIEWER)
        found: list[str] = answer.json()["lines"]
        return found

    path = own.folder / "i-0.log"
    path.write_text("".join(f"line {n}\n" for n in range(900)) + "not \x1b[2Jended")
    assert await lines("i-0", 3) == ["line 898", "line 899", "not \x1b[2Jended"]
    (own.folder / "controller.log").write_text("x" * 5000)
    assert await lines("controller", MAX_LINES) == ["x" * MAX_LINE_CHARS]


# -- the audit log ------------------------------------------------------------------------


async def test_each_action_is_in_the_audit_log_and_is_an_event(both: Both) -> None:
    own, client = both
    client.headers["X-Llumctl-Actor"] = "ana@host"
    for token in ("wrong", VIEW_TOKEN):
        refused = await client.post("/v1/stop", headers={"Authorization": f"Bearer {token}"})
        assert refused.status_code == 403
    for body in ({"grace_s": 9}, {"grace_s": 9}, {"drain": False}):
        assert (await client.post("/v1/stop", json=body)).status_code == 200
    entries = own.audit.tail()
    assert [(entry["action"], entry["outcome"]) for entry in entries] == [
        ("POST /v1/stop", "refused: view_only"),  # a stranger's call is no operator's action
        ("stop: grace 9 s", "begun"),  # asked twice, begun once
        ("stop at once", "begun"),
    ]
    assert all(entry["actor"] == "ana@host from 127.0.0.1" for entry in entries)
    assert VIEW_TOKEN not in own.audit.path.read_text()
    events = (await client.get("/v1/events")).json()["events"]
    told = [(e["cause_id"], e["actor"]) for e in events if e["kind"] == "operator"]
    assert told == [(entry["cause_id"], entry["actor"]) for entry in entries]


async def test_events_are_found_by_words(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_api, "SEARCHED_AT_ONCE", 3)
    own, client = both
    journal = own.cluster.controller.journal
    for number in range(10):
        journal.note(EventKind.EVICTED, f"step-{number}", instance_id="i-0", request_id="r")
        journal.note(EventKind.FINISHED, f"arrive-{number}", "stop", instance_id="i-1")

    async def found(**query: str | int) -> tuple[list[str], int]:
        answer = (await client.get("/v1/events", params=query)).json()
        return [each["cause_id"] for each in answer["events"]], answer["num_searched"]

    every = len((await client.get("/v1/events")).json()["events"])
    assert await found(matching="STOP !arrive-3", limit=4) == (
        [f"arrive-{number}" for number in (6, 7, 8, 9)],
        every,
    )
    assert await found(matching="i-0 step-7") == (["step-7"], every)
    assert await found(matching="nobody") == ([], every)
    assert (await found(matching=" "))[1] == 0, "without words it is a page"


async def test_a_stop_that_cannot_be_recorded_is_refused(both: Both) -> None:
    own, client = both
    own.audit.path.mkdir()
    answer = await client.post("/v1/stop")
    assert (answer.status_code, answer.json()["code"]) == (500, "not_audited")
    assert "nothing was done" in answer.json()["message"]
    assert not own.cluster.controller.stopping
    answer = await client.post("/v1/stop", headers=VIEWER)
    assert (answer.status_code, answer.json()["code"]) == (403, "view_only")


async def test_refused_calls_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scraper that posts with the view token neither fills the disk nor empties the log."""
    monkeypatch.setattr("controller.adapters.http.perform.REFUSALS_EVERY_S", 0.2)

    def num_refused(actions: list[str]) -> int:
        summed_up = " calls, the latest of them "
        return sum(int(each.split()[0]) if summed_up in each else 1 for each in actions)

    async with listening() as (own, client):
        calls = [client.post(f"/v1/stop/{n}", headers=VIEWER) for n in range(50)]
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {403}
        await client.post("/v1/scale" + "e" * 500, headers=VIEWER)
        async with asyncio.timeout(PATIENCE_S):
            while num_refused(actions := [each["action"] for each in own.audit.tail()]) != 51:
                await asyncio.sleep(0.01)
        assert len(actions) < 20
        assert "POST /v1/scaleeee" in actions[-1]
        answer = await client.get("/v1/events", headers=VIEWER)
        operators = [e["reason"] for e in answer.json()["events"] if e["kind"] == "operator"]
        assert len(operators) == len(actions)
        assert max(map(len, operators)) < 300
        for _ in range(3):
            await client.post("/v1/stop", headers=VIEWER)
        path, close = own.audit.path, own.close
        own.close = lambda: None
    written = [json.loads(line)["action"] for line in path.read_text().splitlines()]
    assert num_refused(written) == 54, "the last ones when the server ends"
    close()
