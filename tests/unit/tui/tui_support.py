"""The dashboard without a terminal: a source that is fed by hand and a clock that is set."""

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from controller.api.errors import LlumctlError
from controller.api.recording import RecordingHeader, RecordingReader, RecordingWriter
from controller.api.wire.requests import Explanation, RequestList
from controller.api.wire.stream import Frame, MemberLog
from tools import synthetic_cluster as synthetic
from tui.actions import Place, action_of
from tui.app import Dashboard
from tui.drawing import UNICODE, Glyphs
from tui.live import Caller, Reply, Source, Work
from tui.replay import ReplaySource
from tui.session import Options
from tui.startup import DEFAULT_THEME
from tui.state import Arrived, ExplanationArrived, Heard, LogArrived, Lost, RequestsArrived

WIDE, NARROW, WALL = (120, 36), (80, 24), (200, 60)
DRAWN_S = 20.0


Test = Callable[..., Awaitable[None]]
TESTED: set[tuple[str, str]] = set()
"""The actions and keys that tests press."""


def presses(action_id: str) -> Callable[[Test], Test]:
    """Runs the test once for each key of the action, with the key as the argument `key`; a key of a
    dialog is the argument `dialog_key` if the test has one."""
    entry = action_of(action_id)
    TESTED.update((action_id, key) for key in entry.keys)

    def decorate(test: Test) -> Test:
        names = inspect.signature(test).parameters
        name = "dialog_key" if entry.place is Place.DIALOG and "dialog_key" in names else "key"
        return pytest.mark.parametrize(name, entry.keys)(test)

    return decorate


class FakeSource:
    """A source whose clock stands still until it is fed. `asked`: the instances and requests about
    which it was asked."""

    def __init__(self) -> None:
        self.cluster = "prod-a"
        self.status_every_s = 1.0
        self.clock_s = synthetic.START_S
        self.asked: list[str] = []
        self.answer: RequestList | None = None
        self.explanation: Explanation | None = None
        self.log: tuple[str, ...] | None = None
        self.stopped = False
        self.wake: Callable[[], None] = lambda: None
        self._heard: list[Heard] = []

    def start(self) -> None:
        pass

    def take(self) -> list[Heard]:
        found, self._heard = self._heard, []
        return found

    def now_s(self) -> float:
        return self.clock_s

    def ask_requests(self, instance_id: str) -> bool:
        self.asked.append(instance_id)
        if self.answer is not None:
            self._heard.append(RequestsArrived(instance_id, self.answer, "", self.clock_s))
        return True

    def ask_log(self, member_id: str) -> bool:
        if self.log is not None:
            found = MemberLog(member_id=member_id, lines=self.log)
            self._heard.append(LogArrived(member_id, found, "", self.clock_s))
        return True

    def ask_explanation(self, request_id: str) -> bool:
        self.asked.append(request_id)
        if self.explanation is not None:
            found = self.explanation
            self._heard.append(ExplanationArrived(request_id, found, "", self.clock_s))
        return True

    def stop(self) -> None:
        self.stopped = True

    def feed(self, frames: Iterable[Frame]) -> None:
        """Lets the source hear the frames, and sets its clock to their times."""
        for frame in frames:
            self.clock_s = max(self.clock_s, frame.time_s)
            self._heard.append(Arrived(frame, self.clock_s))

    def lose(self, reason: str) -> None:
        self.hear(Lost(reason, self.clock_s))

    def hear(self, item: Heard) -> None:
        self._heard.append(item)


class FakeCaller:
    """Does work at once, with the client that the test made. While it is `held`, work waits for
    `release`."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.held = False
        self.wake: Callable[[], None] = lambda: None
        self._waiting: list[tuple[int, Work]] = []
        self._replies: list[Reply] = []

    def call(self, ticket: int, work: Work) -> None:
        self._waiting.append((ticket, work))
        if not self.held:
            self.release()

    def release(self) -> None:
        for ticket, work in self._waiting:
            try:
                self._replies.append(Reply(ticket, work(self.client), None))
            except LlumctlError as error:
                self._replies.append(Reply(ticket, None, error))
        self._waiting.clear()

    def take(self) -> list[Reply]:
        found, self._replies = self._replies, []
        return found


@asynccontextmanager
async def dashboard(
    source: Source,
    size: tuple[int, int] = WIDE,
    *,
    caller: Caller | None = None,
    glyphs: Glyphs = UNICODE,
    theme: str = DEFAULT_THEME,
    **options: Any,
) -> AsyncIterator[tuple[Dashboard, Pilot[None]]]:
    app = Dashboard(source, Options(glyphs=glyphs, theme=theme, zone=UTC, **options), caller)
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        yield app, pilot


async def settle(app: Dashboard, pilot: Pilot[None]) -> None:
    """Draws what was heard and what followed from that, and waits until it is on the screen."""
    for _ in range(2):
        app.pump()
        await drawn(pilot)


async def drawn(pilot: Pilot[None]) -> str:
    """The text on the screen, once Textual has placed and painted everything.

    Textual places widgets when a screen is idle, which leads to resizes that paint again: the pilot
    alone does not wait for that.
    """
    deadline_s = time.monotonic() + DRAWN_S
    await pilot.pause()
    while any(_unpainted(widget) for widget in pilot.app.screen.walk_children(with_self=True)):
        assert time.monotonic() < deadline_s, "the screen is never painted"
        await pilot.pause()
    return shown(pilot.app)


def shown(app: App[None]) -> str:
    """The text on the screen, even if it is not fully painted."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def _unpainted(widget: DOMNode) -> bool:
    """Whether a widget still has to be painted, by Textual's private flags; there are no public
    ones."""
    if isinstance(widget, Screen) and widget._dirty_widgets:
        return True
    return isinstance(widget, Widget) and (widget._layout_required or widget._repaint_required)


class Clock:
    """A clock that stands still unless a test sets it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def recorded(folder: Path, frames: Iterable[Frame]) -> Path:
    """Writes a recording of these frames."""
    path = folder / "recording.jsonl"
    writer = RecordingWriter(path, RecordingHeader(cluster="prod-a", time_s=synthetic.START_S))
    for frame in frames:
        writer.append(frame)
    writer.close()
    return path


@asynccontextmanager
async def replaying(
    folder: Path, frames: Iterable[Frame], size: tuple[int, int] = WIDE, at_s: float = 0.0
) -> AsyncIterator[tuple[Dashboard, Pilot[None], Clock]]:
    clock = Clock()
    with RecordingReader(recorded(folder, frames)) as reader:
        source = ReplaySource(reader, at_s=at_s, clock=clock)
        async with dashboard(source, size) as (app, pilot):
            yield app, pilot, clock
