"""The live source and caller against a real HTTP controller: what is heard, recorded and asked, and
calls on threads. (How a stream is followed over breaks: `test_api_client.py`.)"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from controller.api import client as client_module
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError, NotFoundError, NotRunningError, UnreachableError
from controller.api.recording import RecordingHeader, RecordingReader, RecordingWriter
from controller.api.wire.history import HistoryReport
from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import EventFrame, StatusFrame
from tests.unit.cli_support import TOKEN
from tests.unit.fake_controller import FakeController, event, until
from tui import live as live_module
from tui.live import LiveCaller, LiveSource, Reply
from tui.state import (
    Arrived,
    ExplanationArrived,
    Heard,
    HistoryArrived,
    Lost,
    RecordingFailed,
    RequestsArrived,
)


class Listener:
    """Collects what a source hears."""

    def __init__(self, source: LiveSource) -> None:
        self.source = source
        self.heard: list[Heard] = []

    def of(self, kind: type) -> list[Any]:
        self.heard += self.source.take()
        return [item for item in self.heard if isinstance(item, kind)]

    def frames(self, kind: type = object) -> list[Any]:
        return [item.frame for item in self.of(Arrived) if isinstance(item.frame, kind)]

    def kinds(self) -> list[str]:
        return [frame.event.kind for frame in self.frames(EventFrame)]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RETRY_S", 0.02)


class Controller(FakeController):
    def connect(self) -> ControlClient:
        return ControlClient(self.url, TOKEN, 2.0)


@pytest.fixture
def controller() -> Iterator[Controller]:
    with Controller(event("admitted")) as fake:
        yield fake


@contextmanager
def listening(connect: Callable[[], ControlClient], **options: Any) -> Iterator[Listener]:
    source = LiveSource("default", connect, status_every_s=0.05, **options)
    source.start()
    yield Listener(source)
    source.stop()


def test_statuses_and_events_arrive_and_are_recorded_and_wait_until_they_are_taken(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "MAX_HEARD", 3)
    kinds = [f"kind_{place}" for place in range(20)]
    controller.events = [event(kind) for kind in kinds]
    writer = RecordingWriter(tmp_path / "r", RecordingHeader(cluster="c", time_s=1.0))
    with listening(controller.connect, recorder=writer) as listener:
        until(lambda: listener.kinds() == kinds and bool(listener.frames(StatusFrame)))
        assert listener.frames(StatusFrame)[0].status == controller.status
    with RecordingReader(tmp_path / "r") as reader:
        recorded = list(reader)
    assert recorded[: len(listener.frames())] == listener.frames()[: len(recorded)]
    writer.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnreachableError("cannot be reached", "llumctl up"), "cannot be reached"),
        (ZeroDivisionError("oops"), "unexpected ZeroDivisionError: oops"),
    ],
)
def test_what_is_lost_says_why_and_it_tries_again(error: Exception, reason: str) -> None:
    with listening(Mock(side_effect=error)) as listener:
        until(lambda: len(listener.of(Lost)) >= 3)
        assert {item.reason for item in listener.of(Lost)} == {reason}
        assert listener.source.ask_requests("i-0")
        until(lambda: bool(listener.of(RequestsArrived)))
        (answer,) = listener.of(RequestsArrived)
        assert (answer.found, answer.reason) == (None, reason)


def test_questions_are_answered_beside_each_other(controller: Controller) -> None:
    with listening(controller.connect) as listener:
        assert listener.source.ask_requests("i-3")
        assert listener.source.ask_explanation("r/1")
        until(lambda: bool(listener.of(ExplanationArrived) and listener.of(RequestsArrived)))
        asked = next(path for path in controller.asked if path.startswith("/v1/requests?"))
        assert "instance=i-3" in asked
        assert "state=running" in asked
        assert "state=finished" not in asked
        assert "/v1/requests/r%2F1/explain" in controller.asked
        (answer,) = listener.of(ExplanationArrived)
        assert (answer.request_id, answer.found) == ("r/1", None)
        assert "there is no request r/1" in answer.reason


def test_the_history_is_asked_for_at_first_and_then_what_is_new() -> None:
    client = Mock()
    report = HistoryReport(time_s=(1.0,))
    client.history.return_value = report
    connect = Mock(return_value=Mock(__enter__=lambda _: client, __exit__=lambda *_: None))
    woken = Mock()
    with listening(connect) as listener:
        listener.source.wake = woken
        for after_s, number in ((None, 2), (1.0, 1)):
            assert listener.source.ask_history(after_s)
            until(lambda: bool(listener.of(HistoryArrived)))
            assert listener.of(HistoryArrived)[-1].found == (report,) * number
            listener.heard.clear()
        client.history.side_effect = NotFoundError("no such path")
        assert listener.source.ask_history(None)
        until(lambda: bool(listener.of(HistoryArrived)))
        assert listener.of(HistoryArrived)[-1].found == ()
    assert client.history.call_args_list[2].kwargs == {"after_s": 1.0, "points": 900}, "no coarser"


def test_a_recording_that_fails_does_not_stop_the_show(controller: Controller) -> None:
    full = Mock(append=Mock(side_effect=LlumctlError("no space left")))
    with listening(controller.connect, recorder=full) as listener:
        until(lambda: len(listener.frames()) >= 5)
        assert [item.reason for item in listener.of(RecordingFailed)] == ["no space left"]


# Calls on threads: each reply comes once, whatever the work does


def replies(caller: LiveCaller, count: int) -> dict[int, Reply]:
    found: list[Reply] = []
    until(lambda: found.extend(caller.take()) or len(found) >= count)
    assert caller.take() == []
    return {reply.ticket: reply for reply in found}


def test_answers_and_errors_come_back_by_their_ticket(controller: Controller) -> None:
    caller = LiveCaller(controller.connect)
    woken, release = threading.Event(), threading.Event()
    caller.wake = woken.set
    caller.call(1, lambda client: client.status())
    caller.call(2, lambda _: 1 / 0)
    caller.call(3, lambda _: release.wait(30))
    found = replies(caller, 2)
    assert woken.wait(5)
    assert isinstance(found[1].answer, ClusterStatus)
    assert isinstance(found[2].error, ZeroDivisionError)
    release.set()
    assert replies(caller, 1)[3].answer is True, "a call that hangs holds up no other"
    caller = LiveCaller(Mock(side_effect=NotRunningError("stopped")))
    caller.call(1, lambda client: pytest.fail(f"there is no client: {client}"))
    assert isinstance(replies(caller, 1)[1].error, NotRunningError)
