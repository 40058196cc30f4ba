"""Events, the watch stream, requests and the tokens of the control API, on a real socket."""

import asyncio
import json
import os
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.adapters.http.cluster_view import cluster_status
from controller.api.state.audit import AuditLog
from controller.api.wire.requests import EventPage, RequestDetail, RequestList
from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import (
    EventFrame,
    Frame,
    GapFrame,
    PingFrame,
    StatusFrame,
    parse_frame,
)
from controller.core.record.event_log import EventKind, EventLog, LoggedEvent
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import EventsReported
from controller.runtime.messages.requests import DispatchAsked
from tests.unit.control_support import AUTHORIZED, VIEW_TOKEN, Cluster, Listener, listening

PATIENCE_S = 5.0
Both = tuple[Listener, httpx.AsyncClient]


@pytest.fixture
async def both(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Both]:
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.05)
    async with listening() as (listener, client):
        client.headers.update(AUTHORIZED)
        yield listener, client


async def read(lines: AsyncIterator[str], num_frames: int, *, pings: bool = False) -> list[Frame]:
    frames: list[Frame] = []
    while len(frames) < num_frames:
        line = await asyncio.wait_for(anext(lines), PATIENCE_S)
        frame = parse_frame(line.encode())
        assert frame is not None
        if pings or not isinstance(frame, PingFrame):
            frames.append(frame)
    return frames


def happened(cluster: Cluster, *request_ids: str) -> None:
    events = tuple(
        LoggedEvent(EventKind.EVICTED, 5.0, "step-i-0-1-9", "memory pressure", request_id=r)
        for r in request_ids
    )
    cluster.mailbox.say(encode(EventsReported("i-0", 1, 0, events)), [])


async def test_what_happens_is_logged_with_its_cause(both: Both) -> None:
    own, client = both
    ask = DispatchAsked(DispatchRequested("r1", "f-0", 40, 1, 3.0))
    own.cluster.mailbox.say(encode(ask), [])
    happened(own.cluster, "r1")
    own.cluster.mailbox.lose("mem://i-0")
    own.cluster.hello("i-0", "failed", nonce="b", detail="out of memory")
    page = EventPage.model_validate_json((await client.get("/v1/events")).content)
    told = [(e.kind, e.cause_id, e.instance_id or e.frontend_id) for e in page.events]
    assert told == [
        ("controller_started", "start-controller", None),
        ("frontend_started", "start-f-0-1", "f-0"),
        ("instance_started", "start-i-0-1", "i-0"),
        ("dispatched", "arrive-r1", "i-0"),
        ("evicted", "step-i-0-1-9", None),
        ("instance_died", "lost-i-0-1", "i-0"),
        ("instance_failed", "start-i-0-2", "i-0"),
    ]
    assert page.events[-1].reason == "out of memory"
    assert page.events[3].numbers["num_candidates"] == 1
    rest = (await client.get("/v1/events", params={"after": page.events[-2].position})).json()
    assert [event["kind"] for event in rest["events"]] == ["instance_failed"]
    own.cluster.mailbox.say(encode(ask), [])  # now nothing may take it: held, then refused
    own.cluster.now_s += 100.0
    from controller.core.scheduler_events import Ticked

    own.cluster.controller.handle(Ticked())
    rest = (await client.get("/v1/events", params={"after": page.next_position})).json()
    assert [(e["kind"], e["reason"]) for e in rest["events"]] == [("rejected", "unavailable")]


async def test_a_stall_and_its_end_are_events(both: Both) -> None:
    own, client = both
    controller = own.cluster.controller
    for seconds in (20.0, 1.0):
        own.cluster.now_s += seconds
        controller.fleet.look_for_stalls()
    own.cluster.report()
    controller.fleet.look_for_stalls()
    events = (await client.get("/v1/events")).json()["events"]
    told = [(e["kind"], e["numbers"]["silence_s"]) for e in events if "silence_s" in e["numbers"]]
    assert told == [("instance_stalled", 20.0), ("instance_recovered", 21.0)]
    own.cluster.now_s += 20.0
    controller.fleet.look_for_stalls()
    own.cluster.hello("i-0", nonce="b")  # stalled for ever: another process took its place
    own.cluster.report(incarnation=2)
    controller.fleet.look_for_stalls()
    events = (await client.get("/v1/events")).json()["events"]
    kinds = [event["kind"] for event in events]
    assert kinds.count("instance_stalled") == 2
    assert kinds.count("instance_recovered") == 1


