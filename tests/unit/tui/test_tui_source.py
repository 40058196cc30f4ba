"""The live source against a real HTTP stream: breaks, restarts, silence, recordings."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api import client as client_module
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError, UnreachableError
from controller.api.recording import RecordingHeader, RecordingReader, RecordingWriter
from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import EventFrame, Frame, GapFrame, PingFrame, StatusFrame
from tests.unit.cli_support import TOKEN
from tests.unit.fake_controller import FakeController, event, until
from tui import live as source_module
from tui.live import LiveSource
from tui.state import Arrived, ExplanationArrived, Heard, Lost, RecordingFailed, RequestsArrived


class Listener:
    """Collects what a source hears."""

    def __init__(self, source: LiveSource) -> None:
        self.source = source
        self.heard: list[Heard] = []

    def frames(self) -> list[Frame]:
        self.heard += self.source.take()
        return [item.frame for item in self.heard if isinstance(item, Arrived)]

    def reasons(self) -> list[str]:
        self.heard += self.source.take()
        return [item.reason for item in self.heard if isinstance(item, Lost)]

    def kinds(self) -> list[str]:
        return [frame.event.kind for frame in self.frames() if isinstance(frame, EventFrame)]

    def statuses(self) -> list[ClusterStatus]:
        return [frame.status for frame in self.frames() if isinstance(frame, StatusFrame)]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RETRY_S", 0.02)


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as fake:
        yield fake


def listening(fake: FakeController, **options: object) -> Listener:
    source = LiveSource(
        "default", lambda: ControlClient(fake.url, TOKEN, 2.0), status_every_s=0.05, **options
    )
    source.start()
    return Listener(source)


def test_statuses_and_events_arrive(controller: FakeController) -> None:
    controller.events = [event("admitted"), event("evicted")]
    listener = listening(controller)
    until(lambda: len(listener.kinds()) == 2 and bool(listener.statuses()))
    assert listener.kinds() == ["admitted", "evicted"]
    assert listener.statuses()[0] == controller.status
    listener.source.stop()


def test_after_a_break_it_goes_on_where_it_was(controller: FakeController) -> None:
    controller.events = [event("admitted")]
    listener = listening(controller)
    until(lambda: listener.kinds() == ["admitted"])
    controller.stop()
    until(lambda: bool(listener.reasons()))
    controller.events.append(event("evicted"))
    controller.asked.clear()
    controller.start()
    until(lambda: len(listener.kinds()) > 1)
    assert listener.kinds() == ["admitted", "evicted"]
    assert "after=a-1" in controller.asked[0]
    assert not any(isinstance(frame, GapFrame) for frame in listener.frames())
    listener.source.stop()


def test_a_new_controllers_log_is_a_gap(controller: FakeController) -> None:
    controller.events = [event("admitted")]
    listener = listening(controller)
    until(lambda: listener.kinds() == ["admitted"])
    controller.restart(event("controller_started"))
    until(lambda: listener.kinds() == ["admitted", "controller_started"])
    assert any(isinstance(frame, GapFrame) for frame in listener.frames())
    listener.source.stop()


def test_the_latest_only(controller: FakeController) -> None:
    controller.events = [event("admitted")]
    listener = listening(controller, after="latest")
    until(lambda: any(isinstance(frame, PingFrame) for frame in listener.frames()))
    controller.events.append(event("evicted"))
    until(lambda: bool(listener.kinds()))
    assert listener.kinds() == ["evicted"], "what was there before is not wanted"
    listener.source.stop()


def test_what_is_lost_says_why_and_it_tries_again() -> None:
    tries: list[float] = []

    def connect() -> ControlClient:
        tries.append(time.monotonic())
        raise UnreachableError("cluster default is not running", "llumctl up")

    source = LiveSource("default", connect)
    source.start()
    listener = Listener(source)
    until(lambda: len(listener.reasons()) >= 3)
    assert set(listener.reasons()) == {"cluster default is not running"}
    assert len(tries) >= 3
    source.stop()


def test_defects_are_told_too() -> None:
    def connect() -> ControlClient:
        raise ZeroDivisionError("oops")

    source = LiveSource("default", connect)
    source.start()
    listener = Listener(source)
    until(lambda: "unexpected ZeroDivisionError: oops" in listener.reasons())
    assert source.ask_requests("i-0")
    until(lambda: any(isinstance(item, RequestsArrived) for item in _all(listener)))
    source.stop()


def test_a_bad_token_is_told() -> None:
    with FakeController() as fake:
        source = LiveSource("default", lambda: ControlClient(fake.url, "wrong", 2.0))
        source.start()
        listener = Listener(source)
        until(lambda: bool(listener.reasons()))
        assert set(listener.reasons()) == {"bad token"}
        assert listener.frames() == []
        source.stop()


def _all(listener: Listener) -> list[Heard]:
    listener.frames()
    return listener.heard


def test_requests_come_the_same_way(controller: FakeController) -> None:
    listener = listening(controller)
    assert listener.source.ask_requests("i-3")
    until(lambda: any(isinstance(item, RequestsArrived) for item in _all(listener)))
    asked = next(path for path in controller.asked if path.startswith("/v1/requests"))
    assert "instance=i-3" in asked
    assert "state=running" in asked
    assert "state=finished" not in asked
    listener.source.stop()


def test_a_request_is_explained_the_same_way(controller: FakeController) -> None:
    """The question does not wait for the one about an instance's requests."""
    listener = listening(controller)
    assert listener.source.ask_requests("i-3")
    assert listener.source.ask_explanation("r/1")
    until(lambda: any(isinstance(item, ExplanationArrived) for item in _all(listener)))
    until(lambda: any(isinstance(item, RequestsArrived) for item in _all(listener)))
    (answer,) = (item for item in listener.heard if isinstance(item, ExplanationArrived))
    assert "/v1/requests/r%2F1/explain" in controller.asked
    assert (answer.request_id, answer.found) == ("r/1", None)
    assert "there is no request r/1" in answer.reason
    listener.source.stop()


def test_what_is_heard_is_recorded(controller: FakeController, tmp_path: Path) -> None:
    controller.events = [event("admitted")]
    writer = RecordingWriter(tmp_path / "r", RecordingHeader(cluster="c", time_s=1.0))
    listener = listening(controller, recorder=writer)
    until(lambda: len(listener.frames()) >= 5)
    listener.source.stop()
    with RecordingReader(tmp_path / "r") as reader:
        recorded = list(reader)
    assert recorded[: len(listener.frames())] == listener.frames()[: len(recorded)]
    writer.close()


def test_a_recording_that_fails_does_not_stop_the_show(controller: FakeController) -> None:
    class Full:
        def append(self, _: Frame) -> None:
            raise LlumctlError("no space left")

    listener = listening(controller, recorder=Full())
    until(lambda: len(listener.frames()) >= 5)
    failures = [item for item in listener.heard if isinstance(item, RecordingFailed)]
    assert [item.reason for item in failures] == ["no space left"]
    listener.source.stop()


def test_who_does_not_take_is_not_flooded(
    controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "MAX_HEARD", 3)
    listener = listening(controller)
    until(lambda: listener.source._heard.full())
    assert len(listener.source.take()) == 3
    until(lambda: listener.source._heard.full())
    listener.source.stop()
