"""The follower: where it goes on after a break, and what is lost."""

from collections.abc import Callable, Iterator
from typing import Self

import pytest

from controller.api import client as client_module
from controller.api.client import Follower, Lost
from controller.api.errors import LlumctlError, UnreachableError
from controller.api.wire.stream import EventFrame, Frame, GapFrame, PingFrame, StatusFrame
from tests.unit.cli_support import cluster
from tests.unit.fake_controller import event, until

Stream = Callable[[], Iterator[Frame]]


def gone(*frames: Frame) -> Stream:
    """A stream of these frames, after which the connection is lost."""

    def stream() -> Iterator[Frame]:
        yield from frames
        raise UnreachableError("gone")

    return stream


class FakeClient:
    """Serves the next of some streams at each `watch`; `asked` are the positions asked for."""

    def __init__(self, *streams: Stream) -> None:
        self.streams = list(streams)
        self.asked: list[str] = []
        self.num_closed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.num_closed += 1

    def watch(self, *, after: str, status_every_s: float | None) -> Iterator[Frame]:
        assert status_every_s == 0.5
        self.asked.append(after)
        return (self.streams.pop(0) if self.streams else gone())()


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RETRY_S", 0.001)


def follow(client: FakeClient, num_asked: int, after: str = "latest") -> list[Frame | Lost]:
    """What the follower hears until it has asked this often."""
    heard: list[Frame | Lost] = []
    follower = Follower(lambda: client, heard.append, after=after, status_every_s=0.5)
    follower.start()
    until(lambda: len(client.asked) >= num_asked)
    follower.stop()
    assert follower.stopped
    return heard


def happened(position: str) -> EventFrame:
    return EventFrame(time_s=1.0, event=event("admitted", position=position))


def status(last_event: str) -> StatusFrame:
    found = cluster().model_copy(update={"last_event": last_event})
    return StatusFrame(time_s=1.0, status=found)


PING = PingFrame(time_s=1.0)
LEFT_OUT = GapFrame(time_s=1.0, missed=1, reason="absurd", position="a-2")


@pytest.mark.parametrize(
    ("after", "streams", "asked"),
    [
        ("", [gone(happened("a-1"), happened("a-2")), gone(PING)], ["", "a-2", "a-2"]),
        ("", [gone(happened("a-1"), LEFT_OUT, GapFrame(time_s=1.0))], ["", "a-2", "a-2"]),
        ("latest", [gone(status("a-7"), PING), gone(status("a-9"))], ["latest", "a-7", "a-7"]),
        ("latest", [gone(PING), gone(status(""))], ["latest"] * 3),
    ],
    ids=[
        "behind the last event",
        "behind an event that was left out",
        "the latest, of which nothing is missed in a break",
        "the latest, of which nothing was heard yet",
    ],
)
def test_where_it_goes_on(after: str, streams: list[Stream], asked: list[str]) -> None:
    client = FakeClient(*streams)
    heard = follow(client, 3, after=after)
    assert client.asked[:3] == asked
    assert [type(item) for item in heard].count(Lost) >= 2
    assert client.num_closed >= 2


def test_every_failure_is_a_loss_and_is_tried_again() -> None:
    client = FakeClient()
    failures: list[Exception] = [LlumctlError("refused"), ZeroDivisionError("oops")]
    heard: list[Frame | Lost] = []

    def connect() -> FakeClient:
        if failures:
            raise failures.pop(0)
        return client

    follower = Follower(connect, heard.append, status_every_s=0.5)
    follower.start()
    until(lambda: len(heard) >= 3)
    follower.stop()
    errors = [item.error for item in heard if isinstance(item, Lost)]
    messages = [error.message for error in errors]
    assert messages[:3] == ["refused", "unexpected ZeroDivisionError: oops", "gone"]
    assert isinstance(errors[2], UnreachableError)


def test_once_stopped_nothing_is_heard() -> None:
    heard: list[Frame | Lost] = []

    def endless() -> Iterator[Frame]:
        yield PingFrame(time_s=1.0)
        follower.stop()
        yield PingFrame(time_s=2.0)
        raise UnreachableError("gone")

    client = FakeClient(endless)
    follower = Follower(lambda: client, heard.append, status_every_s=0.5)
    follower.start()
    until(lambda: client.num_closed == 1)
    assert heard == [PingFrame(time_s=1.0)]
