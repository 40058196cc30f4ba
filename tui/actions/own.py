"""Commands of the operator's own, for a row.

Clients choose the ids of their requests, so a row's values are strangers' words. Each takes the
place of a whole argument of a list that is executed as it is: no shell reads it, and a value that
begins with a dash is no option.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from controller.api.errors import UsageError
from controller.api.operations.order import Kind, Plan
from controller.api.text.quantities import printable
from controller.api.wire.status import ClusterStatus
from tui.actions.target import Target

OWN = "own."
"""What the ids of their actions begin with."""
FIELDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.INSTANCE: ("id", "cluster", "state", "incarnation", "pid", "node"),
    Kind.REQUEST: ("id", "instance", "cluster"),
}
"""The values that a row of each kind has."""
PLACEHOLDER = re.compile(r"(--?[A-Za-z][\w-]*=)?\{([a-z_]+)\}")
"""A whole argument, or the value of a long option."""


MAX_SHOWN = 240
"""Characters of an argument."""


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """`run`: the program and its arguments, with placeholders as `{id}` for the row's values."""

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
        """What the help says of it."""
        return self.text or f"runs {self.run[0]}"


@dataclass(frozen=True, slots=True)
class Run:
    """A command with the values of a row: what is executed once the operator has agreed."""

    command: OwnCommand
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    told: str = ""
    """What is said to run, where that is not the very arguments."""

    @property
    def word(self) -> str:
        return "Run"

    @property
    def question(self) -> str:
        return f"Run {self.command.name}?"

    @property
    def line(self) -> str:
        """The arguments as a shell would take them, to be read."""
        return printable(self.told or shlex.join(self.arguments))

    def plan(self, _: object) -> Plan[Self]:
        """The very arguments, one a line: what a value holds cannot look like two of them, and a
        long one does not hide those behind it."""
        lines = [f"{place}  {_shortened(each)}" for place, each in enumerate(self.arguments)]
        return Plan(tuple(lines), self)


def _shortened(argument: str) -> str:
    if len(argument) <= MAX_SHOWN:
        return argument
    return f"{argument[:MAX_SHOWN]}... ({len(argument)} characters)"


def values(kind: Kind, target: Target, status: ClusterStatus, cluster: str) -> dict[str, str]:
    """The row's values by name; those that it does not have are missing. `cluster`: what
    `--cluster` takes."""
    found: dict[str, object] = {"id": target.of(kind), "cluster": cluster}
    if kind is Kind.REQUEST:
        found["instance"] = target.instance_id
    for item in status.instances:
        if kind is Kind.INSTANCE and item.id == target.instance_id:
            found |= {"state": item.state, "incarnation": item.incarnation}
            found |= {"pid": item.pid or "", "node": item.node}
    return {name: str(value) for name, value in found.items() if value != ""}


def filled(command: OwnCommand, row: Mapping[str, str]) -> Run:
    """The command with the row's values in their places. Raises UsageError for a value that the row
    does not have, or that no program can be given, or that would be read as an option."""
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
    """What every program can be given. Raises UsageError."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{name} is no text that a program can be given") from None
    if "\0" in value:
        raise UsageError(f"{name} contains a NUL, which no program can be given")
    return value
