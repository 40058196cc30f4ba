"""Carries out the operator's keys and typed commands; both make the same calls.

Orders (`OrderDialogs`) are the only way in which the dashboard changes the cluster. The operator's
own commands (`OwnPrograms`) run a program. A text that was typed after `:` (`CommandLine`) calls
one of these two, or the application.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from textual.app import App, SuspendNotSupported

from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import Autoscale, Scale, SetSettings, Setting, SettingList
from controller.api.operations.on_instances import Restart, RestartRequest, Uncordon, Undrain
from controller.api.operations.on_requests import (
    Migrate,
    MigrateRequest,
    PriorityRequest,
    SetPriority,
)
from controller.api.operations.order import Danger, Kind
from controller.api.operations.table import ORDERS
from controller.api.text.quantities import printable, setting_value
from controller.api.wire.status import ClusterStatus
from tui.actions import Place, Target, action_of
from tui.asking import CHOICES, AnyOrder, Choices, Several, TakeBack, modes
from tui.drawing import Tone
from tui.own_commands import OwnCommand, Program, Run, filled, in_terminal, values
from tui.screens.base import PaintedScreen
from tui.screens.details import OutputScreen
from tui.screens.dialogs import ChooseScreen, ConfirmScreen, why_of
from tui.screens.tuning import EditScreen
from tui.session import Session
from tui.state import DashboardState
from tui.themes import THEMES
from tui.typed_commands import Command, Known, Typing, named, parse

DAY_S = 86_400.0
NO_MEMBERS = ("controller", "head")
"""The names of processes that have a log but are not members."""


class OrderDialogs:
    """Begins orders: asks the operator for what is missing and for consent, and then gives the
    orders to the session."""

    def __init__(self, session: Session, app: App[None]) -> None:
        self._session = session
        self._app = app

    def act(self, action_id: str, *targets: Target, marked: bool = False) -> None:
        """Begins the action for these rows' instances or requests. `targets`: what the rows were
        about when the key was pressed. An action on marked rows is confirmed in any case, because
        the cursor may be elsewhere."""
        session = self._session
        change, status = action_of(action_id).change, session.state.status
        assert change is not None
        found = {each.of(change.target): each for each in targets if each.of(change.target)}
        if self._is_locked(action_id):
            return
        if action_id == "undrain" and len(targets) == 1 and targets[0].operation_id:
            self.undo(targets[0].operation_id)
        elif not found:
            rows = "the marked rows are" if marked else "this row is"
            session.say(f"{rows} about no {change.target}")
        elif len(found) > 1 and not change.several:
            off = session.key_of("back")
            session.say(f"{action_id} one at a time: {off} takes the marks off")
        elif status is not None:
            if choose := CHOICES.get(action_id):
                self._begin(choose(list(found.values()), status))
                return
            orders = ORDERS[action_id].of_each(list(found))
            if action_id == Restart.kind:
                orders = [_at_once_if_silent(each, status) for each in orders]
            if marked or len(orders) > 1:
                self._confirm(Several(orders, f"{change.target}s"))
            else:
                self._begin(orders[0])

    def order(self, order: AnyOrder) -> None:
        """Begins an order that was typed in full."""
        if not self._is_locked(order.kind):
            self._begin(order)

    def scale(self, number: str) -> None:
        """Begins an order that scales the cluster. `number`: the number of instances, in the forms
        of `llumctl scale`."""
        if self._is_locked("scale"):
            return
        name, _, number = number.rpartition("=")
        try:
            self._begin(Scale.to(number).on(name))
        except ValueError:
            self._session.say(f"scale N, +N or -N: {number[:20]!r} is no number", Tone.BAD)

    def autoscale(self, mode: str = "") -> None:
        """Sets the mode of auto-scaling, or lets the operator choose it."""
        status = self._session.state.status
        if self._is_locked("autoscale"):
            return
        if mode:
            self._begin(Autoscale.to_mode(mode))
        elif status is not None and (model := self.model_here()) is not None:
            self._begin(modes(status, model))

    def edit_setting(self, setting: Setting, model: str) -> None:
        if not self._is_locked("set"):
            self._app.push_screen(EditScreen(setting, model), self._begin_if)

    def model_here(self) -> str | None:
        """The model of the row under the cursor; empty if one model is shown. If the row is about
        none, a message says so, and None is returned."""
        status, screen = self._session.state.status, self._app.screen
        if status is None or not status.models:
            return ""
        targets = screen.targets()[0] if isinstance(screen, PaintedScreen) else ()
        found = {model for each in targets if (model := status.model_of(each.instance_id))}
        if len(found) == 1:
            return found.pop()
        names = ", ".join(each.name for each in status.models)
        self._session.say(
            f"of which model ({names})? Go to a row of one of its instances", Tone.BAD
        )
        return None

    def undo(self, operation_id: str = "") -> None:
        """Takes back this operation of the audit log or, without an id, the last one, whoever did
        it."""
        if not self._is_locked("undo"):
            self._confirm(TakeBack(operation_id, self._session.options.zone))

    def _is_locked(self, what: str) -> bool:
        """Whether nothing can be changed now. If so, a message says why."""
        if locked := self._session.locked():
            self._session.say(f"no {what} now: {locked}", Tone.BAD)
        return bool(locked)

    def _begin_if(self, order: AnyOrder | None) -> None:
        if order is not None:
            self._begin(order)

    def _begin(self, order: AnyOrder | Choices) -> None:
        if isinstance(order, Choices):
            self._app.push_screen(ChooseScreen(order), self._give)
            return
        change = action_of(order.kind).change
        status = self._session.state.status
        assert change is not None
        if change.target is Kind.CLUSTER and not order.model:
            if (model := self.model_here()) is None:
                return
            order = order.on(model)
        if change.danger is Danger.CONFIRM:
            self._confirm(order)
        elif status is not None:
            self._give(order.at(status.revision))

    def _confirm(self, asked: AnyOrder | Several | TakeBack) -> None:
        self._app.push_screen(ConfirmScreen(asked), self._give)

    def _give(self, agreed: Any) -> None:
        """Gives the orders with which a dialog ended; None means that it ended without any."""
        if agreed is not None:
            self._session.give(agreed)


class OwnPrograms:
    """Runs the operator's own commands, from the key to the output. They are locked like orders,
    because the row's values must be those of the present."""

    def __init__(self, session: Session, app: App[None], wake: Callable[[], None]) -> None:
        """`wake` is called, on any thread, when there is more to draw."""
        self.has_terminal = True
        """Whether the dashboard has the terminal; while a program has it, nothing may be drawn."""
        self._session = session
        self._app = app
        self._wake = wake
        self._program: Program | None = None
        self._commands = {each.name: each for each in session.options.own}

    @property
    def names(self) -> list[str]:
        return list(self._commands)

    def begin(self, name: str) -> None:
        """Begins a command for the row under the cursor. The command runs once the operator has
        seen what it executes and has agreed."""
        session, command, screen = self._session, self._commands[name], self._app.screen
        status = session.state.status
        if locked := self._locked():
            session.say(f"no {name} now: {locked}", Tone.BAD)
        elif not isinstance(screen, PaintedScreen) or status is None:
            session.say("this screen has no rows to run it for", Tone.BAD)
        elif (target := self._target(screen, command)) is not None:
            try:
                run = filled(command, values(command.at, target, status, session.options.cluster))
            except LlumctlError as error:
                session.say(printable(error.message), Tone.BAD)
            else:
                self._app.push_screen(ConfirmScreen(run), self._agreed)

    def of_llumctl(self, name: str, *arguments: str, of_cluster: bool) -> None:
        """Runs a command of the command line that changes nothing, and shows its output. The
        operator is not asked. `of_cluster`: whether the command is about the cluster shown here."""
        if self._session.options.in_browser or self._session.replay is not None:
            where = "browser" if self._session.options.in_browser else "replay"
            self._session.say(f"a {where} runs no commands here", Tone.BAD)
            return
        command = OwnCommand(name, (sys.executable, "-P", "-m", "llumctl", name), timeout_s=DAY_S)
        options = self._session.options
        flags = {"--cluster": options.cluster, "--model": options.model} if of_cluster else {}
        named = [word for flag, value in flags.items() if value for word in (flag, value)]
        told = " ".join(("llumctl", name, *arguments, *named))
        self._show(Run(command, (*command.run, *arguments, *named), told=told))

    def _locked(self) -> str:
        if self._session.options.in_browser:
            return "a browser runs no commands here"
        return self._session.locked()

    def _target(self, screen: PaintedScreen, command: OwnCommand) -> Target | None:
        targets, _ = screen.targets()
        found = {each.of(command.at): each for each in targets if each.of(command.at)}
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            self._session.say(f"{command.name} is run for one row at a time", Tone.BAD)
        else:
            self._session.say(f"this row is about no {command.at}", Tone.BAD)
        return None

    def _agreed(self, run: Any) -> None:
        if run is None:
            return
        if run.command.terminal:
            self._app.run_worker(self._hand_over(run))
        else:
            self._show(run)

    def _show(self, run: Run) -> None:
        self._program = Program(run.arguments, run.environment, run.command.timeout_s, self._wake)
        self._app.push_screen(OutputScreen(run, self._program))

    def stop(self) -> None:
        """Ends the program that runs: no program outlives the dashboard."""
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
            self._session.say("this terminal cannot be handed over", Tone.BAD)
        else:
            tone = Tone.BAD if failed else Tone.GOOD
            self._session.say(f"{run.command.name}: {failed or 'done'}", tone)
        finally:
            self.has_terminal = True


