"""The dashboard as an application: it hears, reduces and draws on one timer.

Nothing here waits for the controller: `Source.take` hands over what has come, and the source's
threads are daemons, so that leaving does not wait for them either. Below the application stand its
parts that are of no one screen: the bottom line's words, the palette, the end of the terminal.
"""

import asyncio
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from textual.app import App, SystemCommand
from textual.dom import DOMNode
from textual.events import Event, Key, Resize
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Size
from textual.screen import Screen

from controller.api.errors import LlumctlError
from controller.api.text.quantities import duration, printable
from tui import widgets
from tui.acting import Acting, Commanding, Owning
from tui.actions import (
    Action,
    Place,
    Target,
    bindings,
    first_of,
    footer,
    keys_of,
    of_places,
    shown_key,
)
from tui.console import Console, Options
from tui.drawing import ASCII, Glyphs, Line, Span, Tone, fitted, width_of
from tui.live import Caller, Source, Work
from tui.outbox import Call, Phase, Then, under_way
from tui.own_commands import OWN, own_actions
from tui.panes.header import Liveness, recording_badge
from tui.replay import Replaying, ReplaySource
from tui.screens.base import Dialog, PaintedScreen
from tui.screens.dashboard import DashboardScreen
from tui.screens.details import InstanceScreen, RequestScreen, RequestsScreen
from tui.screens.lists import HelpScreen, LogScreen, MemberLogScreen
from tui.screens.tuning import TuningScreen
from tui.state import DashboardState, reduce
from tui.themes import THEMES
from tui.typed_commands import Typing, named
from tui.widgets import Bottom, TableView, key_line

if TYPE_CHECKING:
    from textual.timer import Timer

REPLAY_TICK_S = 0.25
MIN_TICK_S, MAX_TICK_S = 0.5, 1.0
MESSAGE_S = 6.0
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOT_IN_PALETTE = ("row_", "palette", "command", "replay_")
"""Actions, by how their ids begin, that nobody looks for in a list."""

Do = Callable[[str, DOMNode], Awaitable[Any]]
PLACING = """
Screen { background: $background; color: $foreground; }
Screen { overflow: hidden; }
Lines, TableView { width: 1fr; }
#requests { height: 2fr; }
#history, #timeline, #log { height: 1fr; }
#bottom { height: 1; dock: bottom; }
#prompt, #hints { width: 1fr; } #prompt { background: $background; }
Dialog { align: center middle; background: transparent; }
#dialog { height: auto; padding: 0 1; background: $background; border: round $warning; }
.-ascii #dialog { border: ascii $warning; }
ChooseScreen #words { height: 2; }
SortScreen #words { height: 1; }
#buttons { height: 1; align: right middle; }
#buttons Button { margin: 0 0 0 2; }
#name, #value { background: $background; margin: 0 0 1 0; }
.-stale TableView, .-stale #facts { text-opacity: 60%; }
"""
"""Where Textual places the widgets, and how it draws them beside the tones of the text."""


