"""The dashboard without a terminal: a source that is fed by hand, a clock that is set, and a
controller that remembers its orders."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from controller.api.errors import LlumctlError
from controller.api.recording import RecordingHeader, RecordingReader, RecordingWriter
from controller.api.wire.history import HistoryReport
from controller.api.wire.requests import Explanation, RequestList
from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import Frame, MemberLog, StatusFrame
from tests.unit.tui.tui_control import FakeControl
from tools import synthetic_cluster as synthetic
from tui.actions import Target, action_of
from tui.app import Dashboard
from tui.drawing import UNICODE, Glyphs
from tui.live import Caller, Reply, Source, Work
from tui.replay import ReplaySource
from tui.screens.dashboard import DashboardScreen, Pane
from tui.session import Options
from tui.startup import DEFAULT_THEME
from tui.state import (
    Arrived,
    DashboardState,
    ExplanationArrived,
    Heard,
    HistoryArrived,
    LogArrived,
    RequestsArrived,
    reduce,
)
from tui.widgets import TableView

WIDE, NARROW, WALL = (120, 36), (80, 24), (200, 60)
DRAWN_S = 20.0
Test = Callable[..., Awaitable[None]]
TESTED: set[tuple[str, str]] = set()
"""The actions and keys that tests press."""


def keys_of(action_id: str) -> tuple[str, ...]:
    """The keys of an action, which the test that asks for them presses."""
    keys = action_of(action_id).keys
    TESTED.update((action_id, key) for key in keys)
    return keys


def presses(action_id: str, name: str = "key") -> Callable[[Test], Test]:
    """Runs the test once for each key of the action, with the key as an argument of this name."""
    return pytest.mark.parametrize(name, keys_of(action_id))


def state_of(*instances: Any, at_s: float = synthetic.START_S) -> DashboardState:
    """The state after one status, that of these instances."""
    return after([StatusFrame(time_s=at_s, status=synthetic.cluster(instances, at_s))])


def after(frames: Iterable[Frame]) -> DashboardState:
    """The state after these frames, each heard at its own time."""
    return reduce(DashboardState(), [Arrived(frame, frame.time_s) for frame in frames])


def text_of(line: Iterable[Any]) -> str:
    """The text of a line that was drawn."""
    return "".join(span.text for span in line)


class FakeSource:
    """A source whose clock stands still until it is fed. `asked`: the instances and requests about
    which it was asked. `history`: what it answers about the history, for which it was asked as in
    `asked_after_s`."""

    def __init__(self) -> None:
        self.cluster = "prod-a"
        self.status_every_s = 1.0
        self.clock_s = synthetic.START_S
        self.asked: list[str] = []
        self.answer: RequestList | None = None
        self.explanation: Explanation | None = None
        self.log: tuple[str, ...] | None = None
        self.history: tuple[HistoryReport, ...] = ()
        self.asked_after_s: list[float | None] = []
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
            self.hear(RequestsArrived(instance_id, self.answer, "", self.clock_s))
        return True

    def ask_log(self, member_id: str) -> bool:
        if self.log is not None:
            found = MemberLog(member_id=member_id, lines=self.log)
            self.hear(LogArrived(member_id, found, "", self.clock_s))
        return True

    def ask_explanation(self, request_id: str) -> bool:
        self.asked.append(request_id)
        if self.explanation is not None:
            self.hear(ExplanationArrived(request_id, self.explanation, "", self.clock_s))
        return True

    def ask_history(self, after_s: float | None) -> bool:
        self.asked_after_s.append(after_s)
        self.hear(HistoryArrived(self.history, self.clock_s))
        return True

    def stop(self) -> None:
        self.stopped = True

    def feed(self, frames: Iterable[Frame]) -> None:
        """Lets the source hear the frames, and sets its clock to their times."""
        for frame in frames:
            self.clock_s = max(self.clock_s, frame.time_s)
            self.hear(Arrived(frame, self.clock_s))

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
        self.held = False
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


@dataclass
class Driven:
    """A dashboard that runs, and an operator's hands and eyes."""

    app: Dashboard
    pilot: Pilot[None]

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def type(self, key: str, text: str, end: str = "enter") -> None:
        """Types a text at once into the line that the key opens, or that is open already."""
        if key:
            await self.pilot.press(key)
        self.app.screen.query_one(Input).value = text
        await self.press(end)

    async def open(self, target: Target) -> None:
        self.app.open(target)
        await self.settle()

    async def settle(self) -> None:
        await settle(self.app, self.pilot)

    async def resize(self, *size: int) -> None:
        await self.pilot.resize_terminal(*size)
        await self.settle()

    async def shown(self) -> str:
        return await drawn(self.pilot)

    async def sees(self, *words: str) -> None:
        """Asserts that all of these words are on the screen."""
        text = await self.shown()
        missing = [each for each in words if each not in text]
        assert not missing, f"{missing} not in\n{text}"

    async def lines(self) -> list[str]:
        return (await self.shown()).splitlines()

    async def bottom(self) -> str:
        return (await self.lines())[-1]

    @property
    def main(self) -> DashboardScreen:
        assert isinstance(self.app.screen, DashboardScreen)
        return self.app.screen

    def table(self, pane: Pane = Pane.INSTANCES) -> TableView[Any]:
        return self.main.table(pane)

    def ids(self, pane: Pane = Pane.INSTANCES) -> list[str]:
        return [item.id for item in self.table(pane).items]

    @property
    def cursor(self) -> str:
        """The instance under the cursor."""
        found = self.table().cursor_id
        assert found is not None
        return found

    @property
    def status(self) -> ClusterStatus:
        assert self.app.session.state.status is not None
        return self.app.session.state.status