async def test_watching_statuses_and_events(both: Both) -> None:
    own, client = both
    params = {"after": "latest", "status_every_s": "0.1"}
    async with client.stream("GET", "/v1/watch", params=params) as stream:
        lines = stream.aiter_lines()
        first, second = await read(lines, 2)
        assert isinstance(first, StatusFrame)
        assert isinstance(second, StatusFrame)
        assert first.status.cluster == "c1"
        happened(own.cluster, "r1", "r2")
        seen = []
        while len(seen) < 2:
            (frame,) = await read(lines, 1)
            if isinstance(frame, EventFrame):
                seen.append(frame.event.request_id)
        assert seen == ["r1", "r2"]


async def test_resuming_after_a_position_and_a_gap(both: Both) -> None:
    own, client = both
    own.cluster.controller.journal.log = EventLog("x", 3, ())
    happened(own.cluster, *"abcde")
    params = {"after": "x-1"}
    async with client.stream("GET", "/v1/watch", params=params) as stream:
        gap, *events = await read(stream.aiter_lines(), 4)
    assert isinstance(gap, GapFrame)
    assert gap.missed == 1
    assert [e.event.request_id for e in events if isinstance(e, EventFrame)] == ["c", "d", "e"]
    async with client.stream("GET", "/v1/watch", params={"after": "of-1"}) as stream:
        (gap,) = await read(stream.aiter_lines(), 1)
    assert isinstance(gap, GapFrame)
    assert gap.missed is None, "a position of another controller"