class Dashboard(App[None]):
    CSS = widgets.CSS + PLACING
    BINDINGS = bindings(Place.ANYWHERE)
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "f20"  # the palette's own key is in the table of keys
    TITLE = "llumctl top"

    def __init__(self, source: Source, options: Options, caller: Caller | None = None) -> None:
        """`caller`: for a live controller; a replay has none."""
        super().__init__()
        self.source = source
        self.options = options
        self.glyphs = options.glyphs
        self.state = DashboardState(limits=options.limits)
        self.frozen: DashboardState | None = None
        self._frozen_at_s = 0.0
        self._woken = False
        """Whether `pump` is going to be called."""
        self._message = Message(self.set_timer, self.redraw)
        self._below: Below | None = None
        self.animation_level = "none"
        for theme in THEMES.values():
            self.register_theme(theme)
        self.theme = options.theme
        self.set_keymap(dict(options.keymap))
        self.replay: Replaying | None = None
        if isinstance(source, ReplaySource):
            self.replay = Replaying(source, options.keymap, options.zone, self.say, self.pump)
        self.acting = Acting(self, caller, self.push_screen)
        source.wake = self._wake
        self.commanding = Commanding(self)
        self.owning = Owning(self, self.push_screen, self._wake, self.run_worker)
        self._own = own_actions(options.own)
        for each in self._own:
            if each.keys:
                self.bind(",".join(each.keys), each.action, show=False)
        if caller is not None:
            caller.wake = self._wake

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Our colours are none of the terminal's own palette: the filter that looks for those in
        each piece of each line finds none."""
        return [
            each for each in super().get_line_filters() if not isinstance(each, ANSIToTruecolor)
        ]

    # The loop

    def on_mount(self) -> None:
        self.push_screen(DashboardScreen())
        self.source.start()
        if not self.is_web and not self.is_headless:
            on_ending(self._leave)
        if self.options.tick_s is not None:
            self.set_interval(self.options.tick_s, self._tick)

    def on_ready(self) -> None:
        self.options.when_drawn()

    def on_unmount(self) -> None:
        self.source.stop()
        self.owning.stop()

    def _tick(self) -> None:
        """Without news only the ages are drawn: all else would look the same."""
        self._end_with_terminal()
        if self.owning.has_terminal:
            self._follow_size()
        before = self.state
        self._take()
        self.redraw(only_age=self.state is before)

    def _end_with_terminal(self) -> None:
        if is_terminal_gone():
            self.owning.stop()
            end_with_terminal()

    def _leave(self, number: int) -> None:
        """Gives the terminal back, unless that is gone too; the exit code names the signal."""
        self._end_with_terminal()
        self.exit(return_code=128 + number)

    def _follow_size(self) -> None:
        """Textual hears of a change by a signal, whose handler the next one can interrupt between
        asking for the size and telling it: then the older size is told last."""
        screens = self.screen_stack
        if self.is_web or self.is_headless or not screens:
            return
        size = Size(*shutil.get_terminal_size())  # as Textual's driver asks for it
        if size != screens[-1].size:
            self.post_message(Resize(size, size))

    def _wake(self) -> None:
        """Any thread may call this: a status or a reply is shown at once, and what comes before it
        is shown with it."""
        if not self._woken:
            self._woken = True
            self.call_later(self.pump)

    def pump(self) -> None:
        """Takes what was heard and draws what changed."""
        self._woken = False
        self._take()
        self.redraw()

    def _take(self) -> None:
        self.state = reduce(self.state, self.source.take())
        self.acting.pump()

    def redraw(self, *, only_age: bool = False) -> None:
        if not self.is_running:  # a status woke it while its screens were taken down
            return
        if not self.owning.has_terminal:
            return
        for screen in self._visible():
            if isinstance(screen, PaintedScreen) and only_age:
                screen.show_age()
            elif isinstance(screen, PaintedScreen | Dialog):
                screen.show()

    def _visible(self) -> Iterator[Screen[Any]]:
        """The screen on top, and below dialogs what they lie on. A screen that comes into view
        again draws itself."""
        for screen in reversed(self.screen_stack):
            yield screen
            if not screen.is_modal:
                return

    # What the screens ask

    @property
    def shown(self) -> DashboardState:
        return self.frozen or self.state

    @property
    def present(self) -> DashboardState:
        return self.state

    @property
    def calls(self) -> Iterable[Call]:
        return self.acting.orders.outbox

    @property
    def is_frozen(self) -> bool:
        return self.frozen is not None

    @property
    def is_read_only(self) -> bool:
        return self.acting.is_read_only

    @property
    def is_stale(self) -> bool:
        return self.liveness().is_stale

    @property
    def is_barred(self) -> bool:
        """The screen does not show how things are now, so the header is a bar."""
        return self.replay is not None or self.is_frozen or self.is_stale

    def liveness(self) -> Liveness:
        now_s = self.source.now_s()
        badges = ["READ" if self.replay is not None or self.acting.is_read_only else "WRITE"]
        if self.frozen is not None:
            badges.append(f"FROZEN {duration(now_s - self._frozen_at_s)}")
        unknown = sum(call.phase is Phase.UNKNOWN for call in self.calls)
        if unknown:
            badges.append(f"{unknown} UNKNOWN")
        if self.options.recording:
            badges.append(recording_badge(self.state))
        status = self.state.status
        return Liveness(
            self.state,
            now_s,
            self.source.status_every_s,
            status.cluster if status else self.source.cluster,
            tuple(badges),
            self.options.zone,
            self.replay.progress() if self.replay is not None else None,
            self.options.of_cluster,
        )

    def key_of(self, action_id: str) -> str:
        """The key of an action as people call it, after rebinding."""
        return first_of(action_id, self.options.keymap)

    def bottom_line(self, *places: Place) -> Line:
        """A message if there is one, else trouble, else the keys."""
        if self._message.line:
            return self._message.line
        pairs = footer(
            self.options.keymap,
            (*places, Place.ANYWHERE),
            replay=self.replay is not None,
            changes=not self.acting.is_read_only,
        )
        return bottom_words(self.state, self.calls, pairs, self.size.width, self.glyphs)

    def say(self, text: str, tone: Tone = Tone.WARN, *, stays: bool = False) -> None:
        """Shows a message on the bottom line for a while."""
        self._message.show(self.options.aimed(text), tone, stays=stays)

    def unsay(self) -> None:
        self._message.clear()

    # What the operator asks

    def ask(self, question: Work, then: Then) -> None:
        def told(answer: Any, error: Exception | None) -> None:
            if isinstance(error, LlumctlError):
                error.message = self.options.aimed(error.message)
            then(answer, error)

        self.acting.orders.ask(question, told)

    def show_log(self) -> None:
        self.push_screen(LogScreen())

    def show_tuning(self) -> None:
        self.push_screen(TuningScreen())

    def toggle_freeze(self) -> None:
        """Freezes or unfreezes the screen. In a replay, time itself stands still."""
        if self.replay is not None:
            self.replay.toggle_pause()
        elif self.frozen is None:
            self.frozen, self._frozen_at_s = self.state, self.source.now_s()
        else:
            self.frozen = None
        self.pump()

    def open(self, target: Target) -> None:
        if target.request_id:
            self.push_screen(RequestScreen(target.request_id))
        else:
            self.open_instance(target.instance_id)

    def open_instance(self, instance_id: str, request_id: str = "") -> None:
        if not instance_id:
            self.say("this row is about no instance")
        elif self.shown.histories.get(instance_id) is None:
            self.say(f"no instance {printable(instance_id)} is known")
        else:
            self.push_screen(InstanceScreen(instance_id, request_id))

    def on_table_view_copied(self, event: TableView.Copied) -> None:
        """The terminal copies (OSC 52) and does not answer, so the id is said too."""
        if subject := event.target.subject:
            self.copy_to_clipboard(subject)
            self.say(f"copied {printable(subject)}", Tone.GOOD)
        else:
            self.say("this row has no id to copy")

    def run_command(self, text: str) -> None:
        """Does what was typed after `:`."""
        self.commanding.run(text)

    def begin_command(self) -> Typing:
        return self.commanding.begin()

    def set_theme(self, name: str) -> None:
        self.theme = name

    def leave(self) -> None:
        """Nothing is heard from here on: parsing it would take the time of what ends."""
        self.source.stop()
        self.exit()

    def show_requests(self) -> None:
        self.push_screen(RequestsScreen())

    def show_member_log(self, member_id: str) -> None:
        self.push_screen(MemberLogScreen(member_id))

    def show_events(self, text: str) -> None:
        """On the main screen, whatever lies above it."""
        while not isinstance(self.screen, DashboardScreen):
            self.pop_screen()
        self.screen.show_events(text)

    def action_suspend_process(self) -> None:
        if self.options.in_browser:
            self.say("a browser has no shell to go back to")
        else:
            super().action_suspend_process()

    def action_picture(self) -> None:
        """Of the screen as it is, into the folder where the dashboard was started."""
        if self.options.in_browser:
            self.say("no file is written for a browser: take a picture of its window")
            return
        live = self.liveness()
        time_s = live.state.controller_time_s(live.now_s)
        svg = self.export_screenshot(title=f"{self.TITLE}: {printable(live.cluster)}")
        try:
            path = _save_picture(
                svg, Path.cwd(), live.cluster, time.time() if time_s is None else time_s, live.zone
            )
        except OSError as error:
            self.say(f"no picture of the screen: {error.strerror}", Tone.BAD)
        else:
            self.say(f"saved {path.name}", Tone.GOOD)

    def action_help(self) -> None:
        """The keys of the screen from which it is asked for."""
        screen = self.screen
        if not isinstance(screen, HelpScreen):
            places = screen.PLACES if isinstance(screen, PaintedScreen) else ()
            self.push_screen(HelpScreen(self._actions(places)))

    def _actions(self, places: Collection[Place]) -> list[Action]:
        may_run = self.replay is None and not (self.options.readonly or self.options.in_browser)
        found = of_places(
            places,
            replay=self.replay is not None,
            changes=not self.options.readonly,
            in_browser=self.options.in_browser,
        )
        return [*found, *(self._own if may_run and Place.ROWS in places else ())]

    @property
    def typed_names(self) -> Sequence[str]:
        found = self._actions([Place.ROWS])
        return [named(each.typed)[0] for each in found if each.typed]

    def action_own(self, name: str) -> None:
        self.owning.begin(name)

    async def action_quit(self) -> None:
        self.leave()

    def action_command_palette(self) -> None:
        if self.glyphs is ASCII:
            self.say(f"the palette needs a UTF-8 terminal: type {self.key_of('command')} instead")
        elif isinstance(self.screen, PaintedScreen):
            self._below = Below(self.screen, *self.screen.targets())
            super().action_command_palette()

    def get_system_commands(self, _: Screen[object]) -> Iterable[SystemCommand]:
        """The palette's entries; it asks for them with each letter."""
        if self._below is not None:
            actions = self._actions(self._below.screen.PLACES)
            for each in palette_entries(self._below, self, actions, self.run_action):
                yield SystemCommand(each.title, each.help, each.run)

    async def on_event(self, event: Event) -> None:
        """What answered the last key goes away with the next."""
        if self._message.goes_with_a_key and isinstance(event, Key) and not event.is_forwarded:
            self.unsay()
        await super().on_event(event)

    def on_key(self, event: Key) -> None:
        """Keys come in one piece where they are pasted, sent by tmux, or typed while the machine is
        busy. Those behind a `:` are its text, and not keys of the table, which had the focus."""
        if event.is_printable and event.character and isinstance(self.screen, PaintedScreen):
            bottom = next(iter(self.screen.query(Bottom)), None)
            if bottom is not None and bottom.take(event.character):
                event.prevent_default()