@dataclass
class Bed(Driven):
    source: FakeSource
    control: FakeControl
    caller: FakeCaller
    second: int = 0

    async def feed(self, frames: Iterable[Frame]) -> None:
        self.source.feed(frames)
        await self.settle()

    async def hear(self, item: Heard) -> None:
        self.source.hear(item)
        await self.settle()

    async def wait(self, seconds: float) -> None:
        """Lets time pass in which nothing is heard."""
        self.source.clock_s += seconds
        await self.settle()

    async def tick(self, status: dict[str, Any] | None = None, **changed: Any) -> None:
        """Feeds the next status, with these fields changed, and those of instances:
        `i_3={...}`."""
        self.second += 1
        frame = list(synthetic.frames(1, num_instances=12, seed=self.second))[-1]
        assert isinstance(frame, StatusFrame)
        found = tuple(
            item.model_copy(update=changed.get(item.id.replace("-", "_"), {}))
            for item in frame.status.instances
        )
        now_s = synthetic.START_S + self.second
        update = {"instances": found, "revision": self.control.revision, "time_s": now_s}
        update |= status or {}
        status_now = frame.status.model_copy(update=update)
        await self.feed([StatusFrame(time_s=now_s, status=status_now)])

    @property
    def request(self) -> str:
        """The request under the cursor of the queue heads."""
        return self.table(Pane.QUEUE).target.request_id


def field_of(instance_id: str) -> str:
    """The name under which `tick` takes the fields of an instance."""
    return instance_id.replace("-", "_")


@asynccontextmanager
async def acting(size: tuple[int, int] = WIDE, **options: Any) -> AsyncIterator[Bed]:
    """A dashboard that has heard one status of twelve instances."""
    async with watching((), size, **options) as bed:
        await bed.tick()
        yield bed


@asynccontextmanager
async def watching(
    frames: Iterable[Frame] | int = 10,
    size: tuple[int, int] = WIDE,
    source: FakeSource | None = None,
    **options: Any,
) -> AsyncIterator[Bed]:
    """A dashboard that has heard these frames, or those of so many seconds."""
    source, control = source or FakeSource(), FakeControl()
    caller = FakeCaller(control)
    async with dashboard(source, size, caller=caller, **options) as (app, pilot):
        bed = Bed(app, pilot, source, control, caller)
        await bed.feed(synthetic.frames(frames) if isinstance(frames, int) else frames)
        yield bed


def recorded(folder: Path, frames: Iterable[Frame]) -> Path:
    """Writes a recording of these frames."""
    path = folder / "recording.jsonl"
    writer = RecordingWriter(path, RecordingHeader(cluster="prod-a", time_s=synthetic.START_S))
    for frame in frames:
        writer.append(frame)
    writer.close()
    return path


@dataclass
class Replay(Driven):
    now_s: float = 0.0

    async def wait(self, seconds: float) -> None:
        self.now_s += seconds
        await self.settle()

    @property
    def heard_at_s(self) -> float:
        """When the newest frame that is shown was heard, in seconds since the first."""
        assert self.app.session.state.heard_at_s is not None
        return self.app.session.state.heard_at_s - synthetic.START_S


@asynccontextmanager
async def replaying(
    folder: Path,
    frames: Iterable[Frame] | int,
    size: tuple[int, int] = WIDE,
    at_s: float = 0.0,
) -> AsyncIterator[Replay]:
    """A replay of these frames, or of those of so many seconds."""
    frames = synthetic.frames(frames) if isinstance(frames, int) else frames
    found: list[Replay] = []
    with RecordingReader(recorded(folder, frames)) as reader:
        clock = lambda: found[0].now_s if found else 0.0  # noqa: E731 - of a replay yet to come
        source = ReplaySource(reader, at_s=at_s, clock=clock)
        async with dashboard(source, size) as (app, pilot):
            found.append(Replay(app, pilot))
            yield found[0]
