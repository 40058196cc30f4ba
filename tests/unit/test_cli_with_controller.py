"""The commands that read, against the real control API."""

import asyncio
import json
from collections.abc import AsyncIterator

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
async def listener(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.05)
    async with listening() as (served, _):
        remember(served.url, token=TOKEN)
        yield served


async def llumctl(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


def evict(listener: Listener, request_id: str) -> None:
    event = LoggedEvent(
        EventKind.EVICTED, 5.0, "step-i-0-1-9", "memory pressure", "i-0", 1, request_id=request_id
    )
    listener.cluster.mailbox.say(encode(EventsReported("i-0", 1, 0, (event,))), [])


async def test_events(
    listener: Listener, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    evict(listener, "r-1")
    assert await llumctl("events", "-o", "json") == 0
    page = json.loads(capsys.readouterr().out)
    last = page["events"][-1]
    assert (last["kind"], last["request_id"]) == ("evicted", "r-1")
    assert page["next_position"] == last["position"]
    assert await llumctl("events", "--after", "other-9", "-o", "name", "-n", "1") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{last['position']}\n"
    assert captured.err.startswith("gap: the controller restarted")
    seen: list[str] = []

    def emit(line: str) -> None:
        seen.append(json.loads(line)["request_id"])
        if len(seen) == 1:
            loop.call_soon_threadsafe(evict, listener, "r-7")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(output, "emit", emit)
    monkeypatch.setattr(output, "reader_left", lambda: len(seen) > 1)
    assert await llumctl("events", "-f", "-n", "1", "-o", "jsonl") == 0
    assert seen == ["r-1", "r-7"]


async def test_requests_and_waiting(listener: Listener, capsys: Captured) -> None:
    assert await llumctl("status", "--wait=idle", "--timeout", "0") == 0
    waiting = asyncio.create_task(llumctl("status", "--wait=cluster=degraded"))
    listener.cluster.mailbox.lose("mem://i-0")
    assert await waiting == 0
    book = RequestBook("f-0", {0: "normal"})
    book.arrived(DispatchRequested("r-1", "f-0", 120, 0, 1_700_000_000.0), "cmpl-1", None)
    book.dispatched(Dispatch("r-1", "f-0", "i-0", 1, 1, (("i-0", 520.0),)))
    listener.cluster.mailbox.engine_state["mem://f-0"] = book
    assert await llumctl("status", "--wait=request/r-1=waiting") == 0
    assert capsys.readouterr().err.endswith("request r-1 is waiting\n")
    assert await llumctl("requests", "--state", "waiting,running", "-n", "5") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines()[1].split()[:5] == ["r-1", "cmpl-1", "waiting", "normal", "i-0"]
    for reference in ("cmpl-1", "r-"):
        assert await llumctl("requests", reference, "-o", "name") == 0
        assert capsys.readouterr().out == "r-1\n"
    assert await llumctl("requests", "r-1") == 0
    assert "dispatched" in capsys.readouterr().out
    for unknown in (("a/b",), ("--instance", "i-9")):
        assert await llumctl("requests", *unknown) == 4
    book.arrived(DispatchRequested("r-2", "f-0", 120, 0, 1_700_000_000.0), "cmpl-1", None)
    assert await llumctl("requests", "cmpl-1") == 6
    assert "names 2 sequences: r-1, r-2" in capsys.readouterr().err
