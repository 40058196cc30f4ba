"""What the operator's keys and words do.

Keys and typed commands make the very same calls. Orders (`Acting`) are the one way by which the
dashboard changes the cluster; commands of the operator's own (`Owning`) run a program; what is
typed after `:` (`Commanding`) does what it names.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from textual.app import SuspendNotSupported
from textual.screen import Screen

from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import Autoscale, Scale, SetSettings, Setting, SettingList
from controller.api.operations.on_instances import Uncordon, Undrain
from controller.api.operations.on_requests import (
    Migrate,
    MigrateRequest,
    PriorityRequest,
    SetPriority,
)
from controller.api.operations.order import Danger, Kind
from controller.api.operations.table import ORDERS
from controller.api.text.quantities import duration, printable, setting_value
from tui.actions import Target, action_of
from tui.asking import CHOICES, AnyOrder, Choices, Several, TakeBack, Together, modes
from tui.console import Console
from tui.drawing import Tone
from tui.live import Caller
from tui.outbox import TONES, Call, Phase, SessionOrders, told
from tui.own_commands import OwnCommand, Program, Run, filled, in_terminal, values
from tui.screens.base import PaintedScreen
from tui.screens.dialogs import ChooseScreen, ConfirmScreen
from tui.screens.lists import OutputScreen
from tui.screens.tuning import EditScreen
from tui.state import DashboardState
from tui.themes import THEMES
from tui.typed_commands import Command, Known, Typing, parse

Push = Callable[[Screen[Any], Callable[[Any], None]], object]
Begin = Callable[[Coroutine[Any, Any, None]], object]
DAY_S = 86_400.0
NO_MEMBERS = ("controller", "head")
"""What has a log and is no member."""


class Acting:
    """`push` shows a screen and calls back with what it ends with. `caller` None: a replay."""

    def __init__(self, console: Console, caller: Caller | None, push: Push) -> None:
        self.orders = SessionOrders(caller, console.options.of_cluster)
        self.is_read_only = console.options.readonly or console.options.limits.readonly
        self._console = console
        self._push = push
        self._replays = caller is None

    def pump(self) -> None:
        """Hears what came, sends what is due, and says what became of it."""
        status = self._console.present.status
        for call in self.orders.pump(self._console.source.now_s(), self.locked(), status):
            if self._is_told_by_another(call):
                continue
            back = f"  ({self._key('undo')} takes it back)" if call.can_undo else ""
            tone = TONES.get(call.phase, Tone.PLAIN)
            self._console.say(f"{told(call)}{back}", tone, stays=True)

    def locked(self) -> str:
        console = self._console
        return why_locked(
            console.present,
            console.source.now_s(),
            console.source.status_every_s,
            read_only=self._read_only(),
            frozen=f"the screen is frozen: {self._key('freeze')}" if console.is_frozen else "",
            replays=self._replays,
        )

    def act(self, action_id: str, *targets: Target, marked: bool = False) -> None:
        """Begins what the action does to the rows' instances or requests, as they were when the key
        was pressed. What is done to marked rows is asked first in any case: the cursor may be
        elsewhere."""
        change, status = action_of(action_id).change, self._console.present.status
        assert change is not None
        found = {each.of(change.target): each for each in targets if each.of(change.target)}
        if locked := self.locked():
            self._console.say(f"no {action_id} now: {locked}", Tone.BAD)
        elif action_id == "undrain" and len(targets) == 1 and targets[0].operation_id:
            self.undo(targets[0].operation_id)
        elif not found:
            rows = "the marked rows are" if marked else "this row is"
            self._console.say(f"{rows} about no {change.target}")
        elif len(found) > 1 and not change.several:
            off = self._key("back")
            self._console.say(f"{action_id} one at a time: {off} takes the marks off")
        elif status is not None:
            if choose := CHOICES.get(action_id):
                self._begin(choose(list(found.values()), status))
                return
            orders = ORDERS[action_id].of_each(list(found))
            if marked or len(orders) > 1:
                asked = Several(orders, f"{change.target}s")
                self._push(ConfirmScreen(asked), self._give)
            else:
                self._begin(orders[0])

    def order(self, order: AnyOrder) -> None:
        """Begins what was typed with all that it wants."""
        if locked := self.locked():
            self._console.say(f"no {order.kind} now: {locked}", Tone.BAD)
        else:
            self._begin(order)

    def scale(self, number: str) -> None:
        """`number`: of instances, as `llumctl scale` takes it."""
        if locked := self.locked():
            self._console.say(f"no scale now: {locked}", Tone.BAD)
            return
        try:
            self._begin(Scale.to(number))
        except ValueError:
            self._console.say(f"scale N, +N or -N: {number[:20]!r} is no number", Tone.BAD)

    def autoscale(self, mode: str = "") -> None:
        """Sets the mode of auto-scaling, or has it chosen."""
        status = self._console.present.status
        if locked := self.locked():
            self._console.say(f"no autoscale now: {locked}", Tone.BAD)
        elif mode:
            self._begin(Autoscale.to_mode(mode))
        elif status is not None:
            self._begin(modes(status.autoscale, status.revision))

    def edit_setting(self, setting: Setting) -> None:
        if locked := self.locked():
            self._console.say(f"no set now: {locked}", Tone.BAD)
        else:
            self._push(EditScreen(setting), self._begin_if)

    def undo(self, operation_id: str = "") -> None:
        """Takes back an operation of the audit log: that one, or the last of anybody's."""
        if locked := self.locked():
            self._console.say(f"no undo now: {locked}", Tone.BAD)
        else:
            asked = TakeBack(operation_id, self._console.options.zone)
            self._push(ConfirmScreen(asked), self._give)

    def toggle_read_only(self) -> None:
        if self._console.options.readonly:
            self._console.say("read-only: it was started with --readonly")
            return
        self.is_read_only = not self.is_read_only
        what = "not allowed" if self.is_read_only else "allowed"
        self._console.say(f"changes are {what} now")

    def unsettled(self) -> list[str]:
        """What to tell an operator who leaves before the outcome of an order is known."""
        return [
            f"{told(call)}: {call.command}"
            for call in self.orders.outbox
            if call.phase in (Phase.SENT, Phase.UNKNOWN)
        ]

    def _is_told_by_another(self, call: Call) -> bool:
        """What ended a drain of this session is an undrain of this session, which says so."""
        drained = {each.instance_id for each in call.awaits}
        return call.phase is Phase.FAILED and any(
            isinstance(other.order, Undrain)
            and other.order.instance_id in drained
            and other.call_id > call.call_id
            for other in self.orders.outbox
        )

    def _begin_if(self, order: AnyOrder | None) -> None:
        if order is not None:
            self._begin(order)

    def _begin(self, order: AnyOrder | Choices) -> None:
        if isinstance(order, Choices):
            self._push(ChooseScreen(order), self._give)
            return
        change = action_of(order.kind).change
        status = self._console.present.status
        assert change is not None
        if change.danger is Danger.CONFIRM:
            self._push(ConfirmScreen(order), self._give)
        elif status is not None:
            self._give(order.at(status.revision))

    def _give(self, agreed: AnyOrder | Together | None) -> None:
        if agreed is None:
            return
        now_s = self._console.source.now_s()
        time_s = self._console.present.controller_time_s(now_s) or 0.0
        for order in agreed.orders if isinstance(agreed, Together) else (agreed,):
            self.orders.order(order, now_s, time_s)
        self.pump()

    def _read_only(self) -> str:
        if self._console.options.readonly:
            return "this dashboard was started with --readonly"
        return f"read-only: {self._key('read_only')} allows changes" if self.is_read_only else ""

    def _key(self, action_id: str) -> str:
        return self._console.key_of(action_id)


