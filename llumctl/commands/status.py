"""`llumctl status`: how the cluster is, once."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_FAILED, UnreachableError
from llumctl import config_file, output
from llumctl.commands.options import Cluster, positive
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.models import ClusterStatus

DEFAULT_TIMEOUT_S = 5.0


def status(
    output_format: Annotated[
        Format, typer.Option("-o", "--output", help="Format of what goes to stdout.")
    ] = Format.TABLE,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 unless the cluster and all instances are well.")
    ] = False,
    cluster: Cluster = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="How many seconds the controller may take.")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the cluster and its instances."""
    positive(timeout, "--timeout")
    found = fetch(config_file.cluster_name(cluster), timeout)
    if text := _text(found, output_format):
        output.emit(text)
    if check and (complaints := unwell(found)):
        for line in complaints:
            output.say(line)
        raise typer.Exit(EXIT_FAILED)


def fetch(cluster: str, timeout_s: float) -> "ClusterStatus":
    """Raises UnreachableError if nothing runs under that name or it does not answer."""
    from controller.api import run_state

    state = run_state.load(cluster)
    if state is None:
        others = [f"llumctl status --cluster {name}" for name in run_state.clusters()]
        raise UnreachableError(
            f"cluster {cluster} is not running", "      or      ".join(["llumctl up", *others[:3]])
        )
    from controller.api.client import ControlClient

    with ControlClient(state.control_url, state.control_token, timeout_s) as client:
        return client.status()


def unwell(found: "ClusterStatus") -> list[str]:
    """Why `--check` fails, a line each; empty if all is well."""
    lines = [
        f"instance {item.id} is {item.state}" + (f": {item.detail}" if item.detail else "")
        for item in found.instances
        if item.state != "active"
    ]
    if not found.instances:
        lines.append("there are no instances")
    if found.state != "ready":
        detail = f": {found.detail}" if found.detail else ""
        lines.append(f"cluster {found.cluster} is {found.state}{detail}")
    return lines


def _text(found: "ClusterStatus", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(item.id for item in found.instances)
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl import status_table

        colours = output.use_colours(sys.stdout)
        return status_table.render(found, wide=output_format is Format.WIDE, colours=colours)
    return output.encode(output_format, found, found.instances)
