"""The dashboard as an application: on one timer it takes what was heard, reduces it to a state, and
draws the state.

Nothing here waits for the controller: `Source.take` returns what has come, and the source's threads
are daemons, so that leaving does not wait for them either. Below the application stand the parts
that belong to no single screen: the palette, pictures, and the end of the terminal.
"""

import asyncio
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import count
from pathlib import Path
from typing import Any

from textual.app import App, SystemCommand
from textual.dom import DOMNode
from textual.events import Event, Key, Resize
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Size
from textual.screen import Screen

from controller.api.text.quantities import printable
from tui.acting import CommandLine, OrderDialogs, OwnPrograms
from tui.actions import ONLY_IN_REPLAYS, Action, Place, Target, bindings, keys_of, shown_key
from tui.drawing import ASCII, Tone
from tui.live import Caller, Source
from tui.own_commands import OWN
from tui.replay import Replaying, ReplaySource
from tui.screens.base import PaintedScreen
from tui.screens.cluster_views import AlarmScreen, GraphScreen, HeatScreen
from tui.screens.dashboard import DashboardScreen
from tui.screens.details import (
    HelpScreen,
    InstanceScreen,
    LogScreen,
    MemberLogScreen,
    RequestScreen,
    RequestsScreen,
)
from tui.screens.dialogs import Dialog
from tui.screens.tuning import TuningScreen
from tui.session import Options, Session
from tui.themes import THEMES, VARIABLES
from tui.typed_commands import Command
from tui.widgets import Bottom, TableView

REPLAY_TICK_S = 0.25
MIN_TICK_S, MAX_TICK_S = 0.5, 1.0
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOT_IN_PALETTE = ("row_", "palette", "command", "replay_")
"""The palette leaves out the actions whose ids begin like this."""

Do = Callable[[str, DOMNode], Awaitable[Any]]


