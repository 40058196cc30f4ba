"""The command tree, and how every command ends.

Help is plain text, because importing rich would take longer than everything else.
"""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from controller.api.errors import (
    EXIT_CONFLICT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_TIMED_OUT,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    EXIT_WOULD_CHANGE,
    LlumctlError,
    UsageError,
)
from controller.api.state import user_files
from controller.api.text.hints import own_version
from controller.api.text.quantities import printable
from llumctl import complaints, meant, output
from llumctl.commands import (
    attached,
    batches,
    bench,
    config,
    demo,
    doctor,
    events_and_logs,
    instances,
    lora,
    mcp,
    profile,
    record,
    requests,
    restart,
    scale,
    set_settings,
    simulate,
    status,
    top,
    undo,
    up,
)
from llumctl.commands.up import UpCommand


class _Commands(TyperGroup):
    """The group of all commands. Its help lists them by purpose."""

    def format_commands(  # type: ignore[override]
        self,
        ctx: typer.Context,  # noqa: ARG002
        formatter: Any,
    ) -> None:
        """Writes each panel as a section. The columns of all sections are aligned."""
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
        """Runs the present command for a former name, after a line on stderr that names it."""
        if args and args[0] in FORMER and not ctx.resilient_parsing:
            present, options = FORMER[args[0]]
            output.say(f"llumctl {args[0]} is now llumctl {present}")
            args = [*present.split(), *(_renamed(each, options) for each in args[1:])]
        return super().resolve_command(ctx, args)


def _renamed(argument: str, options: Mapping[str, str]) -> str:
    name, equals, value = argument.partition("=")
    return f"{options.get(name, name)}{equals}{value}"


EXITS: Mapping[int, str] = {
    EXIT_DONE: "done",
    EXIT_FAILED: "failed",
    EXIT_USAGE: "usage or configuration",
    EXIT_UNREACHABLE: "no controller",
    EXIT_NOT_FOUND: "not found",
    EXIT_REFUSED: "refused",
    EXIT_CONFLICT: "conflict",
    EXIT_WOULD_CHANGE: "a dry run that would change something",
    EXIT_TIMED_OUT: "timed out",
    EXIT_INTERRUPTED: "interrupted",
}
"""All exit codes in a few words, for the help. The reference says more about each."""