def why_locked(
    state: DashboardState,
    now_s: float,
    status_every_s: float,
    *,
    read_only: str = "",
    frozen: str = "",
    replays: bool = False,
) -> str:
    """Why nothing can be changed now: the one place that decides it. Empty if actions are allowed.
    `read_only` and `frozen` say why the operator, or who started the dashboard, wants no changes
    now."""
    if replays:
        return "this is a replay: there is no cluster to change"
    if read_only:
        return read_only
    if frozen:
        return frozen
    if state.stopped is not None:
        return "the cluster has stopped"
    age_s = state.age_s(now_s)
    if age_s is None:
        return "nothing is known of the cluster yet"
    if state.is_stale(now_s, status_every_s):
        return f"what the screen shows is {duration(age_s)} old"
    return ""


class Owning:
    """From the key of a command of the operator's own to its output. Locked as orders are: the
    row's values must be those of now."""

    def __init__(
        self, app: "Application", push: Push, wake: Callable[[], None], begin: Begin
    ) -> None:
        """`push` shows a screen and calls back with what it ends with; any thread calls `wake` when
        there is more to draw; `begin` runs something beside the event loop's other work."""
        self.has_terminal = True
        """Whether the dashboard has it: a program may, and then nothing may be drawn."""
        self._app = app
        self._begin = begin
        self._push = push
        self._wake = wake
        self._program: Program | None = None
        self._commands = {each.name: each for each in app.options.own}

    @property
    def names(self) -> list[str]:
        return list(self._commands)

    def begin(self, name: str) -> None:
        """For the row under the cursor; the operator sees what is executed, and agrees."""
        app, command, screen = self._app, self._commands[name], self._app.screen
        status = app.present.status
        if locked := self._locked():
            app.say(f"no {name} now: {locked}", Tone.BAD)
        elif not isinstance(screen, PaintedScreen) or status is None:
            app.say("this screen has no rows to run it for", Tone.BAD)
        elif (target := self._target(screen, command)) is not None:
            try:
                run = filled(command, values(command.at, target, status, app.options.cluster))
            except LlumctlError as error:
                app.say(printable(error.message), Tone.BAD)
            else:
                self._push(ConfirmScreen(run), self._agreed)

    def of_llumctl(self, name: str, *arguments: str, of_cluster: bool) -> None:
        """Shows what a command of the command line writes; it changes nothing, so nobody is asked.
        It knows the time that it may take. `of_cluster`: it is about the cluster shown here."""
        if self._app.options.in_browser or self._app.replay is not None:
            where = "browser" if self._app.options.in_browser else "replay"
            self._app.say(f"a {where} runs no commands here", Tone.BAD)
            return
        command = OwnCommand(name, (sys.executable, "-P", "-m", "llumctl", name), timeout_s=DAY_S)
        cluster = self._app.options.cluster if of_cluster else ""
        named = ("--cluster", cluster) if cluster else ()
        told = " ".join(("llumctl", name, *arguments, *named))
        self._show(Run(command, (*command.run, *arguments, *named), told=told))

    def _locked(self) -> str:
        if self._app.options.in_browser:
            return "a browser runs no commands here"
        return self._app.acting.locked()

    def _target(self, screen: PaintedScreen, command: OwnCommand) -> Target | None:
        targets, _ = screen.targets()
        found = {each.of(command.at): each for each in targets if each.of(command.at)}
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            self._app.say(f"{command.name} is run for one row at a time", Tone.BAD)
        else:
            self._app.say(f"this row is about no {command.at}", Tone.BAD)
        return None

    def _agreed(self, run: Run | None) -> None:
        if run is None:
            return
        if run.command.terminal:
            self._begin(self._hand_over(run))
        else:
            self._show(run)

    def _show(self, run: Run) -> None:
        self._program = Program(run.arguments, run.environment, run.command.timeout_s, self._wake)
        self._push(OutputScreen(run, self._program), lambda _: None)

    def stop(self) -> None:
        """No program outlives the dashboard."""
        if self._program is not None:
            self._program.stop()

    async def _hand_over(self, run: Run) -> None:
        try:
            with self._app.suspend(), self._app.batch_update():
                self.has_terminal = False
                failed = await in_terminal(run.arguments, run.environment)
                if failed:
                    sys.stderr.write(f"\n{run.command.name}: {failed}. Enter returns. ")
                    sys.stderr.flush()
                    await asyncio.to_thread(sys.stdin.readline)
        except SuspendNotSupported:
            self._app.say("this terminal cannot be handed over", Tone.BAD)
        else:
            tone = Tone.BAD if failed else Tone.GOOD
            self._app.say(f"{run.command.name}: {failed or 'done'}", tone)
        finally:
            self.has_terminal = True