def _at_once_if_silent(order: AnyOrder, status: ClusterStatus) -> AnyOrder:
    """A restart at once, if the instance is stalled: what does not answer cannot give its requests
    away."""
    state = next((each.state for each in status.instances if each.id == order.target), "")
    return Restart(order.target, RestartRequest(now=True)) if state == "stalled" else order


class CommandLine:
    """Runs the commands that are typed after `:`."""

    def __init__(
        self,
        session: Session,
        app: App[None],
        dialogs: OrderDialogs,
        programs: OwnPrograms,
        does: Mapping[str, Callable[[Command], object]],
    ) -> None:
        """`does`: for each command that the application itself carries out, by its name, the
        function that does so."""
        self._session = session
        self._app = app
        self._dialogs = dialogs
        self._programs = programs
        self._settings: tuple[str, ...] = ()
        self._typing = Typing(self.known)
        self._does: Mapping[str, Callable[[Command], object]] = {
            **does,
            "scale": lambda command: dialogs.scale(command.argument),
            "autoscale": lambda command: dialogs.autoscale(command.argument),
            "undo": lambda _: dialogs.undo(),
            "priority": self._priority,
            "migrate": self._migrate,
            "set": self._set,
            "uncordon": self._uncordon,
            "read_only": lambda _: session.toggle_read_only(),
            "freeze": lambda _: session.toggle_freeze(),
            "doctor": lambda _: programs.of_llumctl("doctor", of_cluster=False),
            "wait": self._wait,
            "sort": lambda command: self._screen().sort_by(command.argument),
            "filter": lambda command: self._screen().filter_by(command.argument),
            "seek": self._seek,
        }

    def begin(self) -> Typing:
        """Returns what completes the command that is being typed. Also asks the controller, once in
        a session, which settings there are."""
        if not self._settings:
            first = next(iter(self._session.models), "")  # all models have the same settings
            of = "" if self._session.options.model else first
            self._session.ask(lambda client: client.of_model(of).settings(), self._know)
        return self._typing

    def _know(self, found: SettingList | None, _: Exception | None) -> None:
        self._settings = () if found is None else tuple(each.key for each in found.settings)

    def known(self) -> Known:
        """The words that a command can have now."""
        screen, state = self._app.screen, self._session.shown
        offered = self._session.actions([Place.ROWS])
        return Known(
            columns=list(screen.orders) if isinstance(screen, PaintedScreen) else (),
            themes=list(THEMES),
            instances=list(state.histories),
            members=[*state.histories, *_frontends(state), *NO_MEMBERS],
            requests=requests_in(state),
            levels=[level.name for level in state.status.levels] if state.status else (),
            settings=self._settings,
            clusters=self._session.options.clusters(),
            models=self._session.models,
            several=bool(state.status and state.status.models),
            own=self._programs.names,
            offered=[named(each.typed)[0] for each in offered if each.typed],
        )

    def run(self, text: str) -> None:
        """Runs the command that was typed, or says what is wrong with it."""
        if not text.strip():
            return
        self._typing.history.keep(text)
        try:
            command = parse(text, self.known())
        except LlumctlError as error:
            self._session.say(printable(error.message), Tone.BAD)
            return
        does = self._does.get(command.name)
        if command.name in self._programs.names:
            self._programs.begin(command.name)
        elif does is not None:
            does(command)
        else:
            self._act(command)

    def _act(self, command: Command) -> None:
        change = action_of(command.name).change
        assert change is not None
        if change.target is Kind.CLUSTER:
            row = ORDERS[command.name]
            self._dialogs.order(row.of("", row.body()))
        elif change.target is Kind.REQUEST:
            self._with_ids(command, command.arguments, self._begin)
        else:
            self._begin(command, [Target(each) for each in command.arguments])

    def _begin(self, command: Command, targets: Sequence[Target]) -> None:
        self._dialogs.act(command.name, *targets)

    def _with_ids(
        self,
        command: Command,
        references: Sequence[str],
        begin: Callable[[Command, Sequence[Target]], None],
    ) -> None:
        """Calls `begin` with the requests that the references name. An order needs the id of its
        request, so if a reference is not an id on the screens, the controller is asked for the
        id."""
        if self._session.locked() or set(references) <= set(requests_in(self._session.shown)):
            begin(command, [Target(request_id=each) for each in references])
            return
        any_choice = command.name == "abort"

        def told(found: Sequence[str] | None, error: Exception | None) -> None:
            if found is not None:
                begin(command, [Target(request_id=each) for each in found])
                return
            self._say_why(error)

        self._session.ask(
            lambda client: [client.whole_id(each, any_choice=any_choice) for each in references],
            told,
        )

    def _say_why(self, error: Exception | None) -> None:
        assert error is not None
        self._session.say(printable(why_of(error)), Tone.BAD)

    def _screen(self) -> PaintedScreen:
        screen = self._app.screen
        assert isinstance(screen, PaintedScreen)
        return screen

    def _priority(self, command: Command) -> None:
        self._to(command, lambda id_, to: SetPriority(id_, PriorityRequest(level=to)))

    def _migrate(self, command: Command) -> None:
        self._to(command, lambda id_, to: Migrate(id_, MigrateRequest(to=to)))

    def _to(self, command: Command, order: Callable[[str, str], AnyOrder]) -> None:
        """Begins an order about a request. Either the level or the destination was typed after the
        request, or the operator chooses it now."""
        reference, *to = command.arguments

        def begin(command: Command, targets: Sequence[Target]) -> None:
            if to:
                self._dialogs.order(order(targets[0].request_id, to[0]))
            else:
                self._begin(command, targets)

        self._with_ids(command, [reference], begin)

    def _set(self, command: Command) -> None:
        """Sets settings. A setting that was typed without a value is shown and not changed. If no
        setting was typed, all are shown."""
        if "=" in command.argument:
            self._dialogs.order(SetSettings.to(command.arguments))
        else:
            self._show_setting(command.argument)

    def _show_setting(self, key: str) -> None:
        def told(found: SettingList | None, error: Exception | None) -> None:
            if found is None:
                self._say_why(error)
                return
            values = {each.key: each.value for each in found.settings}
            self._session.say(printable(f"{key} = {setting_value(values.get(key))}"), Tone.STRONG)

        if self._session.replay is not None:
            self._session.say("a recording has no settings")
        elif not key:
            self._does["tune"](Command("tune"))
        elif (model := self._dialogs.model_here()) is not None:
            self._session.ask(lambda client: client.of_model(model).settings(), told)

    def _wait(self, command: Command) -> None:
        wanted = f"--wait={command.argument}"
        self._programs.of_llumctl("status", wanted, of_cluster=True)

    def _uncordon(self, command: Command) -> None:
        """Takes back both drains and cordons, as `llumctl uncordon` does."""
        status = self._session.state.status
        known = {each.id: each for each in status.instances} if status is not None else {}
        drained = [each for each in command.arguments if each in known and known[each].drain]
        cordoned = [
            each
            for each in command.arguments
            if each not in drained or Uncordon.mark in known[each].closed_by
        ]
        for row, ids in ((Undrain, drained), (Uncordon, cordoned)):
            if ids:
                self._dialogs.act(row.kind, *(Target(each) for each in ids))

    def _seek(self, command: Command) -> None:
        if self._session.replay is not None:
            self._session.replay.seek_to(command.argument)
        else:
            self._session.say("only a replay has other moments than now")


def requests_in(state: DashboardState) -> list[str]:
    """The ids of requests that the screens show; the requests of the newest events come first."""
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
