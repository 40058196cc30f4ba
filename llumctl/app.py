"""The command tree. Help is plain text: rich would cost more than all of the rest."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from controller.api.errors import UsageError
from controller.api.state import user_files
from controller.api.version import own_version
from llumctl import errors, meant
from llumctl.commands import (
    bench,
    config,
    doctor,
    events,
    get_set,
    instances,
    logs,
    profile,
    record,
    requests,
    scale,
    simulate,
    status,
    top,
    undo,
    up,
)
from llumctl.commands.up import UpCommand
from llumctl.text import output


class _Commands(TyperGroup):
    """The commands, whose help lists them by what they are for."""

    def format_commands(  # type: ignore[override]
        self,
        ctx: typer.Context,  # noqa: ARG002
        formatter: Any,
    ) -> None:
        """Each panel is a section, which aligns as all others do."""
        width = max(map(len, self.commands))
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            text = command.get_short_help_str(formatter.width - 6 - width)
            panel = str(getattr(command, "rich_help_panel", ""))
            panels.setdefault(panel, []).append((name.ljust(width), text))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A former name runs what it has become, after a line on stderr that says so."""
        if args and args[0] in FORMER and not ctx.resilient_parsing:
            present, options = FORMER[args[0]]
            output.say(f"llumctl {args[0]} is now llumctl {present}")
            args = [*present.split(), *(_renamed(each, options) for each in args[1:])]
        return super().resolve_command(ctx, args)


def _renamed(argument: str, options: Mapping[str, str]) -> str:
    name, equals, value = argument.partition("=")
    return f"{options.get(name, name)}{equals}{value}"


app = typer.Typer(
    name="llumctl",
    cls=_Commands,
    help="Operate a cluster of vLLM instances that reschedules running requests.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 no controller,"
    " 4 not found, 5 refused, 6 conflict, 124 timed out, 130 interrupted.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
SERVE, LOOK, STEER, PLAN, HELP = "Serve", "Look", "Steer", "Plan", "Help"
app.command("up", cls=UpCommand, rich_help_panel=SERVE)(up.up)
app.command("down", rich_help_panel=SERVE)(up.down)
app.command("status", rich_help_panel=LOOK)(status.status)
app.command("top", rich_help_panel=LOOK)(top.top)
app.command("requests", rich_help_panel=LOOK)(requests.requests)
app.command("events", rich_help_panel=LOOK)(events.events)
app.command("logs", rich_help_panel=LOOK)(logs.logs)
app.command("record", rich_help_panel=LOOK)(record.record)
for name, command in {**instances.COMMANDS, **requests.COMMANDS}.items():
    app.command(name, rich_help_panel=STEER)(command)
app.command("scale", cls=scale.ScaleCommand, rich_help_panel=STEER)(scale.scale)
app.command("set", rich_help_panel=STEER)(get_set.set_settings)
app.command("undo", rich_help_panel=STEER)(undo.undo)
app.command("bench", rich_help_panel=PLAN)(bench.bench)
app.command("profile", rich_help_panel=PLAN)(profile.profile)
app.add_typer(simulate.app, rich_help_panel=PLAN)
app.command("doctor", rich_help_panel=HELP)(doctor.doctor)
app.add_typer(config.app, rich_help_panel=HELP)
FORMER: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "autoscale": ("scale auto", {}),
    "evacuate": ("drain --remove", {}),
    "explain": ("requests", {}),
    "get": ("set", {}),
    "record-traffic": ("record --traffic", {"--for": "--duration"}),
    "undrain": ("uncordon", {}),
    "wait": ("status", {"--for": "--wait"}),
}
"""What a command is called now that had another name, and its options that had other names."""


def run(arguments: Sequence[str]) -> int:
    """The exit code of `llumctl ARGUMENTS`."""
    meant.forget()
    return errors.guarded(lambda: _invoke(arguments))


def _invoke(arguments: Sequence[str]) -> int:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{argument[:60]!r} is not UTF-8, as all arguments must be") from None
    if "--install-completion" in arguments:
        user_files.home()  # the parser writes there, and ends in a traceback without one
    result = _command()(args=list(arguments), prog_name="llumctl", standalone_mode=False)
    return result if isinstance(result, int) else 0


@cache
def _command() -> Any:
    """Built once: the tests, which run hundreds of command lines, would spend 15 ms on each."""
    return typer.main.get_command(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        output.emit(f"llumctl {own_version() or '(not installed)'}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - the callback acts on it
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        output.emit(context.get_help())
