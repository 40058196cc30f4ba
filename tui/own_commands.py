"""The operator's own commands, which run for a row: the table `[commands]`, which is checked before
anything is drawn; a command filled with a row's values; and the program that runs.

Clients choose the ids of their requests, so the values of a row come from strangers. A value always
becomes a whole argument in a list that is executed directly. So no shell reads it, and a value that
begins with a dash cannot become an option.
"""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from controller.api.errors import UsageError
from controller.api.operations.order import Kind, Plan
from controller.api.settings.settings import OwnCommandTable
from controller.api.text.quantities import printable
from controller.api.wire.status import ClusterStatus
from tui import program_guard
from tui.actions import Action, Place, Target
from tui.typed_commands import ALIASES, FORMS

OWN = "own."
"""The beginning of the ids of these commands' actions."""
FIELDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.INSTANCE: ("id", "cluster", "state", "incarnation", "pid", "node"),
    Kind.REQUEST: ("id", "instance", "cluster"),
}
"""The values that a row of each kind has."""
PLACEHOLDER = re.compile(r"(--?[A-Za-z][\w-]*=)?\{([a-z_]+)\}")
"""Matches an argument that is a placeholder, or an option whose value is one."""
MAX_SHOWN = 240
"""How many characters of an argument are shown."""
MAX_LINES = 5000
MAX_LINE_BYTES = 1000
BATCH, PAUSE_S = 100, 0.01
"""How long the program has to wait after each batch of lines. A program that wrote without a pause
left the dashboard no time for keys."""
WAKE_S = 0.1
"""The time between two looks for new lines."""
GRACE_S = 2.0
"""The time between SIGTERM and SIGKILL."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_ANY_FIELD = re.compile(r"\{(" + "|".join(sorted({*sum(FIELDS.values(), ())})) + r")\}")


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """A command of the operator. `run`: the program and its arguments, with placeholders such as
    `{id}` for the row's values."""

    name: str
    run: tuple[str, ...]
    at: Kind = Kind.INSTANCE
    key: str = ""
    text: str = ""
    terminal: bool = False
    timeout_s: float = 30.0

    @property
    def action_id(self) -> str:
        return f"{OWN}{self.name}"

    @property
    def words(self) -> str:
        """What the help says of the command."""
        return self.text or f"runs {self.run[0]}"


@dataclass(frozen=True, slots=True)
class Run:
    """A command with the values of a row, which is executed once the operator has agreed."""

    command: OwnCommand
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    told: str = ""
    """The command line that is shown, if it differs from the arguments."""

    @property
    def word(self) -> str:
        return "Run"

    @property
    def question(self) -> str:
        return f"Run {self.command.name}?"

    @property
    def line(self) -> str:
        """The arguments as a shell would take them, for people to read."""
        return printable(self.told or shlex.join(self.arguments))

    def plan(self, _: object) -> Plan[Self]:
        """The exact arguments, each on a line of its own: so no value can look like two arguments,
        and a long argument does not hide those after it."""
        lines = [f"{place}  {_shortened(each)}" for place, each in enumerate(self.arguments)]
        return Plan(tuple(lines), self)


def _shortened(argument: str) -> str:
    if len(argument) <= MAX_SHOWN:
        return argument
    return f"{argument[:MAX_SHOWN]}... ({len(argument)} characters)"


def values(kind: Kind, target: Target, status: ClusterStatus, cluster: str) -> dict[str, str]:
    """The row's values by name; values that the row does not have are left out. `cluster`: the
    value for `--cluster`."""
    found: dict[str, object] = {"id": target.of(kind), "cluster": cluster}
    if kind is Kind.REQUEST:
        found["instance"] = target.instance_id
    for item in status.instances:
        if kind is Kind.INSTANCE and item.id == target.instance_id:
            found |= {"state": item.state, "incarnation": item.incarnation}
            found |= {"pid": item.pid or "", "node": item.node}
    return {name: str(value) for name, value in found.items() if value != ""}


def filled(command: OwnCommand, row: Mapping[str, str]) -> Run:
    """The command with the row's values in place of the placeholders. Raises UsageError if the row
    does not have a value, if no program can be given the value, or if the value would be read as an
    option."""
    arguments: list[str] = []
    for argument in command.run:
        match = PLACEHOLDER.fullmatch(argument)
        if match is None or match[2] not in FIELDS[command.at]:
            arguments.append(argument)
            continue
        value = row.get(match[2], "")
        if not value:
            raise UsageError(f"{command.name} wants {argument}, and this row has no {match[2]}")
        if match[1] is None and value.startswith(("-", "+")) and "--" not in arguments:
            what = "a dash" if value[0] == "-" else "a plus"  # less and vi run +!command
            raise UsageError(
                f"{match[2]} begins with {what} and would be read as an option:"
                f' put "--" before {argument} in [commands.{command.name}]'
            )
        arguments.append((match[1] or "") + _plain(match[2], value))
    environment = {f"ROW_{name.upper()}": _plain(name, value) for name, value in row.items()}
    return Run(command, tuple(arguments), environment)


