"""From the key of a command of the operator's own to its output."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol

from textual.app import SuspendNotSupported
from textual.screen import Screen

from controller.api.errors import LlumctlError
from controller.api.text.quantities import printable
from tui.actions import Target
from tui.console import Console
from tui.drawing import Tone
from tui.own_commands import OwnCommand, Program, Run, filled, in_terminal, values
from tui.screens.base import PaintedScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.output import OutputScreen

DAY_S = 86_400.0
Begin = Callable[[Coroutine[Any, Any, None]], object]
Push = Callable[[Screen[Any], Callable[[Any], None]], object]


class Owner(Console, Protocol):
    """The application, as own commands see it."""

    @property
    def screen(self) -> Screen[Any]: ...

    def suspend(self) -> AbstractContextManager[None]:
        """While it is entered, the terminal is the program's."""

    def batch_update(self) -> AbstractContextManager[None]:
        """While it is entered, nothing is drawn."""


class Owning:
    """Locked as orders are: the row's values must be those of now."""

    def __init__(self, app: Owner, push: Push, wake: Callable[[], None], begin: Begin) -> None:
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