def _save_picture(svg: str, folder: Path, cluster: str, time_s: float, zone: tzinfo | None) -> Path:
    """Writes a picture of the screen into a new file, whose name tells the cluster and the time.
    Only its owner may read it, as it names requests; no file is written over. Raises OSError."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", cluster)[:60] or "cluster"
    stem = f"llumctl-{name}-{datetime.fromtimestamp(time_s, zone):%Y%m%d-%H%M%S}"
    for number in count(1):
        path = folder / f"{stem}{f'-{number}' if number > 1 else ''}.svg"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(svg)
        return path
    raise AssertionError("numbers never end")


def tick_s(source: Source) -> float:
    """How often the age on the screen is drawn, seldom on slow links; a status is drawn when it
    comes."""
    if isinstance(source, ReplaySource):
        return REPLAY_TICK_S
    return max(MIN_TICK_S, min(MAX_TICK_S, source.status_every_s / 2))


class Message:
    """What was said last, for MESSAGE_S. `set_timer` calls back after so many seconds; `redraw` is
    called when the line changes."""

    def __init__(
        self,
        set_timer: "Callable[[float, Callable[[], None]], Timer]",
        redraw: Callable[[], None],
    ) -> None:
        self._set_timer = set_timer
        self._redraw = redraw
        self._timer: Timer | None = None
        self.line: Line = ()
        self.goes_with_a_key = False
        """What answered the last key goes away with the next."""

    def show(self, text: str, tone: Tone, *, stays: bool) -> None:
        self.line = (Span(f" {text}", tone),)
        self.goes_with_a_key = tone is Tone.BAD and not stays
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._set_timer(MESSAGE_S, self.clear)
        self._redraw()

    def clear(self) -> None:
        self.line, self.goes_with_a_key = (), False
        self._redraw()


def bottom_words(
    state: DashboardState,
    calls: Iterable[Call],
    keys: Sequence[tuple[str, str]],
    width: int,
    glyphs: Glyphs,
) -> Line:
    """Trouble with the stream if there is any, else the orders under way and the keys. `keys`:
    (key, word) pairs, of which the last two leave."""
    stopped = state.stopped.reason if state.stopped else ""
    trouble = state.recording_failed or stopped or state.lost
    if not trouble:
        going = under_way(calls, width, glyphs)
        return (*going, *key_line(keys, width - width_of(going)))
    leave = key_line(keys[-2:], 0)
    room = max(1, width - width_of(leave) - 5)
    told = fitted(printable(trouble), min(room, cell_len(printable(trouble))), glyphs)
    return (Span(f" ! {told}  ", Tone.BAD), *leave)


@dataclass(frozen=True, slots=True)
class Below:
    """The screen from which the palette was opened, with what its keys would have acted on then:
    rows move while one looks for a word."""

    screen: PaintedScreen
    targets: Sequence[Target]
    marked: bool


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    title: str
    help: str
    run: Callable[[], object]


def palette_entries(
    below: Below, console: Console, actions: Sequence[Action], do: Do
) -> Iterator[PaletteEntry]:
    """What the palette lists: the actions of the screen below it, with their keys.

    `do(action, where)` runs an action of a screen or a table.
    """
    for name in THEMES:
        yield _typed(console, f"theme {name}", "colours")
    for name in below.screen.orders:
        yield _typed(console, f"sort {name}", "order of this table")
    for each in actions:
        is_own = each.action_id.startswith(OWN)
        if (each.keys or is_own) and not each.action_id.startswith(NOT_IN_PALETTE):
            yield from _of_action(each, below, console, do)


def _of_action(each: Action, below: Below, console: Console, do: Do) -> Iterator[PaletteEntry]:
    words = [shown_key(key) for key in keys_of(each, console.options.keymap)[:1]]
    help_text = "   ".join([*words, *([f":{each.typed}"] if each.typed else [])])
    if each.change is None or not each.action.startswith("act("):
        where: DOMNode = below.screen
        if each.place is Place.TABLE and below.screen.focused is not None:
            where = below.screen.focused
        yield PaletteEntry(each.text, help_text, lambda: do(each.action, where))
        return
    ids = [found for target in below.targets if (found := target.of(each.change.target))]
    if ids:
        title = ids[0] if len(ids) == 1 else f"{len(ids)} marked {each.change.target}s"
        yield PaletteEntry(
            f"{each.action_id} {title}",
            help_text,
            lambda: console.acting.act(each.action_id, *below.targets, marked=below.marked),
        )


def _typed(console: Console, text: str, help_text: str) -> PaletteEntry:
    return PaletteEntry(text, help_text, lambda: console.run_command(text))


def is_terminal_gone() -> bool:
    """Whether the terminal hung up without ending this process, as a lost session's can."""
    stdin = sys.__stdin__
    if stdin is None:
        return False
    poll = select.poll()
    poll.register(stdin.fileno(), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def end_with_terminal() -> None:
    """Ends the process as an unignored hang-up does: an exit would wait for its drawing."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGHUP)


def on_ending(leave: Callable[[int], None]) -> None:
    """Calls back on the event loop for each signal that ends a program, unless it is ignored. A
    handler of Python's own would run between any two lines of what draws."""
    loop = asyncio.get_running_loop()
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, leave, number)
