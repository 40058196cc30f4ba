"""The command tree. Help is plain text: rich would cost more than all of the rest."""

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from controller.api.errors import UsageError
from controller.api.state import user_files
from controller.api.version import own_version
from llumctl import errors, meant
from llumctl.commands import (
    autoscale,
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

app = typer.Typer(
    name="llumctl",
    help="Operate a cluster of vLLM instances that reschedules running requests.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 no controller,"
    " 4 not found, 5 refused, 6 conflict, 124 timed out, 130 interrupted.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up", cls=UpCommand)(up.up)
app.command("down")(up.down)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("record")(record.record)
app.command("record-traffic")(record.record_traffic)
for name, command in {**requests.COMMANDS, **instances.COMMANDS}.items():
    app.command(name)(command)
app.command("scale", cls=scale.ScaleCommand)(scale.scale)
app.command("autoscale")(autoscale.autoscale)
app.command("get")(get_set.get)
app.command("set")(get_set.set_settings)
app.command("undo")(undo.undo)
app.command("events")(events.events)
app.command("logs")(logs.logs)
app.command("wait")(status.wait)
app.add_typer(config.app)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("profile")(profile.profile)
app.add_typer(simulate.app)


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