async def test_a_quiet_stream_pings(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.adapters.http.control_server.PING_EVERY_S", 0.05)
    _, client = both
    async with client.stream("GET", "/v1/watch", params={"events": "false"}) as stream:
        frames = await read(stream.aiter_lines(), 3, pings=True)
    assert all(isinstance(frame, PingFrame) for frame in frames)


async def test_watchers_that_leave_are_forgotten(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.adapters.http.control_server.MAX_WATCHERS", 1)
    own, client = both
    async with client.stream("GET", "/v1/watch") as stream:
        await read(stream.aiter_lines(), 1, pings=True)
        refused = await client.get("/v1/watch")
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_watchers")

    async def nobody_watches() -> None:
        while own.server._num_watchers:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(nobody_watches(), PATIENCE_S)
    async with client.stream("GET", "/v1/watch") as stream:
        assert stream.status_code == 200


def book(own: Listener) -> RequestBook:
    found = RequestBook("f-0", {0: "normal"})
    own.cluster.mailbox.engine_state["mem://f-0"] = found
    return found


async def test_requests_and_one_with_its_history(both: Both) -> None:
    own, client = both
    its = book(own)
    for number, request_id in enumerate(("aa-1", "ab-2", "0_p-3", "1_p-4")):
        parent = "p" if "_" in request_id else None
        its.arrived(
            DispatchRequested(request_id, "f-0", 8, 0, 100.0 + number),
            parent or f"client-{number}",
            parent,
        )
    its.dispatched(Dispatch("ab-2", "f-0", "i-0", 1, 1, (("i-0", 3.0),)))
    its.ended("aa-1", RequestState.ABORTED, "the client left")
    listed = RequestList.model_validate_json((await client.get("/v1/requests")).content)
    assert listed.num_matching == 4
    assert [r.id for r in listed.requests] == ["ab-2", "0_p-3", "1_p-4", "aa-1"]
    params: dict[str, Any] = {"state": ["waiting", "aborted"], "limit": 1}
    some = RequestList.model_validate_json(
        (await client.get("/v1/requests", params=params)).content
    )
    assert (len(some.requests), some.num_matching) == (1, 2)
    here = (await client.get("/v1/requests", params={"instance": "i-0"})).json()
    assert [r["id"] for r in here["requests"]] == ["ab-2"]
    assert "history" not in here["requests"][0]
    for reference in ("ab-2", "ab", "client-1", "a"):
        answer = await client.get(f"/v1/requests/{reference}")
        detail = RequestDetail.model_validate_json(answer.content)
        assert (detail.id, detail.instance_id) == ("ab-2", "i-0")
        assert [event.kind for event in detail.history] == ["dispatched"]
    for reference, status, code in (
        ("p", 409, "ambiguous"),
        ("zz", 404, "no_such_request"),
    ):
        answer = await client.get(f"/v1/requests/{reference}")
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "0_p-3, 1_p-4" in (await client.get("/v1/requests/p")).json()["message"]


async def test_a_name_that_was_used_before_is_that_of_the_only_one_that_lives(both: Both) -> None:
    own, client = both
    its = book(own)
    for number, request_id in enumerate(("old-1", "old-2", "new-3", "new-4")):
        its.arrived(DispatchRequested(request_id, "f-0", 8, 0, 100.0 + number), "client", None)

    async def found(reference: str) -> tuple[int, str]:
        answer = await client.get(f"/v1/requests/{reference}")
        return answer.status_code, answer.json().get("id", answer.json().get("message"))

    all_ids = "old-1, old-2, new-3, new-4"
    assert await found("client") == (409, f"'client' names 4 sequences: {all_ids}")
    for request_id in ("old-1", "old-2", "new-4"):
        its.ended(request_id, RequestState.FINISHED, "stop")
    assert await found("client") == (200, "new-3")
    assert await found("new") == (200, "new-3")
    assert await found("old-1") == (200, "old-1"), "its own id comes first, alive or not"
    assert (await found("old"))[0] == 409, "none of them lives"
    its.ended("new-3", RequestState.FINISHED, "stop")
    status, message = await found("client")
    assert (status, sorted(message.partition(": ")[2].split(", "))) == (
        409,
        sorted(all_ids.split(", ")),
    )


async def test_a_client_s_id_is_found_among_many_that_begin_with_it(both: Both) -> None:
    own, client = both
    its = book(own)
    for number in range(190):
        its.arrived(
            DispatchRequested(f"req-1{number:03}-x", "f-0", 8, 0, 100.0), f"req-1{number:03}", None
        )
    its.arrived(DispatchRequested("req-1-x", "f-0", 8, 0, 50.0), "req-1", None)
    its.ended("req-1-x", RequestState.FINISHED, "stop")
    assert (await client.get("/v1/requests/req-1")).json()["id"] == "req-1-x"
    message = (await client.get("/v1/requests/req-")).json()["message"]
    assert "names 191 sequences" in message
    assert "and 181 more" in message


async def test_what_a_member_could_not_tell_is_counted(both: Both) -> None:
    own, client = both
    event = LoggedEvent(EventKind.EVICTED, 5.0, "step-i-0-1-9", request_id="r")
    for num_before, num_events in ((7, 1), (8, 2), (15, 1)):
        told = EventsReported("i-0", 1, num_before, (event,) * num_events)
        own.cluster.mailbox.say(encode(told), [])
    events = (await client.get("/v1/events")).json()["events"][-5:]
    assert [e["kind"] for e in events] == ["evicted"] * 3 + ["events_lost", "evicted"]
    assert (events[3]["instance_id"], events[3]["numbers"]) == ("i-0", {"num_lost": 5})


async def test_a_frontend_that_does_not_answer_is_named(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.05)
    own, client = both
    listed = RequestList.model_validate_json((await client.get("/v1/requests")).content)
    assert (listed.requests, listed.silent_frontends) == ((), ("f-0",))
    missing = (await client.get("/v1/requests/r")).json()
    assert "no answer from f-0" in missing["message"]
    own.cluster.mailbox.lose("mem://f-0")
    gone = RequestList.model_validate_json((await client.get("/v1/requests")).content)
    assert gone.silent_frontends == ("f-0",)


async def test_the_view_token_looks_and_does_not_act(both: Both) -> None:
    own, client = both
    viewer = {"Authorization": f"Bearer {VIEW_TOKEN}"}
    for path in ("/v1/status", "/v1/events", "/metrics"):
        assert (await client.get(path, headers=viewer)).status_code == 200, path
    refused = await client.post("/v1/stop", headers=viewer)
    assert (refused.status_code, refused.json()["code"]) == (403, "view_only")
    assert not own.cluster.controller.stopping


async def test_metrics_are_of_the_present_status(both: Both) -> None:
    _, client = both
    answer = await client.get("/metrics")
    assert answer.text == "of c1"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_every_action_is_in_the_audit_log_and_is_an_event(both: Both) -> None:
    own, client = both
    client.headers["X-Llumctl-Actor"] = "ana@host"
    for token in ("wrong", VIEW_TOKEN):
        refused = await client.post("/v1/stop", headers={"Authorization": f"Bearer {token}"})
        assert refused.status_code == 403
    for body in ({"grace_s": 9}, {"grace_s": 9}, {"drain": False}):
        assert (await client.post("/v1/stop", json=body)).status_code == 200
    entries = [json.loads(line) for line in own.audit.path.read_text().splitlines()]
    assert [(entry["action"], entry["outcome"]) for entry in entries] == [
        ("POST /v1/stop", "refused: view_only"),  # a stranger's call is no operator's action
        ("stop: grace 9 s", "begun"),  # asked twice, begun once
        ("stop at once", "begun"),
    ]
    assert all(entry["actor"] == "ana@host from 127.0.0.1" for entry in entries)
    assert stat.S_IMODE(os.stat(own.audit.path).st_mode) == 0o600  # noqa: PTH116
    assert VIEW_TOKEN not in own.audit.path.read_text()
    events = (await client.get("/v1/events")).json()["events"]
    told = [(e["cause_id"], e["actor"]) for e in events if e["kind"] == "operator"]
    assert told == [(entry["cause_id"], entry["actor"]) for entry in entries]


async def test_refused_calls_are_summed_up(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scraper that posts with the view token neither fills the disk nor empties the log."""
    own, client = both
    viewer = {"Authorization": f"Bearer {VIEW_TOKEN}"}
    every_s, began_s = 0.2, time.monotonic()
    monkeypatch.setattr("controller.adapters.http.perform.REFUSALS_EVERY_S", every_s)
    calls = [client.post(f"/v1/stop/{n}", headers=viewer) for n in range(20)]
    assert {answer.status_code for answer in await asyncio.gather(*calls)} == {403}
    long = await client.post("/v1/scale" + "e" * 500, headers=viewer)
    assert long.status_code == 403

    async def recorded(num_calls: int) -> list[str]:
        while True:
            lines = own.audit.path.read_text().splitlines()
            actions = [str(json.loads(line)["action"]) for line in lines]
            if sum(map(num_summed_up, actions)) == num_calls:
                return actions
            await asyncio.sleep(0.01)

    actions = await asyncio.wait_for(recorded(21), PATIENCE_S)
    assert actions[0].startswith("POST /v1/stop/")
    # A slow machine takes more than one interval for the calls.
    assert len(actions) <= 2 + (time.monotonic() - began_s) / every_s
    assert "POST /v1/scaleeee" in actions[-1]
    page = EventPage.model_validate_json((await client.get("/v1/events")).content)
    operators = [event.reason for event in page.events if event.kind == "operator"]
    assert len(operators) == len(actions)
    assert max(map(len, operators)) < 300
    assert (await client.get("/v1/operations")).json()["operations"] == []


def num_summed_up(action: str) -> int:
    """Calls that an entry of the audit log stands for."""
    return int(action.split()[0]) if " calls, the last of them " in action else 1


async def test_what_was_refused_last_is_recorded_when_the_server_ends() -> None:
    async with listening() as (own, client):
        for _ in range(3):
            viewer = {"Authorization": f"Bearer {VIEW_TOKEN}"}
            assert (await client.post("/v1/stop", headers=viewer)).status_code == 403
        path, close = own.audit.path, own.close
        own.close = lambda: None
    assert "2 calls, the last of them POST /v1/stop" in path.read_text().splitlines()[-1]
    close()


async def test_a_call_is_refused_on_a_full_disk_too(both: Both) -> None:
    own, client = both
    own.audit.path.mkdir()
    viewer = {"Authorization": f"Bearer {VIEW_TOKEN}"}
    answer = await client.post("/v1/stop", headers=viewer)
    assert (answer.status_code, answer.json()["code"]) == (403, "view_only")


async def test_watchers_share_one_status(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    own, client = both
    built = 0

    def counted(*args: Any) -> ClusterStatus:
        nonlocal built
        built += 1
        return cluster_status(*args)

    monkeypatch.setattr("controller.adapters.http.control_server.cluster_status", counted)
    own.server._statuses.lasts_s = 60.0

    async def watch() -> None:
        query = "/v1/watch?events=false&status_every_s=0.05"
        async with client.stream("GET", query) as answer:
            lines = answer.aiter_lines()
            frames = await read(lines, 3)
            assert [type(frame) for frame in frames] == [StatusFrame] * 3

    await asyncio.gather(*(watch() for _ in range(8)))
    assert built == 1
    # What an operator has changed shows in the next status, however young the last one is.
    before = ClusterStatus.model_validate_json((await client.get("/v1/status")).content)
    assert (await client.post("/v1/instances/i-0/drain", json={"force": True})).status_code == 200
    after = ClusterStatus.model_validate_json((await client.get("/v1/status")).content)
    assert (built, after.revision) == (2, before.revision + 1)


def test_what_others_sent_does_not_forge_entries(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    audit.write(
        actor="ana\n{}\x1b[2J", action="x" * 5000, target="", outcome="done", cause_id="op-1"
    )
    (line,) = audit.path.read_text().splitlines()
    entry = json.loads(line)
    assert entry["actor"] == "ana?{}?[2J"
    assert len(entry["action"]) == 200


async def test_what_cannot_be_audited_is_not_done(both: Both) -> None:
    own, client = both
    own.audit.path.mkdir()
    answer = await client.post("/v1/stop")
    assert (answer.status_code, answer.json()["code"]) == (500, "not_audited")
    assert "nothing was done" in answer.json()["message"]
    assert not own.cluster.controller.stopping