class Dashboard(App[None]):
    CSS_PATH = "dashboard.tcss"
    BINDINGS = bindings(Place.ANYWHERE)
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "f20"  # the palette's own key is in the table of keys
    TITLE = "llumctl top"

    def __init__(self, source: Source, options: Options, caller: Caller | None = None) -> None:
        """`caller`: makes the calls to a live controller; a replay has none."""
        super().__init__()
        self.glyphs = options.glyphs
        """The characters that the terminal can show. The widgets look for them here."""
        self.session = Session(
            source,
            options,
            caller,
            set_timer=self.set_timer,
            redraw=self.redraw,
            pump=self.pump,
        )
        self.order_dialogs = OrderDialogs(self.session, self)
        self.own_programs = OwnPrograms(self.session, self, self._wake)
        self.command_line = CommandLine(
            self.session,
            self,
            self.order_dialogs,
            self.own_programs,
            {
                "tune": lambda _: self.action_tune(),
                "log": lambda _: self.action_log(),
                "graphs": lambda _: self.action_graphs(),
                "heat": lambda _: self.action_heat(),
                "alarms": lambda _: self.action_alarms(),
                "requests": lambda command: self._open_requests(command.argument),
                "instance": lambda command: self.open(Target(command.argument)),
                "logs": lambda command: self.push_screen(
                    MemberLogScreen(command.argument or "controller")
                ),
                "events": self._show_events,
                "theme": self._set_theme,
                "cluster": lambda command: self._switch(command.argument),
                "model": lambda command: self._show_model(command.argument),
                "picture": lambda _: self.action_picture(),
                "help": lambda _: self.action_help(),
                "quit": lambda _: self.leave(),
            },
        )
        self.next: Next | None = None
        """What the operator wants to see next."""
        self._woken = False
        """Whether a call of `pump` has been ordered and is still to come."""
        self._below: Below | None = None
        self.animation_level = "none"
        for theme in THEMES.values():
            self.register_theme(theme)
        self.theme = options.theme
        self.set_keymap(dict(options.keymap))
        for each in self.session.own:
            if each.keys:
                self.bind(",".join(each.keys), each.action, show=False)
        source.wake = self._wake
        if caller is not None:
            caller.wake = self._wake

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Leaves out Textual's filter that looks for colours of the terminal's own palette in each
        piece of each line: our themes have no such colours."""
        return [
            each for each in super().get_line_filters() if not isinstance(each, ANSIToTruecolor)
        ]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our variables, also for the moment before our theme is in force."""
        return dict(VARIABLES)

    # The loop

    def on_mount(self) -> None:
        self.push_screen(DashboardScreen())
        self.session.source.start()
        if not self.is_web and not self.is_headless:
            on_ending(self._leave)
        tick_s = self.session.options.tick_s
        if tick_s is not None:
            self.set_interval(tick_s, self._tick)

    def on_ready(self) -> None:
        self.session.options.when_drawn()

    def on_unmount(self) -> None:
        self.session.source.stop()
        self.own_programs.stop()

    def _tick(self) -> None:
        """Draws only the ages if nothing is new, because everything else would look the same."""
        self._end_with_terminal()
        if self.own_programs.has_terminal:
            self._follow_size()
        before = self.session.state
        self.session.take()
        self.redraw(only_age=self.session.state is before)
        if self.session.is_over:
            self.leave()

    def _end_with_terminal(self) -> None:
        if is_terminal_gone():
            self.own_programs.stop()
            end_with_terminal()

    def _leave(self, number: int) -> None:
        """Gives the terminal back, unless the terminal is gone too. The exit code names the
        signal."""
        self._end_with_terminal()
        self.exit(return_code=128 + number)

    def _follow_size(self) -> None:
        """Textual learns of a new size by a signal. A second signal can interrupt the handler of
        the first signal after that handler has asked for the size and before it has reported the
        size. Then the older size is reported last, and Textual keeps it."""
        screens = self.screen_stack
        if self.is_web or self.is_headless or not screens:
            return
        size = Size(*shutil.get_terminal_size())  # as Textual's driver asks for it
        if size != screens[-1].size:
            self.post_message(Resize(size, size))

    def _wake(self) -> None:
        """Shows a status or a reply at once, with everything that came before it. Any thread may
        call this."""
        if not self._woken:
            self._woken = True
            self.call_later(self.pump)

    def pump(self) -> None:
        """Takes what was heard and draws what changed."""
        self._woken = False
        self.session.take()
        self.redraw()

    def redraw(self, *, only_age: bool = False) -> None:
        # a status called this method while the application's screens were being taken down
        if not self.is_running:
            return
        if not self.own_programs.has_terminal:
            return
        for screen in self._visible():
            if isinstance(screen, PaintedScreen) and only_age:
                screen.show_age()
            elif isinstance(screen, PaintedScreen | Dialog):
                screen.show()

    def _visible(self) -> Iterator[Screen[Any]]:
        """The screen on top and, if that is a dialog, the screens that it covers. A screen that
        comes into view again draws itself."""
        for screen in reversed(self.screen_stack):
            yield screen
            if not screen.is_modal:
                return

    # What the screens want

    def on_painted_screen_wanted(self, event: PaintedScreen.Wanted) -> None:
        if event.instance:
            self._open_instance(event.target)
        else:
            self.open(event.target)

    def open(self, target: Target) -> None:
        """Opens the screen of the request or, if the target names no request, of the instance."""
        if target.request_id:
            self.push_screen(RequestScreen(target.request_id))
        else:
            self._open_instance(target)

    def _open_instance(self, target: Target) -> None:
        """Opens an instance's screen, with a request in view if the target names one."""
        instance_id = target.instance_id
        if not instance_id:
            self.session.say("this row is about no instance")
        elif self.session.shown.histories.get(instance_id) is None:
            self.session.say(f"no instance {printable(instance_id)} is known")
        else:
            self.push_screen(InstanceScreen(instance_id, target.request_id))

    def _open_requests(self, named: str) -> None:
        """Opens the list of all requests, or the request or instance that was named."""
        if not named:
            self.push_screen(RequestsScreen())
        elif named in self.session.shown.histories:
            self.open(Target(named))
        else:
            self.open(Target(request_id=named))

    def on_tuning_screen_edited(self, event: TuningScreen.Edited) -> None:
        self.order_dialogs.edit_setting(event.setting, event.model)

    def on_table_view_copied(self, event: TableView.Copied) -> None:
        """Copies the id by way of the terminal (OSC 52). The terminal does not answer, so a message
        says the id too."""
        if subject := event.target.subject:
            self.copy_to_clipboard(subject)
            self.session.say(f"copied {printable(subject)}", Tone.GOOD)
        else:
            self.session.say("this row has no id to copy")

    def on_bottom_typed(self, event: Bottom.Typed) -> None:
        if event.purpose == ":" and event.done and not event.given_up:
            self.run_command(event.text)

    def run_command(self, text: str) -> None:
        """Runs a command that was typed after `:`."""
        self.command_line.run(text)

    def _show_events(self, command: Command) -> None:
        """Goes back to the main screen, and shows the events there."""
        while not isinstance(self.screen, DashboardScreen):
            self.pop_screen()
        self.screen.show_events(command.argument)

    def _set_theme(self, command: Command) -> None:
        self.theme = command.argument

    def _switch(self, name: str) -> None:
        """Leaves for another cluster, or says which ones there are. One that is known by its URL
        may be new."""
        own, there = self.session.options.cluster, self.session.options.clusters()
        if not name or (name not in there and "://" not in name):
            others = ", ".join(each for each in there if each != own) or "none"
            wrong = f"no cluster {printable(name[:40])} runs on this machine; " if name else ""
            tone = Tone.BAD if name else Tone.PLAIN
            self.session.say(f"{wrong}this is {own}; others: {others}", tone)
        elif name == own:
            self.session.say(f"this is {own}")
        elif self.session.options.recording:
            self.session.say("a recording is of one cluster: leave, and begin anew", Tone.BAD)
        else:
            self.next = Next(name)
            self.leave()

    def _show_model(self, name: str) -> None:
        """Leaves for one model of this cluster or, without a name, for all of them: each has a
        stream of its own."""
        options, models = self.session.options, self.session.models
        if not models and not options.model:
            self.session.say("this cluster serves one model")
        elif name == options.model:
            shown = printable(name) or f"all models ({', '.join(map(printable, models))})"
            self.session.say(f"this is {shown}")
        elif name and name not in models:
            self.session.say(
                f"no model {printable(name[:40])} is known: :model shows all", Tone.BAD
            )
        elif options.recording:
            self.session.say("a recording is of what is shown: leave, and begin anew", Tone.BAD)
        else:
            self.next = Next(options.cluster, name, models)
            self.leave()

    def leave(self) -> None:
        """Leaves the dashboard. First it stops listening: parsing what comes would delay the
        exit."""
        self.session.source.stop()
        self.exit()

    # Keys of many screens

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ONLY_IN_REPLAYS and self.session.replay is None:
            return False
        return super().check_action(action, parameters)

    def action_act(self, action_id: str) -> None:
        if isinstance(self.screen, PaintedScreen):
            targets, marked = self.screen.targets()
            self.order_dialogs.act(action_id, *targets, marked=marked)

    def action_scale(self, number: str) -> None:
        self.order_dialogs.scale(number)

    def action_autoscale(self) -> None:
        self.order_dialogs.autoscale()

    def action_undo(self) -> None:
        self.order_dialogs.undo()

    def action_own(self, name: str) -> None:
        self.own_programs.begin(name)

    def action_read_only(self) -> None:
        self.session.toggle_read_only()

    def action_freeze(self) -> None:
        self.session.toggle_freeze()

    def action_tune(self) -> None:
        if isinstance(self.screen, TuningScreen):
            return
        if self.session.replay is not None:
            self.push_screen(TuningScreen())
        elif (model := self.order_dialogs.model_here()) is not None:
            self.push_screen(TuningScreen(model))

    def action_log(self) -> None:
        self.push_screen(LogScreen())

    def action_graphs(self) -> None:
        self._go_to(GraphScreen)

    def action_heat(self) -> None:
        self._go_to(HeatScreen)

    def action_alarms(self) -> None:
        self._go_to(AlarmScreen)

    def _go_to(self, screen: type[PaintedScreen]) -> None:
        """Opens a screen of this kind, in the place of another view of the cluster."""
        if isinstance(self.screen, GraphScreen | HeatScreen | AlarmScreen):
            if not isinstance(self.screen, screen):
                self.switch_screen(screen())
        else:
            self.push_screen(screen())

    def action_graph_span(self) -> None:
        self.session.next_graph_span()

    def action_command(self, text: str = "") -> None:
        """Opens the line in which a command is typed. The line begins with this text."""
        self.screen.query_one(Bottom).ask(":", text, self.command_line.begin())

    def action_seek_to(self) -> None:
        self.action_command("seek ")

    @property
    def _replay(self) -> Replaying:
        assert self.session.replay is not None
        return self.session.replay

    def action_speed(self, steps: int) -> None:
        self._replay.change_speed(steps)

    def action_seek(self, seconds: float) -> None:
        self._replay.seek(seconds)

    def action_edge(self, direction: int) -> None:
        self._replay.to_edge(direction)

    def action_step(self, frames: int) -> None:
        self._replay.step(frames)

    def action_to_event(self, weight: str, direction: int) -> None:
        self._replay.to_event(weight, direction)

    def action_suspend_process(self) -> None:
        if self.session.options.in_browser:
            self.session.say("a browser has no shell to go back to")
        else:
            super().action_suspend_process()

    def action_picture(self) -> None:
        """Saves a picture of the screen in the folder where the dashboard was started."""
        if self.session.options.in_browser:
            self.session.say("no file is written for a browser: take a picture of its window")
            return
        live = self.session.liveness()
        time_s = live.state.controller_time_s(live.now_s)
        svg = self.export_screenshot(title=f"{self.TITLE}: {printable(live.cluster)}")
        try:
            path = _save_picture(
                svg, Path.cwd(), live.cluster, time.time() if time_s is None else time_s, live.zone
            )
        except OSError as error:
            self.session.say(f"no picture of the screen: {error.strerror}", Tone.BAD)
        else:
            self.session.say(f"saved {path.name}", Tone.GOOD)

    def action_help(self) -> None:
        """Shows the keys of the screen on top."""
        screen = self.screen
        if not isinstance(screen, HelpScreen):
            places = screen.PLACES if isinstance(screen, PaintedScreen) else ()
            self.push_screen(HelpScreen(screen, self.session.actions(places)))

    async def action_quit(self) -> None:
        self.leave()

    def action_command_palette(self) -> None:
        if self.session.glyphs is ASCII:
            self.session.say(
                f"the palette needs a UTF-8 terminal: type {self.session.key_of('command')} instead"
            )
        elif isinstance(self.screen, PaintedScreen):
            self._below = Below(self.screen, *self.screen.targets())
            super().action_command_palette()

    def get_system_commands(self, _: Screen[object]) -> Iterable[SystemCommand]:
        """The palette's entries; Textual asks for them with each letter that is typed."""
        if self._below is not None:
            actions = self.session.actions(self._below.screen.PLACES)
            for each in palette_entries(self._below, self, actions, self.run_action):
                yield SystemCommand(each.title, each.help, each.run)

    async def on_event(self, event: Event) -> None:
        """A message that answers the last key goes away with the next one."""
        if (
            self.session.message.goes_with_a_key
            and isinstance(event, Key)
            and not event.is_forwarded
        ):
            self.session.message.clear()
        await super().on_event(event)

    def on_key(self, event: Key) -> None:
        """Several keys come at once if they are pasted, sent by tmux, or typed while the machine is
        busy. Then the keys that follow a `:` belong to the command, although the table still has
        the focus."""
        if event.is_printable and event.character and isinstance(self.screen, PaintedScreen):
            bottom = next(iter(self.screen.query(Bottom)), None)
            if bottom is not None and bottom.take(event.character):
                event.prevent_default()