app = typer.Typer(
    name="llumctl",
    cls=_Commands,
    help="Operate a cluster of vLLM instances that reschedules running requests.",
    epilog=f"Exit codes: {', '.join(f'{code} {words}' for code, words in EXITS.items())}.",
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
app.command("demo", rich_help_panel=LOOK)(demo.demo)
app.command("requests", rich_help_panel=LOOK)(requests.requests)
app.command("batches", rich_help_panel=LOOK)(batches.batches)
app.command("events", rich_help_panel=LOOK)(events_and_logs.events)
app.command("logs", rich_help_panel=LOOK)(events_and_logs.logs)
app.command("mcp", rich_help_panel=LOOK)(mcp.mcp)
app.command("record", rich_help_panel=LOOK)(record.record)
for name, command in (
    *instances.COMMANDS.items(),
    ("restart", restart.restart),
    *requests.COMMANDS.items(),
):
    app.command(name, rich_help_panel=STEER)(command)
app.command("scale", cls=scale.ScaleCommand, rich_help_panel=STEER)(scale.scale)
app.command("set", rich_help_panel=STEER)(set_settings.set_settings)
app.command("attach", rich_help_panel=STEER)(attached.attach)
app.command("detach", rich_help_panel=STEER)(attached.detach)
app.add_typer(lora.app, rich_help_panel=STEER)
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
"""Former names of commands, each with its present name and the present names of its options."""


def run(arguments: Sequence[str]) -> int:
    """Runs `llumctl ARGUMENTS` and returns its exit code."""
    meant.forget()
    return guarded(lambda: _invoke(arguments), lambda: f"{_named(arguments)} --help")


def _named(arguments: Sequence[str]) -> str:
    """The command that the arguments name: `llumctl lora load`."""
    path, command = ["llumctl"], _command()
    first = FORMER[arguments[0]][0].split() if arguments and arguments[0] in FORMER else []
    for word in (*first, *arguments[bool(first) :]):
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        path.append(word)
    return " ".join(path)


def _invoke(arguments: Sequence[str]) -> int:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{argument[:60]!r} is not UTF-8, as all arguments must be") from None
    if "--install-completion" in arguments:
        user_files.home()  # the parser writes into it, and without one ends in a traceback
    return _parse(arguments)


def _parse(arguments: Sequence[str]) -> int:
    result = _command()(args=list(arguments), prog_name="llumctl", standalone_mode=False)
    return result if isinstance(result, int) else 0


@cache
def _command() -> Any:
    """Builds the parser once. That takes 15 ms, and tests run hundreds of command lines."""
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


def _commands_named(context: typer.Context, incomplete: str) -> list[str]:
    """Completes the names of commands, after the names that are typed already."""
    command: Any = _command()
    for word in context.params.get("words") or ():
        command = getattr(command, "commands", {}).get(word)
    return [name for name in getattr(command, "commands", {}) if name.startswith(incomplete)]


@app.command("help", rich_help_panel=HELP)
def _help(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND...]",
            help="A command, as in llumctl help lora load. Without one: all commands.",
            autocompletion=_commands_named,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the help of a command, as --help does."""
    _parse([*(words or ()), "--help"])


# -- how a command ends: lines on stderr and an exit code, whatever happened --------------

MAX_LOG_BYTES = 1 << 20


def guarded(
    command: Callable[[], int], help_of_it: Callable[[], str] = lambda: "llumctl --help"
) -> int:
    """Runs a command and returns its exit code. Only `SystemExit` leaves this function.
    `help_of_it`: the command to try after wrong usage, if the error names no better one."""
    try:
        code = command()
    except LlumctlError as error:
        code = _ended_by(error, help_of_it)
    except KeyboardInterrupt:
        output.say("interrupted")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_DONE
    except OSError as error:
        if _is_of_the_parser(error):
            show(output.refused(sys.stdout, error).message)
            code = EXIT_FAILED
        else:
            code = _unforeseen(error)
    except Exception as error:
        if complaints.is_of_parser(error):
            code = _ended_by(complaints.usage_error(error), help_of_it)
        else:
            code = _unforeseen(error)
    output.flush()
    return code


def _ended_by(error: LlumctlError, help_of_it: Callable[[], str]) -> int:
    hint = error.hint
    if not hint and isinstance(error, UsageError):
        hint = help_of_it()
    show(error.message, hint)
    return error.exit_code


def _is_of_the_parser(error: OSError) -> bool:
    """Whether the parser failed to write. Help and completions do not go through `output`."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code.co_name == "echo"


def show(message: str, hint: str = "") -> None:
    """Prints the error, and below it the command to try: people look at the last line first."""
    told = printable(message, keep="\n")
    output.say(f"error: {told}")
    if hint:
        output.say(f"try:   {printable(hint)}")


def _unforeseen(error: Exception) -> int:
    """Shows an exception that is not ours: a defect of llumctl, unless the parser was
    interrupted."""
    if type(error).__name__ == "Abort":
        output.say("interrupted")
        return EXIT_INTERRUPTED
    written = _log(error)
    if written is None:
        traceback.print_exception(error)
        show(f"unexpected {type(error).__name__}: {error}")
    else:
        show(f"unexpected {type(error).__name__}: {error} (traceback in {written})")
    return EXIT_FAILED


def _log(error: Exception) -> Path | None:
    """Appends the traceback to a private file, which is emptied first if it has grown large."""
    from controller.api.state import run_state

    with contextlib.suppress(OSError, LlumctlError):
        path = run_state.state_root() / "errors.log"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
            if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
                os.ftruncate(descriptor, 0)
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {sys.argv}\n")
            file.writelines(traceback.format_exception(error))
        return path
    return None