class Application(Console, Protocol):
    """The application, as typed commands and the operator's own see it."""

    acting: Acting
    owning: Owning

    @property
    def screen(self) -> Screen[Any]: ...

    @property
    def typed_names(self) -> Sequence[str]:
        """The commands that do something now."""

    def suspend(self) -> AbstractContextManager[None]:
        """While it is entered, the terminal is the program's."""

    def batch_update(self) -> AbstractContextManager[None]:
        """While it is entered, nothing is drawn."""

    def set_theme(self, name: str) -> None: ...
    def leave(self) -> None: ...
    def action_help(self) -> None: ...
    def action_picture(self) -> None: ...
    def show_requests(self) -> None: ...
    def show_member_log(self, member_id: str) -> None: ...
    def show_events(self, text: str) -> None: ...


class Commanding:
    """What is typed after `:`."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._settings: tuple[str, ...] = ()
        self._typing = Typing(self.known)
        self._does: Mapping[str, Callable[[Command], None]] = {
            "scale": lambda command: app.acting.scale(command.argument),
            "autoscale": lambda command: app.acting.autoscale(command.argument),
            "priority": self._priority,
            "migrate": self._migrate,
            "set": self._set,
            "uncordon": self._uncordon,
            "tune": lambda _: app.show_tuning(),
            "undo": lambda _: app.acting.undo(),
            "log": lambda _: app.show_log(),
            "read_only": lambda _: app.acting.toggle_read_only(),
            "freeze": lambda _: app.toggle_freeze(),
            "requests": self._requests,
            "instance": lambda command: app.open(Target(command.argument)),
            "logs": lambda command: app.show_member_log(command.argument or "controller"),
            "doctor": lambda _: app.owning.of_llumctl("doctor", of_cluster=False),
            "wait": self._wait,
            "events": lambda command: app.show_events(command.argument),
            "sort": lambda command: self._screen().sort_by(command.argument),
            "filter": lambda command: self._screen().filter_by(command.argument),
            "theme": lambda command: app.set_theme(command.argument),
            "seek": self._seek,
            "picture": lambda _: app.action_picture(),
            "help": lambda _: app.action_help(),
            "quit": lambda _: app.leave(),
        }

    def begin(self) -> Typing:
        """The controller is asked which settings there are, once."""
        if not self._settings:
            self._app.ask(lambda client: client.settings(), self._know)
        return self._typing

    def _know(self, found: SettingList | None, _: Exception | None) -> None:
        self._settings = () if found is None else tuple(each.key for each in found.settings)

    def known(self) -> Known:
        """What is there to be named now."""
        app = self._app
        screen, state = app.screen, app.shown
        return Known(
            columns=list(screen.orders) if isinstance(screen, PaintedScreen) else (),
            themes=list(THEMES),
            instances=list(state.histories),
            members=[*state.histories, *_frontends(state), *NO_MEMBERS],
            requests=requests_in(state),
            levels=[level.name for level in state.status.levels] if state.status else (),
            settings=self._settings,
            own=app.owning.names,
            offered=app.typed_names,
        )

    def run(self, text: str) -> None:
        """Does what was typed, or says what is wrong with it."""
        if not text.strip():
            return
        self._typing.history.keep(text)
        try:
            command = parse(text, self.known())
        except LlumctlError as error:
            self._app.say(printable(error.message), Tone.BAD)
            return
        does = self._does.get(command.name)
        if command.name in self._app.owning.names:
            self._app.owning.begin(command.name)
        elif does is not None:
            does(command)
        else:
            self._act(command)

    def _act(self, command: Command) -> None:
        change = action_of(command.name).change
        assert change is not None
        if change.target is Kind.CLUSTER:
            row = ORDERS[command.name]
            self._app.acting.order(row.of("", row.body()))
        elif change.target is Kind.REQUEST:
            self._with_ids(command, command.arguments, self._begin)
        else:
            self._begin(command, [Target(each) for each in command.arguments])

    def _begin(self, command: Command, targets: Sequence[Target]) -> None:
        self._app.acting.act(command.name, *targets)

    def _with_ids(
        self,
        command: Command,
        references: Sequence[str],
        begin: Callable[[Command, Sequence[Target]], None],
    ) -> None:
        """Calls `begin` with the requests that the references name. The controller is asked for
        the id of each that is no id on the screens: an order names its request by that."""
        if self._app.acting.locked() or set(references) <= set(requests_in(self._app.shown)):
            begin(command, [Target(request_id=each) for each in references])
            return
        any_choice = command.name == "abort"

        def told(found: Sequence[str] | None, error: Exception | None) -> None:
            if found is not None:
                begin(command, [Target(request_id=each) for each in found])
                return
            self._say_why(error)

        self._app.ask(
            lambda client: [client.whole_id(each, any_choice=any_choice) for each in references],
            told,
        )

    def _say_why(self, error: Exception | None) -> None:
        """Why the controller's answer to a question is not there."""
        why = error.message if isinstance(error, LlumctlError) else repr(error)
        self._app.say(printable(why), Tone.BAD)

    def _screen(self) -> PaintedScreen:
        screen = self._app.screen
        assert isinstance(screen, PaintedScreen)
        return screen

    def _priority(self, command: Command) -> None:
        self._to(command, lambda id_, to: SetPriority(id_, PriorityRequest(level=to)))

    def _migrate(self, command: Command) -> None:
        self._to(command, lambda id_, to: Migrate(id_, MigrateRequest(to=to)))

    def _to(self, command: Command, order: Callable[[str, str], AnyOrder]) -> None:
        """What to set or where to move may stand behind the request, or is chosen."""
        reference, *to = command.arguments

        def begin(command: Command, targets: Sequence[Target]) -> None:
            if to:
                self._app.acting.order(order(targets[0].request_id, to[0]))
            else:
                self._begin(command, targets)

        self._with_ids(command, [reference], begin)

    def _set(self, command: Command) -> None:
        """A setting without a value is shown, and none are shown all."""
        if "=" in command.argument:
            self._app.acting.order(SetSettings.to(command.arguments))
        else:
            self._show_setting(command.argument)

    def _show_setting(self, key: str) -> None:
        def told(found: SettingList | None, error: Exception | None) -> None:
            if found is None:
                self._say_why(error)
                return
            values = {each.key: each.value for each in found.settings}
            self._app.say(printable(f"{key} = {setting_value(values.get(key))}"), Tone.STRONG)

        if self._app.replay is not None:
            self._app.say("a recording has no settings")
        elif not key:
            self._app.show_tuning()
        else:
            self._app.ask(lambda client: client.settings(), told)

    def _wait(self, command: Command) -> None:
        wanted = f"--wait={command.argument}"
        self._app.owning.of_llumctl("status", wanted, of_cluster=True)

    def _requests(self, command: Command) -> None:
        named = command.argument
        if not named:
            self._app.show_requests()
        elif named in self._app.shown.histories:
            self._app.open(Target(named))
        else:
            self._app.open(Target(request_id=named))

    def _uncordon(self, command: Command) -> None:
        """Takes back drains as well as cordons, as `llumctl uncordon` does."""
        status = self._app.present.status
        known = {each.id: each for each in status.instances} if status is not None else {}
        drained = [each for each in command.arguments if each in known and known[each].drain]
        cordoned = [
            each
            for each in command.arguments
            if each not in drained or Uncordon.mark in known[each].closed_by
        ]
        for row, ids in ((Undrain, drained), (Uncordon, cordoned)):
            if ids:
                self._app.acting.act(row.kind, *(Target(each) for each in ids))

    def _seek(self, command: Command) -> None:
        if self._app.replay is not None:
            self._app.replay.seek_to(command.argument)
        else:
            self._app.say("only a replay has other moments than now")


def requests_in(state: DashboardState) -> list[str]:
    """The ids of requests that the screens show, the newest events first."""
    found: dict[str, None] = {}
    if state.requests is not None and state.requests.found is not None:
        found.update(dict.fromkeys(item.id for item in state.requests.found.requests))
    if state.status is not None:
        heads = [item.queue_head for item in state.status.instances]
        found.update(dict.fromkeys(head.request_id for head in heads if head is not None))
        found.update(dict.fromkeys(move.request_id for move in state.status.moves))
    for entry in reversed(state.entries):
        if entry.event is not None and entry.event.request_id:
            found[entry.event.request_id] = None
    return list(found)


def _frontends(state: DashboardState) -> list[str]:
    return [each.id for each in state.status.frontends] if state.status else []
