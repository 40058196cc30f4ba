"""The table `[commands]`, checked before anything is drawn."""

import re
from collections.abc import Mapping

from controller.api.operations.order import Kind
from controller.api.settings.settings import OwnCommandTable
from tui.actions.action import Action, Place
from tui.actions.own import FIELDS, PLACEHOLDER, OwnCommand
from tui.input.commands import ALIASES, FORMS

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_ANY_FIELD = re.compile(r"\{(" + "|".join(sorted({*sum(FIELDS.values(), ())})) + r")\}")


class OwnCommandError(ValueError):
    """The message says what is wrong with `field` of the command `name`; "": with its name."""

    def __init__(self, name: str, field: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.field = field


def checked(wanted: Mapping[str, OwnCommandTable]) -> tuple[OwnCommand, ...]:
    """Raises OwnCommandError: a name that is none or is taken, a program that a row would name, or
    a placeholder that is none or no whole argument."""
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
    """What is wrong with an argument; empty: nothing."""
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


def actions(commands: tuple[OwnCommand, ...]) -> list[Action]:
    """Their entries in the table of actions: keys, help and palette have them as all others."""
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
