"""The commands that read, against the real control API."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import EventsReported
from llumctl import output
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.control_support import TOKEN, Listener, listening

Captured = pytest.CaptureFixture[str]


@pytest.fixture
async def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.05)
    async with listening() as (served, _):
        remember(served.url, token=TOKEN)
        yield served


async def llumctl(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def evict(listener: Listener, request_id: str) -> None:
    event = LoggedEvent(
        EventKind.EVICTED, 5.0, "step-i-0-1-9", "memory pressure", "i-0", 1, request_id=request_id
    )
    listener.cluster.mailbox.say(encode(EventsReported("i-0", 1, 0, (event,))), [])


def serve_one_request(listener: Listener) -> None:
    book = RequestBook("f-0", {0: "normal"})
    book.arrived(DispatchRequested("r-1", "f-0", 120, 0, 1_700_000_000.0), "cmpl-1", None)
    book.dispatched(Dispatch("r-1", "f-0", "i-0", 1, 1, (("i-0", 520.0),)))
    listener.cluster.mailbox.engine_state["mem://f-0"] = book


async def test_events(listener: Listener, capsys: Captured) -> None:
    evict(listener, "r-1")
    assert await llumctl("events", "-o", "json") == 0
    page = json.loads(capsys.readouterr().out)
    last = page["events"][-1]
    assert (last["kind"], last["request_id"]) == ("evicted", "r-1")
    assert page["next_position"] == last["position"]
    assert await llumctl("events", "--after", last["position"]) == 0
    assert capsys.readouterr().err == "no such events are kept\n"
    assert await llumctl("events", "--after", "other-9", "-o", "name", "-n", "1") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{last['position']}\n"
    assert captured.err.startswith("gap: the controller restarted")


async def test_events_are_followed(
    listener: Listener, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(output, "emit", seen.append)
    monkeypatch.setattr(output, "reader_left", lambda: len(seen) > 2)
    following = asyncio.create_task(llumctl("events", "-f", "-n", "1", "-o", "jsonl"))
    await until(lambda: len(seen) == 1)
    for request_id in ("r-7", "r-8"):
        evict(listener, request_id)
    assert await following == 0
    assert [json.loads(line)["request_id"] for line in seen[1:]] == ["r-7", "r-8"]
    assert capsys.readouterr().err == ""


async def test_requests(listener: Listener, capsys: Captured) -> None:
    serve_one_request(listener)
    assert await llumctl("requests", "--state", "waiting,running", "-n", "5") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines()[1].split()[:5] == ["r-1", "cmpl-1", "waiting", "normal", "i-0"]
    for reference in ("r-1", "cmpl-1", "r-"):
        assert await llumctl("requests", reference, "-o", "name") == 0
        assert capsys.readouterr().out == "r-1\n"
    assert await llumctl("requests", "r-1") == 0
    assert "dispatched" in capsys.readouterr().out
    assert await llumctl("requests", "r-9") == 4
    assert await llumctl("requests", "--instance", "i-9") == 4
    assert await llumctl("requests", "a/b") == 4
    capsys.readouterr()


async def test_wait(listener: Listener, capsys: Captured) -> None:
    assert await llumctl("status", "--wait=ready", "--timeout", "0") == 0
    assert await llumctl("status", "--wait=idle", "--timeout", "0") == 0
    assert await llumctl("status", "--wait=instance/i-9=active") == 4
    assert await llumctl("status", "--wait=cluster=degraded", "--timeout", "0") == 124
    waiting = asyncio.create_task(llumctl("status", "--wait=cluster=degraded"))
    listener.cluster.mailbox.lose("mem://i-0")
    assert await waiting == 0
    serve_one_request(listener)
    assert await llumctl("status", "--wait=request/r-1=waiting") == 0
    assert capsys.readouterr().err.endswith("request r-1 is waiting\n")


async def test_a_request_by_a_name_that_several_have(listener: Listener, capsys: Captured) -> None:
    serve_one_request(listener)
    book = listener.cluster.mailbox.engine_state["mem://f-0"]
    book.arrived(DispatchRequested("r-2", "f-0", 120, 0, 1_700_000_000.0), "cmpl-1", None)
    assert await llumctl("requests", "cmpl-1") == 6
    err = capsys.readouterr().err
    assert "names 2 sequences: r-1, r-2" in err