def _plain(name: str, value: str) -> str:
    """Returns the value if any program can be given it. Otherwise raises UsageError."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{name} is no text that a program can be given") from None
    if "\0" in value:
        raise UsageError(f"{name} contains a NUL, which no program can be given")
    return value


class OwnCommandError(ValueError):
    """The message says what is wrong with `field` of the command `name`, or with the name itself if
    `field` is empty."""

    def __init__(self, name: str, field: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.field = field


def checked_commands(wanted: Mapping[str, OwnCommandTable]) -> tuple[OwnCommand, ...]:
    """Checks the table `[commands]`. Raises OwnCommandError: a name is invalid or taken, a row
    would choose the program, or a placeholder is unknown or not a whole argument."""
    return tuple(_checked(name, table) for name, table in wanted.items())


def _checked(name: str, table: OwnCommandTable) -> OwnCommand:
    if not _NAME.fullmatch(name):
        raise OwnCommandError(name, "", f"{name[:40]!r} is no name: a-z, then a-z, 0-9, _ and -")
    if name in FORMS or name in ALIASES:
        raise OwnCommandError(name, "", f"{name} is a command already")
    kind = Kind(table.at)
    for place, argument in enumerate(table.run):
        if what := _wrong(argument, kind, program=place == 0):
            raise OwnCommandError(name, "run", what)
    return OwnCommand(
        name, tuple(table.run), kind, table.key, table.text, table.terminal, table.timeout_s
    )


def _wrong(argument: str, kind: Kind, *, program: bool) -> str:
    """What is wrong with an argument; empty if nothing is."""
    if "\0" in argument:
        return "an argument contains a NUL"
    if program and (not argument or _ANY_FIELD.search(argument)):
        return "the program must be named: no row says what is executed"
    match = PLACEHOLDER.fullmatch(argument)
    if match is not None and match[2] not in FIELDS[kind]:
        names = ", ".join(f"{{{each}}}" for each in FIELDS[kind])
        return f"{argument[:40]} is no value of a row about a {kind}: {names}"
    if match is None and (found := _ANY_FIELD.search(argument)):
        return (
            f"{found[0]} stands inside an argument, where a shell could read it:"
            f" make it an argument of its own, or use the variable ROW_{found[1].upper()}"
        )
    return ""


def own_actions(commands: tuple[OwnCommand, ...]) -> list[Action]:
    """The commands as actions, so that keys, help and palette treat them like all others."""
    return [
        Action(
            each.action_id,
            (each.key,) if each.key else (),
            f"app.own('{each.name}')",
            each.words,
            Place.ROWS,
            typed=each.name,
            in_browser=False,
        )
        for each in commands
    ]


class Program:
    """A program that runs without a terminal, in a session and a process group of its own.

    When the program ends, everything that is left of the group ends too. The program itself ends at
    `stop`, and also when this process ends, however that comes about: the guard that leads the
    group sees to that (`program_guard`).
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        timeout_s: float,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` is called on any thread when there is more to show."""
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.num_lines = 0
        """How many lines there were, including those that are not kept."""
        self.outcome = ""
        """How the program ended; empty while it runs."""
        self._arguments = list(arguments)
        self._environment = {**os.environ, **environment}
        self._timeout_s = timeout_s
        self._wake = wake
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._news = threading.Event()
        self._timed_out = False

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        guard = [sys.executable, "-I", "-S", program_guard.__file__, str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                [*guard, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except (OSError, ValueError) as error:
            ours.close()
            self.outcome = f"could not be started: {error}"
            return
        finally:
            theirs.close()
        for work in (self._read, self._tell, partial(self._wait, ours)):
            threading.Thread(target=work, name="own", daemon=True).start()

    def stop(self) -> None:
        """Ends the whole group now."""
        if self._process is not None and not self._ended.is_set():
            self._signal(signal.SIGKILL)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as written:
            while line := written.readline(MAX_LINE_BYTES):
                self.lines.append(line.decode("utf-8", "replace").rstrip("\r\n"))
                self.num_lines += 1
                self._news.set()
                if self.num_lines % BATCH == 0:
                    time.sleep(PAUSE_S)
        self._wake()

    def _tell(self) -> None:
        while not self._ended.is_set():
            if self._news.wait(WAKE_S):
                self._news.clear()
                self._wake()
                time.sleep(WAKE_S)

    def _wait(self, guard: socket.socket) -> None:
        """Waits for the end of the program. The group is signalled before its leader is reaped,
        because until then no other group can have its number. `guard` must stay open meanwhile:
        over it the guard says why it could not start the program."""
        assert self._process is not None
        timer = threading.Timer(self._timeout_s, self._expire)
        timer.daemon = True
        timer.start()
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        timer.cancel()
        self._signal(signal.SIGKILL)
        self._ended.set()
        code = self._process.wait()
        with guard:
            told = guard.recv(MAX_LINE_BYTES).decode("utf-8", "replace")
        if told:
            self.outcome = f"could not be started: {told}"
        elif self._timed_out:
            self.outcome = f"ended after {self._timeout_s:g} s, which is its time-out"
        elif code < 0:
            self.outcome = f"ended by signal {-code}"
        else:
            self.outcome = f"exit status {code}"
        self._wake()

    def _expire(self) -> None:
        self._timed_out = True
        self._signal(signal.SIGTERM)
        if not self._ended.wait(GRACE_S):
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def in_terminal(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Runs a program to its end in the terminal of this process. Returns why it failed, or an empty
    text. Meanwhile Ctrl-C goes to the program. The event loop keeps running, because frames from
    the controller have to be taken: otherwise a recording of them would stop."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, env={**os.environ, **environment}
        )
        code = await process.wait()
    except (OSError, ValueError) as error:
        return f"could not be started: {error}"
    finally:
        signal.signal(signal.SIGINT, before)
    return f"exit status {code}" if code else ""