def _save_picture(svg: str, folder: Path, cluster: str, time_s: float, zone: tzinfo | None) -> Path:
    """Writes a picture of the screen into a new file, named after the cluster and the time. Only
    its owner may read the file, as it names requests; no existing file is overwritten. Raises
    OSError."""
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
    """The seconds between two drawings of the ages on the screen; more on slow links. A status is
    drawn as soon as it comes."""
    if isinstance(source, ReplaySource):
        return REPLAY_TICK_S
    return max(MIN_TICK_S, min(MAX_TICK_S, source.status_every_s / 2))


@dataclass(frozen=True, slots=True)
class Next:
    """What to show next: a cluster, or one of its models. `models`: those that are known."""

    cluster: str
    model: str = ""
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Below:
    """The screen from which the palette was opened, and what its keys would have acted on at that
    time: the rows move while the operator looks for a word."""

    screen: PaintedScreen
    targets: Sequence[Target]
    marked: bool


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    title: str
    help: str
    run: Callable[[], object]


def palette_entries(
    below: Below, app: Dashboard, actions: Sequence[Action], do: Do
) -> Iterator[PaletteEntry]:
    """The palette's entries: the actions of the screen below it, with their keys.

    `do(action, where)` runs an action of a screen or a table.
    """
    for name in THEMES:
        yield _typed(app, f"theme {name}", "colours")
    for name in below.screen.orders:
        yield _typed(app, f"sort {name}", "order of this table")
    for each in actions:
        is_own = each.action_id.startswith(OWN)
        if (each.keys or is_own) and not each.action_id.startswith(NOT_IN_PALETTE):
            yield from _of_action(each, below, app, do)


