"""`llumctl lora` loads and unloads LoRA adapters, and shows them.

An operator who stops following a load does not end it.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_INTERRUPTED, EXIT_WOULD_CHANGE, LlumctlError, UsageError
from controller.api.settings import ADAPTER_NAME
from llumctl import connect, output
from llumctl.commands.options import (
    Cluster,
    Detach,
    DryRun,
    IfRevision,
    Model,
    OutputFormat,
    Reason,
)
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.operations.on_adapters import AdapterReport
    from controller.api.wire.status import AdapterStatus, ClusterStatus

app = typer.Typer(name="lora", help="Load and unload LoRA adapters.", rich_markup_mode=None)
POLL_S = 0.3
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The name by which clients call the adapter.")
]


@app.command("list")
def list_adapters(
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
    model: Model = None,  # noqa: ARG001  # its callback notes it
) -> None:
    """Show the adapters: which instances have each, and which use it."""
    with connect.client(connect.attached(cluster)) as client:
        status = client.status()
    output.emit(_text(status, status.adapters, output_format))


@app.command()
def load(
    name: Name,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="The folder with its files, on each machine of the cluster."
        ),
    ],
    detach: Detach = False,
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
    model: Model = None,  # noqa: ARG001  # its callback notes it
) -> None:
    """Load an adapter on all instances. Clients name it as a model.

    The files are copied first, so that nobody can change them while the adapter is in use. The
    engines must have been started with enable_lora. Ctrl-C does not end the load.
    """
    _check_name(name)
    from controller.api.operations.on_adapters import LoadAdapter, LoadAdapterRequest

    order = LoadAdapter(
        LoadAdapterRequest(
            name=name,
            path=str(_absolute(path)),
            dry_run=dry_run,
            reason=reason,
            if_revision=if_revision,
        )
    )
    attached = connect.attached(cluster)
    with connect.client(attached) as client:
        report = client.send(order)
    if not report.changes:
        output.say("nothing to change")
    elif dry_run or detach:
        output.say(f"{'would load' if dry_run else 'all instances load'} {report.facts}")
    if dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE if report.changes else 0)
    if not detach:
        _follow(attached, report, output_format)


@app.command()
def unload(
    name: Name,
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    cluster: Cluster = None,
    model: Model = None,  # noqa: ARG001  # its callback notes it
) -> None:
    """Take an adapter away. Its requests go on until they end; new ones get 404."""
    _check_name(name)
    from controller.api.operations.on_adapters import (
        UnloadAdapter,
        UnloadAdapterRequest,
        unload_words,
    )

    wanted = UnloadAdapterRequest(
        name=name, dry_run=dry_run, reason=reason, if_revision=if_revision
    )
    with connect.client(connect.attached(cluster)) as client:
        report = client.send(UnloadAdapter(wanted))
    output.say("\n".join(unload_words(report)))
    if dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _check_name(name: str) -> None:
    import re

    if not re.fullmatch(ADAPTER_NAME, name):
        raise UsageError(
            f"NAME: {name[:60]!r} is not a name (up to 128 letters, digits and . _ : / -)"
        )


def _absolute(path: Path) -> Path:
    try:
        return Path.cwd() / path.expanduser()
    except RuntimeError as error:  # a ~user that does not exist
        raise UsageError(f"PATH: {path}: {error}", "llumctl lora load NAME /PATH") from error


def _follow(cluster: str, report: "AdapterReport", output_format: Format) -> None:
    """Waits until each instance that serves has loaded the adapter. Raises LlumctlError if one of
    them cannot use it."""
    said: list[str] = []
    try:
        while True:
            with connect.client(cluster) as client:
                status = client.status()
            found = next((each for each in status.adapters if each.number == report.number), None)
            if found is None:
                raise LlumctlError(f"{report.name} was unloaded meanwhile", "llumctl lora list")
            to_come = _to_come(status, found)
            if not to_come and (found.loaded_on or found.failed_on):
                break
            if to_come != said:
                output.say(f"loading on {' '.join(to_come) or 'the next instance that serves'}")
                said = to_come
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        output.say("no longer watching: the load goes on\ntry:   llumctl lora list")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    output.emit(_text(status, (found,), output_format))
    if found.failed_on:
        where, why = ", ".join(found.failed_on), next(iter(found.failed_on.values()))
        first = next(iter(found.failed_on))
        raise LlumctlError(
            f"{where} cannot use {found.name}: {why}",
            f"llumctl lora unload {found.name}      or, to try again,      llumctl restart {first}",
        )


def _to_come(status: "ClusterStatus", adapter: "AdapterStatus") -> list[str]:
    """The instances that serve, and have neither loaded the adapter nor failed to."""
    done = {*adapter.loaded_on, *adapter.failed_on}
    return [
        each.id
        for each in status.instances
        if each.state in ("active", "draining") and each.id not in done
    ]


def _text(
    status: "ClusterStatus", adapters: "tuple[AdapterStatus, ...]", output_format: Format
) -> str:
    if output_format is Format.NAME:
        return "\n".join(each.name for each in adapters)
    if output_format not in (Format.TABLE, Format.WIDE):
        return output.encode(
            output_format, status.model_copy(update={"adapters": adapters}), adapters
        )
    from controller.api.operations.on_adapters import SHOWN_DIGITS

    wide = output_format is Format.WIDE
    rows = [
        (
            each.name,
            str(each.rank),
            each.digest if wide else each.digest[:SHOWN_DIGITS],
            " ".join(each.loaded_on) or "-",
            " ".join(each.in_use_on) or "-",
            _state(status, each),
            each.path,
        )
        for each in adapters
    ]
    return output.table(
        ("NAME", "RANK", "SHA-256", "LOADED-ON", "IN-USE-ON", "STATE", "PATH"), rows
    )


def _state(status: "ClusterStatus", adapter: "AdapterStatus") -> str:
    if adapter.failed_on:
        return f"failed on {' '.join(adapter.failed_on)}"
    to_come = _to_come(status, adapter)
    if to_come:
        return f"loading on {' '.join(to_come)}"
    return "loaded" if adapter.loaded_on else "not loaded"
