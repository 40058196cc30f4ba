"""From a typed command to what it does: the very calls that keys make."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from textual.screen import Screen

from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import SetSettings, SettingList
from controller.api.operations.on_requests import (
    Migrate,
    MigrateRequest,
    PriorityRequest,
    SetPriority,
)
from controller.api.operations.order import Kind
from controller.api.operations.table import ORDERS
from controller.api.text.quantities import printable, setting_value
from tui.acting import Acting
from tui.actions import Target, action_of
from tui.asking import AnyOrder
from tui.console import Console
from tui.drawing import Tone
from tui.screens.base import PaintedScreen
from tui.state import DashboardState
from tui.themes import THEMES
from tui.typed_commands import Command, Known, Typing, parse

NO_MEMBERS = ("controller", "head")
"""What has a log and is no member."""


class Runs(Protocol):
    def of_llumctl(self, name: str, *arguments: str, of_cluster: bool) -> None: ...


class Commanded(Console, Protocol):
    """The application, as commands see it."""

    acting: Acting

    @property
    def owning(self) -> Runs: ...

    @property
    def screen(self) -> Screen[Any]: ...

    @property
    def own_names(self) -> Sequence[str]: ...

    @property
    def typed_names(self) -> Sequence[str]:
        """The commands that do something now."""

    def action_own(self, name: str) -> None: ...
    def set_theme(self, name: str) -> None: ...
    def leave(self) -> None: ...
    def action_help(self) -> None: ...
    def action_picture(self) -> None: ...
    def show_requests(self) -> None: ...
    def show_member_log(self, member_id: str) -> None: ...
    def show_events(self, text: str) -> None: ...


class Commanding:
    def __init__(self, app: Commanded) -> None:
        self._app = app
        self._settings: tuple[str, ...] = ()
        self._typing = Typing(self.known)
        self._does: Mapping[str, Callable[[Command], None]] = {
            "scale": lambda command: app.acting.scale(command.argument),
            "autoscale": lambda command: app.acting.autoscale(command.argument),
            "priority": self._priority,
            "migrate": self._migrate,
            "get": self._get,
            "set": lambda command: app.acting.order(SetSettings.to(command.arguments)),
            "tune": lambda _: app.show_tuning(),
            "undo": lambda _: app.acting.undo(),
            "log": lambda _: app.show_log(),
            "read_only": lambda _: app.acting.toggle_read_only(),
            "freeze": lambda _: app.toggle_freeze(),
            "requests": self._requests,
            "explain": lambda command: app.open(Target(request_id=command.argument)),
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
            own=app.own_names,
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
        if command.name in self._app.own_names:
            self._app.action_own(command.name)
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
            words = error.message if isinstance(error, LlumctlError) else repr(error)
            self._app.say(printable(words), Tone.BAD)

        self._app.ask(
            lambda client: [client.whole_id(each, any_choice=any_choice) for each in references],
            told,
        )

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

    def _get(self, command: Command) -> None:
        key = command.argument

        def told(found: SettingList | None, error: Exception | None) -> None:
            if found is None:
                words = error.message if isinstance(error, LlumctlError) else repr(error)
                self._app.say(printable(words), Tone.BAD)
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
        wanted = f"--for={command.argument}"
        self._app.owning.of_llumctl("wait", wanted, of_cluster=True)

    def _requests(self, command: Command) -> None:
        if command.argument:
            self._app.open(Target(command.argument))
        else:
            self._app.show_requests()

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