def _of_action(each: Action, below: Below, app: Dashboard, do: Do) -> Iterator[PaletteEntry]:
    words = [shown_key(key) for key in keys_of(each, app.session.options.keymap)[:1]]
    help_text = "   ".join([*words, *([f":{each.typed}"] if each.typed else [])])
    if each.change is None or not each.action.startswith("app.act("):
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
            lambda: app.order_dialogs.act(each.action_id, *below.targets, marked=below.marked),
        )


def _typed(app: Dashboard, text: str, help_text: str) -> PaletteEntry:
    return PaletteEntry(text, help_text, lambda: app.run_command(text))


def is_terminal_gone() -> bool:
    """Whether the terminal hung up without ending this process, which can happen when a session is
    lost."""
    stdin = sys.__stdin__
    if stdin is None:
        return False
    poll = select.poll()
    poll.register(stdin.fileno(), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def end_with_terminal() -> None:
    """Ends the process in the way in which a hang-up would have ended it. A usual exit would wait
    for what is still to be drawn."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGHUP)


def on_ending(leave: Callable[[int], None]) -> None:
    """Calls back on the event loop for each signal that ends a program, unless the signal is
    ignored. A handler of Python's `signal` would run between any two lines of the drawing code."""
    loop = asyncio.get_running_loop()
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, leave, number)
